"""Lake tables in Apache Iceberg: Spark computes and reads, PyIceberg commits.

Iceberg's own runtime for Spark ends at 4.1, and the data source needs 4.2. What is needed of it is
little: rows that Spark computes are written as Parquet files with Iceberg's field ids by the
executors (:mod:`spillway.lake.tables.iceberg.files`), and one commit by PyIceberg names them
(:mod:`spillway.lake.tables.iceberg.snapshots`); a table is read as the Parquet files of one
snapshot, by field ids, which is what Spark does when its schema has them. No jar is needed, no task
reads metadata, and each commit is one snapshot that says its LSN.

Current tables are merged by copy on write: files that have none of the changed keys stay. A batch
of plain changes is merged without Spark (:mod:`spillway.lake.tables.iceberg.merge`); TRUNCATE,
unchanged TOAST values, multisets and large batches by a join in Spark of the touched files. A table
that is small is joined whole, as finding its touched files would be another job. With ``--merge
position`` rows that are gone are marked in files of position deletes
(:mod:`spillway.lake.tables.iceberg.positions`), in tables that aren't small; so are those that
another engine deleted by merge-on-read. Spark reads such a table by an anti-join with its deletes.

ALTER TABLE that only moves columns about (add without a value, drop, rename, int → bigint) is a
commit of metadata: no file is written anew. Everything else writes the table anew, in one commit
with its new schema.
"""

from __future__ import annotations

import json
import logging
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from spillway.errors import LakeTableConflict, SpillwayError
from spillway.failpoints import failpoint
from spillway.lake import lease
from spillway.lake.key_index.index import index_directory
from spillway.lake.shape.columns import spark_schema
from spillway.lake.shape.kinds import CURRENT, HISTORY
from spillway.lake.shape.net_effect import NetEffect, copies_field, own, quoted
from spillway.lake.tables.contract import MULTISET, Batch, check_same_key
from spillway.lake.tables.iceberg import snapshots, types
from spillway.lake.tables.iceberg.catalog import LakeCatalog, typed
from spillway.lake.tables.iceberg.files import DataFileWriter, Written, data_file, write_rows
from spillway.lake.tables.iceberg.merge import merge
from spillway.lake.tables.iceberg.positions import IcebergPositionTable, Mark
from spillway.lake.tables.iceberg.together import together
from spillway.lake.tables.joined_merge import merged_copies, merged_rows
from spillway.lake.tables.large_changes import last_changes_in
from spillway.lake.tables.plain_changes import (
    NotDirect,
    changes_between,
    changes_from,
    last_changes,
    read_changes,
    stored_columns,
)
from spillway.lake.tables.positions import Lost, NoIndex, Shape, only_table
from spillway.storage.place import spark_address, stored_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.sql import Column, DataFrame, SparkSession

    from spillway.lake.shape.columns import Followed
    from spillway.lake.shape.partition import Partition
    from spillway.lake.tables.plain_changes import LastChanges
    from spillway.storage.place import LakePath

_log = logging.getLogger(__name__)

