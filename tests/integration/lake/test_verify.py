"""The lake against its source, while both go on."""

from __future__ import annotations

import secrets
import shutil
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from harness.killed_driver import run_killed
from harness.remedies import statements
from harness.service import service_in_process
from spillway.errors import LakeError
from spillway.lake.job.run import JobSettings, run_job
from spillway.lake.load.run import LoadSettings, run_load
from spillway.lake.read import Lake
from spillway.lake.state import boundaries, commit_points
from spillway.lake.verify.comparison import Difference
from spillway.lake.verify.run import VerifySettings, verify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from harness.cluster import Database
    from harness.service import Service

TABLES = """
CREATE TABLE accounts (id int PRIMARY KEY, name text, balance numeric(12,2), note text);
ALTER TABLE accounts ALTER note SET STORAGE EXTERNAL;
CREATE TABLE transfers (id int, leg int, at timestamptz DEFAULT now(), _op text,
    PRIMARY KEY (id, leg));
CREATE TABLE log (line text, n float8);
ALTER TABLE log REPLICA IDENTITY FULL;
CREATE TABLE seats (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, who text);
ALTER TABLE seats REPLICA IDENTITY FULL;
CREATE TABLE "Odd Name" ("the.id" int PRIMARY KEY, "the.value" float8);
"""


class Bank:
    def __init__(self, database: Database, service: Service, directory: Path) -> None:
        self.database = database
        self.path = directory / "lake"
        self.settings = JobSettings(
            slot="s",
            path=self.path,
            checkpoint=directory / "checkpoint",
            grpc=service.grpc_address,
            interval_s=0.1,
        )
        self.verify_settings = VerifySettings(
            path=self.path, source_dsn=database.dsn, grpc=service.grpc_address, timeout_s=300
        )
        self.transfers = 0

    def transfer(self) -> None:
        """Move money: a transaction over both tables, with a large value that stays as it is."""
        self.transfers += 1
        n = self.transfers
        one, other = n % 3 + 1, (n + 1) % 3 + 1
        statements = [
            # Two rows exchange their keys.
            f"UPDATE seats SET id = {one + other} - id WHERE id IN ({one}, {other})",
            f"UPDATE accounts SET balance = balance - 1 WHERE id = {n % 20}",
            f"UPDATE accounts SET balance = balance + 1 WHERE id = {(n * 7 + 1) % 20}",
            f"INSERT INTO transfers (id, leg, _op) SELECT {n}, g, 'x' FROM generate_series(1, 2) g",
            f"INSERT INTO log SELECT 'transfer', {n % 3} / 3.0",
        ]
        if n % 5 == 0:
            statements.append(f"DELETE FROM log WHERE n = {n % 3} / 3.0")
        self.database.execute("; ".join(statements))


@pytest.fixture
def bank(pg15: Database, tmp_path: Path) -> Iterator[Bank]:
    pg15.execute(TABLES)
    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg15.dsn)
        service.create_slot("s", pg15.name, "arrow")
        made = Bank(pg15, service, tmp_path)
        pg15.execute(
            "INSERT INTO accounts SELECT g, 'n' || g, 100, repeat('x', 9000) FROM "
            "generate_series(0, 19) g"
        )
        pg15.execute("INSERT INTO seats VALUES (1, 'a'), (2, 'b'), (3, 'c')")
        pg15.execute('INSERT INTO "Odd Name" VALUES (1, 0.5)')
        yield made
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")


@pytest.mark.long
def test_source_and_lake_while_both_go_on(bank: Bank, spark: SparkSession) -> None:
    stop, first = threading.Event(), threading.Event()
    failures: list[Exception] = []

    def beside(work: Any) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - asserted below
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def write() -> None:
        while not stop.wait(0.02):
            bank.transfer()

    settings = JobSettings(
        **{n: getattr(bank.settings, n) for n in bank.settings.__slots__}
        | {"trigger": "continuous"}
    )
    threads = [
        beside(write),
        beside(lambda: run_job(settings, on_batch=lambda _: first.set(), stop=stop, spark=spark)),
    ]
    try:
        assert first.wait(300)
        outcome = verify(bank.verify_settings, spark=spark)
        assert [str(table) for table in outcome.tables if not table.equal] == []
        assert {t.table: t.source_rows > 0 for t in outcome.tables} == {
            "public.Odd Name": True, "public.accounts": True, "public.log": True,
            "public.seats": True, "public.transfers": True,
        }  # fmt: skip
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert requests_for(bank.path) == []


