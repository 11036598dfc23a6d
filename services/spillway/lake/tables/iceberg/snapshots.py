"""Snapshots of an Iceberg table: which LSN each goes up to, which files it has, and how one is
committed.

A commit of a batch says in its snapshot's summary whose it is and up to which LSN::

    spillway.slot = orders
    spillway.start-lsn = 0/16B3748
    spillway.end-lsn = 0/16B9A10
    spillway.batch-id = 7

The newest snapshot that says so among the ancestors of the table's head is what is durable. What
others commit in between (compaction by another engine) says nothing and hides nothing; a table that
was rolled back has what it was rolled back to. Where all snapshots that said so are expired, the
table's property of the same name, set in the same commit, still does.

A commit is PyIceberg's: manifests, a manifest list, the table's metadata, and the catalog's
compare-and-swap of it. Retries are ours: a batch is compared with what the table has before each
attempt. :class:`Replacing` differs from PyIceberg's overwrite in what it carries over: not the
manifests whose files are all gone, which would be one more with each commit for ever; and in that
it can add and remove files of deletes, which the library reads and does not write. What it takes of
the library's own: the hooks of its producer of snapshots (``_existing_manifests``,
``_process_manifests``, ``_summary``), its writer of manifests and its merging of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import (
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation, Summary, ancestors_of
from pyiceberg.table.update.snapshot import (
    _ManifestMergeManager,
    _MergeAppendFiles,
    _OverwriteFiles,
)

from spillway.errors import LakeError, LakeTableConflict
from spillway.lake.tables.iceberg import position_deletes
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.types import NestedField

    from spillway.lake.tables.contract import Batch

SLOT: Final = "spillway.slot"
END: Final = "spillway.end-lsn"
_START: Final = "spillway.start-lsn"
_BATCH: Final = "spillway.batch-id"
#: Of a commit whose rows are those of the batch that comes next, all but for it.
RESHAPE: Final = "spillway.reshape"
#: So many manifests of data files are made one.
_MANIFESTS_MAX: Final = 30
_MANIFEST_BYTES: Final = 8 << 20


def mark(batch: Batch) -> dict[str, str]:
    """Return what a batch's commit says in its summary."""
    return {
        SLOT: batch.slot_name,
        _START: str(Lsn(batch.start_lsn)),
        END: str(Lsn(batch.end_lsn)),
        _BATCH: str(batch.batch_id),
    }


def said_again(snapshot: Snapshot) -> dict[str, str]:
    """Return what a snapshot said, for another one of the same LSN."""
    assert snapshot.summary is not None  # it said something
    kept = ((name, snapshot.summary.get(name)) for name in (SLOT, _START, END, _BATCH))
    return {name: str(value) for name, value in kept if value is not None}


def lsn_of(snapshot: Snapshot, slot_name: str) -> int | None:
    """Return the LSN that a snapshot says it goes up to."""
    summary = snapshot.summary
    if summary is None or summary.get(SLOT) != slot_name or summary.get(END) is None:
        return None
    return int(Lsn.parse(str(summary.get(END))))


def ancestors(metadata: TableMetadata) -> Iterator[Snapshot]:
    """Yield the snapshots that the table came by, the newest first, as far as they are kept."""
    yield from ancestors_of(metadata.current_snapshot(), metadata)


def durable_lsn(metadata: TableMetadata, slot_name: str) -> int:
    """Return the LSN that a table goes up to; 0 when no commit said so."""
    oldest: Snapshot | None = None
    for oldest in ancestors(metadata):
        lsn = lsn_of(oldest, slot_name)
        if lsn is not None:
            return lsn
    stored = metadata.properties.get(END)
    return int(Lsn.parse(stored)) if stored and _is_cut_off(oldest) else 0


def _is_cut_off(oldest: Snapshot | None) -> bool:
    """Say whether there were snapshots before the oldest that is kept; some writers forget the
    parent with them.
    """
    return oldest is not None and (
        oldest.parent_snapshot_id is not None or (oldest.sequence_number or 0) > 1
    )


def last_commit(metadata: TableMetadata, slot_name: str) -> Snapshot | None:
    """Return the newest snapshot that says up to which LSN it goes."""
    return next((s for s in ancestors(metadata) if lsn_of(s, slot_name) is not None), None)


