"""One connection of the workload: runs statements one at a time, and knows where its transaction
stands.

Everything goes through libpq's simple query protocol, without exceptions: that a statement fails is
the ordinary case here. Each statement is logged with its session's number, which is all that a
replay needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from psycopg import pq

from spillway.certify.workload import view as catalog_view
from spillway.errors import SourceUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg.pq.abc import PGconn, PGresult

_FAILED: Final = frozenset({pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE})
_SETTINGS: Final = """
SET client_min_messages = error; SET lock_timeout = '{lock_timeout_ms}ms';
SET statement_timeout = '60s';
SET jit = off; SET synchronous_commit = {synchronous_commit};
SET max_parallel_workers_per_gather = 0;
SET client_encoding = 'UTF8'; SET extra_float_digits = 1; SET xmloption = content;
SET check_function_bodies = off
"""


class Statement(NamedTuple):
    """Something to execute, and for COPY … FROM STDIN the data."""

    sql: str
    copy: str = ""


class Outcome(NamedTuple):
    """What became of a statement."""

    #: SQLSTATE; '' for success
    sqlstate: str
    message: str
    #: the command tag, "INSERT 0 5"
    tag: str


class Session:
    """One connection."""

    def __init__(
        self,
        number: int,
        conninfo: str,
        log: Callable[[int, Statement], None],
        *,
        lock_timeout_ms: int = 10,
        synchronous_commit: bool = True,
    ) -> None:
        self.number: Final = number
        self._conninfo = conninfo
        self._log = log
        self._settings = _SETTINGS.format(
            lock_timeout_ms=lock_timeout_ms,
            synchronous_commit="on" if synchronous_commit else "off",
        )
        self._pgconn: PGconn | None = None
        self._view: catalog_view.View | None = None
        self._forget_transaction()

    def _forget_transaction(self) -> None:
        #: names, outermost first
        self.savepoints: list[str] = []
        #: tables that the transaction in progress holds locks on, → whether the strongest one
        self.locked: dict[str, bool] = {}
        #: statements in the transaction so far
        self.age = 0
        #: the catalog was changed in it
        self.changed_catalog = False
        #: holds a lock that stops everybody
        self.exclusive = False

    # -- connection

    def connect(self) -> None:
        """Open the connection.

        Raises:
            SourceUnreachable: there is no server.
        """
        self.close()
        pgconn = pq.PGconn.connect(self._conninfo.encode())
        if pgconn.status != pq.ConnStatus.OK:
            message = pgconn.get_error_message("utf-8").strip()
            pgconn.finish()
            raise SourceUnreachable(
                f"the workload can't connect: {message}",
                hint="See that the server runs and the DSN is right.",
            )
        self._pgconn = pgconn
        pgconn.exec_(self._settings.encode())
        # To plan it takes longer than to run it.
        pgconn.exec_(f"PREPARE catalog_view AS {catalog_view.QUERY}".encode())

    def close(self) -> None:
        """Close the connection; the server rolls back. May be repeated."""
        if self._pgconn is not None:
            self._pgconn.finish()
            self._pgconn = None
        self._view = None
        self._forget_transaction()

    @property
    def connected(self) -> bool:
        """Whether the connection is there, as far as is known."""
        return self._pgconn is not None and self._pgconn.status == pq.ConnStatus.OK

    @property
    def idle(self) -> bool:
        """No transaction block is open."""
        return self._status == pq.TransactionStatus.IDLE

    @property
    def failed(self) -> bool:
        """The transaction block waits for its ROLLBACK."""
        return self._status == pq.TransactionStatus.INERROR

    @property
    def _status(self) -> pq.TransactionStatus:
        return (
            pq.TransactionStatus.UNKNOWN
            if self._pgconn is None
            else pq.TransactionStatus(self._pgconn.transaction_status)
        )

    # -- statements

    def execute(self, statement: Statement) -> Outcome:
        """Run one statement, log it, follow what it does to the transaction."""
        assert self._pgconn is not None
        self._log(self.number, statement)
        was_idle = self.idle
        outcome = self._run(statement)
        self.age += 1
        if (self.idle and not (was_idle and not self.locked)) or statement.sql.endswith(
            "AND CHAIN"
        ):
            self._forget_transaction()
        return outcome

    def _run(self, statement: Statement) -> Outcome:
        pgconn = self._pgconn
        assert pgconn is not None
        result = pgconn.exec_(statement.sql.encode())
        if result.status == pq.ExecStatus.COPY_IN:
            for piece in statement.copy.encode(), b"":
                if piece:
                    pgconn.put_copy_data(piece)
            pgconn.put_copy_end()
            result = _last(pgconn) or result
        elif result.status == pq.ExecStatus.COPY_OUT:
            while pgconn.get_copy_data(0)[0] > 0:
                pass
            result = _last(pgconn) or result
        if result.status in _FAILED:
            state = result.error_field(pq.DiagnosticField.SQLSTATE) or b"08006"
            message = (
                result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
                or pgconn.get_error_message().encode()
            )
            return Outcome(state.decode(), message.decode("utf-8", "replace"), "")
        return Outcome("", "", (result.command_status or b"").decode())

    def query(self, sql: str) -> str | None:
        """Ask for one value, unlogged; None when the transaction has failed or the query does."""
        assert self._pgconn is not None
        result = self._pgconn.exec_(sql.encode())
        if result.status != pq.ExecStatus.TUPLES_OK or not result.ntuples:
            return None
        found = result.get_value(0, 0)
        return None if found is None else found.decode()

    # -- catalog

    def forget_view(self) -> None:
        """Have the catalog read again when it is next looked at."""
        self._view = None

    @property
    def view(self) -> catalog_view.View:
        """What this session sees now; nothing while the server does not answer."""
        if self._view is None:
            text = self.query("EXECUTE catalog_view")
            if text is None:
                return catalog_view.View()
            self._view = catalog_view.parse(text)
        return self._view


def _last(pgconn: PGconn) -> PGresult | None:
    """Take the results that end a COPY; return the last, or the one that is an error."""
    last = None
    while (result := pgconn.get_result()) is not None:
        last = result
        if result.status in _FAILED:
            while pgconn.get_result() is not None:
                pass
            break
    return last
