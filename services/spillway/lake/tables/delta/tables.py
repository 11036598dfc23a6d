"""Lake tables in Delta Lake, through Spark.

A commit's LSN is the *transaction version* of the writer's application id in the same Delta commit
(``txnAppId``/``txnVersion``, the protocol's SetTransaction): Delta skips a write whose version it
has, keeps the version in checkpoints when old log entries go, and hands it out with the snapshot.
An LSN below 2^63 fits a version, grows with each batch and means the same to every process, where a
batch id would begin at 0 again with a new Spark checkpoint. The commit's ``userMetadata`` says the
same for people: ``DESCRIBE HISTORY`` shows slot and LSN range.

Rows that the driver has are appended by a data file and a commit of ours
(:mod:`spillway.lake.tables.delta.log`). A batch of plain changes is merged in the same way into a
small table (:mod:`spillway.lake.tables.delta.small_merge`), by delta-rs into a larger one
(:mod:`spillway.lake.tables.delta.merge`): no Spark job, the same log. MERGE in Spark does what is
left: TRUNCATE, unchanged TOAST values, multisets, large batches, and tables that have been given
features which ask more of a writer. All of them rewrite the files that they touch.
With ``--merge position`` batches mark rows in deletion vectors and append instead
(:mod:`spillway.lake.tables.delta.positions`), in tables that aren't small, with TRUNCATE and
unchanged values, too.
"""

from __future__ import annotations

import json
import logging
import threading
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from deltalake import CommitProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, StructType

from spillway.declarations.delta_names import needs_column_mapping
from spillway.errors import LakeError, LakeTableConflict, SpillwayError
from spillway.failpoints import failpoint
from spillway.lake import lease
from spillway.lake.key_index.index import index_directory
from spillway.lake.shape.columns import spark_schema
from spillway.lake.shape.kinds import CURRENT, HISTORY
from spillway.lake.shape.net_effect import (
    COPIES,
    KEEP,
    SET,
    NetEffect,
    copies_field,
    copies_name,
    own,
    quoted,
)
from spillway.lake.shape.type_changes import widest
from spillway.lake.tables import layout, partitions
from spillway.lake.tables.contract import MULTISET, Batch, check_same_key
from spillway.lake.tables.delta import log, small_merge
from spillway.lake.tables.delta.data_files import plain, write_rows
from spillway.lake.tables.delta.known_logs import KnownLogs
from spillway.lake.tables.delta.log import Head, begin, first_commit
from spillway.lake.tables.delta.merge import (
    check_files,
    check_path,
    compact,
    files_of,
    merge,
    open_table,
    sync_commit,
)
from spillway.lake.tables.delta.open_tables import OpenTables
from spillway.lake.tables.delta.positions import (
    FEATURE,
    DeltaPositionTable,
    Mark,
    position_table,
)
from spillway.lake.tables.large_changes import last_changes_in
from spillway.lake.tables.plain_changes import (
    NotDirect,
    changes_between,
    changes_from,
    check_plain,
    last_changes,
    read_changes,
    stored_columns,
)
from spillway.lake.tables.positions import Lost, NoIndex, Shape
from spillway.pg.lsn import Lsn
from spillway.storage.place import ObjectPath, spark_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

    from spillway.lake.shape.columns import Followed
    from spillway.lake.shape.partition import Partition
    from spillway.lake.tables.plain_changes import LastChanges
    from spillway.storage.place import LakePath

_log = logging.getLogger(__name__)

KEY_PROPERTY: Final = "spillway.key"
_SLOT_PROPERTY: Final = "spillway.slot"
_PROPERTIES: Final = (KEY_PROPERTY, _SLOT_PROPERTY)
#: Commits of others that a search for ours passes before the snapshot is asked.
_COMMITS_SEARCHED: Final = 20
#: How often a merge is begun anew because another commit was first, before it is left to Spark.
_ATTEMPTS: Final = 3
#: Features that ask nothing of who appends to a table or writes its files anew.
_FEATURES: Final = frozenset({"appendOnly", "invariants", "timestampNtz"})
#: What else doesn't change the names and types that the log has.
_READ_FEATURES: Final = _FEATURES | {"typeWidening", FEATURE}
#: Commits between two checkpoints, unless a table says so: Delta's own default is 10, and most
#: tables have a commit a batch.
_CHECKPOINT_INTERVAL: Final = 100
_VIEW: Final = "spillway_net_effect"
#: Batches are found in history by it.
_COMMIT_LSN: Final = "_commit_lsn"
#: userMetadata of a commit that follows an ALTER TABLE
_RESHAPE: Final = "spillway: columns of the next batch"


