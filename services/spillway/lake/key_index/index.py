"""Where a current table's rows are: key → (file, row), on the job's own disk.

::

    <directory>/manifest.json   what is here: the runs, the files whose rows are in them, the secret
                run-7.high …    a run: codes in order, and beside them places; two or three files

    add ──▶ pending (memory) ──settle──▶ a run ──▶ merged with runs that are not much larger
    find ──▶ a binary search in each run, and in what is pending, for all keys at once

**A place is a hint.** The index has a place for each row of the files that it covers, and it may
have more: places of rows that are gone, in files that are gone. Who looks a key up finds all of
them, and asks the table which one is there: its newest version has the file, and the file's
deletion vector doesn't have the row. So nothing is ever removed by key, a batch adds places of the
rows that it appended and that is all; and what an index has of versions that never came to be, or
are older than the table, does no harm. It is wrong only if it lacks a file, which it knows, or if
its bytes change on disk: their checksums are looked at when it is opened.

A file of the table never changes and its name never comes again, so its places stay right for ever.
Files that are not covered, those that others wrote, or ours since the last settling, are read once,
the key's columns alone, by who calls :meth:`KeyIndex.add`. An index that is lost, or damaged, or
made for another key begins empty.

**Cost.** A batch of n rows costs n places in memory; some n · log(N / n) of them are written to
disk in the end, N being the table's rows. A place takes 16 bytes, or 24 where keys are hashed
(:mod:`spillway.lake.key_index.codes`). Memory: :data:`_PENDING_MAX` places, and while many are
added or merged :data:`_BULK`; the runs are mapped, and the system's to keep or drop. Runs are
geometric, so there are few. Places whose file is gone go when their run is merged; when they are
more than there are rows in the table, all runs are merged.

A run is durable before the manifest names it. One process has an index at a time (the lake's lock);
its threads share it.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import secrets
import shutil
import threading
import zlib
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from spillway.lake.key_index.codes import Codes, KeyCodes, Numbers
from spillway.storage.durable_files import replace_file, sync_directory, sync_file
from spillway.storage.place import ObjectPath

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from spillway.storage.place import LakePath

_log = logging.getLogger(__name__)

_FORMAT_VERSION: Final = 1
_MANIFEST: Final = "manifest.json"
#: Places in memory between batches.
_PENDING_MAX: Final = 1 << 15
#: Places in memory while a file is added, and a part of a merge of two runs.
_BULK: Final = 1 << 20
#: A run is merged with the one before it unless that one is so many times as large.
_RATIO: Final = 3
_ROW_BITS: Final = 32
#: Places of files that are gone, beyond those that are there, that are let be.
_GARBAGE_MIN: Final = 1 << 16
_WORD: Final = 8
#: A run's files, of codes that are exact and of others.
_COLUMNS: Final = {True: ("high", "place"), False: ("high", "low", "place")}
_CHECKED_AT_ONCE: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class Found:
    """Places of keys that were looked up; a key may have none, or several."""

    #: which of the keys
    key: npt.NDArray[np.int64]
    #: numbers of files, and rows in them counted from 0
    file: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Run:
    """Places in the order of their codes' upper halves."""

    codes: Codes
    places: Numbers
    #: "": in memory
    name: str = ""
    checksums: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.places)

    @property
    def columns(self) -> list[Numbers]:
        """What its files have."""
        low = [] if self.codes.low is None else [self.codes.low]
        return [self.codes.high, *low, self.places]

    def part(self, start: int, end: int) -> _Run:
        low = None if self.codes.low is None else self.codes.low[start:end]
        return _Run(Codes(self.codes.high[start:end], low), self.places[start:end])


def index_directory(lake: LakePath, name: str) -> Path:
    """Return where the index of a current table is: below a lake that is a directory; for one on
    object storage below ``SPILLWAY_KEYS``, else ``.cache/keys`` in the current directory.
    """
    if not isinstance(lake, ObjectPath):
        return lake / "_spillway" / "keys" / name
    folder = Path(os.environ.get("SPILLWAY_KEYS") or Path(".cache") / "keys").absolute()
    if lake.scheme != "s3":
        folder /= lake.scheme
    return folder / lake.bucket / lake.key / name


