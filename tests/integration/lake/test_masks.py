"""Columns that are left out or masked: in no table of the lake, no file beside them, and no log."""

from __future__ import annotations

import hashlib
import hmac
import logging
from typing import TYPE_CHECKING, Any

import pytest

from harness.lake import MASK_SECRET
from harness.service import Service, service_in_process
from harness.tiers import deep
from spillway.errors import InvalidRequest, LakeSchemaConflict, LakeTableConflict
from spillway.lake.job.run import JobSettings, JobSummary, run_job
from spillway.lake.load.run import LoadSettings, run_load
from spillway.lake.read import Lake
from spillway.lake.state import quarantine, shown_tables
from spillway.lake.state.shown_tables import ShownTables
from spillway.lake.verify.run import Verification, VerifySettings, verify
from spillway.plugins import masks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from harness.cluster import Database

TABLES = """
CREATE TABLE people (
    id int PRIMARY KEY, email text, born date, phone text, name text, photo bytea, note text);
ALTER TABLE people ALTER email SET STORAGE EXTERNAL;
CREATE TABLE marks (who text, mark int, secret text);
ALTER TABLE marks REPLICA IDENTITY FULL;
CREATE TABLE codes (code text PRIMARY KEY, n int);
"""
MASKS = {
    "public.people": ("hash(email)", "hash(born)", "null(phone)", "constant(name:x y)",
                      "out(photo)"),
    "public.marks": ("out(secret)", "hash(who)"),
    "public.codes": ("hash(code)",),
}  # fmt: skip
#: what the source has in masked columns, and nobody else may have
HIDDEN = "hidden-by-masks"


def hash_of(text: str) -> str:
    return hmac.new(MASK_SECRET.encode(), text.encode(), hashlib.sha256).hexdigest()


class People:
    """A source, a slot and a lake with masks."""

    def __init__(
        self, spark: SparkSession, pg: Database, service: Service, path: Path, table_format: str
    ) -> None:
        self.spark = spark
        self.pg = pg
        self.service = service
        self.path = path / "lake"
        self.table_format: Any = table_format

    def run(self, **changed: Any) -> JobSummary:
        self.service.wait_decoded("s", self.pg)
        settings: dict[str, Any] = {
            "slot": "s",
            "path": self.path,
            "checkpoint": self.path.parent / "checkpoint",
            "table_format": self.table_format,
            "grpc": self.service.grpc_address,
            "source_dsn": self.pg.dsn,
            "shown": ShownTables(masks=MASKS),
        }
        return run_job(JobSettings(**settings | changed), spark=self.spark)

    def load(self, *tables: str, **changed: Any) -> int:
        settings: dict[str, Any] = {
            "slot": "s",
            "path": self.path,
            "source_dsn": self.pg.dsn,
            "tables": tables,
            "table_format": self.table_format,
            "grpc": self.service.grpc_address,
        }
        return run_load(LoadSettings(**settings | changed), lambda _: None, spark=self.spark)

    def verify(self) -> Verification:
        settings = VerifySettings(
            path=self.path, source_dsn=self.pg.dsn, grpc=self.service.grpc_address
        )
        return verify(settings, spark=self.spark)

    def rows(self, table: str, kind: str = "current") -> list[dict[str, Any]]:
        pin = Lake(self.spark, self.path).at()
        frame = pin.current(table) if kind == "current" else pin.history(table)
        return sorted((row.asDict(recursive=True) for row in frame.collect()), key=str)

    def check_nothing_leaks(self) -> None:
        """Look for what is hidden in all that the lake says."""
        pin = Lake(self.spark, self.path).at()
        found = [str(row) for name in pin.tables("history") for row in self.rows(name, "history")]
        found += [str(row) for name in pin.tables() for row in self.rows(name)]
        if (self.path / "ddl").exists():
            found += [str(row) for row in pin.ddl().collect()]
        for name in pin.tables("quarantine"):
            found += [str(row) for row in pin.quarantine(name).collect()]
        beside = (p for p in (self.path / "_spillway").rglob("*") if p.is_file())
        found += [p.read_bytes().decode("latin-1") for p in beside]
        checkpoint = (p for p in (self.path.parent / "checkpoint").rglob("*") if p.is_file())
        found += [p.read_bytes().decode("latin-1") for p in checkpoint]
        assert len(found) > 4
        for each in found:
            assert HIDDEN not in each
            assert MASK_SECRET not in each


@pytest.fixture(params=["delta", deep("iceberg"), deep("parquet")])
def people(
    request: pytest.FixtureRequest, spark: SparkSession, pg: Database, tmp_path: Path
) -> Iterator[People]:
    pg.execute(TABLES)
    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg.dsn)
        service.create_slot("s", pg.name, "arrow")
        yield People(spark, pg, service, tmp_path, request.param)


