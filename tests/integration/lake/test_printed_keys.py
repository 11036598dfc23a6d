"""Keys that the lake has as PostgreSQL prints them, when rows that nobody touched are printed
otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from harness.service import service_in_process
from spillway.lake.job.run import JobSettings, run_job
from spillway.lake.load.run import LoadSettings, run_load

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from harness.cluster import Database

TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TABLE keyed (m mood PRIMARY KEY, v text);
CREATE TABLE several (m mood[] PRIMARY KEY, v text);
CREATE TABLE whole (m mood, v text);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE cut (m varchar(6) PRIMARY KEY, v text);
CREATE TABLE beside (m mood, v text PRIMARY KEY);
INSERT INTO keyed VALUES ('sad', '1'), ('glad', '2');
INSERT INTO several VALUES ('{sad}', '1'), ('{glad}', '2');
INSERT INTO whole VALUES ('sad', '1'), ('glad', '2');
INSERT INTO cut VALUES ('a     ', '1'), ('b', '2');
INSERT INTO beside VALUES ('sad', '1'), ('glad', '2');
"""
NAMES = ("keyed", "several", "whole", "cut", "beside")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_rows_are_not_sought_under_what_was_printed(
    spark: SparkSession, pg15: Database, tmp_path: Path
) -> None:
    pg15.execute(TABLES)
    path = tmp_path / "lake"
    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg15.dsn)
        service.create_slot("s", pg15.name, "arrow")
        settings = JobSettings(
            slot="s", path=path, checkpoint=tmp_path / "checkpoint", source_dsn=pg15.dsn,
            initial_load=True, grpc=service.grpc_address,
        )  # fmt: skip

        def run(*statements: str) -> dict[str, str]:
            """Return the tables that are set aside, and what is told of each."""
            for statement in statements:
                pg15.execute(statement)
            service.wait_decoded("s", pg15)
            told = run_job(settings, spark=spark, on_load=lambda _: None).quarantined
            return {each.split(" ")[0].removeprefix("public."): each for each in told}

        def check(*names: str) -> None:
            for name in names:
                rows = DeltaTable(str(path / "current" / f"public.{name}")).to_pyarrow_table()
                held = zip(*(rows.column(n).to_pylist() for n in ("m", "v")), strict=True)
                assert sorted(held) == sorted(pg15.query(f"SELECT m::text, v FROM {name}")), name

        def load(*names: str) -> None:
            again = LoadSettings(
                slot="s", path=path, source_dsn=pg15.dsn, grpc=service.grpc_address, resync=True,
                tables=tuple(f"public.{name}" for name in names),
            )  # fmt: skip
            assert run_load(again, lambda _: None, spark=spark) == len(names)

        assert run() == {}
        check(*NAMES)
        aside = run(
            "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
            "ALTER TABLE cut ALTER m TYPE varchar(3)",
            *(f"DELETE FROM {name} WHERE v = '1'" for name in NAMES),
        )
        assert sorted(aside) == ["cut", "keyed", "several", "whole"]
        assert "column 'm' mood were renamed: 'sad' is 'blue' now" in aside["keyed"]
        assert "Load it anew: spillway lake load --resync --table public.keyed" in aside["keyed"]
        load(*aside)
        # Another label is no other name of one.
        assert run(
            "ALTER TYPE mood ADD VALUE 'calm'",
            *(f"INSERT INTO {n} VALUES ('calm', '3')" for n in ("keyed", "whole", "beside")),
        ) == {}  # fmt: skip
        check(*NAMES)
        aside = run(
            "ALTER TYPE mood RENAME VALUE 'calm' TO 'quiet'",
            *(f"UPDATE {name} SET v = '4' WHERE v = '3'" for name in ("keyed", "whole")),
        )
        assert sorted(aside) == ["keyed", "whole"]
        load(*aside)
        assert run("DELETE FROM keyed WHERE m = 'quiet'") == {}
        check("keyed", "whole", "several", "cut")
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")
