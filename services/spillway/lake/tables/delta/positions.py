"""A batch merged into a Delta table by position: rows that are gone are marked, new ones appended.

::

    last change per key ──codes──▶ index of keys (:mod:`spillway.lake.keys.index`) ──▶ places
        places that the table's newest version has: their files' deletion vectors, with them
        rows that are there afterwards:             one new data file (one a partition)
        ──▶ one commit: txn · remove + add of each touched file, with its new vector · add

So a batch costs by what it changes: nothing is read of the table's rows, and written are its own
rows and the vectors of the files that it touches. delta-rs' MERGE rewrites those files. What a
table must have been given for it, the feature ``deletionVectors``, comes with the first such
commit. Small tables are left to delta-rs (:func:`PositionTable.is_wanted`): rewriting is as cheap
there, and any reader can read them.

**Folding** is the other half (:meth:`PositionTable.fold`): files with many rows gone, and small
files, are written anew, without the rows that are gone. A batch may be merged meanwhile, and take
rows out of a file that is being folded. Nobody waits: the new file is written from the vectors as
they were, and when it is committed, which is a moment, the rows that went since are marked in it,
too, as each row's place in the new file follows from its old one. Files that came small, one a
batch, are folded in classes of size right after the batch (:meth:`PositionTable.fold_small`): a row
is rewritten once for each class, so some six times in a table of any size.

The log is read and written by :mod:`spillway.lake.tables.delta.log`; checkpoints and the removal
of old log entries are delta-rs', as before. Who is first wins: a commit that is not begins anew.

Memory: the log's newest version; vectors of touched files, :data:`_VECTORS_MAX` positions of them;
:data:`_TABLES_MAX` tables at a time. Called with the table's lock held, unless said otherwise.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict, defaultdict
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from spillway.errors import LakeError
from spillway.failpoints import failpoint
from spillway.lake.keys.index import KeyIndex
from spillway.lake.tables import partitions
from spillway.lake.tables.delta import deletion_vectors, log
from spillway.lake.tables.delta.data_files import (
    ROWS_AT_ONCE,
    DataFile,
    file_path,
    opened,
    read_rows,
    row_count,
)
from spillway.lake.tables.delta.log import Lost
from spillway.lake.tables.plain_changes import NotDirect
from spillway.storage.place import ObjectPath, storage_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyroaring import BitMap

    from spillway.lake.keys.codes import Codes
    from spillway.lake.shape.partition import Partition
    from spillway.lake.tables.delta.log import Action, Snapshot
    from spillway.lake.tables.plain_changes import LastChanges
    from spillway.storage.place import LakePath

_log = logging.getLogger(__name__)

FEATURE: Final = "deletionVectors"
_PROPERTY: Final = "delta.enableDeletionVectors"
#: Features that ask nothing of who merges so, or are kept here.
_FEATURES: Final = frozenset({"appendOnly", "invariants", "timestampNtz", FEATURE})
#: Writer versions up to it have these two features and no other.
_LEGACY_WRITER: Final = 2
_LEGACY_FEATURES: Final = ("appendOnly", "invariants")
_READER, _WRITER = 3, 7
#: Tables with fewer bytes are merged by rewriting.
SMALL_TABLE_BYTES: Final = 8 << 20
#: Files with fewer bytes are small; so many of a class are made one: each class has files four
#: times as large as the one before.
_SMALL_BYTES: Final = 8 << 20
_SMALL_FILES_MAX: Final = 12
_CLASS_BITS: Final = 2
#: Folding in the background: a file with a greater share of its rows gone, or a smaller one than a
#: quarter of what files are made of it.
_GONE_SHARE_MAX: Final = 0.2
_FOLDED_BYTES: Final = 64 << 20
#: Commits between two checkpoints, unless the table says so.
_CHECKPOINT_INTERVAL: Final = 20
_INTERVAL_PROPERTY: Final = "delta.checkpointInterval"
#: Positions of vectors in memory, of one table.
_VECTORS_MAX: Final = 8_000_000
_TABLES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Shape:
    """What a table's rows are."""

    columns: pa.Schema
    key: tuple[str, ...]
    made: tuple[Partition, ...] = ()

    @property
    def key_types(self) -> list[tuple[str, pa.DataType]]:
        return [(name, self.columns.field(name).type) for name in self.key]


