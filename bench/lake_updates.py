"""What random updates cost in Delta and Iceberg tables of growing size: files written anew, and by
position.

Merging alone: no Spark, no source, no history. For each size and each way a process of its own
makes the table (key, number, two texts), merges batches of :data:`_ROWS` random updates and then
of one, with what goes with a batch (small files made one, checkpoints), and reads it: as it is
then, after a round of folding, and written afresh with the same rows; Delta by delta-rs, Iceberg by
PyIceberg.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, QueryBuilder, write_deltalake

from bench.child import Child, tell
from spillway.lake.tables.delta import merge as rewriting
from spillway.lake.tables.delta.positions import DeltaPositionTable
from spillway.lake.tables.delta.positions import Mark as DeltaMark
from spillway.lake.tables.iceberg import merge as iceberg_rewriting
from spillway.lake.tables.iceberg import snapshots, types
from spillway.lake.tables.iceberg.catalog import LakeCatalog
from spillway.lake.tables.iceberg.files import DataFileWriter, data_file
from spillway.lake.tables.iceberg.positions import IcebergPositionTable
from spillway.lake.tables.iceberg.positions import Mark as IcebergMark
from spillway.lake.tables.iceberg.tables import PROPERTIES, data_directory
from spillway.lake.tables.plain_changes import LastChanges
from spillway.lake.tables.positions import Shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.scenarios import Scene

#: Tables' rows; below this scale it is only tried.
SIZES: Final = (100_000, 1_000_000, 10_000_000)
#: One more from that scale on, by position alone: rewriting would take minutes a batch.
_LARGE: Final = 50_000_000
_LARGE_SCALE: Final = 5
_TRIED: Final = (10_000, 40_000)
_SCALE: Final = 0.1
_ROWS: Final = 1000
#: Batches of them by position; files are written anew in a few.
_BATCHES: Final = 100
_FEW: Final = 3
_TRIED_BATCHES: Final = 6
_AT_ONCE: Final = 1_000_000
_READS: Final = 3
_COLUMNS: Final = pa.schema(
    [("id", pa.int64()), ("n", pa.int64()), ("text", pa.string()), ("note", pa.string())]
)
_QUERY: Final = "SELECT count(*), sum(n), max(text), min(note) FROM t"


def lake_updates(scene: Scene) -> dict[str, Any]:
    """CPU seconds and bytes of 1,000 random updates in Delta and Iceberg tables of growing size, by
    rewriting and by position.
    """
    tried = scene.scale < _SCALE
    sizes: tuple[int, ...] = _TRIED if tried else SIZES
    if scene.scale >= _LARGE_SCALE:
        sizes = (*sizes, _LARGE)
    figures: dict[str, Any] = {}
    for table_format in _KINDS:
        figures[table_format] = {}
        for rows in sizes:
            for how in ("copy", "position") if rows < _LARGE else ("position",):
                found = measured(table_format, how, rows, _TRIED_BATCHES if tried else _BATCHES)
                figures[table_format].setdefault(str(rows), {})[how] = found
                scene.say(f"   {table_format}, {rows} rows, {how}: {found}")
    return figures


def measured(table_format: str, how: str, rows: int, batches: int) -> dict[str, Any]:
    """Return the figures of one table, which a process of its own makes."""
    batches = batches if how == "position" else _FEW
    with (
        tempfile.TemporaryDirectory(prefix="spillway-bench-lake-") as directory,
        Child("bench.lake_updates", directory, table_format, how) as child,
    ):
        made = child.ask(f"make {rows}")
        many = child.ask(f"batches {_ROWS} {batches}")
        one = child.ask(f"batches 1 {_FEW}")
        read = child.ask("read")
    return {
        "table_mb": made["mb"],
        "first_cpu_s": many["cpu_s_each"][0],
        "cpu_s": _median(many["cpu_s_each"][1:]),
        "wall_s": _median(many["wall_s_each"][1:]),
        "mb": round(statistics.fmean(many["mb_each"][1:]), 3),
        "one_cpu_s": _median(one["cpu_s_each"]),
        "one_mb": round(statistics.fmean(one["mb_each"]), 3),
        **{name: read[name] for name in ("fresh_s", "after_s", "folded_s")},
    }


def _median(values: list[float]) -> float:
    return round(statistics.median(values), 4)


class _Table(ABC):
    """The child's half."""

    def __init__(self, directory: Path, how: str) -> None:
        self.directory, self.path, self.how = directory, directory / "table", how
        self.rng = np.random.default_rng(1)
        self.rows = self.batch = 0
        self.shape = Shape(_COLUMNS, ("id",))

    @abstractmethod
    def append(self, rows: pa.Table, path: Path) -> None: ...

    @abstractmethod
    def merge(self, changes: LastChanges) -> None: ...

    @abstractmethod
    def fold(self) -> None: ...

    @abstractmethod
    def whole(self, path: Path) -> pa.Table: ...

    @abstractmethod
    def answer(self, path: Path) -> tuple[Any, ...]:
        """Return count, sum of ``n``, the last text and the first note."""

    def make(self, rows: int) -> dict[str, Any]:
        self.rows = rows
        for first in range(0, rows, _AT_ONCE):
            ids = np.arange(first, min(rows, first + _AT_ONCE))
            self.append(self._values(ids), self.path)
        return {"mb": round(sum(self._sizes().values()) / 1e6, 1)}

    def batches(self, rows: int, count: int) -> dict[str, Any]:
        before = self._sizes()
        cpu_s, wall_s, mb = [], [], []
        for _ in range(count):
            ids = np.sort(self.rng.choice(self.rows, rows, replace=False))
            changes = LastChanges(self._values(ids), pa.array([True] * rows))
            began_s, began = time.process_time(), time.monotonic()
            self.batch += 1
            self.merge(changes)
            cpu_s.append(round(time.process_time() - began_s, 4))
            wall_s.append(round(time.monotonic() - began, 4))
            after = self._sizes()
            mb.append(sum(size for path, size in after.items() if before.get(path) != size) / 1e6)
            before = after
        return {"cpu_s_each": cpu_s, "wall_s_each": wall_s, "mb_each": mb}

    def read(self) -> dict[str, Any]:
        after_s, rows = self._seconds(self.path)
        self.fold()
        folded_s, folded = self._seconds(self.path)
        fresh = self.directory / "fresh"
        self.append(self.whole(self.path).sort_by("id"), fresh)
        fresh_s, wanted = self._seconds(fresh)
        assert rows == folded == wanted, "other rows are read than were written"
        return {"after_s": after_s, "folded_s": folded_s, "fresh_s": fresh_s}

    def _seconds(self, path: Path) -> tuple[float, tuple[Any, ...]]:
        """Return how long a query over the whole table takes, and its answer."""
        seconds: list[float] = []
        answer: tuple[Any, ...] = ()
        for _ in range(_READS):
            began_s = time.monotonic()
            answer = self.answer(path)
            seconds.append(time.monotonic() - began_s)
        return round(min(seconds), 3), answer

    def _values(self, ids: Any) -> pa.Table:
        count = len(ids)
        numbers = pa.array(self.rng.integers(0, 1 << 40, count))
        texts = pa.array(self.rng.integers(0, 1 << 62, count)).cast(pa.string())
        notes = pa.array(self.rng.integers(0, 1 << 30, count)).cast(pa.string())
        return pa.table([pa.array(ids, pa.int64()), numbers, texts, notes], schema=_COLUMNS)

    def _sizes(self) -> dict[Path, int]:
        return {path: path.stat().st_size for path in self.directory.rglob("*") if path.is_file()}


