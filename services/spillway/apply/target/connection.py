"""Connections to the target, and what every session there is set to.

Values come as pgoutput prints them, so a session reads them in the same style whatever the role or
the database is set to. Nothing of the target's settings may end a session of ours in the middle
(timeouts), take a name for another (search_path), or hide rows (row_security: off makes a query
that would be filtered fail instead).

Sessions speak UTF-8, but for a target in SQL_ASCII, which has bytes and no characters: they go
there as they are, and are looked at as UTF-8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.conninfo import make_conninfo

from spillway.apply.target.failures import from_connecting, from_postgres
from spillway.errors import SourceError
from spillway.pg.byte_session import take_bytes
from spillway.pg.connecting import connect
from spillway.pg.conninfo import parse_dsn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from psycopg import sql

    from spillway.apply.target.stop import Stop

#: What a server of its version does not know is left out.
_SETTINGS: Final[Mapping[str, str]] = {
    "search_path": "",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "xmloption": "content",
    # Statements say NULL in arrays, and texts with backslashes.
    "array_nulls": "on",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "quote_all_identifiers": "off",
    "row_security": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "transaction_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "exit_on_error": "off",
    "client_connection_check_interval": "5s",
    # The server is to find out as soon that this machine stands still, or can't be reached: till
    # then nobody else can apply the subscription.
    "tcp_keepalives_idle": "30s",
    "tcp_keepalives_interval": "10s",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "60s",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}
#: Unless the DSN says otherwise: a server that vanished is found out within a minute.
_CONNECTION: Final[Mapping[str, str]] = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}


def connect_target(
    dsn: str,
    application_name: str,
    settings: Mapping[str, str] | None = None,
    stop: Stop | None = None,
) -> psycopg.Connection[Any]:
    """Connect, in autocommit, as every session on the target is.

    Args:
        dsn: the target's.
        application_name: what pg_stat_activity shows.
        settings: more, by name.
        stop: ends the session once it is set, whatever the target does.

    Raises:
        InvalidDsn: *dsn* can't be parsed.
        TargetError: no connection; its subclass says why.
    """
    given = {**_CONNECTION, **parse_dsn(dsn)}
    given |= {"application_name": application_name, "client_encoding": "UTF8"}
    try:
        connection = connect(make_conninfo("", **given), dsn)
    except SourceError as error:
        raise from_connecting(error) from None
    connection.prepare_threshold = None
    if stop is not None:
        stop.watch(connection)
    wanted = {**_SETTINGS, **(settings or {})}
    try:
        connection.execute(
            "SELECT pg_catalog.set_config(name, value, false)"
            " FROM unnest(%s::text[], %s::text[]) AS wanted (name, value)"
            " WHERE pg_catalog.current_setting(name, true) IS NOT NULL",
            [list(wanted), list(wanted.values())],
        )
        take_bytes(connection, shown=True)
    except psycopg.Error as error:
        connection.close()
        raise from_postgres(error, "the target refuses a setting", dsn) from error
    return connection


def encoded(statement: sql.Composable, connection: psycopg.Connection[Any]) -> bytes:
    """Return a statement as its session speaks: what has no encoding has names in UTF-8."""
    if connection.info.parameter_status("client_encoding") == "SQL_ASCII":
        return statement.as_bytes()
    return statement.as_bytes(connection)