@dataclass(frozen=True, slots=True)
class Mark:
    """What a commit says of itself."""

    application: str
    version: int
    user_metadata: str


@dataclass(frozen=True, slots=True)
class _Source:
    """A file that is being folded, as it was when that began."""

    path: str
    action: Action
    gone: BitMap
    #: where its rows begin in the new file
    first_row: int = 0


class NoIndex(NotDirect):
    """The index of keys has no place: its directory can't be written."""


class PositionTable:
    """One table; a process has one of it, for all its threads (:func:`position_table`)."""

    def __init__(self, table: LakePath, index: Path) -> None:
        self._table = table
        self._index_directory = index
        self._lock = threading.RLock()
        self._snapshot: Snapshot | None = None
        self._index: KeyIndex | None = None
        self._indexed: list[tuple[str, pa.DataType]] = []
        #: of files: what names their vectors, and these
        self._vectors: OrderedDict[str, tuple[Any, BitMap]] = OrderedDict()
        self._rows: dict[str, int] = {}
        #: files that a fold in the background is at
        self._folding: set[str] = set()
        #: rounds of it that are going on
        self._folds = 0
        self._retired = False

    def snapshot(self) -> Snapshot:
        """Return the table's newest version.

        Raises:
            NotDirect: the table, or its log, is of a kind that is not merged so.
        """
        with self._lock:
            if self._retired:
                raise NotDirect("the table was closed meanwhile")
            before, self._snapshot = self._snapshot, None
            found = log.load(self._table) if before is None else log.refresh(self._table, before)
            beyond = found.features - _FEATURES
            if beyond:
                raise NotDirect(f"table features {', '.join(sorted(beyond))}")
            protocol = found.protocol
            if (
                protocol["minWriterVersion"] > _LEGACY_WRITER
                and protocol.get("writerFeatures") is None
            ):
                raise NotDirect(f"writer version {protocol['minWriterVersion']}")
            if found.configuration.get("delta.columnMapping.mode", "none") != "none":
                raise NotDirect("column mapping")
            self._snapshot = found
            return found

    @property
    def is_folding(self) -> bool:
        """Whether a fold in the background is going on."""
        return self._folds > 0

    def has_vectors(self) -> bool:
        """Say whether the table may have deletion vectors."""
        return FEATURE in self.snapshot().features

    def is_wanted(self) -> bool:
        """Say whether the table is merged so: it has vectors already, or is no small one."""
        found = self.snapshot()
        return FEATURE in found.features or (
            sum(int(file["size"]) for file in found.files.values()) >= SMALL_TABLE_BYTES
        )

    def merge(self, changes: LastChanges, shape: Shape, mark: Mark) -> int:
        """Commit *changes*, durably; return the version that has them.

        Raises:
            Lost: another commit was first; nothing is done.
            NotDirect: it isn't for that; nothing is done.
        """
        with self._lock:
            found = self.snapshot()
            index = self._cover(found, shape)
            codes = index.coder.codes(changes.rows.select(list(shape.key)))
            gone = self._places(found, index, codes)
            actions = [_txn(mark), _commit_info("MERGE", mark.user_metadata), *_upgrade(found)]
            failpoint("lake.before_vectors")
            actions += self._marked(found, gone)
            failpoint("lake.before_rows")
            set_rows = changes.rows.filter(changes.is_set)
            # Those that are there afterwards are first (last_changes).
            set_codes = codes.take(np.arange(len(set_rows)))
            files = list(self._appended(set_rows, set_codes, shape, index))
            actions += [{"add": file} for file in files]
            failpoint("lake.before_commit")
            try:
                log.commit(self._table, found, actions)
            except Lost:
                # Of any other failure nobody knows whether the commit is there: what it may name
                # stays, for VACUUM to remove.
                self._abandon([file["path"] for file in files], index)
                raise
            failpoint("lake.before_index")
            self._settle(index, [file["path"] for file in files])
            return found.version

    def fold_small(self, shape: Shape) -> bool:
        """Make one file of small ones of a class where there are many; return whether it was
        done.
        """
        with self._lock:
            found = self.snapshot()
            classes: defaultdict[tuple[Any, ...], list[Action]] = defaultdict(list)
            for path, file in found.files.items():
                size = int(file["size"])
                if size < _SMALL_BYTES and path not in self._folding:
                    class_ = size.bit_length() // _CLASS_BITS
                    classes[(*_partition(file), class_)].append(file)
            done = False
            for files in classes.values():
                if len(files) >= _SMALL_FILES_MAX:
                    done |= self._fold(files, shape, nullcontext)
            return done

    def fold(self, shape: Shape, held: Callable[[], AbstractContextManager[Any]]) -> int:
        """Fold what is worth it; called without the table's lock, which *held* takes for a moment.

        Returns how many files were written anew. Files that others have replaced meanwhile stay for
        the next round.
        """
        with self._lock:
            self._folds += 1
        try:
            return self._fold_all(shape, held)
        finally:
            with self._lock:
                self._folds -= 1

    def _fold_all(self, shape: Shape, held: Callable[[], AbstractContextManager[Any]]) -> int:
        with self._lock:
            found = self.snapshot()
            groups: defaultdict[tuple[Any, ...], list[Action]] = defaultdict(list)
            for file in found.files.values():
                if int(file["size"]) < _FOLDED_BYTES // 4 or self._share(file) > _GONE_SHARE_MAX:
                    groups[_partition(file)].append(file)
        folded = 0
        for files in groups.values():
            for some in _packed(files, self._live_bytes):
                alone = len(some) == 1 and self._share(some[0]) <= _GONE_SHARE_MAX
                if not alone and self._fold(some, shape, held):
                    folded += len(some)
        return folded

    def checkpoint(self) -> bool:
        """Write a checkpoint if it is time, and let old log entries go; return whether it was done.

        Raises:
            DeltaError, OSError: it could not be written; the next commit tries again.
        """
        with self._lock:
            found = self._snapshot
            if found is None:
                return False
            interval = int(found.configuration.get(_INTERVAL_PROPERTY, _CHECKPOINT_INTERVAL))
            if found.version - found.checkpoint < interval:
                return False
            options = storage_options() if isinstance(self._table, ObjectPath) else None
            table = DeltaTable(str(self._table), storage_options=options)
            table.create_checkpoint()
            table.cleanup_metadata()
            found.checkpoint = table.version()
            return True

    def close(self) -> None:
        """Write what the index has in memory only."""
        with self._lock:
            if self._index is not None:
                self._index.close()
                # A fold may have it in hand still.
                self._index.give_up()
            self._index, self._snapshot = None, None
            self._vectors.clear()

    def retire(self) -> None:
        """Close it for good: its index may be another object's from now on."""
        with self._lock:
            self.close()
            self._retired = True

    def _settle(self, index: KeyIndex, files: Sequence[str]) -> None:
        """Have the index cover *files*, which are committed."""
        for path in files:
            index.cover(path)
        try:
            index.settle()
        except OSError as error:
            # The commit is there; the next one begins with what the index has on its disk.
            _log.warning("the index of keys of %s is opened anew: %s", self._table, error)
            index.give_up()
            self._index = None

    def _abandon(self, files: Sequence[str], index: KeyIndex) -> None:
        """Remove new files that no commit names."""
        for path in files:
            index.drop(path)
            self._rows.pop(path, None)
            with suppress(OSError, LakeError):
                (self._table / path).unlink(missing_ok=True)

    def _cover(self, found: Snapshot, shape: Shape) -> KeyIndex:
        """Return the index, with the places of all of the table's rows."""
        if self._index is None or self._indexed != shape.key_types:
            if self._index is not None:
                self._index.give_up()
                self._index = None
            try:
                self._index = KeyIndex(self._index_directory, shape.key_types)
            except OSError as error:
                raise NoIndex(f"the index of keys can't be opened: {error}") from error
            self._indexed = shape.key_types
        index = self._index
        covered = index.files()
        for path, file in found.files.items():
            if path not in covered:
                self._index_file(index, file, shape)
        for path in [path for path in self._rows if path not in found.files]:
            del self._rows[path]
            self._vectors.pop(path, None)
        index.keep(found.files, sum(self._count(file) for file in found.files.values()))
        return index

    def _index_file(self, index: KeyIndex, file: Action, shape: Shape) -> None:
        first = 0
        with opened(file_path(self._table, file)) as parquet:
            if not set(shape.key) <= set(parquet.schema_arrow.names):
                raise NotDirect(f"{file['path']} has not all columns of the key")
            for batch in parquet.iter_batches(ROWS_AT_ONCE, columns=list(shape.key)):
                index.add(file["path"], index.coder.codes(batch.select(list(shape.key))), first)
                first += len(batch)
        index.cover(file["path"])

    def _places(self, found: Snapshot, index: KeyIndex, codes: Codes) -> dict[str, BitMap]:
        """Return the rows with keys of *codes* that the table has, by their files."""
        places = index.find(codes)
        paths = {number: path for path, number in index.files().items()}
        order = np.argsort(places.file, kind="stable")
        numbers, rows = places.file[order], places.row[order]
        edges = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
        gone = {}
        for start, end in pairwise([0, *edges.tolist(), len(numbers)] if len(numbers) else []):
            path = paths.get(int(numbers[start]))
            file = None if path is None else found.files.get(path)
            if path is None or file is None:
                continue
            there = deletion_vectors.positions(rows[start:end]) - self._vector(file)
            if there:
                if there.max() >= self._count(file):
                    raise NotDirect(f"the index has rows of {path} that it hasn't")
                gone[path] = there
        return gone

    def _marked(self, found: Snapshot, gone: Mapping[str, BitMap]) -> list[Action]:
        """Return the actions by which files lose rows; vectors are durable then."""
        vectors = {}
        for path, rows in gone.items():
            after = self._vector(found.files[path]) | rows
            if len(after) < self._count(found.files[path]):
                vectors[path] = after
        descriptors = deletion_vectors.write(self._table, vectors)
        actions: list[Action] = []
        for path in gone:
            file = found.files[path]
            actions.append(_removal(file, data_change=True))
            if path in descriptors:
                self._remember(path, descriptors[path], vectors[path])
                actions.append({"add": self._with_vector(file, descriptors[path])})
        return actions

    def _with_vector(self, file: Action, descriptor: Action) -> Action:
        stats = json.loads(file.get("stats") or "{}")
        stats["numRecords"] = self._count(file)
        # Bounds of all its rows, those that are gone too.
        stats["tightBounds"] = False
        text = json.dumps(stats, separators=(",", ":"))
        return {**file, "stats": text, "dataChange": True, "deletionVector": descriptor}

    def _appended(
        self, rows: pa.Table, codes: Codes, shape: Shape, index: KeyIndex
    ) -> Iterator[Action]:
        """Write *rows*, a file for each partition; they are durable, and in the index, then."""
        for values, at in _by_partition(rows, partitions.names(shape.made)):
            own = rows.take(pa.array(at)) if len(at) < len(rows) else rows
            with DataFile(self._table, shape.columns, shape.key, values) as file:
                file.write(own.select(shape.columns.names).cast(shape.columns))
                action = file.close()
            index.add(file.name, codes.take(at), 0)
            self._rows[file.name] = file.rows
            yield action

    def _fold(
        self,
        files: Sequence[Action],
        shape: Shape,
        held: Callable[[], AbstractContextManager[Any]],
    ) -> bool:
        """Make one file of *files*, which are of one partition; return whether it was done."""
        with self._lock:
            if any(file["path"] in self._folding for file in files):
                return False
            index = self._cover(self.snapshot(), shape)
            before = [_Source(file["path"], file, self._vector(file).copy()) for file in files]
            self._folding.update(source.path for source in before)
        new_name = ""
        try:
            values = files[0].get("partitionValues") or {}
            sources = []
            with DataFile(self._table, shape.columns, shape.key, values) as new:
                new_name = new.name
                for source in before:
                    sources.append(replace(source, first_row=new.rows))
                    path = file_path(self._table, source.action)
                    for rows in read_rows(path, shape.columns, source.gone):
                        keys = index.coder.codes(rows.select(list(shape.key)))
                        index.add(new.name, keys, new.rows)
                        new.write(rows)
                action = {**new.close(), "dataChange": False}
            failpoint("lake.before_fold")
            with held(), self._lock:
                try:
                    done = self._put_in_place(sources, new, action)
                except Lost:
                    done = False
                if not done:
                    self._abandon([new.name], index)
                elif index is self._index:
                    self._settle(index, [new.name])
        except BaseException:
            # The file is nobody's, or a commit that may be there names it; its rows are found then.
            index.drop(new_name)
            raise
        finally:
            with self._lock:
                self._folding.difference_update(source.path for source in before)
        return done

    def _put_in_place(self, sources: Sequence[_Source], new: DataFile, action: Action) -> bool:
        """Commit a folded file; False: what it was made of is not there any more."""
        found = self.snapshot()
        gone = []
        for source in sources:
            file = found.files.get(source.path)
            if file is None:
                return False
            now = self._vector(file)
            if not source.gone <= now:
                return False
            went = deletion_vectors.as_array(now - source.gone)
            # In the new file it is as many rows earlier as were gone before it.
            earlier = np.searchsorted(deletion_vectors.as_array(source.gone), went)
            gone.append(went.astype(np.int64) - earlier + source.first_row)
        actions = [_commit_info("OPTIMIZE", None)]
        actions += [_removal(found.files[source.path], data_change=False) for source in sources]
        self._rows[new.name] = new.rows
        after = deletion_vectors.positions(np.concatenate(gone))
        if len(after) < new.rows:
            if after:
                descriptor = deletion_vectors.write(self._table, {new.name: after})[new.name]
                self._remember(new.name, descriptor, after)
                action = {**self._with_vector(action, descriptor), "dataChange": False}
            actions.append({"add": action})
        log.commit(self._table, found, actions)
        return True

    def _vector(self, file: Action) -> BitMap:
        """Return which rows of *file* are gone; not to be changed."""
        descriptor = file.get("deletionVector")
        if descriptor is None:
            return deletion_vectors.NONE
        path = file["path"]
        known = self._vectors.get(path)
        if known is None or known[0] != descriptor:
            self._remember(path, descriptor, deletion_vectors.read(self._table, descriptor))
        else:
            self._vectors.move_to_end(path)
        return self._vectors[path][1]

    def _remember(self, path: str, descriptor: Action, vector: BitMap) -> None:
        self._vectors[path] = descriptor, vector
        self._vectors.move_to_end(path)
        while len(self._vectors) > 1 and (
            sum(len(each) for _, each in self._vectors.values()) > _VECTORS_MAX
        ):
            self._vectors.popitem(last=False)

    def _count(self, file: Action) -> int:
        path = file["path"]
        if path not in self._rows:
            self._rows[path] = row_count(self._table, file)
        return self._rows[path]

    def _share(self, file: Action) -> float:
        gone = (file.get("deletionVector") or {}).get("cardinality", 0)
        return float(gone / max(1, self._count(file)))

    def _live_bytes(self, file: Action) -> int:
        return int(int(file["size"]) * (1 - self._share(file)))


