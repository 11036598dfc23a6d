"""Merges by position beside what others do to the table, its log and the index; over kills at any
instant; on object storage.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from harness.object_store import BUCKET, object_store
from harness.position_table import ITEMS, PositionMerged, items
from spillway.cli import main
from spillway.lake.commands import maintain as maintain_command
from spillway.lake.key_index.index import KeyIndex
from spillway.lake.state import job_record, position
from spillway.lake.tables import positions
from spillway.lake.tables.contract import Batch
from spillway.lake.tables.delta import positions as delta_positions
from spillway.lake.tables.delta.positions import position_table
from spillway.lake.tables.delta.tables import DeltaTables
from spillway.lake.tables.maintenance import Round
from spillway.lake.tables.plain_changes import NotDirect
from spillway.storage.place import ObjectPath

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SEED = 20261124


def _set(table: PositionMerged, id_: int, name: str) -> None:
    table.model[id_,] = {"id": id_, "name": name}


def _compacted(table: PositionMerged) -> None:
    table.delta().optimize.compact()


def _ordered(table: PositionMerged) -> None:
    table.delta().optimize.z_order(["id"])


def _updated(table: PositionMerged) -> None:
    table.delta().update(updates={"name": "'u'"}, predicate="id = 301")
    _set(table, 301, "u")


def _deleted(table: PositionMerged) -> None:
    table.delta().delete("id = 300")
    del table.model[300,]


def _merged(table: PositionMerged) -> None:
    table.delta().merge(
        pa.Table.from_pylist(items(5, 200, 2000, name="m"), schema=ITEMS),
        "t.id = s.id", source_alias="s", target_alias="t",
    ).when_matched_update_all().when_not_matched_insert_all().execute()  # fmt: skip
    for id_ in (5, 200, 2000):
        _set(table, id_, "m")


def _restored(table: PositionMerged) -> None:
    """To before its newest batch: rows of files that were gone are there again."""
    table.delta().restore(2)
    _set(table, 5, "n")


@pytest.mark.parametrize(
    "what", [_compacted, _ordered, _updated, _deleted, _merged, _restored], ids=lambda f: f.__name__
)
def test_what_delta_rs_does_beside(tmp_path: Path, what: Any) -> None:
    table = PositionMerged(tmp_path)
    table.merge(items(*range(1000)))
    table.merge(items(*range(0, 1000, 3), name="x"), [(1,), (2,)])
    table.merge(items(5, name="y"))
    what(table)
    table.check()
    table.merge(items(7, 200, 301, name="last"), [(9,), (300,)])
    table.check()
    # Nothing is known of it any more but what is on the disk.
    table.table.close()
    table.open()
    table.merge(items(5, 8, name="after"), [(2000,)])
    table.check()
    assert table.table.fold(table.shape, nullcontext) > 0
    table.check()


def test_a_commit_of_others_while_files_are_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = PositionMerged(tmp_path)
    table.merge(items(*range(500)))
    table.merge(items(*range(500, 1000)), [(n,) for n in range(0, 500, 2)])
    done: list[str] = []

    def meanwhile(name: str) -> None:
        if name == "lake.before_fold" and not done:
            done.append(name)
            _updated(table)

    monkeypatch.setattr(positions, "failpoint", meanwhile)
    # What it was made of is not there any more.
    table.table.fold(table.shape, nullcontext)
    assert done
    table.check()
    table.merge(items(301, 302, name="last"))
    table.check()


def test_a_table_that_was_removed_and_made_again(tmp_path: Path) -> None:
    table = PositionMerged(tmp_path)
    for n in range(5):
        table.merge(items(*range(100), name=str(n)))
    for versions in (0, 7):
        shutil.rmtree(tmp_path / "table")
        DeltaTable.create(str(table.path), ITEMS)
        table.model.clear()
        for _ in range(versions):
            table.delta().merge(
                pa.Table.from_pylist(items(1, name="t"), schema=ITEMS), "t.id = s.id",
                source_alias="s", target_alias="t",
            ).when_matched_update_all().when_not_matched_insert_all().execute()  # fmt: skip
            _set(table, 1, "t")
        # Behind the log that there is now, not behind the one that it knew.
        assert table.merge(items(1, 2)) == versions + 1
        table.check()


def test_an_index_that_another_has_writes_nothing(tmp_path: Path) -> None:
    key = [("id", pa.int64())]
    one = KeyIndex(tmp_path / "keys", key)
    codes = one.coder.codes(pa.table({"id": list(range(100))}))
    one.add("a", codes, 0)
    one.cover("a")
    one.close()
    one.give_up()
    other = KeyIndex(tmp_path / "keys", key)
    other.add("b", codes, 0)
    other.cover("b")
    other.close()
    there = {path: path.read_bytes() for path in (tmp_path / "keys").iterdir()}
    one.add("c", codes, 0)
    one.cover("c")
    one.close()
    assert {path: path.read_bytes() for path in (tmp_path / "keys").iterdir()} == there
    assert len(other.find(codes).row) == 200


def test_tables_are_let_go_but_for_those_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "_TABLES_MAX", 2)
    monkeypatch.setattr(positions, "_tables", type(positions._tables)())
    tables = {}
    for name in "abcd":
        table = PositionMerged(tmp_path / name, path=tmp_path / "current" / name)
        table.table = tables[name] = position_table(
            tmp_path, f"current/{name}", tmp_path / "keys" / name
        )
        if name == "b":
            before = table
            table.merge(items(*range(100)))
            table.merge(items(*range(100, 200)), [(n,) for n in range(50)])

            def others(at: str) -> None:
                if at == "lake.before_fold":
                    for other in "cda":
                        position_table(tmp_path, f"current/{other}", tmp_path / "keys" / other)

            monkeypatch.setattr(positions, "failpoint", others)
            assert table.table.fold(table.shape, nullcontext) == 2
            assert positions._tables[tmp_path, "current/b"] is table.table
            monkeypatch.setattr(positions, "failpoint", lambda name: None)
    assert len(positions._tables) == 2
    # Who has one in hand still is told.
    with pytest.raises(NotDirect, match="closed"):
        tables["a"].snapshot()
    before.table = position_table(tmp_path, "current/b", tmp_path / "keys" / "b")
    before.merge(items(60, 150, 900, name="x"))
    before.check()


def test_without_a_place_for_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table without vectors is merged by rewriting, as ever; one that has them needs Spark."""
    monkeypatch.setattr(positions, "SMALL_TABLE_BYTES", 0)
    lake, batches = tmp_path / "lake", _Batches(1)
    for number in range(2):
        assert batches.merge(DeltaTables(None, lake, "s", by_position=True), number)  # type: ignore[arg-type]
    (lake / "_spillway").mkdir(exist_ok=True)
    (lake / "_spillway" / "keys").rename(lake / "aside")
    (lake / "_spillway" / "keys").write_text("a file")
    positions._tables.clear()
    tables = DeltaTables(None, lake, "s", by_position=True)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patched:
        asked: list[str] = []
        patched.setattr(DeltaTables, "_spark", property(lambda self: asked.append("Spark")))
        assert not batches.merge(tables, 2)
    assert _stored(lake) == batches.rows(2)
    shutil.rmtree(lake / "current")
    for number in range(3):
        assert batches.merge(tables, number)
    assert _stored(lake) == batches.rows(3)
    assert not list((lake / "current" / "items").glob("deletion_vector_*"))


