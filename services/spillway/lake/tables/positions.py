"""A batch merged into a current table by position, whatever its format: rows that are gone are
marked, new ones appended.

::

    last change per key ──codes──▶ index of keys (:mod:`spillway.lake.key_index.index`) ──▶ places
        places that the table's newest version has: marks of rows that are gone
        rows that are there afterwards:             one new data file (one a partition)
        ──▶ one commit

So a batch costs by what it changes: none of the table's rows are read, and only the batch's own
rows and the marks are written. A merge by rewriting writes anew the files that it touches. Small
tables are left to that (:meth:`PositionTable.is_wanted`): rewriting is as cheap there, and any
reader can read them. What marks are, and how a commit is made, is a format's:
:mod:`spillway.lake.tables.delta.positions`, :mod:`spillway.lake.tables.iceberg.positions`.

**Folding** is the other half (:meth:`PositionTable.fold`): files with many rows gone, and small
files, are written anew, without the rows that are gone. A batch may be merged meanwhile, and take
rows out of a file that is being folded. Nobody waits: the new file is written from the marks as
they were. When it is committed, which is a moment, the rows that went since are marked in it, too:
each row's place in the new file follows from its old one. Files that came small, one a batch, are
folded in classes of size right after the batch (:meth:`PositionTable.fold_small`): a row is
rewritten once for each class, so some six times in a table of any size.

Who is first wins: a commit that is not begins anew.

Memory: the newest version's files, and what a format keeps of marks; :data:`_TABLES_MAX` tables at
a time. Called with the table's lock held, unless said otherwise.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict, defaultdict
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from spillway.errors import LakeError
from spillway.failpoints import failpoint
from spillway.lake.key_index.index import KeyIndex
from spillway.lake.tables import partitions, row_sets
from spillway.lake.tables.plain_changes import NotDirect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import numpy.typing as npt
    from pyroaring import BitMap

    from spillway.lake.key_index.codes import Codes
    from spillway.lake.shape.partition import Partition
    from spillway.lake.tables.plain_changes import LastChanges
    from spillway.storage.place import LakePath

_log = logging.getLogger(__name__)

#: Tables with fewer bytes are merged by rewriting.
SMALL_TABLE_BYTES: Final = 8 << 20
#: Files with fewer bytes are small; so many of a class are made one: each class has files four
#: times as large as the one before.
_SMALL_BYTES: Final = 8 << 20
_SMALL_FILES_MAX: Final = 12
_CLASS_BITS: Final = 2
#: Folding in the background: files that are smaller than a quarter of what is made of them, beside
#: those with many rows gone.
_FOLDED_BYTES: Final = 64 << 20
_TABLES_MAX: Final = 64
#: Rows of a new file, where there are very many.
_FILE_ROWS_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """What a table's rows are."""

    columns: pa.Schema
    key: tuple[str, ...]
    made: tuple[Partition, ...] = ()

    @property
    def key_types(self) -> list[tuple[str, pa.DataType]]:
        return [(name, self.columns.field(name).type) for name in self.key]


class NoIndex(NotDirect):
    """The index of keys has no place: its directory can't be written."""


class Lost(Exception):
    """Another commit was first."""


#: A data file as the format's log has it, a version of the table, and what a commit says of itself.
FileT = TypeVar("FileT")
FileT_co = TypeVar("FileT_co", covariant=True)
VersionT = TypeVar("VersionT", bound="Version[Any]")
MarkT = TypeVar("MarkT")


class Version(Protocol[FileT_co]):
    """A version of a table."""

    @property
    def files(self) -> Mapping[str, FileT_co]: ...


