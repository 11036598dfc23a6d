"""The schema ``spillway`` on the target: where a subscription keeps its place.

Tables only, each made by ``CREATE … IF NOT EXISTS`` and only when it is missing, so that a role
that may not create them needs nothing but rights on them. A target whose role may not make the
schema is prepared by its owner once; the statements are in the error's hint, and
``spillway apply prepare`` prints them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import psycopg

from spillway.apply.target.failures import from_postgres
from spillway.errors import TargetNotPrepared
from spillway.pg.connect_errors import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA: Final = "spillway"
#: Tables that are the subscriptions' there; a schema of that name may have others, of somebody.
OWN_TABLES: Final = (
    "progress",
    "committed",
    "tables",
    "deferred_ddl",
    "relations",
    "conflicts",
    "dead_letter",
    "prepared",
)
#: One row a subscription: whose it is, and, where no replication origin is used, its position. The
#: row is updated with every commit; room on its page keeps that from growing the table.
PROGRESS_SQL: Final = """CREATE TABLE IF NOT EXISTS spillway.progress (
    subscription text PRIMARY KEY,
    identity text NOT NULL,
    origin text,
    remote_lsn pg_catalog.pg_lsn NOT NULL DEFAULT '0/0',
    commit_time timestamptz
) WITH (fillfactor = 10)"""
#: Groups that were committed before an earlier one, by ``commit_order: relaxed``: what is from
#: ``from_lsn`` to ``end_lsn`` at the source. No more rows than connections, and none for long.
COMMITTED_SQL: Final = """CREATE TABLE IF NOT EXISTS spillway.committed (
    subscription text,
    end_lsn pg_catalog.pg_lsn,
    from_lsn pg_catalog.pg_lsn NOT NULL,
    PRIMARY KEY (subscription, end_lsn)
)"""
_TABLE: Final = re.compile(r"CREATE TABLE IF NOT EXISTS spillway\.(\w+)")


def is_own(schema: str, table: str) -> bool:
    """Say whether that is a table of a subscription's own."""
    return schema == SCHEMA and table in OWN_TABLES


def prepare_schema(connection: psycopg.Connection[Any], tables: Sequence[str]) -> None:
    """Make what is missing of the schema.

    Args:
        connection: to the target, in autocommit.
        tables: ``CREATE TABLE IF NOT EXISTS spillway.…`` statements.

    Raises:
        TargetNotPrepared: the role may not; the hint is the SQL for an owner.
        TargetError: it can't be done for another reason.
    """
    try:
        there = {
            name
            for (name,) in connection.execute(
                "SELECT relname::text FROM pg_catalog.pg_class c"
                " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
                " WHERE nspname = %s AND relkind IN ('r', 'p')",
                [SCHEMA],
            )
        }
        missing = [table for table in tables if _name(table) not in there]
        if missing:
            with connection.transaction():
                # IF NOT EXISTS asks for the right to create before it looks.
                if not connection.execute(
                    "SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s", [SCHEMA]
                ).fetchall():
                    connection.execute("CREATE SCHEMA IF NOT EXISTS spillway")
                for table in missing:
                    connection.execute(table.encode())
        _check_rights(connection, tables)
    except psycopg.errors.InsufficientPrivilege as error:
        raise TargetNotPrepared(
            f"the target's schema spillway can't be made: {error.diag.message_primary}",
            hint=owner_sql(_user(connection), tables),
        ) from error
    except psycopg.Error as error:
        raise from_postgres(error, "the target's schema spillway can't be made") from error


def owner_sql(role: str, tables: Sequence[str]) -> str:
    """Return what an owner of the database runs once, so that *role* need not make anything."""
    name = quote_identifier(role)
    statements = ["CREATE SCHEMA IF NOT EXISTS spillway", *tables]
    own = ", ".join(f"spillway.{_name(table)}" for table in tables)
    statements += [
        f"GRANT USAGE ON SCHEMA spillway TO {name}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON {own} TO {name}",
    ]
    return "Run as an owner of the target's database: " + " ".join(
        f"{' '.join(statement.split())};" for statement in statements
    )


def _check_rights(connection: psycopg.Connection[Any], tables: Sequence[str]) -> None:
    lacking = connection.execute(
        "SELECT name FROM unnest(%s::text[]) AS name"
        " WHERE NOT pg_catalog.has_table_privilege('spillway.' || name, 'SELECT')"
        " OR NOT pg_catalog.has_table_privilege('spillway.' || name, 'INSERT')"
        " OR NOT pg_catalog.has_table_privilege('spillway.' || name, 'UPDATE')"
        " OR NOT pg_catalog.has_table_privilege('spillway.' || name, 'DELETE')",
        [[_name(table) for table in tables]],
    ).fetchall()
    if lacking:
        names = ", ".join(f"spillway.{name}" for (name,) in lacking)
        raise TargetNotPrepared(
            f"the role may not read and write {names} on the target",
            hint=owner_sql(_user(connection), tables),
        )


def _name(table: str) -> str:
    found = _TABLE.match(table)
    if found is None:
        raise ValueError(table)
    return found[1]


def _user(connection: psycopg.Connection[Any]) -> str:
    row = connection.execute("SELECT current_user::text").fetchone()
    return "" if row is None else str(row[0])