@pytest.mark.parametrize("merge", ["copy", "position"])
def test_maintenance_by_hand_folds_as_the_job_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merge: str
) -> None:
    monkeypatch.setattr(positions, "SMALL_TABLE_BYTES", 0)
    lake, batches = tmp_path / "lake", _Batches(2)
    for number in range(3):
        assert batches.merge(DeltaTables(None, lake, "s", by_position=True), number)  # type: ignore[arg-type]
    position.store(lake, position.LakePosition("s", "main", "d", "delta", "0/300"))
    record = job_record.JobRecord(str(tmp_path / "checkpoint"), [], 1 << 20, merge=merge)
    job_record.store(lake, record)
    before = len(DeltaTable(str(lake / "current/items")).file_uris())
    folded: list[bool] = []

    def one_round(
        spark: None, path: Path, table_format: str, tables: DeltaTables, *_: Any, **__: Any
    ) -> Round:
        folded.append(tables.fold("items", nullcontext))
        return Round()

    # All of a round but Spark's part.
    monkeypatch.setattr(maintain_command, "maintain", one_round)
    monkeypatch.setattr(maintain_command, "session_for", lambda *_: nullcontext())
    assert main(["lake", "maintain", "--lake", str(lake)]) == 0
    assert folded == [merge == "position"]
    after = len(DeltaTable(str(lake / "current/items")).file_uris())
    assert (after < before) == (merge == "position")
    assert _stored(lake) == batches.rows(3)


