"""When a current table is clustered: the first time, when much is new, when the columns are
others.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from spillway.lake.tables import layout
from spillway.lake.tables.delta.clustering import columns_due

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from spillway.lake.shape.partition import Partition

NAME = "shop.orders"


class Tables:
    """A lake's tables, as far as they are asked."""

    def schema(self, _kind: str, _name: str) -> pa.Schema:
        return pa.schema([("id", pa.int64()), ("n", pa.int64())])

    def partitions(self, _kind: str, _name: str) -> tuple[Partition, ...]:
        return ()


def write(lake: Path, *, rows: int) -> None:
    numbers = pa.array(range(rows), pa.int64())
    write_deltalake(lake / "current" / NAME, pa.table({"id": numbers, "n": numbers}), mode="append")


def ask(lake: Path, *columns: str) -> None:
    given = layout.parse(None, (), [f"{NAME}={','.join(columns)}"])
    layout.settle(lake, "delta", given, Tables())  # type: ignore[arg-type]


def done(lake: Path, *columns: str) -> None:
    """Leave what a round leaves."""
    actions = pa.table(DeltaTable(lake / "current" / NAME).get_add_actions())
    newest = max(actions.column("modification_time").cast(pa.int64()).to_pylist())
    file = lake / "_spillway" / "clustered" / f"{NAME}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"columns": columns, "newest": newest}))


def due(lake: Path) -> tuple[str, ...]:
    return columns_due(lake, Tables(), NAME)  # type: ignore[arg-type]


def test_when_it_is_due(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, rows=1000)
    assert due(tmp_path) == ()
    ask(tmp_path, "n")
    assert due(tmp_path) == ("n",)
    done(tmp_path, "n")
    assert due(tmp_path) == ()
    # Less than a quarter of it, then more.
    write(tmp_path, rows=10)
    assert due(tmp_path) == ()
    write(tmp_path, rows=900)
    assert due(tmp_path) == ("n",)
    done(tmp_path, "n")
    ask(tmp_path, "id", "n")
    assert due(tmp_path) == ("id", "n")
    done(tmp_path, "id", "n")
    assert due(tmp_path) == ()
    (tmp_path / "_spillway" / "clustered" / f"{NAME}.json").write_text("{")
    assert due(tmp_path) == ("id", "n"), "what was done is not known"

    # A column that went since leaves the others.
    file = tmp_path / "_spillway" / "layout.json"
    file.write_text(file.read_text().replace('"id"', '"gone"'))
    assert due(tmp_path) == ("n",)
    assert "has only n" in caplog.text
