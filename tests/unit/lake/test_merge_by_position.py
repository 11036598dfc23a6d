"""Batches merged by position: against a dict, by readers of others, beside folds, after kills."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import nullcontext
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake

from harness.position_table import ITEMS, PositionMerged, Row, items
from harness.tiers import deep
from spillway.errors import LakeError
from spillway.lake.tables import positions, row_sets
from spillway.lake.tables.delta import deletion_vectors, log
from spillway.lake.tables.delta import positions as delta_positions
from spillway.lake.tables.delta.data_files import DataFile
from spillway.lake.tables.delta.positions import DeltaPositionTable, Mark
from spillway.lake.tables.plain_changes import LastChanges, NotDirect
from spillway.lake.tables.positions import Lost, Shape

if TYPE_CHECKING:
    from pathlib import Path

_SEED = 20261123
_COLUMNS = pa.schema(
    [
        ("region", pa.string()),
        ("id", pa.int64()),
        ("day", pa.date32()),
        ("price", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("tags", pa.list_(pa.field("element", pa.int32()))),
    ]
)


@pytest.mark.parametrize("key", [("id",), ("region", "id"), ("region",), ("day", "id"), ("price",)])
def test_random_changes_against_a_dict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...]
) -> None:
    monkeypatch.setattr(positions, "_SMALL_FILES_MAX", 4)
    monkeypatch.setattr(delta_positions, "_CHECKPOINT_INTERVAL", 7)
    chosen = random.Random(f"{_SEED} {key}")
    table = PositionMerged(tmp_path, _COLUMNS, key)

    def row() -> Row:
        return {
            "region": f"r{chosen.randrange(60):04d}" * chosen.choice([1, 1, 9]),
            "id": chosen.randrange(-30, 60),
            "day": date(2026, 1, 1) + timedelta(chosen.randrange(4)),
            "price": Decimal(chosen.randrange(90)) / 100,
            "at": datetime(2026, 1, 1, tzinfo=UTC)
            + timedelta(microseconds=chosen.randrange(10**9)),
            "tags": chosen.choice([None, [], [1, None]]),
        }

    for n in range(40):
        rows = {table.identity(r): r for r in (row() for _ in range(chosen.choice([0, 1, 5, 60])))}
        gone = {table.identity(row()) for _ in range(chosen.choice([0, 1, 9]))} - rows.keys()
        table.merge(rows.values(), gone)
        what = chosen.randrange(6)
        if what == 0:
            table.open()
        elif what == 1:
            table.table.close()
        elif what == 2:
            table.table.fold(table.shape, nullcontext)
        elif what == 3:
            table.table.fold_small(table.shape)
        elif what == 4:
            table.table.checkpoint()
        if n % 5 == 0:
            table.check()
    table.check()
    assert log.load(table.path).files.keys() == {*_paths(table)}


def _paths(table: PositionMerged) -> list[str]:
    found = pa.table(table.delta().get_add_actions())
    return list(found.column("path").to_pylist())


def test_a_batch_costs_what_it_changes(tmp_path: Path) -> None:
    table = PositionMerged(tmp_path)
    table.merge(items(*range(50_000)))
    (first,) = _paths(table)
    before = set(tmp_path.rglob("*"))
    table.merge(items(7, 49_999, 60_000, name="x"), [(8,)])
    new = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert sum(path.stat().st_size for path in new) < 5000
    assert first in _paths(table)
    assert log.load(table.path).files[first]["deletionVector"]["cardinality"] == 3
    table.check()


def test_a_file_whose_rows_are_all_gone_is_removed(tmp_path: Path) -> None:
    table = PositionMerged(tmp_path)
    table.merge(items(1, 2))
    table.merge([], [(1,)])
    table.merge([], [(2,), (3,)])
    assert _paths(table) == []
    # Nothing to write, and the table says how far it is.
    table.merge([], [(2,)])
    table.merge(items(2))
    table.check()


def test_files_of_others_are_found(tmp_path: Path) -> None:
    """Another writer replaces files; the index is not told."""
    table = PositionMerged(tmp_path)
    table.merge(items(*range(100)))
    theirs = pa.Table.from_pylist(items(*range(100), name="theirs"), schema=ITEMS)
    write_deltalake(str(table.path), theirs, mode="overwrite")
    table.model = {(row["id"],): row for row in theirs.to_pylist()}
    table.merge(items(5, name="ours"), [(6,)])
    table.check()
    delta = DeltaTable(str(table.path))
    delta.merge(
        pa.Table.from_pylist(items(5, 7, 200, name="again"), schema=ITEMS),
        "t.id = s.id", source_alias="s", target_alias="t",
    ).when_matched_update_all().when_not_matched_insert_all().execute()  # fmt: skip
    table.model |= {(row["id"],): row for row in items(5, 7, 200, name="again")}
    table.check()
    table.merge(items(7, 200, name="last"), [(5,)])
    table.check()


def test_who_is_not_first_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = PositionMerged(tmp_path)
    table.merge(items(1, 2))

    def another(name: str) -> None:
        if name == "lake.before_commit":
            monkeypatch.undo()
            write_deltalake(str(table.path), pa.table({"id": [9], "name": ["t"]}), mode="append")

    monkeypatch.setattr(positions, "failpoint", another)
    files = set(table.path.glob("*.parquet"))
    with pytest.raises(Lost):
        table.merge(items(1, 9, name="x"))
    assert len(set(table.path.glob("*.parquet")) - files) == 1
    table.lsn -= 10
    table.model[9,] = {"id": 9, "name": "t"}
    table.check()
    table.merge(items(1, 9, name="x"))
    table.check()


def test_rows_that_go_while_their_file_is_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = PositionMerged(tmp_path)
    table.merge(items(*range(300)))
    table.merge(items(*range(300, 600)))
    table.merge([], [(n,) for n in range(0, 600, 3)])
    folds = 0

    def meanwhile(name: str) -> None:
        nonlocal folds
        if name == "lake.before_fold" and not folds:
            folds += 1
            table.merge(items(1, 302, 700, name="x"), [(n,) for n in range(2, 600, 30)])

    monkeypatch.setattr(positions, "failpoint", meanwhile)
    assert table.table.fold(table.shape, nullcontext) == 2
    assert folds == 1
    table.check()
    # The folded file, and the batch's.
    assert len(_paths(table)) == 2
    # Places in the folded file are right.
    table.merge(items(*range(0, 600, 7), name="y"))
    table.check()
    table.open()
    table.merge(items(*range(0, 600, 11), name="z"))
    table.check()


def test_a_fold_whose_files_are_gone_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = PositionMerged(tmp_path)
    table.merge(items(1, 2))
    table.merge(items(3, 4))

    def meanwhile(name: str) -> None:
        if name == "lake.before_fold":
            table.merge([], [(1,), (2,)])

    monkeypatch.setattr(positions, "failpoint", meanwhile)
    assert table.table.fold(table.shape, nullcontext) == 0
    table.check()
    assert len([*table.path.glob("*.parquet")]) == 2


def test_a_file_with_a_tenth_of_its_rows_gone_is_folded_and_one_with_few_is_not(
    tmp_path: Path,
) -> None:
    table = PositionMerged(tmp_path)
    table.merge(items(*range(1000)))
    table.merge([], [(n,) for n in range(0, 1000, 40)])
    assert table.table.fold(table.shape, nullcontext) == 0
    table.merge([], [(n,) for n in range(1, 1000, 10)])
    assert table.table.fold(table.shape, nullcontext) == 1
    table.check()
    (file,) = table.table.snapshot().files.values()
    assert "deletionVector" not in file


def test_a_folded_file_has_whole_row_groups(tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array(range(70_000), pa.int64())})
    file = DataFile(tmp_path, rows.schema, ("id",), {})
    for _ in range(9):
        file.write(rows)
    with pq.ParquetFile(tmp_path / file.close()["path"]) as parquet:
        groups = [parquet.metadata.row_group(n).num_rows for n in range(parquet.num_row_groups)]
    assert groups == [280_000, 280_000, 70_000]


def test_a_checkpoint_is_written_when_it_is_said_to_be_due(tmp_path: Path) -> None:
    table = PositionMerged(tmp_path)
    table.merge(items(1, 2))
    table.merge(items(2, 3))
    assert not table.table.checkpoint()
    assert table.table.checkpoint(is_due=True)
    assert (table.path / "_delta_log" / "_last_checkpoint").read_text()
    assert not table.table.checkpoint(is_due=True)
    table.merge([], [(1,)])
    table.check()


@pytest.mark.parametrize("what", ["lost", "damaged", "cut", "other key", "stale"])
def test_an_index_is_never_believed_wrongly(tmp_path: Path, what: str) -> None:
    table = PositionMerged(tmp_path)
    table.merge(items(*range(40_000)))
    table.merge(items(*range(0, 40_000, 3), name="x"))
    table.table.close()
    (run, *_) = sorted(table.index.glob("run-*.place"))
    if what == "lost":
        (table.index / "manifest.json").unlink()
    elif what == "damaged":
        damaged = bytearray(run.read_bytes())
        damaged[8000] ^= 1
        run.write_bytes(damaged)
    elif what == "cut":
        run.write_bytes(run.read_bytes()[:-8])
    elif what == "other key":
        manifest = json.loads((table.index / "manifest.json").read_text())
        (table.index / "manifest.json").write_text(json.dumps({**manifest, "key": ["id int32"]}))
    else:
        old = {path: path.read_bytes() for path in table.index.iterdir()}
        table.open()
        table.merge(items(*range(0, 40_000, 2), name="y"))
        table.table.close()
        for path in table.index.iterdir():
            path.unlink()
        for path, data in old.items():
            path.write_bytes(data)
    table.open()
    table.merge(items(*range(0, 40_000, 5), name="z"), [(n,) for n in range(1, 40_000, 5)])
    table.check()


def test_a_damaged_vector_is_told(tmp_path: Path) -> None:
    table = PositionMerged(tmp_path)
    table.merge(items(*range(50_000)))
    chosen = random.Random(_SEED)
    table.merge([], [(n,) for n in chosen.sample(range(50_000), 5000)])
    (path,) = (tmp_path / "table").glob("deletion_vector_*.bin")
    data = path.read_bytes()
    for cut in (data[:-20], data[:5000] + b"\xff" + data[5001:]):
        path.write_bytes(cut)
        table.open()
        with pytest.raises(LakeError, match=r"deletion vector of .* can't be read"):
            table.merge(items(1))
    path.write_bytes(data)
    table.lsn -= 20
    table.merge(items(1))
    table.check()


def test_vectors_in_text_and_in_bytes(tmp_path: Path) -> None:
    chosen = np.random.default_rng(_SEED)
    for rows, size in ((1, 1), (10, 3), (100_000, 70_000), (2**32, 5), (2**32, 3000)):
        bitmap = row_sets.positions(chosen.integers(0, rows, size))
        data = row_sets.encode(bitmap)
        assert row_sets.decode(data) == bitmap
        assert row_sets.decode(deletion_vectors.from_z85(deletion_vectors.to_z85(data))) == bitmap
        # Another writer's, in the log itself.
        inline = {"storageType": "i", "pathOrInlineDv": deletion_vectors.to_z85(data)}
        described = {**inline, "sizeInBytes": len(data), "cardinality": len(bitmap)}
        assert deletion_vectors.read(tmp_path, described) == bitmap
        for cut in range(0, len(data), 1 + len(data) // 50):
            with pytest.raises(ValueError, match=r"\w"):
                row_sets.decode(data[:cut])
    # The pair that Z85's specification gives.
    assert deletion_vectors.to_z85(bytes.fromhex("864fd26fb559f75b")) == "HelloWorld"


def test_statistics_bound_what_is_there(tmp_path: Path) -> None:
    columns = pa.schema(
        [
            ("id", pa.int64()),
            ("text", pa.string()),
            ("long", pa.string()),
            ("day", pa.date32()),
            ("far", pa.date32()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("plain", pa.timestamp("us")),
            ("ever", pa.timestamp("us", tz="UTC")),
            ("money", pa.decimal128(12, 2)),
            ("digits", pa.decimal128(38, 10)),
            ("real", pa.float64()),
            ("none", pa.int32()),
        ]
    )
    rows = pa.table(
        {
            "id": pa.array([-(2**63), 2**63 - 1]),
            "text": ["é", "\U0010ffff"],
            "long": ["a" * 40, "b" * 40],
            "day": pa.array([-719162, 2932896], pa.int32()).cast(pa.date32()),
            "far": pa.array([-719163, 2932897], pa.int32()).cast(pa.date32()),
            "at": pa.array([-1, 1767225600_001001], pa.int64()).cast(pa.timestamp("us", "UTC")),
            "plain": pa.array([0, 1], pa.int64()).cast(pa.timestamp("us")),
            "ever": pa.array([-(2**55), 2**60], pa.int64()).cast(pa.timestamp("us", "UTC")),
            "money": pa.array([Decimal("0.29"), Decimal("-9999999999.99")], pa.decimal128(12, 2)),
            "digits": pa.array([Decimal(1), Decimal(2)], pa.decimal128(38, 10)),
            "real": [1.0, float("nan")],
            "none": pa.array([None, None], pa.int32()),
        },
        schema=columns,
    )
    path = tmp_path / "table"
    DeltaTable.create(path, columns)
    table = DeltaPositionTable(path, tmp_path / "keys")
    table.merge(
        LastChanges(rows, pa.array([True, True])), Shape(columns, ("id",)), Mark("a", 1, "")
    )
    (file,) = log.load(path).files.values()
    said = json.loads(file["stats"])
    assert said["numRecords"] == 2
    assert said["minValues"] == {
        "id": -(2**63),
        "text": "é",
        "long": "a" * 32,
        "day": "0001-01-01",
        "at": "1969-12-31T23:59:59.999Z",
        "plain": "1970-01-01T00:00:00.000",
        "ever": "0828-04-17T00:49:41.036Z",
        "money": -9999999999.99,
    }
    assert said["maxValues"] == {
        "id": 2**63 - 1,
        "text": "\U0010ffff",
        "day": "9999-12-31",
        "at": "2026-01-01T00:00:00.002Z",
        "plain": "1970-01-01T00:00:00.001",
        "money": 0.29,
    }
    assert said["nullCount"]["none"] == 2


def test_tables_that_ask_for_more_are_left_to_spark(tmp_path: Path) -> None:
    for number, configuration in enumerate(
        ({"delta.enableChangeDataFeed": "true"}, {"delta.columnMapping.mode": "name"})
    ):
        path = tmp_path / str(number)
        DeltaTable.create(path, ITEMS, configuration=configuration)
        with pytest.raises(NotDirect):
            DeltaPositionTable(path, tmp_path / "keys").snapshot()
    with pytest.raises(NotDirect):
        DeltaPositionTable(tmp_path / "nothing", tmp_path / "keys").snapshot()


_HISTORY = pa.schema(
    [
        ("_op", pa.string()),
        ("_commit_lsn", pa.int64()),
        ("_seq", pa.int64()),
        ("_old_key", pa.struct([("id", pa.int64())])),
        *ITEMS,
    ]
)
_MERGE = """
import sys
from pathlib import Path
import pyarrow as pa
from spillway.lake.tables.contract import Batch
from spillway.lake.tables import positions
from spillway.lake.tables.delta.tables import DeltaTables