class _Batches:
    """Batches of a table's changes, by a seed: each can be made again, by its number."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def changes(self, number: int) -> list[dict[str, Any]]:
        rng = random.Random(f"{self.seed} {number}")
        chosen = rng.sample(range(400), 60)
        return [
            {"_op": "D", "id": id_, "name": None}
            if rng.random() < 0.3
            else {"_op": "I", "id": id_, "name": f"{number} {id_}"}
            for id_ in chosen
        ]

    def rows(self, upto: int) -> dict[int, str]:
        """Return the rows after so many batches."""
        rows: dict[int, str] = {}
        for number in range(upto):
            for change in self.changes(number):
                rows.pop(change["id"], None)
                if change["_op"] == "I":
                    rows[change["id"]] = change["name"]
        return rows

    def merge(self, tables: DeltaTables, number: int) -> bool:
        """Merge the batch of that number."""
        lsn = 100 * number
        changes = [
            {
                "_op": change["_op"], "_commit_lsn": lsn + 50, "_seq": n,
                "_old_key": {"id": change["id"]} if change["_op"] == "D" else None,
                "id": change["id"], "name": change["name"],
            }
            for n, change in enumerate(self.changes(number))
        ]  # fmt: skip
        schema = pa.schema(
            [
                ("_op", pa.string()),
                ("_commit_lsn", pa.int64()),
                ("_seq", pa.int64()),
                ("_old_key", pa.struct([("id", pa.int64())])),
                *ITEMS,
            ]
        )
        rows = pa.Table.from_pylist(changes, schema=schema)
        batch = Batch("s", lsn, lsn + 100, number)
        return tables.merge_plain("items", lsn, ITEMS, ("id",), batch, rows)


def _stored(lake: Path) -> dict[int, str]:
    table = DeltaTable(str(lake / "current/items"))
    found = pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all())
    rows = {row["id"]: row["name"] for row in found.to_pylist()}
    assert len(rows) == len(found)
    return rows


def merge_on(lake: Path, seed: int) -> None:
    """Merge batch after batch, as a job does, until the process is killed."""
    positions.SMALL_TABLE_BYTES = 0  # type: ignore[misc]
    positions._SMALL_FILES_MAX = 4  # type: ignore[misc]
    delta_positions._CHECKPOINT_INTERVAL = 5  # type: ignore[misc]
    batches, tables = _Batches(seed), DeltaTables(None, lake, "s", by_position=True)  # type: ignore[arg-type]
    number = _merged_batches(lake)
    while True:
        print(number, flush=True)
        assert batches.merge(tables, number)
        number += 1
        if number % 9 == 0:
            tables.fold("items", nullcontext)


def _merged_batches(lake: Path) -> int:
    if not (lake / "current/items/_delta_log").is_dir():
        return 0
    return (DeltaTable(str(lake / "current/items")).transaction_version("spillway/s") or 0) // 100


_MERGE_ON = """
import sys
from pathlib import Path
from test_position_merge_beside_others import merge_on
merge_on(Path(sys.argv[1]), int(sys.argv[2]))
"""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_killed_at_any_instant(tmp_path: Path) -> None:
    """Whatever it is just doing: the table has all of a batch or nothing, and the next process goes
    on, with an index that is there, gone, damaged, or older than the table.
    """
    kills = int(os.environ.get("SPILLWAY_LAKE_KILLS", "40"))
    rng = random.Random(_SEED)
    lake, batches = tmp_path / "lake", _Batches(_SEED)
    keys, older = lake / "_spillway" / "keys" / "items", tmp_path / "older"
    here = os.path.dirname(__file__)  # noqa: PTH120 - of a variable of paths
    paths = os.pathsep.join([here, *sys.path])
    for n in range(kills):
        before = _merged_batches(lake)
        process = subprocess.Popen(
            [sys.executable, "-c", _MERGE_ON, str(lake), str(_SEED)],
            env=os.environ | {"PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == f"{before}\n", process.stderr.read()[-3000:]
            for _ in range(rng.randint(1, 6)):
                assert process.stdout.readline(), process.stderr.read()[-3000:]
            # In the middle of the next one, or of the fold that comes before it.
            time.sleep(rng.uniform(0.0, 0.1))
            process.kill()
            assert process.wait() == -signal.SIGKILL, process.stderr.read()[-3000:]
        after = _merged_batches(lake)
        assert after > before
        assert _stored(lake) == batches.rows(after), f"after kill {n}, batch {after}"
        what = rng.choice(["let be", "let be", "lost", "damaged", "older"])
        runs = sorted(keys.glob("run-*"))
        if what == "lost":
            shutil.rmtree(keys, ignore_errors=True)
        elif what == "damaged" and runs:
            data = bytearray(rng.choice(runs).read_bytes())
            if data:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                runs[-1].write_bytes(data)
        elif what == "older" and older.is_dir():
            shutil.rmtree(keys, ignore_errors=True)
            shutil.copytree(older, keys)
        if keys.is_dir() and rng.random() < 0.4:
            shutil.rmtree(older, ignore_errors=True)
            shutil.copytree(keys, older)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with object_store() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield


def test_on_object_storage(store: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "_SMALL_FILES_MAX", 4)
    monkeypatch.setattr(delta_positions, "_CHECKPOINT_INTERVAL", 5)
    rng = random.Random(_SEED)
    table = PositionMerged(tmp_path, path=ObjectPath(BUCKET, "lake/current/items"))
    for n in range(14):
        changed = {rng.randrange(300) for _ in range(rng.choice([1, 5, 80]))}
        gone = {rng.randrange(300) for _ in range(8)} - changed
        table.merge(items(*sorted(changed), name=str(n)), [(id_,) for id_ in gone])
        what = n % 7
        if what == 1:
            # A job that goes on elsewhere has no index.
            table.open()
            shutil.rmtree(table.index)
        elif what == 2:
            table.table.close()
            table.open()
        elif what == 3:
            table.table.fold_small(table.shape)
        elif what == 4:
            table.table.fold(table.shape, nullcontext)
        elif what == 5:
            table.table.checkpoint()
        elif what == 6:
            _compacted(table)
        if n % 3 == 0:
            table.check()
    table.check()
