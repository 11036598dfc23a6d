"""Tables that are copied become the stream's: ``f`` to ``s``, ``s`` to ``r``.

At a boundary the worker is at W: it has applied every transaction with its commit record before W,
and none behind. A table copied as of L ≥ W is handed over as it is. One that is behind reads what
it lacks, [L, W), by a peek of the slot, in one transaction with its new state: first beside the
stream, again and again while much is missing, then on the worker's own thread, where nothing can
come in between. PostgreSQL's table sync worker is told the same by SYNCWAIT and CATCHUP.

Source: process_syncing_tables_for_apply (src/backend/replication/logical/tablesync.c)
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import psycopg

from spillway.apply.schema.names_in_the_way import aside
from spillway.apply.sync.states import SyncState
from spillway.apply.target.failures import from_postgres
from spillway.apply.target.stop import Stopped
from spillway.errors import (
    HINT,
    LsnNotRetained,
    SpillwayError,
    TargetBehindSlot,
    TargetSchemaChange,
)
from spillway.failpoints import failpoint
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spillway.apply.sync.retries import Retries
    from spillway.apply.sync.sides import Sides
    from spillway.apply.sync.states import TableName, TableState, TableStates

    #: Writes into the target's transaction that is open. It is given what the tables are called by
    #: now, by what they were called.
    BeforeCommit = Callable[["Connection", Mapping[TableName, TableName]], None]

Connection = psycopg.Connection[tuple[Any, ...]]

#: What a table lacks when its last bit is left to the worker's thread.
_NEAR_BYTES: Final = 4 << 20
_PREPARED: Final = """
SELECT gid FROM pg_catalog.pg_prepared_xacts
 WHERE database = pg_catalog.current_database() AND pg_catalog.starts_with(gid, %s)
 ORDER BY prepared, gid LIMIT 1
