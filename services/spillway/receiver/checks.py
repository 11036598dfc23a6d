"""Whether a source can be decoded, and if not, everything that is missing and the SQL that mends
it.

Someone who registers a source should not learn of three problems in three attempts. So the checks
go on as far as they can: over SQL first, then a replication connection of its own, because whether
pg_hba.conf lets the role stream is known only to the server that reads it.

The role needs LOGIN and REPLICATION, no superuser. Nothing is changed on the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spillway.errors import (
    MissingReplicationPrivilege,
    ReplicationNotAllowedByHba,
    ReplicationSlotsExhausted,
    SourceError,
    SourceInRecovery,
    SystemIdMismatch,
    UnsupportedBuild,
    WalLevelNotLogical,
    WalSendersExhausted,
)
from spillway.pg.connect_errors import LOCAL_CLIENT, hba_hint, quote_identifier
from spillway.pg.conninfo import redact_dsn, replication_conninfo
from spillway.pg.wal_segment import XLOG_BLCKSZ
from spillway.receiver.replication_connection import CommandFailed, ReplicationConnection, WakeUp
from spillway.receiver.source_session import source_session
from spillway.receiver.supported_versions import is_supported, unsupported_version

if TYPE_CHECKING:
    from collections.abc import Iterator

_FACTS: Final = """
SELECT current_setting('server_version_num')::int AS server_version_num,
       current_setting('wal_level') AS wal_level,
       current_setting('full_page_writes')::bool AS full_page_writes,
       current_setting('max_wal_senders')::int AS max_wal_senders,
       current_setting('max_replication_slots')::int AS max_replication_slots,
       current_setting('block_size')::int AS block_size,
       current_setting('wal_block_size')::int AS wal_block_size,
       current_setting('server_encoding') AS server_encoding,
       (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size')
           AS wal_segment_size,
       (SELECT system_identifier::text FROM pg_control_system()) AS system_id,
       pg_is_in_recovery() AS in_recovery,
       current_database() AS database,
       (SELECT oid::bigint FROM pg_database WHERE datname = current_database()) AS datoid,
       current_user::text AS user_name,
       rolsuper AS is_superuser,
       rolreplication OR rolsuper AS has_replication,
       host(inet_client_addr()) AS client_address,
       (SELECT count(*) FROM pg_replication_slots) AS slots_in_use
  FROM pg_roles WHERE rolname = current_user
"""


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What is true of a source that can be decoded."""

    system_id: str
    server_version_num: int
    timeline: int
    wal_segment_size: int
    database: str
    datoid: int
    server_encoding: str
    user_name: str
    wal_level: str
    #: off: the catalog needs the raw bootstrap, which needs more rights
    full_page_writes: bool
    is_superuser: bool
    has_replication: bool
    #: the DSN with its password masked, for showing
    dsn: str


def check_source(
    dsn: str, *, expected_system_id: str | None = None, slot_name: str | None = None
) -> SourceFacts:
    """Check that the server behind *dsn* can be a source. Blocking: connects twice.

    Args:
        dsn: a libpq connection string; its database is the one to decode.
        expected_system_id: of a source that is known already.
        slot_name: our physical slot, if it may exist: it is not in the way then.

    Raises:
        InvalidDsn: *dsn* can't be parsed.
        SourceError: the subclass of the first problem; ``details["problems"]`` lists all of them as
            ``{"code", "message", "hint"}``, in the order in which to mend them.
    """
    with source_session(dsn) as connection:
        cursor = connection.execute(_FACTS)
        assert cursor.description is not None
        row = cursor.fetchone()
        assert row is not None
        facts: dict[str, Any] = {
            column.name: value for column, value in zip(cursor.description, row, strict=True)
        }
        if slot_name is None:
            slot_exists = False
        else:
            found = connection.execute(
                "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND slot_type = "
                "'physical'",
                [slot_name],
            )
            slot_exists = found.fetchone() is not None
    problems = list(_problems(facts, expected_system_id, slot_exists=slot_exists))
    problems += _replication_problems(dsn, facts, problems)
    if problems:
        raise _all_of(problems, dsn)
    return SourceFacts(
        dsn=redact_dsn(dsn),
        **{name: facts[name] for name in SourceFacts.__slots__ if name != "dsn"},
    )


def _problems(
    facts: dict[str, Any], expected_system_id: str | None, *, slot_exists: bool
) -> Iterator[SourceError]:
    """Yield what SQL can tell."""
    if not is_supported(facts["server_version_num"]):
        yield unsupported_version(facts["server_version_num"])
    if expected_system_id is not None and facts["system_id"] != expected_system_id:
        yield SystemIdMismatch(
            f"the server is cluster {facts['system_id']}, the source is cluster "
            f"{expected_system_id}",
            hint="Point the source at the cluster it was created for, or drop it and create it "
            "again.",
            expected_system_id=expected_system_id,
            system_id=facts["system_id"],
        )
    if facts["in_recovery"]:
        yield SourceInRecovery(
            "the server is a standby in recovery; Spillway streams from a primary",
            hint="Point the DSN at the primary: host=a,b target_session_attrs=read-write finds it "
            "among several.",
        )
    if facts["block_size"] != XLOG_BLCKSZ or facts["wal_block_size"] != XLOG_BLCKSZ:
        yield UnsupportedBuild(
            f"the server was built with blocks of {facts['block_size']} and WAL blocks of "
            f"{facts['wal_block_size']} bytes",
            hint=f"Spillway decodes servers with PostgreSQL's own block sizes, {XLOG_BLCKSZ} "
            "bytes.",
        )
    if facts["wal_level"] != "logical":
        yield WalLevelNotLogical(
            f"wal_level is {facts['wal_level']}, decoding needs logical",
            hint="ALTER SYSTEM SET wal_level = 'logical'; -- then restart the server",
            wal_level=facts["wal_level"],
        )
    user = quote_identifier(facts["user_name"])
    if not facts["has_replication"]:
        yield MissingReplicationPrivilege(
            f"role {user} lacks the REPLICATION attribute",
            hint=f"ALTER ROLE {user} REPLICATION;",
            user=facts["user_name"],
        )
    if facts["max_replication_slots"] <= facts["slots_in_use"] and not slot_exists:
        yield ReplicationSlotsExhausted(
            f"all {facts['max_replication_slots']} replication slots of the server are taken",
            hint=f"ALTER SYSTEM SET max_replication_slots = {facts['max_replication_slots'] + 5}; "
            "-- then restart the server; or drop one that nobody uses, pg_replication_slots lists "
            "them",
            max_replication_slots=facts["max_replication_slots"],
        )
    if facts["max_wal_senders"] == 0:
        yield _no_wal_senders(facts)


def _no_wal_senders(facts: dict[str, Any]) -> WalSendersExhausted:
    limit = facts["max_wal_senders"]
    return WalSendersExhausted(
        f"all {limit} WAL senders of the server are taken" if limit else "max_wal_senders is 0",
        hint=f"ALTER SYSTEM SET max_wal_senders = {limit + 5}; -- then restart the server",
        max_wal_senders=limit,
    )


def _replication_problems(
    dsn: str, facts: dict[str, Any], known: list[SourceError]
) -> Iterator[SourceError]:
    """Try what the receiver will do; add the timeline to *facts* and yield what is not known
    yet.
    """
    problem: SourceError
    try:
        with ReplicationConnection.connect(replication_conninfo(dsn), WakeUp()) as connection:
            # pg_control_checkpoint would say the former timeline until the first checkpoint after a
            # promotion.
            facts["timeline"] = connection.identify_system().timeline
            return
    except CommandFailed as failure:
        problem = SourceError(
            f"the server refuses to identify itself on a replication connection: {failure.message}",
            hint="Check that the DSN leads to PostgreSQL itself, not to a proxy.",
        )
    except ReplicationNotAllowedByHba as error:
        # The SQL session knows better how the server sees us than the message does.
        address = facts["client_address"] or LOCAL_CLIENT
        user = facts["user_name"]
        problem = ReplicationNotAllowedByHba(
            error.message,
            hint=hba_hint(user, address, error.message),
            user=user,
            address=address,
        )
    except WalSendersExhausted:
        problem = _no_wal_senders(facts)
    except SourceError as error:
        problem = error
    if type(problem) not in {type(other) for other in known}:
        yield problem


def _all_of(problems: list[SourceError], dsn: str) -> SourceError:
    """Make the first problem the error, and list all of them in it."""
    first = problems[0]
    listed = [
        {"code": problem.code, "message": problem.message, "hint": problem.hint}
        for problem in problems
    ]
    message = "; ".join(problem.message for problem in problems)
    hint = first.hint if len(problems) == 1 else " | ".join(problem.hint for problem in problems)
    return type(first)(
        message, hint=hint, **{**first.details, "problems": listed, "dsn": redact_dsn(dsn)}
    )
