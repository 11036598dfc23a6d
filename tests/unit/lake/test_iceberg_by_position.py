"""Batches merged into Iceberg tables by position: against a dict, as PyIceberg reads them, beside
folds and others' commits, after kills.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import LongType, StringType

from harness.iceberg_position_table import IcebergMerged
from harness.position_table import ITEMS, items
from harness.tiers import deep
from spillway.errors import LakeError, LakeTableConflict
from spillway.lake.tables import positions
from spillway.lake.tables.iceberg import snapshots, types
from spillway.lake.tables.positions import Lost, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.position_table import Row

_SEED = 20261125
_COLUMNS = pa.schema(
    [
        ("region", pa.string()),
        ("id", pa.int64()),
        ("day", pa.date32()),
        ("small", pa.int16()),
        ("price", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("tags", pa.list_(pa.field("element", pa.int32()))),
    ]
)


@pytest.mark.parametrize("key", [("region", "id"), deep(("id",)), deep(("price",))])
def test_random_changes_against_a_dict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...]
) -> None:
    monkeypatch.setattr(positions, "_SMALL_FILES_MAX", 4)
    chosen = random.Random(f"{_SEED} {key}")
    table = IcebergMerged(tmp_path, _COLUMNS, key)

    def row() -> Row:
        return {
            "region": f"r{chosen.randrange(60):04d}" * chosen.choice([1, 1, 9]),
            "id": chosen.randrange(-30, 60),
            "day": date(2026, 1, 1) + timedelta(chosen.randrange(4)),
            "small": chosen.choice([None, 7]),
            "price": Decimal(chosen.randrange(90)) / 100,
            "at": datetime(2026, 1, 1, tzinfo=UTC)
            + timedelta(microseconds=chosen.randrange(10**9)),
            "tags": chosen.choice([None, [], [1, None]]),
        }

    for n in range(25):
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
        if n % 5 == 0:
            table.check()
    table.check()


def test_a_batch_costs_what_it_changes(tmp_path: Path) -> None:
    table = IcebergMerged(tmp_path)
    table.merge(items(*range(50_000)))
    before = set(tmp_path.rglob("*"))
    table.merge(items(7, 49_999, 60_000, name="x"), [(8,)])
    new = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert sum(path.stat().st_size for path in new) < 40_000
    (deletes,) = snapshots.live_files(table.loaded(), table.loaded().current_snapshot())[1]
    assert deletes.record_count == 3
    table.check()


def test_files_and_deletes_that_nothing_is_left_of_go(tmp_path: Path) -> None:
    table = IcebergMerged(tmp_path)
    table.merge(items(1, 2))
    table.merge([], [(1,)])
    table.merge([], [(2,), (3,)])
    assert snapshots.live_files(table.loaded(), table.loaded().current_snapshot()) == ([], [])
    # Nothing to write, and the table says how far it is.
    table.merge([], [(2,)])
    table.merge(items(2))
    table.check()


def test_files_of_others_are_found(tmp_path: Path) -> None:
    """Another engine appends, deletes and replaces; the index is not told."""
    table = IcebergMerged(tmp_path)
    table.merge(items(*range(100)))
    table.merge(items(3, 4, name="marked"))
    table.theirs().append(pa.Table.from_pylist(items(200, 201), schema=ITEMS))
    table.model |= {(row["id"],): row for row in items(200, 201)}
    table.merge(items(200, 5, name="ours"), [(6,)])
    table.check(theirs=True)
    table.theirs().delete("id = 7 or id = 201")
    del table.model[7,], table.model[201,]
    table.merge(items(7, 3, name="last"), [(5,)])
    table.check(theirs=True)
    table.table.fold(table.shape, nullcontext, 0.0)
    table.merge(items(3, 11, name="later"))
    table.check(theirs=True)


def test_who_is_not_first_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = IcebergMerged(tmp_path)
    table.merge(items(1, 2))

    def another(name: str) -> None:
        if name == "lake.before_commit":
            monkeypatch.undo()
            table.theirs().append(pa.Table.from_pylist(items(9, name="t"), schema=ITEMS))

    monkeypatch.setattr(positions, "failpoint", another)
    with pytest.raises(Lost):
        table.merge(items(1, 9, name="x"))
    table.lsn -= 16
    table.model[1,], table.model[9,] = items(1)[0], {"id": 9, "name": "t"}
    table.check(theirs=True)
    table.merge(items(1, 9, name="x"))
    table.check(theirs=True)


def test_a_file_with_a_hundredth_of_its_rows_gone_is_folded(tmp_path: Path) -> None:
    table = IcebergMerged(tmp_path)
    table.merge(items(*range(1000)))
    table.merge([], [(1,)])
    assert table.table.fold(table.shape, nullcontext) == 0
    table.merge([], [(n,) for n in range(100, 1000, 100)])
    assert table.table.fold(table.shape, nullcontext) == 1
    table.check()
    _, deletes = snapshots.live_files(table.loaded(), table.loaded().current_snapshot())
    assert not deletes


def test_rows_that_go_while_their_file_is_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = IcebergMerged(tmp_path)
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
    files, deletes = snapshots.live_files(table.loaded(), table.loaded().current_snapshot())
    # The folded file, and the batch's.
    assert (len(files), len(deletes)) == (2, 1)
    table.open()
    table.merge(items(*range(0, 600, 11), name="z"))
    table.check()


@pytest.mark.parametrize("what", ["lost", "damaged", "stale"])
def test_an_index_is_never_believed_wrongly(tmp_path: Path, what: str) -> None:
    table = IcebergMerged(tmp_path)
    table.merge(items(*range(40_000)))
    table.merge(items(*range(0, 40_000, 3), name="x"))
    table.table.close()
    old = {path: path.read_bytes() for path in table.index.iterdir()}
    if what == "lost":
        shutil.rmtree(table.index)
    elif what == "damaged":
        (run, *_) = sorted(table.index.glob("run-*.place"))
        damaged = bytearray(run.read_bytes())
        damaged[8000] ^= 1
        run.write_bytes(damaged)
    else:
        table.open()
        table.merge(items(*range(0, 40_000, 2), name="y"))
        table.table.close()
        shutil.rmtree(table.index)
        table.index.mkdir()
        for path, data in old.items():
            path.write_bytes(data)
    table.open()
    table.merge(items(*range(0, 40_000, 5), name="z"), [(n,) for n in range(1, 40_000, 5)])
    table.check()


def test_damaged_deletes_are_told(tmp_path: Path) -> None:
    table = IcebergMerged(tmp_path)
    table.merge(items(*range(500)))
    table.merge([], [(3,)])
    (file,) = snapshots.live_files(table.loaded(), table.loaded().current_snapshot())[1]
    path = Path(file.file_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    table.open()
    with pytest.raises(LakeError, match=r"position deletes of t .* can't be read"):
        table.merge(items(1))
    path.write_bytes(whole)
    table.lsn -= 16
    table.merge(items(1))
    table.check()


def test_columns_that_files_are_older_than(tmp_path: Path) -> None:
    """Folds read by field id: a column that was renamed, widened, or came later."""
    columns = pa.schema([("id", pa.int32()), ("name", pa.string())])
    table = IcebergMerged(tmp_path, columns, ("id",))
    table.merge(items(*range(30)))
    with table.loaded().update_schema() as update:
        update.rename_column("name", "called")
        update.update_column("id", LongType())
    with table.loaded().update_schema() as update:
        update.add_column("name", StringType())
    after = pa.schema([("id", pa.int64()), ("called", pa.string()), ("name", pa.string())])
    table.shape = Shape(after, ("id",))
    table.model = {
        key: {"id": row["id"], "called": row["name"], "name": None}
        for key, row in table.model.items()
    }
    table.merge([{"id": 3, "called": "c", "name": "n"}, {"id": 99, "called": None, "name": "m"}])
    table.check()
    assert table.table.fold(table.shape, nullcontext, 0.0) == 2
    table.check()


def test_a_table_that_another_engine_upgraded_is_told(tmp_path: Path) -> None:
    table = IcebergMerged(tmp_path)
    table.merge(items(1))
    location = Path(table.loaded().metadata_location)
    upgraded = json.loads(location.read_text()) | {"format-version": 3, "next-row-id": 1}
    for each in upgraded["snapshots"]:
        each |= {"first-row-id": 0, "added-rows": 1}
    location.write_text(json.dumps(upgraded))
    with pytest.raises(LakeTableConflict, match="is of format version 3"):
        table.loaded()
    # As the hint says; the directory's files are in nobody's way.
    uri = f"sqlite:///{tmp_path / 'catalog.db'}"
    SqlCatalog("lake", uri=uri).drop_table(table.catalog.identifier("current", "t"))
    again = IcebergMerged(tmp_path)
    again.merge(items(1, 2))
    again.check()


_MERGE = """
import sys
from contextlib import nullcontext
from pathlib import Path
from harness.iceberg_position_table import IcebergMerged
from harness.position_table import items

