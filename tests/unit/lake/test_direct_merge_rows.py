"""Plain changes merged without Spark, by delta-rs or by writing a small table anew: against a dict,
what is left to Spark, and what readers leave files out by.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake

from harness.lake_names import KEY, internal_names
from spillway.lake.tables import plain_changes
from spillway.lake.tables.contract import Batch
from spillway.lake.tables.delta import log, small_merge
from spillway.lake.tables.delta import merge as delta_merge
from spillway.lake.tables.delta.merge import check_files, compact, files_of, merge, open_table
from spillway.lake.tables.delta.tables import DeltaTables
from spillway.lake.tables.plain_changes import (
    LastChanges,
    NotDirect,
    last_changes,
    read_changes,
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
    """A Delta table, merged into by delta-rs or as a small one, and files of a history."""

    def __init__(
        self, directory: Path, columns: pa.Schema, key: tuple[str, ...], by: str = "delta-rs"
    ) -> None:
        self.by = by
        self.directory = directory
        self.columns = columns
        self.key = key
        self.batches = 0
        self.path = directory / "table"
        DeltaTable.create(self.path, columns)

    def history(self, changes: list[dict[str, Any]], parts: int = 1) -> list[Path]:
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
            files.append(path)
        return files

    def merge(self, changes: list[dict[str, Any]], parts: int = 1) -> tuple[int, int]:
        """Merge *changes*; return how many files were added and removed."""
        read = read_changes(self.history(changes, parts), 0, self.columns)
        last = last_changes(read, self.columns, self.key)
        table = open_table(self.path)
        before = files_of(table)
        if self.by == "delta-rs":
            merge(table, last, self.key, CommitProperties())
        else:
            merge_small(self.path, last, self.columns, self.key)
            table = open_table(self.path)
        after = files_of(table)
        if self.by == "delta-rs":
            compact(table, self.columns)
        return len(after - before), len(before - after)

    def rows(self) -> list[dict[str, Any]]:
        files = files_of(open_table(self.path))
        return [row for file in files for row in pq.read_table(file).to_pylist()]


def merge_small(path: Path, changes: LastChanges, columns: pa.Schema, key: tuple[str, ...]) -> None:
    head = log.Head()
    log.load(path, head)
    assert small_merge.is_small(head)
    log.commit(path, head, small_merge.rewritten(path, head, changes, columns, key))


BY = pytest.mark.parametrize("by", ["delta-rs", "small"])


def change(op: str, place: int, new: dict[str, Any], old: dict[str, Any] | None = None) -> Any:
    return {"_op": op, "_commit_lsn": 1000 + place // 7, "_seq": place % 7, "_old_key": old, **new}


@BY
@pytest.mark.parametrize("key", [("id",), ("region", "id"), ("region",), ("day", "id")])
def test_random_changes_against_a_dict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...], by: str
) -> None:
    monkeypatch.setattr(delta_merge, "_SMALL_FILES_MAX", 3)
    # Some of the files stay, and some are written anew.
    monkeypatch.setattr(small_merge, "_TINY_BYTES", 2_500)
    chosen = random.Random(f"{_SEED} {key}")
    table = Table(tmp_path, _COLUMNS, key, by)
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


ITEMS = pa.schema([("id", pa.int64()), ("name", pa.string())])


def inserts(*ids: int) -> list[Any]:
    return [change("I", n, {"id": id_, "name": "n"}) for n, id_ in enumerate(ids)]


@BY
def test_only_files_that_hold_a_key_are_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(small_merge, "_TINY_BYTES", 0)
    table = Table(tmp_path, ITEMS, ("id",), by)
    for first in (0, 100, 200):
        assert table.merge(inserts(*range(first, first + 100, 2))) == (1, 0)
    assert table.merge(inserts(301)) == (1, 0)
    # Between two keys of a file, by its range possibly in it.
    assert table.merge(inserts(51)) == (1, 0)
    moved = [change("U", 0, {"id": 103, "name": "x"}, {"id": 102})]
    assert table.merge(moved) == (1, 1)
    gone = [change("D", n, {}, {"id": id_}) for n, id_ in enumerate(range(200, 300, 2))]
    assert table.merge(gone) == (0, 1)


def test_tiny_files_are_written_anew_with_others(tmp_path: Path) -> None:
    table = Table(tmp_path, ITEMS, ("id",), "small")
    assert table.merge(inserts(1)) == (1, 0)
    assert table.merge(inserts(2)) == (1, 1)
    assert [row["id"] for row in table.rows()] == [1, 2]


@BY
def test_a_table_is_emptied_and_filled_again(tmp_path: Path, by: str) -> None:
    table = Table(tmp_path, ITEMS, ("id",), by)
    assert table.merge(inserts(1, 2)) == (1, 0)
    assert table.merge([change("D", n, {}, {"id": n + 1}) for n in range(2)]) == (0, 1)
    assert table.rows() == []
    assert table.merge([change("D", 0, {}, {"id": 9})]) == (0, 0)
    assert table.merge(inserts(2)) == (1, 0)
    assert [row["id"] for row in table.rows()] == [2]


def test_small_files_become_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_merge, "_SMALL_FILES_MAX", 4)
    table = Table(tmp_path, ITEMS, ("id",))
    for id_ in range(20):
        table.merge(inserts(id_))
        assert len(files_of(open_table(table.path))) <= 5
    assert sorted(row["id"] for row in table.rows()) == list(range(20))


@BY
@pytest.mark.parametrize(
    ("type_", "values"),
    [
        # Statistics have milliseconds, and so many characters.
        (pa.timestamp("us", tz="UTC"), [1767225600_001999, 1767225600_001001, -(2**55), 2**60]),
        (pa.timestamp("us"), [1767225600_001999, 1767225600_001001, -(2**55), 2**60]),
        (pa.date32(), [-800_000, 0, 2_932_897]),
        (pa.string(), ["", "\U0010ffff" * 50, "é" * 100, "a'b\"`\\\n\0", "é" * 100 + "x"]),
        (pa.binary(), [b"", b"\xff" * 80, b"\xff" * 81, b"\0"]),
        (pa.decimal128(38, 10), [Decimal("1234567890123456789012345678.0123456789"), Decimal(0)]),
        (pa.decimal128(12, 2), [Decimal("0.29"), Decimal("-9999999999.99")]),
        (pa.bool_(), [True, False]),
        (pa.int64(), [-(2**63), 2**63 - 1, 0]),
    ],
)
def test_a_key_is_found_again(
    tmp_path: Path, type_: pa.DataType, values: list[Any], by: str
) -> None:
    keys = pa.array(values, pa.int64() if pa.types.is_timestamp(type_) else None)
    keys = keys.cast(pa.int32()) if pa.types.is_date32(type_) else keys
    find_again(tmp_path, "k", keys.cast(type_), by)


@BY
@pytest.mark.parametrize(
    "name", ["Key", "a.b", "quo`te", 'dou"ble', "select", "naïve", "x'y", "$1", "-"]
)
def test_a_key_of_any_name_is_found_again(tmp_path: Path, name: str, by: str) -> None:
    find_again(tmp_path, name, pa.array([1, 2]), by)


def set_rows(rows: pa.Table) -> LastChanges:
    return LastChanges(rows, pa.array([True] * len(rows)))


@BY
@pytest.mark.parametrize("is_key", [True, False], ids=["keys", "values"])
def test_no_name_of_a_column_is_one_of_the_lakes_own(tmp_path: Path, is_key: bool, by: str) -> None:
    names = internal_names()
    columns = pa.schema([(name, pa.int64()) for name in [*names, KEY]])
    table = Table(tmp_path, columns, (*names, KEY) if is_key else (KEY,), by)

    def row(id_: int, value: int = 0) -> dict[str, int]:
        return {name: n if is_key else n + value for n, name in enumerate(names)} | {KEY: id_}

    table.merge([change("I", n, row(n)) for n in range(4)])
    nothing = dict.fromkeys(columns.names)
    table.merge(
        [
            change("U", 0, row(0, 7)),
            change("U", 1, row(9, 7), row(1)),
            change("D", 2, nothing, row(2)),
        ]
    )
    after = sorted(table.rows(), key=lambda row: row[KEY])
    assert after == [row(0, 7), row(3), row(9, 7)]


def find_again(directory: Path, name: str, keys: pa.Array, by: str) -> None:
    """Insert *keys* and update their rows, by a merge each."""
    path, columns = directory / "table", pa.schema([(name, keys.type), ("n", pa.int64())])
    DeltaTable.create(path, columns)
    for n in range(2):
        for key in keys:
            rows = set_rows(pa.table({name: pa.array([key], keys.type), "n": [n]}))
            if by == "delta-rs":
                merge(open_table(path), rows, (name,), CommitProperties())
            else:
                merge_small(path, rows, columns, (name,))
    stored = pa.concat_tables(pq.read_table(file) for file in files_of(open_table(path)))
    assert stored.column("n").to_pylist() == [1] * len(keys)
    assert stored.column(name).cast(keys.type).sort() == pa.chunked_array([keys]).sort()


def test_statistics_are_those_that_are_exact(tmp_path: Path) -> None:
    columns = pa.schema(
        [
            ("id", pa.int64()),
            ("money", pa.decimal128(12, 2)),
            ("digits", pa.decimal128(38, 10)),
            ("real", pa.float64()),
            ("pair", pa.struct([("x", pa.float64())])),
        ]
    )
    path = tmp_path / "table"
    DeltaTable.create(path, columns)
    row = {"id": 1, "money": Decimal("0.29"), "digits": Decimal(1), "real": 1.0, "pair": {"x": 1.0}}
    rows = pa.Table.from_pylist([row], schema=columns)
    merge(open_table(path), set_rows(rows), ("id",), CommitProperties())
    lines = (path / "_delta_log" / f"{1:020d}.json").read_text().splitlines()
    (added,) = [json.loads(line)["add"] for line in lines if '"add"' in line]
    said = json.loads(added["stats"])
    assert said["numRecords"] == 1
    assert said["minValues"] == said["maxValues"] == {"id": 1, "money": 0.29}


@pytest.mark.parametrize(
    ("columns", "key", "changes"),
    [
        (ITEMS, ("id",), [change("M", 0, {})]),
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


def test_nothing_is_removed_from_a_table_that_is_appended_to_only(tmp_path: Path) -> None:
    path = tmp_path / "table"
    DeltaTable.create(path, ITEMS, configuration={"delta.appendOnly": "true"})
    head = log.Head()
    log.load(path, head)
    assert not small_merge.is_small(head)


def test_large_ones_are_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(tmp_path, ITEMS, ("id",))
    monkeypatch.setattr(plain_changes, "_HISTORY_BYTES_MAX", 100)
    with pytest.raises(NotDirect, match="batch is large"):
        table.merge(inserts(3))


def test_timestamps_that_delta_rs_misreads_are_left_to_spark(tmp_path: Path) -> None:
    far = pa.table({"at": pa.array([datetime(1700, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))})
    pq.write_table(far, tmp_path / "good.parquet")
    pq.write_table(far, tmp_path / "bad.parquet", use_deprecated_int96_timestamps=True)
    check_files([tmp_path / "good.parquet"])
    with pytest.raises(NotDirect, match="INT96"):
        check_files([tmp_path / "good.parquet", tmp_path / "bad.parquet"])


@pytest.mark.parametrize("name", ["per%20cent", "[x]", "back\\slash", "ques?tion", "ha#sh"])
def test_paths_that_delta_rs_mistakes_are_left_to_spark(tmp_path: Path, name: str) -> None:
    with pytest.raises(NotDirect, match="path"):
        open_table(tmp_path / name)


def test_paths_that_it_does_not(tmp_path: Path) -> None:
    path = tmp_path / "näme with space~20" / "s.t"
    path.mkdir(parents=True)
    write_deltalake(path, pa.table({"x": [1]}))
    assert files_of(open_table(path)) == {*path.glob("*.parquet")}


def test_tables_that_ask_for_more_are_left_to_spark(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path / "a", ITEMS, configuration={"delta.enableChangeDataFeed": "true"})
    with pytest.raises(NotDirect, match="version"):
        open_table(tmp_path / "a")
    DeltaTable.create(tmp_path / "b", ITEMS, partition_by="name")
    with pytest.raises(NotDirect, match="partitions"):
        open_table(tmp_path / "b")


def test_changes_before_the_tables_position_are_left_out(tmp_path: Path) -> None:
    table = Table(tmp_path, ITEMS, ("id",))
    files = table.history(inserts(*range(14)))
    assert read_changes(files, 1001, ITEMS).column("id").to_pylist() == list(range(7, 14))


_HISTORY = pa.schema(
    [
        ("_op", pa.string()),
        ("_commit_lsn", pa.int64()),
        ("_seq", pa.int64()),
        ("_old_key", pa.struct([("id", pa.int64())])),
        *ITEMS,
    ]
)
_BATCH = Batch("shop", 100, 200, 1)
_KILLED = """
import sys
from pathlib import Path
import pyarrow as pa
from spillway.lake.tables.delta.tables import DeltaTables
from spillway.lake.tables.contract import Batch

