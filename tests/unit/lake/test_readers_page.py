"""What docs/how-to/query-a-lake.md says of other readers: each cell that can be tried here is."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from harness.iceberg_position_table import IcebergMerged
from harness.mapped_table import write_mapped
from harness.position_table import PositionMerged, items
from harness.tiers import deep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import duckdb
    from pyiceberg.table import Table

    from spillway.storage.place import LakePath

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "query-a-lake.md"
_ENGINE, _PYARROW = "delta-rs 1.6, `QueryBuilder`", "delta-rs 1.6, `to_pyarrow_table`, `to_pandas`"
_PYICEBERG = "PyIceberg 0.12"
_POLARS_DELTA, _POLARS_ICEBERG = "Polars 2.1, `scan_delta`", "Polars 2.1, `scan_iceberg`"
_POLARS_PYICEBERG = 'Polars 2.1, `scan_iceberg(…, reader_override="pyiceberg")`'
_DUCKDB = "DuckDB 1.5, `delta_scan`, `iceberg_scan`"


def _said() -> dict[tuple[str, str], str]:
    """Return what the page says, by reader and table."""
    section = PAGE.read_text().partition("### With other readers")[2].partition("\n## ")[0]
    lines = section.splitlines()
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
    (_, *kinds), _, *readers = rows
    return {
        (reader, kind): cell
        for reader, *cells in readers
        for kind, cell in zip(kinds, cells, strict=True)
    }


def _seen(read: Callable[[], pa.Table], wanted: list[dict[str, Any]]) -> str:
    try:
        found = read()
    except Exception:  # noqa: BLE001 - libraries refuse with errors of all kinds
        return "refuses"
    names = list(wanted[0])
    found = found.select(names).cast(pa.schema([(names[0], pa.int64()), (names[1], "string")]))
    rows = found.sort_by(names[0]).to_pylist()
    if rows == wanted:
        return "reads"
    return "nulls" if all(set(row.values()) == {None} for row in rows) else "other rows"


@pytest.fixture(scope="module")
def duck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with its extensions, which lie in wheels."""
    import duckdb

    folder = tmp_path_factory.mktemp("extensions")
    with duckdb.connect(config={"extension_directory": str(folder)}) as connection:
        for extension in ("avro", "delta", "iceberg"):
            import_module("duckdb_extensions").import_extension(extension, con=connection)
            connection.load_extension(extension)
        yield connection


def _by_engine(path: LakePath) -> pa.Table:
    found = QueryBuilder().register("t", DeltaTable(str(path))).execute("SELECT * FROM t")
    return pa.table(found.read_all())


def _in_duckdb(duck: duckdb.DuckDBPyConnection, function: str, path: object) -> pa.Table:
    return duck.execute(f"SELECT * FROM {function}('{path}')").to_arrow_table()


def _in_polars(frame: pl.LazyFrame) -> pa.Table:
    return frame.collect().to_arrow()


@pytest.mark.parametrize("kind", ["plain", "marked", "mapped"])
def test_delta(tmp_path: Path, kind: str, duck: duckdb.DuckDBPyConnection) -> None:
    path: LakePath
    if kind == "mapped":
        path, wanted = tmp_path / "mapped", [{"id": n, "first name": "n"} for n in (1, 2)]
        write_mapped(path, pa.Table.from_pylist(wanted))
    else:
        table = PositionMerged(tmp_path)
        path = table.path
        if kind == "plain":
            write_deltalake(str(path), pa.Table.from_pylist(items(1, 2)), mode="append")
            wanted = items(1, 2)
        else:
            table.merge(items(*range(50)))
            table.merge(items(1, name="x"), [(2,)])
            wanted = sorted(table.model.values(), key=table.identity)
    readers: dict[str, Callable[[], pa.Table]] = {
        _ENGINE: lambda: _by_engine(path),
        _PYARROW: lambda: DeltaTable(str(path)).to_pyarrow_table(),
        _POLARS_DELTA: lambda: _in_polars(pl.scan_delta(str(path))),
        _DUCKDB: lambda: _in_duckdb(duck, "delta_scan", path),
    }
    said, column = _said(), f"Delta, {kind}"
    seen = {reader: _seen(read, wanted) for reader, read in readers.items()}
    assert seen == {reader: said[reader, column] for reader in readers}


@pytest.mark.parametrize("kind", ["plain", "marked", deep("marked in many files")])
def test_iceberg(
    tmp_path: Path, kind: str, duck: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Iceberg's own planner is another package; Polars warns where it isn't there.
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    merged = IcebergMerged(tmp_path)
    if kind == "marked in many files":
        for first in range(0, 68, 2):
            merged.merge(items(first, first + 1))
        merged.merge([], [(number,) for number in range(0, 68, 2)])
    else:
        merged.merge(items(*range(50)))
    if kind == "marked":
        merged.merge(items(1, name="x"), [(2,)])
    wanted = sorted(merged.model.values(), key=merged.identity)
    table: Table = merged.theirs()
    readers: dict[str, Callable[[], pa.Table]] = {
        _PYICEBERG: lambda: table.scan().to_arrow(),
        _POLARS_ICEBERG: lambda: _in_polars(pl.scan_iceberg(table, reader_override="native")),
        _POLARS_PYICEBERG: lambda: _in_polars(pl.scan_iceberg(table, reader_override="pyiceberg")),
        _DUCKDB: lambda: _in_duckdb(duck, "iceberg_scan", table.metadata_location),
    }
    said = _said()
    seen = {reader: _seen(read, wanted) for reader, read in readers.items()}
    assert seen == {reader: said[reader, f"Iceberg, {kind}"] for reader in readers}