def test_nothing_of_a_masked_column_is_in_the_lake(
    people: People, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    pg = people.pg
    pg.execute(
        f"INSERT INTO people SELECT g, '{HIDDEN}' || g, '2000-01-01'::date + g, '{HIDDEN}',"
        f" '{HIDDEN}', '{HIDDEN}', 'open' FROM generate_series(1, 3) g;"
        f"INSERT INTO people (id) VALUES (4);"
        f"INSERT INTO marks SELECT '{HIDDEN}', g % 2, '{HIDDEN}' || g FROM generate_series(1, 4) g;"
        f"INSERT INTO codes SELECT '{HIDDEN}' || g, g FROM generate_series(1, 3) g"
    )
    people.run(initial_load=True)
    first = people.rows("public.people")[0]
    assert first == {
        "id": 1,
        "email": hash_of(HIDDEN + "1"),
        "born": hash_of("2000-01-02"),
        "phone": None,
        "name": "x y",
        "note": "open",
    }
    assert people.rows("public.people")[3]["email"] is None
    # The same column by changes: a large value that stays, a key that moves, a default, a date that
    # no lake has.
    large = HIDDEN * 1000
    pg.execute(f"UPDATE people SET email = '{large}' WHERE id = 1")
    pg.execute("UPDATE people SET note = 'again', id = 10 WHERE id = 1")
    pg.execute("UPDATE people SET note = 'once more' WHERE id = 10")
    pg.execute("UPDATE people SET born = 'infinity' WHERE id = 2; DELETE FROM people WHERE id = 3")
    pg.execute(f"DELETE FROM marks WHERE mark = 1 AND secret = '{HIDDEN}1'")
    pg.execute(f"UPDATE codes SET code = '{HIDDEN}9' WHERE n = 1; DELETE FROM codes WHERE n = 2")
    people.run()
    found = {row["id"]: row for row in people.rows("public.people")}
    assert found.keys() == {2, 4, 10}
    assert found[10]["email"] == hash_of(large)
    assert found[2]["born"] == hash_of("infinity")
    assert {row["code"] for row in people.rows("public.codes")} == {
        hash_of(HIDDEN + "9"), hash_of(HIDDEN + "3")
    }  # fmt: skip
    assert [(row["who"], row["mark"]) for row in people.rows("public.marks")] == [
        (hash_of(HIDDEN), mark) for mark in (0, 0, 1)
    ]
    people.check_nothing_leaks()
    assert HIDDEN not in caplog.text + "".join(capfd.readouterr())


@pytest.mark.long
def test_a_table_that_is_set_aside_keeps_what_is_masked(
    people: People, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    pg = people.pg
    pg.execute(f"INSERT INTO people (id, phone, photo) VALUES (1, '{HIDDEN}', '{HIDDEN}')")
    people.run()
    assert people.verify().equal
    pg.execute(
        f"ALTER TABLE people ADD COLUMN note_2 date DEFAULT 'infinity', ALTER email SET "
        f"DEFAULT '{HIDDEN}'"
    )
    pg.execute(f"INSERT INTO people (id, phone, photo) VALUES (20, '{HIDDEN}', '{HIDDEN}')")
    assert "note_2" in people.run().quarantined[0]
    people.check_nothing_leaks()
    assert HIDDEN not in caplog.text + "".join(capfd.readouterr())


@pytest.mark.long
def test_a_difference_in_a_masked_column_is_found(people: People) -> None:
    pg = people.pg
    pg.execute(
        "INSERT INTO people (id, email) SELECT g, 'a' || g FROM generate_series(1, 3) g;"
        "INSERT INTO codes SELECT 'c' || g, g FROM generate_series(1, 3) g"
    )
    people.run(initial_load=True)
    assert people.verify().equal
    if people.table_format != "delta":
        return
    for table, change in (("people", "email = 'x' WHERE id = 2"), ("codes", "n = 7 WHERE n = 2")):
        where = people.path / "current" / f"public.{table}"
        people.spark.sql(f"UPDATE delta.`{where}` SET {change}")
        outcome = people.verify()
        assert not outcome.equal
        different = next(t for t in outcome.tables if t.table == f"public.{table}")
        assert {d.only for d in different.differences} == {"source", "lake"}
        if table == "people":
            assert {d.key for d in different.differences} == {("2",)}


@pytest.mark.long
def test_masks_of_a_table_that_is_there(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    pg = people.pg
    pg.execute(
        "INSERT INTO people (id, email) VALUES (1, 'ada'); INSERT INTO codes VALUES ('a', 1)"
    )
    people.run(shown=ShownTables())
    assert people.rows("public.people")[0]["email"] == "ada"
    # What is there is not hashed by itself: the table waits for a load.
    pg.execute("UPDATE people SET note = 'n'; INSERT INTO codes VALUES ('b', 2)")
    summary = people.run(shown=ShownTables(masks={"public.people": ("hash(email)",)}))
    assert "'email'" in summary.quarantined[0]
    assert "lake load --resync --table public.people" in summary.quarantined[0]
    people.load("public.people", resync=True)
    people.run(shown=ShownTables())
    assert people.rows("public.people")[0]["email"] == hash_of("ada")
    assert people.verify().equal

    # A key can't be left out, by changes and by a load; hashed it tells rows as ever.
    for mask in ("out(code)", "null(code)", "constant(code:x)"):
        asked = ShownTables(masks={"public.codes": (mask,)})
        pg.execute("UPDATE codes SET n = n + 1")
        summary = people.run(shown=asked)
        assert "rows of public.codes are told by code" in summary.quarantined[0]
    with pytest.raises(LakeSchemaConflict, match="told by code") as told:
        people.load("public.codes", resync=True)
    assert told.value.details["relation"] == "public.codes"
    asked = ShownTables(masks={"public.codes": ("hash(code)",)})
    people.load("public.codes", resync=True, shown=asked)
    people.run(shown=ShownTables())
    assert not quarantine.quarantined(people.path)
    assert people.verify().equal

    # Another secret, or none, is no secret of this lake.
    monkeypatch.setenv(masks.ENVIRONMENT, "quite another secret")
    with pytest.raises(LakeTableConflict, match="is not the secret"):
        people.run()
    monkeypatch.delenv(masks.ENVIRONMENT)
    with pytest.raises(InvalidRequest, match="has no secret"):
        people.run()
    assert set(shown_tables.plugin_options(people.path)) == {"masks"}
