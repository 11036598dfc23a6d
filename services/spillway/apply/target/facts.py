"""What a target is, and what the subscription's role may do there: asked once a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg

from spillway.apply.target.failures import from_postgres
from spillway.errors import TargetReadOnly, TargetUnsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

MAJOR_MIN: Final = 13
#: What is called of origins. Before 14 each of them asks for a superuser, whatever is granted.
ORIGIN_FUNCTIONS: Final[Sequence[str]] = (
    "pg_replication_origin_create(text)",
    "pg_replication_origin_drop(text)",
    "pg_replication_origin_session_setup(text)",
    "pg_replication_origin_session_reset()",
    "pg_replication_origin_xact_setup(pg_lsn, timestamp with time zone)",
    "pg_replication_origin_xact_reset()",
)
_MAJOR_OF_GRANTED_ORIGINS: Final = 14
_FACTS: Final = """
SELECT pg_catalog.current_setting('server_version_num')::int / 10000 AS major,
       pg_catalog.pg_is_in_recovery() AS in_recovery,
       pg_catalog.current_setting('default_transaction_read_only')::bool AS read_only,
       pg_catalog.current_setting('server_encoding') AS encoding,
       current_user::text AS role,
       (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) AS is_superuser,
       (SELECT bool_and(pg_catalog.has_function_privilege(f.oid, 'EXECUTE'))
          FROM unnest(%s::text[]) AS called
          LEFT JOIN pg_catalog.pg_proc f
            ON f.oid = pg_catalog.to_regprocedure('pg_catalog.' || called)) AS may_use_origins,
       pg_catalog.current_setting('track_commit_timestamp')::bool AS has_commit_times
"""


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """See the module."""

    major: int
    in_recovery: bool
    read_only: bool
    encoding: str
    role: str
    is_superuser: bool
    may_use_origins: bool
    has_commit_times: bool

    def check_writable(self) -> None:
        """Refuse a target that can't be written to at all.

        Raises:
            TargetUnsupported: its major is older than any that is supported.
            TargetReadOnly: it is a standby, or its transactions are read-only.
        """
        if self.major < MAJOR_MIN:
            raise TargetUnsupported(
                f"the target is PostgreSQL {self.major}",
                hint=f"Subscriptions fill PostgreSQL {MAJOR_MIN} and later.",
                major=self.major,
            )
        if self.in_recovery:
            raise TargetReadOnly(
                "the target is a standby, which takes no writes",
                hint="Point the subscription's DSN at the primary, or promote this server: the "
                "subscription goes on by itself then.",
            )
        if self.read_only:
            raise TargetReadOnly(
                "the target's transactions are read-only (default_transaction_read_only)",
                hint="Let them write: SHOW default_transaction_read_only, and ALTER ROLE, ALTER "
                "DATABASE or ALTER SYSTEM … RESET default_transaction_read_only where it is set.",
            )


def ask(connection: psycopg.Connection[Any]) -> TargetFacts:
    """Ask the target.

    Raises:
        TargetError: it does not answer.
    """
    try:
        row = connection.execute(_FACTS, [list(ORIGIN_FUNCTIONS)]).fetchone()
    except psycopg.Error as error:
        raise from_postgres(error, "the target can't be looked at") from error
    assert row is not None
    major, *rest, may_use_origins, has_commit_times = row
    in_recovery, read_only, encoding, role, is_superuser = rest
    granted = bool(may_use_origins) and major >= _MAJOR_OF_GRANTED_ORIGINS
    return TargetFacts(
        major=major,
        in_recovery=in_recovery,
        read_only=read_only,
        encoding=encoding,
        role=role,
        is_superuser=bool(is_superuser),
        may_use_origins=bool(is_superuser) or granted,
        has_commit_times=has_commit_times,
    )
