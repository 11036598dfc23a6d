"""The initial load: what was in a table before its changes are followed, exactly once, while they
are being followed.

::

    snapshot as of S ──ctid ranges──▶ COPY, in parallel ──▶ history: _op R and _commit_lsn S-1
                                         │                    │ a commit a chunk; when all are there
                                         └─ files of both     ▼
                                                            current, one commit, as of S
    history [S, its end) ──net effect──▶ current ──▶ the job's again

The job that follows the slot goes on all the while: it appends the table's changes to history and
confirms the slot, and only leaves current alone (:mod:`spillway.lake.state.loads`). Whatever is
before S is in the snapshot, what comes from S on is in history when current is as of S: the rule
that feeds current from its own LSN on makes the two meet. A re-sync is the same with a current
table that is there already.

**Who writes.** Where the format has it (:class:`~spillway.lake.tables.load_contract.FileLoads`),
who copies a range writes its files for both tables, an executor's Python process or, for a small
table, the driver's; the driver commits them, and current is made of files that are there. Else
Spark's writer gets the rows, and current is written from history's. A load that goes on after its
process was killed doesn't know the files that were written for current, and does the latter, too.

**DDL.** The snapshot's session holds the tables' shape until current is the job's again, so all
changes in [S, history's end) have the shape of the loaded rows, also those of batches that the job
only appended.

**What a crash costs.** A table that is done stays done. A chunk that failed is copied again. A
table that was at work goes on with its next chunk while its snapshot lives; the snapshot is its
session's, so a killed process takes it along, and then the table's loaded rows are dropped from
history and it begins anew as of a new S. Meanwhile its current stays as it was, and history
complete.

A table that can't be loaded, for a value that no file takes, say, is told of and passed over
(:class:`LoadFailed`): the others are loaded. A snapshot that is lost again and again, or a source
or a disk that fails, is no table's own trouble, and ends the load.

Runs on the driver, one load a lake at a time. Of tables that share a snapshot
:data:`_TABLES_AT_ONCE` are loaded at once, each in parallel, the small ones first; a large one has
a snapshot of its own, so that none is kept longer than one large table takes: it keeps VACUUM from
removing what changed since.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from spillway.consumer.table_copy import DDL_WAITS
from spillway.errors import (
    LakeError,
    LakeSchemaConflict,
    LakeTableConflict,
    NotReady,
    ValueNotRepresentable,
)
from spillway.failpoints import failpoint
from spillway.lake.batch.catch_up import Behind, catch_up
from spillway.lake.batch.poison import is_tables_own
from spillway.lake.load.copy_ranges import CopyRanges, CopyToFiles
from spillway.lake.shape import columns as table_shape
from spillway.lake.shape.changes import shape_text
from spillway.lake.shape.kinds import CURRENT, HISTORY
from spillway.lake.shape.net_effect import DELETED_AT, copies_name, quoted
from spillway.lake.shape.payload import directory_of, lake_schema, merge_schemas, relation_of
from spillway.lake.state.loads import (
    BLOCK_BYTES,
    RANGE_BYTES,
    LoadState,
    Stage,
    directories_named,
    has_table,
    load_state,
    merge_lock,
    store_state,
    table_lock,
)
from spillway.lake.state.shown_tables import shown_tables
from spillway.lake.tables import layout
from spillway.lake.tables.contract import (
    MULTISET,
    Batch,
    check_key,
    check_name,
    check_soft_deletes,
    row_key,
)
from spillway.lake.tables.load_contract import NO_BATCH, loaded_rows
from spillway.lake.worker_failures.errors import typed_error
from spillway.lake.worker_failures.late import Patience
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from spillway.consumer.slot import SlotPosition
    from spillway.consumer.snapshots import CopiedTable, Source, SourceSnapshot, SourceTable
    from spillway.errors import SpillwayError
    from spillway.lake.shape.payload import Relation
    from spillway.lake.tables.load_contract import LoadTables
    from spillway.storage.place import LakePath

_log = logging.getLogger(__name__)

#: Ranges of a chunk, per core: a commit's seconds are little beside what they take.
_RANGES_PER_CORE: Final = 4
#: Tables share a snapshot while they are smaller than this together.
_SNAPSHOT_BYTES: Final = 4 << 30
#: A table takes some connections and commits, which wait for disks and for the source: while one
#: does, another one copies.
_TABLES_AT_ONCE: Final = 4
#: Up to it a table's only range is copied by the driver.
_SMALL_BYTES: Final = 16 << 20
_ATTEMPTS: Final = 3
_ENDED: Final = "the session that kept the snapshot was ended"

_Done = TypeVar("_Done")


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """A step of a load, for people."""

    table: str
    #: of its heap
    bytes_done: int
    bytes_total: int
    seconds: float
    done: bool
    lsn: Lsn

    def __str__(self) -> str:
        mib = self.bytes_done / (1 << 20)
        if self.done:
            return f"loaded {self.table}: {mib:.0f} MiB in {self.seconds:.1f} s, as of {self.lsn}"
        share = 100 * self.bytes_done // self.bytes_total if self.bytes_total else 100
        left = self.seconds * (self.bytes_total - self.bytes_done) / max(self.bytes_done, 1)
        return (
            f"loading {self.table}: {share} % of {self.bytes_total / (1 << 20):.0f} MiB, "
            f"{mib / max(self.seconds, 1e-3):.0f} MiB/s, {left:.0f} s left"
        )


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """A table that was passed over, for people."""

    table: str
    error: SpillwayError

    def __str__(self) -> str:
        told = f"{self.error.message.rstrip('.')}. {self.error.hint}".strip()
        return f"{self.table} is not loaded: {told}"


class _CopyFailed(Exception):
    """The driver's own copy of a small table failed; the cause says how."""