class _Delta(_Table):
    def __init__(self, directory: Path, how: str) -> None:
        super().__init__(directory, how)
        self.table = DeltaPositionTable(self.path, directory / "keys")

    def append(self, rows: pa.Table, path: Path) -> None:
        if not path.exists():
            DeltaTable.create(path, _COLUMNS)
        write_deltalake(path, rows, mode="append")

    def merge(self, changes: LastChanges) -> None:
        if self.how == "position":
            self.table.merge(changes, self.shape, DeltaMark("bench", self.batch, "{}"))
            self.table.fold_small(self.shape)
            self.table.checkpoint()
        else:
            table = rewriting.open_table(self.path)
            rewriting.merge(table, changes, self.shape.key, CommitProperties())
            rewriting.compact(table, _COLUMNS)

    def fold(self) -> None:
        if self.how == "position":
            self.table.fold(self.shape, nullcontext)
            self.table.checkpoint(is_due=True)

    def whole(self, path: Path) -> pa.Table:
        return self._asked(path, "SELECT * FROM t").cast(_COLUMNS)

    def answer(self, path: Path) -> tuple[Any, ...]:
        return tuple(self._asked(path, _QUERY).to_pylist()[0].values())

    @staticmethod
    def _asked(path: Path, query: str) -> pa.Table:
        found = QueryBuilder().register("t", DeltaTable(str(path))).execute(query)
        return pa.table(found.read_all())


