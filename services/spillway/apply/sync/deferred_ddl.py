"""DDL of tables that the stream does not write yet, kept for who does.

A table that is copied as of L takes what is behind L from a reader of its own until the stream has
it (:mod:`hand_over`). So does its DDL: done by the stream, it would meet rows from before it that
are still to be written. The stream passes such an event over, and keeps it here, in its own
transaction on the target::

    stream at C ─▶ state d or f, and L ≤ C: a row of spillway.deferred_ddl     else: done at once
                         │
         reader [L, W) ──┤ meets the same event at its place, between the rows, and does it;
                         │ what lies before W is deleted with the table's new state
         no reader: ─────┘ the copy begins anew, as of a later snapshot: what waits is done first
                           (:class:`~spillway.apply.sync.first_copy.FirstCopy`)

While anything waits, later events of the table wait too, so that they stay in order. A table that
was renamed on the source has its old name here and in its state until the reader has got that far;
it is known by its OID.

What happens to a partition of a table that is published by its root waits for the root, which has
its rows: attached or detached too early, rows from before would find no partition, or another one.

Everything is decided with the table's row of ``spillway.tables`` locked, which whoever moves the
table on writes in the same transaction.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psycopg

    Connection = psycopg.Connection[Any]
    #: as :data:`spillway.apply.sync.states.TableName`
    TableName = tuple[str, str]

#: What whoever sets the target up runs. Events are bytes: names in them need not be of the target's
#: encoding.
DEFERRED_SQL: Final = """CREATE TABLE IF NOT EXISTS spillway.deferred_ddl (
    subscription text NOT NULL,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    number int NOT NULL,
    relation_id bigint NOT NULL,
    lsn pg_lsn NOT NULL,
    xid bigint NOT NULL,
    event bytea NOT NULL,
    PRIMARY KEY (subscription, schema_name, table_name, number))"""
_KEYS: Final = """
SELECT schema_name, table_name FROM spillway.deferred_ddl
 WHERE subscription = %s AND relation_id = %s
"""
_LOCK: Final = """
SELECT state::text, lsn::text FROM spillway.tables
 WHERE subscription = %s AND schema_name = %s AND table_name = %s FOR UPDATE
"""
_KEEP: Final = """
INSERT INTO spillway.deferred_ddl
SELECT %s, %s, %s, coalesce(max(number), 0) + 1, %s, %s, %s, %s FROM spillway.deferred_ddl
 WHERE subscription = %s AND schema_name = %s AND table_name = %s
"""
_WAITING: Final = """
SELECT lsn::text, xid, event FROM spillway.deferred_ddl
 WHERE subscription = %s AND schema_name = %s AND table_name = %s ORDER BY number
"""
_DONE: Final = """
DELETE FROM spillway.deferred_ddl
 WHERE subscription = %s AND schema_name = %s AND table_name = %s AND lsn < %s
"""
_FORGET: Final = """
DELETE FROM spillway.deferred_ddl
 WHERE subscription = %s AND schema_name = %s AND table_name = %s
"""
_MOVE: Final = """
UPDATE spillway.deferred_ddl SET schema_name = %s, table_name = %s
 WHERE subscription = %s AND schema_name = %s AND table_name = %s
"""


def ancestors(event: Mapping[str, Any]) -> Mapping[int, TableName]:
    """Return the partitioned tables that an event's table is, or was, a partition of, by their OIDs
    on the source.
    """
    return {
        table["oid"]: (table["schema"], table["table"])
        for state in (event["before"], event["after"])
        if state is not None
        for table in state.get("ancestors", ())
    }


@dataclass(frozen=True, slots=True)
class DeferredEvent:
    """An event that waits."""

    event: Mapping[str, Any]
    #: of the commit of its transaction
    commit_lsn: int
    xid: int


class DeferredDdl:
    """The events that wait, of one subscription. Methods write in the transaction that is open on
    the connection which they are given.

    Args:
        subscription: its name.
    """

    def __init__(self, subscription: str) -> None:
        self._subscription = subscription

    def keep(
        self, connection: Connection, event: Mapping[str, Any], commit_lsn: int, xid: int
    ) -> bool:
        """Keep an alter_table event, or a create_table event of a partition, if it is for who reads
        what its table, or one above it, lacks since its copy; return whether it is. Waits for who
        is about to move that table on.

        Args:
            connection: the stream's.
            event: see docs/reference/ddl-events.md.
            commit_lsn: start of the commit record of its transaction.
            xid: of its transaction.

        Raises:
            psycopg.Error: the target did not answer.
        """
        before, oid = event["before"], event["oid"]
        waiting = connection.execute(_KEYS, [self._subscription, oid]).fetchall()
        own = [] if before is None else [(before["schema"], before["table"])]
        for key in dict.fromkeys((*waiting, *own, *ancestors(event).values())):
            row = connection.execute(_LOCK, [self._subscription, *key]).fetchone()
            if row is None:
                continue
            state, lsn = row
            if state in "df":
                is_behind = lsn is not None and int(Lsn.parse(lsn)) <= commit_lsn
            else:
                # What waits is looked up again: it may have been done before the lock was ours.
                is_behind = state == "i" and (
                    # It is set aside: what its rows lack, they lack for good.
                    lsn is not None or bool(self.waiting(connection, key))
                )
            if is_behind:
                values = [oid, str(Lsn(commit_lsn)), xid, json.dumps(event).encode()]
                named = [self._subscription, *key]
                connection.execute(_KEEP, [*named, *values, *named])
                return True
        return False

    def waiting(self, connection: Connection, table: TableName) -> Sequence[DeferredEvent]:
        """Return what waits for a table, in order.

        Args:
            connection: to the target.
            table: as its state is called.

        Raises:
            psycopg.Error: the target did not answer.
        """
        return [
            DeferredEvent(json.loads(bytes(event)), int(Lsn.parse(lsn)), xid)
            for lsn, xid, event in connection.execute(_WAITING, [self._subscription, *table])
        ]

    def lock(self, connection: Connection, table: TableName) -> None:
        """Keep the stream from adding to what waits for a table, until the transaction's end.

        Raises:
            psycopg.Error: the target did not answer.
        """
        connection.execute(_LOCK, [self._subscription, *table])

    def done(self, connection: Connection, table: TableName, upto_lsn: int) -> None:
        """Forget what waits for a table in transactions that commit before *upto_lsn*.

        Raises:
            psycopg.Error: the target did not answer.
        """
        connection.execute(_DONE, [self._subscription, *table, str(Lsn(upto_lsn))])

    def forget(self, connection: Connection, table: TableName) -> None:
        """Forget all that waits for a table.

        Raises:
            psycopg.Error: the target did not answer.
        """
        connection.execute(_FORGET, [self._subscription, *table])

    def move(self, connection: Connection, old: TableName, new: TableName) -> None:
        """Have what waits for a table wait under the new name of its state.

        Raises:
            psycopg.Error: the target did not answer.
        """
        connection.execute(_MOVE, [*new, self._subscription, *old])
