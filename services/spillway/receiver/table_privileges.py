"""Whether a source's role may read tables whole, as an initial copy does; asked before anything is
started for it.

A copy needs USAGE on the schema and SELECT on the table. Row-level security needs more: a copy that
got only the rows which a policy lets through would be wrong and look right, so it is made with
``row_security = off``, and the server refuses it to a role that policies apply to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.errors import TableNotReadable
from spillway.pg.byte_session import take_bytes
from spillway.pg.encoding import readable
from spillway.pg.identifier import quote_identifier, quote_qualified_identifier
from spillway.receiver.source_session import source_session

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Of an ordinary table that rows are copied from; a partitioned one's partitions are read by
#: themselves.
_PRIVILEGES: Final = """
SELECT nspname::text, relname::text, current_user::text,
       pg_catalog.has_schema_privilege(n.oid, 'USAGE'), pg_catalog.has_table_privilege(c.oid,
           'SELECT'),
       pg_catalog.row_security_active(c.oid)
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = relnamespace
 WHERE relkind = 'r' AND relpersistence = 'p' AND c.oid >= 16384
   AND nspname NOT LIKE 'pg\\_%%' AND nspname <> 'information_schema'
   AND (%(names)s::text[] IS NULL OR nspname || '.' || relname = ANY (%(names)s::text[]))
 ORDER BY 1, 2
"""
#: A message names so many tables, the hint is about all of them.
_NAMED_MAX: Final = 5


class Lack(NamedTuple):
    """A table, and what its reader lacks."""

    schema: str
    table: str
    schema_usage: bool
    select: bool
    row_security: bool

    @property
    def name(self) -> str:
        return readable(f"{self.schema}.{self.table}")


def check_readable(dsn: str, tables: Sequence[str] | None) -> None:
    """Check that the role of *dsn* may read each of *tables* (``schema.table``) whole; None: each
    of the database.

    Blocking: one connection, one query. A table that does not exist is not this function's matter.

    Raises:
        TableNotReadable: the hint is the SQL that grants what is missing, for a superuser or the
            tables' owner.
        SourceError: the source can't be asked.
    """
    names = None if tables is None else list(tables)
    with source_session(dsn) as connection:
        take_bytes(connection)
        rows = connection.execute(_PRIVILEGES, {"names": names}).fetchall()
        version = connection.info.server_version
    lacks = [
        Lack(schema, table, not usage, not select, bool(policies and select))
        for schema, table, _, usage, select, policies in rows
        if not usage or not select or policies
    ]
    if lacks:
        raise not_readable(rows[0][2], lacks, version)


def not_readable(role: str, lacks: Sequence[Lack], server_version_num: int) -> TableNotReadable:
    """Make the error that says which tables *role* may not read, with the SQL that mends it."""

    def quoted(name: str) -> str:
        return quote_identifier(name, server_version_num)

    grantee = quoted(role)
    statements = [
        f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {grantee};"
        for schema in dict.fromkeys(lack.schema for lack in lacks if lack.schema_usage)
    ]
    unselected = [
        quote_qualified_identifier(lack.schema, lack.table, server_version_num)
        for lack in lacks
        if lack.select
    ]
    if unselected:
        statements.append(f"GRANT SELECT ON {', '.join(unselected)} TO {grantee};")
    if any(lack.row_security for lack in lacks):
        # Of one that may not be selected from yet, too: it is found again then.
        statements.append(f"ALTER ROLE {grantee} BYPASSRLS;")
    names = [lack.name for lack in lacks]
    shown = ", ".join(names[:_NAMED_MAX])
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    script = " ".join(statements)
    if readable(script) != script:
        # Only whoever runs it knows how to write such a byte.
        script = f"{readable(script)} Write each \\x.. of a name as the byte that it stands for."
    return TableNotReadable(
        f"role {grantee} may not read all rows of {shown}{more}",
        hint=script,
        user=role,
        relations=names,
    )
