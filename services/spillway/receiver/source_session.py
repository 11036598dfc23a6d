"""A short SQL session on a source, its errors typed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg

from spillway.errors import SourceError, SourceUnreachable
from spillway.pg.connecting import connect
from spillway.pg.conninfo import redact, sql_conninfo

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A catalog query that takes longer means a server that is stuck, and a request that hangs with it.
STATEMENT_TIMEOUT_MS: Final = 30_000
#: … and one that does not even end that statement stands still.
_ANSWER_S = STATEMENT_TIMEOUT_MS / 1000 + 5.0


@contextmanager
def source_session(dsn: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """Connect for SQL, in autocommit, with names only from pg_catalog. Blocking.

    Raises:
        InvalidDsn: *dsn* can't be parsed.
        SourceError: no connection (its subclass says why), or a statement failed inside.
    """
    with connect_to_source(dsn) as connection:
        try:
            connection.execute(
                "SELECT pg_catalog.set_config('search_path', 'pg_catalog', false),"
                " pg_catalog.set_config('statement_timeout', %s, false)",
                [f"{STATEMENT_TIMEOUT_MS}ms"],
            )
            yield connection
        except psycopg.Error as error:
            raise failure(error, connection, dsn) from error


def connect_to_source(dsn: str) -> psycopg.Connection[tuple[Any, ...]]:
    """Connect for SQL, in autocommit; each answer is waited for a moment longer than
    :data:`STATEMENT_TIMEOUT_MS`, which the caller sets. Blocking.

    Raises:
        InvalidDsn: *dsn* can't be parsed.
        SourceError: no connection; its subclass says why.
    """
    return connect(sql_conninfo(dsn), dsn, answer_s=_ANSWER_S, client_encoding="UTF8")


def failure(
    error: psycopg.Error, connection: psycopg.Connection[tuple[Any, ...]], dsn: str
) -> SourceError:
    """Return what to say of *error*, with which a statement on *connection* ended."""
    text = " ".join(redact(str(error), dsn).split())
    if connection.closed and error.sqlstate is None:
        return SourceUnreachable(
            f"the connection to the source broke: {text}",
            hint="See whether the source's server runs, and whether it hangs.",
        )
    return SourceError(
        f"a query on the source failed: {text}",
        hint="Check the source's log.",
        sqlstate=error.sqlstate,
    )