columns = pa.schema([("id", pa.int64()), ("name", pa.string())])
tables = DeltaTables(None, Path(sys.argv[1]), "shop")
tables.merge_plain("items", 100, columns, ("id",), Batch("shop", 100, 200, 1))
"""


def append(table: Path, lsn: int, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    properties = CommitProperties(app_transactions=[Transaction("spillway/shop", lsn)])
    configuration = {"spillway.slot": "shop", "spillway.key": '["id"]'}
    if not table.exists():
        DeltaTable.create(table, schema, configuration=configuration, raise_if_key_not_exists=False)
    changes = pa.Table.from_pylist(rows, schema=schema)
    write_deltalake(table, changes, mode="append", commit_properties=properties)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake whose history has the batch, and whose current table is at its start."""
    before = [{"id": id_, "name": "before"} for id_ in (1, 2, 3)]
    first = [{"_op": "I", "_commit_lsn": 50, "_seq": n, **row} for n, row in enumerate(before)]
    append(tmp_path / "history/items", 100, first, _HISTORY)
    append(tmp_path / "current/items", 100, before, ITEMS)
    changes = [
        {"_op": "U", "_commit_lsn": 120, "_seq": 0, "id": 1, "name": "after"},
        {"_op": "U", "_commit_lsn": 120, "_seq": 1, "_old_key": {"id": 2}, "id": 20, "name": "m"},
        {"_op": "D", "_commit_lsn": 130, "_seq": 0, "_old_key": {"id": 3}},
        {"_op": "I", "_commit_lsn": 140, "_seq": 0, "id": 4, "name": "new"},
    ]
    append(tmp_path / "history/items", 200, changes, _HISTORY)
    return tmp_path


