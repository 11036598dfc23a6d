"""What is written beside users' tables, in the schema ``spillway`` of the target: conflicts, by
option; rows that the target refused, by option; and which prepared transactions are there.

All in the transaction that they are about, so that they are there if it is.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from spillway.apply.changes import UNCHANGED
from spillway.apply.conflicts.conflict import row_as_json
from spillway.pg.lsn import Lsn
from spillway.pg.timestamps import moment

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from spillway.apply.changes import Change, TransactionHead
    from spillway.apply.conflicts.conflict import Conflict
    from spillway.apply.tables.matched import MatchedTable

    Connection = psycopg.Connection[Any]

CONFLICTS: Final = """CREATE TABLE IF NOT EXISTS spillway.conflicts (
    subscription text NOT NULL,
    lsn pg_catalog.pg_lsn NOT NULL,
    number bigint NOT NULL,
    kind text NOT NULL,
    resolution text NOT NULL,
    why text NOT NULL,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    local_rows jsonb NOT NULL,
    remote_row jsonb,
    replica_identity jsonb,
    origin text NOT NULL,
    xid xid NOT NULL,
    committed_at timestamptz NOT NULL,
    detail text NOT NULL,
    met_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
)"""
DEAD_LETTER: Final = """CREATE TABLE IF NOT EXISTS spillway.dead_letter (
    subscription text NOT NULL,
    lsn pg_catalog.pg_lsn NOT NULL,
    number bigint NOT NULL,
    action text NOT NULL,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    old_row jsonb,
    new_row jsonb,
    sqlstate text NOT NULL,
    message text NOT NULL,
    xid xid NOT NULL,
    committed_at timestamptz NOT NULL,
    written_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
)"""
PREPARED: Final = """CREATE TABLE IF NOT EXISTS spillway.prepared (
    subscription text NOT NULL,
    gid text NOT NULL,
    end_lsn pg_catalog.pg_lsn NOT NULL,
    PRIMARY KEY (subscription, gid)
)"""
#: For :class:`~spillway.apply.target.session.TargetPlan`.
OWN_TABLES: Final = (CONFLICTS, DEAD_LETTER, PREPARED)
_ACTIONS: Final = {"I": "insert", "U": "update", "D": "delete"}


def write_conflicts(
    connection: Connection, subscription: str, conflicts: Sequence[Conflict]
) -> None:
    """Write conflicts into ``spillway.conflicts``, in the open transaction.

    Raises:
        psycopg.Error: the target refused.
    """
    rows = [one.as_json() for one in conflicts]
    with connection.pipeline():
        for row in rows:
            connection.execute(
                "INSERT INTO spillway.conflicts (subscription, lsn, number, kind, resolution, why,"
                " schema_name, table_name, local_rows, remote_row, replica_identity, origin, xid,"
                " committed_at, detail) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,"
                " %s, %s)",
                [
                    subscription, row["lsn"], row["number"], row["kind"], row["resolution"],
                    row["why"], row["schema"], row["table"], _json(row["local"]),
                    _json(row["remote"]), _json(row["identity"]), row["origin"], str(row["xid"]),
                    row["committed_at"], row["detail"],
                ],
            )  # fmt: skip


def write_dead_letter(
    connection: Connection,
    subscription: str,
    table: MatchedTable,
    change: Change,
    head: TransactionHead,
    number: int,
    sqlstate: str,
    message: str,
) -> None:
    """Write a change that the target refused into ``spillway.dead_letter``, in the open
    transaction.

    Raises:
        psycopg.Error: the target refused.
    """
    connection.execute(
        "INSERT INTO spillway.dead_letter (subscription, lsn, number, action, schema_name,"
        " table_name, old_row, new_row, sqlstate, message, xid, committed_at)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        [
            subscription, str(Lsn(head.commit_lsn)), number, _ACTIONS[change.kind], table.schema,
            table.name, _row(table, change.old, key_only=change.old_is_key),
            _row(table, change.new), sqlstate, message, str(head.xid),
            moment(head.commit_time).isoformat(),
        ],
    )  # fmt: skip


def _row(
    table: MatchedTable, values: Sequence[Any] | None, *, key_only: bool = False
) -> str | None:
    if values is None:
        return None
    sent = {
        column.name: value
        for column, value, source in zip(table.columns, values, table.relation.columns, strict=True)
        if value is not UNCHANGED and (source.is_key or not key_only)
    }
    return _json(row_as_json(sent))


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value)
