"""Indexes that are dropped for a copy and made again when it is done.

To build an index over all rows takes a fraction of what it takes to put in row by row. Only those
go that nothing rests on: no constraint's, no unique one, not the replica identity. And only those
that come back as they were: the role owns them and may make them, and there is nothing that
``pg_get_indexdef`` does not say, a comment, a tablespace, a target of statistics, an extension.
What makes them again is recorded in the transaction that drops them, and forgotten in the one that
makes them, so that none is lost, whoever dies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from psycopg import sql

from spillway.apply.target.connection import encoded

if TYPE_CHECKING:
    from collections.abc import Iterable

    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

#: of a table's heap, from which on it is worth while when nobody has said anything
WORTH_BYTES: Final = 8 << 20
_DROPPABLE: Final = """
SELECT n.nspname, c.relname, pg_catalog.pg_get_indexdef(i.indexrelid)
  FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE i.indrelid = %s AND c.relkind = 'i' AND i.indisvalid AND NOT i.indisunique
   AND NOT i.indisreplident AND NOT i.indisclustered AND NOT c.relispartition
   AND c.reltablespace = 0
   AND pg_catalog.pg_has_role(c.relowner, 'USAGE')
   AND pg_catalog.has_schema_privilege(n.oid, 'CREATE')
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint k WHERE k.conindid = i.indexrelid)
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_description d
                    WHERE d.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass
                      AND d.objoid = i.indexrelid)
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a
                    WHERE a.attrelid = i.indexrelid AND a.attstattarget >= 0)
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend e
                    WHERE e.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
                      AND e.objid = i.indexrelid AND e.deptype IN ('e', 'x'))
 ORDER BY 2
"""


def drop(connection: Connection, table_oid: int) -> list[str]:
    """Drop what may go of a table's indexes, in the transaction that *connection* is in; return
    what makes them again.
    """
    rows = connection.execute(_DROPPABLE, [table_oid]).fetchall()
    for schema, name, _ in rows:
        statement = sql.SQL("DROP INDEX {}").format(sql.Identifier(schema, name))
        connection.execute(encoded(statement, connection))
    return [row[2] for row in rows]


def make(connection: Connection, definitions: Iterable[str]) -> None:
    """Make indexes again, in the transaction that *connection* is in."""
    connection.execute("SET LOCAL default_tablespace = ''")
    for definition in definitions:
        connection.execute(definition.encode())