_BEFORE = {1: "before", 2: "before", 3: "before"}
_AFTER = {1: "after", 4: "new", 20: "m"}


def current(lake: Path) -> dict[int, str]:
    rows = open_table(lake / "current/items").to_pyarrow_table().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["name"] for row in rows}


def merge_batch(lake: Path) -> bool:
    tables = DeltaTables(None, lake, "shop")  # type: ignore[arg-type] # Spark is not asked
    return tables.merge_plain("items", 100, ITEMS, ("id",), _BATCH)


@pytest.fixture(params=["delta-rs", "small"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who merges."""
    if request.param == "delta-rs":
        monkeypatch.setattr(small_merge, "SMALL_BYTES", -1)
    return str(request.param)


@pytest.mark.usefixtures("by")
def test_killed_before_the_commit(lake: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(lake)],
        env=os.environ | {"SPILLWAY_FAILPOINTS": "lake.before_merge=kill"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    assert current(lake) == _BEFORE
    assert merge_batch(lake)
    assert current(lake) == _AFTER
    # A transaction version is taken once more by delta-rs; a batch that is in the table already is
    # not merged again.
    assert not merge_batch(lake)
    assert open_table(lake / "current/items").transaction_version("spillway/shop") == 200


@pytest.mark.usefixtures("by")
def test_another_one_commits_first(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = 0

    def rewritten(name: str) -> None:
        nonlocal times
        assert name == "lake.before_merge"
        times += 1
        if times == 1:
            table = DeltaTable(lake / "current/items")
            # All files are replaced by others with the same rows.
            write_deltalake(table, table.to_pyarrow_table(), mode="overwrite")

    monkeypatch.setattr("spillway.lake.tables.delta.tables.failpoint", rewritten)
    assert merge_batch(lake)
    assert times == 2
    assert current(lake) == _AFTER


def test_what_is_not_historys_last_commit_is_left_to_spark(lake: Path) -> None:
    row = {"_op": "I", "_commit_lsn": 250, "_seq": 0, "id": 5, "name": "later"}
    append(lake / "history/items", 300, [row], _HISTORY)
    assert not merge_batch(lake)
    assert current(lake) == _BEFORE


def test_who_reads_a_table_with_column_mapping(tmp_path: Path) -> None:
    """What docs/how-to/fill-a-lake.md says of readers, of a table as Spark makes it."""
    pq.write_table(pa.table({"col-a1": [1], "col-b2": ["x"]}), tmp_path / "part-0.parquet")

    def field(number: int, name: str, type_: str, stored: str) -> dict[str, Any]:
        mapped = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": stored}
        return {"name": name, "type": type_, "nullable": True, "metadata": mapped}

    fields = [field(1, "id", "long", "col-a1"), field(2, "first name", "string", "col-b2")]
    actions = [
        {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}},
        {
            "metaData": {
                "id": "7d3b0e4e-0000-4000-8000-000000000000",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": [],
                "configuration": {
                    "delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2",
                },
                "createdTime": 0,
            }
        },
        {
            "add": {
                "path": "part-0.parquet", "partitionValues": {}, "modificationTime": 0,
                "size": (tmp_path / "part-0.parquet").stat().st_size, "dataChange": True,
            }
        },
    ]  # fmt: skip
    (tmp_path / "_delta_log").mkdir()
    log = tmp_path / "_delta_log" / f"{0:020d}.json"
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))
    table = DeltaTable(str(tmp_path))
    whole, nothing = [{"id": 1, "first name": "x"}], [{"id": None, "first name": None}]
    rows = QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()
    assert pa.table(rows).to_pylist() == whole
    assert table.to_pyarrow_table().to_pylist() == nothing
    with pytest.raises(NotDirect):
        open_table(tmp_path)
