"""Changes that don't say which row they are of by what the current table is kept by: made while a
table had another replica identity, or none, or before it had a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.service import service_in_process
from spillway.lake.job.run import JobSettings, run_job
from spillway.lake.load.run import LoadSettings, run_load
from spillway.lake.tables import positions
from spillway.lake.verify.run import VerifySettings, verify

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from harness.cluster import Database

TABLES = """
CREATE TABLE nothing (id int PRIMARY KEY, v text);
CREATE TABLE other (id int PRIMARY KEY, u int NOT NULL UNIQUE, v text);
CREATE TABLE whole (id int, v text);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE inserted (id int PRIMARY KEY, v text);
CREATE TABLE renamed (id int PRIMARY KEY, v text);
ALTER TABLE renamed REPLICA IDENTITY FULL;
CREATE TABLE keyless (id int, v text);
CREATE TABLE keyless_moved (id int, v text);
CREATE TABLE keyless_grown (id int, v text);
CREATE TABLE keyless_in_one (id int, v text);
CREATE TABLE numbered_in_one (v text);
CREATE TABLE numbered (id int, v text);
CREATE TABLE renamed_first (id int, v text);
CREATE TABLE again_first (id int, v text);
"""
#: which have no rows yet when the first batch is made
LATER = ("keyless_in_one", "numbered_in_one")
NAMES = (
    "nothing", "inserted", "renamed", "whole", "keyless", "keyless_moved", "keyless_grown",
    "keyless_in_one", "numbered_in_one", "numbered", "renamed_first", "again_first",
)  # fmt: skip


def test_what_is_not_told_is_not_passed_over(
    spark: SparkSession, pg15: Database, tmp_path: Path
) -> None:
    path = tmp_path / "lake"
    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg15.dsn)
        service.create_slot("s", pg15.name, "arrow")
        settings = JobSettings(
            slot="s", path=path, checkpoint=tmp_path / "checkpoint", grpc=service.grpc_address
        )
        pg15.execute(
            "CREATE TABLE nothing (id int PRIMARY KEY); INSERT INTO nothing VALUES (1), (2);"
            "CREATE TABLE keyless (id int); INSERT INTO keyless VALUES (1), (2);"
            "CREATE TABLE cut (id int); INSERT INTO cut VALUES (1), (2);"
            "CREATE TABLE plain (id int); INSERT INTO plain VALUES (1), (2);"
            "CREATE TABLE renumbered (id int PRIMARY KEY); INSERT INTO renumbered VALUES (1), (2);"
            "DELETE FROM keyless WHERE id = 1"
        )
        service.wait_decoded("s", pg15)
        assert run_job(settings, spark=spark).quarantined == ()
        # As `--history-retention` does it.
        spark.sql(f"DELETE FROM delta.`{path}/history/public.cut` WHERE id = 1")
        pg15.execute("ALTER TABLE nothing REPLICA IDENTITY NOTHING")
        pg15.execute("DELETE FROM nothing WHERE id = 1")
        pg15.execute("ALTER TABLE nothing REPLICA IDENTITY DEFAULT")
        for name in ("keyless", "cut", "plain"):
            pg15.execute(f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
        # Which row has which number is not in WAL.
        pg15.execute("ALTER TABLE renumbered DROP id, ADD n serial PRIMARY KEY")
        pg15.execute("ALTER TABLE renumbered RENAME n TO id; INSERT INTO renumbered VALUES (7)")
        pg15.execute("; ".join(f"INSERT INTO {n} VALUES (3)" for n in ("nothing", "keyless")))
        pg15.execute("; ".join(f"INSERT INTO {n} VALUES (3)" for n in ("cut", "plain")))
        service.wait_decoded("s", pg15)
        for _ in range(2):
            aside = run_job(settings, spark=spark).quarantined
            assert [each.split(" ")[0] for each in aside] == [
                "public.cut", "public.keyless", "public.nothing", "public.renumbered",
            ]  # fmt: skip
        rows = spark.read.format("delta").load(f"{path}/current/public.plain").collect()
        assert sorted(row["id"] for row in rows) == [1, 2, 3]
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_each_way_to_it_and_its_way_back(
    spark: SparkSession, pg15: Database, tmp_path: Path, table_format: str
) -> None:
    pg15.execute(TABLES)
    path = tmp_path / "lake"
    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg15.dsn)
        service.create_slot("s", pg15.name, "arrow")
        settings = JobSettings(
            slot="s", path=path, checkpoint=tmp_path / "checkpoint", table_format=table_format,  # type: ignore[arg-type]
            grpc=service.grpc_address,
        )  # fmt: skip

        def run(*statements: str) -> dict[str, str]:
            """Return the tables that are set aside, and what is told of each."""
            for statement in statements:
                pg15.execute(statement)
            service.wait_decoded("s", pg15)
            told = run_job(settings, spark=spark).quarantined
            return {each.split(" ")[0].removeprefix("public."): each for each in told}

        def differing() -> list[str]:
            outcome = verify(VerifySettings(path, pg15.dsn, grpc=service.grpc_address), spark=spark)
            return [str(each) for each in outcome.tables if not each.equal and not each.skipped]

        rows = "SELECT g, 'a' FROM generate_series(1, 5) g"
        assert run(
            *(f"INSERT INTO {name} {rows}" for name in NAMES if name not in LATER),
            "INSERT INTO other SELECT g, g, 'a' FROM generate_series(1, 5) g",
            "DELETE FROM keyless WHERE id = 2",
            # The row is another one under a key that comes later.
            "UPDATE keyless_moved SET id = 100 WHERE id = 2",
        ) == {}  # fmt: skip
        assert run(
            "ALTER TABLE renamed_first RENAME v TO w",
            "INSERT INTO renamed_first VALUES (6, 'b')",
            "ALTER TABLE renamed_first RENAME w TO v",
            "DROP TABLE again_first",
            "CREATE TABLE again_first (id int, v text)",
            "INSERT INTO again_first VALUES (6, 'b')",
        ) == {}  # fmt: skip
        aside = run(
            "ALTER TABLE nothing REPLICA IDENTITY NOTHING",
            "DELETE FROM nothing WHERE id = 1",
            "ALTER TABLE nothing REPLICA IDENTITY DEFAULT",
            "UPDATE nothing SET v = 'b' WHERE id = 2",
            "ALTER TABLE other REPLICA IDENTITY USING INDEX other_u_key",
            "UPDATE other SET id = 100 WHERE id = 1",
            "ALTER TABLE other REPLICA IDENTITY DEFAULT",
            "UPDATE other SET v = 'b' WHERE id = 2",
            "ALTER TABLE whole REPLICA IDENTITY NOTHING",
            "DELETE FROM whole WHERE id = 1",
            "ALTER TABLE whole REPLICA IDENTITY FULL",
            "UPDATE whole SET v = 'b' WHERE id = 2",
            # Nothing is lost of these: what is inserted says all, and so does FULL.
            "ALTER TABLE inserted REPLICA IDENTITY NOTHING",
            "INSERT INTO inserted VALUES (6, 'b')",
            "ALTER TABLE inserted REPLICA IDENTITY DEFAULT",
            "DELETE FROM inserted WHERE id = 1",
            "DELETE FROM renamed WHERE id = 1",
            "ALTER TABLE renamed RENAME v TO w",
            "ALTER TABLE renamed REPLICA IDENTITY DEFAULT",
            "DELETE FROM renamed WHERE id = 2",
            "ALTER TABLE keyless ADD PRIMARY KEY (id)",
            "INSERT INTO keyless VALUES (6, 'b')",
            "ALTER TABLE keyless_moved ADD PRIMARY KEY (id)",
            "INSERT INTO keyless_moved VALUES (6, 'b')",
            "ALTER TABLE keyless_grown ADD PRIMARY KEY (id)",
            "INSERT INTO keyless_grown VALUES (6, 'b')",
            f"INSERT INTO keyless_in_one {rows}",
            "DELETE FROM keyless_in_one WHERE id = 2",
            "ALTER TABLE keyless_in_one ADD PRIMARY KEY (id)",
            "DELETE FROM keyless_in_one WHERE id = 3",
            # What was inserted before has a number at the source, which is not in WAL.
            "INSERT INTO numbered_in_one VALUES ('a'), ('b')",
            "ALTER TABLE numbered_in_one ADD id serial PRIMARY KEY",
            "INSERT INTO numbered_in_one (v) VALUES ('c')",
            "ALTER TABLE numbered ADD n serial PRIMARY KEY",
            "INSERT INTO numbered (v) VALUES ('c')",
            *(
                statement
                for name in ("renamed_first", "again_first")
                for statement in (
                    f"ALTER TABLE {name} ADD PRIMARY KEY (id)",
                    f"INSERT INTO {name} VALUES (7, 'b')",
                )
            ),
        )
        assert differing() == []
        assert aside.keys() == {
            "nothing", "other", "whole", "keyless", "keyless_moved", "keyless_in_one",
            "numbered_in_one", "numbered", "renamed_first", "again_first",
        }  # fmt: skip
        # As each one says; what came before and since is there then.
        assert all(f"--resync --table public.{name}" in told for name, told in aside.items())
        load = LoadSettings(
            slot="s", path=path, source_dsn=pg15.dsn,
            tables=tuple(f"public.{name}" for name in aside), resync=True,
            grpc=service.grpc_address,
        )  # fmt: skip
        assert run_load(load, lambda _: None, spark=spark) == len(aside)
        assert run(*(f"DELETE FROM {name} WHERE v = 'b'" for name in aside)) == {}
        outcome = verify(VerifySettings(path, pg15.dsn, grpc=service.grpc_address), spark=spark)
        assert [str(each) for each in outcome.tables if not each.equal] == []
        assert len(outcome.tables) == len(NAMES) + 1
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("table_format", "merge"), [("delta", "copy"), ("delta", "position"), ("iceberg", "position")]
)
def test_a_key_that_is_another_column(
    spark: SparkSession,
    pg15: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table_format: str,
    merge: str,
) -> None:
    """Under the name that the key had. Of a new column the rows that were there have numbers that
    are not in WAL; of one that was there they have their values.
    """
    monkeypatch.setattr(positions, "SMALL_TABLE_BYTES", 0)
    path = tmp_path / "lake"
    names = ("numbered", "emptied", "exchanged")
    for name in names:
        pg15.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, o int NOT NULL, v text)")
    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg15.dsn)
        service.create_slot("s", pg15.name, "arrow")
        settings = JobSettings(
            slot="s", path=path, checkpoint=tmp_path / "checkpoint", grpc=service.grpc_address,
            table_format=table_format, merge=merge,  # type: ignore[arg-type]
        )  # fmt: skip

        def run(*statements: str) -> list[str]:
            for statement in statements:
                pg15.execute(statement)
            service.wait_decoded("s", pg15)
            return list(run_job(settings, spark=spark).quarantined)

        def differing() -> list[str]:
            outcome = verify(VerifySettings(path, pg15.dsn, grpc=service.grpc_address), spark=spark)
            assert len(outcome.tables) == len(names)
            return [str(each) for each in outcome.tables if not each.equal and not each.skipped]

        rows = "SELECT g, 11 - g, 'a' FROM generate_series(1, 10) g"
        assert run(*(f"INSERT INTO {name} {rows}" for name in names), "TRUNCATE emptied") == []
        assert run("UPDATE exchanged SET v = 'b' WHERE id = 6") == []
        new = "ALTER TABLE {0} DROP id; ALTER TABLE {0} ADD id serial PRIMARY KEY"
        [told] = run(
            new.format("numbered"),
            "UPDATE numbered SET v = 'b' WHERE id = 2",
            new.format("emptied"),
            "INSERT INTO emptied (o, v) VALUES (1, 'c')",
            "ALTER TABLE exchanged DROP CONSTRAINT exchanged_pkey;"
            "ALTER TABLE exchanged RENAME id TO passing; ALTER TABLE exchanged RENAME o TO id;"
            "ALTER TABLE exchanged RENAME passing TO o; ALTER TABLE exchanged ADD PRIMARY KEY (id);"
            "UPDATE exchanged SET v = 'c' WHERE id = 2",
        )
        assert told.startswith("public.numbered ")
        assert "lake load --resync --table public.numbered" in told
        assert run(
            "UPDATE exchanged SET v = 'd' WHERE id = 4", "DELETE FROM exchanged WHERE id = 3"
        )
        assert differing() == []
        load = LoadSettings(
            slot="s", path=path, source_dsn=pg15.dsn, tables=("public.numbered",), resync=True,
            grpc=service.grpc_address,
        )  # fmt: skip
        assert run_load(load, lambda _: None, spark=spark) == 1
        assert run("DELETE FROM numbered WHERE id = 3") == []
        assert differing() == []
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")
