"""A short SQL session on a source, its errors typed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from spillway.errors import SourceError
from spillway.receiver.connect_errors import connect_error
from spillway.receiver.conninfo import parse_dsn, redact, resolve_hosts, sql_conninfo

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A catalog query that takes longer means a server that is stuck, and a request that hangs with it.
_STATEMENT_TIMEOUT_MS = 30_000


@contextmanager
def source_session(dsn: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """Connect for SQL, in autocommit, with names only from pg_catalog. Blocking.

    Raises:
        InvalidDsn: *dsn* can't be parsed.
        SourceError: no connection (its subclass says why), or a statement failed inside.
    """
    conninfo = resolve_hosts(sql_conninfo(dsn))
    parameters = parse_dsn(conninfo)
    try:
        connection = psycopg.connect(conninfo, autocommit=True, client_encoding="UTF8")
    except psycopg.Error as error:
        pgconn = error.pgconn
        rejected = pgconn is not None and bool(pgconn.used_password)
        raise connect_error(str(error), dsn, parameters, password_rejected=rejected) from None
    with connection:
        try:
            connection.execute(
                "SELECT pg_catalog.set_config('search_path', 'pg_catalog', false),"
                " pg_catalog.set_config('statement_timeout', %s, false)",
                [f"{_STATEMENT_TIMEOUT_MS}ms"],
            )
            yield connection
        except psycopg.Error as error:
            text = " ".join(redact(str(error), dsn).split())
            raise SourceError(
                f"a query on the source failed: {text}",
                hint="Check the source's log.",
                sqlstate=error.sqlstate,
            ) from error