"""
_HELD: Final = (
    "{name} is copied, and waits for what is prepared on the target from before, without its rows: "
    "{gid}" + HINT + "Finish it on the source, where pg_prepared_xacts shows it: COMMIT PREPARED, "
    "or ROLLBACK PREPARED."
)


class CatchUp(Protocol):
    """Applies what tables lack, beside the stream."""

    def __call__(
        self,
        tables: frozenset[TableName],
        start_lsn: int,
        upto_lsn: int,
        before_commit: BeforeCommit,
    ) -> None:
        """Write the changes of *tables* that the slot has in transactions whose commit record
        starts in [*start_lsn*, *upto_lsn*), and what *before_commit* writes, in one transaction of
        the target. The slot is read by a peek. *before_commit* is given what the tables are called
        by now, by what they were called.

        Raises:
            Stopped: it is to stop.
            TargetSchemaChange: DDL of one of them is not done on the target. Nothing was written.
            SpillwayError: nothing of it was written.
        """


class HandOver:
    """See the module.

    Args:
        sides: both databases.
        states: how far each table is.
        retries: tables that failed.
        catch_up: reads and writes what tables lack.
        stopping: whether it was stopped: what fails then is nobody's fault.
        prepared: what identifiers of the stream's prepared transactions begin with; '' if it has
            none.
    """

    def __init__(
        self,
        sides: Sides,
        states: TableStates,
        retries: Retries,
        catch_up: CatchUp,
        stopping: threading.Event,
        prepared: str = "",
    ) -> None:
        self._sides = sides
        self._states = states
        self._retries = retries
        self._catch_up = catch_up
        self._stopping = stopping
        self._prepared = prepared
        self._lock = threading.Lock()
        #: what the worker's thread is to do at its next boundary
        self._waiting: set[TableName] = set()
        self._boundary: Connection | None = None

    @property
    def has_waiting(self) -> bool:
        """Whether the next boundary applies what a table lacks yet."""
        with self._lock:
            return bool(self._waiting)

    def at_boundary(self, position: int, recorded: int) -> None:
        """Hand over what is ready for it. Cheap when nothing is. See
        :meth:`~spillway.apply.sync.table_sync.TableSync.at_boundary`.
        """
        if self._states.are_steady:
            return
        tables = self._states.all().values()
        whole = [t for t in tables if t.state == SyncState.FINISHED_COPY and t.lsn >= position]
        passed = any(t.state == SyncState.SYNC_DONE and t.lsn <= recorded for t in tables)
        with self._lock:
            waiting = set(self._waiting)
        if not whole and not passed and not waiting:
            return
        try:
            connection = self._boundary_session()
            if (whole or waiting) and self._is_held(connection, {t.key for t in whole} | waiting):
                whole, waiting = [], set()
            done = [replace(table, state=SyncState.SYNC_DONE, error="") for table in whole]
            with connection.transaction():
                for table in done:
                    self._states.store(connection, table)
            self._states.changed(*done)
            if waiting:
                self._take_over(waiting, position)
            with connection.transaction():
                ready = self._states.pass_by(connection, recorded)
            self._states.changed(*ready)
        except psycopg.Error as error:
            raise from_postgres(error, "handing tables over to the stream") from None

    def approach(self, position: int) -> None:
        """Bring tables that are behind the stream near to it, and leave the rest to its thread."""
        behind: dict[int, set[TableName]] = {}
        with self._lock:
            waiting = set(self._waiting)
        for table in self._states.all().values():
            if (
                table.state == SyncState.FINISHED_COPY
                and table.lsn < position
                and table.key not in waiting
                and self._retries.may_try(table.key)
            ):
                behind.setdefault(table.lsn, set()).add(table.key)
        for lsn, tables in sorted(behind.items()):
            if position - lsn > _NEAR_BYTES:
                self._catch_up_to(tables, lsn, position, SyncState.FINISHED_COPY)
            else:
                with self._lock:
                    self._waiting |= tables

    def close(self) -> None:
        """End the session that hands over."""
        if self._boundary is not None:
            self._boundary.close()

    def _is_held(self, connection: Connection, tables: set[TableName]) -> bool:
        """Say whether the target has something prepared by the stream, before these tables were
        its: their rows are not in it, and what commits it, behind the copy, brings none. No more
        of that comes meanwhile.
        """
        if not self._prepared:
            return False
        row = connection.execute(_PREPARED, [self._prepared]).fetchone()
        if row is None:
            return False
        # One that waits may have been forgotten by a refresh, or have to be copied anew.
        told = [
            replace(table, error=error)
            for key, table in self._states.all().items()
            if key in tables
            and table.state == SyncState.FINISHED_COPY
            and table.error != (error := _HELD.format(name=table.name, gid=row[0]))
        ]
        if told:
            with connection.transaction():
                for table in told:
                    self._states.store(connection, table)
            self._states.changed(*told)
        return True

    def _take_over(self, waiting: set[TableName], position: int) -> None:
        """Apply the last bit of what tables lack, by the worker's thread."""
        behind: dict[int, set[TableName]] = {}
        for key in waiting:
            table = self._states.all().get(key)
            if table is not None and table.state == SyncState.FINISHED_COPY:
                behind.setdefault(table.lsn, set()).add(key)
        for lsn, tables in sorted(behind.items()):
            self._catch_up_to(tables, lsn, position, SyncState.SYNC_DONE)
        with self._lock:
            self._waiting -= waiting

    def _catch_up_to(
        self, tables: set[TableName], lsn: int, position: int, state: SyncState
    ) -> set[TableName]:
        """Apply what tables lack; what goes wrong with it is theirs, and tried again later. Return
        what those are called by now that have it.
        """
        known = self._states.all()
        caught: list[TableState] = []

        def before_commit(connection: Connection, names: Mapping[TableName, TableName]) -> None:
            renamed = [key for key in sorted(tables) if names[key] != key]
            # One may have the name that another one had.
            for key in renamed:
                self._states.move(connection, key, aside(key))
            for key in renamed:
                self._states.move(connection, aside(key), names[key])
            for key in sorted(tables):
                now = names[key]
                table = replace(
                    known[key], schema=now[0], table=now[1], state=state, lsn=position, error=""
                )
                self._states.store(connection, table)
                self._states.deferred.done(connection, now, position)
                caught.append(table)
            failpoint("table_sync.before_handover")

        try:
            self._catch_up(frozenset(tables), lsn, position, before_commit)
        except Stopped:
            return set()
        except TargetSchemaChange as error:
            if len(tables) > 1:
                # Each by itself: the others have no part in it.
                alone = [self._catch_up_to({key}, lsn, position, state) for key in sorted(tables)]
                return set().union(*alone)
            self._stop_before(error, tables, lsn)
            return set()
        except LsnNotRetained as error:
            if not self._stopping.is_set():
                self._failed(_out_of_reach(error, lsn), tables)
            return set()
        except SpillwayError as error:
            if not self._stopping.is_set():
                self._failed(error, tables)
            return set()
        for key in tables:
            self._retries.went_well(key)
        self._states.changed(*caught, gone=tables)
        return {table.key for table in caught}

    def _stop_before(self, error: TargetSchemaChange, table: set[TableName], lsn: int) -> None:
        """Write what is before DDL that a person has to do: behind it, rows from before it may not
        fit into the table.
        """
        before = int(Lsn.parse(str(error.details["lsn"])))
        if lsn < before:
            table = self._catch_up_to(table, lsn, before, SyncState.FINISHED_COPY)
        if table and not self._stopping.is_set():
            self._failed(error, table)

    def _failed(self, error: SpillwayError, tables: set[TableName]) -> None:
        text = self._retries.later(error, *tables)
        known = self._states.all()
        failed = [replace(known[key], error=text) for key in sorted(tables)]
        with self._sides.target_session() as target, target.transaction():
            for table in failed:
                self._states.store(target, table)
        self._states.changed(*failed)

    def _boundary_session(self) -> Connection:
        if self._boundary is None or self._boundary.closed:
            self._boundary = self._sides.connect_target()
        return self._boundary


def _out_of_reach(error: LsnNotRetained, lsn: int) -> TargetBehindSlot:
    """Make the error of a table that had rows before its copy, on a target that is another than it
    was: of any other the copy has begun anew.
    """
    return TargetBehindSlot(
        f"the table was copied as of {Lsn(lsn)}, and what came since is gone: {error.message}",
        hint="Was the target restored from a backup? Empty the table there, take it out of the "
        "publications or of the subscription's tables, and refresh the subscription (spillway "
        "subscription refresh); then put it back and refresh again, and it is copied anew.",
        lsn=str(Lsn(lsn)),
    )
