"""A short SQL session on a source, its errors typed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from spillway.errors import SourceError
from spillway.pg.connecting import connect
from spillway.pg.conninfo import redact, sql_conninfo

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
    with connect(sql_conninfo(dsn), dsn, client_encoding="UTF8") as connection:
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
