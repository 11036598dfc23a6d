"""Rows that are gone from the target, as who was there before them sees them: what tells
``update_deleted`` from ``update_missing``.

PostgreSQL 19's worker keeps dead rows from being vacuumed until no transaction of the source may
update them any more, and looks at them. No SQL sees a dead row, but an older snapshot still sees
the row itself, and keeps it; its ``xmax`` says which transaction took it away, and the target's
commit timestamps whose that was, and when. ::

    ──── snapshot 1 ──────── snapshot 2 ──────────────────────────────────▶ the target's time
          source was at S1    source was at S2
                                    once the target has everything before S2, snapshot 1 is let go:
                                    what was deleted before snapshot 2 can't be updated any more

A session each holds the snapshots, two at most, in a transaction that writes nothing and keeps no
lock. It is let go after a bounded time, too, whatever the source does.

What is not seen: a row that was made and deleted between two snapshots. Of a row that was updated
and then deleted since, the first of both transactions is told.

Source: FindDeletedTupleInLocalRel (src/backend/replication/logical/worker.c),
RelationFindDeletedTupleInfoSeq (src/backend/executor/execReplication.c) of PostgreSQL 19
"""

from __future__ import annotations

import logging
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


@dataclass(frozen=True, slots=True)
class _Snapshot:
    connection: Connection
    #: by the target's clock, and by ours
    taken_at: datetime
    held_since: float
    #: what the source had committed by then ends before this
    source_lsn: int


class DeadRows:
    """Snapshots that see what is gone; a thread takes them and lets them go.

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

    @property
    def held(self) -> int:
        """How many snapshots are held."""
        return len(self._held)

    def deleted(self, rows: TableRows, change: Change) -> LocalRow | None:
        """The row that *change* is about, as it was before somebody else took it away, with who did
        and when; None if that can't be told, or it was this subscription.
        """
        columns = ", ".join([*_PLACE, *(one.quoted for one in rows.facts.columns)])
        text, values = rows.statements.find(change, columns, "")
        with self._lock:
            for snapshot in reversed(self._held):
                row = self._seen(snapshot, text, values)
                if row is None:
                    continue
                xmax = row[_PLACE.index("xmax")] or b"0"
                if int(xmax) < _FIRST_XID:
                    return None
                by = rows.origins.of(xmax)
                # The number of a group of transactions that locked a row is none of a transaction.
                if by is None or by.is_ours or by.committed_at < snapshot.taken_at:
                    return None
                names = (one.name for one in rows.facts.columns)
                return LocalRow(
                    dict(zip(names, row[len(_PLACE) :], strict=True)),
                    int(xmax),
                    by.name,
                    by.committed_at,
                )
        return None

    def _seen(
        self, snapshot: _Snapshot, text: bytes, values: list[bytes | None]
    ) -> list[bytes | None] | None:
        """What a snapshot sees; one that can't be asked any more is let go."""
        try:
            # So that the table's lock goes as well: it may be altered and truncated.
            raw(snapshot.connection, b"SAVEPOINT looked")
            try:
                cursor = raw(snapshot.connection, text, values, prepare=False)
                return cells(cursor, 0) if cursor.rowcount else None
            finally:
                raw(snapshot.connection, b"ROLLBACK TO SAVEPOINT looked")
        except psycopg.Error:
            if snapshot.connection.broken:
                self._let_go(snapshot)
            return None

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
            prepare_session(connection)
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            row = connection.execute("SELECT pg_catalog.clock_timestamp()").fetchone()
            assert row is not None
            return _Snapshot(connection, row[0], time.monotonic(), self._source_lsn())
        except BaseException:
            connection.close()
            raise

    def _let_go(self, snapshot: _Snapshot) -> None:
        self._held.remove(snapshot)
        with suppress(psycopg.Error):
            snapshot.connection.close()
