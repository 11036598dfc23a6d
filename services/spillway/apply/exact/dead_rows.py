"""Rows that are gone from the target, as an older snapshot still sees them: what tells
``update_deleted`` from ``update_missing``.

PostgreSQL 19's worker keeps dead rows from being vacuumed until no transaction of the source may
update them any more, and looks at them. No SQL sees a dead row, but an older snapshot still sees
the row itself, and keeps it; its ``xmax`` says which transaction took it away, and the target's
commit timestamps whose that was, and when. An attempt to delete the row once more meets an error,
which says whether that transaction deleted the row or changed it. ::

    ──── snapshot 1 ──────── snapshot 2 ──────────────────────────────────▶ the target's time
          source was at S1    source was at S2
                                    once the target has everything before S2, snapshot 1 is let go:
                                    what was deleted before snapshot 2 can't be updated any more

Each snapshot, two at most, is held by a session of its own, in a transaction that writes nothing
and keeps no lock. A snapshot is let go after a bounded time, too, whatever the source does. A third
session looks, in transactions that are rolled back.

What is not seen: a row that was made and deleted between two snapshots; and of one that was changed
and then deleted since, who deleted it, and when.

Source: FindDeletedTupleInLocalRel (src/backend/replication/logical/worker.c),
RelationFindDeletedTupleInfoSeq (src/backend/executor/execReplication.c) of PostgreSQL 19
"""

from __future__ import annotations

import logging
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg

from spillway.apply.conflicts.conflict import LocalRow
from spillway.apply.exact.raw import cells, prepare_session, raw
from spillway.errors import SpillwayError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from spillway.apply.changes import Change
    from spillway.apply.exact.rows import TableRows

    Connection = psycopg.Connection[tuple[Any, ...]]

_log = logging.getLogger(__name__)

#: A row that lives shorter than that may be gone unseen.
NEW_EVERY_S: Final = 5.0
_LOOK_S: Final = 0.5
_AFTER_FAILURE_S: Final = 10.0
_HELD_MAX: Final = 2
_FIRST_XID: Final = 3
_PLACE: Final = ("tableoid", "ctid", "xmax")
#: What can't be deleted as of a snapshot; who speaks another language leaves it open.
_IS_DELETED: Final = re.compile(r"concurrent delete")


@dataclass(frozen=True, slots=True)
class _Snapshot:
    connection: Connection
    #: by the target's clock, and by ours
    taken_at: datetime
    held_since: float
    #: what the source had committed by then ends before this
    source_lsn: int
    #: its name
    exported: str


