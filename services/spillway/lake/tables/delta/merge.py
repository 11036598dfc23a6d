"""A batch's plain changes merged into a Delta table without a Spark job: by delta-rs.

::

    history's files of the batch ──▶ last change per key (:mod:`spillway.lake.tables.plain_changes`)
        ──▶ MERGE by delta-rs (the library `deltalake`) ──▶ one commit

MERGE in Spark does the same by nine jobs of 50 to 300 ms, and as many plans, classes compiled for
each, and snapshots of the log: 3 to 4 s for a batch of any size. delta-rs has no JVM to wait for: a
batch of 5,000 changes takes less than a tenth of a second. The log, the data files with their
statistics, the check for conflicts, checkpoints and the cleaning of the log are the library's; ours
is what it leaves to its caller:

- It accepts a transaction version that the table has already: the caller compares before
  (:meth:`DeltaTables.merge_plain`).
- It reads INT96 timestamps, Spark's default, as nanoseconds, and so turns the years beyond 1677 and
  2262 into others. Our session doesn't write them, another one that runs OPTIMIZE may: files are
  looked at once (:func:`check_files`).
- It writes the statistics of decimals as doubles, and a maximum that leaves NaN out, which Spark
  takes for the greatest value: readers would leave out files that hold what they look for. So
  columns have statistics where these are exact
  (:func:`~spillway.lake.tables.delta.data_files.has_statistics`).
- It commits no merge that changes nothing, and a commit is what says that the table has the batch
  (:func:`merge`).
- It doesn't sync. :func:`sync_commit` does, after the commit and before anybody says that the batch
  is durable. A power failure between the two can leave a commit that names a file which isn't
  whole, as it can with Spark's commits.
- Its local paths are URLs that are decoded once too often: :func:`open_table` refuses those that
  would not come out the same.

What can't be merged so is left to Spark by raising
:class:`~spillway.lake.tables.plain_changes.NotDirect`, with nothing done: tables with features that
ask more of a writer, files that delta-rs would misread. The table streams through delta-rs, which
keeps to :data:`_MERGE_BYTES`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import ColumnProperties, DeltaTable, WriterProperties

from spillway.lake.shape.net_effect import SET, own, quoted
from spillway.lake.tables import partitions
from spillway.lake.tables.delta.data_files import has_statistics
from spillway.lake.tables.plain_changes import NotDirect
from spillway.storage.durable_files import sync_directory, sync_file
from spillway.storage.place import ObjectPath, lake_path, storage_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deltalake import CommitProperties

    from spillway.lake.tables.plain_changes import LastChanges
    from spillway.storage.place import LakePath

#: What the operators of a merge may hold; beyond it they spill.
_MERGE_BYTES: Final = 256 << 20
#: Smaller files are small, and so many of them are made into files of the second size.
_SMALL_BYTES: Final = 8 << 20
_SMALL_FILES_MAX: Final = 24
_COMPACTED_BYTES: Final = 32 << 20
#: Table features that ask nothing of who merges, or are tested here.
_FEATURES: Final = frozenset({"appendOnly", "invariants", "timestampNtz"})
#: What asks more of who reads its files, and read_changes gives it: a history whose columns became
#: wider.
_READ_FEATURES: Final = _FEATURES | {"typeWidening"}
#: Writer versions up to it know no other features.
_LEGACY_WRITER: Final = 2
#: Paths that are the same after they were URLs.
_PLAIN_PATH: Final = re.compile(r"[\w/.~ ,:=@+-]+")


def open_table(path: LakePath, *, to_write: bool = True) -> DeltaTable:
    """Load the newest version of the table at *path*.

    Raises:
        NotDirect: the path or the table is not for delta-rs.
    """
    check_path(path)
    where = path.absolute()
    table = DeltaTable(str(where), storage_options=storage_options(where))
    check_table(table, to_write=to_write)
    return table


def check_path(path: LakePath) -> None:
    """Refuse a path that is another one to delta-rs.

    Raises:
        NotDirect: it is.
    """
    where = path.absolute()
    if not _PLAIN_PATH.fullmatch(where.key if isinstance(where, ObjectPath) else str(where)):
        raise NotDirect("the path has special characters")


def check_table(table: DeltaTable, *, to_write: bool = True) -> None:
    """Refuse a table that asks for more than is done here.

    Raises:
        NotDirect: it does.
    """
    protocol = table.protocol()
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    beyond = features - (_FEATURES if to_write else _READ_FEATURES)
    if beyond:
        raise NotDirect(f"table features {', '.join(sorted(beyond))}")
    if protocol.min_writer_version > _LEGACY_WRITER and protocol.writer_features is None:
        raise NotDirect(f"writer version {protocol.min_writer_version}")
    made = partitions.made_with(fields_of(table))
    if partitions.names(made) != table.metadata().partition_columns:
        raise NotDirect("partitions that are not ours")


def fields_of(table: DeltaTable) -> list[dict[str, Any]]:
    """Return the table's fields as its log has them."""
    fields: list[dict[str, Any]] = json.loads(table.schema().to_json())["fields"]
    return fields


