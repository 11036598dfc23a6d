"""What a subscription leaves on a target when it is dropped: nothing but the rows of its tables.

Its rows in the schema ``spillway`` are deleted; tables of that schema that are empty then, and the
schema itself when nothing is left in it, are dropped if the role may. Its replication origins are
dropped when the sessions that had them are gone, which is waited for a little.

Indexes that were dropped for a first copy which did not come to its end are made again, in the
transaction that forgets them. One that can't be is written to the log, as it would be made.

A target that can't be reached keeps nobody from dropping its subscription. :func:`forget_sql` is
then what its owner runs when it is there again. Nobody has looked at the target when it is written,
so it looks itself: at what there is, and whether it is this subscription's.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import psycopg

from spillway.apply.target.connection import connect_target
from spillway.apply.target.failures import from_postgres
from spillway.apply.target.own_schema import OWN_TABLES, SCHEMA
from spillway.pg.connect_errors import quote_identifier
from spillway.pg.identifier import quote_literal

if TYPE_CHECKING:
    from spillway.apply.target.session import TargetPlan

_log = logging.getLogger(__name__)

#: how far each table's first copy is
_STATES: Final = "tables"
_WAIT_S: Final = 15.0
_PAUSE_S: Final = 0.2


def forget_subscription(plan: TargetPlan) -> None:
    """Remove what the subscription keeps. What another one of its name keeps stays.

    Raises:
        TargetError: the target can't be reached, or the role may not.
    """
    with connect_target(plan.dsn, f"spillway subscription {plan.subscription}") as connection:
        try:
            tables = _tables(connection)
            if "progress" not in tables:
                # Origins are the cluster's: those of a database that was dropped are there still.
                _drop_origins(connection, plan.origin)
                return
            row = connection.execute(
                "SELECT identity FROM spillway.progress WHERE subscription = %s",
                [plan.subscription],
            ).fetchone()
            if row is not None and row[0] != plan.identity:
                return
            _drop_origins(connection, plan.origin)
            with connection.transaction():
                if _STATES in tables:
                    _make_indexes(connection, plan.subscription)
                for table in tables:
                    connection.execute(
                        f"DELETE FROM spillway.{quote_identifier(table)}"  # noqa: S608 - quoted
                        " WHERE subscription = %s",
                        [plan.subscription],
                    )
            with suppress(psycopg.errors.InsufficientPrivilege):
                _drop_what_is_empty(connection, tables)
        except psycopg.Error as error:
            raise from_postgres(
                error, "what the subscription keeps on the target can't be removed", plan.dsn
            ) from error


def forget_sql(plan: TargetPlan) -> str:
    """Return a statement that does the same on the target, whatever of it there is; tables of the
    schema stay, without the subscription's rows.
    """
    name, identity = quote_literal(plan.subscription), quote_literal(plan.identity)
    origin, tables = quote_literal(plan.origin), ", ".join(map(quote_literal, OWN_TABLES))
    statement = f"""
    DECLARE one text;
    BEGIN
      IF to_regclass('spillway.progress') IS NULL THEN RETURN; END IF;
      IF EXISTS (SELECT FROM spillway.progress
        WHERE subscription = {name} AND identity <> {identity}) THEN RETURN; END IF;
      FOR one IN SELECT roname FROM pg_replication_origin
        WHERE roname = {origin} OR starts_with(roname, {origin} || '_')
      LOOP PERFORM pg_replication_origin_drop(one); END LOOP;
      IF to_regclass('spillway.tables') IS NOT NULL THEN
        FOR one IN SELECT unnest(dropped_indexes) FROM spillway.tables WHERE subscription = {name}
        LOOP
          BEGIN EXECUTE one;
          EXCEPTION WHEN OTHERS THEN RAISE WARNING '%: %', one, SQLERRM;
          END;
        END LOOP;
      END IF;
      FOR one IN SELECT format('spillway.%I', relname) FROM pg_class c
        JOIN pg_attribute a ON attrelid = c.oid AND attname = 'subscription'
        WHERE relnamespace = to_regnamespace('spillway') AND relkind = 'r'
        AND relname IN ({tables})
      LOOP EXECUTE format('DELETE FROM %s WHERE subscription = %L', one, {name}); END LOOP;
    END
    """  # noqa: S608 - quoted
    return f"DO $forget${' '.join(statement.split())}$forget$;"


def _make_indexes(connection: psycopg.Connection[Any], subscription: str) -> None:
    for (definition,) in connection.execute(
        "SELECT pg_catalog.unnest(dropped_indexes) FROM spillway.tables WHERE subscription = %s",
        [subscription],
    ).fetchall():
        try:
            with connection.transaction():
                connection.execute(definition.encode())
        except psycopg.Error as error:
            if connection.closed:
                raise
            _log.warning("an index can't be made again: %s: %s", definition, error)


def _tables(connection: psycopg.Connection[Any]) -> list[str]:
    """Return the tables of the schema that are ours."""
    return [
        name
        for (name,) in connection.execute(
            "SELECT c.relname::text FROM pg_catalog.pg_class c"
            " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
            " JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = 'subscription'"
            " WHERE n.nspname = %s AND c.relname = ANY (%s) AND c.relkind = 'r' ORDER BY 1",
            [SCHEMA, list(OWN_TABLES)],
        )
    ]


def _drop_origins(connection: psycopg.Connection[Any], origin: str) -> None:
    pattern = origin.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%")
    names = [
        name
        for (name,) in connection.execute(
            "SELECT roname FROM pg_catalog.pg_replication_origin"
            " WHERE roname = %s OR roname LIKE %s",
            [origin, f"{pattern}\\_%"],
        )
    ]
    deadline = time.monotonic() + _WAIT_S
    for name in names:
        while True:
            try:
                connection.execute("SELECT pg_catalog.pg_replication_origin_drop(%s)", [name])
                break
            except psycopg.errors.ObjectInUse:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_PAUSE_S)


def _drop_what_is_empty(connection: psycopg.Connection[Any], tables: list[str]) -> None:
    with connection.transaction():
        # Another subscription that is about to use them has to wait, and makes them again.
        for table in tables:
            name = f"spillway.{quote_identifier(table)}"
            connection.execute(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE")
            left = connection.execute(f"SELECT FROM {name} LIMIT 1")
            if left.fetchall():
                return
        for table in tables:
            connection.execute(f"DROP TABLE spillway.{quote_identifier(table)}")
        left = connection.execute(
            "SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n"
            " ON n.oid = c.relnamespace WHERE n.nspname = %s",
            [SCHEMA],
        )
        if not left.fetchall():
            connection.execute("DROP SCHEMA IF EXISTS spillway RESTRICT")