_tables: OrderedDict[tuple[LakePath, str], PositionTable] = OrderedDict()
_tables_lock = threading.Lock()


def position_table(lake: LakePath, folder: str, index: Path) -> PositionTable:
    """Return the table in *folder* of *lake*, this process's only one; its index is in *index*."""
    with _tables_lock:
        table = _tables.get((lake, folder))
        if table is None:
            path = lake
            for part in folder.split("/"):
                path = path / part
            table = _tables[lake, folder] = PositionTable(path, index)
        _tables.move_to_end((lake, folder))
        # One that is being folded has files of its index in hand: its turn comes later.
        idle = [key for key, each in _tables.items() if each is not table and not each.is_folding]
        closed = [_tables.pop(key) for key in idle[: max(0, len(_tables) - _TABLES_MAX)]]
    for each in closed:
        each.retire()
    return table


def _txn(mark: Mark) -> Action:
    return {
        "txn": {
            "appId": mark.application,
            "version": mark.version,
            "lastUpdated": int(time.time() * 1000),
        }
    }


def _commit_info(operation: str, user_metadata: str | None) -> Action:
    about: Action = {
        "timestamp": int(time.time() * 1000),
        "operation": operation,
        "operationParameters": {},
        "engineInfo": "spillway",
    }
    if user_metadata is not None:
        about["userMetadata"] = user_metadata
    return {"commitInfo": about}