table = IcebergMerged(Path(sys.argv[1]))
table.lsn = 16
if sys.argv[2] == "fold":
    assert table.table.fold(table.shape, nullcontext, 0.0)
else:
    table.merge(items(1, 4, name="after"), [(2,)])
"""


@pytest.mark.parametrize(
    "at", [deep("vectors"), deep("rows"), "commit", deep("index"), deep("fold")]
)
def test_killed_at_each_step(tmp_path: Path, at: str) -> None:
    table = IcebergMerged(tmp_path)
    table.merge(items(1, 2, 3))
    after = dict.fromkeys((1, 2, 3), "n")
    if at == "fold":
        table.lsn = 0
        table.merge(items(1, name="x"))
        after[1] = "x"

    def rows() -> dict[int, str]:
        return {row["id"]: row["name"] for row in table.stored()}

    def run(**environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", _MERGE, str(tmp_path), "fold" if at == "fold" else "merge"],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])} | environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    done = run(SPILLWAY_FAILPOINTS=f"lake.before_{at}=kill")
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    merged = {1: "after", 3: "n", 4: "after"}
    assert rows() == (merged if at == "index" else after)
    again = run()
    assert again.returncode == 0, again.stderr[-3000:]
    assert rows() == (after if at == "fold" else merged)


def test_columns_that_exchange_their_names(tmp_path: Path) -> None:
    """As where a table is given another key under the old one's name: Iceberg's files stay as they
    are, and each of their rows has another key.
    """
    columns = pa.schema([("id", pa.int64()), ("other", pa.int64())])
    table = IcebergMerged(tmp_path, columns)

    def exchange() -> None:
        with table.loaded().transaction() as transaction:
            assert types.follow_columns(transaction, columns, {"id": "other", "other": "id"})
        rows = [{"id": row["other"], "other": row["id"]} for row in table.model.values()]
        table.model = {table.identity(row): row for row in rows}

    table.merge({"id": n, "other": 9 - n} for n in range(10))
    exchange()
    table.merge([{"id": 2, "other": 80}], [(3,)])
    table.check()
    table.merge({"id": n, "other": -n} for n in range(10, 15))
    exchange()
    # What is on the disk is of the names' columns before, too.
    table.table.close()
    table.open()
    table.merge([{"id": 80, "other": 1}], [(9,)])
    table.check()
    table.table.fold(table.shape, nullcontext)
    table.check()


def test_columns_that_exchange_their_names_while_files_are_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are read by the names of one moment."""
    columns = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])
    table = IcebergMerged(tmp_path, columns)
    for start in (0, 10):
        table.merge({"id": n, "a": n, "b": -n} for n in range(start, start + 10))
    read, files = table.table._read, []

    def then_exchange(*of: Any) -> Iterator[pa.Table]:
        yield from read(*of)
        files.append(of)
        if len(files) == 1:
            with table.loaded().transaction() as transaction:
                renames = {"id": "id", "a": "b", "b": "a"}
                assert types.follow_columns(transaction, columns, renames)
            table.table.snapshot()

    monkeypatch.setattr(table.table, "_read", then_exchange)
    assert table.table.fold(table.shape, nullcontext) == 2
    table.model = {key: {**row, "a": row["b"], "b": row["a"]} for key, row in table.model.items()}
    table.check()
    table.merge([{"id": 2, "a": 80, "b": 81}], [(3,)])
    table.check()
