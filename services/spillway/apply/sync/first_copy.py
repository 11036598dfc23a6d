"""What is copied, and how each table begins and ends: the way from ``i`` over ``d`` to ``f``.

An attempt takes one snapshot for all tables that have nothing yet, and copies them. Of tables that
failed alone the rows are taken away again and the table is tried later, with a snapshot that is
then young: none is kept on the source for the sake of a table whose copy can't succeed. When a
connection broke, or the process was killed, the snapshot may still be there (the service holds it
for a while), and only ranges that are not durable are copied. Without it, a table that is not whole
begins anew. All rows in it were copied by us, since only a table that was empty is copied in more
than one transaction.

Runs on the worker's thread before the stream begins, and on the table sync's beside it; never on
both at once.

Source: LogicalRepSyncTableStart, copy_table (src/backend/replication/logical/tablesync.c)
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from spillway.apply.sync import indexes
from spillway.apply.sync.copiers import Copiers, TableCopy
from spillway.apply.sync.plan import plan
from spillway.apply.sync.published import PublishedTable, describe, list_tables
from spillway.apply.sync.states import SyncState, TableState
from spillway.apply.tables.matching import match_all
from spillway.apply.target.connection import encoded
from spillway.apply.target.failures import from_postgres, may_be_of_a_table
from spillway.errors import SourceError, SpillwayError, TargetTableMissing
from spillway.failpoints import failpoint
from spillway.pg.byte_session import take_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from spillway.apply.schema.following import Following
    from spillway.apply.sync.held_snapshot import HeldSnapshot
    from spillway.apply.sync.plan import CopyPlan
    from spillway.apply.sync.retries import Retries
    from spillway.apply.sync.settings import SyncSettings
    from spillway.apply.sync.sides import Sides
    from spillway.apply.sync.states import TableName, TableStates
    from spillway.apply.tables.matched import MatchedTable
    from spillway.apply.target.stop import Stop
    from spillway.consumer.snapshots import SourceSnapshot

Connection = psycopg.Connection[tuple[Any, ...]]


class FirstCopy:
    """See the module.

    Args:
        settings: the subscription's.
        sides: both databases.
        snapshot: what tables are copied as of.
        states: how far each is.
        retries: tables that failed.
        why_missing: says why a table was not made on the target; '' if that is not known.
        tell: is told what a person may want to know.
        stopping: ends it; durable ranges stay.
        following: makes what does DDL in a session; without it DDL is passed over.
    """

    def __init__(
        self,
        settings: SyncSettings,
        sides: Sides,
        snapshot: HeldSnapshot,
        states: TableStates,
        retries: Retries,
        why_missing: Callable[[TableName], str],
        tell: Callable[[str], None],
        stopping: Stop,
        following: Callable[[Connection], Following] | None = None,
    ) -> None:
        self._settings = settings
        self._sides = sides
        self._snapshot = snapshot
        self._states = states
        self._retries = retries
        self._why_missing = why_missing
        self._tell = tell
        self._stopping = stopping
        self._following = following
        self._copies: Sequence[TableCopy] = ()

    def due(self) -> list[TableState]:
        """Return the tables that have to be copied and may be tried now."""
        return [
            table
            for table in self._states.all().values()
            if table.state in (SyncState.INIT, SyncState.DATA_SYNC)
            and not table.is_set_aside
            and self._retries.may_try(table.key)
        ]

    def take_back(self) -> None:
        """Have tables copied again that were set aside and are empty on the target by now, or gone
        there. One that the role may not look at stays aside: it says why already.

        Raises:
            SpillwayError: the target can't be reached.
        """
        aside = [table for table in self._states.all().values() if table.is_set_aside]
        if not aside:
            return
        renamed = self._settings.rename
        with self._sides.target_session() as target:
            for table in aside:
                try:
                    if has_rows(target, *renamed(*table.key)):
                        continue
                except psycopg.Error as error:
                    if not may_be_of_a_table(error):
                        raise
                    continue
                empty = TableState(*table.key)
                with target.transaction():
                    self._states.store(target, empty)
                self._states.changed(empty)
                self._retries.went_well(table.key)
                self._tell(f"{table.name} was set aside, is empty now, and is copied")

    def give_up(self, before: int) -> None:
        """Make tables init again that were copied as of before *before* and have yet to catch up.
        One that had rows before its copy is left alone: those are not ours to take away.

        Raises:
            SpillwayError: the target can't be reached.
        """
        with self._sides.target_session() as target:
            for table in self._states.all().values():
                is_whole = table.state == SyncState.FINISHED_COPY and table.is_ours
                if (is_whole or table.state == SyncState.DATA_SYNC) and table.lsn < before:
                    self._undo(target, table, "")

    def begin_anew(self, target: Connection, tables: Iterable[TableState]) -> None:
        """Make *tables*, which are being copied or have yet to catch up, init again.

        Raises:
            psycopg.Error: the target did not answer.
        """
        for table in tables:
            self._undo(target, table, "")

    def progress(self) -> Mapping[TableName, TableState]:
        """Return how far each table is, with the bytes that are under way."""
        found = dict(self._states.all())
        for copy in self._copies:
            if (table := found.get(copy.key)) is not None and copy.in_flight:
                found[copy.key] = replace(table, bytes=table.bytes + copy.in_flight)
        return found

    def attempt(self, position: int) -> None:
        """Copy what is due, of one snapshot.

        Args:
            position: of the worker.

        Raises:
            SpillwayError: a connection broke, or it was stopped; durable ranges stay.
        """
        due = self.due()
        begun = [table for table in due if table.state == SyncState.DATA_SYNC]
        snapshot, goes_on = self._snapshot.of(begun)
        if snapshot is None:
            with self._sides.target_session() as target:
                for table in begun:
                    self._try_undo(target, table, "")
                self._follow_deferred(target)
            # Some have another name by now, or can't be copied.
            due = self.due()
            snapshot = self._snapshot.take(position)
            tables = {table.key for table in due}
        else:
            # Others are copied by a snapshot of their own, next.
            tables = goes_on
        copies = self._plan(snapshot, tables, resume=bool(goes_on))
        copiers = Copiers(
            self._sides.source().conninfo,
            snapshot.name,
            self._sides.connect_target,
            self._states,
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
        if self._stopping.is_set():
            # What failed was cancelled, perhaps: what is durable of it stays.
            return
        with self._sides.target_session() as target:
            for copy in copies:
                if copy.failed is not None:
                    self._failed(target, copy.key, copy.failed)
        self._snapshot.let_go()

    def _plan(
        self, snapshot: SourceSnapshot, wanted: set[TableName], *, resume: bool
    ) -> list[TableCopy]:
        """Match source and target of each table; what can't be copied is said at it."""
        holder = snapshot.connection
        # What it is asked waits for who has a table locked.
        self._stopping.watch(holder)
        try:
            # One name that is no text would keep all tables from being described.
            take_bytes(holder, shown=True)
            (block_bytes,) = holder.execute(
                "SELECT pg_catalog.current_setting('block_size')::int"
            ).fetchone() or (8192,)
            # pg_partition_tree locks what it names until then: DDL would wait for the whole copy.
            holder.execute("SAVEPOINT describing")
            oids = list_tables(holder, self._settings.publications, self._settings.selected)
            found = describe(
                holder,
                self._settings.publications,
                {key: oid for key, oid in oids.items() if key in wanted},
            )
            holder.execute("ROLLBACK TO SAVEPOINT describing")
        except psycopg.Error as error:
            raise SourceError(
                f"the source can't be asked for its tables: {error}",
                hint="Check the source's log.",
            ) from None
        copies: list[TableCopy] = []
        with self._sides.target_session() as target:
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
                if isinstance(published, SpillwayError):
                    self._failed(target, key, published)
                    continue
                matched = targets[published.relation.relation_id]
                if isinstance(matched, SpillwayError):
                    self._failed(target, key, self._why(key, matched))
                    continue
                try:
                    copies.append(
                        self._begin(
                            target, snapshot, published, matched, block_bytes, resume=resume
                        )
                    )
                except psycopg.Error as error:
                    if not may_be_of_a_table(error):
                        raise
                    self._failed(target, key, from_postgres(error, f"copying {'.'.join(key)}"))
        self._states.hold(None)
        return copies

    def _why(self, key: TableName, error: SpillwayError) -> SpillwayError:
        """Add to what is missing why it could not be made."""
        reason = self._why_missing(key) if isinstance(error, TargetTableMissing) else ""
        if not reason:
            return error
        return TargetTableMissing(
            f"{error.message}, and could not be made there: {reason}",
            hint=error.hint,
            **error.details,
        )

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
        table = self._states.all()[published.key]
        made: CopyPlan = plan(published, matched, self._settings.range_bytes, block_bytes)
        if resume and table.state == SyncState.DATA_SYNC:
            made = replace(made, ranges=table.ranges)
            left = [i for i in range(len(table.ranges)) if i not in table.ranges_done]
            return TableCopy(made, left, is_one=not table.is_ours)
        with target.transaction():
            is_ours = not has_rows(target, matched.schema, matched.name)
            dropped: tuple[str, ...] = table.dropped_indexes
            if is_ours and matched.kind == "r" and self._defers(published):
                dropped += tuple(indexes.drop(target, matched.oid))
            table = replace(
                table,
                state=SyncState.DATA_SYNC,
                lsn=int(snapshot.lsn),
                snapshot=(self._snapshot.name, snapshot.contents),
                ranges=made.ranges,
                ranges_done=frozenset(),
                is_ours=is_ours,
                dropped_indexes=dropped,
                rows=0,
                bytes=0,
                bytes_total=published.size_bytes,
                error="",
            )
            self._states.store(target, table)
        self._states.changed(table)
        return TableCopy(made, list(range(len(made.ranges))), is_one=not is_ours)

    def _defers(self, published: PublishedTable) -> bool:
        """Say whether a table's indexes are dropped for its copy, as far as they may be."""
        asked = self._settings.defer_indexes
        return published.size_bytes >= indexes.WORTH_BYTES if asked is None else asked

    def _finish(self, copy: TableCopy) -> None:
        """All ranges of a table are durable: what is left of its copy."""
        failpoint("table_sync.before_finish")
        table = self._states.all()[copy.key]
        with self._sides.target_session() as target, target.transaction():
            indexes.make(target, table.dropped_indexes)
            table = replace(
                table,
                state=SyncState.FINISHED_COPY,
                snapshot=None,
                ranges=(),
                ranges_done=frozenset(),
                dropped_indexes=(),
            )
            self._states.store(target, table)
        self._states.changed(table)
        failpoint("table_sync.after_finish")
        self._retries.went_well(copy.key)
        self._tell(f"{table.name} is copied: {table.rows} rows, {table.bytes} bytes")

    def _failed(self, target: Connection, key: TableName, error: SpillwayError) -> None:
        """A table can't be copied now: nothing of it stays, and it is tried again later."""
        self._try_undo(target, self._states.all()[key], self._retries.later(error, key))

    def _try_undo(self, target: Connection, table: TableState, error: str) -> None:
        """Do as :meth:`_undo`; a table whose rows may not be taken away keeps them and its state,
        says so, and is tried again later. It alone waits.
        """
        try:
            self._undo(target, table, error)
        except psycopg.Error as refused:
            if not may_be_of_a_table(refused):
                raise
            told = from_postgres(refused, f"what was copied of {table.name} can't be taken away")
            table = replace(table, error=self._retries.later(told, table.key))
            self._states.store(target, table)
            self._states.changed(table)

    def _undo(self, target: Connection, table: TableState, error: str) -> None:
        """Take away what was copied of a table that is not whole, and make it init again, with the
        indexes that it had: DDL may come before its next copy, which they have a part in.
        """
        with target.transaction():
            # Of one that is whole no ranges are kept.
            if table.is_ours and (table.ranges_done or table.state == SyncState.FINISHED_COPY):
                self._empty(target, table)
            self._make_again(target, table.dropped_indexes)
            table = replace(
                table,
                state=SyncState.INIT,
                lsn=0,
                snapshot=None,
                ranges=(),
                ranges_done=frozenset(),
                is_ours=False,
                dropped_indexes=(),
                rows=0,
                bytes=0,
                error=error,
            )
            self._states.store(target, table)
        self._states.changed(table)

    def _make_again(self, target: Connection, definitions: Sequence[str]) -> None:
        """Make indexes of a table that is not copied, as far as nobody has, and it is there."""
        for definition in definitions:
            with (
                suppress(
                    psycopg.errors.DuplicateTable,
                    psycopg.errors.UndefinedTable,
                    psycopg.errors.UndefinedColumn,
                ),
                target.transaction(),
            ):
                indexes.make(target, [definition])

    def _follow_deferred(self, target: Connection) -> None:
        """Do the DDL that was left to who reads behind a copy which there is no more: the next
        copy is as of later.
        """
        for table in self.due():
            old = table.key
            try:
                with target.transaction():
                    self._states.deferred.lock(target, old)
                    new = self._follow_deferred_of(target, old)
                    if new != old:
                        self._states.move(target, old, new)
                    self._states.deferred.forget(target, new)
            except SpillwayError as error:
                self._failed(target, old, error)
                continue
            if new != old:
                schema, name = new
                self._states.changed(replace(table, schema=schema, table=name), gone=[old])

    def _follow_deferred_of(self, target: Connection, table: TableName) -> TableName:
        """Do what waits for a table; return what it is called then."""
        waiting = self._states.deferred.waiting(target, table)
        if not waiting or self._following is None:
            return table
        following = self._following(target)
        try:
            for one in waiting:
                following.follow(one.event, one)
                before, after = one.event["before"], one.event["after"]
                # Others are of its partitions.
                if before is not None and (before["schema"], before["table"]) == table:
                    table = after["schema"], after["table"]
            following.end()
        finally:
            following.close()
        return table

    def _empty(self, target: Connection, table: TableState) -> None:
        renamed = self._settings.rename
        name = sql.Identifier(*renamed(*table.key))
        try:
            with target.transaction():
                target.execute(encoded(sql.SQL("TRUNCATE {}").format(name), target))
        except (
            psycopg.errors.FeatureNotSupported,
            psycopg.errors.InsufficientPrivilege,
        ):
            # Another table refers to it, or the role may only delete.
            target.execute(encoded(sql.SQL("DELETE FROM {}").format(name), target))
        except psycopg.errors.UndefinedTable:
            pass


def has_rows(target: Connection, schema: str, table: str) -> bool:
    """Say whether a table of the target has rows; one that isn't there has none."""
    query = sql.SQL("SELECT EXISTS (SELECT FROM {})").format(sql.Identifier(schema, table))
    try:
        # In a savepoint, where a transaction is open.
        with target.transaction():
            row = target.execute(encoded(query, target)).fetchone()
    except psycopg.errors.UndefinedTable:
        return False
    return row is not None and bool(row[0])