def _removal(file: Action, *, data_change: bool) -> Action:
    removed = {
        "path": file["path"],
        "deletionTimestamp": int(time.time() * 1000),
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": file.get("partitionValues") or {},
        "size": file["size"],
    }
    if "deletionVector" in file:
        removed["deletionVector"] = file["deletionVector"]
    return {"remove": removed}


def _upgrade(found: Snapshot) -> list[Action]:
    """Return the actions that let the table have deletion vectors; none if it may."""
    actions: list[Action] = []
    protocol = found.protocol
    if FEATURE not in found.features:
        writer = protocol.get("writerFeatures")
        reader = protocol.get("readerFeatures")
        actions.append(
            {
                "protocol": {
                    "minReaderVersion": _READER,
                    "minWriterVersion": _WRITER,
                    "readerFeatures": [*(reader or ()), FEATURE],
                    "writerFeatures": [
                        *(_LEGACY_FEATURES if writer is None else writer), FEATURE,
                    ],
                }
            }
        )  # fmt: skip
    if found.configuration.get(_PROPERTY) != "true":
        configuration = {**found.configuration, _PROPERTY: "true"}
        actions.append({"metaData": {**found.metadata, "configuration": configuration}})
    return actions


def _partition(file: Action) -> tuple[Any, ...]:
    return tuple(sorted((file.get("partitionValues") or {}).items()))


def _packed(files: Sequence[Action], size: Callable[[Action], int]) -> Iterator[list[Action]]:
    """Cut *files* into groups of which each makes one file."""
    group: list[Action] = []
    total = 0
    for file in files:
        own = size(file)
        if group and total + own > _FOLDED_BYTES:
            yield group
            group, total = [], 0
        group.append(file)
        total += own
    if group:
        yield group


def _by_partition(
    rows: pa.Table, names: Sequence[str]
) -> Iterator[tuple[dict[str, str | None], Any]]:
    """Yield the partitions of *rows*, as the log has their values, and which rows are in each."""
    if not len(rows):
        return
    if not names:
        yield {}, np.arange(len(rows))
        return
    numbered = rows.select(names).append_column(" row", pa.array(np.arange(len(rows))))
    groups = numbered.group_by(names).aggregate([(" row", "list")])
    for group in groups.to_pylist():
        at = np.sort(np.array(group[" row_list"], dtype=np.int64))
        yield {name: _partition_text(group[name]) for name in names}, at


def _partition_text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