class NewFile(Protocol[FileT_co]):
    """A data file that is being written; leaving the block by an error removes it."""

    @property
    def name(self) -> str:
        """What it will be among a version's files."""
        ...

    @property
    def rows(self) -> int: ...

    def write(self, rows: pa.Table) -> None: ...

    def close(self) -> FileT_co:
        """Make it durable; return what a commit says of it."""
        ...


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a file that have keys which were looked up."""

    #: which of the keys
    keys: npt.NDArray[np.int64]
    at: npt.NDArray[np.int64]

    def positions(self) -> BitMap:
        return row_sets.positions(self.at)


@dataclass(frozen=True, slots=True)
class Source(Generic[FileT]):
    """A file that is being folded, as it was when that began."""

    path: str
    file: FileT
    gone: BitMap
    #: where its rows begin in the new file
    first_row: int = 0


class PositionTable(ABC, Generic[VersionT, FileT, MarkT]):
    """One table; a process has one of it, for all its threads (:func:`only_table`)."""

    #: A file with a greater share of its rows gone is folded in the background.
    gone_share_max: ClassVar[float] = 0.05

    def __init__(self, name: str, index: Path) -> None:
        self._name = name
        self._index_directory = index
        self._lock = threading.RLock()
        self._index: KeyIndex | None = None
        self._indexed: list[tuple[str, pa.DataType]] = []
        self._rows: dict[str, int] = {}
        #: files that a fold in the background is at
        self._folding: set[str] = set()
        #: rounds of it that are going on
        self._folds = 0
        self._retired = False

    @abstractmethod
    def snapshot(self) -> VersionT:
        """Return the table's newest version.

        Raises:
            NotDirect: the table is of a kind that is not merged so.
        """

    @abstractmethod
    def has_marks(self) -> bool:
        """Say whether the table may have marks of rows that are gone."""

    @abstractmethod
    def _size(self, file: FileT) -> int: ...

    @abstractmethod
    def _count(self, path: str, file: FileT) -> int:
        """Return how many rows a file has, those that are gone among them."""

    @abstractmethod
    def _gone_count(self, found: VersionT, path: str, file: FileT) -> int: ...

    @abstractmethod
    def _gone(self, found: VersionT, path: str, file: FileT) -> BitMap:
        """Return which rows of a file are gone; not to be changed."""

    def _partition(self, _file: FileT) -> tuple[Any, ...]:
        return ()

    def _indexed_columns(self, _found: VersionT, shape: Shape) -> list[tuple[str, pa.DataType]]:
        """Return what tells the key's columns in the table's files, and their types: an index of
        others is made anew.
        """
        return shape.key_types

    @abstractmethod
    def _read(
        self, found: VersionT, file: FileT, schema: pa.Schema, without: BitMap | None
    ) -> Iterator[pa.Table]:
        """Yield a file's rows but those of *without*, in order; *found* says which columns *schema*
        names.
        """

    @abstractmethod
    def _read_at(
        self, found: VersionT, file: FileT, schema: pa.Schema, at: npt.NDArray[np.int64]
    ) -> Iterator[pa.Table]:
        """Yield a file's rows at positions, which are in order; *found* as of :meth:`_read`."""

    @abstractmethod
    def _new_file(
        self, found: VersionT, shape: Shape, partition: Mapping[str, str | None]
    ) -> AbstractContextManager[NewFile[FileT]]: ...

    @abstractmethod
    def _remove(self, path: str) -> None:
        """Remove a file that no commit names."""

    @abstractmethod
    def _marked(self, found: VersionT, gone: Mapping[str, BitMap | None]) -> Any:
        """Make marks of rows that are *gone* durable, None: all of a file's; return what
        :meth:`_commit` needs of them.
        """

    @abstractmethod
    def _commit(self, found: VersionT, marked: Any, files: Sequence[FileT], mark: MarkT) -> int:
        """Commit a batch; return the version.

        Raises:
            Lost: another commit was first.
        """

    @abstractmethod
    def _commit_fold(
        self,
        found: VersionT,
        sources: Sequence[Source[FileT]],
        new: FileT,
        name: str,
        gone: BitMap,
    ) -> None:
        """Commit a folded file in place of *sources*; rows of it that are *gone* are marked.

        Raises:
            Lost: another commit was first.
        """

    @property
    def is_folding(self) -> bool:
        """Whether a fold in the background is going on."""
        return self._folds > 0

    def is_wanted(self) -> bool:
        """Say whether the table is merged so: it has marks already, or is no small one."""
        if self.has_marks():
            return True
        return sum(map(self._size, self.snapshot().files.values())) >= SMALL_TABLE_BYTES

    def merge(self, changes: LastChanges, shape: Shape, mark: MarkT) -> int:
        """Commit *changes*, durably; return the version that has them.

        Raises:
            Lost: another commit was first; nothing is done.
            NotDirect: it isn't for that; nothing is done.
        """
        with self._lock:
            found = self.snapshot()
            index = self._cover(found, shape)
            codes = index.coder.codes(changes.rows.select(list(shape.key)))
            places = {} if changes.truncated else self._places(found, index, codes)
            gone: dict[str, BitMap | None] = dict.fromkeys(found.files if changes.truncated else ())
            gone |= {path: rows.positions() for path, rows in places.items()}
            # Those that are there afterwards are first (last_changes).
            set_rows = changes.rows.filter(changes.is_set)
            set_rows = self._with_kept(found, set_rows, changes.kept, places)
            set_codes = codes.take(np.arange(len(set_rows)))
            if changes.pieces is not None and shape.made:
                raise NotDirect("the batch is large, and the table has partitions")
            failpoint("lake.before_vectors")
            marked = self._marked(found, gone)
            failpoint("lake.before_rows")
            files: list[FileT] = []
            names: list[str] = []
            appended = (
                self._appended(found, set_rows, set_codes, shape, index)
                if changes.pieces is None
                else self._appended_in_pieces(found, changes.pieces(), shape, index)
            )
            for name, file in appended:
                names.append(name)
                files.append(file)
            failpoint("lake.before_commit")
            try:
                version = self._commit(found, marked, files, mark)
            except Lost:
                # Of any other failure nobody knows whether the commit is there: what it may name
                # stays, for maintenance to remove.
                self._abandon(names, index)
                raise
            failpoint("lake.before_index")
            self._settle(index, names)
            failpoint("lake.after_index")
            return version

    def fold_small(self, shape: Shape) -> bool:
        """Make one file of small ones of a class where there are many; return whether it was
        done.
        """
        with self._lock:
            found = self.snapshot()
            classes: defaultdict[tuple[Any, ...], dict[str, FileT]] = defaultdict(dict)
            for path, file in found.files.items():
                size = self._size(file)
                if size < _SMALL_BYTES and path not in self._folding:
                    class_ = size.bit_length() // _CLASS_BITS
                    classes[(*self._partition(file), class_)][path] = file
            done = False
            for files in classes.values():
                if len(files) >= _SMALL_FILES_MAX:
                    done |= self._fold(files, shape, nullcontext)
            return done

    def fold(
        self,
        shape: Shape,
        held: Callable[[], AbstractContextManager[Any]],
        gone_share_max: float | None = None,
    ) -> int:
        """Fold what is worth it: small files, and those of whose rows a greater share is gone.
        Called without the table's lock, which *held* takes for a moment.

        Returns how many files were written anew. Files that others have replaced meanwhile stay for
        the next round.
        """
        with self._lock:
            self._folds += 1
        try:
            share = self.gone_share_max if gone_share_max is None else gone_share_max
            return self._fold_all(shape, held, share)
        finally:
            with self._lock:
                self._folds -= 1

    def _fold_all(
        self,
        shape: Shape,
        held: Callable[[], AbstractContextManager[Any]],
        gone_share_max: float,
    ) -> int:
        with self._lock:
            found = self.snapshot()
            shares = {
                path: self._gone_count(found, path, file) / max(1, self._count(path, file))
                for path, file in found.files.items()
            }
            groups: defaultdict[tuple[Any, ...], dict[str, FileT]] = defaultdict(dict)
            for path, file in found.files.items():
                if self._size(file) < _FOLDED_BYTES // 4 or shares[path] > gone_share_max:
                    groups[self._partition(file)][path] = file
        folded = 0
        for files in groups.values():
            sizes = {path: self._size(file) * (1 - shares[path]) for path, file in files.items()}
            for some in _packed(sizes):
                alone = len(some) == 1 and shares[some[0]] <= gone_share_max
                if not alone and self._fold({path: files[path] for path in some}, shape, held):
                    folded += len(some)
        return folded

    def close(self) -> None:
        """Write what the index has in memory only."""
        with self._lock:
            if self._index is not None:
                self._index.close()
                # A fold may have it in hand still.
                self._index.give_up()
            self._index = None
            self._forget()

    def _forget(self) -> None:
        """Forget what is known of the table's versions."""

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
            _log.warning("the index of keys of %s is opened anew: %s", self._name, error)
            index.give_up()
            self._index = None

    def _abandon(self, files: Sequence[str], index: KeyIndex) -> None:
        """Remove new files that no commit names."""
        for path in files:
            index.drop(path)
            self._rows.pop(path, None)
            with suppress(OSError, LakeError):
                self._remove(path)

    def _cover(self, found: VersionT, shape: Shape) -> KeyIndex:
        """Return the index, with the places of all of the table's rows."""
        indexed = self._indexed_columns(found, shape)
        if self._index is None or self._indexed != indexed:
            if self._index is not None:
                self._index.give_up()
                self._index = None
            try:
                self._index = KeyIndex(self._index_directory, indexed)
            except OSError as error:
                raise NoIndex(f"the index of keys can't be opened: {error}") from error
            self._indexed = indexed
        index = self._index
        covered = index.files()
        keys = pa.schema(shape.key_types)
        for path, file in found.files.items():
            if path not in covered:
                first = 0
                for rows in self._read(found, file, keys, None):
                    if any(rows.column(n).null_count for n in range(len(shape.key))):
                        raise NotDirect(f"{path} has not all columns of the key")
                    index.add(path, index.coder.codes(rows), first)
                    first += len(rows)
                index.cover(path)
        for path in [path for path in self._rows if path not in found.files]:
            del self._rows[path]
        index.keep(found.files, sum(self._count(*file) for file in found.files.items()))
        return index

    def _places(self, found: VersionT, index: KeyIndex, codes: Codes) -> dict[str, Rows]:
        """Return the rows with keys of *codes* that the table has, by their files."""
        places = index.find(codes)
        paths = {number: path for path, number in index.files().items()}
        order = np.argsort(places.file, kind="stable")
        numbers, rows, keys = places.file[order], places.row[order], places.key[order]
        edges = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
        there = {}
        for start, end in pairwise([0, *edges.tolist(), len(numbers)] if len(numbers) else []):
            path = paths.get(int(numbers[start]))
            file = None if path is None else found.files.get(path)
            if path is None or file is None:
                continue
            living = row_sets.positions(rows[start:end]) - self._gone(found, path, file)
            if living:
                if living.max() >= self._count(path, file):
                    raise NotDirect(f"the index has rows of {path} that it hasn't")
                kept = np.isin(rows[start:end], row_sets.as_array(living))
                there[path] = Rows(keys[start:end][kept], rows[start:end][kept])
        return there

    def _with_kept(
        self,
        found: VersionT,
        rows: pa.Table,
        kept: Mapping[str, npt.NDArray[np.bool_]],
        places: Mapping[str, Rows],
    ) -> pa.Table:
        """Return *rows* with the values of columns that changes left out as unchanged, from the
        rows as they were.

        Raises:
            NotDirect: a row is not there.
        """
        if not kept:
            return rows
        schema = pa.schema([rows.schema.field(name) for name in kept])
        wanted = np.logical_or.reduce(list(kept.values()))
        at, parts, read = np.full(len(rows), -1, dtype=np.int64), [], 0
        for path, those in places.items():
            needed = np.isin(those.keys, np.flatnonzero(wanted))
            order = np.argsort(those.at[needed], kind="stable")
            keys, positions = those.keys[needed][order], those.at[needed][order]
            # A key may have several places in the index that are the same row.
            positions, first = np.unique(positions, return_index=True)
            at[keys[first]] = read + np.arange(len(positions))
            read += len(positions)
            parts += list(self._read_at(found, found.files[path], schema, positions))
        if bool((at[wanted] < 0).any()):
            raise NotDirect("a row that was changed is not there")
        stored = pa.concat_tables(parts) if parts else schema.empty_table()
        for name, missing in kept.items():
            column = rows.column(name)
            both = pa.chunked_array([*column.chunks, *stored.column(name).chunks], column.type)
            take = np.where(missing, at + len(rows), np.arange(len(rows)))
            number = rows.schema.get_field_index(name)
            rows = rows.set_column(number, rows.schema.field(name), both.take(pa.array(take)))
        return rows

    def _appended(
        self, found: VersionT, rows: pa.Table, codes: Codes, shape: Shape, index: KeyIndex
    ) -> Iterator[tuple[str, FileT]]:
        """Write *rows*, a file for each partition; they are durable, and in the index, then."""
        for values, at in partitions.by_partition(rows, partitions.names(shape.made)):
            own = rows.take(pa.array(at)) if len(at) < len(rows) else rows
            with self._new_file(found, shape, values) as file:
                file.write(own.select(shape.columns.names).cast(shape.columns))
                action = file.close()
            index.add(file.name, codes.take(at), 0)
            self._rows[file.name] = file.rows
            yield file.name, action

    def _appended_in_pieces(
        self, found: VersionT, pieces: Iterator[pa.Table], shape: Shape, index: KeyIndex
    ) -> Iterator[tuple[str, FileT]]:
        """Write rows that come in *pieces*, as :meth:`_appended` does."""
        first = next(pieces, None)
        while first is not None:
            with self._new_file(found, shape, {}) as file:
                while first is not None and file.rows < _FILE_ROWS_MAX:
                    keys = index.coder.codes(first.select(list(shape.key)))
                    index.add(file.name, keys, file.rows)
                    file.write(first.select(shape.columns.names).cast(shape.columns))
                    first = next(pieces, None)
                action = file.close()
            self._rows[file.name] = file.rows
            yield file.name, action

    def _fold(
        self,
        files: Mapping[str, FileT],
        shape: Shape,
        held: Callable[[], AbstractContextManager[Any]],
    ) -> bool:
        """Make one file of *files*, which are of one partition; return whether it was done."""
        with self._lock:
            if not self._folding.isdisjoint(files):
                return False
            found = self.snapshot()
            if not files.keys() <= found.files.keys():
                return False
            index = self._cover(found, shape)
            before = [
                Source(path, file, self._gone(found, path, file).copy())
                for path, file in files.items()
            ]
            self._folding.update(files)
        new_name = ""
        try:
            values = dict(self._partition(before[0].file))
            sources = []
            with self._new_file(found, shape, values) as new:
                new_name = new.name
                for source in before:
                    sources.append(replace(source, first_row=new.rows))
                    for rows in self._read(found, source.file, shape.columns, source.gone):
                        keys = index.coder.codes(rows.select(list(shape.key)))
                        index.add(new_name, keys, new.rows)
                        new.write(rows)
                file = new.close()
            failpoint("lake.before_fold")
            with held(), self._lock:
                try:
                    done = self._put_in_place(sources, file, new_name, new.rows)
                except Lost:
                    done = False
                if not done:
                    self._abandon([new_name], index)
                elif index is self._index:
                    self._settle(index, [new_name])
        except BaseException:
            # The file is nobody's, or a commit that may be there names it; its rows are found then.
            index.drop(new_name)
            raise
        finally:
            with self._lock:
                self._folding.difference_update(files)
        failpoint("lake.after_fold")
        return done

    def _put_in_place(
        self, sources: Sequence[Source[FileT]], new: FileT, name: str, rows: int
    ) -> bool:
        """Commit a folded file; False: what it was made of is not there any more."""
        found = self.snapshot()
        gone = []
        for source in sources:
            file = found.files.get(source.path)
            if file is None:
                return False
            now = self._gone(found, source.path, file)
            if not source.gone <= now:
                return False
            went = row_sets.as_array(now - source.gone)
            # In the new file it is as many rows earlier as were gone before it.
            earlier = np.searchsorted(row_sets.as_array(source.gone), went)
            gone.append(went.astype(np.int64) - earlier + source.first_row)
        self._rows[name] = rows
        self._commit_fold(found, sources, new, name, row_sets.positions(np.concatenate(gone)))
        return True