class DeltaTables:
    """See :class:`spillway.lake.tables.contract.LakeTables`."""

    def __init__(
        self, spark: SparkSession, path: LakePath, slot_name: str, *, by_position: bool = False
    ) -> None:
        """Keep those of *slot_name* at *path*.

        *by_position*: current tables that aren't small are merged by position
        (:mod:`spillway.lake.tables.delta.positions`).
        """
        # Merges read their transaction id from the session's configuration: a session for each
        # thread that merges.
        self._main_session = spark
        self._threads = threading.local()
        self._path = path
        self._slot_name = slot_name
        self._application = application_of(slot_name)
        self._by_position = by_position
        #: tables that are known to be of this slot
        self._ours: set[tuple[str, str]] = set()
        #: current tables' files that delta-rs reads as Spark does; a table is one thread's at a
        #: time
        self._checked: dict[str, set[LakePath]] = {}
        #: tables that are known to take timestamps without a zone
        self._with_ntz: set[tuple[str, str]] = set()
        #: what append-only tables are partitioned by
        self._made: dict[tuple[str, str], tuple[Partition, ...]] = {}
        #: what was appended last to history's tables, which hold it
        self._appended: dict[tuple[str, str], StructType] = {}
        self._logs = KnownLogs()
        #: what delta-rs has open
        self._tables = OpenTables()

    @property
    def _spark(self) -> SparkSession:
        session: SparkSession | None = getattr(self._threads, "session", None)
        if session is None:
            session = self._threads.session = self._main_session.newSession()
        return session

    @property
    def takes_special(self) -> bool:
        return self._by_position

    def together(self) -> AbstractContextManager[bool]:
        return nullcontext(False)

    def durable_lsn(self, kind: str, name: str) -> int:
        if not self._exists(kind, name):
            return 0
        if (kind, name) not in self._ours:
            self._check_owner(kind, name)
            self._ours.add((kind, name))
        try:
            return self._logs.newest(self._path / kind / name).transactions.get(
                self._application, 0
            )
        except NotDirect:
            pass
        version = last_transaction(self._path / kind / name / "_delta_log", self._application)
        if version is None:
            # Not in the log's newest part: the snapshot knows, but asking it is a Spark job.
            found = self._snapshot(kind, name).transactions().get(self._application)
            version = int(found.get()) if found.isDefined() else 0
        return version

    def _check_owner(self, kind: str, name: str) -> None:
        if self._properties(kind, name).get(_SLOT_PROPERTY) != self._slot_name:
            raise LakeTableConflict(
                f"{self._location(kind, name)} was not made for slot {self._slot_name}",
                hint="Use a path of its own for each slot, or move that table away.",
                relation=name,
            )

    def _properties(self, kind: str, name: str) -> Mapping[str, str | None]:
        """Return the table's properties."""
        try:
            return self._logs.newest(self._path / kind / name).configuration
        except (NotDirect, OSError):
            found = self._snapshot(kind, name).metadata().configuration()
            return {key: found.get(key).get() for key in _PROPERTIES if found.contains(key)}

    def schema(self, kind: str, name: str) -> pa.Schema | None:
        if not self._exists(kind, name):
            return None
        try:
            head = self._logs.newest(self._path / kind / name)
            log.check_known(head, _READ_FEATURES)
        except (NotDirect, OSError):
            pass
        else:
            fields = [f for f in head.fields if not partitions.made_with([f])]
            stored = StructType.fromJson({"type": "struct", "fields": fields})
            return to_arrow_schema(stored, timezone="UTC")
        rows = partitions.removed(self._frame(kind, name))
        return to_arrow_schema(rows.schema, timezone="UTC")

    def partitions(self, kind: str, name: str) -> tuple[Partition, ...] | None:
        if not self._exists(kind, name):
            return None
        return partitions.partitions_of(self._frame(kind, name).schema)

    def widest(self, stored: pa.DataType, incoming: pa.DataType) -> pa.DataType | None:
        return widest(stored, incoming)

    def append_history(self, name: str, rows: DataFrame, batch: Batch, kind: str = HISTORY) -> None:
        if not self._exists(kind, name):
            self._create(kind, name, rows.schema, {})
        elif self._appended.get((kind, name)) != rows.schema:
            self._widen(kind, name, rows.schema)
        self._appended[kind, name] = rows.schema
        self._allow_timestamps(kind, name, rows.schema)
        self._append(kind, name, rows, batch)

    def append_plain(self, name: str, rows: pa.Table, batch: Batch, kind: str = HISTORY) -> bool:
        def attempt() -> Callable[[], None]:
            schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
            indexed = [_COMMIT_LSN] if _COMMIT_LSN in rows.column_names else []
            return self._append_directly(kind, name, schema, {}, rows, batch, indexed)

        return self._directly(kind, name, attempt)

    def _append_directly(
        self,
        kind: str,
        name: str,
        schema: StructType,
        properties: Mapping[str, str],
        rows: pa.Table,
        batch: Batch,
        indexed: Sequence[str],
    ) -> Callable[[], None]:
        """Append *rows*, whose columns *schema* describes, by a commit of ours, with statistics of
        *indexed*; the table is made, with *properties*, if it isn't there.

        Returns what makes durable what isn't.

        Raises:
            NotDirect: it isn't for that.
            Lost: another commit was first.
        """
        path = self._path / kind / name
        if self._exists(kind, name):
            head = self._checked_head(path)
            if head.transactions.get(self._application, 0) >= batch.end_lsn:
                return lambda: None
        else:
            head = self._create_directly(kind, name, schema, properties)
        made = partitions.made_with(head.fields)
        wanted = partitions.with_fields(schema, made)
        if log.described(head.fields) != log.described(wanted.jsonValue()["fields"]):
            raise NotDirect("the table's columns change")
        stored = plain(to_arrow_schema(schema, timezone="UTC"))
        rows = partitions.added_to_arrow(rows.select(stored.names).cast(stored), made)
        lease.check(self._path)
        files = write_rows(path, rows, indexed, partitions.names(made))
        self._commit(path, head, "WRITE", batch, ({"add": file} for file in files), blind=True)
        return lambda: self._checkpoint(path, head)

    def _checked_head(self, path: LakePath) -> Head:
        """Return the newest version of a table that our commits may follow.

        Raises:
            NotDirect: they may not.
        """
        check_path(path)
        head = self._logs.newest(path)
        log.check_known(head, _FEATURES)
        made = partitions.made_with(head.fields)
        if partitions.names(made) != head.metadata["partitionColumns"]:
            raise NotDirect("partitions that are not ours")
        return head

    def _commit(
        self,
        path: LakePath,
        head: Head,
        operation: str,
        batch: Batch,
        actions: Iterable[log.Action],
        *,
        blind: bool = False,
    ) -> None:
        """Make *batch* a commit, durably.

        Raises:
            Lost: another one was first.
        """
        about = log.commit_info(operation, _user_metadata(batch), is_blind_append=blind)
        transaction = log.transaction(self._application, batch.end_lsn)
        self._logs.commit(path, head, [transaction, about, *actions])

    def _checkpoint(self, path: LakePath, head: Head) -> None:
        try:
            if log.checkpoint(path, head, _CHECKPOINT_INTERVAL):
                sync_commit(path, head.version, ())
        except (DeltaError, OSError) as error:
            # The batch is committed; a later one tries again.
            _log.warning("the log of %s stays as it is: %s", path, error)

    def _create_directly(
        self, kind: str, name: str, schema: StructType, properties: Mapping[str, str]
    ) -> Head:
        """Make a table by a commit of ours, as :meth:`_create` does by Spark.

        Raises:
            NotDirect: it needs column mapping, or delta-rs could not write its checkpoints.
            Lost: another one has made it.
        """
        if any(map(needs_column_mapping, schema.names)):
            raise NotDirect("the table needs column mapping")
        check_path(self._path / kind / name)
        lease.check(self._path)
        wanted, made = self._as_asked(kind, name, schema)
        return self._logs.begin(
            self._path / kind / name,
            log.table_made(
                wanted.json(),
                partitions.names(made),
                {_SLOT_PROPERTY: self._slot_name, **properties},
            ),
        )

    def _as_asked(
        self, kind: str, name: str, schema: StructType
    ) -> tuple[StructType, tuple[Partition, ...]]:
        """Return a new table's schema, with what it is to be partitioned by, and that."""
        asked = layout.load(self._path)
        if kind == CURRENT:
            asked.check(name, to_arrow_schema(schema, timezone="UTC"))
        made = asked.partitions(kind, name)
        return partitions.with_fields(schema, made), made

    def _commit_of(self, batch: Batch) -> CommitProperties:
        return CommitProperties(
            custom_metadata={"userMetadata": _user_metadata(batch)},
            app_transactions=[Transaction(self._application, batch.end_lsn)],
            # What it does when it is not first is its own idea of a conflict: ours is to begin
            # anew.
            max_commit_retries=0,
        )

    def _directly(self, kind: str, name: str, attempt: Callable[[], Callable[[], None]]) -> bool:
        """Do *attempt*, which commits and returns what makes that durable; return whether it is
        done: if not, it is Spark's to do.
        """
        path = self._path / kind / name
        for _ in range(_ATTEMPTS):
            try:
                make_durable = attempt()
            except (CommitFailedError, Lost) as error:
                # Another one was first, maintenance perhaps: then its files are the ones to merge
                # into.
                reason: object = error
                self._forget(path)
            except (NotDirect, DeltaError, OSError, pa.ArrowException) as error:
                reason = error
                break
            except BaseException as error:
                # What a library in Rust does with a value that it did not think of: nothing is
                # committed then.
                if type(error).__name__ != "PanicException":
                    raise
                reason = error
                break
            else:
                # Whatever goes wrong with this is not Spark's to mend.
                make_durable()
                return True
        self._forget(path)
        _log.debug("%s of %s is written by Spark: %s", kind, name, reason)
        return False

    def _forget(self, path: LakePath) -> None:
        self._logs.forget(path)
        self._tables.forget(path)

    def history(self, name: str, start_lsn: int, end_lsn: int, kind: str = HISTORY) -> DataFrame:
        commit = F.col("_commit_lsn")
        rows = partitions.removed(self._frame(kind, name))
        return rows.where((commit >= start_lsn) & (commit < end_lsn))

    def columns_plain(self, kind: str, name: str, columns: Sequence[str]) -> pa.Table | None:
        try:
            return stored_columns(
                files_of(open_table(self._path / kind / name, to_write=False)), columns
            )
        except (NotDirect, DeltaError, OSError, pa.ArrowException) as error:
            _log.debug("%s of %s is read by Spark: %s", kind, name, error)
            return None

    def changes_plain(
        self, name: str, start_lsn: int, end_lsn: int, columns: pa.Schema
    ) -> pa.Table | None:
        try:
            history = open_table(self._path / HISTORY / name, to_write=False)
            files = files_of(history, f"_commit_lsn >= {start_lsn}")
            return changes_between(files, start_lsn, end_lsn, columns)
        except (NotDirect, DeltaError, OSError, pa.ArrowException) as error:
            _log.debug("changes of %s are read by Spark: %s", name, error)
            return None

    def current(self, name: str) -> DataFrame | None:
        if not self._exists(CURRENT, name):
            return None
        return partitions.removed(self._frame(CURRENT, name))

    def key(self, name: str) -> tuple[str, ...] | None:
        if not self._exists(CURRENT, name):
            return None
        stored = self._properties(CURRENT, name).get(KEY_PROPERTY)
        return None if stored is None else tuple(json.loads(stored))

    def reshape(self, name: str, followed: Followed) -> None:
        lease.check(self._path)
        if followed.key is not None and followed.key != self.key(name):
            self._set_key(name, followed.key)
        self._allow_timestamps(CURRENT, name, followed.frame.schema)
        made = self.partitions(CURRENT, name) or ()
        rows = partitions.added(followed.frame, made)
        if followed.rewritten:
            writer = rows.write.mode("overwrite").option("overwriteSchema", "true")
            writer = writer.partitionBy(*partitions.names(made))
        else:
            # Columns that are null in every row are the schema's business only: no row is written.
            empty = self._spark.createDataFrame([], rows.schema)
            writer = empty.write.mode("append").option("mergeSchema", "true")
        writer = writer.option("userMetadata", _RESHAPE)
        writer.format("delta").save(self._location(CURRENT, name))

    def merge_plain(
        self,
        name: str,
        start_lsn: int,
        columns: pa.Schema,
        key: tuple[str, ...],
        batch: Batch,
        rows: pa.Table | None = None,
    ) -> bool:
        def attempt() -> Callable[[], None]:
            if not start_lsn:
                return self._fill_directly(name, columns, key, batch, rows)
            written = self._merge_directly(name, start_lsn, columns, key, batch, rows)

            def make_durable() -> None:
                for table, version, files in written:
                    sync_commit(table, version, files)

            return make_durable

        return self._directly(CURRENT, name, attempt)

    def _fill_directly(
        self,
        name: str,
        columns: pa.Schema,
        key: tuple[str, ...],
        batch: Batch,
        changes: pa.Table | None,
    ) -> Callable[[], None]:
        """Make a current table of all changes that there are; returns and raises as
        :meth:`_append_directly`.
        """
        if changes is None:
            raise NotDirect("the changes are not at hand")
        last = last_changes(changes_from(changes, 0), columns, key)
        if last.kept:
            raise NotDirect("values are left out of rows that are not there")
        rows = last.rows.filter(last.is_set)
        failpoint("lake.before_merge")
        properties = {KEY_PROPERTY: json.dumps(key)}
        if self._exists(CURRENT, name):
            # Made by a run that ended before its first commit.
            check_same_key(name, self.key(name) or MULTISET, key)
        schema = spark_schema(columns)
        return self._append_directly(CURRENT, name, schema, properties, rows, batch, key)

    def _merge_directly(
        self,
        name: str,
        start_lsn: int,
        columns: pa.Schema,
        key: tuple[str, ...],
        batch: Batch,
        at_hand: pa.Table | None = None,
    ) -> list[tuple[LakePath, int, set[LakePath]]]:
        """Merge *batch* into a current table that is as of *start_lsn*.

        Returns what is not durable yet, of the history that the batch is read from as well: tables,
        from which version of theirs on, and their files. Changes *at_hand* are durable there.

        Raises:
            NotDirect: it isn't for that.
            CommitFailedError, Lost: another commit was first.
        """
        if self._by_position:
            table = self.position_table(name)
            if table.is_wanted():
                try:
                    return self._merge_by_position(
                        table, name, start_lsn, columns, key, batch, at_hand
                    )
                except NoIndex as error:
                    # Without an index files are written anew, as in a table that is small.
                    if table.has_marks():
                        raise
                    _log.warning("%s is merged by rewriting: %s", name, error)
                finally:
                    # It has a log of its own: what delta-rs has open is older now.
                    self._tables.forget(self._path / CURRENT / name)
        head = self._checked_head(self._path / CURRENT / name)
        made = self._checked_shape(head.fields, head.configuration, columns, key)
        self._check_start(head.transactions.get(self._application), start_lsn)
        written: list[tuple[LakePath, int, set[LakePath]]] = []
        if at_hand is None:
            written.append(self._last_of_history(name, start_lsn, batch))
            at_hand = read_changes(written[0][2], start_lsn, columns)
        changes = last_changes(changes_from(at_hand, start_lsn), columns, key)
        check_plain(changes)
        if small_merge.is_small(head):
            # What current shows is durable in history first.
            for each in written:
                sync_commit(*each)
            self._merge_small(name, head, changes, columns, key, batch)
            return []
        changes = replace(changes, rows=partitions.added_to_arrow(changes.rows, made))
        return [*written, self._merge_by_delta_rs(name, changes, columns, key, batch)]

    def _merge_small(
        self,
        name: str,
        head: Head,
        changes: LastChanges,
        columns: pa.Schema,
        key: tuple[str, ...],
        batch: Batch,
    ) -> None:
        """Merge as :mod:`spillway.lake.tables.delta.small_merge` does; it is durable then."""
        path = self._path / CURRENT / name
        failpoint("lake.before_merge")
        lease.check(self._path)
        actions = small_merge.rewritten(path, head, changes, columns, key)
        self._commit(path, head, "MERGE", batch, actions)
        self._checkpoint(path, head)

    def _merge_by_delta_rs(
        self,
        name: str,
        changes: LastChanges,
        columns: pa.Schema,
        key: tuple[str, ...],
        batch: Batch,
    ) -> tuple[LakePath, int, set[LakePath]]:
        """Merge as :mod:`spillway.lake.tables.delta.merge` does; return what is not durable
        yet.
        """
        path = self._path / CURRENT / name
        current = self._tables.table(path)
        before = files_of(current)
        check_files(before - self._checked.get(name, set()))
        failpoint("lake.before_merge")
        lease.check(self._path)
        version = current.version() + 1
        merge(current, changes, key, self._commit_of(batch))
        if self._compact(name, current, columns):
            # They may be few now.
            self._logs.forget(path)
        self._checked[name] = after = files_of(current)
        self._tables.keep(path, current, len(after))
        return path, version, after - before

    def _merge_by_position(
        self,
        table: DeltaPositionTable,
        name: str,
        start_lsn: int,
        columns: pa.Schema,
        key: tuple[str, ...],
        batch: Batch,
        at_hand: pa.Table | None,
    ) -> list[tuple[LakePath, int, set[LakePath]]]:
        """Do the same by position; what it commits is durable."""
        found = table.snapshot()
        made = self._checked_shape(found.fields, found.configuration, columns, key)
        self._check_start(found.transactions.get(self._application), start_lsn)
        if at_hand is None:
            committed = self._last_of_history(name, start_lsn, batch)
            # What current shows is durable in history first.
            sync_commit(*committed)
            changes = last_changes_in(committed[2], start_lsn, columns, key)
        else:
            changes = last_changes(changes_from(at_hand, start_lsn), columns, key)
        if any(each.column in changes.kept for each in made):
            raise NotDirect("a partition is made of a value that is left out")
        if changes.pieces is None:
            changes = replace(changes, rows=partitions.added_to_arrow(changes.rows, made))
        failpoint("lake.before_merge")
        lease.check(self._path)
        shape = Shape(columns, key, made)
        version = table.merge(
            changes, shape, Mark(self._application, batch.end_lsn, _user_metadata(batch))
        )
        try:
            table.fold_small(shape)
            if not table.checkpoint():
                return []
        except (DeltaError, NotDirect, OSError, SpillwayError, pa.ArrowException) as error:
            # The batch is committed; a later one finds the same.
            _log.warning("small files of %s, or its log, stay as they are: %s", name, error)
            return []
        return [(self._path / CURRENT / name, version, set())]

    def _checked_shape(
        self,
        fields: list[dict[str, Any]],
        configuration: Mapping[str, str | None],
        columns: pa.Schema,
        key: tuple[str, ...],
    ) -> tuple[Partition, ...]:
        """Return what a current table is partitioned by; it has *columns* and *key*.

        Raises:
            NotDirect: it hasn't.
        """
        made = partitions.made_with(fields)
        wanted = partitions.with_fields(spark_schema(columns), made)
        if log.described(fields) != log.described(wanted.jsonValue()["fields"]):
            raise NotDirect("the table's columns change")
        if configuration.get(KEY_PROPERTY) != json.dumps(key):
            raise NotDirect("the table's key changes")
        return made

    def _check_start(self, lsn: int | None, start_lsn: int) -> None:
        if lsn != start_lsn:
            raise NotDirect("the current table is not as of the batch's start")

    def _last_of_history(
        self, name: str, start_lsn: int, batch: Batch
    ) -> tuple[LakePath, int, set[LakePath]]:
        """Return history's last commit, which is the batch: its table, version and files.

        Raises:
            NotDirect: they aren't all there.
        """
        history = open_table(self._path / HISTORY / name, to_write=False)
        if history.transaction_version(self._application) != batch.end_lsn:
            raise NotDirect("the batch is not history's last commit")
        appended = files_of(history, f"_commit_lsn >= {start_lsn}")
        return self._path / HISTORY / name, history.version(), appended

    def position_table(self, name: str) -> DeltaPositionTable:
        """Return a current table as it is merged by position."""
        return position_table(self._path, f"{CURRENT}/{name}", index_directory(self._path, name))

    def fold(self, name: str, held: Callable[[], AbstractContextManager[Any]]) -> bool:
        """Fold deletion vectors and small files of a current table, beside its batches; *held* is
        its lock. Return whether it is a table for that.
        """
        if not self._by_position:
            return False
        try:
            table = self.position_table(name)
            found = table.snapshot()
            if FEATURE not in found.features:
                return False
            made = partitions.made_with(found.fields)
            plain = [field for field in found.fields if not partitions.made_with([field])]
            schema = StructType.fromJson({"type": "struct", "fields": plain})
            key = json.loads(found.configuration.get(KEY_PROPERTY) or "[]")
            if not key:
                return False
            columns = to_arrow_schema(schema, timezone="UTC")
            if table.fold(Shape(columns, tuple(key), made), held):
                # Readers of what was folded need nothing of the commits before.
                with held():
                    table.checkpoint(is_due=True)
        except NotDirect as error:
            _log.debug("%s is Spark's to compact: %s", name, error)
            return False
        except (DeltaError, OSError) as error:
            _log.warning("the log of %s stays as it is: %s", name, error)
        return True

    def _compact(self, name: str, current: DeltaTable, columns: pa.Schema) -> bool:
        try:
            return compact(current, columns)
        except (DeltaError, OSError) as error:
            # The batch is committed; a later one finds the small files again.
            _log.warning("small files of %s stay: %s", name, error)
            return False

    def apply(
        self, name: str, effect: NetEffect, columns: pa.Schema, key: tuple[str, ...], batch: Batch
    ) -> None:
        stored = self.schema(CURRENT, name)
        if stored is None:
            wanted = columns.append(copies_field(columns.names)) if key == MULTISET else columns
            schema = spark_schema(wanted)
            self._create(
                CURRENT,
                name,
                schema,
                {KEY_PROPERTY: json.dumps(key)},
            )
            self._append(CURRENT, name, effect.rows(columns.names), batch)
            return
        check_same_key(name, self.key(name) or MULTISET, key)
        lease.check(self._path)
        made = self.partitions(CURRENT, name) or ()
        # What a partition is made of may change, so it is a value like others: the key alone tells
        # rows.
        changed = partitions.added_to_effect(effect, made)
        changed.createOrReplaceTempView(_VIEW)
        values = [*columns.names, *partitions.names(made)]
        kept = [*effect.kept_columns]
        kept += [p.name for p in made if p.column in effect.kept_columns]
        statement = (
            merge_copies(values, copies_name(columns.names), truncated=effect.truncated)
            if key == MULTISET
            else merge_rows(values, key, kept, truncated=effect.truncated)
        )
        target = f"delta.{quoted(self._location(CURRENT, name))}"
        settings = {
            "spark.databricks.delta.write.txnAppId": self._application,
            "spark.databricks.delta.write.txnVersion": str(batch.end_lsn),
            "spark.databricks.delta.commitInfo.userMetadata": _user_metadata(batch),
        }
        for setting, value in settings.items():
            self._spark.conf.set(setting, value)
        try:
            self._spark.sql(f"MERGE INTO {target} AS t USING {_VIEW} AS s {statement}")
        finally:
            for setting in settings:
                self._spark.conf.unset(setting)
            self._spark.catalog.dropTempView(_VIEW)

    def _create(self, kind: str, name: str, schema: StructType, properties: dict[str, str]) -> None:
        """Make a table by Spark, which takes a directory with anything in it for a table: what a
        driver left that was killed before the first commit, or files of a load. So it makes the
        table in an empty directory, and the one commit goes where it belongs.
        """
        lease.check(self._path)
        schema, made = self._as_asked(kind, name, schema)
        properties = {_SLOT_PROPERTY: self._slot_name, **properties}
        odd = [column for column in schema.names if needs_column_mapping(column)]
        if odd:
            properties["delta.columnMapping.mode"] = "name"
            _log.warning(
                "%s of %s needs column mapping, as it has a column %r: readers that don't know "
                "mapping, delta-rs by pyarrow for one, see nulls there; a slot with the option "
                "column_names=safe needs none",
                kind, name, odd[0],
            )  # fmt: skip
        with TemporaryDirectory(prefix="spillway-") as directory:
            empty = Path(directory).resolve()
            writer = self._spark.createDataFrame([], schema).writeTo(
                f"delta.{quoted(empty.as_uri())}"
            )
            writer = writer.using("delta")
            if made:
                writer = writer.partitionedBy(*(F.col(quoted(n)) for n in partitions.names(made)))
            for key, value in properties.items():
                writer = writer.tableProperty(key, value)
            writer.create()
            first = first_commit(empty)
        lease.check(self._path)
        try:
            begin(self._path / kind / name, first)
        except Lost as error:
            raise LakeTableConflict(
                f"{kind} table {name} was made by another process meanwhile",
                hint="Run it again, when the other one is done.",
                relation=name,
            ) from error

    def _set_key(self, name: str, key: tuple[str, ...]) -> None:
        table = f"delta.{quoted(self._location(CURRENT, name))}"
        text = json.dumps(key).replace("\\", "\\\\").replace("'", "\\'")
        self._spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{KEY_PROPERTY}' = '{text}')")

    def _widen(self, kind: str, name: str, schema: StructType) -> None:
        """Make the columns of a table as wide as those of *schema*: Delta's type widening, no file
        is written.
        """
        columns = list(_retyped(self._frame(kind, name).schema, schema))
        if not columns:
            return
        lease.check(self._path)
        table = f"delta.{quoted(self._location(kind, name))}"
        self._spark.sql(
            f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
        )
        for column, type_ in columns:
            self._spark.sql(f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {type_}")

    def _allow_timestamps(self, kind: str, name: str, schema: StructType) -> None:
        """Let a table take its first column of timestamps without a zone, which Delta wants to be
        asked for.
        """
        if not _has_ntz(schema) or (kind, name) in self._with_ntz:
            return
        if not _has_ntz(self._frame(kind, name).schema):
            table = f"delta.{quoted(self._location(kind, name))}"
            self._spark.sql(
                f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.feature.timestampNtz' = "
                "'supported')"
            )
        self._with_ntz.add((kind, name))

    def _append(self, kind: str, name: str, rows: DataFrame, batch: Batch) -> None:
        lease.check(self._path)
        writer = self._to_append(kind, name, rows).option("mergeSchema", "true")
        writer = writer.option("txnAppId", self._application).option("txnVersion", batch.end_lsn)
        writer.option("userMetadata", _user_metadata(batch)).save(self._location(kind, name))

    def _to_append(self, kind: str, name: str, rows: DataFrame) -> DataFrameWriter:
        made = self._made.get((kind, name))
        if made is None:
            made = self.partitions(kind, name) or ()
            # A load may make a current table with others, of another process even.
            if kind != CURRENT:
                self._made[kind, name] = made
        return partitions.added(rows, made).write.format("delta").mode("append")

    def _location(self, kind: str, name: str) -> str:
        return spark_address(self._path / kind / name)

    def _exists(self, kind: str, name: str) -> bool:
        log = self._path / kind / name / "_delta_log"
        if not log.is_dir() or isinstance(log, ObjectPath):
            return log.is_dir()
        # Who makes a table makes its directory first, and may be killed before the commit.
        known = ("00000000000000000000.json", "_last_checkpoint")
        return any((log / each).exists() for each in known) or any(log.glob("*.json"))

    def _frame(self, kind: str, name: str) -> DataFrame:
        return self._spark.read.format("delta").load(self._location(kind, name))

    def _snapshot(self, kind: str, name: str) -> Any:
        """Return the newest snapshot of a table that is there: Delta's Scala object."""
        jvm = self._spark._jvm  # noqa: SLF001 - SetTransaction versions have no other reader in Python
        assert jvm is not None  # classic Spark has one
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
            self._spark._jsparkSession,  # noqa: SLF001 - as above
            self._location(kind, name),
        )
        return log.update(*(getattr(log, f"update$default${position}")() for position in (1, 2, 3)))