positions.SMALL_TABLE_BYTES = 0
columns = pa.schema([("id", pa.int64()), ("name", pa.string())])
tables = DeltaTables(None, Path(sys.argv[1]), "shop", by_position=True)
assert tables.merge_plain("items", 100, columns, ("id",), Batch("shop", 100, 200, 1))
"""
_BEFORE = {1: "before", 2: "before", 3: "before"}
_AFTER = {1: "after", 4: "new", 20: "m"}


def append(table: Path, lsn: int, rows: list[Row], schema: pa.Schema) -> None:
    properties = CommitProperties(app_transactions=[Transaction("spillway/shop", lsn)])
    configuration = {"spillway.slot": "shop", "spillway.key": '["id"]'}
    if not table.exists():
        DeltaTable.create(table, schema, configuration=configuration, raise_if_key_not_exists=False)
    changes = pa.Table.from_pylist(rows, schema=schema)
    write_deltalake(table, changes, mode="append", commit_properties=properties)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake whose history has the batch, and whose current table is at its start."""
    before = [{"id": id_, "name": name} for id_, name in _BEFORE.items()]
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


def current(lake: Path) -> dict[int, str]:
    table = DeltaTable(str(lake / "current/items"))
    found = QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()
    rows = pa.table(found).to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["name"] for row in rows}


def run_merge(lake: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _MERGE, str(lake)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize(
    "at",
    [deep("merge"), deep("vectors"), deep("rows"), "commit", "index"],
    ids=lambda at: f"before_{at}",
)
def test_killed_at_each_step(lake: Path, at: str) -> None:
    done = run_merge(lake, SPILLWAY_FAILPOINTS=f"lake.before_{at}=kill")
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    committed = at == "index"
    assert current(lake) == (_AFTER if committed else _BEFORE)
    again = run_merge(lake)
    # A batch that is in the table already is not merged again.
    assert (again.returncode != 0) == committed, again.stderr[-3000:]
    assert current(lake) == _AFTER
    table = DeltaTable(str(lake / "current/items"))
    assert table.transaction_version("spillway/shop") == 200
    assert "deletionVectors" in (table.protocol().reader_features or ())