_tables: OrderedDict[tuple[LakePath, str], PositionTable[Any, Any, Any]] = OrderedDict()
_tables_lock = threading.Lock()
TableT = TypeVar("TableT", bound=PositionTable[Any, Any, Any])


def only_table(
    lake: LakePath, folder: str, kind: type[TableT], made: Callable[[], TableT]
) -> TableT:
    """Return the table in *folder* of *lake*, this process's only one, which *made* makes."""
    with _tables_lock:
        table = _tables.get((lake, folder))
        if not isinstance(table, kind):
            table = _tables[lake, folder] = made()
        _tables.move_to_end((lake, folder))
        # One that is being folded has files of its index in hand: its turn comes later.
        idle = [key for key, each in _tables.items() if each is not table and not each.is_folding]
        closed = [_tables.pop(key) for key in idle[: max(0, len(_tables) - _TABLES_MAX)]]
    for each in closed:
        each.retire()
    return table


def _packed(sizes: Mapping[str, float]) -> Iterator[list[str]]:
    """Cut files, of so many bytes each, into groups of which each makes one file."""
    group: list[str] = []
    total = 0.0
    for path, own in sizes.items():
        if group and total + own > _FOLDED_BYTES:
            yield group
            group, total = [], 0
        group.append(path)
        total += own
    if group:
        yield group