def _retyped(stored: StructType, wanted: StructType, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield columns, and fields of structs, that have another type in *wanted*, and that type, as
    SQL writes them.
    """
    for field in wanted:
        if field.name in stored.names:
            before = stored[field.name].dataType
            name = f"{prefix}{quoted(field.name)}"
            if isinstance(before, StructType) and isinstance(field.dataType, StructType):
                yield from _retyped(before, field.dataType, f"{name}.")
            elif before != field.dataType and not isinstance(before, ArrayType):
                yield name, field.dataType.simpleString()


def _has_ntz(schema: StructType) -> bool:
    return "timestamp_ntz" in schema.simpleString()


def application_of(slot_name: str) -> str:
    """Return the application id under which a slot's commits carry their LSN."""
    return f"spillway/{slot_name}"


def version_at(table: LakePath, application: str, lsn: int) -> int | None:
    """Return the version that a table had when it was as of *lsn*; None: there was no table then.

    It is the last one before the job's next commit: what others did in between, OPTIMIZE for one,
    is in it, so that VACUUM leaves its files.

    Raises:
        LakeError: the log of then was removed.
    """
    version: int | None = None
    commits = _commits(table / "_delta_log")
    for commit in commits:
        mark = _mark(commit, application)
        if mark is _Reshape:
            # It belongs to the batch that comes after it.
            version = None
            continue
        version = int(commit.stem) if version is None else version
        if isinstance(mark, int):
            if mark <= lsn:
                return version
            version = None
    if commits and int(commits[-1].stem) > 0:
        raise LakeError(
            f"{table} does not remember which version it had at {Lsn(lsn)}",
            hint="Delta removes its log after delta.logRetentionDuration (30 days): read a later "
            "LSN, or set it higher.",
            relation=table.name,
            lsn=str(Lsn(lsn)),
        )
    return None


def last_transaction(log: LakePath, application: str) -> int | None:
    """Return the version of *application*'s last transaction among a log's newest commits, None if
    it isn't there.

    Commits are JSON lines in files named by version (the Delta protocol's "Delta Log Entries").
    Each commit of ours has its transaction, so the newest file nearly always ends the search;
    maintenance by others (OPTIMIZE, VACUUM, ALTER) comes between.
    """
    for commit in _newest_commits(log):
        mark = _mark(commit, application)
        if isinstance(mark, int):
            return mark
    return None


def _newest_commits(log: LakePath) -> list[LakePath]:
    """Return so many of a log's commits as a search for ours passes, the newest first."""
    if isinstance(log, ObjectPath):
        # A list of names is a request for each thousand of them: those behind the last checkpoint
        # are few.
        try:
            checkpoint = int(json.loads((log / "_last_checkpoint").read_text())["version"])
        except FileNotFoundError:
            checkpoint = 0
        first = max(checkpoint - _COMMITS_SEARCHED, 0)
        commits = _newest_first(log.after(f"{first:020d}"))
    else:
        commits = _commits(log)
    return commits[:_COMMITS_SEARCHED]


def _commits(log: LakePath) -> list[LakePath]:
    """Return a log's commits, the newest first."""
    return _newest_first(log.glob("*.json"))


def _newest_first(paths: Iterable[LakePath]) -> list[LakePath]:
    commits = (path for path in paths if path.name.endswith(".json") and path.stem.isdecimal())
    return sorted(commits, key=lambda path: path.name, reverse=True)


class _Reshape:
    """The mark of a commit that changed the current table's columns for the batch to come."""


def _mark(commit: LakePath, application: str) -> int | type[_Reshape] | None:
    """Return the version of *application*'s transaction in a commit, or that it is a reshape; None:
    neither.
    """
    with _lines(commit) as lines:
        for line in lines:
            if line.startswith('{"txn":'):
                transaction = json.loads(line)["txn"]
                if transaction["appId"] == application:
                    return int(transaction["version"])
            elif (
                line.startswith('{"commitInfo":')
                and json.loads(line)["commitInfo"].get("userMetadata") == _RESHAPE
            ):
                return _Reshape
    return None


@contextmanager
def _lines(commit: LakePath) -> Iterator[Iterable[str]]:
    if isinstance(commit, ObjectPath):
        yield commit.read_text().split("\n")
        return
    with commit.open(encoding="utf-8") as lines:
        yield lines


def merge_rows(
    columns: Sequence[str], key: Sequence[str], kept: Sequence[str], *, truncated: bool
) -> str:
    """Return the clauses of a keyed MERGE of target ``t`` with the net effect ``s``."""
    on = " AND ".join(f"t.{quoted(k)} = {_after(k)}" for k in key)
    updates = ", ".join(
        f"t.{quoted(c)} = CASE WHEN s.{quoted(KEEP + c)} THEN t.{quoted(c)} ELSE {_after(c)} END"
        if c in kept
        else f"t.{quoted(c)} = {_after(c)}"
        for c in columns
    )
    return " ".join(
        [
            f"ON {on}",
            f"WHEN MATCHED AND s.{SET} THEN UPDATE SET {updates}",
            "WHEN MATCHED THEN DELETE",
            f"WHEN NOT MATCHED AND s.{SET} THEN {_insert({c: _after(c) for c in columns})}",
            *_emptied(truncated=truncated),
        ]
    )


def merge_copies(columns: Sequence[str], counted: str, *, truncated: bool) -> str:
    """Return the clauses of a MERGE of copies of distinct rows, which the table counts in
    *counted*.
    """
    on = " AND ".join(f"t.{quoted(c)} <=> {_after(c)}" for c in columns)
    copies = f"s.{COPIES}" if truncated else f"t.{counted} + s.{COPIES}"
    inserted = {**{c: _after(c) for c in columns}, counted: f"s.{COPIES}"}
    return " ".join(
        [
            f"ON {on}",
            f"WHEN MATCHED AND {copies} > 0 THEN UPDATE SET t.{counted} = {copies}",
            "WHEN MATCHED THEN DELETE",
            f"WHEN NOT MATCHED AND s.{COPIES} > 0 THEN {_insert(inserted)}",
            *_emptied(truncated=truncated),
        ]
    )


def _after(column: str) -> str:
    """Return the value that a column has by the net effect."""
    return f"s.{quoted(own(column))}"


def _insert(values: Mapping[str, str]) -> str:
    names = ", ".join(map(quoted, values))
    return f"INSERT ({names}) VALUES ({', '.join(values.values())})"  # noqa: S608 - names are quoted


def _emptied(*, truncated: bool) -> Iterator[str]:
    if truncated:
        yield "WHEN NOT MATCHED BY SOURCE THEN DELETE"


def _user_metadata(batch: Batch) -> str:
    return json.dumps(
        {
            "spillway": {
                "slot": batch.slot_name,
                "start_lsn": str(Lsn(batch.start_lsn)),
                "end_lsn": str(Lsn(batch.end_lsn)),
                "batch_id": batch.batch_id,
            }
        }
    )
