"""What a subscription leaves on a target when it is dropped: nothing but the rows of its tables.

Its rows in the schema ``spillway`` are deleted; tables of that schema that are empty then, and the
schema itself when nothing is left in it, are dropped if the role may. Its replication origins are
dropped when the sessions that had them are gone, which is waited for a little.

Indexes that were dropped for a first copy which did not come to its end are made again, in the
transaction that forgets them. One that can't be is told of, as it would be made.

What is prepared stays so, as with PostgreSQL's own: it may be committed on the source yet, or is by
now, and which of the two nobody here knows. It holds its locks until somebody ends it, also on
``spillway.prepared``, so the schema stays with it; whoever drops the subscription is told.

A target that can't be reached keeps nobody from dropping its subscription. :func:`forget_sql` is
then what its owner runs when it is there again. Nobody has looked at the target when it is written,
so it looks itself: at what there is, and whether it is this subscription's.
"""

from __future__ import annotations

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

#: how far each table's first copy is
_STATES: Final = "tables"
_WAIT_S: Final = 15.0
_PAUSE_S: Final = 0.2
#: for a table of the schema, while others of it are locked
_LOCK_WAIT: Final = "1s"
#: has rows of subscriptions that have one in ``progress``, and such that nobody asks for any more:
#: what was prepared was committed by hand
_PREPARED: Final = "prepared"


def forget_subscription(plan: TargetPlan) -> list[str]:
    """Remove what the subscription keeps. What another one of its name keeps stays. Return what is
    left for a person to do.

    Raises:
        TargetError: the target can't be reached, or the role may not.
    """
    with connect_target(plan.dsn, f"spillway subscription {plan.subscription}") as connection:
        try:
            tables = _tables(connection)
            if "progress" not in tables:
                # Origins are the cluster's: those of a database that was dropped are there still.
                _drop_origins(connection, plan.origin)
                return []
            row = connection.execute(
                "SELECT identity FROM spillway.progress WHERE subscription = %s",
                [plan.subscription],
            ).fetchone()
            if row is not None and row[0] != plan.identity:
                return []
            _drop_origins(connection, plan.origin)
            left = _still_prepared(connection, plan.origin)
            with connection.transaction():
                if _STATES in tables:
                    left += _make_indexes(connection, plan.subscription)
                for table in tables:
                    connection.execute(
                        f"DELETE FROM spillway.{quote_identifier(table)}"  # noqa: S608 - quoted
                        " WHERE subscription = %s",
                        [plan.subscription],
                    )
            with suppress(psycopg.errors.InsufficientPrivilege, psycopg.errors.LockNotAvailable):
                _drop_what_is_empty(connection, tables)
        except psycopg.Error as error:
            raise from_postgres(
                error, "what the subscription keeps on the target can't be removed", plan.dsn
            ) from error
        return left


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
      FOR one IN SELECT gid FROM pg_prepared_xacts
        WHERE database = current_database() AND starts_with(gid, {origin} || '_')
      LOOP RAISE WARNING 'still prepared: COMMIT PREPARED %; or ROLLBACK PREPARED %;',
        quote_literal(one), quote_literal(one);
      END LOOP;
    END
    """  # noqa: S608 - quoted
    return f"DO $forget${' '.join(statement.split())}$forget$;"


def _still_prepared(connection: psycopg.Connection[Any], origin: str) -> list[str]:
    rows = connection.execute(
        "SELECT pg_catalog.quote_literal(gid) FROM pg_catalog.pg_prepared_xacts"
        " WHERE database = current_database() AND pg_catalog.starts_with(gid, %s)"
        " ORDER BY prepared",
        [f"{origin}_"],
    )
    return [
        "A transaction is prepared on its target still, and holds its locks until it is ended "
        f"there, as it is on the source: COMMIT PREPARED {gid}; or ROLLBACK PREPARED {gid};"
        for (gid,) in rows
    ]


def _make_indexes(connection: psycopg.Connection[Any], subscription: str) -> list[str]:
    left = []
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
            said = " ".join((error.diag.message_primary or str(error)).split())
            left.append(
                "An index that was dropped for a first copy can't be made again on its target "
                f"({said}): {definition};"
            )
    return left


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
    """Drop the schema, if no subscription has anything in it.

    Raises:
        psycopg.errors.LockNotAvailable: somebody has locked a table of it, as what is prepared has.
    """
    names = [f"spillway.{quote_identifier(table)}" for table in tables if table != _PREPARED]
    # Before anything is locked: whoever else has a subscription here is not to wait.
    if any(connection.execute(f"SELECT FROM {name} LIMIT 1").fetchall() for name in names):
        return
    with connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_WAIT}'")
        # Another subscription that is about to use them has to wait, and makes them again.
        for name in names:
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
