"""Iceberg tables merged by position (:mod:`spillway.lake.tables.positions`): rows that are gone are
in files of position deletes.

::

    one snapshot: a data file of the batch's rows · a file of deletes for each data file that the
    batch touched, or one for all if they are many

Files of deletes of a data file are geometric: a new one takes in those that are not much larger, so
there are few, and a position is written a few times. Deletes of data files that are there no more
go when nothing else is in their file, or when another file takes it in. A snapshot has one manifest
of deletes, which has them all.

Nothing of the format is written by hand but the deletes themselves: the commit is PyIceberg's
(:class:`spillway.lake.tables.iceberg.snapshots.Replacing`).

Memory: the newest snapshot's files, and their rows that are gone, four bytes each at the most.
Maintenance folds a file of which a two-hundredth is gone.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException

from spillway.lake.tables import row_sets
from spillway.lake.tables.iceberg import position_deletes, snapshots, types
from spillway.lake.tables.iceberg.files import DataFileWriter, data_file, opened, stored_names
from spillway.lake.tables.plain_changes import NotDirect
from spillway.lake.tables.positions import Lost, PositionTable, Shape, Source
from spillway.lake.tables.stored_rows import rows_at, rows_of
from spillway.storage.place import stored_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt
    from pyiceberg.manifest import DataFile, ManifestEntry
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyroaring import BitMap

#: Data files that get a file of deletes each, which suits readers; where a batch touches more, they
#: have one together.
_EACH_MAX: Final = 32
#: A file of deletes takes in those before it that are not so many times as large.
_RATIO: Final = 3
_ONE_FILE: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Mark:
    """What a commit says of itself, in its snapshot and in the table's properties."""

    said: Mapping[str, str]
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version of a table."""

    table: Table
    #: which snapshot it is, and which columns the names are; a commit changes the table itself
    id: int | None
    schema: Schema
    files: Mapping[str, DataFile]
    #: files of deletes, by their paths
    deletes: Mapping[str, ManifestEntry]


@dataclass(frozen=True, slots=True)
class _Marked:
    """What a commit does beside adding rows."""

    gone: list[DataFile]
    deletes_gone: list[str]
    deletes: list[DataFile]
    #: what these say
    said: dict[str, dict[str, BitMap]]


class _NewFile:
    """See :class:`spillway.lake.tables.positions.NewFile`."""

    def __init__(self, writer: DataFileWriter, schema: Schema, layout: pa.Schema) -> None:
        self._writer = writer
        self._schema = schema
        self._layout = layout
        self.name = str(writer.path)
        self.rows = 0

    def write(self, rows: pa.Table) -> None:
        self._writer.write(rows.select(self._layout.names))
        self.rows += len(rows)

    def close(self) -> DataFile:
        written = self._writer.close()
        if not written:
            raise NotDirect("no row is left")
        return data_file(written[0], self._schema)


class IcebergPositionTable(PositionTable[Snapshot, "DataFile", Mark]):
    """See :class:`spillway.lake.tables.positions.PositionTable`."""

    #: Some readers pay for all rows of a data file when one of them is marked.
    gone_share_max = 0.005

    def __init__(
        self, load: Callable[[], Table], name: str, index: Path, checked: Callable[[], None]
    ) -> None:
        """*load* returns the table as it is; *checked* raises when this process may not write."""
        super().__init__(name, index)
        self._load = load
        self._may_write = checked
        self._snapshot: Snapshot | None = None
        self._manifests = snapshots.KnownManifests()
        #: what files of deletes say, and that by data files
        self._said: dict[str, dict[str, BitMap]] = {}
        self._all_gone: dict[str, BitMap] = {}

    def snapshot(self) -> Snapshot:
        with self._lock:
            if self._retired:
                raise NotDirect("the table was closed meanwhile")
            return self._as_of(self._load())

    def _as_of(self, table: Table) -> Snapshot:
        """Return the version that *table* has."""
        newest = table.current_snapshot()
        own = None if newest is None else newest.snapshot_id
        before = self._snapshot
        if before is not None and before.id == own:
            self._snapshot = replace(before, table=table, schema=table.schema())
            return self._snapshot
        files, deletes = self._manifests.entries(table, newest)
        for entry in deletes:
            position_deletes.check(entry.data_file, self._name)
        self._snapshot = Snapshot(
            table,
            own,
            table.schema(),
            {entry.data_file.file_path: entry.data_file for entry in files},
            {entry.data_file.file_path: entry for entry in deletes},
        )
        self._read_deletes(self._snapshot)
        return self._snapshot

    def _read_deletes(self, found: Snapshot) -> None:
        """Have in memory what the files of deletes say."""
        if self._said.keys() != found.deletes.keys():
            known, self._said = self._said, {}
            for path, entry in found.deletes.items():
                said = known.get(path)
                if said is None:
                    said = position_deletes.read(entry.data_file, self._name)
                self._said[path] = said
        gone: defaultdict[str, BitMap] = defaultdict(row_sets.NONE.copy)
        for said in self._said.values():
            for path, rows in said.items():
                if path in found.files:
                    gone[path] |= rows
        self._all_gone = dict(gone)

    def has_marks(self) -> bool:
        return bool(self.snapshot().deletes)

    def _forget(self) -> None:
        self._snapshot = None
        self._manifests = snapshots.KnownManifests()
        self._said, self._all_gone = {}, {}

    def _size(self, file: DataFile) -> int:
        return file.file_size_in_bytes

    def _count(self, _path: str, file: DataFile) -> int:
        return file.record_count

    def _gone(self, _found: Snapshot, path: str, _file: DataFile) -> BitMap:
        return self._all_gone.get(path, row_sets.NONE)

    def _gone_count(self, found: Snapshot, path: str, file: DataFile) -> int:
        return len(self._gone(found, path, file))

    def _indexed_columns(self, found: Snapshot, shape: Shape) -> list[tuple[str, pa.DataType]]:
        """See the class; a file stays when its columns get other names, and ids stay theirs."""
        return [
            (f"{found.schema.find_field(name).field_id} {name}", type_)
            for name, type_ in shape.key_types
        ]

    def _read(
        self, found: Snapshot, file: DataFile, schema: pa.Schema, without: BitMap | None
    ) -> Iterator[pa.Table]:
        fields = _fields(found, schema.names)
        with opened(file) as parquet:
            for rows in rows_of(parquet, fields, stored_names(parquet, fields), without):
                yield rows.cast(schema)

    def _read_at(
        self, found: Snapshot, file: DataFile, schema: pa.Schema, at: npt.NDArray[np.int64]
    ) -> Iterator[pa.Table]:
        fields = _fields(found, schema.names)
        with opened(file) as parquet:
            for rows in rows_at(parquet, fields, stored_names(parquet, fields), at):
                yield rows.cast(schema)

    @contextmanager
    def _new_file(
        self, found: Snapshot, shape: Shape, _partition: Mapping[str, str | None]
    ) -> Iterator[_NewFile]:
        layout = _fields(found, shape.columns.names)
        writer = DataFileWriter(stored_path(found.table.location()) / "data", layout, _ONE_FILE)
        try:
            yield _NewFile(writer, found.schema, layout)
        except BaseException:
            writer.remove()
            raise

    def _remove(self, path: str) -> None:
        stored_path(path).unlink(missing_ok=True)

    def _marked(self, found: Snapshot, gone: Mapping[str, BitMap | None]) -> _Marked:
        """See the class; data files of which no row is left go."""
        removed, marked = [], {}
        for path, rows in gone.items():
            file = found.files[path]
            if rows is None or len(rows) + len(self._gone(found, path, file)) >= file.record_count:
                removed.append(file)
            else:
                marked[path] = rows
        return self._with_deletes(found, removed, marked)

    def _with_deletes(
        self, found: Snapshot, removed: list[DataFile], marked: dict[str, BitMap]
    ) -> _Marked:
        """Write *marked*, together with small files of deletes where there are many."""
        left = found.files.keys() - {file.file_path for file in removed}
        # Rows of files that this very commit adds are marked, too: a fold's.
        left |= marked.keys()
        dropped = {path for path, said in self._said.items() if left.isdisjoint(said)}
        if len(marked) <= _EACH_MAX:
            new = [self._absorbing({path: rows}, left, dropped) for path, rows in marked.items()]
        else:
            new = [self._absorbing(marked, left, dropped)]
        files = position_deletes.write(stored_path(found.table.location()) / "data", new)
        said = {file.file_path: rows for file, rows in zip(files, new, strict=True)}
        return _Marked(removed, sorted(dropped), files, said)

    def _absorbing(
        self, marked: Mapping[str, BitMap], left: AbstractSet[str], dropped: set[str]
    ) -> dict[str, BitMap]:
        """Return *marked*, with what files of the same scope say that are not much larger; these
        are *dropped*.
        """
        together = dict(marked)
        is_one = len(marked) == 1
        scope = [
            (sum(map(len, said.values())), path)
            for path, said in self._said.items()
            if path not in dropped and (said.keys() == marked.keys() if is_one else len(said) > 1)
        ]
        for rows, path in sorted(scope):
            if rows > _RATIO * sum(map(len, together.values())):
                break
            dropped.add(path)
            for name, gone in self._said[path].items():
                if name in left:
                    together[name] = together.get(name, row_sets.NONE) | gone
        return together

    def _commit(
        self, found: Snapshot, marked: _Marked, files: Sequence[DataFile], mark: Mark
    ) -> int:
        return self._committed(found, marked, files, mark.said, mark.properties)

    def _commit_fold(
        self,
        found: Snapshot,
        sources: Sequence[Source[DataFile]],
        new: DataFile,
        name: str,
        gone: BitMap,
    ) -> None:
        removed = [found.files[source.path] for source in sources]
        is_left = len(gone) < new.record_count
        marked = {name: gone} if gone and is_left else {}
        slot = found.table.properties.get(snapshots.SLOT, "")
        newest = snapshots.last_commit(found.table.metadata, slot)
        said = {} if newest is None else snapshots.said_again(newest)
        self._committed(
            found, self._with_deletes(found, removed, marked), [new] if is_left else [], said, {}
        )

    def _committed(
        self,
        found: Snapshot,
        marked: _Marked,
        files: Sequence[DataFile],
        said: Mapping[str, str],
        properties: Mapping[str, str],
    ) -> int:
        table = found.table
        kept = [entry for path, entry in found.deletes.items() if path not in marked.deletes_gone]
        dropped = [found.deletes[path] for path in marked.deletes_gone]
        try:
            with snapshots.Committing(table) as transaction:
                transaction.set_properties(dict(properties))
                deletes = snapshots.Deletes(kept, dropped, marked.deletes)
                snapshots.Replacing(transaction, table, said, marked.gone, files, deletes).commit()
                self._may_write()
        except CommitFailedException as error:
            raise Lost(str(error)) from error
        self._said |= marked.said
        self._as_of(table)
        newest = table.current_snapshot()
        assert newest is not None  # it was just made
        return newest.sequence_number or 0


def _fields(found: Snapshot, names: Sequence[str]) -> pa.Schema:
    """Return columns as the table's files have them, with their ids."""
    schema = types.file_schema(found.schema)
    return pa.schema([schema.field(name) for name in names])
