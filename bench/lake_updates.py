"""What random updates cost in Delta tables of growing size: files written anew, and by position.

Merging alone: no Spark, no source, no history. For each size and each way a process of its own
makes the table (key, number, two texts), merges batches of :data:`_ROWS` random updates and then
of one, with what goes with a batch (small files made one, checkpoints), and reads it: as it is
then, after a round of folding, and written afresh with the same rows.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder, write_deltalake

from bench.child import Child, tell
from spillway.lake.tables.delta import merge as rewriting
from spillway.lake.tables.delta.positions import Mark, PositionTable, Shape
from spillway.lake.tables.plain_changes import LastChanges

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.scenarios import Scene

#: Tables' rows; below this scale it is only tried.
SIZES: Final = (100_000, 1_000_000, 10_000_000)
_TRIED: Final = (10_000, 40_000)
_SCALE: Final = 0.1
_ROWS: Final = 1000
#: Batches of them by position; files are written anew in a few.
_BATCHES: Final = 100
_FEW: Final = 3
_AT_ONCE: Final = 1_000_000
_READS: Final = 3
_COLUMNS: Final = pa.schema(
    [("id", pa.int64()), ("n", pa.int64()), ("text", pa.string()), ("note", pa.string())]
)
_QUERY: Final = "SELECT count(*), sum(n), max(text), min(note) FROM t"


def lake_updates(scene: Scene) -> dict[str, Any]:
    """CPU seconds and bytes of 1,000 random updates in Delta tables of growing size, by rewriting
    and by position.
    """
    figures: dict[str, Any] = {}
    tried = scene.scale < _SCALE
    for rows in _TRIED if tried else SIZES:
        figures[str(rows)] = {}
        for how, batches in (("copy", _FEW), ("position", _FEW * 2 if tried else _BATCHES)):
            with (
                tempfile.TemporaryDirectory(prefix="spillway-bench-lake-") as directory,
                Child("bench.lake_updates", directory, how) as child,
            ):
                made = child.ask(f"make {rows}")
                many = child.ask(f"batches {_ROWS} {batches}")
                one = child.ask(f"batches 1 {_FEW}")
                read = child.ask("read")
            found = {
                "table_mb": made["mb"],
                "first_cpu_s": many["cpu_s_each"][0],
                "cpu_s": _median(many["cpu_s_each"][1:]),
                "mb": round(statistics.fmean(many["mb_each"][1:]), 3),
                "one_cpu_s": _median(one["cpu_s_each"]),
                "one_mb": round(statistics.fmean(one["mb_each"]), 3),
                **{name: read[name] for name in ("fresh_s", "after_s", "folded_s")},
            }
            figures[str(rows)][how] = found
            scene.say(f"   {rows} rows, {how}: {found}")
    return figures


def _median(values: list[float]) -> float:
    return round(statistics.median(values), 4)


class _Table:
    """The child's half."""

    def __init__(self, directory: Path, how: str) -> None:
        self.directory, self.path, self.how = directory, directory / "table", how
        self.rng = np.random.default_rng(1)
        self.rows = self.batch = 0
        self.table = PositionTable(self.path, directory / "keys")
        self.shape = Shape(_COLUMNS, ("id",))

    def make(self, rows: int) -> dict[str, Any]:
        self.rows = rows
        DeltaTable.create(self.path, _COLUMNS)
        for first in range(0, rows, _AT_ONCE):
            ids = np.arange(first, min(rows, first + _AT_ONCE))
            write_deltalake(self.path, self._values(ids), mode="append")
        return {"mb": round(sum(self._sizes().values()) / 1e6, 1)}

    def batches(self, rows: int, count: int) -> dict[str, Any]:
        before = self._sizes()
        cpu_s, mb = [], []
        for _ in range(count):
            ids = np.sort(self.rng.choice(self.rows, rows, replace=False))
            changes = LastChanges(self._values(ids), pa.array([True] * rows))
            began_s = time.process_time()
            self._merge(changes)
            cpu_s.append(round(time.process_time() - began_s, 4))
            after = self._sizes()
            mb.append(sum(size for path, size in after.items() if before.get(path) != size) / 1e6)
            before = after
        return {"cpu_s_each": cpu_s, "mb_each": mb}

    def _merge(self, changes: LastChanges) -> None:
        self.batch += 1
        if self.how == "position":
            self.table.merge(changes, self.shape, Mark("bench", self.batch, "{}"))
            self.table.fold_small(self.shape)
            self.table.checkpoint()
        else:
            table = rewriting.open_table(self.path)
            rewriting.merge(table, changes, self.shape.key, CommitProperties())
            rewriting.compact(table, _COLUMNS)

    def read(self) -> dict[str, Any]:
        after_s, rows = self._seconds(self.path)
        if self.how == "position":
            self.table.fold(self.shape, nullcontext)
        folded_s, folded = self._seconds(self.path)
        fresh = self.directory / "fresh"
        found = QueryBuilder().register("t", DeltaTable(str(self.path)))
        reader = found.execute("SELECT * FROM t ORDER BY id")
        write_deltalake(fresh, pa.table(reader.read_all()).cast(_COLUMNS))
        fresh_s, wanted = self._seconds(fresh)
        assert rows == folded == wanted, "other rows are read than were written"
        return {"after_s": after_s, "folded_s": folded_s, "fresh_s": fresh_s}

    def _seconds(self, path: Path) -> tuple[float, list[dict[str, Any]]]:
        """Return how long a query over the whole table takes, and its answer."""
        seconds, answer = [], []
        for _ in range(_READS):
            began_s = time.monotonic()
            found = QueryBuilder().register("t", DeltaTable(str(path))).execute(_QUERY)
            answer = pa.table(found.read_all()).to_pylist()
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


def _serve(directory: Path, how: str) -> None:
    table = _Table(directory, how)
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
    _serve(Path(sys.argv[1]), sys.argv[2])