class _SnapshotLost(Exception):
    """The snapshot is gone, or has to go: the table at hand begins anew."""


@dataclass(frozen=True, slots=True)
class _Table:
    """A table at work: its snapshot's, and what follows from that."""

    name: str
    relation: Relation
    plan_schema: pa.Schema
    columns: tuple[str, ...]
    key: tuple[str, ...] | None
    #: from the snapshot on
    shape: table_shape.Shape

    @property
    def directory(self) -> str:
        return self.relation.directory


class InitialLoad:
    """Loads tables of one source into one lake.

    Args:
        spark: the session that copies.
        tables: the lake's.
        path: the lake's.
        source: the slot's source.
        slot: where the slot stands.
        stopping: ends the load between two chunks.
        report: told of each step.
        range_bytes: see :data:`spillway.lake.state.loads.RANGE_BYTES`.
    """

    def __init__(
        self,
        spark: SparkSession,
        tables: LoadTables,
        path: LakePath,
        source: Source,
        slot: SlotPosition,
        stopping: threading.Event,
        report: Callable[[object], None],
        *,
        range_bytes: int = RANGE_BYTES,
    ) -> None:
        self._spark = spark
        self.tables = tables
        self._path = path
        self._source = source
        self._slot = slot
        self._stopping = stopping
        self._report = report
        self._range_blocks = max(1, range_bytes // BLOCK_BYTES)
        self._shown = shown_tables(path)
        self._failed: list[LoadFailed] = []
        #: names of snapshots that have to go, and why
        self._lost: dict[str, str] = {}
        self._chunk_ranges = _RANGES_PER_CORE * max(1, spark.sparkContext.defaultParallelism)
        self._check_source()

    def choose(
        self, wanted: Sequence[str], *, missing_only: bool, resync: bool
    ) -> list[SourceTable]:
        """Say which tables to load, and make their current state the load's.

        Args:
            wanted: names; all of the database when it is empty.
            missing_only: leave out what the lake has of its own accord: from changes, or loaded
                before.
            resync: load anew what was loaded before.

        Raises:
            LakeTableConflict: one that is named was loaded before, and *resync* is false.
            LakeSchemaConflict: a name that is given is that of two tables; with *missing_only* they
                are left out.
        """
        chosen = []
        found = self._source.tables(wanted)
        for table in found:
            directory = directory_of(*table.shown)
            try:
                check_name(table.name, directories_named(self._path, table.name, found))
            except LakeSchemaConflict as error:
                if wanted and not missing_only:
                    raise
                # Others are not to wait for it; the job tells the same of its changes.
                _log.warning("%s", LoadFailed(table.name, error))
                continue
            with table_lock(self._path, directory):
                state = load_state(self._path, directory)
                begun = state is not None and state.stage != Stage.DONE
                if not begun:
                    if missing_only and has_table(self._path, directory):
                        continue
                    if state is not None and not resync:
                        if not wanted:
                            continue
                        raise LakeTableConflict(
                            f"{table.name} was loaded before, as of {state.lsn}",
                            hint="--resync loads it anew; its history stays.",
                            relation=table.name,
                        )
                    store_state(self._path, directory, LoadState(table.name))
            chosen.append(table)
        return chosen

    def run(self, chosen: Sequence[SourceTable]) -> list[LoadFailed]:
        """Load the tables that :meth:`choose` gave; return those that could not be.

        Raises:
            SpillwayError: of the source, of the lake, or NotReady when it was stopped. What is done
                stays done.
        """
        self._failed = []
        for group in _groups(chosen):
            self._load_together(group)
        return self._failed

    def _check_source(self) -> None:
        slot, source = self._slot, self._source
        if source.database != slot.database:
            raise LakeError(
                f"the DSN is of database {source.database}, slot {slot.slot_name} decodes "
                f"{slot.database}",
                hint="Give the DSN of the slot's own database.",
                slot=slot.slot_name,
            )
        # The service follows the source, so it can't be ahead of it.
        if (wal := source.wal_lsn()) < slot.decoded_lsn:
            raise LakeError(
                f"the DSN's server has written WAL up to {Lsn(wal)}, slot {slot.slot_name} is "
                f"decoded up to {Lsn(slot.decoded_lsn)}: that is another server",
                hint="Give the DSN of the slot's own source.",
                slot=slot.slot_name,
            )
        # Before a table is taken away from the job: it would wait for a load that can't be.
        source.check_server()

    def _load_together(self, group: Sequence[SourceTable]) -> None:
        remaining = list(group)
        for table in group:
            # Only a load that was cut off without its snapshot's session ending, on another machine
            # for one.
            with self._continued(table) as snapshot:
                if snapshot is not None:
                    with suppress(_SnapshotLost):
                        self._load_or_pass_over(table, snapshot)
                        remaining.remove(table)
        for attempt in range(1, _ATTEMPTS + 1):
            if not remaining:
                return
            snapshot = self._source.snapshot(remaining, self._report, self._stopping)
            try:
                self._load_at_once(remaining, snapshot)
            except _SnapshotLost as reason:
                if attempt == _ATTEMPTS:
                    raise LakeError(
                        f"the load had to begin anew {_ATTEMPTS} times: {reason}",
                        hint="Load when no DDL is at work on the tables; a pooler between must not "
                        "end idle sessions.",
                    ) from None
                self._report(f"{reason}: taking another snapshot")
            finally:
                snapshot.close()

    def _load_at_once(self, remaining: list[SourceTable], snapshot: SourceSnapshot) -> None:
        """Load some tables at a time, and take those that are done out of *remaining*.

        Raises:
            _SnapshotLost: what has begun is done, or as if it had not begun.
            SpillwayError: the first one's that failed; others that had begun are done first.
        """
        with ThreadPoolExecutor(_TABLES_AT_ONCE, "spillway-load") as pool:
            begun = {
                pool.submit(self._load_or_pass_over, table, snapshot): table for table in remaining
            }
            failed: BaseException | None = None
            for future in as_completed(begun):
                if future.cancelled():
                    continue
                error = future.exception()
                if error is None:
                    remaining.remove(begun[future])
                    continue
                # That the snapshot is lost is no reason to end where another one says why.
                if failed is None or isinstance(failed, _SnapshotLost):
                    failed = error
                for other in begun:
                    other.cancel()
        if failed is not None:
            raise failed

    @contextmanager
    def _continued(self, table: SourceTable) -> Iterator[SourceSnapshot | None]:
        """Yield the snapshot of a load that was cut off, if it lives; else make the table as if
        never begun.
        """
        state = load_state(self._path, directory_of(*table.shown))
        assert state is not None  # chosen
        snapshot = None
        if state.stage == Stage.COPYING:
            snapshot = self._source.reopened(
                state.snapshot, state.snapshot_contents, state.lsn_value, [table]
            )
            if snapshot is None:
                self._begin_anew(table.name, directory_of(*table.shown), state)
        try:
            yield snapshot
        finally:
            if snapshot is not None:
                snapshot.close()

    def _begin_anew(self, name: str, directory: str, state: LoadState) -> None:
        """Drop what a load brought whose snapshot is gone."""
        with table_lock(self._path, directory):
            self.tables.drop_loaded(directory, state.lsn_value)
            store_state(self._path, directory, LoadState(name))

    def _load_or_pass_over(self, table: SourceTable, snapshot: SourceSnapshot) -> None:
        """Load a table; take down why, if that fails by its own trouble."""
        try:
            self._load(table.name, snapshot)
        except _SnapshotLost as reason:
            # Other tables that are at work have it, too, and somebody waits for it to go.
            self._lost.setdefault(snapshot.name, str(reason))
            raise
        except BaseException as error:
            typed = typed_error(
                error,
                what=f"loading {table.name} failed",
                hint="Mend it, and load the table again.",
                relation=table.name,
            )
            # A worker's, which Spark has brought as text, or the driver's own.
            if not isinstance(typed, ValueNotRepresentable) and not is_tables_own(error):
                raise
            failed = LoadFailed(table.name, typed)
            directory = directory_of(*table.shown)
            with table_lock(self._path, directory):
                state = load_state(self._path, directory)
                assert state is not None  # chosen
                store_state(self._path, directory, replace(state, reason=str(failed)))
            self._failed.append(failed)
            self._report(failed)

    def _load(self, name: str, snapshot: SourceSnapshot) -> None:
        began = time.monotonic()
        copied = snapshot.tables[name]
        schema = copied.schema
        relation = _relation(copied)
        at = (snapshot.lsn, 0)
        shape = table_shape.Shape(at, at, table_shape.columns_of(schema), relation.oid)
        columns = tuple(column.name for column in shape.columns)
        table = _Table(name, relation, schema, columns, row_key(relation, columns), shape)
        state = self._begin(table, copied, snapshot)
        try:
            files = self._copy(table, copied, snapshot, state, began)
            self._publish(table, snapshot, files)
        except _SnapshotLost:
            self._begin_anew(name, table.directory, state)
            raise
        size = copied.blocks * BLOCK_BYTES
        seconds = time.monotonic() - began
        self._report(LoadProgress(name, size, size, seconds, done=True, lsn=Lsn(snapshot.lsn)))

    def _begin(self, table: _Table, copied: CopiedTable, snapshot: SourceSnapshot) -> LoadState:
        if snapshot.lsn < self._slot.confirmed_flush_lsn:
            raise LakeError(
                f"the snapshot is as of {Lsn(snapshot.lsn)}, and slot {self._slot.slot_name} was "
                f"confirmed up to {Lsn(self._slot.confirmed_flush_lsn)}: the DSN is of another "
                "server",
                hint="Give the DSN of the slot's own source.",
                slot=self._slot.slot_name,
            )
        directory = table.directory
        with table_lock(self._path, directory):
            state = load_state(self._path, directory)
            assert state is not None  # chosen
            if state.stage == Stage.COPYING:
                return state
            state = LoadState(
                table.name, Stage.COPYING, str(Lsn(snapshot.lsn)), snapshot.name, snapshot.contents,
                blocks=copied.blocks, range_blocks=self._range_blocks,
                chunk_ranges=self._chunk_ranges,
                shape=shape_text(table.shape),
            )  # fmt: skip
            if table.key is not None:
                layout.load(self._path).check(directory, self._current(table))
            wanted = self._history_schema(table)
            # Before any row of it: the state says what to drop.
            store_state(self._path, directory, state)
            self.tables.prepare_history(
                directory, from_arrow_schema(wanted, prefer_timestamp_ntz=True), snapshot.lsn
            )
        failpoint("lake.load_begun")
        return state

    def _copy(
        self,
        table: _Table,
        copied: CopiedTable,
        snapshot: SourceSnapshot,
        state: LoadState,
        began: float,
    ) -> list[str] | None:
        """Bring all rows into history, chunk by chunk; return files of the current table with all
        of them, None if there are none.
        """
        schema = from_arrow_schema(self._history_schema(table), prefer_timestamp_ntz=True)
        columns = to_arrow_schema(schema, timezone="UTC")
        total = copied.blocks * BLOCK_BYTES
        first = self.tables.loaded_chunks(table.directory, snapshot.lsn)
        by_files, files = self.tables.by_files, None
        if by_files is not None:
            files = by_files.load_files(
                table.directory,
                None if table.key is None else self._current(table),
                table.key or MULTISET,
                snapshot.taken_at_us,
            )
        current: list[str] = []
        for chunk in range(first, state.chunks):
            ranges = state.ranges(chunk)
            copy = CopyRanges(self._source, snapshot, copied, columns, ranges)
            if by_files is None or files is None:
                self._copied(table, snapshot, copy, schema, len(ranges), chunk)
            else:
                to_files = CopyToFiles(copy, files)
                # A Spark job takes longer.
                here = len(ranges) == 1 and total <= _SMALL_BYTES
                done = self._written(table, snapshot, to_files, len(ranges), chunk, here=here)
                current += [file for kind, file in done if kind == CURRENT]
                of_history = [file for kind, file in done if kind == HISTORY]
                by_files.append_files(table.directory, of_history, snapshot.lsn, chunk)
            failpoint("lake.load_chunk")
            state = replace(state, chunks_done=chunk + 1)
            store_state(self._path, table.directory, state)
            at = min(ranges[-1][1] * BLOCK_BYTES, total)
            seconds = time.monotonic() - began
            self._report(
                LoadProgress(table.name, at, total, seconds, done=False, lsn=Lsn(snapshot.lsn))
            )
        self.tables.seal_loaded(table.directory, snapshot.lsn)
        return current if not first and files is not None and files.current is not None else None

    def _copied(
        self,
        table: _Table,
        snapshot: SourceSnapshot,
        copy: CopyRanges,
        schema: StructType,
        count: int,
        chunk: int,
    ) -> None:
        """Have Spark write a chunk of *count* ranges to history."""

        def attempt() -> None:
            rows = self._spark.range(0, count, 1, count).mapInArrow(copy, schema)
            self.tables.append_loaded(table.directory, rows, snapshot.lsn, chunk)

        self._attempted(table, snapshot, chunk, attempt)

    def _written(
        self,
        table: _Table,
        snapshot: SourceSnapshot,
        copy: CopyToFiles,
        count: int,
        chunk: int,
        *,
        here: bool,
    ) -> list[tuple[str, str]]:
        """Have a chunk of *count* ranges written to files where it is copied, by executors or
        *here*; return them.
        """

        def attempt() -> list[tuple[str, str]]:
            if here:
                try:
                    return [file for number in range(count) for file in copy.copied(number)]
                except LakeError as error:
                    raise _CopyFailed(error) from error
            numbers = self._spark.range(0, count, 1, count)
            done = numbers.mapInArrow(copy, "kind string, file string").collect()
            return [(row["kind"], row["file"]) for row in done]

        return self._attempted(table, snapshot, chunk, attempt)

    def _attempted(
        self, table: _Table, snapshot: SourceSnapshot, chunk: int, attempt: Callable[[], _Done]
    ) -> _Done:
        """Do *attempt*, which copies a chunk, again where that may help.

        Raises:
            _SnapshotLost: the snapshot is gone, or has to go.
            NotReady: the load was stopped.
            SpillwayError: it failed again and again.
        """
        patience, failures = Patience(self._stopping), 0
        while True:
            if self._stopping.is_set():
                raise NotReady(
                    f"the load of {table.name} was stopped",
                    hint="Run it again: it begins anew.",
                )
            if snapshot.name in self._lost:
                raise _SnapshotLost(self._lost[snapshot.name])
            try:
                return attempt()
            except (PySparkException, _CopyFailed) as error:
                if DDL_WAITS in str(error):
                    raise _SnapshotLost(DDL_WAITS) from error
                if not snapshot.alive():
                    raise _SnapshotLost(_ENDED) from error
                if patience.waited(error):
                    continue
                failures += 1
                if failures == _ATTEMPTS:
                    raise typed_error(
                        (isinstance(error, _CopyFailed) and error.__cause__) or error,
                        what=f"loading {table.name} failed",
                        hint="What was loaded stays; run the load again.",
                        relation=table.name,
                    ) from error
                _log.warning("chunk %d of %s is copied again: %s", chunk, table.name, error)

    def _publish(
        self, table: _Table, snapshot: SourceSnapshot, files: Sequence[str] | None
    ) -> None:
        """Make the loaded rows current, catch up with history, and give the table back to the
        job.
        """
        failpoint("lake.load_copied")
        # A merge that began before the load was chosen may be at it still.
        with merge_lock(self._path, table.directory):
            self._make_current(table, snapshot, files)
        failpoint("lake.load_done")

    def _replace(self, table: _Table, lsn: int, files: Sequence[str] | None) -> None:
        """Make the loaded rows, which are in *files* if these are known, the current table, as of
        *lsn*.
        """
        assert table.key is not None  # it has a current table
        directory, key = table.directory, table.key
        batch = Batch(self._slot.slot_name, lsn, lsn, NO_BATCH)
        wanted, softly = self._current(table), self._shown.softly(table.name)
        by_files = self.tables.by_files
        if (
            files is not None
            and by_files is not None
            and by_files.replace_current_files(directory, files, wanted, key, batch)
        ):
            return
        rows = loaded_rows(self.tables, directory, lsn)
        rows = table_shape.as_of_last(rows, [table.shape], table.name)
        if key == MULTISET:
            names, counted = map(quoted, table.columns), copies_name(table.columns)
            rows = rows.groupBy(*names).agg(F.count(F.lit(1)).alias(counted))
        if softly:
            rows = rows.select("*", F.lit(None).cast("timestamp").alias(DELETED_AT))
        self.tables.replace_current(directory, rows, wanted, key, batch)

    def _make_current(
        self, table: _Table, snapshot: SourceSnapshot, files: Sequence[str] | None
    ) -> None:
        directory, lsn = table.directory, snapshot.lsn
        if table.key is not None and self.tables.durable_lsn(CURRENT, directory) < lsn:
            self._replace(table, lsn, files)
            failpoint("lake.load_published")
            # Most of it without the lock, which the job waits for.
            self._catch_up(table)
        with table_lock(self._path, directory):
            self._catch_up(table)
            # As long as it lives nobody altered the table; then history has changes of one shape
            # only.
            if not snapshot.alive():
                raise _SnapshotLost(_ENDED)
            state = load_state(self._path, directory)
            assert state is not None  # begun
            store_state(self._path, directory, replace(state, stage=Stage.DONE, reason=""))

    def _catch_up(self, table: _Table) -> None:
        """Merge what the job appended to history from the snapshot's LSN on, which it left to
        us.
        """
        directory, key = table.directory, table.key
        if key is None:
            return
        start = self.tables.durable_lsn(CURRENT, directory)
        end = self.tables.durable_lsn(HISTORY, directory)
        if end <= start:
            return
        behind = Behind(
            directory,
            table.name,
            key,
            table.shape,
            table.relation.primary_key_deferrable,
            self._shown.softly(table.name),
        )
        batch = Batch(self._slot.slot_name, start, end, NO_BATCH)
        catch_up(self.tables, behind, batch)

    def _current(self, table: _Table) -> pa.Schema:
        shape = table.shape
        if table.key is not None and self._shown.softly(table.name):
            check_soft_deletes(table.relation, table.key)
            shape = table_shape.with_deleted_at(shape, table.name)
        return table_shape.current_schema(shape.columns)

    def _history_schema(self, table: _Table) -> pa.Schema:
        """Return what history has or gets: all its columns, so that the loaded rows are in those of
        their types.
        """
        wanted = lake_schema(table.plan_schema)
        stored = self.tables.schema(HISTORY, table.directory)
        return (
            wanted
            if stored is None
            else merge_schemas(stored, wanted, table.name, self.tables.widest)
        )


def _relation(copied: CopiedTable) -> Relation:
    """Return what a table is to the lake.

    Raises:
        LakeSchemaConflict: what tells its rows is masked, or not the same in all its partitions.
    """
    relations = [relation_of(part.plan.schema) for part in copied.parts or (copied,)]
    for relation in relations:
        check_key(relation)
    keys = {(each.primary_key, each.replica_identity) for each in relations}
    if len(keys) > 1:
        name = relations[0].name
        raise LakeSchemaConflict(
            f"partitions of {name} tell their rows differently, and it has no primary key",
            hint="Give them all REPLICA IDENTITY FULL, or the table a primary key; then load it.",
            relation=name,
        )
    return relations[0]


def _groups(tables: Sequence[SourceTable]) -> Iterator[list[SourceTable]]:
    """Cut *tables* into those that share a snapshot, small ones first."""
    group: list[SourceTable] = []
    size = 0
    for table in sorted(tables, key=lambda table: table.size_bytes):
        if group and size + table.size_bytes > _SNAPSHOT_BYTES:
            yield group
            group, size = [], 0
        group.append(table)
        size += table.size_bytes
    if group:
        yield group
