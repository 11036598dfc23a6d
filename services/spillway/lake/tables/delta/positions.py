"""Delta tables merged by position (:mod:`spillway.lake.tables.positions`): rows that are gone are
marked in deletion vectors.

::

    one commit: txn · remove + add of each touched file, with its new vector · add of the new rows'

What a table must have been given for it, the feature ``deletionVectors``, comes with the first such
commit.

The log is read and written by :mod:`spillway.lake.tables.delta.log`; checkpoints and the removal
of old log entries are delta-rs', as before.

Memory: the log's newest version; vectors of touched files, :data:`_VECTORS_MAX` positions of them.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spillway.lake.tables import row_sets
from spillway.lake.tables.delta import deletion_vectors, log
from spillway.lake.tables.delta.data_files import (
    DataFile,
    file_path,
    names_of,
    opened,
    row_count,
)
from spillway.lake.tables.delta.log import Action, Snapshot
from spillway.lake.tables.plain_changes import NotDirect
from spillway.lake.tables.positions import PositionTable, Shape, Source, only_table
from spillway.lake.tables.stored_rows import rows_at, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    from pyroaring import BitMap

    from spillway.storage.place import LakePath

FEATURE: Final = "deletionVectors"
_PROPERTY: Final = "delta.enableDeletionVectors"
#: Features that ask nothing of who merges so, or are kept here.
_FEATURES: Final = frozenset({"appendOnly", "invariants", "timestampNtz", FEATURE})
#: What a table has whose protocol lists no features.
_LEGACY_FEATURES: Final = ("appendOnly", "invariants")
_READER, _WRITER = 3, 7
#: Commits between two checkpoints, unless the table says so.
_CHECKPOINT_INTERVAL: Final = 20
#: Positions of vectors in memory, of one table.
_VECTORS_MAX: Final = 8_000_000


@dataclass(frozen=True, slots=True)
class Mark:
    """What a commit says of itself."""

    application: str
    version: int
    user_metadata: str


class DeltaPositionTable(PositionTable[Snapshot, Action, Mark]):
    """See :class:`spillway.lake.tables.positions.PositionTable`."""

    def __init__(self, table: LakePath, index: Path) -> None:
        super().__init__(str(table), index)
        self._table = table
        self._snapshot: Snapshot | None = None
        #: of files: what names their vectors, and these
        self._vectors: OrderedDict[str, tuple[Any, BitMap]] = OrderedDict()

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
            log.check_known(found, _FEATURES)
            self._snapshot = found
            return found

    def has_marks(self) -> bool:
        return FEATURE in self.snapshot().features

    def checkpoint(self, *, is_due: bool = False) -> bool:
        """Write a checkpoint if it is time, or is said to be, and let old log entries go; return
        whether it was done.

        Raises:
            DeltaError, OSError: it could not be written; the next commit tries again.
        """
        with self._lock:
            found = self._snapshot
            if found is None:
                return False
            return log.checkpoint(self._table, found, _CHECKPOINT_INTERVAL, is_due=is_due)

    def _forget(self) -> None:
        self._snapshot = None
        self._vectors.clear()

    def _size(self, file: Action) -> int:
        return int(file["size"])

    def _count(self, path: str, file: Action) -> int:
        if path not in self._rows:
            self._rows[path] = row_count(self._table, file)
        return self._rows[path]

    def _partition(self, file: Action) -> tuple[Any, ...]:
        return tuple(sorted((file.get("partitionValues") or {}).items()))

    def _read(
        self, _found: Snapshot, file: Action, schema: pa.Schema, without: BitMap | None
    ) -> Iterator[pa.Table]:
        with opened(file_path(self._table, file)) as parquet:
            yield from rows_of(parquet, schema, names_of(parquet, schema), without)

    def _read_at(
        self, _found: Snapshot, file: Action, schema: pa.Schema, at: npt.NDArray[np.int64]
    ) -> Iterator[pa.Table]:
        with opened(file_path(self._table, file)) as parquet:
            yield from rows_at(parquet, schema, names_of(parquet, schema), at)

    def _new_file(
        self, _found: Snapshot, shape: Shape, partition: Mapping[str, str | None]
    ) -> DataFile:
        return DataFile(self._table, shape.columns, shape.key, partition)

    def _remove(self, path: str) -> None:
        (self._table / path).unlink(missing_ok=True)

    def _marked(self, found: Snapshot, gone: Mapping[str, BitMap | None]) -> list[Action]:
        vectors = {}
        for path, rows in gone.items():
            if rows is not None:
                file = found.files[path]
                after = self._gone(found, path, file) | rows
                if len(after) < self._count(path, file):
                    vectors[path] = after
        descriptors = deletion_vectors.write(self._table, vectors)
        actions: list[Action] = []
        for path in gone:
            file = found.files[path]
            actions.append(log.removal(file, data_change=True))
            if path in descriptors:
                self._remember(path, descriptors[path], vectors[path])
                actions.append({"add": self._with_vector(file, descriptors[path])})
        return actions

    def _commit(self, found: Snapshot, marked: Any, files: Sequence[Action], mark: Mark) -> int:
        actions = [
            log.transaction(mark.application, mark.version),
            log.commit_info("MERGE", mark.user_metadata),
            *_upgrade(found),
            *marked,
        ]
        log.commit(self._table, found, [*actions, *({"add": file} for file in files)])
        return found.version

    def _commit_fold(
        self,
        found: Snapshot,
        sources: Sequence[Source[Action]],
        new: Action,
        name: str,
        gone: BitMap,
    ) -> None:
        actions = [log.commit_info("OPTIMIZE", None)]
        actions += [log.removal(found.files[source.path], data_change=False) for source in sources]
        if len(gone) < self._rows[name]:
            if gone:
                descriptor = deletion_vectors.write(self._table, {name: gone})[name]
                self._remember(name, descriptor, gone)
                new = self._with_vector(new, descriptor)
            actions.append({"add": {**new, "dataChange": False}})
        log.commit(self._table, found, actions)

    def _with_vector(self, file: Action, descriptor: Action) -> Action:
        stats = json.loads(file.get("stats") or "{}")
        stats["numRecords"] = self._count(file["path"], file)
        # Bounds of all its rows, those that are gone too.
        stats["tightBounds"] = False
        text = json.dumps(stats, separators=(",", ":"))
        return {**file, "stats": text, "dataChange": True, "deletionVector": descriptor}

    def _gone(self, _found: Snapshot, path: str, file: Action) -> BitMap:
        descriptor = file.get("deletionVector")
        if descriptor is None:
            return row_sets.NONE
        known = self._vectors.get(path)
        if known is None or known[0] != descriptor:
            self._remember(path, descriptor, deletion_vectors.read(self._table, descriptor))
        else:
            self._vectors.move_to_end(path)
        return self._vectors[path][1]

    def _gone_count(self, _found: Snapshot, _path: str, file: Action) -> int:
        return int((file.get("deletionVector") or {}).get("cardinality", 0))

    def _remember(self, path: str, descriptor: Action, vector: BitMap) -> None:
        self._vectors[path] = descriptor, vector
        self._vectors.move_to_end(path)
        while len(self._vectors) > 1 and (
            sum(len(each) for _, each in self._vectors.values()) > _VECTORS_MAX
        ):
            self._vectors.popitem(last=False)


def position_table(lake: LakePath, folder: str, index: Path) -> DeltaPositionTable:
    """Return the table in *folder* of *lake*, this process's only one; its index is in *index*."""
    path = lake
    for part in folder.split("/"):
        path = path / part
    return only_table(lake, folder, DeltaPositionTable, lambda: DeltaPositionTable(path, index))


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
