"""ALTER TABLE on a real server, through the service: the current table is the source's table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.service import service_in_process
from spillway.lake.job.run import JobSettings, run_job
from spillway.lake.tables.parquet.tables import current_path

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from harness.cluster import Database


def test_alter_table(spark: SparkSession, pg15: Database, tmp_path: Path) -> None:
    pg15.execute("CREATE TABLE t (id int PRIMARY KEY, v text, gone int)")
    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg15.dsn)
        service.create_slot("s", pg15.name, "arrow")
        settings = JobSettings(
            slot="s",
            path=tmp_path / "lake",
            checkpoint=tmp_path / "checkpoint",
            table_format="parquet",
            grpc=service.grpc_address,
        )
        pg15.execute("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)")
        service.wait_decoded("s", pg15)
        run_job(settings, spark=spark)
        for statement in (
            "INSERT INTO t VALUES (3, 'c', 3)",
            (
                "ALTER TABLE t ADD n numeric(8,2) DEFAULT 1.50, ADD w text DEFAULT 'it''s', ADD b "
                "bool DEFAULT true, ADD d date DEFAULT '2024-02-29', ADD p int[] DEFAULT '{1,2}', "
                "ADD raw bytea DEFAULT '\\x00ff'"
            ),
            "ALTER TABLE t RENAME v TO title",
            "ALTER TABLE t DROP gone",
            "UPDATE t SET n = NULL WHERE id = 2",
        ):
            pg15.execute(statement)
        service.wait_decoded("s", pg15)
        run_job(settings, spark=spark)
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")
    frame = spark.read.parquet(str(current_path(tmp_path / "lake", "public.t")))
    names = ["id", "title", "n", "w", "b", "d", "p", "raw"]
    assert frame.columns == names
    columns = "id, title, n, w, b, d, p::text, raw"
    assert sorted(
        tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in frame.collect()
    ) == pg15.query(f"SELECT {columns} FROM t ORDER BY id")