@pytest.mark.long
def test_one_that_is_killed_leaves_nothing_for_ever(bank: Bank, spark: SparkSession) -> None:
    """Killed while it holds the job and has asked for a batch: the job is not held, ends a batch
    there, and removes what was asked for; so does a job that finds it is past it.
    """
    settings = {
        "path": str(bank.path),
        "source_dsn": bank.verify_settings.source_dsn,
        "grpc": bank.verify_settings.grpc,
    }
    change = "UPDATE accounts SET balance = balance + 1 WHERE id = 1"
    bank.database.execute(change)
    run_job(bank.settings, spark=spark)
    for round_ in range(2):
        bank.database.execute(change)
        run_killed(spark, "lake.verify_asked=kill", "verify", settings)
        (left,) = requests_for(bank.path)
        bank.database.execute(change)
        if round_ == 0:
            run_job(bank.settings, spark=spark)
            assert left in [point.lsn_value for point in commit_points.points(bank.path)]
        else:
            # It dies between what says that the batch is there and the removal.
            job = {
                "slot": "s",
                "path": str(bank.path),
                "checkpoint": str(bank.settings.checkpoint),
                "grpc": bank.settings.grpc,
            }
            run_killed(spark, "lake.before_served=kill", "job", job)
            assert requests_for(bank.path) == [left]
            assert left in [point.lsn_value for point in commit_points.points(bank.path)]
            run_job(bank.settings, spark=spark)
        assert requests_for(bank.path) == []
    accounts = replace(bank.verify_settings, tables=("public.accounts",))
    assert verify(accounts, spark=spark).equal


def requests_for(lake: Path) -> list[int]:
    names = [entry.name for entry in boundaries.folder(lake).iterdir()]
    return sorted(int(name) for name in names if name.isdecimal())


@pytest.mark.long
def test_what_differs_is_found(bank: Bank, spark: SparkSession) -> None:
    for _ in range(30):
        bank.transfer()
    run_job(bank.settings, spark=spark)
    for _ in range(10):
        bank.transfer()
    # No job is at work: the lake is brought to the snapshot from here.
    assert verify(bank.verify_settings, spark=spark).equal

    current = f"delta.`{bank.path}/current/public"
    spark.sql(f"UPDATE {current}.accounts` SET balance = 0, note = NULL WHERE id = 3")
    spark.sql(f"DELETE FROM {current}.accounts` WHERE id = 4")
    # What became of two rows that exchanged their keys, before deferrable keys were merged as such.
    spark.sql(f"DELETE FROM {current}.seats` WHERE id = 2")
    spark.sql(f"INSERT INTO {current}.transfers` SELECT 9, 9, now(), 'y'")
    bank.database.execute("ALTER TABLE transfers ADD later int")
    bank.database.execute('DROP TABLE "Odd Name"')
    outcome = verify(bank.verify_settings, spark=spark)
    by_name = {table.table: table for table in outcome.tables}
    assert by_name["public.accounts"].differences == [
        Difference(("3",), columns=("balance", "note")),
        Difference(("4",), only="source"),
    ]
    assert by_name["public.seats"].differences == [Difference(("2",), only="source")]
    assert by_name["public.transfers"].differences == [Difference(("9", "9"), only="lake")]
    assert by_name["public.transfers"].notes == [
        "columns in the source only, until the table's next change: later"
    ]
    assert by_name["public.log"].equal
    assert by_name["public.Odd Name"].notes == ["the source has no such table"]
    assert not outcome.equal
    # What mends a table that lost rows.
    again = LoadSettings(
        "s", bank.path, bank.database.dsn, ("public.seats",), resync=True, grpc=bank.settings.grpc
    )
    assert run_load(again, lambda _: None, spark=spark) == 1
    seats = replace(bank.verify_settings, tables=("public.seats",))
    assert [(t.equal, t.lake_rows) for t in verify(seats, spark=spark).tables] == [(True, 3)]

    # What the source refuses is said of its table, and mended as is said.
    role = f"reader_{secrets.token_hex(4)}"
    bank.database.execute(
        f"CREATE ROLE {role} LOGIN; GRANT SELECT ON accounts, seats, transfers TO {role}"
    )
    try:
        by_role = replace(bank.verify_settings, source_dsn=f"{bank.database.dsn} user={role}")
        found = verify(by_role, spark=spark)
        said = {table.table: table.skipped for table in found.tables}
        assert [name for name, why in said.items() if why] == ["public.log"]
        assert not found.equal
        assert found.refused is not None
        for statement in statements(found.refused.hint):
            bank.database.execute(statement)
        assert verify(by_role, spark=spark).refused is None
    finally:
        bank.database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")

    with pytest.raises(LakeError, match=r"no current table of public\.nothing"):
        verify(
            VerifySettings(
                bank.path, bank.database.dsn, tables=("public.nothing",), grpc=bank.settings.grpc
            ),
            spark=spark,
        )
    assert Lake(spark, bank.path).at().tables()


