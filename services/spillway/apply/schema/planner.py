"""What is left to do on the target for one event: statements that are safe, and what is not done.

Safe is what loses nothing, and gives the target's rows the values that the source's have:

- a column is added whose older rows are NULL or one value, which the event tells; or a generated
  one. A default that was computed for each row (``random()``, a sequence's) is not: those values
  are in no WAL. Nor is one that a domain gives, where the table was rewritten for it.
- a column is dropped or renamed, a table renamed or moved to another schema, which is made if the
  target has none of that name. Names may change hands in one transaction: columns get theirs in an
  order in which each is free, and a table that is in another's way is put aside
  (:mod:`spillway.apply.schema.names_in_the_way`).
- a type is widened (:mod:`spillway.apply.schema.widening`).
- a default is set or dropped, NOT NULL set or dropped.
- a partition is attached or detached.

Everything is compared with the target's table first: what it has already is nothing to do. Of a
column that is dropped and made again by its name, it has the new one only if that is unlike the old
one, and as the source's; likewise of names that were swapped. What doesn't concern rows on the
target is passed over: the source's replica identity, and that a table was dropped, whose rows stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spillway.apply.schema.columns import ColumnPlanner
from spillway.apply.schema.names_in_the_way import aside
from spillway.apply.schema.plan import Plan, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spillway.apply.schema.definitions import SourceCatalog, TargetTableNow
    from spillway.apply.schema.names_in_the_way import NamesInTheWay

    TableName = tuple[str, str]

_PASSED_OVER: Final = ("replica_identity",)
_INHERITED: Final = ("add_column", "drop_column", "rename_column", "alter_type", "primary_key")


class Planner:
    """Plans one alter_table event.

    Args:
        event: see docs/reference/ddl-events.md.
        rename: the name on the target of a (schema, table) of the source.
        find: returns the target's table of that name, if there is one.
        source: where defaults and bounds come from.
        has_schema: says whether the target has a schema of that name.
        in_the_way: what the transaction has put aside on the target.
        was_named_first: of tables of both names that the target has, the event's has its new one.
    """

    def __init__(
        self,
        event: Mapping[str, Any],
        rename: Callable[[str, str], tuple[str, str]],
        find: Callable[[tuple[str, str]], TargetTableNow | None],
        source: SourceCatalog,
        has_schema: Callable[[str], bool],
        in_the_way: NamesInTheWay,
        *,
        was_named_first: bool,
    ) -> None:
        self._event = event
        self._rename = rename
        self._find = find
        self._source = source
        self._has_schema = has_schema
        self._in_the_way = in_the_way
        self._was_named_first = was_named_first
        self._plan = Plan()

    def plan(self) -> Plan | None:
        """Return what is left to do; None when the target has no such table.

        Raises:
            SourceError: the source had to be asked, and did not answer.
            psycopg.Error: the target did not answer.
        """
        before, after = self._event["before"], self._event["after"]
        old = self._rename(before["schema"], before["table"])
        new = self._rename(after["schema"], after["table"])
        table = self._named(old, new)
        if table is None:
            return None
        self._name = quoted(*new)
        self._table = table
        columns = ColumnPlanner(self._event, table, self._name, self._source, self._plan)
        # A partition has the columns of its parent, whose own event changes both.
        inherits = table.parent is not None and before["parent"] == after["parent"]
        renames = {
            one["from"]: one["to"]
            for one in self._event["changes"]
            if one["change"] == "rename_column"
        }
        for change in self._event["changes"]:
            kind = change["change"]
            if inherits and kind in _INHERITED:
                continue
            if kind in ("attach_partition", "detach_partition"):
                self._partition(kind, change["parent"])
            elif kind == "primary_key":
                self._primary_key(change)
            elif kind == "drop_column":
                columns.drop(change["column"], renames)
            elif kind == "rename_column":
                # All of them at once, since one may need another's name.
                columns.rename_all(renames)
                renames = {}
            elif kind == "add_column":
                columns.add(change["definition"])
            elif kind not in _PASSED_OVER and "column" in change:
                columns.change(kind, change)
        return self._plan

    def _alter(self, what: str) -> None:
        self._plan.statements.append(f"ALTER TABLE {self._name} {what}")

    # ---- names of tables

    def _named(self, old: TableName, new: TableName) -> TargetTableNow | None:
        """Return the event's table on the target, and plan that it is called *new*; None without
        one.
        """
        there = self._in_the_way.place(self._event["oid"], old)
        if there != old and (table := self._find(there)) is not None:
            self._move(there, new)
            return table
        other = self._find(new)
        table = None if old == new else self._find(old)
        if table is None:
            return other
        if other is not None:
            if self._was_named_first or (
                self._is_unlike(table, "before") and not self._is_unlike(other, "after")
            ):
                return other
            # Put aside by somebody else, a table would not be found again.
            self._plan.leaves_no_trace = True
        self._move(old, new)
        return table

    def _is_unlike(self, table: TargetTableNow, when: str) -> bool:
        """Say whether a table of the target can't be the event's as it was then."""
        state = self._event[when]
        return table.is_partitioned != state.get("partitioned", table.is_partitioned) or any(
            column["name"] not in table.columns
            or table.columns[column["name"]].type != column["type"]
            for column in state["columns"]
        )

    def _move(self, old: TableName, new: TableName) -> None:
        statements = self._plan.statements
        if self._find(new) is not None:
            _, name = self._in_the_way.put(new, self._event)
            statements.append(f"ALTER TABLE {quoted(*new)} RENAME TO {quoted(name)}")
        self._in_the_way.took(self._event["oid"], new)
        schema, name = old
        if schema != new[0]:
            if name != new[1] and self._find((new[0], name)) is not None:
                # On its way it would meet one that has its old name there.
                _, passing = aside(old)
                statements.append(f"ALTER TABLE {quoted(*old)} RENAME TO {quoted(passing)}")
                name = passing
            # The source's may be another name of its schema.
            if not self._has_schema(new[0]):
                statements.append(f"CREATE SCHEMA {quoted(new[0])}")
            statements.append(f"ALTER TABLE {quoted(schema, name)} SET SCHEMA {quoted(new[0])}")
        if name != new[1]:
            statements.append(f"ALTER TABLE {quoted(new[0], name)} RENAME TO {quoted(new[1])}")

    # ---- the table

    def _primary_key(self, change: Mapping[str, Any]) -> None:
        if tuple(change["to"]) == self._table.primary_key:
            return
        columns = ", ".join(quoted(name) for name in change["to"])
        if change["from"] or self._table.primary_key or not columns:
            self._plan.refuse(f"the primary key is now ({columns})")
        else:
            self._alter(f"ADD PRIMARY KEY ({columns})")

    def _partition(self, kind: str, parent: Mapping[str, Any]) -> None:
        of = self._rename(parent["schema"], parent["table"])
        is_attached = self._table.parent == of
        if is_attached == (kind == "attach_partition"):
            return
        if kind == "detach_partition":
            self._plan.statements.append(f"ALTER TABLE {quoted(*of)} DETACH PARTITION {self._name}")
            return
        root = self._find(of)
        if root is None or not root.is_partitioned:
            return
        bound = self._source.bound(self._event["oid"], parent["oid"])
        if bound is None:
            self._plan.refuse(bounds_unknown(parent, is_seen=self._source.shows_event))
            return
        self._plan.statements.append(
            f"ALTER TABLE {quoted(*of)} ATTACH PARTITION {self._name} {bound}"
        )


def is_attached(event: Mapping[str, Any]) -> bool:
    """Say whether an event's table has become a partition."""
    return any(change["change"] == "attach_partition" for change in event["changes"])


def is_renamed(event: Mapping[str, Any]) -> bool:
    """Return whether an event's table has another name, or is in another schema."""
    return any(change["change"] in ("rename_table", "set_schema") for change in event["changes"])


def bounds_unknown(parent: Mapping[str, Any], *, is_seen: bool) -> str:
    """Say why a table can't be made or attached as a partition of *parent*; *is_seen*: the source
    shows what the event's transaction did.
    """
    if not is_seen:
        return (
            "its transaction is prepared, and the source shows its bounds when that is committed: "
            "make it a partition there with the bounds that it has"
        )
    return (
        f"it is no partition of {parent['schema']}.{parent['table']} on the source any more, so "
        "its bounds are not known: attach it with those that it had"
    )
