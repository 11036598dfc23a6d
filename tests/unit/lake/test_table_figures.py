"""What a lake job tells of its current tables: by format, in status file and metrics."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake

from harness.iceberg_position_table import IcebergMerged
from harness.position_table import PositionMerged, items
from spillway.lake.batch.materialize import BatchReport
from spillway.lake.job.status_file import LakeStatusFile
from spillway.lake.job.table_figures import FigureWatch
from spillway.lake.metrics import LakeMetrics
from spillway.lake.tables import positions
from spillway.lake.tables.figures import TableFigures
from spillway.lake.tables.formats import table_looks
from spillway.pg.lsn import Lsn
from spillway.subscriber.run_status import RunStatus

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_of_delta_by_position_and_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "current" / "public.t"
    merged = PositionMerged(tmp_path, path=path)
    look = table_looks("delta", tmp_path).look
    assert look("public.absent") is None
    assert look("public.t") == TableFigures(0, 0, 0, 0, 0)
    merged.merge(items(*range(100)))
    merged.merge(items(*range(20, 30), name="other"), gone=[(n,) for n in range(10)])
    found = look("public.t")
    assert found is not None
    stored = sum(file.stat().st_size for file in path.glob("*.parquet"))
    # What marks rows replaces no file.
    assert found == TableFigures(90, 2, stored, 20, 0)
    assert found.rows == len(merged.stored())
    # Another one compacts it, by a commit that the next look finds.
    table = merged.delta()
    rows = pa.Table.from_pylist(merged.stored(), schema=merged.shape.columns)
    write_deltalake(table, rows, mode="overwrite")
    again = look("public.t")
    assert again is not None
    assert (again.rows, again.files, again.deleted_rows) == (90, 1, 0)
    assert again.rewritten_bytes == stored
    assert again.rewritten_bytes != table_looks("delta", tmp_path).look("public.t")
    # Nothing has changed, and who looks for the first time does not know what was before.
    assert (nothing := look("public.t")) is not None
    assert nothing.rewritten_bytes == 0
    assert table_looks("delta", tmp_path).look("public.t") == nothing


def test_of_iceberg_by_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "SMALL_TABLE_BYTES", 0)
    merged = IcebergMerged(tmp_path)
    look = table_looks("iceberg", tmp_path).look
    assert look("absent") is None
    assert look("t") == TableFigures(0, 0, 0, 0, 0)
    merged.merge(items(*range(100)))
    merged.merge(items(*range(20, 30), name="other"), gone=[(n,) for n in range(10)])
    found = look("t")
    assert found is not None
    assert (found.rows, found.files, found.deleted_rows) == (90, 2, 20)
    assert found.size_bytes > 0
    assert found.rewritten_bytes == 0
    # All rows come anew: files with no row left go.
    merged.merge(items(*range(10, 100), name="third"))
    again = look("t")
    assert again is not None
    assert again.rows == 90
    assert len(merged.stored()) == 90


def test_of_parquet(tmp_path: Path) -> None:
    look = table_looks("parquet", tmp_path).look
    table = tmp_path / "current" / "public.t"
    assert look("public.t") is None
    for lsn, rows in ((10, 5), (20, 7)):
        copy = table / f"v-{lsn}"
        copy.mkdir(parents=True)
        pq.write_table(pa.table({"id": list(range(rows))}), copy / "part-0.parquet")
        (table / "_table.json").write_text(
            f'{{"copy": "{copy.name}", "lsn": {lsn}, "since": 10, "key": ["id"]}}'
        )
        found = look("public.t")
        assert found is not None
        before = 0 if lsn == 10 else (table / "v-10" / "part-0.parquet").stat().st_size
        assert (found.rows, found.files, found.rewritten_bytes) == (rows, 1, before)


def test_it_is_told_in_status_and_metrics(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    merged = PositionMerged(tmp_path, path=lake / "current" / "public.t")
    merged.merge(items(1, 2, 3), gone=[])
    metrics = LakeMetrics()
    metrics.begun("s", 1, 1, datetime.now(UTC))
    status = LakeStatusFile(tmp_path / "status.json").__enter__()

    def tell(name: str, found: TableFigures) -> None:
        status.figures(name, found)
        metrics.figures("s", name, found)

    committed = datetime.now(UTC) - timedelta(seconds=40)
    report = BatchReport(
        0, Lsn(0), Lsn(9), {"public.t": 1}, Lsn(9), 0.5, committed, 1.0,
        newest={"public.t": committed},
    )  # fmt: skip
    with FigureWatch(lake, "delta", tell) as watch:
        merged.merge(items(2, name="new"), gone=[(3,)])
        status.heard(lake, report)
        metrics.batch("s", report)
        watch.changed(report.changes)
    status.waits("public.t", committed)
    metrics.waits("s", "public.t", committed)
    status.begun()
    told = RunStatus.load(tmp_path)
    assert told is not None
    (table,) = told.tables
    assert (table.rows, table.files, table.deleted_rows, table.deleted_share) == (2, 2, 2, 0.5)
    assert table.bytes_rewritten == 0
    assert table.newest_change_at == table.waiting_since == committed
    assert table.figures_at is not None
    assert (datetime.now(UTC) - table.figures_at).total_seconds() < 60
    assert 40 <= metrics.table_freshness("s", "public.t") < 100
    status.waits("public.t", None)
    metrics.waits("s", "public.t", None)
    status.begun()
    told = RunStatus.load(tmp_path)
    assert told is not None
    assert told.tables[0].waiting_since is None
    assert metrics.table_freshness("s", "public.t") == 0

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"slot": "s", "table": "public.t", **labels})

    assert value("spillway_lake_table_rows") == 2
    assert value("spillway_lake_table_deleted_rows") == 2
    assert value("spillway_lake_table_files", kind="current") == 2
    assert value("spillway_lake_table_rewritten_bytes_total") == 0
    assert value("spillway_lake_table_freshness_seconds") == 0