def files_of(table: DeltaTable, predicate: str | None = None) -> set[LakePath]:
    """Return the table's files, those only, by their statistics, that can have rows of
    *predicate*.
    """
    uris = table.file_uris(file_pruning_predicate=predicate)
    return {lake_path(unquote(uri)) for uri in uris}


def check_files(files: Iterable[LakePath]) -> None:
    """Refuse files that delta-rs would misread.

    Raises:
        NotDirect: there are timestamps of the type INT96 among them.
    """
    for path in files:
        opened = path.open_reader() if isinstance(path, ObjectPath) else path
        with pq.ParquetFile(opened) as parquet:
            columns = (parquet.schema.column(i) for i in range(len(parquet.schema)))
            if any(column.physical_type == "INT96" for column in columns):
                raise NotDirect(f"{path.name} has timestamps of type INT96")


def merge(
    table: DeltaTable, changes: LastChanges, key: Sequence[str], commit: CommitProperties
) -> None:
    """Commit *changes*, of :func:`last_changes`, to *table*, which is at the new version then.

    Raises:
        deltalake.exceptions.CommitFailedError: another one committed first; nothing is done.
    """
    names = changes.rows.column_names
    values = {quoted(name): f"s.{quoted(own(name))}" for name in names}
    source = changes.rows.rename_columns([own(name) for name in names])
    is_set = f"s.{quoted(SET)}"
    version = table.version()
    merger = table.merge(
        source.append_column(SET, changes.is_set),
        " AND ".join(f"t.{quoted(name)} = s.{quoted(own(name))}" for name in key),
        source_alias="s",
        target_alias="t",
        # The changes are in memory anyway; known to delta-rs, their range of keys leaves files out.
        streamed_exec=False,
        max_spill_size=_MERGE_BYTES,
        writer_properties=writer_properties(changes.rows.schema),
        commit_properties=commit,
    )
    merger = merger.when_matched_update(values, is_set).when_matched_delete(f"NOT {is_set}")
    merger.when_not_matched_insert(values, is_set).execute()
    if table.version() == version:
        # Rows that came and went: delta-rs commits nothing then, and the table is to say all the
        # same how far it is.
        _commit_nothing(table, commit)


def _commit_nothing(table: DeltaTable, commit: CommitProperties) -> None:
    """Make a commit without files, which says what *commit* does; *table* is at it then.

    Raises:
        deltalake.exceptions.CommitFailedError: another one committed first; nothing is done.
    """
    partition_by = table.metadata().partition_columns
    table.create_write_transaction(
        [], "append", table.schema(), partition_by, commit_properties=commit
    )
    table.update_incremental()


def compact(table: DeltaTable, schema: pa.Schema) -> bool:
    """Make one file of small ones, in a commit of its own, if there are many; return whether it was
    done.

    With fewer, more would be written again and again; with more, each batch looks at more files.
    """
    files = pa.table(table.get_add_actions(flatten=True))
    small = files.filter(pc.less(files.column("size_bytes"), _SMALL_BYTES))
    # A partition's only small file has none to be joined with.
    by = [name for name in small.column_names if name.startswith("partition.")]
    alone = len(small.group_by(by).aggregate([])) if by else min(len(small), 1)
    if len(small) - alone < _SMALL_FILES_MAX:
        return False
    table.optimize.compact(
        target_size=_COMPACTED_BYTES, writer_properties=writer_properties(schema)
    )
    return True


def sync_commit(table: LakePath, version: int, files: Iterable[LakePath]) -> None:
    """Make *files* and the log from *version* on durable; objects are when they are there."""
    if isinstance(table, ObjectPath):
        return
    log = table / "_delta_log"
    written = [path for path in files if isinstance(path, Path)]
    # Names begin with the version; that of the hint to the last checkpoint sorts behind.
    written += [path for path in log.iterdir() if path.name >= f"{version:020d}" and path.is_file()]
    for path in written:
        sync_file(path)
    # A partition's directory may be new, too.
    for folder in {table, *(path.parent for path in written)}:
        sync_directory(folder)


def writer_properties(schema: pa.Schema) -> WriterProperties:
    """Return how files of *schema* are written: see the module."""
    exact = ColumnProperties(statistics_enabled="CHUNK")
    return WriterProperties(
        compression="SNAPPY",
        default_column_properties=ColumnProperties(statistics_enabled="NONE"),
        column_properties={f.name: exact for f in schema if has_statistics(f.type)},
    )
