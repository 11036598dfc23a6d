"""PostgreSQL's side of the comparison: a temporary logical slot in a session of its own.

The slot goes with its session, however that ends: by ``close``, by a crash of ours, by a lost
connection. It is advanced as it is read, so it holds back WAL only as far as the comparison lags
behind. Rows are fetched one by one, so that memory here is bounded by a row.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, Self

import psycopg

from spillway.certify.rendering import Line
from spillway.errors import MissingReplicationPrivilege, ReplicationSlotsExhausted, SourceError
from spillway.pg.connecting import connect
from spillway.pg.conninfo import redact, sql_conninfo
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.certify.rendering import Subject

#: What texts depend on, at the values that our plugins take when no option says otherwise.
_SETTINGS: Final = {
    "client_encoding": "UTF8",
    "TimeZone": "UTC",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "lc_monetary": "C",
    "statement_timeout": "0",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
_UNDEFINED_FILE: Final = "58P01"


class OracleSlot:
    """A temporary logical slot. Blocking; one thread."""

    def __init__(self, dsn: str, name: str, subject: Subject) -> None:
        self._dsn = dsn
        self.name: Final = name
        self.subject: Final = subject
        #: transactions whose commit record starts before this are not in it
        self.start_lsn = 0
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def __enter__(self) -> Self:
        """Connect and create the slot, which waits for the transactions that are running.

        Raises:
            SourceError: no connection, or the server refuses; the subclass and the hint say why.
        """
        self._connection = connect(sql_conninfo(self._dsn), self._dsn)
        try:
            for setting, value in _SETTINGS.items():
                self._connection.execute(
                    "SELECT pg_catalog.set_config(%s, %s, false)", [setting, value]
                )
            row = self._connection.execute(
                "SELECT lsn::text FROM pg_catalog.pg_create_logical_replication_slot(%s, %s, true)",
                [self.name, self.subject.plugin],
            ).fetchone()
        except psycopg.Error as error:
            self.close()
            raise self._typed(error) from None
        except BaseException:
            self.close()
            raise
        assert row is not None
        self.start_lsn = int(Lsn.parse(row[0]))
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session, and the slot with it. May be repeated."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.cancel()
            self._connection.close()
            self._connection = None

    def changes(self, upto_lsn: int, upto_nchanges: int | None) -> Iterator[Line]:
        """Take messages of transactions that end up to *upto_lsn*, about *upto_nchanges* of them;
        None: all.

        They are confirmed when the iteration ends, which must be at its end.

        Raises:
            SourceError: the server can't decode them, or the connection is lost.
        """
        assert self._connection is not None
        pairs = [text for pair in self.subject.options.items() for text in pair]
        function, data = (
            ("pg_logical_slot_get_binary_changes", "data")
            if self.subject.binary
            else ("pg_logical_slot_get_changes", "pg_catalog.convert_to(data, 'UTF8')")
        )
        try:
            with self._connection.cursor(binary=True) as cursor:
                for lsn, xid, content in cursor.stream(
                    f"SELECT (lsn - '0/0'::pg_lsn)::int8, xid::text::int8, {data}"  # noqa: S608 - constants
                    f" FROM pg_catalog.{function}(%s, %s::pg_lsn, %s::int4, VARIADIC %s::text[])",
                    [self.name, str(Lsn(upto_lsn)), upto_nchanges, pairs],
                ):
                    yield Line(lsn, xid, bytes(content))
        except psycopg.Error as error:
            raise self._typed(error) from None

    def _typed(self, error: psycopg.Error) -> SourceError:
        text = " ".join(redact(str(error), self._dsn).split())
        message = f"PostgreSQL's own slot with {self.subject.plugin} failed: {text}"
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            return MissingReplicationPrivilege(
                message, hint="Use a role with LOGIN and REPLICATION."
            )
        if isinstance(error, psycopg.errors.ConfigurationLimitExceeded):
            return ReplicationSlotsExhausted(
                message, hint="Drop a slot that nobody uses, or raise max_replication_slots."
            )
        hint = "See the server's log."
        if error.sqlstate == _UNDEFINED_FILE:
            hint = "Install PostgreSQL's contrib package on the server: it carries test_decoding."
        return SourceError(message, hint=hint, sqlstate=error.sqlstate)