class DeadRows:
    """Snapshots that see what is gone; a thread takes them and lets them go. They write nothing.

    Args:
        connect: opens a session on the target, in autocommit.
        source_lsn: asks the source up to where it has committed; a psycopg or Spillway error if it
            does not answer.
        position: up to where the target has everything.
        held_s: how long a snapshot is held at most.
        every_s: how long after one the next is taken at the earliest.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        source_lsn: Callable[[], int],
        position: Callable[[], int],
        held_s: float,
        every_s: float = NEW_EVERY_S,
    ) -> None:
        self._connect = connect
        self._source_lsn = source_lsn
        self._position = position
        self._held_s = held_s
        self._every_s = every_s
        self._held: list[_Snapshot] = []
        #: who looks
        self._looking: Connection | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dead rows", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let all of them go."""
        self._stopping.set()
        self._thread.join(timeout=15.0)
        with self._lock:
            while self._held:
                self._let_go(self._held[0])
            if self._looking is not None:
                self._looking.close()

    @property
    def held(self) -> int:
        """How many snapshots are held."""
        return len(self._held)

    def deleted(self, rows: TableRows, change: Change) -> LocalRow | None:
        """The row that *change* is about, as it was before somebody else took it away, with who did
        and when, if that can be told; None if nobody else did.
        """
        columns = ", ".join([*_PLACE, *(one.quoted for one in rows.facts.columns)])
        find = rows.statements.find
        with self._lock:
            for snapshot in list(reversed(self._held)):
                looked = self._look_for(snapshot, find(change, columns, ""))
                if isinstance(looked, list):
                    again = (
                        f"DELETE FROM {rows.statements.table.only}"  # noqa: S608 - quoted
                        " WHERE tableoid = $1::oid AND ctid = $2::tid"
                    )
                    said = self._look_for(snapshot, (again.encode(), looked[:2]))
                    return self._gone(rows, snapshot, looked, said)
        return None

    @staticmethod
    def _gone(
        rows: TableRows,
        snapshot: _Snapshot,
        row: list[bytes | None],
        said: list[bytes | None] | psycopg.Error | None,
    ) -> LocalRow | None:
        """Say whose a row is that is there no more."""
        if not isinstance(said, psycopg.errors.SerializationFailure):
            return None
        names = (one.name for one in rows.facts.columns)
        seen = dict(zip(names, row[len(_PLACE) :], strict=True))
        if not _IS_DELETED.search(said.diag.message_primary or ""):
            return LocalRow(seen)
        xmax = row[_PLACE.index("xmax")] or b"0"
        by = rows.origins.of(xmax) if int(xmax) >= _FIRST_XID else None
        # The number of a group of transactions that locked a row is none of a transaction.
        if by is None or by.committed_at < snapshot.taken_at:
            return LocalRow(seen)
        return None if by.is_ours else LocalRow(seen, int(xmax), by.name, by.committed_at)

    def _look_for(
        self, snapshot: _Snapshot, query: tuple[bytes, list[bytes | None]]
    ) -> list[bytes | None] | psycopg.Error | None:
        """The first row that a snapshot sees, None without one, or the error that the query met.
        What can't be asked any more is let go.
        """
        connection = self._looking
        try:
            if connection is None or connection.closed:
                connection = self._looking = self._connect()
                prepare_session(connection)
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE")
            try:
                raw(connection, f"SET TRANSACTION SNAPSHOT '{snapshot.exported}'".encode())
            except psycopg.Error:
                # Who held it is gone.
                self._let_go(snapshot)
                raise
            cursor = raw(connection, *query, prepare=False)
            return cells(cursor, 0) if cursor.pgresult and cursor.pgresult.ntuples else None
        except (psycopg.Error, SpillwayError) as error:
            return error if isinstance(error, psycopg.Error) else None
        finally:
            if connection is not None and not connection.closed:
                with suppress(psycopg.Error):
                    connection.execute("ROLLBACK")

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        wait_s = 0.0
        while not self._stopping.wait(wait_s):
            wait_s = min(_LOOK_S, self._every_s)
            try:
                self._look()
            except (psycopg.Error, SpillwayError) as error:
                _log.info("no snapshot for update_deleted: %s", " ".join(str(error).split()))
                wait_s = _AFTER_FAILURE_S

    def _look(self) -> None:
        now = time.monotonic()
        with self._lock:
            for snapshot in list(self._held):
                is_over = now - snapshot.held_since > self._held_s
                if is_over or snapshot.connection.closed:
                    self._let_go(snapshot)
            if len(self._held) == _HELD_MAX and self._position() >= self._held[1].source_lsn:
                self._let_go(self._held[0])
            newest = self._held[-1].held_since if self._held else float("-inf")
            if len(self._held) == _HELD_MAX or now - newest < self._every_s:
                return
        taken = self._take()
        with self._lock:
            self._held.append(taken)
            if self._stopping.is_set():
                self._let_go(taken)

    def _take(self) -> _Snapshot:
        connection = self._connect()
        try:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            row = connection.execute(
                "SELECT pg_catalog.clock_timestamp(), pg_catalog.pg_export_snapshot()"
            ).fetchone()
            assert row is not None
            at, exported = row
            return _Snapshot(connection, at, time.monotonic(), self._source_lsn(), exported)
        except BaseException:
            connection.close()
            raise

    def _let_go(self, snapshot: _Snapshot) -> None:
        self._held.remove(snapshot)
        with suppress(psycopg.Error):
            snapshot.connection.close()