KEY: Final = "spillway.key"
#: How often a commit is tried again because another one was first: an initial load's beside the
#: job's.
_ATTEMPTS: Final = 5
#: A current table is joined whole up to it.
_WHOLE_BYTES: Final = 32 << 20
_FILE: Final = "file"
_DELETED: Final = "file_path string, pos bigint"
PROPERTIES: Final = {
    "format-version": "2",
    # Attempts are ours: each looks first what the table has.
    "commit.retry.num-retries": "0",
    # A batch is a manifest of history's: they are joined by a hundred.
    "commit.manifest-merge.enabled": "true",
    # A commit writes the table's metadata whole; old ones go.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


class IcebergTables:
    """See :class:`spillway.lake.tables.contract.LakeTables`."""

    def __init__(
        self, spark: SparkSession, path: LakePath, slot_name: str, *, by_position: bool = False
    ) -> None:
        """Keep those of *slot_name* at *path*.

        *by_position*: current tables that aren't small are merged by position
        (:mod:`spillway.lake.tables.iceberg.positions`).
        """
        self._spark = spark
        self._by_position = by_position
        self.path = path
        self.slot_name = slot_name
        self._catalog = LakeCatalog(path)
        reads_ids(spark)

    @property
    def takes_special(self) -> bool:
        return self._by_position

    def together(self) -> AbstractContextManager[bool]:
        return together(self._catalog, partial(lease.check, self.path))

    def durable_lsn(self, kind: str, name: str) -> int:
        table = self._catalog.load(kind, name)
        if table is None:
            return 0
        if table.properties.get(snapshots.SLOT) != self.slot_name:
            raise LakeTableConflict(
                f"{'.'.join(table.name())} was not made for slot {self.slot_name}",
                hint="Use a path and, in a shared catalog, a prefix of its own for each slot, or "
                "move that table away.",
                relation=name,
            )
        return snapshots.durable_lsn(table.metadata, self.slot_name)

    def existing(self, kind: str, name: str) -> Table:
        """Return a table that is there, as it is now.

        Raises:
            LakeTableConflict: it isn't.
        """
        table = self._catalog.load(kind, name)
        if table is None:
            raise LakeTableConflict(
                f"{kind} table {name} is not in the lake's catalog any more",
                hint="Somebody removed it. Load it afresh: spillway lake load --resync.",
                relation=name,
            )
        return table

    def schema(self, kind: str, name: str) -> pa.Schema | None:
        table = self._catalog.load(kind, name)
        return None if table is None else types.lake_schema(table.schema(), notes_of(table))

    def partitions(self, kind: str, name: str) -> tuple[Partition, ...] | None:
        return None if self._catalog.load(kind, name) is None else ()

    def widest(self, stored: pa.DataType, incoming: pa.DataType) -> pa.DataType | None:
        return types.widest(stored, incoming)

    def append_history(self, name: str, rows: DataFrame, batch: Batch, kind: str = HISTORY) -> None:
        table = self._with_columns(kind, name, rows.schema)
        written = self._written(table, rows)
        self._append(kind, name, written, batch)

    def append_plain(self, name: str, rows: pa.Table, batch: Batch, kind: str = HISTORY) -> bool:
        schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
        table = self._with_columns(kind, name, schema)
        self._append(kind, name, self._written_here(table, rows), batch)
        return True

    def _written_here(self, table: Table, rows: pa.Table) -> list[Written]:
        """Write *rows* by this process; columns of the table's that they lack are null to
        readers.
        """
        fields = types.file_schema(table.schema())
        present = pa.schema([field for field in fields if field.name in rows.column_names])
        writer = DataFileWriter(data_directory(table), present)
        writer.write(rows.select(present.names))
        return writer.close()

    @contextmanager
    def transaction(self, table: Table) -> Iterator[Transaction]:
        """Yield a transaction on *table*, which is committed after the block if this process may
        still write to the lake.
        """
        with snapshots.Committing(table) as transaction:
            yield transaction
            lease.check(self.path)

    def _append(self, kind: str, name: str, written: Sequence[Written], batch: Batch) -> None:
        """Commit files, unless the table has the batch."""

        def attempt(table: Table) -> None:
            if snapshots.durable_lsn(table.metadata, self.slot_name) < batch.end_lsn:
                self._add(table, written, snapshots.mark(batch), kept(batch))

        self.attempts(kind, name, attempt)

    def _add(
        self,
        table: Table,
        written: Sequence[Written],
        said: Mapping[str, str],
        properties: Mapping[str, str],
    ) -> None:
        files = [data_file(each, table.schema()) for each in written]
        with self.transaction(table) as transaction:
            transaction.set_properties(dict(properties))
            snapshots.Appending(transaction, table, said, files).commit()

    def attempts(self, kind: str, name: str, attempt: Callable[[Table], None]) -> None:
        """Do *attempt* with the table as it is, until nobody else commits meanwhile.

        Raises:
            LakeTableConflict: somebody does, again and again.
        """
        with typed(f"{kind} of {name}"):
            for left in reversed(range(_ATTEMPTS)):
                table = self.existing(kind, name)
                lease.check(self.path)
                try:
                    attempt(table)
                except CommitFailedException:
                    if not left:
                        raise
                    continue
                return

    def _with_columns(self, kind: str, name: str, schema: StructType) -> Table:
        """Return an append-only table that has all of *schema*'s columns, as wide: made, or given
        what it lacks.
        """
        incoming = to_arrow_schema(schema, timezone="UTC")
        table = self._catalog.load(kind, name)
        if table is None:
            return self._create(kind, name, schema, {})
        notes = notes_of(table)
        if types.lake_schema(table.schema(), notes) != incoming:

            def attempt(table: Table) -> None:
                with self.transaction(table) as transaction:
                    with transaction.update_schema() as update:
                        types.add_columns(update, table.schema(), incoming)
                    after = transaction.table_metadata.schema()
                    noted = types.noted(after, schema, incoming, notes_of(table))
                    transaction.set_properties({types.NOTES: noted})

            self.attempts(kind, name, attempt)
            table = self.existing(kind, name)
        return table

    def history(self, name: str, start_lsn: int, end_lsn: int, kind: str = HISTORY) -> DataFrame:
        table = self.existing(kind, name)
        files = snapshots.added_after(table, self.slot_name, start_lsn)
        if files is None:
            files = snapshots.data_files(table, table.current_snapshot())
        commit = F.col("_commit_lsn")
        rows = self._frame(table, files)
        return rows.where((commit >= start_lsn) & (commit < end_lsn))

    def columns_plain(self, kind: str, name: str, columns: Sequence[str]) -> pa.Table | None:
        try:
            table = self.existing(kind, name)
            files, _ = snapshots.live_files(table, table.current_snapshot())
            return stored_columns([stored_path(file.file_path) for file in files], columns)
        except (NotDirect, OSError, pa.ArrowException) as error:
            _log.debug("%s of %s is read by Spark: %s", kind, name, error)
            return None

    def changes_plain(
        self, name: str, start_lsn: int, end_lsn: int, columns: pa.Schema
    ) -> pa.Table | None:
        try:
            files = self._since(name, start_lsn)
            return changes_between(files, start_lsn, end_lsn, columns)
        except (NotDirect, OSError, pa.ArrowException) as error:
            _log.debug("changes of %s are read by Spark: %s", name, error)
            return None

    def current(self, name: str) -> DataFrame | None:
        table = self._catalog.load(CURRENT, name)
        if table is None:
            return None
        return self._frame(table, *snapshots.live_files(table, table.current_snapshot()))

    def key(self, name: str) -> tuple[str, ...] | None:
        table = self._catalog.load(CURRENT, name)
        return None if table is None else key_of(table)

    def reshape(self, name: str, followed: Followed) -> None:
        schema = followed.frame.schema
        lake = to_arrow_schema(schema, timezone="UTC")
        table = self.existing(CURRENT, name)
        with typed(f"{CURRENT} of {name}"), self.transaction(table) as transaction:
            as_it_is = types.follow_columns(transaction, lake, followed.sources)
            after = transaction.table_metadata.schema()
            # Numbers of columns that have no name any more are forgotten with them; renamed ones
            # keep theirs by id.
            properties = {types.NOTES: types.noted(after, schema, lake, notes_of(table))}
            if followed.key is not None:
                properties[KEY] = json.dumps(followed.key)
            transaction.set_properties(properties)
            if not as_it_is or followed.filled or followed.key is not None:
                gone, deletes = snapshots.everything(table)
                written = write_rows(
                    followed.frame, data_directory(table), types.file_schema(after)
                )
                added = [data_file(each, after) for each in written]
                said = {snapshots.RESHAPE: "true"}
                snapshots.Replacing(transaction, table, said, gone, added, deletes).commit()

    def merge_plain(
        self,
        name: str,
        start_lsn: int,
        columns: pa.Schema,
        key: tuple[str, ...],
        batch: Batch,
        rows: pa.Table | None = None,
    ) -> bool:
        with typed(f"{CURRENT} of {name}"):
            for _ in range(_ATTEMPTS):
                try:
                    if start_lsn:
                        self._merge_directly(name, start_lsn, columns, key, batch, rows)
                    else:
                        self._fill_directly(name, columns, key, batch, rows)
                except (CommitFailedException, Lost) as error:
                    reason: object = error
                except (NotDirect, pa.ArrowException) as error:
                    reason = error
                    break
                else:
                    return True
        _log.debug("%s is merged by Spark: %s", name, reason)
        return False

    def _fill_directly(
        self,
        name: str,
        columns: pa.Schema,
        key: tuple[str, ...],
        batch: Batch,
        changes: pa.Table | None,
    ) -> None:
        """Make a current table of all changes that there are."""
        if changes is None:
            raise NotDirect("the changes are not at hand")
        last = last_changes(changes_from(changes, 0), columns, key)
        if last.kept:
            raise NotDirect("values are left out of rows that are not there")
        failpoint("lake.before_merge")
        schema = spark_schema(columns)
        table = self._catalog.load(CURRENT, name)
        if table is None:
            table = self._create(CURRENT, name, schema, {KEY: json.dumps(key)})
        else:
            # Made by a run that ended before its first commit.
            check_same_key(name, key_of(table), key)
            if columns_of(types.spark_schema(table.schema(), notes_of(table))) != columns_of(
                schema
            ):
                raise NotDirect("the table's columns change")
        written = self._written_here(table, last.rows.filter(last.is_set))
        self._append(CURRENT, name, written, batch)

    def _merge_directly(
        self,
        name: str,
        start_lsn: int,
        columns: pa.Schema,
        key: tuple[str, ...],
        batch: Batch,
        at_hand: pa.Table | None,
    ) -> None:
        current = self._catalog.load(CURRENT, name)
        if current is None:
            raise NotDirect("a table is not there")
        if columns_of(types.spark_schema(current.schema(), notes_of(current))) != columns_of(
            spark_schema(columns)
        ):
            raise NotDirect("the table's columns change")
        if key_of(current) != key:
            raise NotDirect("the table's key changes")
        if snapshots.durable_lsn(current.metadata, self.slot_name) != start_lsn:
            raise NotDirect("the current table is not as of the batch's start")
        files = None if at_hand is not None else self._last_of_history(name, start_lsn, batch)
        if self._by_position:
            table = self.position_table(name)
            if table.is_wanted():
                if at_hand is not None:
                    last = last_changes(changes_from(at_hand, start_lsn), columns, key)
                else:
                    last = last_changes_in(files or (), start_lsn, columns, key)
                try:
                    self._merge_by_position(table, Shape(columns, key), last, batch)
                except NoIndex as error:
                    # Without an index files are written anew, as in a table that is small.
                    if table.has_marks():
                        raise
                    _log.warning("%s is merged by rewriting: %s", name, error)
                else:
                    return
        if at_hand is None:
            at_hand = read_changes(files or (), start_lsn, columns)
        gone, written = merge(current, changes_from(at_hand, start_lsn), columns, key)
        self.replace(current, gone, written, snapshots.mark(batch), kept(batch))

    def _merge_by_position(
        self, table: IcebergPositionTable, shape: Shape, last: LastChanges, batch: Batch
    ) -> None:
        failpoint("lake.before_merge")
        table.merge(last, shape, Mark(snapshots.mark(batch), kept(batch)))
        try:
            table.fold_small(shape)
        except (NotDirect, OSError, SpillwayError, pa.ArrowException) as error:
            # The batch is committed; a later one finds the same.
            _log.warning("small files of %s stay as they are: %s", batch.slot_name, error)

    def position_table(self, name: str) -> IcebergPositionTable:
        """Return a current table as it is merged by position."""

        def made() -> IcebergPositionTable:
            return IcebergPositionTable(
                partial(self.existing, CURRENT, name),
                name,
                index_directory(self.path, name),
                partial(lease.check, self.path),
            )

        return only_table(self.path, f"{CURRENT}/{name}", IcebergPositionTable, made)

    def fold(self, name: str, held: Callable[[], AbstractContextManager[Any]]) -> bool:
        """Fold position deletes and small files of a current table, beside its batches; *held* is
        its lock. Return whether it is a table for that.
        """
        try:
            current = self.position_table(name)
            if not self._by_position and not current.has_marks():
                return False
            table = self.existing(CURRENT, name)
            key = key_of(table)
            if key == MULTISET:
                return False
            columns = types.lake_schema(table.schema(), notes_of(table))
            # Who went back to rewriting wants no marks.
            current.fold(Shape(columns, key), held, None if self._by_position else 0.0)
        except NotDirect as error:
            _log.debug("%s is compacted at once: %s", name, error)
            return False
        return True

    def _last_of_history(self, name: str, start_lsn: int, batch: Batch) -> list[LakePath]:
        """Return the files of a batch in history, whose last commit it is."""
        history = self._catalog.load(HISTORY, name)
        if history is None:
            raise NotDirect("a table is not there")
        if snapshots.durable_lsn(history.metadata, self.slot_name) != batch.end_lsn:
            raise NotDirect("the batch is not history's last commit")
        return self._since(name, start_lsn, history)

    def _since(self, name: str, start_lsn: int, found: Table | None = None) -> list[LakePath]:
        """Return the files that history got by commits that go beyond *start_lsn*."""
        history = found or self._catalog.load(HISTORY, name)
        if history is None:
            raise NotDirect("a table is not there")
        changes = snapshots.added_after(history, self.slot_name, start_lsn)
        if changes is None:
            raise NotDirect("history was written anew")
        return [stored_path(file.file_path) for file in changes]

    def apply(
        self, name: str, effect: NetEffect, columns: pa.Schema, key: tuple[str, ...], batch: Batch
    ) -> None:
        wanted = columns.append(copies_field(columns.names)) if key == MULTISET else columns
        schema = spark_schema(wanted)
        table = self._catalog.load(CURRENT, name)
        if table is None:
            table = self._create(CURRENT, name, schema, {KEY: json.dumps(key)})
            written = self._written(table, effect.rows(columns.names))
            self._append(CURRENT, name, written, batch)
            return
        check_same_key(name, key_of(table), key)
        files, deletes = snapshots.live_files(table, table.current_snapshot())
        frame = effect.frame.persist()
        try:
            effect = NetEffect(frame, effect.truncated, effect.kept_columns)
            on = tuple(columns.names) if key == MULTISET else key
            gone = files if effect.truncated else self._touched(table, files, frame, on)
            current = self._frame(table, [] if effect.truncated else gone, deletes)
            current = current.select(*map(quoted, schema.names))
            joined = merged_copies if key == MULTISET else merged_rows
            rows = joined(current, effect, schema, tuple(columns.names), key)
            written = self._written(table, rows)
        finally:
            frame.unpersist()
        with typed(f"{CURRENT} of {name}"):
            self.replace(table, gone, written, snapshots.mark(batch), kept(batch))

    def _touched(
        self, table: Table, files: list[DataFile], effect: DataFrame, on: tuple[str, ...]
    ) -> list[DataFile]:
        """Return the files that have rows of the effect's, by columns that are the same where *on*
        are; or all.
        """
        if sum(file.file_size_in_bytes for file in files) <= _WHOLE_BYTES:
            return files
        changed = effect.select(*(F.col(quoted(own(c))).alias(f"s {c}") for c in on))
        schema = types.spark_schema(table.schema(), notes_of(table))
        rows = read_files(
            self._spark, files, schema, F.col("_metadata.file_name").alias(_FILE), called=own
        ).select(_FILE, *(F.col(quoted(own(c))).alias(f"t {c}") for c in on))
        same = [F.col(quoted(f"t {c}")).eqNullSafe(F.col(quoted(f"s {c}"))) for c in on]
        found = rows.join(changed, same, "left_semi").select(_FILE).distinct().collect()
        names = {row[_FILE] for row in found}
        return [file for file in files if file.file_path.rpartition("/")[2] in names]

    def replace(
        self,
        table: Table,
        gone: Sequence[DataFile],
        written: Sequence[Written],
        said: Mapping[str, str],
        properties: Mapping[str, str],
    ) -> None:
        """Commit files in place of others."""
        added = [data_file(each, table.schema()) for each in written]
        failpoint("lake.before_merge")
        with self.transaction(table) as transaction:
            transaction.set_properties(dict(properties))
            with_them = None
            if snapshots.has_deletes(table):
                # Deletes of some files that are gone do no harm; a merge by position, or a fold,
                # drops them.
                files, deletes = snapshots.everything(table)
                with_them = deletes if len(gone) == len(files) else None
            snapshots.Replacing(transaction, table, said, gone, added, with_them).commit()

    def _create(
        self, kind: str, name: str, schema: StructType, properties: Mapping[str, str]
    ) -> Table:
        lake = to_arrow_schema(schema, timezone="UTC")
        iceberg = types.iceberg_schema(lake)
        said = {
            **PROPERTIES,
            **properties,
            snapshots.SLOT: self.slot_name,
            types.NOTES: types.noted(iceberg, schema, lake, {}),
        }
        lease.check(self.path)
        return self._catalog.create(kind, name, iceberg, said)

    def _written(self, table: Table, rows: DataFrame) -> list[Written]:
        return write_rows(rows, data_directory(table), types.file_schema(table.schema()))

    def _frame(
        self, table: Table, files: Iterable[DataFile], deletes: Sequence[DataFile] = ()
    ) -> DataFrame:
        schema = types.spark_schema(table.schema(), notes_of(table))
        return read_files(self._spark, files, schema, deletes=deletes)


def reads_ids(spark: SparkSession) -> None:
    """Let a session read columns by field ids, where a schema has them."""
    spark.conf.set("spark.sql.parquet.fieldId.read.enabled", "true")


def read_files(
    spark: SparkSession,
    files: Iterable[DataFile],
    schema: StructType,
    *more: Column,
    called: Callable[[str], str] = str,
    deletes: Sequence[DataFile] = (),
) -> DataFrame:
    """Return the rows of data files; columns are found by ids, those that a file lacks are null.

    Spark finds columns by ids and then looks up some of their types by the names that files have,
    which may be another column's by now. So it is given names that no file has.

    Args:
        spark: the session.
        files: the files.
        schema: their columns.
        more: columns beside them, of the files.
        called: how the columns are called in the frame, by their names.
        deletes: files of position deletes; the rows that they name are left out.
    """
    paths = [spark_address(stored_path(file.file_path)) for file in files]
    named = [
        StructField(_by_id(field), field.dataType, True, field.metadata) for field in schema.fields
    ]
    if paths:
        rows = spark.read.schema(StructType(named)).parquet(*paths)
        if deletes:
            rows = _without_deleted(spark, rows, deletes)
    else:
        rows = spark.createDataFrame([], StructType(named))
    return rows.select(
        *(
            F.col(_by_id(field)).alias(called(field.name), metadata=_numbers(field))
            for field in schema.fields
        ),
        *more,
    )


def _without_deleted(
    spark: SparkSession, rows: DataFrame, deletes: Sequence[DataFile]
) -> DataFrame:
    """Leave out the rows of data files that position deletes name: a file's name is its own."""
    gone = spark.read.schema(_DELETED).parquet(
        *(spark_address(stored_path(file.file_path)) for file in deletes)
    )
    name = F.element_at(F.split("file_path", "/"), -1)
    gone = gone.select(name.alias("in file"), F.col("pos").alias("at row"))
    # Both sides are files, which have such metadata: it is the rows' before they are joined.
    placed = rows.select(
        "*",
        F.col("_metadata.file_name").alias("in file"),
        F.col("_metadata.row_index").alias("at row"),
    )
    return placed.join(gone, ["in file", "at row"], "left_anti").drop("in file", "at row")


def _by_id(field: StructField) -> str:
    # Where a query asks for a part of a struct only, Spark forgets the struct's id, and finds
    # nothing under another name. History's old key is the only one; neither it nor what is in it is
    # ever given another name.
    if isinstance(field.dataType, StructType):
        return field.name
    return f"field {field.metadata[types.SPARK_FIELD_ID]} of Iceberg"


def _numbers(field: StructField) -> dict[str, Any]:
    return {name: value for name, value in field.metadata.items() if name != types.SPARK_FIELD_ID}


def read_at(
    spark: SparkSession, catalog: LakeCatalog, slot_name: str, kind: str, name: str, lsn: int
) -> DataFrame | None:
    """Return a table as it was at *lsn*; None: there was none.

    Raises:
        LakeError: what it was then is not kept.
    """
    table = catalog.load(kind, name)
    snapshot = None if table is None else snapshots.snapshot_at(table, slot_name, lsn)
    if table is None or snapshot is None:
        return None
    reads_ids(spark)
    schema = types.spark_schema(_schema_of(table, snapshot), notes_of(table))
    files, deletes = snapshots.live_files(table, snapshot)
    return read_files(spark, files, schema, deletes=deletes)


def _schema_of(table: Table, snapshot: Snapshot) -> Schema:
    known = table.schemas()
    return (
        known.get(snapshot.schema_id, table.schema())
        if snapshot.schema_id is not None
        else table.schema()
    )


def data_directory(table: Table) -> LakePath:
    """Return where a table's data files are."""
    return stored_path(table.location()) / "data"


def notes_of(table: Table) -> types.Notes:
    """Return what a table says of its fields, beside its schema."""
    return types.parsed_notes(table.properties)


def key_of(table: Table) -> tuple[str, ...]:
    """Return what tells a current table's rows."""
    return tuple(json.loads(table.properties.get(KEY, "[]")))


def kept(batch: Batch) -> dict[str, str]:
    """Return what a batch's commit leaves in the table's properties, for when its snapshot is
    expired.
    """
    return {snapshots.END: snapshots.mark(batch)[snapshots.END]}


def columns_of(schema: StructType) -> dict[str, tuple[object, object]]:
    """Return what of a schema must agree: the columns' types and attribute numbers by name."""
    # Fields of structs have ids in one of them and not in the other.
    return {field.name: (field.dataType.simpleString(), types.attnum(field)) for field in schema}
