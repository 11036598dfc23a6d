"""Meeting events of DDL in the stream: passed over, brought to the target, or a pause."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from spillway.apply.schema.definitions import SourceCatalog, has_schema, target_table
from spillway.apply.schema.plan import Plan, Planner
from spillway.apply.target.failures import from_postgres
from spillway.errors import (
    TargetNotPermitted,
    TargetRefused,
    TargetSchemaChange,
    TargetSerialization,
)
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spillway.apply.changes import TransactionHead
    from spillway.apply.selection import Selection
    from spillway.apply.sync.table_sync import TableSync
    from spillway.apply.tables.matching import Rename
    from spillway.apply.target.session import TargetSession

_log = logging.getLogger(__name__)

#: the prefix of the logical messages that bear events
PREFIX: Final = "spillway.ddl"
_STATEMENTS_SHOWN: Final = 20


class SchemaChanges:
    """What becomes of events in one session on the target.

    Args:
        session: the worker's; events are met within its open transaction.
        selection: which tables are the subscription's.
        rename: the name on the target of a (schema, table) of the source.
        source_dsn: where what an event can't say is asked for.
        applies: whether what is safe is done; otherwise each change is a pause.
        sync: knows the tables that are copied, and copies new ones; None without a copy.
        tell: hears of the event that is a pause, before that is raised, and of None when one is
            passed.
    """

    def __init__(
        self,
        session: TargetSession,
        selection: Selection,
        rename: Rename,
        source_dsn: str,
        *,
        applies: bool,
        sync: TableSync | None,
        tell: Callable[[Mapping[str, Any] | None], None],
    ) -> None:
        self._session = session
        self._selection = selection
        self._rename = rename
        self._source = SourceCatalog(source_dsn)
        self._applies = applies
        self._sync = sync
        self._tell = tell
        #: the open transaction has changed the target's tables, or what is known of them
        self._has_changed = False

    def close(self) -> None:
        """End the session on the source."""
        self._source.close()

    def meet(self, head: TransactionHead, content: bytes) -> bool:
        """Take an event, at its place in the open transaction; return whether the target's tables
        were changed.

        Raises:
            TargetSchemaChange: the subscription pauses here. The transaction is to be rolled back.
            SourceError: the source had to be asked, and did not answer.
            TargetError: the target could not do it now, and may later.
            psycopg.Error: the target did not answer.
        """
        event: dict[str, Any] = json.loads(content)
        if event["kind"] == "drop_table" or not self._is_ours(event):
            return False
        plan = self._plan(event)
        if plan is None or plan.is_done:
            self._follow_name(event)
            self._tell(None)
            return False
        if plan.refused or not self._applies:
            self._pause(event, plan, head)
        self._run(event, plan, head)
        self._follow_name(event)
        self._tell(None)
        return True

    def rolled_back(self) -> None:
        """Take back what is known of tables, when the open transaction was rolled back."""
        if self._has_changed:
            self._has_changed = False
            if self._sync is not None:
                self._sync.states.load(self._session.connection)

    # ---- which events

    def _is_ours(self, event: Mapping[str, Any]) -> bool:
        """Say whether an event is about a table of the subscription's."""
        names = {
            (state["schema"], state["table"])
            for state in (event["before"], event["after"])
            if state is not None
        }
        if self._selection.publications is None:
            return any(self._selection.has(*name) for name in names)
        if self._sync is not None and names & self._sync.states.all().keys():
            return True
        return self._source.publishes(self._selection.publications, event["oid"])

    # ---- what is to be done

    def _plan(self, event: Mapping[str, Any]) -> Plan | None:
        connection = self._session.connection
        if event["kind"] == "alter_table":
            return Planner(
                event,
                self._rename,
                lambda name: target_table(connection, name),
                self._source,
                lambda name: has_schema(connection, name),
            ).plan()
        after = event["after"]
        parent = after["parent"]
        if parent is not None:
            return self._new_partition(event, parent)
        if self._sync is not None:
            # It is copied as any table that is published later, and made where that is wished.
            self._sync.refresh()
        return None

    def _new_partition(self, event: Mapping[str, Any], parent: Mapping[str, Any]) -> Plan | None:
        connection = self._session.connection
        root_name = self._rename(parent["schema"], parent["table"])
        name = self._rename(event["schema"], event["table"])
        root = target_table(connection, root_name)
        if self._sync is not None:
            self._sync.refresh()
        if root is None or not root.is_partitioned or target_table(connection, name) is not None:
            return None
        bound = self._source.bound(event["oid"])
        if bound is None:
            # It was dropped since, or is no partition any more.
            return None
        statement = (
            f"CREATE TABLE {sql.Identifier(*name).as_string()} PARTITION OF "
            f"{sql.Identifier(*root_name).as_string()} {bound}"
        )
        if event["after"]["partitioned"]:
            statement += f" PARTITION BY {self._source.partition_key(event['oid'])}"
        return Plan([statement])

    def _run(self, event: Mapping[str, Any], plan: Plan, head: TransactionHead) -> None:
        connection = self._session.connection
        connection.execute("SAVEPOINT spillway_schema")
        try:
            for statement in plan.statements:
                _log.info("%s, as on the source at %s", statement, Lsn(head.commit_lsn))
                connection.execute(statement.encode())
        except psycopg.Error as error:
            failed = from_postgres(error, "it can't be done on the target", self._session.dsn)
            if isinstance(failed, TargetSerialization) or not isinstance(
                failed, TargetRefused | TargetNotPermitted
            ):
                raise failed from error
            connection.execute("ROLLBACK TO SAVEPOINT spillway_schema")
            plan.refused.append(failed.message)
            self._pause(event, plan, head)
        connection.execute("RELEASE SAVEPOINT spillway_schema")
        self._has_changed = True

    def _follow_name(self, event: Mapping[str, Any]) -> None:
        """Have a table that was renamed on the source keep its state."""
        before, after = event["before"], event["after"]
        if self._sync is None or before is None or after is None:
            return
        old, new = (before["schema"], before["table"]), (after["schema"], after["table"])
        if old != new and self._sync.states.rename(self._session.connection, old, new):
            self._has_changed = True

    def _pause(self, event: Mapping[str, Any], plan: Plan, head: TransactionHead) -> None:
        self._tell(event)
        table = f"{event['schema']}.{event['table']}"
        what = ", ".join(
            f"{one['change']} {one['column']}" if "column" in one else one["change"]
            for one in event["changes"]
        )
        name = self._session.subscription
        why = "".join(f"; {reason}" for reason in plan.refused)
        shown = "; ".join(plan.statements[:_STATEMENTS_SHOWN])
        if shown:
            hint = (
                f"On the target: {shown}; then: spillway subscription enable {name}. Where the "
                "transaction wrote to a column before that is dropped or renamed, the target needs "
                "it until then: give the target on_schema_change apply, and enable the "
                "subscription."
            )
        else:
            hint = (
                "Make the target's table like the source's. Then: "
                f"spillway subscription enable {name}."
            )
        raise TargetSchemaChange(
            f"transaction {head.xid}, which commits at {Lsn(head.commit_lsn)}, changes table "
            f"{table} ({what or event['kind']}){why}; everything before it is applied",
            hint=f"{hint} Or, to leave the target's table as it is: give the target "
            "on_schema_change ignore, and enable the subscription.",
            relation=table,
            lsn=str(Lsn(head.commit_lsn)),
            xid=head.xid,
            statements=plan.statements,
        )
