"""Names of tables and columns with dots and quotes, which Spark's functions read as several names
unless they are told not to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.service import service_in_process
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
