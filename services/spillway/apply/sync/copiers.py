"""Several connections that copy what there is to copy: jobs of many tables, of one snapshot.

A job is what one transaction of the target takes: a range, or a whole table that had rows before,
which must go back to what it was if its copy fails. Each copier has a session on both sides, takes
the job whose table the fewest others are at, and goes on until nothing is left. A table that fails
leaves the others alone; a connection that breaks ends the attempt.

The source's session holds its snapshot through all jobs and a table's lock only through one of
them: the lock is within a savepoint. So DDL waits for one range and not for the load; what it did
to the table is seen by the next range, which compares the table with what the snapshot saw.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from spillway.apply.sync.copying import copy_range
from spillway.apply.sync.origins import mark
from spillway.apply.target.connection import encoded
from spillway.apply.target.failures import from_postgres
from spillway.errors import NotReady, SourceError, SourceTableAltered, SpillwayError
from spillway.failpoints import failpoint
from spillway.pg.byte_session import take_bytes
from spillway.pg.connecting import connect
from spillway.pg.conninfo import redact
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spillway.apply.sync.plan import CopyPlan
    from spillway.apply.sync.states import TableName, TableStates
    from spillway.apply.target.stop import Stop

Connection = psycopg.Connection[tuple[Any, ...]]

_LOCK_TIMEOUT: Final = "30s"
#: Of both sides, that text means the same: libpqrcv_connect
#: (src/backend/replication/libpqwalreceiver).
_SETTINGS: Final = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "extra_float_digits": "3",
    "search_path": "pg_catalog",
    "row_security": "off",
    "array_nulls": "on",
    "standard_conforming_strings": "on",
    "statement_timeout": "0",
    "transaction_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "exit_on_error": "off",
    "client_min_messages": "error",
}


#: what is committed ends before it; what is not replayed yet on a standby is no concern of its slot
_SOURCE_LSN: Final = """
SELECT (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
             ELSE pg_catalog.pg_current_wal_insert_lsn() END)::text
"""


@dataclass(slots=True)
class TableCopy:
    """One table's copy, as the copiers share it."""

    plan: CopyPlan
    #: places of ranges that nobody has taken yet
    left: list[int]
    #: all of them go into one transaction
    is_one: bool
    at_work: int = 0
    failed: SpillwayError | None = None
    #: bytes of ranges that are not durable yet
    in_flight: int = 0

    @property
    def key(self) -> TableName:
        return self.plan.published.key


@dataclass(slots=True)
class Attempt:
    """What the copiers work through, and how it went."""

    copies: list[TableCopy]
    failure: SpillwayError | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> tuple[TableCopy, list[int]] | None:
        """Give a copier its next job; None when there is none."""
        with self.lock:
            waiting = [c for c in self.copies if c.left and c.failed is None]
            if not waiting or self.failure is not None:
                return None
            chosen = min(waiting, key=lambda c: (c.at_work, -c.plan.published.size_bytes, c.key))
            count = len(chosen.left) if chosen.is_one else 1
            places, chosen.left = chosen.left[:count], chosen.left[count:]
            chosen.at_work += 1
            return chosen, places


