"""How large a source's tables are, for people who choose among them: asked of the source, since WAL
does not say.

Sizes are the tables' with their TOAST, a partitioned one's those of its partitions; rows are what
the last VACUUM or ANALYZE reckoned. To say how large a table is PostgreSQL takes a lock that waits
for ALTER TABLE and the like: the question gives up after :data:`_LOCK_MS`, and pages as they were
at the last VACUUM are taken instead, which needs none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import psycopg

from spillway.receiver.source_session import source_session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: One question's.
TABLES_MAX: Final = 1000
_LOCK_MS: Final = 300
_STATEMENT_MS: Final = 3000

#: Rows that were never reckoned are -1; before 14, 0.
_ASKED: Final = """
WITH RECURSIVE part (root, oid) AS (
    SELECT c.oid, c.oid
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname || '.' || c.relname = ANY (%(names)s::text[]) AND c.relkind IN ('r', 'p')
  UNION ALL
    SELECT part.root, i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid
      JOIN pg_class p ON p.oid = part.oid AND p.relkind = 'p'
)
SELECT n.nspname || '.' || r.relname,
       sum({size})::bigint,
       CASE WHEN bool_and(c.relkind = 'p' OR c.reltuples >= 0)
            THEN sum(CASE c.relkind WHEN 'r' THEN c.reltuples ELSE 0 END)::bigint END
  FROM part JOIN pg_class c ON c.oid = part.oid
       JOIN pg_class r ON r.oid = part.root JOIN pg_namespace n ON n.oid = r.relnamespace
       LEFT JOIN pg_class t ON t.oid = c.reltoastrelid
 GROUP BY 1
"""
_EXACT: Final = "CASE c.relkind WHEN 'r' THEN pg_table_size(c.oid) ELSE 0 END"
_BY_PAGES: Final = """CASE c.relkind WHEN 'r' THEN
    (c.relpages + coalesce(t.relpages, 0)) * current_setting('block_size')::bigint ELSE 0 END"""


class TableSize(NamedTuple):
    """How large a table is."""

    bytes: int
    #: as of its last VACUUM or ANALYZE; None: there was none
    rows: int | None


def table_sizes(dsn: str, tables: Sequence[str]) -> Mapping[str, TableSize]:
    """Return how large *tables*, ``schema.table``, are; at most the first :data:`TABLES_MAX`. One
    that is gone is left out.

    Blocking: one connection, some seconds at most.

    Raises:
        SourceError: the source can't be asked.
    """
    names = {"names": list(tables[:TABLES_MAX])}
    with source_session(dsn) as connection:
        connection.execute(
            "SELECT set_config('lock_timeout', %s, false), set_config('statement_timeout', %s, "
            "false)",
            [f"{_LOCK_MS}ms", f"{_STATEMENT_MS}ms"],
        )
        try:
            rows = connection.execute(_ASKED.format(size=_EXACT), names).fetchall()
        except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled):
            rows = connection.execute(_ASKED.format(size=_BY_PAGES), names).fetchall()
    return {name: TableSize(size, count) for name, size, count in rows}