class KeyIndex:
    """The index in *directory*; see the module. Safe for threads."""

    def __init__(self, directory: Path, key: Sequence[tuple[str, pa.DataType]]) -> None:
        """Open it, or begin one, for the columns of *key*."""
        self._directory = directory
        self._key = [f"{name} {type_}" for name, type_ in key]
        self._lock = threading.RLock()
        self._runs: list[_Run] = []
        self._pending: list[_Run] = []
        #: the numbers of files that are covered
        self._files: dict[str, int] = {}
        #: of those that are being added
        self._coming: dict[str, int] = {}
        self._next_file = self._next_run = 0
        self._given_up = False
        self._secret = secrets.token_hex(16)
        directory.mkdir(parents=True, exist_ok=True)
        try:
            self._open()
        except FileNotFoundError:
            self._clear()
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("the index of keys in %s is made anew: %s", directory, error)
            self._clear()
        self.coder = KeyCodes([type_ for _, type_ in key], self._secret)

    def files(self) -> dict[str, int]:
        """Return the files whose rows are in the index, and their numbers."""
        with self._lock:
            return dict(self._files)

    def add(self, file: str, codes: Codes, first_row: int) -> None:
        """Add rows of *file* with keys of *codes*, from *first_row* on; :meth:`cover` it
        afterwards.

        Raises:
            OSError: a run could not be written.
        """
        with self._lock:
            number = self._coming.get(file)
            if number is None:
                number = self._coming[file] = self._next_file
                self._next_file += 1
            if self._given_up:
                return
            rows = np.arange(first_row, first_row + len(codes), dtype=np.uint64)
            self._pending.append(_Run(codes, rows | np.uint64(number << _ROW_BITS)))
            if sum(map(len, self._pending)) >= _BULK:
                self._flush()

    def cover(self, file: str) -> None:
        """All rows of *file* have been added."""
        with self._lock:
            number = self._coming.pop(file, None)
            if number is None:
                number, self._next_file = self._next_file, self._next_file + 1
            self._files[file] = number

    def drop(self, file: str) -> None:
        """Forget what was added of *file*, which is not to be covered."""
        with self._lock:
            self._coming.pop(file, None)

    def keep(self, live: Iterable[str], rows: int) -> None:
        """Forget the files that are not *live*; those that are have so many *rows*."""
        with self._lock:
            live = set(live)
            gone = [file for file in self._files if file not in live]
            for file in gone:
                del self._files[file]
            if sum(map(len, self._runs)) > 2 * rows + _GARBAGE_MIN:
                self._flush(everything=True)

    def settle(self) -> None:
        """Write what is pending, if it is much; called after each batch.

        Raises:
            OSError: it could not be written.
        """
        with self._lock:
            if sum(map(len, self._pending)) > _PENDING_MAX:
                self._flush()

    def close(self) -> None:
        """Write what is pending, and forget it."""
        with self._lock:
            if self._pending:
                self._flush()

    def give_up(self) -> None:
        """Write nothing any more: another one may have the directory. What is added is dropped."""
        with self._lock:
            self._given_up = True
            self._pending = []

    def find(self, codes: Codes) -> Found:
        """Return the places of keys of *codes*, gone ones too; in no order."""
        keys, places = [], []
        with self._lock:
            if self._pending:
                self._pending = [_sorted(self._pending)]
            for run in [*self._runs, *self._pending]:
                for key, place in _matches(run, codes):
                    keys.append(key)
                    places.append(place)
        place = np.concatenate(places) if places else np.empty(0, np.uint64)
        return Found(
            np.concatenate(keys) if keys else np.empty(0, np.int64),
            (place >> np.uint64(_ROW_BITS)).astype(np.int64),
            (place & np.uint64((1 << _ROW_BITS) - 1)).astype(np.int64),
        )

    def size(self) -> int:
        """Return how many places there are, those that are no more among them."""
        with self._lock:
            return sum(map(len, self._runs)) + sum(map(len, self._pending))

    def _flush(self, *, everything: bool = False) -> None:
        if self._given_up:
            return
        runs, old = list(self._runs), []
        merged = _sorted(self._pending) if self._pending else None
        if merged is not None:
            merged = self._write([merged])
        while runs and (everything or (merged and len(runs[-1]) < _RATIO * len(merged))):
            before = runs.pop()
            old.append(before)
            if merged is None:
                merged = self._merge(before, before.part(0, 0))
            else:
                old.append(merged)
                merged = self._merge(before, merged)
        runs = [*runs, *([merged] if merged is not None and len(merged) else [])]
        sync_directory(self._directory)
        self._store(runs)
        self._runs, self._pending = runs, []
        self._remove_others()

    def _merge(self, larger: _Run, smaller: _Run) -> _Run:
        """Write both as one run, a part at a time, without the places of files that are gone."""
        live = np.zeros(self._next_file + 1, dtype=bool)
        live[[*self._files.values(), *self._coming.values()]] = True
        cuts = np.unique(
            np.concatenate([run.codes.high[_BULK::_BULK] for run in (larger, smaller)])
        )
        ends = [[0, *np.searchsorted(run.codes.high, cuts), len(run)] for run in (larger, smaller)]

        def parts() -> Iterable[_Run]:
            for (a, b), (c, d) in zip(pairwise(ends[0]), pairwise(ends[1]), strict=True):
                part = _sorted([larger.part(a, b), smaller.part(c, d)])
                kept = live[(part.places >> np.uint64(_ROW_BITS)).astype(np.int64)]
                yield _Run(part.codes.take(kept), part.places[kept])

        return self._write(parts())

    def _write(self, parts: Iterable[_Run]) -> _Run:
        """Write *parts*, which follow each other, as one run, durably but for its name."""
        name = f"run-{self._next_run}"
        self._next_run += 1
        columns = _COLUMNS[self.coder.exact]
        checksums, count = [0] * len(columns), 0
        with ExitStack() as stack:
            files = [
                stack.enter_context((self._directory / f"{name}.{column}").open("wb"))
                for column in columns
            ]
            for part in parts:
                count += len(part)
                for n, values in enumerate(part.columns):
                    data = np.ascontiguousarray(values).view(np.uint8).data
                    files[n].write(data)
                    checksums[n] = zlib.crc32(data, checksums[n])
        for column in columns:
            sync_file(self._directory / f"{name}.{column}")
        return self._mapped(name, count, tuple(checksums))

    def _mapped(self, name: str, count: int, checksums: tuple[int, ...]) -> _Run:
        names = _COLUMNS[len(checksums) == len(_COLUMNS[True])]
        columns = [_map(self._directory / f"{name}.{column}", count) for column in names]
        low = None if len(names) == len(_COLUMNS[True]) else columns[1]
        return _Run(Codes(columns[0], low), columns[-1], name, checksums)

    def _open(self) -> None:
        stored: dict[str, Any] = json.loads((self._directory / _MANIFEST).read_text())
        if stored["version"] != _FORMAT_VERSION:
            raise ValueError(f"version {stored['version']}")
        if stored["key"] != self._key:
            raise ValueError("the table's key is another one")
        runs = []
        for about in stored["runs"]:
            run = self._mapped(about["name"], about["places"], tuple(about["checksums"]))
            found = tuple(map(_checksum, run.columns))
            if found != run.checksums:
                raise ValueError(f"{run.name} is damaged")
            runs.append(run)
        self._runs, self._files = runs, dict(stored["files"])
        self._next_file, self._next_run = stored["next_file"], stored["next_run"]
        self._secret = stored["secret"]
        self._remove_others()

    def _store(self, runs: Sequence[_Run]) -> None:
        manifest = {
            "version": _FORMAT_VERSION,
            "key": self._key,
            "secret": self._secret,
            "files": self._files,
            "next_file": self._next_file,
            "next_run": self._next_run,
            "runs": [
                {"name": run.name, "places": len(run), "checksums": run.checksums} for run in runs
            ],
        }
        # Its secret tells how to make keys that share a code.
        replace_file(self._directory / _MANIFEST, json.dumps(manifest), mode=0o600)

    def _remove_others(self) -> None:
        """Remove what the manifest doesn't name: merged runs, and what a crash left."""
        names = {run.name for run in self._runs}
        for path in self._directory.glob("run-*"):
            if path.stem not in names:
                path.unlink()

    def _clear(self) -> None:
        self._runs, self._pending, self._files = [], [], {}
        shutil.rmtree(self._directory)
        self._directory.mkdir(parents=True)


