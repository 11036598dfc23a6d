"""Table sync of one subscription: what is missing is copied, then handed to the worker.

::

    first_copy (the worker's thread, before it streams)      i ─▶ d ─▶ f ─▶ s
    a thread of its own, beside the stream                   i ─▶ d ─▶ f ─▶ (catch up) ─┐
    at_boundary (the worker's thread, between two groups)                 f ─▶ s, s ─▶ r ◀┘

An attempt takes one snapshot for all tables that have nothing yet, and copies them. Of tables that failed alone the
rows are taken away again and the table is tried later, with a snapshot that is then young: none is kept on the source
for the sake of a table whose copy can't succeed. When a connection broke, or the process was killed, the
snapshot may still be there (the service holds it for a while), and only ranges that are not durable are copied.
Without it, a table that is not whole begins anew: what is in it is what was copied, since only a table that was empty
is copied in more than one transaction.

At a boundary the worker is at W: it has applied every transaction with its commit record before W, and none behind. A table
copied as of L ≥ W is handed over as it is. One that is behind reads what it lacks, [L, W), by a peek of the slot,
in one transaction with its new state: first beside the stream, as often as much is missing, then by the worker's
thread itself, which is when nothing can happen in between. PostgreSQL's table sync worker is told the same by SYNCWAIT and CATCHUP.

Source: LogicalRepSyncTableStart, process_syncing_tables_for_apply (src/backend/replication/logical/tablesync.c)
"""  # noqa: E501

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import psycopg
from psycopg import sql

from spillway.apply.sync import indexes, sequences
from spillway.apply.sync.copiers import Copiers, TableCopy, connect_source
from spillway.apply.sync.definitions import create_missing
from spillway.apply.sync.plan import plan
from spillway.apply.sync.published import PublishedTable, describe, list_tables
from spillway.apply.sync.states import SyncState, TableName, TableState, TableStates
from spillway.apply.tables.matching import match_all, same_name
from spillway.apply.target.failures import from_postgres
from spillway.consumer.snapshots import Source, SourceSnapshot
from spillway.errors import SourceError, SourceTableAltered, SpillwayError
from spillway.failpoints import failpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from spillway.apply.sync.plan import CopyPlan
    from spillway.apply.tables.matched import MatchedTable
    from spillway.apply.tables.matching import Rename
    from spillway.consumer.slot import ExportedSnapshot

_log = logging.getLogger(__name__)

Connection = psycopg.Connection[tuple[Any, ...]]

#: What a table lacks when its last bit is left to the worker's thread.
_NEAR_BYTES: Final = 4 << 20
_POLL_S: Final = 0.2
_RETRY_S: Final = 5.0
_RETRY_MAX_S: Final = 180.0
#: of the first copy, when connections break
_ATTEMPTS: Final = 6


class CatchUp(Protocol):
    """Applies what tables lack, beside the stream."""

    def __call__(
        self,
        tables: frozenset[TableName],
        start_lsn: int,
        upto_lsn: int,
        before_commit: Callable[[Connection], None],
    ) -> None:
        """Write the changes of *tables* that the slot has in transactions whose commit record
        starts in [*start_lsn*, *upto_lsn*), and what *before_commit* writes, in one transaction of
        the target. The slot is read by a peek.

        Raises:
            SpillwayError: nothing of it was written.
        """


def _all(schema: str, table: str) -> bool:
    del schema, table
    return True


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """What a subscription says of its tables' first copies."""

    #: on the source; none: every table
    publications: tuple[str, ...] = ()
    #: to each side
    connections: int = 2
    #: of a heap, about, that one COPY reads
    range_bytes: int = 128 << 20
    #: indexes that are no constraints are dropped for the copy and made again
    defer_indexes: bool = False
    #: tables that the target lacks are made from the source's definitions
    create_tables: bool = False
    #: sequences are set again after so many seconds; None: at the first copy and a refresh only
    sequences_every_s: float | None = None
    #: of the subscription, that marks what is written; '' where the role may not
    origin: str = ""
    rename: Rename = same_name
    #: which of the published tables are the subscription's
    selected: Callable[[str, str], bool] = _all


@dataclass(slots=True)
class _Retry:
    at: float
    pause: float