def snapshot_at(table: Table, slot_name: str, lsn: int) -> Snapshot | None:
    """Return the snapshot that a table had when it was as of *lsn*; None: it had none then.

    It is the last one before the job's next commit: what others did in between is in it.

    Raises:
        LakeError: the snapshots of then are expired.
    """
    found: Snapshot | None = None
    oldest: Snapshot | None = None
    for oldest in ancestors(table.metadata):
        if oldest.summary is not None and oldest.summary.get(RESHAPE):
            # It belongs to the batch that comes after it.
            found = None
            continue
        found = oldest if found is None else found
        up_to = lsn_of(oldest, slot_name)
        if up_to is not None:
            if up_to <= lsn:
                return found
            found = None
    if _is_cut_off(oldest):
        raise LakeError(
            f"{'.'.join(table.name())} does not remember what it was at {Lsn(lsn)}",
            hint="Snapshots go with --retention: read a later LSN, or keep them longer.",
            relation=table.name()[-1],
            lsn=str(Lsn(lsn)),
        )
    return None


class KnownManifests:
    """Entries of manifests, which never change: those of the last snapshot that was asked for are
    kept.
    """

    def __init__(self) -> None:
        self._entries: dict[str, list[ManifestEntry]] = {}

    def entries(
        self, table: Table, snapshot: Snapshot | None
    ) -> tuple[list[ManifestEntry], list[ManifestEntry]]:
        """Return the entries of a snapshot's data files, and of its files of deletes."""
        known, self._entries = self._entries, {}
        files: list[ManifestEntry] = []
        deletes: list[ManifestEntry] = []
        for manifest in [] if snapshot is None else snapshot.manifests(table.io):
            if _lives(manifest):
                path = manifest.manifest_path
                entries = known.get(path)
                if entries is None:
                    entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                self._entries[path] = entries
                (files if manifest.content == ManifestContent.DATA else deletes).extend(entries)
        return files, deletes


def live_files(table: Table, snapshot: Snapshot | None) -> tuple[list[DataFile], list[DataFile]]:
    """Return a snapshot's data files, and its files of deletes.

    Raises:
        LakeTableConflict: deletes are of a kind that is not read here.
    """
    files, deletes = KnownManifests().entries(table, snapshot)
    for entry in deletes:
        position_deletes.check(entry.data_file, ".".join(table.name()))
    return [entry.data_file for entry in files], [entry.data_file for entry in deletes]


def has_deletes(table: Table) -> bool:
    """Say whether rows of a table are marked as deleted."""
    newest = table.current_snapshot()
    manifests = [] if newest is None else newest.manifests(table.io)
    return any(m.content != ManifestContent.DATA and _lives(m) for m in manifests)


def everything(table: Table) -> tuple[list[DataFile], Deletes]:
    """Return all data files of a table, and that its files of deletes go with them."""
    files, deletes = KnownManifests().entries(table, table.current_snapshot())
    return [entry.data_file for entry in files], Deletes(gone=deletes)


def data_files(table: Table, snapshot: Snapshot | None) -> list[DataFile]:
    """Return a snapshot's data files, of a table that rows are only added to.

    Raises:
        LakeTableConflict: rows are marked as deleted.
    """
    files, deletes = live_files(table, snapshot)
    if deletes:
        raise LakeTableConflict(
            f"{'.'.join(table.name())} has delete files, and rows are only ever added to it",
            hint="Another engine deleted rows by merge-on-read. Let it rewrite the data files, "
            "with 'write.delete.mode' = 'copy-on-write' from now on.",
            relation=table.name()[-1],
        )
    return files


def may_have(file: DataFile, field: NestedField, value: int) -> bool:
    """Say whether a file can have a row with *value* in a column of integers, by its bounds."""
    high = _bound(file.upper_bounds, field)
    return begins_before(file, field, value + 1) and (high is None or value <= high)


def begins_before(file: DataFile, field: NestedField, value: int) -> bool:
    """Say whether a file can have a row with less than *value* in a column of integers or times."""
    low = _bound(file.lower_bounds, field)
    return low is None or low < value


def _bound(bounds: Mapping[int, bytes] | None, field: NestedField) -> int | None:
    value = (bounds or {}).get(field.field_id)
    return None if value is None else int(from_bytes(field.field_type, value))  # type: ignore[arg-type]


def added_after(table: Table, slot_name: str, lsn: int) -> list[DataFile] | None:
    """Return the files that were added by commits that go beyond *lsn*; None: it can't be told from
    the snapshots.

    Only appends are followed: with anything else among them, files were written anew.
    """
    added: list[DataFile] = []
    for snapshot in ancestors(table.metadata):
        up_to = lsn_of(snapshot, slot_name)
        if up_to is not None and up_to <= lsn:
            return added
        if snapshot.summary is None or snapshot.summary.operation != Operation.APPEND:
            return None
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            added += [
                entry.data_file
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                if entry.snapshot_id == snapshot.snapshot_id
                and entry.status == ManifestEntryStatus.ADDED
            ]
        if snapshot.parent_snapshot_id is None and not _is_cut_off(snapshot):
            return added
    return None