class _Iceberg(_Table):
    """In a catalog of the lake's own, as PyIceberg reads it; a table is a directory here, too."""

    def __init__(self, directory: Path, how: str) -> None:
        super().__init__(directory, how)
        self.catalog = LakeCatalog(directory)
        self.table = IcebergPositionTable(
            partial(self._open, self.path), "table", directory / "keys", lambda: None
        )

    def _open(self, path: Path) -> Any:
        return self.catalog.load("current", path.name)

    def append(self, rows: pa.Table, path: Path) -> None:
        table = self._open(path)
        if table is None:
            schema = types.iceberg_schema(_COLUMNS)
            table = self.catalog.create("current", path.name, schema, {**PROPERTIES})
        writer = DataFileWriter(data_directory(table), types.file_schema(table.schema()))
        writer.write(rows)
        files = [data_file(each, table.schema()) for each in writer.close()]
        with snapshots.Committing(table) as transaction:
            snapshots.Appending(transaction, table, {}, files).commit()

    def merge(self, changes: LastChanges) -> None:
        if self.how == "position":
            said = {snapshots.SLOT: "bench", snapshots.END: f"0/{self.batch:X}"}
            self.table.merge(changes, self.shape, IcebergMark(said, {}))
            self.table.fold_small(self.shape)
            return
        table, count = self._open(self.path), len(changes.rows)
        history = changes.rows.append_column("_op", pa.array(["U"] * count))
        history = history.append_column("_commit_lsn", pa.array([self.batch] * count))
        history = history.append_column("_seq", pa.array(range(count)))
        gone, written = iceberg_rewriting.merge(table, history, _COLUMNS, self.shape.key)
        added = [data_file(each, table.schema()) for each in written]
        with snapshots.Committing(table) as transaction:
            snapshots.Replacing(transaction, table, {}, gone, added).commit()

    def fold(self) -> None:
        if self.how == "position":
            self.table.fold(self.shape, nullcontext)

    def whole(self, path: Path) -> pa.Table:
        return self._open(path).scan().to_arrow().cast(_COLUMNS)

    def answer(self, path: Path) -> tuple[Any, ...]:
        rows, last, first, total = 0, "", "~", 0
        for batch in self._open(path).scan().to_arrow_batch_reader():
            rows += len(batch)
            if len(batch):
                total += pc.sum(batch.column("n")).as_py()
                last = max(last, pc.max(batch.column("text")).as_py())
                first = min(first, pc.min(batch.column("note")).as_py())
        return rows, total, last, first


_KINDS: Final = {"delta": _Delta, "iceberg": _Iceberg}


def _serve(directory: Path, table_format: str, how: str) -> None:
    table = _KINDS[table_format](directory, how)
    answers: dict[str, Callable[..., dict[str, Any]]] = {
        "make": table.make,
        "batches": table.batches,
        "read": table.read,
    }
    for line in sys.stdin:
        what, *numbers = line.split()
        tell(answers[what](*map(int, numbers)))
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