@pytest.mark.long
def test_what_has_no_current_table_is_told(
    spark: SparkSession, pg15: Database, tmp_path: Path
) -> None:
    """Nothing of it can be compared, so it is not among those that are equal: one whose changes
    don't tell rows, one that was set aside before it had any, one that somebody removed.
    """
    pg15.execute(
        "CREATE TABLE keyless (n int); CREATE TABLE never (id int PRIMARY KEY, on_day date);"
        "CREATE TABLE removed (id int PRIMARY KEY); CREATE TABLE kept (id int PRIMARY KEY);"
        "CREATE TABLE emptied (id int PRIMARY KEY); CREATE TABLE empty (id int);"
        "CREATE TABLE before (id int PRIMARY KEY); INSERT INTO before VALUES (1)"
    )
    path = tmp_path / "lake"
    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg15.dsn)
        service.create_slot("s", pg15.name, "arrow")
        pg15.execute(
            "INSERT INTO keyless VALUES (1); INSERT INTO never VALUES (1, 'infinity');"
            "INSERT INTO removed VALUES (1), (2); INSERT INTO kept VALUES (1);"
            "INSERT INTO emptied VALUES (1); DELETE FROM emptied"
        )
        service.wait_decoded("s", pg15)
        settings = JobSettings(
            slot="s", path=path, checkpoint=tmp_path / "checkpoint", grpc=service.grpc_address
        )
        run_job(settings, spark=spark)
        for name in ("removed", "emptied"):
            shutil.rmtree(path / "current" / f"public.{name}")
        found = verify(VerifySettings(path, pg15.dsn, grpc=service.grpc_address), spark=spark)
        by_name = {table.table.removeprefix("public."): table for table in found.tables}
        assert by_name.keys() == {"keyless", "never", "removed", "kept", "emptied"}
        # Of the rows from before the slot nobody has loaded any.
        assert found.absent == ("public.before",)
        assert "no primary key and no replica identity" in by_name["keyless"].skipped
        assert "in quarantine" in by_name["never"].skipped
        removed = by_name["removed"]
        assert (removed.equal, removed.source_rows, removed.lake_rows) == (False, 2, 0)
        assert "--resync --table public.removed" in removed.notes[0]
        assert by_name["kept"].equal
        # Nothing is lost of this one, but of what is there readers find nothing.
        assert by_name["emptied"].equal
        assert by_name["emptied"].notes
        assert not found.equal
        load = LoadSettings(
            "s", path, pg15.dsn, ("public.removed",), resync=True, grpc=service.grpc_address
        )
        assert run_load(load, lambda _: None, spark=spark) == 1
        assert verify(VerifySettings(path, pg15.dsn, grpc=service.grpc_address), spark=spark).equal
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")