class TableSync:
    """See the module's docstring.

    Args:
        subscription: its name.
        settings: its.
        source_dsn: a libpq connection string.
        connect_target: opens a session on the target that may write, in autocommit, with
            session_replication_role as it may be.
        exports: has the service hold a snapshot that is paired with an LSN
            (:func:`spillway.consumer.connect.exports_of`).
        catch_up: reads and writes what tables lack.
        tell: is told what a person may want to know.

    Raises:
        SpillwayError: the target can't be asked, or has no ``spillway.tables``.
    """

    def __init__(
        self,
        subscription: str,
        settings: SyncSettings,
        source_dsn: str,
        connect_target: Callable[[], Connection],
        exports: Callable[[], AbstractContextManager[ExportedSnapshot]] | None,
        catch_up: CatchUp,
        tell: Callable[[str], None] = _log.info,
    ) -> None:
        self._subscription = subscription
        self._settings = settings
        self._dsn = source_dsn
        self._connect_target = connect_target
        self._exports = exports
        self._catch_up = catch_up
        self._tell = tell
        self._stopping = threading.Event()
        self._wanted = threading.Event()
        self._refreshing = threading.Event()
        self._source: Source | None = None
        self._held: SourceSnapshot | None = None
        #: the name by which whoever comes after this process may import it
        self._held_name = ""
        self._exported_name = ""
        #: gives the service's snapshot up
        self._holding = ExitStack()
        self._position = 0
        self._lock = threading.Lock()
        #: what the worker's thread is to do at its next boundary
        self._waiting: set[TableName] = set()
        self._retries: dict[TableName, _Retry] = {}
        self._copies: Sequence[TableCopy] = ()
        self._sequences_at = 0.0
        #: how sequences stood when they were last set; None: never yet
        self.sequences: sequences.SequenceSync | None = None
        #: what each table last failed with, in this process
        self.errors: dict[TableName, SpillwayError] = {}
        #: what could not be made on the target, and why
        self.not_made: Mapping[str, str] = {}
        self._thread: threading.Thread | None = None
        self._boundary: Connection | None = None
        try:
            with connect_target() as connection:
                self.states = TableStates(connection, subscription)
        except psycopg.Error as error:
            raise from_postgres(error, "the states of the subscription's tables") from None

    # --- the worker's side --------------------------------------------------------------------

    def first_copy(self, position: int) -> None:
        """Copy what has nothing yet, before the stream begins. Blocking; :meth:`stop` ends it.

        A table's trouble is its own, and it is tried again beside the stream.

        Args:
            position: where the stream will begin: nothing behind it is applied.

        Raises:
            SpillwayError: the source or the target can't be reached, a publication is missing, or
                it was stopped.
        """
        self._position = position
        self.list_tables()
        # Of a process that was killed after a copy.
        self.at_boundary(position)
        failures = 0
        while self._due() and not self._stopping.is_set():
            try:
                self._attempt()
            except SpillwayError as error:
                failures += 1
                if failures >= _ATTEMPTS or self._stopping.is_set():
                    raise
                # The snapshot is kept for a while: what is durable need not be copied again.
                self._tell(f"table sync: {error.message}: it is tried again")
                self._stopping.wait(min(2.0**failures / 2, _RETRY_S))
            # Nothing streams: a table is handed over as soon as it is copied.
            self.at_boundary(position)
        self._let_go()
        if not self._stopping.is_set():
            self.synchronize_sequences()

    def begin_without_copy(self, position: int) -> None:
        """Take the tables as they are on the target: ``copy_data = false``.

        Args:
            position: where the stream will begin.

        Raises:
            SpillwayError: as :meth:`first_copy`.
        """
        self._position = position
        self.list_tables(is_copied=False)

    def start(self) -> None:
        """Begin to copy beside the stream what is missing, now and later."""
        assert self._thread is None
        self._thread = threading.Thread(target=self._run, name="table sync", daemon=True)
        self._thread.start()

    def at_boundary(self, position: int) -> None:
        """Hand over what is ready for it. Cheap when nothing is.

        Called by the worker between groups and when it idles, with no transaction open.

        Args:
            position: every transaction with its commit record before it is applied, none behind.
        """
        self._position = position
        if self.states.are_all_ready:
            return
        tables = self.states.all().values()
        whole = [t for t in tables if t.state == SyncState.FINISHED_COPY and t.lsn >= position]
        passed = any(t.state == SyncState.SYNC_DONE and t.lsn <= position for t in tables)
        with self._lock:
            waiting = set(self._waiting)
        if not whole and not passed and not waiting:
            return
        try:
            connection = self._boundary_session()
            done = [replace(table, state=SyncState.SYNC_DONE) for table in whole]
            with connection.transaction():
                for table in done:
                    self.states.store(connection, table)
            self.states.changed(*done)
            if waiting:
                self._take_over(waiting, position)
            with connection.transaction():
                ready = self.states.pass_by(connection, position)
            self.states.changed(*ready)
        except psycopg.Error as error:
            raise from_postgres(error, "handing tables over to the stream") from None

    def refresh(self) -> None:
        """Look soon which tables are published: new ones are copied, others forgotten. As ALTER
        SUBSCRIPTION … REFRESH PUBLICATION.
        """
        self._refreshing.set()
        self._wanted.set()

    @property
    def has_waiting(self) -> bool:
        """Whether the next boundary applies what a table lacks yet."""
        with self._lock:
            return bool(self._waiting)

    def progress(self) -> Mapping[TableName, TableState]:
        """Return how far each table is, with the bytes that are under way."""
        found = dict(self.states.all())
        for copy in self._copies:
            if (table := found.get(copy.key)) is not None and copy.in_flight:
                found[copy.key] = replace(table, bytes=table.bytes + copy.in_flight)
        return found

    def stop(self) -> None:
        """End what runs; what is durable stays. Safe to repeat."""
        self._stopping.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._let_go()
        if self._boundary is not None:
            self._boundary.close()

    # --- what is there ------------------------------------------------------------------------

    def list_tables(self, *, is_copied: bool = True) -> None:
        """Bring the states in line with what is published.

        Args:
            is_copied: new tables are copied; else they are ready as they are.

        Raises:
            SpillwayError: a publication is missing, or a side can't be reached.
        """
        with self._source_session() as source:
            found = list_tables(source, self._settings.publications, self._settings.selected)
        known = self.states.all()
        gone = known.keys() - found.keys()
        if gone or found.keys() - known.keys():
            with self._target_session() as target, target.transaction():
                for key in gone:
                    indexes.make(target, known[key].dropped_indexes)
                self.states.forget(target, gone)
                new = self.states.add(target, found)
                if not is_copied:
                    new = [replace(table, state=SyncState.READY) for table in new]
                    for table in new:
                        self.states.store(target, table)
            self.states.forgotten(gone)
            self.states.changed(*new)
        if self._settings.create_tables:
            self._create_tables(
                [k for k, table in self.states.all().items() if table.state == SyncState.INIT]
            )

    def _create_tables(self, tables: Collection[TableName]) -> None:
        """Make what the target lacks; what can't be made is told, and the table's copy says that
        it is missing.
        """
        source = connect_source(self._source_of().conninfo)
        try:
            source.execute("SELECT pg_catalog.set_config('search_path', '', false)")
            with self._target_session() as target:
                target.execute("SELECT pg_catalog.set_config('search_path', '', false)")
                made = create_missing(source, target, tables, self._settings.rename)
        finally:
            source.close()
        for name in made.tables:
            self._tell(f"{name} is made on the target")
        for what, reason in made.failed.items():
            self._tell(f"{what} can't be made on the target: {reason}")
        self.not_made = made.failed

    def synchronize_sequences(self, *, may_go_back: bool = False) -> sequences.SequenceSync:
        """Set the target's sequences to where the source's are now.

        Args:
            may_go_back: also those that are further on the target.

        Raises:
            SpillwayError: a side can't be reached.
        """
        of = tuple(self.states.all()) if self._settings.publications else None
        with self._source_session() as source:
            theirs = sequences.read(source, of)
        with self._target_session() as target:
            found = sequences.write(target, theirs, self._settings.rename, may_go_back=may_go_back)
        self.sequences = found
        for name, reason in found.failed.items():
            self._tell(f"sequence {name} is not synchronized: {reason}")
        every_s = self._settings.sequences_every_s
        self._sequences_at = 0.0 if every_s is None else time.monotonic() + every_s
        return found

    # --- copying ------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = _RETRY_S
        while not self._stopping.is_set():
            self._wanted.wait(_POLL_S)
            self._wanted.clear()
            if self._stopping.is_set():
                break
            try:
                if self._refreshing.is_set():
                    self._refreshing.clear()
                    self.list_tables()
                    self.synchronize_sequences()
                elif self._sequences_at and time.monotonic() >= self._sequences_at:
                    self.synchronize_sequences()
                if self._due():
                    self._attempt()
                self._approach()
                pause = _RETRY_S
            except SpillwayError as error:
                if not self._stopping.is_set():
                    self._tell(f"table sync: {error.message}: tried again in {pause:.0f} s")
                self._stopping.wait(pause)
                pause = min(2 * pause, _RETRY_MAX_S)

    def _due(self) -> list[TableState]:
        """The tables that have to be copied and may be tried now."""
        return [
            table
            for table in self.states.all().values()
            if table.state in (SyncState.INIT, SyncState.DATA_SYNC) and self._may_try(table.key)
        ]

    def _attempt(self) -> None:
        """Copy what is due, of one snapshot.

        Raises:
            SpillwayError: a connection broke, or it was stopped; durable ranges stay.
        """
        due = self._due()
        begun = [table for table in due if table.state == SyncState.DATA_SYNC]
        snapshot, goes_on = self._snapshot_of(begun)
        if snapshot is None:
            with self._target_session() as target:
                for table in begun:
                    self._undo(target, table, "")
            snapshot = self._take()
            tables = {table.key for table in due}
        else:
            # Others are copied by a snapshot of their own, next.
            tables = goes_on
        copies = self._plan(snapshot, tables, resume=bool(goes_on))
        copiers = Copiers(
            self._source_of().conninfo,
            snapshot.name,
            self._connect_target,
            self.states,
            self._stopping.is_set,
            self._settings.origin,
        )
        self._copies = copies
        try:
            for copy in copies:
                if not copy.left:
                    self._finish(copy)
            copiers.run(copies, self._settings.connections, self._finish)
        finally:
            self._copies = ()
        with self._target_session() as target:
            for copy in copies:
                if copy.failed is not None:
                    self._failed(target, copy.key, copy.failed)
        self._let_go()

    def _snapshot_of(
        self, begun: Sequence[TableState]
    ) -> tuple[SourceSnapshot | None, set[TableName]]:
        """Return the snapshot by which tables that are begun go on, and which of them do."""
        held = self._held
        if held is not None and held.alive():
            of = {t.key for t in begun if t.snapshot == (self._held_name, held.contents)}
            if of:
                return held, of
        self._let_go()
        for name, lsn in dict.fromkeys((t.snapshot, t.lsn) for t in begun if t.snapshot):
            assert name is not None
            again = self._source_of().reopened(*name, lsn, ())
            if again is not None:
                self._held, self._held_name = again, name[0]
                return again, {t.key for t in begun if t.snapshot == name}
        return None, set()

    def _take(self) -> SourceSnapshot:
        """Take a snapshot, behind all that the slot may be confirmed to."""
        self._let_go()
        self.states.hold(self._position)
        held = self._source_of().take(self._tell, self._stopping)
        self._held = held
        self._held_name = self._exported_name or held.name
        return held

    def _plan(
        self, snapshot: SourceSnapshot, wanted: set[TableName], *, resume: bool
    ) -> list[TableCopy]:
        """Match source and target of each table; what can't be copied is said at it."""
        holder = snapshot.connection
        try:
            (block_bytes,) = holder.execute(
                "SELECT pg_catalog.current_setting('block_size')::int"
            ).fetchone() or (8192,)
            oids = list_tables(holder, self._settings.publications, self._settings.selected)
            found = describe(
                holder,
                self._settings.publications,
                {key: oid for key, oid in oids.items() if key in wanted},
            )
        except psycopg.Error as error:
            raise SourceError(
                f"the source can't be asked for its tables: {error}",
                hint="Check the source's log.",
            ) from None
        copies: list[TableCopy] = []
        with self._target_session() as target:
            targets = match_all(
                target,
                [one.relation for one in found.values() if isinstance(one, PublishedTable)],
                self._settings.rename,
            )
            for key in sorted(wanted):
                published = found.get(key)
                if published is None:
                    published = SourceError(
                        f"{'.'.join(key)} is not published on the source any more",
                        hint="A refresh forgets it.",
                        relation=".".join(key),
                    )
                if isinstance(published, PublishedTable):
                    matched = targets[published.relation.relation_id]
                    if isinstance(matched, SpillwayError):
                        self._failed(target, key, matched)
                        continue
                    copies.append(
                        self._begin(
                            target, snapshot, published, matched, block_bytes, resume=resume
                        )
                    )
                else:
                    self._failed(target, key, published)
        self.states.hold(None)
        return copies

    def _begin(
        self,
        target: Connection,
        snapshot: SourceSnapshot,
        published: PublishedTable,
        matched: MatchedTable,
        block_bytes: int,
        *,
        resume: bool,
    ) -> TableCopy:
        """Write down what is to be copied, unless that is known."""
        table = self.states.all()[published.key]
        made: CopyPlan = plan(published, matched, self._settings.range_bytes, block_bytes)
        if resume and table.state == SyncState.DATA_SYNC:
            made = replace(made, ranges=table.ranges)
            left = [i for i in range(len(table.ranges)) if i not in table.ranges_done]
            return TableCopy(made, left, is_one=not table.is_ours)
        with target.transaction():
            row = target.execute(
                sql.SQL("SELECT EXISTS (SELECT FROM {})").format(
                    sql.Identifier(matched.schema, matched.name)
                )
            ).fetchone()
            is_ours = row is not None and not row[0]
            dropped: tuple[str, ...] = table.dropped_indexes
            if self._settings.defer_indexes and is_ours and matched.kind == "r":
                dropped += tuple(indexes.drop(target, matched.oid))
            table = replace(
                table,
                state=SyncState.DATA_SYNC,
                lsn=int(snapshot.lsn),
                snapshot=(self._held_name, snapshot.contents),
                ranges=made.ranges,
                ranges_done=frozenset(),
                is_ours=is_ours,
                dropped_indexes=dropped,
                rows=0,
                bytes=0,
                bytes_total=published.size_bytes,
                error="",
            )
            self.states.store(target, table)
        self.states.changed(table)
        return TableCopy(made, list(range(len(made.ranges))), is_one=not is_ours)

    def _finish(self, copy: TableCopy) -> None:
        """All ranges of a table are durable: what is left of its copy."""
        failpoint("table_sync.before_finish")
        table = self.states.all()[copy.key]
        with self._target_session() as target, target.transaction():
            indexes.make(target, table.dropped_indexes)
            table = replace(
                table,
                state=SyncState.FINISHED_COPY,
                snapshot=None,
                ranges=(),
                ranges_done=frozenset(),
                dropped_indexes=(),
            )
            self.states.store(target, table)
        self.states.changed(table)
        failpoint("table_sync.after_finish")
        self._retries.pop(copy.key, None)
        self._tell(f"{table.name} is copied: {table.rows} rows, {table.bytes} bytes")

    def _failed(self, target: Connection, key: TableName, error: SpillwayError) -> None:
        """A table can't be copied now: nothing of it stays, and it is tried again later."""
        self._undo(target, self.states.all()[key], self._later(error, key))

    def _later(self, error: SpillwayError, *tables: TableName) -> str:
        """Have tables tried again after a while; return what is said of them."""
        for key in tables:
            self.errors[key] = error
            if key in self._retries:
                pause = min(max(_RETRY_S, self._retries[key].pause * 2), _RETRY_MAX_S)
            else:
                # By a new snapshot it is as it is now.
                pause = 0.0 if isinstance(error, SourceTableAltered) else _RETRY_S
            self._retries[key] = _Retry(time.monotonic() + pause, pause)
        text = error.message if not error.hint else f"{error.message} Hint: {error.hint}"
        self._tell(f"{', '.join('.'.join(key) for key in sorted(tables))}: {text}")
        return text

    def _may_try(self, key: TableName) -> bool:
        return key not in self._retries or self._retries[key].at <= time.monotonic()

    def _undo(self, target: Connection, table: TableState, error: str) -> None:
        """Take away what was copied of a table that is not whole, and make it init again."""
        with target.transaction():
            if table.is_ours and table.ranges_done:
                self._empty(target, table)
            table = replace(
                table,
                state=SyncState.INIT,
                lsn=0,
                snapshot=None,
                ranges=(),
                ranges_done=frozenset(),
                is_ours=False,
                rows=0,
                bytes=0,
                error=error,
            )
            self.states.store(target, table)
        self.states.changed(table)

    def _empty(self, target: Connection, table: TableState) -> None:
        renamed = self._settings.rename
        name = sql.Identifier(*renamed(*table.key))
        try:
            with target.transaction():
                target.execute(sql.SQL("TRUNCATE {}").format(name))
        except (
            psycopg.errors.FeatureNotSupported,
            psycopg.errors.InsufficientPrivilege,
        ):
            # Another table refers to it, or the role may only delete.
            target.execute(sql.SQL("DELETE FROM {}").format(name))
        except psycopg.errors.UndefinedTable:
            pass

    # --- hand-over ----------------------------------------------------------------------------

    def _approach(self) -> None:
        """Bring tables that are behind the stream near to it, and leave the rest to its thread."""
        position = self._position
        behind: dict[int, set[TableName]] = {}
        with self._lock:
            waiting = set(self._waiting)
        for table in self.states.all().values():
            if (
                table.state == SyncState.FINISHED_COPY
                and table.lsn < position
                and table.key not in waiting
                and self._may_try(table.key)
            ):
                behind.setdefault(table.lsn, set()).add(table.key)
        for lsn, tables in sorted(behind.items()):
            if position - lsn > _NEAR_BYTES:
                self._catch_up_to(tables, lsn, position, SyncState.FINISHED_COPY)
            else:
                with self._lock:
                    self._waiting |= tables

    def _take_over(self, waiting: set[TableName], position: int) -> None:
        """Apply the last bit of what tables lack, by the worker's thread."""
        behind: dict[int, set[TableName]] = {}
        for key in waiting:
            table = self.states.all().get(key)
            if table is not None and table.state == SyncState.FINISHED_COPY:
                behind.setdefault(table.lsn, set()).add(key)
        for lsn, tables in sorted(behind.items()):
            self._catch_up_to(tables, lsn, position, SyncState.SYNC_DONE)
        with self._lock:
            self._waiting -= waiting

    def _catch_up_to(
        self, tables: set[TableName], lsn: int, position: int, state: SyncState
    ) -> None:
        """Apply what tables lack; what goes wrong with it is theirs, and tried again later."""
        known = self.states.all()
        caught = [
            replace(known[key], state=state, lsn=position, error="") for key in sorted(tables)
        ]

        def before_commit(connection: Connection) -> None:
            for table in caught:
                self.states.store(connection, table)
            failpoint("table_sync.before_handover")

        try:
            self._catch_up(frozenset(tables), lsn, position, before_commit)
        except SpillwayError as error:
            if self._stopping.is_set():
                return
            text = self._later(error, *tables)
            failed = [replace(known[key], error=text) for key in sorted(tables)]
            with self._target_session() as target, target.transaction():
                for table in failed:
                    self.states.store(target, table)
            self.states.changed(*failed)
            return
        for key in tables:
            self._retries.pop(key, None)
        self.states.changed(*caught)

    # --- connections --------------------------------------------------------------------------

    def _source_of(self) -> Source:
        if self._source is None:
            exports = None if self._exports is None else self._exported
            self._source = Source(self._dsn, {}, exports)
        return self._source

    @contextmanager
    def _exported(self) -> Iterator[ExportedSnapshot]:
        """Have the service hold a snapshot beyond this block, until the copies are done: it is
        there yet when this process was killed.
        """
        assert self._exports is not None
        self._holding.close()
        self._exported_name = ""
        exported = self._holding.enter_context(self._exports())
        self._exported_name = exported.name
        yield exported

    def _let_go(self) -> None:
        """Give the snapshot up."""
        if self._held is not None:
            self._held.close()
            self._held = None
        with suppress(SpillwayError):
            self._holding.close()
        self.states.hold(None)

    @contextmanager
    def _source_session(self) -> Iterator[Connection]:
        with connect_source(self._source_of().conninfo) as connection:
            connection.execute("SELECT pg_catalog.set_config('search_path', 'pg_catalog', false)")
            try:
                yield connection
            except psycopg.Error as error:
                raise SourceError(
                    f"the source refused: {error}", hint="Check the source's log."
                ) from None

    @contextmanager
    def _target_session(self) -> Iterator[Connection]:
        try:
            with self._connect_target() as connection:
                yield connection
        except psycopg.Error as error:
            raise from_postgres(error, "table sync") from None

    def _boundary_session(self) -> Connection:
        if self._boundary is None or self._boundary.closed:
            self._boundary = self._connect_target()
        return self._boundary
