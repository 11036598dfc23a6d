"""Random transactions, DDL among them, on a real server: after each batch the lake is what the
source is.
"""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import pytest

from harness.lake_workload import SETUP, LakeWorkload
from harness.service import service_in_process
from spillway.lake.job.run import JobSettings, run_job
from spillway.lake.state.shown_tables import ShownTables
from spillway.lake.tables import positions
from spillway.lake.verify.run import VerifySettings, verify

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg
    from pyspark.sql import SparkSession

    from harness.cluster import Database

#: SPILLWAY_LAKE_BATCHES: how many, to look for longer
BATCHES = int(os.environ.get("SPILLWAY_LAKE_BATCHES", "2"))
TRANSACTIONS = 10
#: a batch of them is cut in several
FEW_BYTES = 20_000


@pytest.mark.long
@pytest.mark.parametrize(
    ("table_format", "merge", "seed"),
    [("delta", "copy", 8), ("delta", "position", 8), ("iceberg", "copy", 10)],
)
def test_random_changes(
    spark: SparkSession,
    pg18: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table_format: Literal["delta", "iceberg", "parquet"],
    merge: Literal["copy", "position"],
    seed: int,
) -> None:
    """A failing seed of SPILLWAY_FUZZ_SEED is to be put among the parameters."""
    # Its tables would all be small ones, which are merged by rewriting.
    monkeypatch.setattr(positions, "SMALL_TABLE_BYTES", 0)
    rng = random.Random(int(os.environ.get("SPILLWAY_FUZZ_SEED", seed)))
    workload = LakeWorkload(rng)
    with service_in_process(tmp_path / "data") as service, pg18.connect() as connection:
        _run(connection, [SETUP, *workload.created])
        service.create_source(pg18.dsn)
        service.create_slot("s", pg18.name, "arrow")
        settings = JobSettings(
            slot="s",
            path=tmp_path / "lake",
            checkpoint=tmp_path / "checkpoint",
            table_format=table_format,
            merge=merge,
            grpc=service.grpc_address,
        )
        for _ in range(BATCHES):
            for _ in range(TRANSACTIONS):
                _run(connection, workload.transaction())
            _run(connection, workload.settle())
            service.wait_decoded("s", pg18)
            bytes_max = rng.choice((settings.max_bytes_per_batch, FEW_BYTES))
            run_job(replace(settings, max_bytes_per_batch=bytes_max), spark=spark)
            found = verify(
                VerifySettings(settings.path, pg18.dsn, grpc=service.grpc_address), spark=spark
            )
            assert [str(table) for table in found.tables if not table.equal] == []
            assert len(found.tables) == len(workload.tables)
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("table_format", "merge", "seed"),
    [("delta", "position", 3), ("iceberg", "copy", 4), ("iceberg", "position", 5)],
)
def test_loads_in_between(
    spark: SparkSession,
    pg18: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table_format: Literal["delta", "iceberg", "parquet"],
    merge: Literal["copy", "position"],
    seed: int,
) -> None:
    """With partitioned tables as one; tables that come late are loaded while all of them are
    written to and merged. A failing seed of SPILLWAY_FUZZ_SEED is to be put among the parameters.
    """
    monkeypatch.setattr(positions, "SMALL_TABLE_BYTES", 0)
    rng = random.Random(int(os.environ.get("SPILLWAY_FUZZ_SEED", seed)))
    workload = LakeWorkload(rng, 2, roots=1)
    with service_in_process(tmp_path / "data") as service, pg18.connect() as connection:
        _run(connection, [SETUP, *workload.created])
        service.create_source(pg18.dsn)
        service.create_slot("s", pg18.name, "arrow")
        names = ["public.t0", "public.t1", "public.r0"]
        settings = JobSettings(
            slot="s",
            path=tmp_path / "lake",
            checkpoint=tmp_path / "checkpoint",
            table_format=table_format,
            merge=merge,
            grpc=service.grpc_address,
            source_dsn=pg18.dsn,
            shown=ShownTables(("public.r0",)),
        )
        for _ in range(BATCHES):
            late, made = workload.late()
            _run(connection, made)
            names.append(f"public.{late}")
            bytes_max = rng.choice((settings.max_bytes_per_batch, FEW_BYTES))
            now = replace(settings, max_bytes_per_batch=bytes_max, tables=tuple(names))
            for _ in range(TRANSACTIONS // 2):
                _run(connection, workload.transaction())
            with ThreadPoolExecutor(1, "writer") as threads:
                written = threads.submit(_write, connection, workload)
                run_job(replace(now, initial_load=True), spark=spark, on_load=print)
                written.result()
            _run(connection, workload.settle())
            service.wait_decoded("s", pg18)
            run_job(now, spark=spark)
            found = verify(
                VerifySettings(settings.path, pg18.dsn, grpc=service.grpc_address), spark=spark
            )
            assert [str(table) for table in found.tables if not table.equal] == []
            assert len(found.tables) == len(names)
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")


def _write(connection: psycopg.Connection[object], workload: LakeWorkload) -> None:
    for _ in range(TRANSACTIONS):
        _run(connection, workload.transaction())
        time.sleep(workload.rng.random() * 0.5)


def _run(connection: psycopg.Connection[object], statements: list[str]) -> None:
    for statement in statements:
        print(f"{statement};")
        connection.execute(statement)
