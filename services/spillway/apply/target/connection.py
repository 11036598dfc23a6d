"""Connections to the target, and what every session there is set to.

Values come as pgoutput prints them, so a session reads them in the same style whatever the role or
the database is set to. Nothing of the target's settings may end a session of ours in the middle
(timeouts), take a name for another (search_path), or hide rows (row_security: off makes a query
that would be filtered fail instead).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg

from spillway.apply.target.failures import from_connecting, from_postgres
from spillway.receiver.conninfo import parse_dsn

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What a server of its version does not know is left out.
_SETTINGS: Final[Mapping[str, str]] = {
    "search_path": "",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "xmloption": "content",
    "row_security": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "transaction_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "client_connection_check_interval": "5s",
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
    dsn: str, application_name: str, settings: Mapping[str, str] | None = None
) -> psycopg.Connection[Any]:
    """Connect, in autocommit, as every session on the target is.

    Args:
        dsn: the target's.
        application_name: what pg_stat_activity shows.
        settings: more, by name.

    Raises:
        InvalidDsn: *dsn* can't be parsed.
        TargetError: no connection; its subclass says why.
    """
    given = {**_CONNECTION, **parse_dsn(dsn)}
    given |= {"application_name": application_name, "client_encoding": "UTF8"}
    try:
        connection = psycopg.connect(**given, autocommit=True, prepare_threshold=None)  # type: ignore[arg-type]
    except psycopg.Error as error:
        raise from_connecting(error, dsn) from None
    wanted = {**_SETTINGS, **(settings or {})}
    try:
        connection.execute(
            "SELECT pg_catalog.set_config(name, value, false)"
            " FROM unnest(%s::text[], %s::text[]) AS wanted (name, value)"
            " WHERE EXISTS (SELECT FROM pg_catalog.pg_settings s"
            " WHERE lower(s.name) = lower(wanted.name))",
            [list(wanted), list(wanted.values())],
        )
    except psycopg.Error as error:
        connection.close()
        raise from_postgres(error, "the target refuses a setting", dsn) from error
    return connection
