"""Metadata in a PostgreSQL database, by psycopg.

The URL goes to libpq as it is, so that all of its parameters work. Nothing is prepared and nothing is set for a session, so
that a pooler may stand in between. An answer that takes too long is an error: the server ends the statement, and the
network counts as gone when it does not acknowledge what was sent.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row, tuple_row

from spillway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

#: How long to wait for an answer, in seconds.
TIMEOUT_S: Final = 30
#: Metadata statements take milliseconds: a handful of connections serves a process.
_CONNECTIONS: Final = 5
#: Key of the advisory lock, "spillway" read as a big-endian number.
_LOCK_KEY: Final = int.from_bytes(b"spillway", "big")
_BEGIN: Final = f"BEGIN; SET LOCAL statement_timeout = '{TIMEOUT_S}s'".encode()
#: A name that a value goes to; a cast has two colons.
_NAMED: Final = re.compile(r"(?<!:):([a-z_]+)")


class PostgresqlBackend:
    """Implements :class:`spillway.store.database.Backend`.

    Raises:
        InvalidRequest: libpq can't read *url*.
    """

    hint = "Check that PostgreSQL is up and SPILLWAY_METADATA_URL is right; requests work again once it is."
    threads = _CONNECTIONS
    errors: tuple[type[Exception], ...] = (psycopg.Error, OSError)
    # Not now(), which stands still in a transaction that has waited for a lock.
    clock = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"
    lock_found = "FOR SHARE"
    moment_type = "TIMESTAMP WITH TIME ZONE"
    # Not to_regclass, which may still not know what was made while the transaction waited for a lock.
    has_table = (
        "SELECT count(*) AS n FROM pg_class WHERE relname = :name AND pg_table_is_visible(oid)"
    )
    sqlalchemy_url = "postgresql+psycopg://"

    def __init__(self, url: str) -> None:
        # asyncpg's name for it, which URLs of earlier releases may have.
        url = re.sub(r"([?&])ssl=", r"\1sslmode=", url)
        try:
            self._conninfo = make_conninfo(
                url,
                application_name="spillway metadata",
                client_encoding="utf8",
                connect_timeout=TIMEOUT_S,
                tcp_user_timeout=TIMEOUT_S * 1000,
            )
            named = conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            # libpq quotes what it can't read, and that may be a password.
            raise InvalidRequest(
                "the metadata URL can't be parsed",
                hint="postgresql://user:password@host:port/database?parameter=value, with libpq's parameters.",
            ) from error
        place = "".join(
            f"{before}{named[name]}"
            for before, name in (("", "host"), (":", "port"), ("/", "dbname"))
            if named.get(name)
        )
        self.where = f"postgresql://{place}"

    def prepare(self) -> None:
        """Do nothing: the database is made by whoever runs the server."""

    def connect(self, *, as_dicts: bool = True) -> psycopg.Connection[Any]:
        # Transactions are begun by us, not by the driver.
        row_factory: Any = dict_row if as_dicts else tuple_row
        return psycopg.connect(
            self._conninfo, autocommit=True, prepare_threshold=None, row_factory=row_factory
        )

    def is_usable(self, connection: psycopg.Connection[Any]) -> bool:
        try:
            connection.execute("")
        except psycopg.Error:
            # The server went, and may be back.
            return False
        return True

    def begin(self, connection: psycopg.Connection[Any], *, writes: bool) -> None:  # noqa: ARG002
        connection.execute(_BEGIN)

    def execute(
        self,
        connection: psycopg.Connection[Any],
        statement: str,
        values: Mapping[str, Any],
    ) -> psycopg.Cursor[Any]:
        return connection.execute(_translated(statement), values)

    def lock_schema(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK_KEY})".encode())

    def violated(self, error: Exception) -> bool | None:
        if not isinstance(error, psycopg.IntegrityError):
            return None
        # foreign_key_violation and restrict_violation
        return error.sqlstate in ("23503", "23001")

    def moment(self, value: datetime) -> datetime:
        return value


@functools.cache
def _translated(statement: str) -> bytes:
    """Return *statement* as psycopg takes it."""
    return _NAMED.sub(r"%(\1)s", statement).encode()