def _map(path: Path, count: int) -> Numbers:
    if path.stat().st_size != count * _WORD:
        raise ValueError(f"{path.name} has not {count} places")
    if not count:
        return np.empty(0, np.uint64)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    # Reading ahead would take in 32 pages for each that is asked for.
    mapped.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapped, dtype=np.uint64)


def _checksum(values: Numbers) -> int:
    checksum = 0
    for start in range(0, len(values), _CHECKED_AT_ONCE):
        part = values[start : start + _CHECKED_AT_ONCE]
        checksum = zlib.crc32(np.ascontiguousarray(part).view(np.uint8).data, checksum)
    return checksum


def _sorted(runs: Sequence[_Run]) -> _Run:
    high = np.concatenate([run.codes.high for run in runs])
    lows = [run.codes.low for run in runs if run.codes.low is not None]
    codes = Codes(high, np.concatenate(lows) if lows else None)
    places = np.concatenate([run.places for run in runs])
    if bool(np.all(high[1:] >= high[:-1])):
        return _Run(codes, places)
    order = np.argsort(high, kind="stable")
    return _Run(codes.take(order), places[order])


def _matches(run: _Run, codes: Codes) -> Iterable[tuple[npt.NDArray[np.int64], Numbers]]:
    """Yield which keys have a place in *run*, and those places."""
    if not len(run):
        return
    at = np.searchsorted(run.codes.high, codes.high)
    key = np.flatnonzero(at < len(run))
    at = at[key]
    # Codes of the same upper half are neighbours: of exact ones a key's earlier places, else a
    # chance of one in 2^64.
    while len(key):
        same = run.codes.high[at] == codes.high[key]
        key, at = key[same], at[same]
        if run.codes.low is not None and codes.low is not None:
            equal = run.codes.low[at] == codes.low[key]
            yield key[equal], run.places[at[equal]]
        else:
            yield key, run.places[at]
        at = at + 1
        there = at < len(run)
        key, at = key[there], at[there]
