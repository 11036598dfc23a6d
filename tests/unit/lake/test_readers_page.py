"""What docs/how-to/query-a-lake.md says of other readers: each cell that can be tried here is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from harness.iceberg_position_table import IcebergMerged
from harness.position_table import PositionMerged, items

if TYPE_CHECKING:
    from collections.abc import Callable

    from spillway.storage.place import LakePath

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "query-a-lake.md"
_ENGINE, _PYARROW = "delta-rs 1.6, `QueryBuilder`", "delta-rs 1.6, `to_pyarrow_table`, `to_pandas`"
_PYICEBERG = "PyIceberg 0.12"


def _said() -> dict[tuple[str, str], str]:
    """Return what the page says, by reader and table."""
    lines = PAGE.read_text().partition("### With other readers")[2].splitlines()
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
    found = found.select(["id", "name"]).cast(pa.schema([("id", pa.int64()), ("name", "string")]))
    rows = found.sort_by("id").to_pylist()
    return "reads" if rows == wanted else "other rows"


def _by_engine(path: LakePath) -> pa.Table:
    found = QueryBuilder().register("t", DeltaTable(str(path))).execute("SELECT * FROM t")
    return pa.table(found.read_all())


@pytest.mark.parametrize("kind", ["plain", "marked"])
def test_delta(tmp_path: Path, kind: str) -> None:
    table = PositionMerged(tmp_path)
    if kind == "plain":
        write_deltalake(str(table.path), pa.Table.from_pylist(items(1, 2)), mode="append")
        wanted = items(1, 2)
    else:
        table.merge(items(*range(50)))
        table.merge(items(1, name="x"), [(2,)])
        wanted = sorted(table.model.values(), key=table.identity)
    said, column = _said(), f"Delta, {kind}"
    assert _seen(lambda: _by_engine(table.path), wanted) == said[_ENGINE, column]
    other = _seen(lambda: DeltaTable(str(table.path)).to_pyarrow_table(), wanted)
    assert other == said[_PYARROW, column]


@pytest.mark.parametrize("kind", ["plain", "marked"])
def test_iceberg(tmp_path: Path, kind: str) -> None:
    table = IcebergMerged(tmp_path)
    table.merge(items(*range(50)))
    if kind == "marked":
        table.merge(items(1, name="x"), [(2,)])
    wanted = sorted(table.model.values(), key=table.identity)
    seen = _seen(lambda: table.theirs().scan().to_arrow(), wanted)
    assert seen == _said()[_PYICEBERG, f"Iceberg, {kind}"]
