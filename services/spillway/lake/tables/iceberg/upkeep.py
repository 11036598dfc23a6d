"""Maintenance of Iceberg tables, as :mod:`spillway.lake.tables.maintenance` asks for it: without
Spark, one table at a time.

::

    small files  ──▶ larger ones                  a snapshot that says the LSN of the one before it
    old changes of history ──▶ gone               files of nothing else without being read
    snapshots that were superseded before the retention ──▶ expired
    files that nothing names any more, older than the retention ──▶ removed

A snapshot's age is that of the one that took its place: the newest that is older than a pinned LSN
may be years old, and stays. PyIceberg forgets snapshots and leaves their files; so the files that
the remaining snapshots name are gathered, and all others below the table's directories go once they
are older than any batch or reader takes.

Compaction beside an append of the job's loses the race for the commit and tries again; what it
wrote is good for that, as the files that it replaces are still there. Memory: a file.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from spillway.lake.shape.kinds import HISTORY
from spillway.lake.tables.iceberg import snapshots, types
from spillway.lake.tables.iceberg.files import DataFileWriter
from spillway.lake.tables.iceberg.merge import read_file, without
from spillway.lake.tables.iceberg.tables import data_directory
from spillway.storage.place import ObjectPath, stored_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from spillway.lake.tables.iceberg.files import Written
    from spillway.lake.tables.iceberg.tables import IcebergTables
    from spillway.storage.place import LakePath

#: Files below a quarter of what is made of them are made into larger ones.
_FILE_BYTES: Final = 128 << 20


class IcebergUpkeep:
    """What a round does with one table."""

    def __init__(self, tables: IcebergTables, kind: str, name: str) -> None:
        self._tables = tables
        self._kind = kind
        self._name = name

    def size(self) -> tuple[int, int]:
        """Return how many files the table has, and their bytes."""
        table = self._table()
        files, deletes = snapshots.live_files(table, table.current_snapshot())
        return len(files), sum(file.file_size_in_bytes for file in [*files, *deletes])

    def compact(self) -> None:
        """Make one file of small ones."""
        table = self._table()
        files, deletes = snapshots.live_files(table, table.current_snapshot())
        small = [file for file in files if file.file_size_in_bytes < _FILE_BYTES // 4]
        # Files of which rows are marked are folded instead.
        if deletes or len(small) < 2:
            return
        layout = types.file_schema(table.schema())
        writer = DataFileWriter(data_directory(table), layout, _FILE_BYTES)
        for file in small:
            writer.write(read_file(table, table.schema(), file).select(layout.names))
        self._replace(small, writer.close())

    def cut(self, before: datetime, upto_lsn: int) -> int:
        """Remove a history's changes that were committed before both; return how many."""
        assert self._kind == HISTORY  # rows of the others have no time
        table = self._table()
        old = pa.scalar(before, pa.timestamp("us", tz="UTC"))

        def is_old(rows: pa.Table) -> pa.ChunkedArray:
            return pc.and_(
                pc.less(rows.column("_commit_time"), old),
                pc.less(rows.column("_commit_lsn"), upto_lsn),
            )

        field = table.schema().find_field("_commit_time")
        oldest = [
            file
            for file in self._files(table)
            if snapshots.begins_before(file, field, _micros(before))
        ]
        gone, written, removed = without(table, oldest, is_old)
        if removed:
            self._replace(gone, written)
        return removed

    def expire(self, before: datetime) -> None:
        """Forget snapshots that were superseded before *before*, and remove files that are older
        and of no use.
        """
        table = self._table()
        millis = _micros(before) // 1000
        old, after = [], None
        for snapshot in snapshots.ancestors(table.metadata):
            if after is not None and after.timestamp_ms < millis:
                old.append(snapshot.snapshot_id)
            after = snapshot
        if old:
            self._tables.attempts(
                self._kind, self._name,
                lambda table: table.maintenance.expire_snapshots().by_ids(_known(table,
                                                                                 old)).commit(),
            )  # fmt: skip
        self._remove_files(before)

    def _remove_files(self, before: datetime) -> None:
        table = self._table()
        found = [
            entry
            for folder in ("data", "metadata")
            for entry, written in _files_below(stored_path(table.location()) / folder)
            if written < before.timestamp()
        ]
        if not found:
            return
        named = _named(table)
        for entry in found:
            if entry.name not in named:
                entry.unlink(missing_ok=True)

    def _replace(self, gone: list[DataFile], written: list[Written]) -> None:
        """Commit files in place of others, as of the same LSN."""

        def attempt(table: Table) -> None:
            newest = snapshots.last_commit(table.metadata, self._tables.slot_name)
            said = {} if newest is None else snapshots.said_again(newest)
            self._tables.replace(table, gone, written, said, {})

        self._tables.attempts(self._kind, self._name, attempt)

    def _table(self) -> Table:
        return self._tables.existing(self._kind, self._name)

    @staticmethod
    def _files(table: Table) -> list[DataFile]:
        return snapshots.data_files(table, table.current_snapshot())


def _files_below(folder: LakePath) -> Iterator[tuple[LakePath, float]]:
    """Yield all files below a folder, and when each was written, as a time stamp."""
    if isinstance(folder, ObjectPath):
        for entry, written in folder.objects():
            yield entry, written.timestamp()
        return
    for file in folder.glob("**/*"):
        if file.is_file():
            yield file, file.stat().st_mtime


def _known(table: Table, wanted: list[int]) -> list[int]:
    return [each for each in wanted if table.metadata.snapshot_by_id(each) is not None]


def _named(table: Table) -> set[str]:
    """Return the names, which are unique, of all files that the table or one of its snapshots
    needs.
    """
    metadata = table.metadata
    paths = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    paths |= {statistics.statistics_path for statistics in metadata.statistics}
    seen = set()
    for snapshot in metadata.snapshots:
        paths.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                paths |= {entry.data_file.file_path for entry in entries}
    return {path.rpartition("/")[2] for path in paths | seen}


def _micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