class Committing(Transaction):
    """A transaction that reckons the table's metadata once for each step. The library's does
    whenever it is looked at, some twenty times in a commit, and copies each snapshot for it.
    """

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._reckoned: tuple[Any, Any, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        of, updates = self._table.metadata, self._updates
        known = self._reckoned
        if known is not None and known[0] is of and known[1] is updates:
            return known[2]
        metadata = super().table_metadata
        self._reckoned = of, updates, metadata
        return metadata


@dataclass(frozen=True, slots=True)
class Deletes:
    """What becomes of a table's files of deletes."""

    kept: Sequence[ManifestEntry] = ()
    gone: Sequence[ManifestEntry] = ()
    added: Sequence[DataFile] = ()


class _DeletesWriter(ManifestWriterV2):
    """Writes a manifest of deletes, which the library has no writer for."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class Replacing(_OverwriteFiles):
    """Some files in place of others, and files of deletes; these stay what they are unless
    *deletes* says what becomes of them.
    """

    def __init__(
        self,
        transaction: Transaction,
        table: Table,
        said: Mapping[str, str],
        gone: Iterable[DataFile],
        added: Iterable[DataFile],
        deletes: Deletes | None = None,
    ) -> None:
        there = transaction.table_metadata.current_snapshot() is not None
        gone, self._deletes = list(gone), deletes
        only_adds = not gone and (deletes is None or not (deletes.gone or deletes.added))
        super().__init__(
            Operation.OVERWRITE if there and not only_adds else Operation.APPEND,
            transaction,
            table.io,
            snapshot_properties=dict(said),
        )
        if gone:
            # Tables of a lake are not partitioned: each manifest may have files that go.
            self.delete_by_predicate(AlwaysTrue())
        for file in gone:
            self.delete_data_file(file)
        for file in added:
            self.append_data_file(file)

    def _existing_manifests(self) -> list[ManifestFile]:
        found = [m for m in super()._existing_manifests() if _lives(m)]
        if self._deletes is None:
            return found
        changed = self._deletes.gone or self._deletes.added
        return [m for m in found if m.content == ManifestContent.DATA or not changed]

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        data = [m for m in manifests if m.content == ManifestContent.DATA]
        others = [m for m in manifests if m.content != ManifestContent.DATA]
        joined = _ManifestMergeManager(_MANIFEST_BYTES, _MANIFESTS_MAX, True, self)
        return joined.merge_manifests(data) + others + self._manifest_of_deletes()

    def _manifest_of_deletes(self) -> list[ManifestFile]:
        deletes = self._deletes
        if deletes is None or not (deletes.gone or deletes.added):
            return []
        metadata = self._transaction.table_metadata
        with _DeletesWriter(
            metadata.spec(), metadata.schema(), self.new_manifest_output(), self._snapshot_id,
            self._compression,
        ) as writer:  # fmt: skip
            for entry in deletes.kept:
                writer.existing(entry)
            for entry in deletes.gone:
                writer.delete(entry)
            for file in deletes.added:
                writer.add_entry(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=file,
                    )
                )
        return [writer.to_manifest_file()]

    def _summary(self, snapshot_properties: Mapping[str, str] = MappingProxyType({})) -> Summary:
        """Count files of deletes, too: the library counts what it adds and removes."""
        added, deleted = self._added_data_files, self._deleted_data_files
        if self._deletes is not None:
            self._added_data_files = [*added, *self._deletes.added]
            gone = {entry.data_file for entry in self._deletes.gone}
            self._deleted_data_files = {*deleted, *gone}
        try:
            return super()._summary(dict(snapshot_properties))
        finally:
            self._added_data_files, self._deleted_data_files = added, deleted


class Appending(_MergeAppendFiles):
    """More files. Manifests are joined when there are many."""

    def __init__(
        self,
        transaction: Transaction,
        table: Table,
        said: Mapping[str, str],
        added: Iterable[DataFile],
    ) -> None:
        super().__init__(
            Operation.APPEND, transaction, table.io, snapshot_properties=dict(said)
        )  # fmt: skip
        for file in added:
            self.append_data_file(file)


def _lives(manifest: ManifestFile) -> bool:
    return manifest.has_added_files() or manifest.has_existing_files()
