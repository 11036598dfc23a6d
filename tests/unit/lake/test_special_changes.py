"""Batches with TRUNCATE and values left out as unchanged, and large ones, merged by position,
against a dict.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.iceberg_position_table import IcebergMerged
from harness.position_table import PositionMerged
from spillway.lake.tables import large_changes, plain_changes, positions
from spillway.lake.tables.delta.positions import Mark
from spillway.lake.tables.iceberg import snapshots
from spillway.lake.tables.iceberg.positions import Mark as IcebergMark
from spillway.lake.tables.large_changes import last_changes_in
from spillway.lake.tables.plain_changes import NotDirect, check_plain, last_changes

if TYPE_CHECKING:
    from pathlib import Path

    from spillway.lake.tables.plain_changes import LastChanges

_SEED = 20261125
_COLUMNS = pa.schema(
    [
        ("part", pa.string()),
        ("id", pa.int64()),
        ("body", pa.string()),
        ("tags", pa.list_(pa.field("element", pa.int32()))),
    ]
)
_LARGE = ("body", "tags")
_HISTORY = pa.schema(
    [
        ("_op", pa.string()),
        ("_commit_lsn", pa.int64()),
        ("_seq", pa.int64()),
        ("_unchanged_toast", pa.list_(pa.string())),
        ("_old_key", pa.struct([("part", pa.string()), ("id", pa.int64()), ("body", pa.string())])),
        *_COLUMNS,
    ]
)
Row = dict[str, Any]


class _Source:
    """A table's rows, and the changes that history would have of them."""

    def __init__(self, seed: object, *, left_out: bool = True) -> None:
        self.left_out = left_out
        self.random = random.Random(f"{_SEED} {seed}")
        self.rows: dict[tuple[str, int], Row] = {}
        self.changes: list[Row] = []
        self.lsn = 0

    def change(self) -> None:
        pick = self.random
        key = (pick.choice("ab"), pick.randrange(40))
        what = pick.choices(
            ["insert", "update", "left out", "delete", "move", "truncate"], [6, 4, 8, 2, 2, 0.15]
        )[0]
        there = self.rows.get(key)
        if what == "insert" and there is None:
            self._put("I", key, self._row(key))
        elif what == "update" and there is not None:
            self._put("U", key, self._row(key))
        elif what == "left out" and there is not None and self.left_out:
            after = self._row(key)
            names = pick.sample(_LARGE, pick.randrange(1, 3))
            old: Row | None = None
            if pick.random() < 0.3:
                # As with REPLICA IDENTITY FULL.
                old = {"part": key[0], "id": key[1], "body": there["body"]}
            told = after | dict.fromkeys(names)
            self._tell("U", told, old, names)
            self.rows[key] = after | {name: there[name] for name in names}
        elif what == "delete" and there is not None:
            del self.rows[key]
            self._tell("D", {}, {"part": key[0], "id": key[1]})
        elif what == "move" and there is not None:
            to = (pick.choice("ab"), pick.randrange(40, 60))
            if to not in self.rows:
                del self.rows[key]
                self.rows[to] = self._row(to)
                self._tell("U", self.rows[to], {"part": key[0], "id": key[1]})
        elif what == "truncate":
            self.rows.clear()
            self._tell("T", {})

    def _row(self, key: tuple[str, int]) -> Row:
        pick = self.random
        body = pick.choice([None, f"{pick.random()}"])
        return {"part": key[0], "id": key[1], "body": body, "tags": pick.choice([None, [1], [2]])}

    def _put(self, op: str, key: tuple[str, int], row: Row) -> None:
        self.rows[key] = row
        self._tell(op, row)

    def _tell(
        self, op: str, row: Row, old: Row | None = None, names: list[str] | None = None
    ) -> None:
        self.lsn += self.random.randrange(2)
        change = {"_op": op, "_commit_lsn": self.lsn, "_seq": len(self.changes)}
        self.changes.append({**change, "_unchanged_toast": names, "_old_key": old, **row})

    def taken(self) -> LastChanges:
        """Return the changes since the last time, reduced."""
        changes, self.changes = pa.Table.from_pylist(self.changes, schema=_HISTORY), []
        return last_changes(changes, _COLUMNS, ("part", "id"))


