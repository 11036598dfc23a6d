"""Events of DDL as they come in the stream: which are the subscription's, and who does them.

An event of a table that the stream does not write yet is kept for who does
(:mod:`spillway.apply.sync.deferred_ddl`). All others are done here
(:class:`~spillway.apply.schema.following.Following`), or are a pause.

What is done to a partitioned table is done to all partitions at once, and to whatever else inherits
from it. One of them may still lack rows from before, which have to be there first; or one that does
has the name on the target that another table is to get. So the event has the transaction rolled
back (:class:`TablesBehind`), and comes again when they are.

The event that gave a table another name may never come: its transaction was skipped. The table is
known by its OID then, when its next change comes, and gets its name in front of that
(:meth:`SchemaChanges.find_renamed`).
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from spillway.apply.schema.definitions import target_heirs, target_table
from spillway.apply.schema.following import Following
from spillway.apply.schema.names_in_the_way import aside
from spillway.apply.schema.planner import is_attached
from spillway.apply.sync.deferred_ddl import ancestors
from spillway.apply.sync.first_copy import has_rows
from spillway.errors import TargetSchemaChange
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from spillway.apply.changes import SourceRelation, TransactionHead
    from spillway.apply.selection import Selection
    from spillway.apply.sync.states import TableName, TableState
    from spillway.apply.sync.table_sync import TableSync
    from spillway.apply.tables.matching import Rename
    from spillway.apply.target.session import TargetSession

#: the prefix of the logical messages that bear events
PREFIX: Final = "spillway.ddl"
_PREPARED: Final = "b"
#: what does not reach who inherits
_OWN: Final = frozenset(
    ("rename_table", "set_schema", "replica_identity", "attach_partition", "detach_partition")
)


class TablesBehind(Exception):
    """The transaction changes tables that inherit from one, or takes the name of one, and they lack
    what came since their copy.

    Attributes:
        tables: their names on the source.
        commit_lsn: of the transaction.
    """

    def __init__(self, tables: frozenset[tuple[str, str]], commit_lsn: int) -> None:
        self.tables = tables
        self.commit_lsn = commit_lsn
        names = ", ".join(sorted(".".join(name) for name in tables))
        super().__init__(
            f"DDL that reaches {names}, in the transaction that commits at "
            f"{Lsn(commit_lsn)}, waits for what they lack since their copy"
        )


class SchemaChanges:
    """What becomes of events in the session that has the position.

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
        self._following = Following(
            session.connection,
            session.dsn,
            rename,
            source_dsn,
            applies=applies,
            how_to_go_on=f"spillway subscription enable {session.subscription}",
            stop=session.stop,
        )
        self._sync = sync
        self._rename = rename
        self._tell = tell
        #: what tables are known as by their OIDs, that have another name in the stream; as of when
        self._names: dict[int, TableName | None] = {}
        self._names_as_of: Mapping[TableName, TableState] = {}
        #: the open transaction has changed the target's tables, or what is known of them
        self._has_changed = False

    def close(self) -> None:
        """End the session on the source."""
        self._following.close()

    def meet(self, head: TransactionHead, content: bytes) -> bool:
        """Take an event, at its place in the open transaction; return whether the target's tables
        were changed.

        Raises:
            TargetSchemaChange: the subscription pauses here. The transaction is to be rolled back.
            TablesBehind: it has to wait. The transaction is to be rolled back.
            SourceError: the source had to be asked, and did not answer.
            TargetError: the target could not do it now, and may later.
            psycopg.Error: the target did not answer.
        """
        event: dict[str, Any] = json.loads(content)
        self._following.source.as_of(head.xid, is_prepared=head.kind == _PREPARED)
        if event["kind"] == "drop_table" or not self._is_ours(event):
            return False
        if event["kind"] == "create_table" and self._sync is not None:
            # It is copied as any table that is published later, and made where that is wished.
            self._make_again(event, head, self._sync)
            self._refresh(self._sync)
        if self._is_for_another(event, head):
            return False
        if event["kind"] == "create_table":
            has_changed = self._create(event, head)
        else:
            self._wait_for_others(event, head)
            has_changed = self._alter(event, head)
        self._has_changed |= has_changed
        self._tell(None)
        return has_changed

    def find_renamed(self, relation: SourceRelation, commit_lsn: int) -> TableName | None:
        """Return what a table is known as that has another name by now, of which no event came: the
        stream writes it, and would take its changes for somebody else's. Cheap when it has none.

        Raises:
            psycopg.Error: the target did not answer.
        """
        if self._sync is None:
            return None
        states = self._sync.states
        known = states.all()
        if (relation.schema, relation.name) in known:
            return None
        if self._names_as_of is not known:
            self._names_as_of, self._names = known, {}
        oid = relation.relation_id
        if oid not in self._names:
            self._names[oid] = states.name_of(self._session.connection, oid)
        old = self._names[oid]
        since = None if old is None else states.applies_from(*old)
        return None if since is None or commit_lsn < since else old

    def meet_name(self, relation: SourceRelation, old: TableName, head: TransactionHead) -> bool:
        """Have a table get the name that *relation* has, as by an event of its DDL; return whether
        the target's tables were changed. In the open transaction.

        Raises:
            As :meth:`meet`.
        """
        schema, name = old
        changes = []
        if schema != relation.schema:
            changes.append({"change": "set_schema", "from": schema, "to": relation.schema})
        if name != relation.name:
            changes.append({"change": "rename_table", "from": name, "to": relation.name})
        event = {
            "kind": "alter_table", "schema": relation.schema, "table": relation.name,
            "oid": relation.relation_id, "changes": changes, "was_skipped": True,
            "before": {"schema": schema, "table": name, "parent": None, "columns": []},
            "after": {
                "schema": relation.schema, "table": relation.name, "parent": None, "columns": [],
            },
        }  # fmt: skip
        has_changed = self._alter(event, head)
        self._has_changed = True
        self._tell(None)
        return has_changed

    def end(self) -> None:
        """Check what the open transaction did, before it is committed or prepared.

        Raises:
            TargetSchemaChange: a table lost its name to another. The transaction is to be rolled
                back.
            psycopg.Error: the target did not answer.
        """
        with self._telling():
            self._following.end()
        if self._has_changed and self._sync is not None:
            self._sync.states.end_renames(self._session.connection)

    def rolled_back(self) -> None:
        """Take back what is known of tables, when the open transaction was rolled back."""
        self._following.rolled_back()
        if self._has_changed:
            self._has_changed = False
            if self._sync is not None:
                self._sync.states.load(self._session.connection)

    # ---- which events

    def _is_ours(self, event: Mapping[str, Any]) -> bool:
        """Say whether an event is about a table of the subscription's, or a partition of one, or
        what has been one up to here: by now the source may know nothing of that.
        """
        above = ancestors(event)
        names = {
            (state["schema"], state["table"])
            for state in (event["before"], event["after"])
            if state is not None
        }.union(above.values())
        if self._selection.publications is None:
            return any(self._selection.has(*name) for name in names)
        if self._sync is not None and names & self._sync.states.all().keys():
            return True
        source = self._following.source
        return source.publishes(self._selection.publications, event["oid"], list(above))

    def _is_for_another(self, event: Mapping[str, Any], head: TransactionHead) -> bool:
        """Say whether an event is for who reads what its table lacks, who has it now."""
        if self._sync is None or self._sync.states.are_all_ready:
            return False
        # A prepared transaction would hold the lock of the table's state, which its own COMMIT
        # PREPARED would then wait for.
        if head.kind == _PREPARED:
            return False
        connection = self._session.connection
        return self._sync.states.deferred.keep(connection, event, head.commit_lsn, head.xid)

    def _wait_for_others(self, event: Mapping[str, Any], head: TransactionHead) -> None:
        """Raise TablesBehind if the event reaches tables that have yet to read what is before it,
        or gives its table the name that one of them has until then.
        """
        if self._sync is None or self._sync.states.are_all_ready:
            return
        states = self._sync.states
        if not (behind := states.behind(head.commit_lsn)):
            return
        old, new = (self._rename(of["schema"], of["table"]) for of in _states(event))
        if old != new and (taken := {one for one in behind if self._rename(*one) == new}):
            raise TablesBehind(frozenset(taken), head.commit_lsn)
        if all(one["change"] in _OWN for one in event["changes"]):
            return
        connection = self._session.connection
        heirs = set()
        for state in _states(event):
            heirs |= target_heirs(connection, self._rename(state["schema"], state["table"]))
        waits_for = frozenset(
            name
            for name in behind
            if self._rename(*name) in heirs
            # It is to be attached at a place that its reader has yet to come to.
            or any(
                change["change"] == "attach_partition"
                for one in states.deferred.waiting(connection, name)
                for change in one.event["changes"]
            )
        )
        if waits_for:
            raise TablesBehind(waits_for, head.commit_lsn)

    # ---- what is done

    def _make_again(self, event: Mapping[str, Any], head: TransactionHead, sync: TableSync) -> None:
        """Forget the table that had the name of one that is made, which the source has dropped: the
        new one is copied like any other. What the target has of the former stays, so that it is a
        pause as long as that has rows.
        """
        name, oid = (event["schema"], event["table"]), event["oid"]
        connection, states = self._session.connection, sync.states
        known, publications = states.all().get(name), self._selection.publications
        if known is None or not known.is_synchronized or head.kind == _PREPARED:
            return
        if states.relation_ids(connection).get(name, oid) == oid or (
            publications is not None
            and not self._following.source.publishes(publications, oid, list(ancestors(event)))
        ):
            return
        if has_rows(connection, *self._rename(*name)):
            with self._telling():
                self._following.refuse_made_again(event, head)
        states.forget(connection, [name])
        states.load(connection)
        self._has_changed = True

    def _create(self, event: Mapping[str, Any], head: TransactionHead) -> bool:
        return event["after"]["parent"] is not None and self._follow(event, head)

    def _alter(self, event: Mapping[str, Any], head: TransactionHead) -> bool:
        has_changed = self._follow(event, head)
        before, after = event["before"], event["after"]
        if self._sync is not None and is_attached(event):
            # What publishes the partitioned table publishes it from here on.
            self._refresh(self._sync)
        old, new = (before["schema"], before["table"]), (after["schema"], after["table"])
        if before["parent"] is not None and after["parent"] is None:
            self._has_changed |= self._take_over(event, new, head)
        # A table that was renamed on the source keeps its state.
        if self._sync is not None and old != new:
            states, connection = self._sync.states, self._session.connection
            self._has_changed |= states.rename(connection, old, new, event["oid"])
            # Another may have its old name by now, which no look before this could add.
            self._refresh(self._sync)
        return has_changed

    def _refresh(self, sync: TableSync) -> None:
        # Which asks the source as well, and not before it shows what the event is of.
        with self._following.source.connected():
            sync.look_again()

    def _take_over(self, event: Mapping[str, Any], name: TableName, head: TransactionHead) -> bool:
        """Have the stream go on with a partition that is published by itself from here on, with
        the rows that it has on the target: a copy would meet them there.
        """
        publications = self._selection.publications
        if self._sync is None or not publications or head.kind == _PREPARED:
            return False
        above, known = ancestors(event), self._sync.states.all()
        was_written = any(key in known and known[key].is_synchronized for key in above.values())
        if name in known or not was_written:
            return False
        connection = self._session.connection
        table = target_table(connection, self._rename(*name))
        if table is None or table.parent is not None:
            return False
        oid, source = event["oid"], self._following.source
        return source.publishes_itself(
            publications, oid, list(above)
        ) and self._sync.states.take_over(connection, name, oid, head.commit_lsn)

    def _follow(self, event: Mapping[str, Any], head: TransactionHead) -> bool:
        with self._telling():
            return self._following.follow(event, head)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Tell of the event that is a pause."""
        try:
            yield
        except TargetSchemaChange:
            self._tell(self._following.refused)
            raise


class OwnSchemaChanges:
    """What becomes of events in a session that writes what certain tables lack since their copy.

    Args:
        following: does what events say in that session.
        names: the tables, by what they are called on the source at the place where the session is;
            a table that is renamed there is moved in it.
    """

    def __init__(self, following: Following, names: dict[TableName, TableName]) -> None:
        self._following = following
        self._names = names
        #: the source's OIDs of those that events were about
        self._oids: dict[TableName, int] = {}

    def meet(self, head: TransactionHead, content: bytes) -> bool:
        """Take an event, as :meth:`SchemaChanges.meet`; those of other tables are passed over.

        Raises:
            TargetSchemaChange: it is not done. The transaction is to be rolled back.
            SourceError, TargetError, psycopg.Error: as there.
        """
        event: dict[str, Any] = json.loads(content)
        self._following.source.as_of(head.xid)
        if event["after"] is None:
            return False
        key = self._key(event)
        if key is None and self._names.keys().isdisjoint(ancestors(event).values()):
            return False
        has_changed = self._following.follow(event, head)
        if key is not None:
            self._name(key, (event["after"]["schema"], event["after"]["table"]))
        return has_changed

    def end(self) -> None:
        """Check what the open transaction did, as :meth:`SchemaChanges.end`."""
        self._following.end()

    def _key(self, event: Mapping[str, Any]) -> TableName | None:
        """Return what the event's table is known as, if it is one of the session's."""
        before, oid = event["before"], event["oid"]
        if before is None:
            return None
        name = before["schema"], before["table"]
        for key in (aside(name), name):
            if key in self._names and self._oids.setdefault(key, oid) == oid:
                return key
        return None

    def _name(self, old: TableName, new: TableName) -> None:
        """Have a table be known by another name, and who was known by that be put aside."""
        if old == new:
            return
        for was, now in ((new, aside(new)), (old, new)):
            if was in self._names:
                self._names[now] = self._names.pop(was)
            if was in self._oids:
                self._oids[now] = self._oids.pop(was)

    def find_renamed(self, relation: SourceRelation, commit_lsn: int) -> TableName | None:
        """None: no event is passed over between a copy and what it lacks."""
        del relation, commit_lsn
        return None

    def meet_name(self, relation: SourceRelation, old: TableName, head: TransactionHead) -> bool:
        """Never called."""
        raise NotImplementedError

    def rolled_back(self) -> None:
        """Nothing is known beyond the transaction."""
        self._following.rolled_back()


def _states(event: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    return event["before"], event["after"]
