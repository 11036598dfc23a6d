"""One event of DDL, done in a session on the target, at its place in the open transaction: passed
over, brought to the target's table, or refused.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NoReturn

import psycopg
from psycopg import sql

from spillway.apply.schema.definitions import SourceCatalog, has_schema, target_table
from spillway.apply.schema.names_in_the_way import NamesInTheWay
from spillway.apply.schema.plan import Plan, Planner, bounds_unknown, is_attached, is_renamed
from spillway.apply.sync.deferred_ddl import ancestors
from spillway.apply.target.failures import from_postgres
from spillway.errors import (
    TargetNotPermitted,
    TargetRefused,
    TargetSchemaChange,
    TargetSerialization,
)
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spillway.apply.tables.matching import Rename
    from spillway.apply.target.stop import Stop

    Connection = psycopg.Connection[tuple[Any, ...]]

_log = logging.getLogger(__name__)

_STATEMENTS_SHOWN: Final = 20
#: NAMEDATALEN - 1
_NAME_BYTES: Final = 63
_BEFORE: Final = "_before"


class Following:
    """Does what events say, in one session on the target.

    Args:
        connection: to the target; a transaction is open on it whenever an event comes.
        dsn: what it is connected to, for errors.
        rename: the name on the target of a (schema, table) of the source.
        source_dsn: where what an event can't say is asked for.
        applies: whether what is safe is done; otherwise each change is refused.
        how_to_go_on: what a person does once the target's table is like the source's, in words
            that may stand behind a semicolon.
        stop: ends the session on the source once it is set.
    """

    def __init__(
        self,
        connection: Connection,
        dsn: str,
        rename: Rename,
        source_dsn: str,
        *,
        applies: bool,
        how_to_go_on: str,
        stop: Stop,
    ) -> None:
        self._connection = connection
        self._dsn = dsn
        self._rename = rename
        self.source = SourceCatalog(source_dsn, stop)
        self._applies = applies
        self._how_to_go_on = how_to_go_on
        self._in_the_way = NamesInTheWay(connection)
        #: the source's OIDs of tables whose other name of the two on the target is the new one
        self._given_first: set[int] = set()
        #: commit_lsn and xid of the last event
        self._place = (0, 0)
        #: the event that was refused last
        self.refused: Mapping[str, Any] | None = None

    def close(self) -> None:
        """End the session on the source."""
        self.source.close()

    def follow(self, event: Mapping[str, Any], commit_lsn: int, xid: int) -> bool:
        """Do what an alter_table event, or a create_table event of a partition, says; return
        whether the target's tables were changed.

        Args:
            event: see docs/reference/ddl-events.md.
            commit_lsn: of its transaction, for errors.
            xid: of its transaction, for errors.

        Raises:
            TargetSchemaChange: it is not done. The transaction is to be rolled back.
            SourceError: the source had to be asked, and did not answer.
            TargetError: the target could not do it now, and may later.
            psycopg.Error: the target did not answer.
        """
        self._place = commit_lsn, xid
        plan = self._plan(event)
        if plan is None:
            if is_renamed(event):
                self._check_given_first(event)
            return False
        if plan.is_done:
            return False
        if plan.refused or not self._applies:
            self._refuse(event, plan, commit_lsn, xid)
        self._run(event, plan, commit_lsn, xid)
        return True

    def end(self) -> None:
        """Check, at the end of the open transaction, that no table has lost its name to another.

        Raises:
            TargetSchemaChange: one has. The transaction is to be rolled back.
            psycopg.Error: the target did not answer.
        """
        left = self._in_the_way.left()
        if not left:
            self._in_the_way.forget()
            self._given_first.clear()
            return
        name, event = left[0]
        commit_lsn, xid = self._place
        before = event["before"]
        self._refuse_former(
            event,
            f"gives table {before['schema']}.{before['table']} the name "
            f"{event['schema']}.{event['table']}, and the target has another table "
            f"{'.'.join(name)}, which the source has dropped or never had",
            f"ALTER TABLE {sql.Identifier(*name).as_string()} RENAME TO "
            f"{sql.Identifier(_before(name[1])).as_string()}",
            "It may be dropped there as well.",
            commit_lsn,
            xid,
        )

    def refuse_made_again(self, event: Mapping[str, Any], commit_lsn: int, xid: int) -> NoReturn:
        """Raise that the table of a create_table event is not followed, because the target's has
        rows of another one that had its name.

        Args:
            event: see docs/reference/ddl-events.md.
            commit_lsn: of its transaction.
            xid: of its transaction.

        Raises:
            TargetSchemaChange: always.
        """
        name = self._rename(event["schema"], event["table"])
        self._refuse_former(
            event,
            f"makes table {event['schema']}.{event['table']}, and the target's table "
            f"{'.'.join(name)} has rows of the one of that name which the source has dropped",
            # Under another name its indexes would have theirs, which the new one's are to get.
            f"DROP TABLE {sql.Identifier(*name).as_string()}",
            "The new one is copied, once it is made as it is on the source, which create_tables "
            "does. Or TRUNCATE it, where its definition is that of the new one.",
            commit_lsn,
            xid,
        )

    def _refuse_former(
        self,
        event: Mapping[str, Any],
        what: str,
        statement: str,
        also: str,
        commit_lsn: int,
        xid: int,
    ) -> NoReturn:
        """Raise that the target's table is another than the event's, which *statement* mends."""
        self.refused = event
        raise TargetSchemaChange(
            f"transaction {xid}, which commits at {Lsn(commit_lsn)}, {what}; everything before it "
            "is applied",
            hint=f"On the target: {statement}; then: {self._how_to_go_on}. {also} Or, to leave the "
            "target's tables as they are: give the target on_schema_change ignore, and enable the "
            "subscription.",
            relation=f"{event['schema']}.{event['table']}",
            partition_of=[".".join(above) for above in ancestors(event).values()],
            lsn=str(Lsn(commit_lsn)),
            xid=xid,
            statements=[statement],
        )

    def _check_given_first(self, event: Mapping[str, Any]) -> None:
        """Have the transaction come again where the event's table has no name of its own on the
        target, because another event of it took that away: tables that were given their names
        there first, and are alike, look as if they had not been.
        """
        new = self._rename(event["schema"], event["table"])
        for _, other in self._in_the_way.left():
            if self._rename(other["before"]["schema"], other["before"]["table"]) == new:
                self._given_first.add(other["oid"])
                raise TargetSerialization(
                    f"table {'.'.join(new)} has the name on the target already that it is given by "
                    f"transaction {event['xid']}"
                )

    def rolled_back(self) -> None:
        """Forget what the open transaction has put aside: it has ended."""
        self._in_the_way.forget()

    # ---- what is to be done

    def _plan(self, event: Mapping[str, Any]) -> Plan | None:
        connection = self._connection
        if event["kind"] == "create_table":
            return self._new_partition(event)
        plan = Planner(
            event,
            self._rename,
            lambda name: target_table(connection, name),
            self.source,
            lambda name: has_schema(connection, name),
            self._in_the_way,
            was_named_first=event["oid"] in self._given_first,
        ).plan()
        if plan is None and is_attached(event):
            return self._new_partition(event)
        return plan

    def _new_partition(self, event: Mapping[str, Any]) -> Plan | None:
        connection = self._connection
        parent = event["after"]["parent"]
        root_name = self._rename(parent["schema"], parent["table"])
        name = self._rename(event["schema"], event["table"])
        root = target_table(connection, root_name)
        if root is None or not root.is_partitioned or target_table(connection, name) is not None:
            return None
        is_new = event["kind"] == "create_table"
        if event["after"]["partitioned"] and not is_new:
            # Of its partitions no event comes: they are what they were.
            return Plan(refused=["the target lacks it: make it there with its partitions"])
        bound = self.source.bound(event["oid"], parent["oid"])
        if bound is None:
            if is_new and self.source.shows_event:
                # It was dropped since, or is no partition any more.
                return None
            return Plan(refused=[bounds_unknown(parent, is_seen=self.source.shows_event)])
        statement = (
            f"CREATE TABLE {sql.Identifier(*name).as_string()} PARTITION OF "
            f"{sql.Identifier(*root_name).as_string()} {bound}"
        )
        if event["after"]["partitioned"]:
            statement += f" PARTITION BY {self.source.partition_key(event['oid'])}"
        return Plan([statement])

    def _run(self, event: Mapping[str, Any], plan: Plan, commit_lsn: int, xid: int) -> None:
        connection = self._connection
        connection.execute("SAVEPOINT spillway_schema")
        try:
            for statement in plan.statements:
                _log.info("%s, as on the source at %s", statement, Lsn(commit_lsn))
                connection.execute(statement.encode())
        except psycopg.Error as error:
            failed = from_postgres(error, "it can't be done on the target", self._dsn)
            if isinstance(failed, TargetSerialization) or not isinstance(
                failed, TargetRefused | TargetNotPermitted
            ):
                raise failed from error
            connection.execute("ROLLBACK TO SAVEPOINT spillway_schema")
            plan.refused.append(failed.message)
            self._refuse(event, plan, commit_lsn, xid)
        connection.execute("RELEASE SAVEPOINT spillway_schema")

    def _refuse(self, event: Mapping[str, Any], plan: Plan, commit_lsn: int, xid: int) -> None:
        self.refused = event
        table = f"{event['schema']}.{event['table']}"
        what = ", ".join(
            f"{one['change']} {one['column']}" if "column" in one else one["change"]
            for one in event["changes"]
        )
        why = "".join(f"; {reason}" for reason in plan.refused)
        shown = "; ".join(plan.statements[:_STATEMENTS_SHOWN])
        if plan.leaves_no_trace and not plan.refused:
            hint = (
                "Have it done: give the target on_schema_change apply, and enable the "
                "subscription. Done by hand, it could not be told from what was before."
            )
        elif shown:
            hint = (
                f"On the target: {shown}; then: {self._how_to_go_on}. Where the "
                "transaction wrote to a column before that is dropped or renamed, the target needs "
                "it until then: give the target on_schema_change apply, and enable the "
                "subscription."
            )
        else:
            hint = f"Make the target's table like the source's. Then: {self._how_to_go_on}."
        told = (
            f"transaction {xid}, which commits at {Lsn(commit_lsn)}, changes table "
            f"{table} ({what or event['kind']})"
        )
        if event.get("was_skipped"):
            before = event["before"]
            told = (
                f"transaction {xid}, which commits at {Lsn(commit_lsn)}, writes to table {table}, "
                f"which was {before['schema']}.{before['table']}: it was renamed in a transaction "
                "that was skipped"
            )
        raise TargetSchemaChange(
            f"{told}{why}; everything before it is applied",
            hint=f"{hint} Or, to leave the target's table as it is: give the target "
            "on_schema_change ignore, and enable the subscription.",
            relation=table,
            partition_of=[".".join(name) for name in ancestors(event).values()],
            lsn=str(Lsn(commit_lsn)),
            xid=xid,
            statements=plan.statements,
        )


def _before(name: str) -> str:
    """Return a name for the table that was called *name*, of at most 63 bytes."""
    return name.encode()[: _NAME_BYTES - len(_BEFORE)].decode(errors="ignore") + _BEFORE
