"""Names of tables and columns with dots and quotes, which Spark's functions read as several names
unless they are told not to.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from harness.service import service_in_process
from spillway.errors import LakeSchemaConflict
from spillway.lake.job.run import JobSettings, run_job
from spillway.lake.load.run import LoadSettings, run_load
from spillway.lake.verify.run import VerifySettings, verify

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from harness.cluster import Database

TABLES = """
CREATE TABLE "the.items" (id int, "the.key" int, "odd.name" text, "back`tick" text, "q""uote" text,
    "a.float" float8,
    "un.changed" text, PRIMARY KEY (id, "the.key"));
ALTER TABLE "the.items" ALTER "un.changed" SET STORAGE EXTERNAL;
CREATE TABLE "a bag" ("a.b" text, n real);
ALTER TABLE "a bag" REPLICA IDENTITY FULL;
INSERT INTO "the.items" SELECT g, g, 'a', 'b', 'c', g / 3.0, repeat('y', 9000)
    FROM generate_series(1, 50) g;
INSERT INTO "a bag" SELECT 'twice', 0.1 FROM generate_series(1, 2);
"""


@pytest.mark.long
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_names_with_dots_and_quotes(
    spark: SparkSession, pg15: Database, tmp_path: Path, table_format: str
) -> None:
    pg15.execute(TABLES)
    path = tmp_path / "lake"
    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg15.dsn)
        service.create_slot("s", pg15.name, "arrow")
        settings = JobSettings(
            slot="s", path=path, checkpoint=tmp_path / "checkpoint", table_format=table_format,  # type: ignore[arg-type]
            grpc=service.grpc_address, source_dsn=pg15.dsn, initial_load=True,
        )  # fmt: skip

        def run(*statements: str) -> None:
            for statement in statements:
                pg15.execute(statement)
            service.wait_decoded("s", pg15)
            run_job(settings, spark=spark, on_load=lambda _: None)

        def check() -> None:
            outcome = verify(VerifySettings(path, pg15.dsn, grpc=service.grpc_address), spark=spark)
            assert [str(table) for table in outcome.tables if not table.equal] == []
            assert len(outcome.tables) == 2

        run()
        run(
            """UPDATE "the.items" SET "odd.name" = 'new' WHERE id % 5 = 0""",
            'DELETE FROM "the.items" WHERE id = 7',
            """INSERT INTO "a bag" VALUES ('once', 1)""",
            'DELETE FROM "a bag" WHERE ctid = (SELECT min(ctid) FROM "a bag")',
        )
        run(
            # The key moves and takes a value along that WAL does not have.
            'UPDATE "the.items" SET "the.key" = 1000 + "the.key" WHERE id % 9 = 0',
            """UPDATE "the.items" SET "un.changed" = 'z' WHERE id % 10 = 3""",
            'ALTER TABLE "the.items" ADD "added.one" int DEFAULT 5',
            'ALTER TABLE "the.items" RENAME "odd.name" TO "odder.name"',
            'UPDATE "the.items" SET "added.one" = 6 WHERE id < 3',
        )
        again = LoadSettings(
            slot="s", path=path, source_dsn=pg15.dsn, tables=("public.the.items",), resync=True,
            grpc=service.grpc_address, range_bytes=8192,
        )  # fmt: skip
        check()
        assert run_load(again, lambda _: None, spark=spark) == 1
        check()
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")


TWO_OF_ONE_NAME = """
CREATE SCHEMA "a.b";
CREATE SCHEMA a;
CREATE TABLE "a.b".c (id int PRIMARY KEY, v text);
CREATE TABLE a."b.c" (id int PRIMARY KEY, v text);
CREATE TABLE beside (id int PRIMARY KEY, v text);
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_tables_whose_names_are_one_text(
    spark: SparkSession, pg15: Database, tmp_path: Path
) -> None:
    pg15.execute(TWO_OF_ONE_NAME)
    pg15.execute("INSERT INTO beside VALUES (0, 'loaded')")
    told = '"a"."b.c" and "a.b"."c" are two tables, and both names are a.b.c in a lake'

    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg15.dsn)

        def settings(name: str) -> JobSettings:
            service.create_slot(name, pg15.name, "arrow")
            return JobSettings(
                slot=name, path=tmp_path / name, checkpoint=tmp_path / f"of {name}",
                grpc=service.grpc_address, source_dsn=pg15.dsn, initial_load=True,
            )  # fmt: skip

        def run(job: JobSettings, *statements: str) -> list[str]:
            for statement in statements:
                pg15.execute(statement)
            service.wait_decoded(job.slot, pg15)
            return sorted(run_job(job, spark=spark, on_load=lambda _: None).quarantined)

        def rows(job: JobSettings, directory: str) -> list[tuple[int, str]]:
            stored = DeltaTable(str(job.path / "current" / directory)).to_pyarrow_table()
            return sorted(zip(*(stored.column(n).to_pylist() for n in ("id", "v")), strict=True))

        def verified(job: JobSettings) -> dict[str, str]:
            outcome = verify(
                VerifySettings(job.path, pg15.dsn, grpc=service.grpc_address), spark=spark
            )
            assert not outcome.equal or "a.b.c" not in {table.table for table in outcome.tables}
            return {table.table: str(table) for table in outcome.tables}

        job = settings("both")
        # Neither is loaded for the other, and what is beside them is.
        aside = run(
            job,
            """INSERT INTO "a.b".c VALUES (1, 'first'); INSERT INTO a."b.c" VALUES (2, 'second')""",
            "INSERT INTO beside VALUES (1, 'followed')",
        )
        assert len(aside) == 2
        assert all(told in each for each in aside)
        assert rows(job, "public.beside") == [(0, "loaded"), (1, "followed")]
        found = verified(job)
        assert "beside: equal" in found["public.beside"]
        assert "not compared" in found["a.b.c"]
        named = LoadSettings(
            slot="both", path=job.path, source_dsn=pg15.dsn, tables=("a.b.c",), resync=True,
            grpc=service.grpc_address,
        )  # fmt: skip
        with pytest.raises(LakeSchemaConflict, match="are two tables"):
            run_load(named, lambda _: None, spark=spark)

        # The first one to come is followed; the other one's changes don't touch it.
        pg15.execute("TRUNCATE beside")
        alone = settings("alone")
        alone = replace(alone, initial_load=False)
        assert run(alone, """INSERT INTO "a.b".c VALUES (3, 'own')""") == []
        (other,) = run(alone, """INSERT INTO a."b.c" VALUES (4, 'other')""")
        assert told in other
        run(alone, """UPDATE "a.b".c SET v = 'still' WHERE id = 3""")
        assert rows(alone, "a~2Eb.c") == [(3, "still")]
        assert "not compared" in verified(alone)["a.b.c"]

        # As the hint has it.
        pg15.execute('ALTER SCHEMA "a.b" RENAME TO ab')
        job = settings("renamed")
        assert run(job, "UPDATE ab.c SET v = 'both'", """UPDATE a."b.c" SET v = 'both'""") == []
        assert rows(job, "ab.c") == [(1, "both"), (3, "both")]
        assert rows(job, "a.b~2Ec") == [(2, "both"), (4, "both")]
        for name in ("both", "alone", "renamed"):
            service.drop_slot(name)
        service.call("DELETE", "/sources/main")
