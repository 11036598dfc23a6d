"""Plain changes merged into files: against a dict, and what is left to Spark."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spillway.lake import direct_merge
from spillway.lake.delta_log import DataFile, data_file
from spillway.lake.direct_merge import (
    NotDirect,
    last_changes,
    read_changes,
    read_rows,
    rewrite,
    statistics,
)

if TYPE_CHECKING:
    from pathlib import Path

_SEED = 20261121
_LIST = pa.list_(pa.field("element", pa.int32()))
_COLUMNS = pa.schema(
    [
        ("region", pa.string()),
        ("id", pa.int64()),
        ("day", pa.date32()),
        ("price", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("tags", _LIST),
    ]
)


class Table:
    """A table's files and a history's, written without a log."""

    def __init__(self, directory: Path, columns: pa.Schema, key: tuple[str, ...]) -> None:
        self.directory = directory
        self.columns = columns
        self.key = key
        self.files: dict[str, DataFile] = {}
        self.batches = 0

    def history(self, changes: list[dict[str, Any]], parts: int = 1) -> list[DataFile]:
        """Write *changes* into files, of which each has every so many-th."""
        old = pa.struct([self.columns.field(name) for name in self.key])
        schema = pa.schema(
            [
                ("_op", pa.string()),
                ("_commit_lsn", pa.int64()),
                ("_seq", pa.int64()),
                ("_old_key", old),
                *self.columns,
            ]
        )
        files = []
        self.batches += 1
        for part in range(parts):
            path = self.directory / f"history-{self.batches}-{part}.parquet"
            pq.write_table(pa.Table.from_pylist(changes[part::parts], schema=schema), path)
            files.append(
                data_file(self.directory, {"path": path.name, "size": path.stat().st_size})
            )
        return files

    def merge(self, changes: list[dict[str, Any]], parts: int = 1) -> dict[str, int]:
        read = read_changes(self.history(changes, parts), 0, self.columns)
        last = last_changes(read, self.columns, self.key)
        done = rewrite(self.directory, self.files.values(), last, self.key)
        for action in done.actions:
            if "remove" in action:
                del self.files[action["remove"]["path"]]
            else:
                file = data_file(self.directory, action["add"])
                self.files[file.name] = file
        return done.metrics

    def rows(self) -> list[dict[str, Any]]:
        return [
            row for file in self.files.values() for row in read_rows(file, self.columns).to_pylist()
        ]


def change(op: str, place: int, new: dict[str, Any], old: dict[str, Any] | None = None) -> Any:
    return {"_op": op, "_commit_lsn": 1000 + place // 7, "_seq": place % 7, "_old_key": old, **new}


@pytest.mark.parametrize("key", [("id",), ("region", "id"), ("region",), ("day", "id")])
def test_random_changes_against_a_dict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...]
) -> None:
    monkeypatch.setattr(direct_merge, "_SMALL_FILES_MAX", 3)
    monkeypatch.setattr(direct_merge, "_ROWS_PER_THREAD", 20)
    chosen = random.Random(f"{_SEED} {key}")
    table = Table(tmp_path, _COLUMNS, key)
    model: dict[tuple[Any, ...], dict[str, Any]] = {}

    def row() -> dict[str, Any]:
        return {
            "region": f"r{chosen.randrange(60):04d}" * chosen.choice([1, 1, 9]),
            "id": chosen.randrange(-30, 60),
            "day": date(2026, 1, 1) + timedelta(chosen.randrange(4)),
            "price": chosen.choice([None, Decimal(chosen.randrange(10**6)) / 100]),
            "at": datetime(2026, 1, 1, tzinfo=UTC)
            + timedelta(microseconds=chosen.randrange(10**9)),
            "tags": chosen.choice([None, [], [1, None]]),
        }

    def identity(of: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(of[name] for name in key)

    place = 0
    for _ in range(25):
        changes = []
        for _ in range(chosen.choice([1, 5, 60])):
            place += 1
            new, present = row(), [*model]
            kind = chosen.choice("IIUUUMD")
            if kind == "I" and identity(new) not in model:
                changes.append(change("I", place, new))
                model[identity(new)] = new
            elif present and kind == "U":
                at = chosen.choice(present)
                new |= dict(zip(key, at, strict=True))
                # A full replica identity logs the old key of each update.
                old = dict(zip(key, at, strict=True)) if chosen.random() < 0.5 else None
                changes.append(change("U", place, new, old))
                model[at] = new
            elif present and kind == "M" and identity(new) not in model:
                at = chosen.choice(present)
                del model[at]
                changes.append(change("U", place, new, dict(zip(key, at, strict=True))))
                model[identity(new)] = new
            elif present and kind == "D":
                at = chosen.choice(present)
                del model[at]
                nothing = dict.fromkeys(_COLUMNS.names)
                changes.append(change("D", place, nothing, dict(zip(key, at, strict=True))))
        if not changes:
            continue
        table.merge(changes, parts=chosen.choice([1, 3]))
        assert sorted(table.rows(), key=identity) == sorted(model.values(), key=identity)
        assert sum(file.rows or 0 for file in table.files.values()) == len(model)


ITEMS = pa.schema([("id", pa.int64()), ("name", pa.string())])


def inserts(*ids: int) -> list[Any]:
    return [change("I", n, {"id": id_, "name": "n"}) for n, id_ in enumerate(ids)]


def test_only_files_that_hold_a_key_are_written_anew(tmp_path: Path) -> None:
    table = Table(tmp_path, ITEMS, ("id",))
    for first in (0, 100, 200):
        table.merge(inserts(*range(first, first + 100, 2)))
    assert len(table.files) == 3
    assert table.merge(inserts(301))["numTargetFilesRemoved"] == 0
    # Between two keys of a file, by its range possibly in it.
    assert table.merge(inserts(51))["numTargetFilesRemoved"] == 0
    moved = [change("U", 0, {"id": 103, "name": "x"}, {"id": 102})]
    assert table.merge(moved) == {
        "numSourceRows": 2,
        "numTargetRowsCopied": 49,
        "numOutputRows": 50,
        "numTargetFilesAdded": 1,
        "numTargetFilesRemoved": 1,
    }
    gone = [change("D", n, {}, {"id": id_}) for n, id_ in enumerate(range(200, 300, 2))]
    assert table.merge(gone)["numTargetFilesAdded"] == 0


def test_small_files_become_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_merge, "_SMALL_FILES_MAX", 4)
    table = Table(tmp_path, ITEMS, ("id",))
    for id_ in range(20):
        table.merge(inserts(id_))
        assert len(table.files) <= 5
    assert sorted(row["id"] for row in table.rows()) == list(range(20))


def test_a_column_that_older_files_lack_is_null(tmp_path: Path) -> None:
    table = Table(tmp_path, ITEMS, ("id",))
    table.merge(inserts(1, 2))
    table.columns = ITEMS.append(pa.field("extra", pa.int32()))
    table.merge([change("U", 0, {"id": 1, "name": "u", "extra": 5})])
    assert sorted((row["id"], row["extra"]) for row in table.rows()) == [(1, 5), (2, None)]


@pytest.mark.parametrize(
    ("columns", "key", "changes"),
    [
        (ITEMS, ("id",), [change("T", 0, {})]),
        (ITEMS, ("id",), [change("I", 0, {"id": None, "name": "n"})]),
        (pa.schema([("x", pa.float64())]), ("x",), [change("I", 0, {"x": 0.0})]),
        (pa.schema([("x", _LIST)]), ("x",), [change("I", 0, {"x": [1]})]),
    ],
)
def test_left_to_spark(
    tmp_path: Path, columns: pa.Schema, key: tuple[str, ...], changes: list[Any]
) -> None:
    with pytest.raises(NotDirect):
        Table(tmp_path, columns, key).merge(changes)


def test_large_ones_are_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(tmp_path, ITEMS, ("id",))
    table.merge(inserts(1, 2))
    monkeypatch.setattr(direct_merge, "_TOUCHED_BYTES_MAX", 100)
    with pytest.raises(NotDirect, match="much of the table"):
        table.merge([change("U", 0, {"id": 1, "name": "u"})])
    assert len(list(tmp_path.glob("part-*"))) == 1, "nothing was written"
    monkeypatch.setattr(direct_merge, "_HISTORY_BYTES_MAX", 100)
    with pytest.raises(NotDirect, match="batch is large"):
        table.merge(inserts(3))


def test_changes_before_the_tables_position_are_left_out(tmp_path: Path) -> None:
    table = Table(tmp_path, ITEMS, ("id",))
    files = table.history(inserts(*range(14)))
    assert read_changes(files, 1001, ITEMS).column("id").to_pylist() == list(range(7, 14))


def test_statistics_bound_what_they_cut() -> None:
    rows = pa.table(
        {
            "text": pa.array(["é" * 40, "a", None]),
            "at": pa.array([1767225600_001234, None, 1767312000_000001], pa.timestamp("us")),
            "day": pa.array([date(1, 1, 1), date(9999, 12, 31), None]),
            "far": pa.array([2**31 - 1, 0, 0], pa.int32()).cast(pa.date32()),
            "list": pa.array([[1], None, None]),
            "real": pa.array([1.5, None, None]),
        }
    )  # fmt: skip
    said = statistics(rows)
    assert said["numRecords"] == 3
    assert said["minValues"] == {
        "text": "a",
        "at": "2026-01-01T00:00:00.001",
        "day": "0001-01-01",
    }
    assert said["maxValues"] == {
        "text": "é" * 32 + "\U0010ffff",
        "at": "2026-01-02T00:00:00.001",
        "day": "9999-12-31",
    }
    assert said["nullCount"] == {"text": 1, "at": 1, "day": 1, "far": 0, "real": 2}
