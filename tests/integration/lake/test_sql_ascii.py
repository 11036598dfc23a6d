"""A lake of a database in SQL_ASCII, whose values and names may be any bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.service import service_in_process
from harness.sql_ascii import in_sql_ascii, write_bytes
from spillway.lake.job.run import JobSettings, run_job
from spillway.lake.verify.run import VerifySettings, verify

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Literal

    from pyspark.sql import SparkSession

    from harness.cluster import Database

PLAIN, ODD = "public.plain", r"public.t\xfc"


@pytest.mark.long
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_loaded_followed_and_compared(
    spark: SparkSession, pg18: Database, tmp_path: Path, table_format: Literal["delta", "iceberg"]
) -> None:
    tables = (
        b"CREATE TABLE plain (id int PRIMARY KEY, v text);"
        b"INSERT INTO plain VALUES (1, 'gr\xc3\xbcn');"
        b'CREATE TABLE "t\xfc" ("k\xfc" text PRIMARY KEY, v text[]);'
        b"INSERT INTO \"t\xfc\" VALUES ('\xfc', ARRAY['\xff', '\xc3\xbc']), ('gone\xfc', '{}')"
    )
    with (
        in_sql_ascii(pg18, tables) as bare,
        service_in_process(tmp_path / "data") as service,
    ):
        service.create_source(bare.dsn)
        service.create_slot("s", bare.name, "arrow")
        settings = JobSettings(
            slot="s",
            path=tmp_path / "lake",
            checkpoint=tmp_path / "checkpoint",
            table_format=table_format,
            grpc=service.grpc_address,
            source_dsn=bare.dsn,
            initial_load=True,
        )

        def run() -> list[str]:
            service.wait_decoded("s", pg18)
            steps: list[str] = []
            run_job(settings, spark=spark, on_load=lambda step: steps.append(str(step)))
            return steps

        def compared() -> dict[str, str]:
            outcome = verify(
                VerifySettings(settings.path, bare.dsn, grpc=service.grpc_address), spark=spark
            )
            return {each.table: str(each) for each in outcome.tables}

        def said(table: str, rows: int) -> str:
            return f"{table}: equal, {rows} rows at the source, {rows} in the lake"

        # One table's bytes don't stop the other; the remedy is in what is said.
        (refused,) = (step for step in run() if "not UTF-8" in step)
        assert ODD in refused
        assert "not_utf8=escape" in refused
        assert compared()[PLAIN] == said(PLAIN, 1)
        service.call("PATCH", "/slots/s", json={"options": {"not_utf8": "escape"}})
        run()
        write_bytes(
            bare,
            b"INSERT INTO \"t\xfc\" VALUES ('\xe9', NULL); UPDATE \"t\xfc\" SET v = '{\xfe}'"
            b" WHERE \"k\xfc\" = '\xfc'; DELETE FROM \"t\xfc\" WHERE v = '{}';"
            b" UPDATE plain SET v = '\xe2\x82'",
        )
        run()
        assert compared() == {PLAIN: said(PLAIN, 1), ODD: said(ODD, 2)}
        write_bytes(bare, b'ALTER TABLE "t\xfc" ADD "w\xfc" text DEFAULT \'d\xfc\'')
        found = compared()[ODD]
        assert found == said(ODD, 2) + (
            "\n  note: columns in the source only, until the table's next change: w\\xfc"
        )
        write_bytes(bare, b"INSERT INTO \"t\xfc\" VALUES ('later', NULL, '\xfd')")
        run()
        assert compared()[ODD] == said(ODD, 3)
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")