def _merge(table: PositionMerged | IcebergMerged, changes: LastChanges) -> None:
    table.lsn += 16
    if isinstance(table, PositionMerged):
        table.table.merge(changes, table.shape, Mark("spillway/s", table.lsn, "{}"))
    else:
        said = {snapshots.SLOT: "s", snapshots.END: f"0/{table.lsn:X}"}
        table.table.merge(changes, table.shape, IcebergMark(said, {}))


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_against_a_dict(tmp_path: Path, table_format: str) -> None:
    source = _Source(table_format)
    table: PositionMerged | IcebergMerged
    if table_format == "delta":
        table = PositionMerged(tmp_path, _COLUMNS, ("part", "id"))
    else:
        table = IcebergMerged(tmp_path, _COLUMNS, ("part", "id"))
    seen = {"truncated": 0, "kept": 0}
    for _ in range(25):
        for _ in range(source.random.choice([1, 10, 60])):
            source.change()
        changes = source.taken()
        seen["truncated"] += changes.truncated
        seen["kept"] += bool(changes.kept)
        if changes.truncated or changes.kept:
            with pytest.raises(NotDirect):
                check_plain(changes)
        _merge(table, changes)
        table.model = {(row["part"], row["id"]): row for row in source.rows.values()}
        table.check()
    assert seen["truncated"] > 1
    assert seen["kept"] > 5


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_batch_that_is_too_large_to_be_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table_format: str
) -> None:
    """From files of history in any order, a piece of rows at a time, into several files."""
    monkeypatch.setattr(plain_changes, "_HISTORY_BYTES_MAX", 0)
    monkeypatch.setattr(large_changes, "ROWS_AT_ONCE", 7)
    monkeypatch.setattr(positions, "_FILE_ROWS_MAX", 20)
    source = _Source(f"large {table_format}", left_out=False)
    table: PositionMerged | IcebergMerged
    merged = PositionMerged if table_format == "delta" else IcebergMerged
    table = merged(tmp_path, _COLUMNS, ("part", "id"))
    truncated = 0
    for batch in range(6):
        source.lsn += 1
        start = source.lsn
        for _ in range(120):
            source.change()
        rows = source.changes
        source.changes = []
        source.random.shuffle(rows)
        files = []
        for n in range(3):
            files.append(tmp_path / f"history {batch} {n}.parquet")
            part = pa.Table.from_pylist(rows[n::3], schema=_HISTORY)
            pq.write_table(part, files[-1], row_group_size=11)
        changes = last_changes_in(files, start, _COLUMNS, ("part", "id"))
        assert changes.pieces is not None
        truncated += changes.truncated
        _merge(table, changes)
        table.model = {(row["part"], row["id"]): row for row in source.rows.values()}
        table.check()
    assert truncated


def test_a_large_batch_that_is_spark_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_changes, "_HISTORY_BYTES_MAX", 0)
    change = {"_op": "U", "_commit_lsn": 1, "_seq": 0, "part": "a", "id": 1}
    path = tmp_path / "history.parquet"
    pq.write_table(
        pa.Table.from_pylist([{**change, "_unchanged_toast": ["body"]}], schema=_HISTORY), path
    )
    with pytest.raises(NotDirect, match="left out as unchanged"):
        last_changes_in([path], 0, _COLUMNS, ("part", "id"))
    monkeypatch.setattr(large_changes, "_CHANGES_MAX", 0)
    with pytest.raises(NotDirect, match="very large"):
        last_changes_in([path], 0, _COLUMNS, ("part", "id"))


def test_what_is_left_to_spark() -> None:
    moved = {"_op": "U", "_commit_lsn": 1, "_seq": 0, "_unchanged_toast": ["body"]}
    moved |= {"_old_key": {"part": "a", "id": 1}, "part": "a", "id": 2}
    with pytest.raises(NotDirect, match="moves to another key"):
        last_changes(pa.Table.from_pylist([moved], schema=_HISTORY), _COLUMNS, ("part", "id"))


def test_a_key_that_is_left_out_is_the_old_ones() -> None:
    """A key that is large enough to be in TOAST is logged in the old key when it didn't change."""
    same = {"_op": "U", "_commit_lsn": 1, "_seq": 0, "_unchanged_toast": ["part"]}
    same |= {"_old_key": {"part": "a", "id": 1}, "part": None, "id": 1, "body": "b"}
    last = last_changes(pa.Table.from_pylist([same], schema=_HISTORY), _COLUMNS, ("part", "id"))
    assert last.rows.to_pylist() == [{"part": "a", "id": 1, "body": "b", "tags": None}]
    assert not last.kept
