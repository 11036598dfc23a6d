"""One event of DDL, done in a session on the target, at its place in the open transaction: passed
over, brought to the target's table, or refused.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NoReturn

import psycopg
from psycopg import sql

from spillway.apply.schema.definitions import SourceCatalog, has_schema, target_table
from spillway.apply.schema.names_in_the_way import NamesInTheWay
from spillway.apply.schema.plan import Plan
from spillway.apply.schema.planner import Planner, bounds_unknown, is_attached, is_renamed
from spillway.apply.schema.refusals import lost_its_name, made_again, refusal
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

    from spillway.apply.schema.refusals import EventPlace
    from spillway.apply.tables.matching import Rename
    from spillway.apply.target.stop import Stop

    Connection = psycopg.Connection[tuple[Any, ...]]

_log = logging.getLogger(__name__)


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
        #: the last event's transaction
        self._at: EventPlace | None = None
        #: the event that was refused last
        self.refused: Mapping[str, Any] | None = None

    def close(self) -> None:
        """End the session on the source."""
        self.source.close()

    def follow(self, event: Mapping[str, Any], at: EventPlace) -> bool:
        """Do what an alter_table event, or a create_table event of a partition, says; return
        whether the target's tables were changed.

        Args:
            event: see docs/reference/ddl-events.md.
            at: its transaction, for errors.

        Raises:
            TargetSchemaChange: it is not done. The transaction is to be rolled back.
            SourceError: the source had to be asked, and did not answer.
            TargetError: the target could not do it now, and may later.
            psycopg.Error: the target did not answer.
        """
        self._at = at
        plan = self._plan(event)
        if plan is None:
            if is_renamed(event):
                self._check_given_first(event)
            return False
        if plan.is_done:
            return False
        if plan.refused or not self._applies:
            raise self._refused(refusal(event, plan, at, self._how_to_go_on), event)
        self._run(event, plan, at)
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
        assert self._at is not None
        raise self._refused(lost_its_name(event, name, self._at, self._how_to_go_on), event)

    def refuse_made_again(self, event: Mapping[str, Any], at: EventPlace) -> NoReturn:
        """Raise that the table of a create_table event is not followed, because the target's has
        rows of another one that had its name.

        Args:
            event: see docs/reference/ddl-events.md.
            at: its transaction.

        Raises:
            TargetSchemaChange: always.
        """
        name = self._rename(event["schema"], event["table"])
        raise self._refused(made_again(event, name, at, self._how_to_go_on), event)

    def _refused(self, error: TargetSchemaChange, event: Mapping[str, Any]) -> TargetSchemaChange:
        self.refused = event
        return error

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

    def _run(self, event: Mapping[str, Any], plan: Plan, at: EventPlace) -> None:
        connection = self._connection
        connection.execute("SAVEPOINT spillway_schema")
        try:
            for statement in plan.statements:
                _log.info("%s, as on the source at %s", statement, Lsn(at.commit_lsn))
                connection.execute(statement.encode())
        except psycopg.Error as error:
            failed = from_postgres(error, "it can't be done on the target", self._dsn)
            if isinstance(failed, TargetSerialization) or not isinstance(
                failed, TargetRefused | TargetNotPermitted
            ):
                raise failed from error
            connection.execute("ROLLBACK TO SAVEPOINT spillway_schema")
            plan.refused.append(failed.message)
            why = refusal(event, plan, at, self._how_to_go_on)
            raise self._refused(why, event) from error
        connection.execute("RELEASE SAVEPOINT spillway_schema")
