"""What is left to do on the target for one event: statements that are safe, and what is not done.

Safe is what loses nothing, and gives the target's rows the values that the source's have:

- a column is added whose older rows are NULL or one value, which the event tells; or a generated
  one. A default that was computed for each row (``random()``, a sequence's) is not: those values
  are in no WAL.
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

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from psycopg import sql

from spillway.apply.schema.names_in_the_way import aside
from spillway.apply.schema.widening import is_widening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from spillway.apply.schema.definitions import SourceCatalog, TargetColumnNow, TargetTableNow
    from spillway.apply.schema.names_in_the_way import NamesInTheWay

    Column = Mapping[str, Any]
    TableName = tuple[str, str]

_PASSED_OVER: Final = ("replica_identity",)
_INHERITED: Final = ("add_column", "drop_column", "rename_column", "alter_type", "primary_key")


@dataclass(slots=True)
class Plan:
    """What an event comes to on the target."""

    #: in their order, without semicolons
    statements: list[str] = field(default_factory=list)
    #: what is not done by itself, and why
    refused: list[str] = field(default_factory=list)
    #: whether the target's tables would not tell afterwards that the statements were run
    leaves_no_trace: bool = False

    @property
    def is_done(self) -> bool:
        """Whether the target is as it has to be."""
        return not self.statements and not self.refused


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
        self._columns: dict[str, Column] = {
            column["name"]: column for column in event["after"]["columns"]
        }
        self._expressions: dict[int, str] | None = None
        #: the target's columns by the names that they have once the plan is done so far
        self._now: dict[str, TargetColumnNow] = {}

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
        self._name = _quoted(*new)
        self._table = table
        self._now = dict(table.columns)
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
                self._drop(change["column"], renames)
            elif kind == "rename_column":
                # All of them at once, since one may need another's name.
                self._rename_columns(renames)
                renames = {}
            elif kind == "add_column":
                self._add(change["definition"])
            elif kind not in _PASSED_OVER and "column" in change:
                self._change_column(kind, change)
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
            statements.append(f"ALTER TABLE {_quoted(*new)} RENAME TO {_quoted(name)}")
        self._in_the_way.took(self._event["oid"], new)
        schema, name = old
        if schema != new[0]:
            if name != new[1] and self._find((new[0], name)) is not None:
                # On its way it would meet one that has its old name there.
                _, passing = aside(old)
                statements.append(f"ALTER TABLE {_quoted(*old)} RENAME TO {_quoted(passing)}")
                name = passing
            # The source's may be another name of its schema.
            if not self._has_schema(new[0]):
                statements.append(f"CREATE SCHEMA {_quoted(new[0])}")
            statements.append(f"ALTER TABLE {_quoted(schema, name)} SET SCHEMA {_quoted(new[0])}")
        if name != new[1]:
            statements.append(f"ALTER TABLE {_quoted(new[0], name)} RENAME TO {_quoted(new[1])}")

    # ---- columns

    def _rename_columns(self, renames: Mapping[str, str]) -> None:
        """Plan the renames of an event, each when its new name is free."""
        ends = set(renames.values())
        for first in [name for name in renames if name not in ends]:
            self._rename_along(_chain(renames, first))
        swapped = renames.keys() - {n for f in renames if f not in ends for n in _chain(renames, f)}
        while swapped:
            chain = _chain(renames, min(swapped))
            swapped -= set(chain)
            self._rename_around(chain)

    def _rename_along(self, names: Sequence[str]) -> None:
        """Have each of *names* but the last be called as the one behind it."""
        # The first name is free once this was done, but for a column that is added by it.
        first_is_there = names[0] in self._now and not (
            names[0] in self._added() and names[-1] in self._now
        )
        behind_is_done = False
        for old, new in reversed(list(itertools.pairwise(names))):
            if old in self._now and new not in self._now:
                self._rename_column(old, new)
                behind_is_done = False
            elif old not in self._now or behind_is_done or self._was_renamed(old, new):
                behind_is_done = new in self._now
            elif first_is_there:
                self._refuse(
                    f"the target has a column {new} besides {old}, which is called so now: drop "
                    "the one that is not the source's"
                )

    def _rename_around(self, names: Sequence[str]) -> None:
        """Have each of *names* be called as the one behind it, and the last as the first."""
        there = [name for name in names if name in self._now]
        if not there:
            return
        if len(there) < len(names):
            self._refuse(
                f"columns {', '.join(names)} have swapped their names, and the target lacks "
                f"{', '.join(sorted(set(names) - set(there)))}"
            )
            return
        pairs = list(itertools.pairwise([*names, names[0]]))
        if any(self._was_renamed(old, new) for old, new in pairs):
            return
        self._plan.leaves_no_trace = True
        passing = next(
            name for n in itertools.count() if (name := f"spillway_aside_{n}") not in self._now
        )
        self._rename_column(names[-1], passing)
        for old, new in reversed(pairs[:-1]):
            self._rename_column(old, new)
        self._rename_column(passing, names[0])

    def _was_renamed(self, old: str, new: str) -> bool:
        """Say whether the target's columns of both names tell by their types that one was renamed,
        and another one has its name.
        """
        was: str = self._before(old)["type"]
        return self._now[new].type == self._columns[new]["type"] and self._now[old].type != was

    def _before(self, name: str) -> Column:
        columns: Iterable[Column] = self._event["before"]["columns"]
        return next(one for one in columns if one["name"] == name)

    def _rename_column(self, old: str, new: str) -> None:
        self._alter(f"RENAME COLUMN {_quoted(old)} TO {_quoted(new)}")
        self._now[new] = self._now.pop(old)

    def _added(self) -> set[str]:
        return {one["column"] for one in self._event["changes"] if one["change"] == "add_column"}

    def _drop(self, name: str, renames: Mapping[str, str]) -> None:
        if name not in self._now or self._is_made_again(name):
            return
        names = [name]
        while (old := next((o for o, n in renames.items() if n == names[0]), None)) is not None:
            names.insert(0, old)
        if len(names) > 1 and (
            names[0] not in self._now
            or (names[-2] in self._now and self._was_renamed(names[-2], name))
        ):
            # What has the name is the one that got it.
            return
        if names[0] in self._added() and (len(names) > 1 or self._is_made_alike(name)):
            self._plan.leaves_no_trace = True
        self._alter(f"DROP COLUMN {_quoted(name)}")
        del self._now[name]

    def _is_made_alike(self, name: str) -> bool:
        """Say whether a column that is made again is what it was, as far as columns tell."""
        old, new = self._before(name), self._columns[name]
        return all(old[of] == new[of] for of in ("type", "not_null", "has_default"))

    def _is_made_again(self, name: str) -> bool:
        """Say whether the target has what takes the place of a dropped column, by its name."""
        if name not in self._added():
            return False
        there, old, new = self._table.columns[name], self._before(name), self._columns[name]
        is_old = (there.type, there.not_null) == (old["type"], old["not_null"]) and (
            there.default is not None
        ) == old["has_default"]
        is_new = (there.type, there.not_null) == (new["type"], new["not_null"]) and (
            there.generated is not None or there.default == self._expression(new)
        )
        return is_new and not is_old

    def _add(self, column: Column) -> None:
        name = column["name"]
        if name in self._now:
            return
        parts = [f"ADD COLUMN {_quoted(name)} {column['type']}"]
        if column["collation"] is not None:
            collation = column["collation"]
            parts.append(f"COLLATE {_quoted(collation['schema'], collation['name'])}")
        expression = self._expression(column)
        then = ""
        if column["identity"]:
            self._refuse(f"column {name} is an identity column: its older rows were numbered")
            return
        if column["generated"]:
            if expression is None:
                self._refuse(f"what column {name} is generated by is not known any more")
                return
            parts.append(f"GENERATED ALWAYS AS ({expression}) {column['generated'].upper()}")
        elif column["missing"] is not None:
            parts.append(f"DEFAULT {_literal(column['missing'])}")
            if expression is not None:
                then = f"ALTER COLUMN {_quoted(name)} SET DEFAULT {expression}"
            else:
                then = f"ALTER COLUMN {_quoted(name)} DROP DEFAULT"
        elif column["has_default"]:
            if self._event["rewritten"] or (
                self._event["after"]["partitioned"] and (expression is None or "(" in expression)
            ):
                self._refuse(
                    f"column {name} has a default that was computed for each row of the source"
                )
                return
            if expression is not None:
                parts.append(f"DEFAULT {expression}")
        if column["not_null"]:
            parts.append("NOT NULL")
        self._alter(" ".join(parts))
        if then:
            self._alter(then)

    def _change_column(self, kind: str, change: Mapping[str, Any]) -> None:
        name = change["column"]
        there = self._now.get(name)
        if there is None:
            return
        column = f"ALTER COLUMN {_quoted(name)}"
        if kind == "alter_type":
            if there.type == change["to"] or is_widening(change["to"], there.type):
                return
            if is_widening(change["from"], change["to"]) and is_widening(there.type, change["to"]):
                self._alter(f"{column} TYPE {change['to']}")
            else:
                self._refuse(
                    f"column {name} is now {change['to']}, which not every {there.type} is"
                )
        elif kind in ("set_not_null", "drop_not_null"):
            if there.not_null != (kind == "set_not_null"):
                self._alter(f"{column} {'SET' if kind == 'set_not_null' else 'DROP'} NOT NULL")
        elif kind == "set_default":
            expression = self._expression(self._columns[name])
            if expression is not None and expression != there.default:
                self._alter(f"{column} SET DEFAULT {expression}")
        elif kind == "drop_default":
            if there.default is not None:
                self._alter(f"{column} DROP DEFAULT")
        elif kind == "collation":
            wanted = change["to"]
            if there.collation != (None if wanted is None else wanted["name"]):
                self._refuse(f"column {name} has another collation")
        elif getattr(there, kind) != change["to"]:
            self._refuse(
                f"column {name} is {kind} {change['to'] or 'no longer'}"
                if kind == "generated"
                else f"column {name}: identity is {change['to'] or 'dropped'}"
            )

    def _expression(self, column: Column) -> str | None:
        """What the source has as a column's default, or generates it by."""
        if not column["has_default"] and not column["generated"]:
            return None
        if self._expressions is None:
            self._expressions = self._source.expressions(self._event["oid"])
        return self._expressions.get(column["attnum"])

    # ---- the table

    def _primary_key(self, change: Mapping[str, Any]) -> None:
        if tuple(change["to"]) == self._table.primary_key:
            return
        columns = ", ".join(_quoted(name) for name in change["to"])
        if change["from"] or self._table.primary_key or not columns:
            self._refuse(f"the primary key is now ({columns})")
        else:
            self._alter(f"ADD PRIMARY KEY ({columns})")

    def _partition(self, kind: str, parent: Mapping[str, Any]) -> None:
        of = self._rename(parent["schema"], parent["table"])
        is_attached = self._table.parent == of
        if is_attached == (kind == "attach_partition"):
            return
        if kind == "detach_partition":
            self._plan.statements.append(
                f"ALTER TABLE {_quoted(*of)} DETACH PARTITION {self._name}"
            )
            return
        root = self._find(of)
        if root is None or not root.is_partitioned:
            return
        bound = self._source.bound(self._event["oid"], parent["oid"])
        if bound is None:
            self._refuse(bounds_unknown(parent, is_seen=self._source.shows_event))
            return
        self._plan.statements.append(
            f"ALTER TABLE {_quoted(*of)} ATTACH PARTITION {self._name} {bound}"
        )

    def _refuse(self, why: str) -> None:
        self._plan.refused.append(why)


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


def _chain(renames: Mapping[str, str], first: str) -> Sequence[str]:
    """Return what *first* is renamed to, what that is, and so on, *first* in front; where they go
    round, each once.
    """
    names = [first]
    while (name := renames.get(names[-1])) is not None and name != first:
        names.append(name)
    return names


def _quoted(*names: str) -> str:
    return sql.Identifier(*names).as_string()


def _literal(text: str) -> str:
    """A constant of unknown type, whatever standard_conforming_strings says."""
    return sql.Literal(text).as_string()
