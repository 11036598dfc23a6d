"""A short SQL session on a source, its errors typed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from spillway.errors import SourceError, SourceUnreachable
from spillway.pg.connecting import connect
from spillway.pg.conninfo import redact, sql_conninfo

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A catalog query that takes longer means a server that is stuck, and a request that hangs with it.
_STATEMENT_TIMEOUT_MS = 30_000
#: … and one that does not even end that statement stands still.
_ANSWER_S = _STATEMENT_TIMEOUT_MS / 1000 + 5.0


@contextmanager
def source_session(dsn: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """Connect for SQL, in autocommit, with names only from pg_catalog. Blocking.

    Raises:
        InvalidDsn: *dsn* can't be parsed.
        SourceError: no connection (its subclass says why), or a statement failed inside.
    """
    with connect(sql_conninfo(dsn), dsn, answer_s=_ANSWER_S, client_encoding="UTF8") as connection:
        try:
            connection.execute(
                "SELECT pg_catalog.set_config('search_path', 'pg_catalog', false),"
                " pg_catalog.set_config('statement_timeout', %s, false)",
                [f"{_STATEMENT_TIMEOUT_MS}ms"],
            )
            yield connection
        except psycopg.Error as error:
            if connection.closed and error.sqlstate is None:
                raise SourceUnreachable(
                    "the connection to the source broke: "
                    f"{' '.join(redact(str(error), dsn).split())}",
                    hint="See whether the source's server runs, and whether it hangs.",
                ) from error
            text = " ".join(redact(str(error), dsn).split())
            raise SourceError(
                f"a query on the source failed: {text}",
                hint="Check the source's log.",
                sqlstate=error.sqlstate,
            ) from error
