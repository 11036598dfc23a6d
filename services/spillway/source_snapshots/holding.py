"""The session on the source that holds a snapshot, and the two ways in which it gets one.

An ordinary one: BEGIN, and a query, which fixes it. It costs the primary a session, and xmin while
it is held. Which LSN it belongs to is :mod:`spillway.source_snapshots.pairing`'s matter.

By a temporary logical slot (:mod:`spillway.receiver.temporary_slot`): the server pairs it, and to
do so waits for all transactions that run. The slot goes as soon as the session has imported the
snapshot.

Blocking. The DSN's password is in no message and no ``repr``.

Source: ExportSnapshot (src/backend/utils/time/snapmgr.c), RecordTransactionCommit
(src/backend/access/transam/xact.c), pg_stat_get_activity (src/backend/utils/adt/pgstatfuncs.c)
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from spillway.errors import SourceError, SourceInRecovery, SpillwayError
from spillway.pg.connecting import CANCEL_S, cut
from spillway.pg.lsn import Lsn
from spillway.receiver.source_session import (
    STATEMENT_TIMEOUT_MS,
    connect_to_source,
    failure,
    source_session,
)
from spillway.receiver.temporary_slot import exported_by_slot
from spillway.source_snapshots.pairing import Running, Taken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Connection = psycopg.Connection[tuple[Any, ...]]

#: Settings of roles and servers that would end a session which has nothing to do but to hold a
#: snapshot.
_SETTINGS: Final = """
SELECT pg_catalog.set_config(w.name, w.value, false)
  FROM (VALUES ('search_path', 'pg_catalog'), ('statement_timeout', %s),
               ('transaction_timeout', '0'), ('idle_in_transaction_session_timeout', '0'),
               ('idle_session_timeout', '0')) w(name, value)
  JOIN pg_catalog.pg_settings s ON s.name = w.name
"""
#: backend_xid is shown to everybody, state to pg_read_all_stats and the role's own. A client's
#: backend says that it is active before it commits; an apply worker need not. The order counts: who
#: prepares a transaction is in the first until it is in the second.
_RUNNING: Final = (
    """
    SELECT backend_xid::text::int8, coalesce(datid, 0)::int8,
           coalesce(backend_type = 'client backend' AND state LIKE 'idle in transaction%', false)
      FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL
    """,
    """
    SELECT transaction::text::int8, d.oid::int8, false
      FROM pg_catalog.pg_prepared_xacts p JOIN pg_catalog.pg_database d ON d.datname = p.database
    """,
)
_BEGIN: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_NOW: Final = "(EXTRACT(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::int8"
_TAKE: Final = (
    "SELECT pg_catalog.pg_current_snapshot()::text, pg_catalog.pg_current_wal_insert_lsn()::text, "
    + _NOW
)


class SnapshotSession:
    """A session on the source whose transaction holds a snapshot, for as long as it is open.
    Methods are for any thread, and take turns.

    Args:
        dsn: the database's.
    """

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._connection: Connection | None = None
        self._is_closed = False
        self._turn = threading.Lock()

    def take(self) -> Taken:
        """Take a snapshot, in place of the one that is held.

        Raises:
            SourceInRecovery: the server is a standby: what its snapshots see can't be said in xids.
            SourceError: the server refuses.
        """
        with self._used() as connection:
            connection.execute("ROLLBACK")
            (recovers,) = _row(connection, "SELECT pg_catalog.pg_is_in_recovery()")
            if recovers:
                raise SourceInRecovery(
                    "the server that the source's DSN leads to is in recovery: no exact snapshot "
                    "can be taken there",
                    hint="Point the DSN at the primary: host=a,b target_session_attrs=read-write "
                    "finds it among several.",
                )
            running = [
                Running(*row) for query in _RUNNING for row in connection.execute(query).fetchall()
            ]
            connection.execute(_BEGIN)
            contents, insert_lsn, taken_at_us = _row(connection, _TAKE)
        return Taken(running, contents, Lsn.parse(insert_lsn), taken_at_us)

    def take_by_slot(
        self, slot_name: str, over: Callable[[], SpillwayError | None]
    ) -> tuple[Taken, int]:
        """Take a snapshot by a temporary logical slot on the server, in place of the one that is
        held.

        Args:
            slot_name: the slot's.
            over: asked ten times a second; what it returns is raised.

        Returns:
            The snapshot, and the LSN that belongs to it.

        Raises:
            SourceError: the server refuses.
            Whatever *over* returns.
        """
        with (
            exported_by_slot(self.dsn, slot_name, _say_nothing, over) as (lsn, name),
            self._used() as connection,
        ):
            connection.execute("ROLLBACK")
            connection.execute(_BEGIN)
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(name))
            contents, taken_at_us = _row(
                connection, f"SELECT pg_catalog.pg_current_snapshot()::text, {_NOW}"
            )
        return Taken((), contents, lsn, taken_at_us), lsn

    def export(self) -> str:
        """Return a name by which others may import the snapshot.

        Raises:
            SourceError: the session has ended.
        """
        with self._used() as connection:
            (name,) = _row(connection, "SELECT pg_catalog.pg_export_snapshot()")
        return str(name)

    def alive(self) -> bool:
        """Say whether the snapshot can still be imported."""
        try:
            with self._used() as connection:
                connection.execute("SELECT 1")
        except SpillwayError:
            return False
        return True

    def rest(self) -> bool:
        """Give the snapshot up, and keep the session for the next one; False when that can't be."""
        try:
            with self._used() as connection:
                connection.execute("ROLLBACK")
        except SpillwayError:
            return False
        return True

    def close(self, wait_s: float = CANCEL_S) -> None:
        """Give the snapshot up; safe to repeat. Whoever waits for an answer of the server is given
        *wait_s*, and cut off then.
        """
        self._is_closed = True
        if self._turn.acquire(timeout=max(0.0, wait_s)):
            try:
                self._end()
            finally:
                self._turn.release()
        elif self._connection is not None:
            cut(self._connection)

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()

    @contextlib.contextmanager
    def _used(self) -> Iterator[Connection]:
        """Yield the connection, made at first."""
        with self._turn:
            if self._is_closed:
                raise SourceError(
                    "the session that holds a snapshot is closed", hint="Take another one."
                )
            is_new = self._connection is None
            connection = self._connection = self._connection or connect_to_source(self.dsn)
            try:
                if is_new:
                    connection.execute(_SETTINGS, [f"{STATEMENT_TIMEOUT_MS}ms"])
                yield connection
            except psycopg.Error as error:
                raise failure(error, connection, self.dsn) from error
            finally:
                # Who closed it had no turn.
                if self._is_closed:
                    self._end()


def pass_on(dsn: str) -> None:
    """Have the server write a record of WAL, and flush it soon.

    What is behind the last commit is not flushed while nobody commits. A transaction with an xid
    that has written nothing commits asynchronously: the WAL writer flushes up to its commit record.

    Raises:
        SourceError: it can't be asked.
    """
    with source_session(dsn) as connection:
        connection.execute("SELECT pg_catalog.pg_current_xact_id()")


def _row(connection: Connection, query: str) -> tuple[Any, ...]:
    row = connection.execute(query).fetchone()
    assert row is not None
    return row


def _say_nothing() -> None:
    """Whoever waits for an answer is told in the end."""