class Copiers:
    """Copies the tables of one attempt.

    Args:
        conninfo: the source's.
        snapshot: what SET TRANSACTION SNAPSHOT is given.
        connect_target: opens a session on the target, in autocommit.
        states: what is durable is told there.
        is_stopping: asked now and then.
        origin: of the subscription; '' where it has none.
    """

    def __init__(
        self,
        conninfo: str,
        snapshot: str,
        connect_target: Callable[[], Connection],
        states: TableStates,
        is_stopping: Callable[[], bool],
        origin: str = "",
    ) -> None:
        self._origin = origin
        self._conninfo = conninfo
        self._snapshot = snapshot
        self._connect_target = connect_target
        self._states = states
        self._is_stopping = is_stopping

    def run(
        self, copies: list[TableCopy], connections: int, done: Callable[[TableCopy], None]
    ) -> None:
        """Copy; return when nothing is left or goes on. What failed of a table is its
        :attr:`TableCopy.failed`.

        Args:
            copies: what there is to do.
            connections: to each side, at most.
            done: is called with each table whose last range is durable, by the thread that ran it.

        Raises:
            SpillwayError: a connection broke, or it was stopped.
        """
        attempt = Attempt(copies)
        jobs = sum(1 if c.is_one else len(c.left) for c in copies)
        threads = [
            threading.Thread(
                target=self._work, args=(attempt, done), name=f"table sync {i}", daemon=True
            )
            for i in range(max(1, min(connections, jobs)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if attempt.failure is not None:
            raise attempt.failure

    def _work(self, attempt: Attempt, done: Callable[[TableCopy], None]) -> None:
        source: Connection | None = None
        target: Connection | None = None
        now: Connection | None = None
        try:
            while (job := attempt.take()) is not None:
                copy, places = job
                target = self._target(target)
                source = self._source(source, target)
                now = self._plain(now, target)
                try:
                    self._copy(source, target, now, copy, places, attempt)
                    finished = False
                    with attempt.lock:
                        copy.at_work -= 1
                        finished = not copy.left and not copy.at_work and copy.failed is None
                    if finished:
                        done(copy)
                except NotReady:
                    if self._is_stopping():
                        raise
                    # Another copier saw the table fail, or the attempt.
                except SpillwayError as error:
                    with attempt.lock:
                        copy.failed = copy.failed or error
                    if target.closed or self._is_unreachable(source, now):
                        raise
        except SpillwayError as error:
            with attempt.lock:
                attempt.failure = attempt.failure or error
        except psycopg.Error as error:
            failed = from_postgres(error, "table sync")
            with attempt.lock:
                attempt.failure = attempt.failure or failed
        except BaseException as error:  # noqa: BLE001 - a thread's failure is the attempt's
            with attempt.lock:
                attempt.failure = attempt.failure or SpillwayError(
                    f"table sync failed: {type(error).__name__}: {error}"
                )
        finally:
            for connection in (source, target, now):
                if connection is not None:
                    connection.close()

    def _copy(
        self,
        source: Connection,
        target: Connection,
        now: Connection,
        copy: TableCopy,
        places: list[int],
        attempt: Attempt,
    ) -> None:
        plan = copy.plan
        in_flight = 0

        def told(size: int) -> None:
            nonlocal in_flight
            in_flight += size
            with attempt.lock:
                copy.in_flight += size

        def is_over() -> bool:
            return self._is_stopping() or copy.failed is not None or attempt.failure is not None

        what = f"copying {'.'.join(plan.published.key)}"
        try:
            target.execute("BEGIN")
            counted: list[tuple[int, int, int]] = []
            for place in places:
                part = plan.ranges[place]
                self._lock(source, now, plan, place)
                copied = copy_range(source, target, plan, part, told, is_over)
                source.execute("ROLLBACK TO SAVEPOINT one")
                self._states.store_range(target, copy.key, place, copied.rows, copied.bytes)
                counted.append((place, copied.rows, copied.bytes))
            failpoint("table_sync.before_range")
            target.execute("COMMIT")
        except psycopg.Error as error:
            if not target.closed:
                with suppress(psycopg.Error):
                    target.execute("ROLLBACK")
            raise _failed(error, plan, what) from None
        except BaseException:
            with suppress(psycopg.Error):
                target.execute("ROLLBACK")
            raise
        finally:
            with attempt.lock:
                copy.in_flight -= in_flight
        failpoint("table_sync.after_range")
        for place, rows, size in counted:
            self._states.range_changed(copy.key, place, rows, size)

    def _lock(self, source: Connection, now: Connection, plan: CopyPlan, place: int) -> None:
        """Keep others from altering what a range reads; see that nobody did."""
        part, name = plan.ranges[place], ".".join(plan.published.key)
        try:
            source.execute("SAVEPOINT one")
            lock = sql.SQL("LOCK TABLE ONLY {} IN ACCESS SHARE MODE").format(
                sql.Identifier(part.schema, part.table)
            )
            source.execute(encoded(lock, source))
            then = plan.published.shape(source, part)
            present = plan.published.shape(now, part)
        except psycopg.Error as error:
            if source.closed:
                raise SourceError(
                    f"copying {name}: the source's connection broke", hint="It is tried again."
                ) from None
            with suppress(psycopg.Error):
                source.execute("ROLLBACK TO SAVEPOINT one")
            text = " ".join(redact(str(error), self._conninfo).split())
            raise SourceTableAltered(
                f"copying {name}: the source refused: {text}",
                hint="The table is copied anew, as it is then; a refresh forgets one that was "
                "dropped.",
                sqlstate=error.sqlstate,
                relation=name,
            ) from None
        if then != present:
            with suppress(psycopg.Error):
                source.execute("ROLLBACK TO SAVEPOINT one")
            raise SourceTableAltered(
                f"{name} was altered, truncated or rewritten on the source while it was copied",
                hint="The table is copied anew, as it is then.",
                relation=name,
            )

    def _target(self, connection: Connection | None) -> Connection:
        if connection is not None and not connection.closed:
            return connection
        connection = self._connect_target()
        _set(connection, {**_SETTINGS, "synchronous_commit": "off", "lock_timeout": "0"})
        connection.execute(
            "SELECT pg_catalog.set_config('client_encoding',"
            " pg_catalog.current_setting('server_encoding'), false)"
        )
        if self._origin:
            mark(connection, self._origin)
        return connection

    def _source(self, connection: Connection | None, target: Connection) -> Connection:
        if connection is not None and not connection.closed:
            return connection
        connection = self._plain(None, target)
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(self._snapshot))
        except psycopg.Error as error:
            connection.close()
            raise SourceError(
                f"the snapshot is gone: {' '.join(redact(str(error), self._conninfo).split())}",
                hint="Another one is taken.",
                sqlstate=error.sqlstate,
            ) from None
        return connection

    def _plain(self, connection: Connection | None, target: Connection) -> Connection:
        """A session of the source that sees what there is now, in the target's encoding; for one
        in SQL_ASCII in UTF-8, as what a stream sends, unless the source has no encoding either.
        """
        if connection is not None and not connection.closed:
            return connection
        encoding = target.info.parameter_status("server_encoding") or "UTF8"
        connection = connect_source(self._conninfo)
        has_none = connection.info.parameter_status("server_encoding") == "SQL_ASCII"
        if encoding == "SQL_ASCII" and not has_none:
            encoding = "UTF8"
        _set(connection, {**_SETTINGS, "lock_timeout": _LOCK_TIMEOUT, "client_encoding": encoding})
        return connection

    def _is_unreachable(self, source: Connection, now: Connection) -> bool:
        """Say whether what failed was the source, not the table: a copy that is given up closes
        its session, and another one does what it was for.
        """
        if not source.closed and not now.closed:
            return False
        try:
            connect_source(self._conninfo).close()
        except SpillwayError:
            return True
        return False


def connect_source(conninfo: str, stop: Stop | None = None) -> Connection:
    """Connect to the source for SQL, in autocommit.

    Args:
        conninfo: the source's.
        stop: ends the session once it is set: a question waits for who has a table locked.

    Raises:
        SourceError: there is no connection.
    """
    connection = connect(conninfo)
    if stop is not None:
        stop.watch(connection)
    take_bytes(connection, shown=True)
    return connection


def source_lsn(connection: Connection) -> int:
    """Return up to where a source has written, or replayed, as of now.

    Raises:
        psycopg.Error: it did not answer.
    """
    row = connection.execute(_SOURCE_LSN).fetchone()
    return 0 if row is None else int(Lsn.parse(row[0]))


def _set(connection: Connection, settings: Mapping[str, str]) -> None:
    connection.execute(
        "SELECT pg_catalog.set_config(w.name, w.value, false) FROM ROWS FROM"
        " (pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::text[])) AS w (name, value)"
        # What an older server does not know is left out.
        " WHERE pg_catalog.current_setting(w.name, true) IS NOT NULL",
        [list(settings), list(settings.values())],
    )


def _failed(error: psycopg.Error, plan: CopyPlan, what: str) -> SpillwayError:
    """Make the target's error of a copy, with a remedy where rows are in the way."""
    failed = from_postgres(error, what)
    if isinstance(error, psycopg.errors.UniqueViolation | psycopg.errors.ExclusionViolation):
        return type(failed)(
            f"{failed.message}: rows that the target has already are in the way",
            hint=f"On the target: TRUNCATE {plan.target.quoted}; or remove the rows that are in "
            "the way. The table is copied then by itself.",
            **failed.details,
        )
    if isinstance(error, psycopg.errors.ForeignKeyViolation):
        return type(failed)(
            failed.message,
            hint="It is tried again, and goes on once the table that it refers to is copied. Of "
            "tables that refer to each other: let the role set session_replication_role (GRANT SET "
            "ON PARAMETER, from 15 on), or make the foreign keys after the copy.",
            **failed.details,
        )
    return failed
