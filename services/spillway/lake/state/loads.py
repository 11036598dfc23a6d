"""How far a table's initial load is: ``<path>/_spillway/loads/<table>.json``, and a lock a table
beside it.

The file says what a job that follows the slot must know, and what a load that begins again can
keep. It is written whole (atomic replacement). What is durable is not said here but by the tables'
own commits; the file may be behind them by one step.

While a load is not *done*, only the load writes the table's current state; the job appends to
history as ever. The two processes (or threads of one) agree by the table's lock: whoever reads that
file and then writes the table holds it meanwhile, and so does whoever changes whose turn it is. On
object storage only threads of one process can agree so; others are kept out by the lease
(:mod:`spillway.lake.lease`).
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from spillway.errors import LakeTableConflict
from spillway.lake import lease
from spillway.lake.shape.kinds import CURRENT, HISTORY
from spillway.lake.shape.payload import directory_of, table_of
from spillway.lake.state import versioned
from spillway.pg.lsn import Lsn
from spillway.storage.place import ObjectPath, replace_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from spillway.consumer.snapshots import SourceTable
    from spillway.storage.place import LakePath

#: Heap that one COPY reads, unless told otherwise: what a failure costs.
RANGE_BYTES: Final = 64 << 20
BLOCK_BYTES: Final = 8192

_FORMAT_VERSION: Final = 1
_NOT_BESIDE: Final = (
    "On object storage nobody loads beside it but itself: have it load the table anew by `spillway "
    "lake resync`, run it with --initial-load for tables that the lake lacks, or stop it first."
)


class Stage(StrEnum):
    """What is done next."""

    #: nothing is durable; current is not the job's any more
    WAITING = "waiting"
    #: history gets the rows, chunk by chunk; then they become current
    COPYING = "copying"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class LoadState:
    """One table's load."""

    #: ``schema.table``
    table: str
    stage: Stage = Stage.WAITING
    #: the snapshot's, once there is one
    lsn: str = ""
    snapshot: str = ""
    snapshot_contents: str = ""
    #: the heap's, and how many of them are a range, and how many ranges a chunk
    blocks: int = 0
    range_blocks: int = 0
    chunk_ranges: int = 0
    #: chunks that are durable
    chunks_done: int = 0
    #: the table's as of the snapshot (:func:`spillway.lake.shape.changes.shape_text`); releases
    #: before it was kept: not known
    shape: str = ""
    #: why the last try failed, by the table's own trouble; "": it did not
    reason: str = ""
    version: int = _FORMAT_VERSION

    @property
    def lsn_value(self) -> int:
        return int(Lsn.parse(self.lsn))

    @property
    def chunks(self) -> int:
        """How many there are: one of an empty table, too, which then has a file with its
        columns.
        """
        of_chunk = self.range_blocks * self.chunk_ranges
        return max(1, -(-self.blocks // of_chunk)) if of_chunk else 0

    def ranges(self, chunk: int) -> list[tuple[int, int]]:
        """Return the ranges of blocks, [first, end), of a chunk."""
        first = chunk * self.chunk_ranges * self.range_blocks
        end = min(first + self.chunk_ranges * self.range_blocks, max(1, self.blocks))
        return [
            (at, min(at + self.range_blocks, end)) for at in range(first, end, self.range_blocks)
        ]


def load_state(path: LakePath, directory: str) -> LoadState | None:
    """Return the state of a table's load, None when it was never loaded.

    Raises:
        LakeTableConflict: the file is not of this release.
    """
    return versioned.read(
        _file(path, directory),
        _FORMAT_VERSION,
        lambda value: LoadState(**value | {"stage": Stage(value["stage"])}),
        "Without it the table counts as never loaded: remove it and load with --resync.",
    )


def store_state(path: LakePath, directory: str, state: LoadState) -> None:
    """Make *state* durable."""
    file = _file(path, directory)
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_json(file, asdict(state))


def forget_state(path: LakePath, directory: str) -> None:
    """Make it a table that was never loaded."""
    _file(path, directory).unlink(missing_ok=True)


def is_loading(path: LakePath, directory: str) -> bool:
    """Say whether the table's current state is a load's to write. To be acted upon under
    :func:`table_lock`.
    """
    state = load_state(path, directory)
    return state is not None and state.stage != Stage.DONE


def is_to_load(path: LakePath, directory: str, *, missing_only: bool, resync: bool) -> bool:
    """Say whether a load of all tables takes this one; see :meth:`InitialLoad.choose`."""
    state = load_state(path, directory)
    if state is not None and state.stage != Stage.DONE:
        return True
    if missing_only and has_table(path, directory):
        return False
    return state is None or resync


def has_table(path: LakePath, directory: str) -> bool:
    """Say whether the lake has anything of a table: from changes, or loaded before."""
    return any((path / kind / directory).exists() for kind in (HISTORY, CURRENT))


def loading_tables(path: LakePath) -> list[str]:
    """Return the tables, by their directories, whose current state is a load's to write."""
    return [name for name in loaded_tables(path) if is_loading(path, name)]


def failed_loads(path: LakePath) -> dict[str, str]:
    """Return why tables, by ``schema.table``, were not loaded by their last load."""
    states = (load_state(path, directory) for directory in loaded_tables(path))
    return {
        state.table: state.reason
        for state in states
        if state is not None and state.stage != Stage.DONE and state.reason
    }


def loaded_tables(path: LakePath) -> list[str]:
    """Return the tables, by their directories, that are loaded or being loaded."""
    folder = path / "_spillway" / "loads"
    files = folder.glob("*.json") if folder.is_dir() else ()
    return sorted(file.name.removesuffix(".json") for file in files)


def known_tables(path: LakePath) -> set[str]:
    """Return the directories of the tables that have a history, or are loaded."""
    history = path / HISTORY
    made = {each.name for each in history.iterdir()} if history.is_dir() else set()
    return made | {*loaded_tables(path)}


def may_be_several(table: str) -> bool:
    """Say whether ``schema.table`` may be the name of several tables: names have dots then."""
    return table.count(".") != 1


def directories_named(
    path: LakePath, table: str, at_source: Iterable[SourceTable] = ()
) -> set[str]:
    """Return the directories of the tables that the lake has, or that are *at_source*, under the
    name ``schema.table``, if they :func:`may be several <may_be_several>`.
    """
    if not may_be_several(table):
        return set()
    held = {each for each in known_tables(path) if ".".join(table_of(each)) == table}
    return held | {directory_of(*each.shown) for each in at_source if each.name == table}


@contextmanager
def table_lock(path: LakePath, directory: str) -> Iterator[None]:
    """Hold one table of the lake at *path*, waiting for whoever has it; the lock goes with the
    process.
    """
    if isinstance(path, ObjectPath):
        with lease.thread_lock(path, f"table {directory}"):
            yield
        return
    with _locked(path / "_spillway" / "locks", directory):
        yield


@contextmanager
def merge_lock(path: LakePath, directory: str) -> Iterator[None]:
    """Be the one who writes a table's current state, for as long as that takes: a batch, a merge
    beside it, a load's last steps, maintenance. Who needs :func:`table_lock` too takes it within.
    """
    if isinstance(path, ObjectPath):
        with lease.thread_lock(path, f"merge {directory}"):
            yield
        return
    with _locked(path / "_spillway" / "locks" / "merging", directory):
        yield


@contextmanager
def _locked(folder: Path, directory: str) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with _opened(folder / directory) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextmanager
def loading_lock(path: LakePath) -> Iterator[None]:
    """Be the one load of the lake at *path*.

    On object storage it keeps jobs of other processes away, too.

    Raises:
        LakeTableConflict: there is another one.
    """
    if isinstance(path, ObjectPath):
        alone = nullcontext() if lease.is_held(path) else lease.held(path, _NOT_BESIDE)
        with lease.thread_lock(path, "load", wait=False), alone:
            yield
        return
    (path / "_spillway").mkdir(parents=True, exist_ok=True)
    with _opened(path / "_spillway" / "load.lock") as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LakeTableConflict(
                f"tables are being loaded into the lake at {path} already",
                hint="One load at a time: wait for it, or name its tables in one command.",
            ) from None
        yield


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _file(path: LakePath, directory: str) -> LakePath:
    return path / "_spillway" / "loads" / f"{directory}.json"
