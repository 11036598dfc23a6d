"""What is left to do on the target for the columns of an event's table: part of a plan
(:mod:`spillway.apply.schema.planner`).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from psycopg import sql

from spillway.apply.schema.plan import quoted
from spillway.apply.schema.widening import is_widening

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spillway.apply.schema.definitions import SourceCatalog, TargetColumnNow, TargetTableNow
    from spillway.apply.schema.plan import Plan

    Column = Mapping[str, Any]


class ColumnPlanner:
    """Plans what one alter_table event does to the columns of its table.

    Args:
        event: see docs/reference/ddl-events.md.
        table: the target's.
        name: what that is called once the plan is done so far, as SQL has it.
        source: where defaults come from.
        plan: what gets the statements.
    """

    def __init__(
        self,
        event: Mapping[str, Any],
        table: TargetTableNow,
        name: str,
        source: SourceCatalog,
        plan: Plan,
    ) -> None:
        self._event = event
        self._table = table
        self._name = name
        self._source = source
        self._plan = plan
        self._columns: dict[str, Column] = {
            column["name"]: column for column in event["after"]["columns"]
        }
        self._expressions: dict[int, str] | None = None
        #: the target's columns by the names that they have once the plan is done so far
        self._now: dict[str, TargetColumnNow] = dict(table.columns)

    def rename_all(self, renames: Mapping[str, str]) -> None:
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
                self._plan.refuse(
                    f"the target has a column {new} besides {old}, which is called so now: drop "
                    "the one that is not the source's"
                )

    def _rename_around(self, names: Sequence[str]) -> None:
        """Have each of *names* be called as the one behind it, and the last as the first."""
        there = [name for name in names if name in self._now]
        if not there:
            return
        if len(there) < len(names):
            self._plan.refuse(
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
        self._alter(f"RENAME COLUMN {quoted(old)} TO {quoted(new)}")
        self._now[new] = self._now.pop(old)

    def _added(self) -> set[str]:
        return {one["column"] for one in self._event["changes"] if one["change"] == "add_column"}

    def drop(self, name: str, renames: Mapping[str, str]) -> None:
        """Plan that a column goes.

        Args:
            name: what it was called before the event.
            renames: of the event's, those that are not planned yet.
        """
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
        self._alter(f"DROP COLUMN {quoted(name)}")
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

    def add(self, column: Column) -> None:
        """Plan that a column comes, as the event defines it."""
        name = column["name"]
        if name in self._now:
            return
        parts = [f"ADD COLUMN {quoted(name)} {column['type']}"]
        if column["collation"] is not None:
            collation = column["collation"]
            parts.append(f"COLLATE {quoted(collation['schema'], collation['name'])}")
        expression = self._expression(column)
        then = ""
        if column["identity"]:
            self._plan.refuse(f"column {name} is an identity column: its older rows were numbered")
            return
        if column["generated"]:
            if expression is None:
                self._plan.refuse(f"what column {name} is generated by is not known any more")
                return
            parts.append(f"GENERATED ALWAYS AS ({expression}) {column['generated'].upper()}")
        elif column["missing"] is not None:
            parts.append(f"DEFAULT {_literal(column['missing'])}")
            if expression is not None:
                then = f"ALTER COLUMN {quoted(name)} SET DEFAULT {expression}"
            else:
                then = f"ALTER COLUMN {quoted(name)} DROP DEFAULT"
        elif self._event["rewritten"] and self._source.is_domain_with_default(column["type_oid"]):
            # pg_attrdef has none, and older rows have what it gave each of them.
            self._plan.refuse(
                f"column {name} has a domain's default, which was computed for each row of the "
                "source"
            )
            return
        elif column["has_default"]:
            if self._event["rewritten"] or (
                self._event["after"]["partitioned"] and (expression is None or "(" in expression)
            ):
                self._plan.refuse(
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

    def change(self, kind: str, change: Mapping[str, Any]) -> None:
        """Plan what else is changed of a column."""
        name = change["column"]
        there = self._now.get(name)
        if there is None:
            return
        column = f"ALTER COLUMN {quoted(name)}"
        if kind == "alter_type":
            if there.type == change["to"] or is_widening(change["to"], there.type):
                return
            if is_widening(change["from"], change["to"]) and is_widening(there.type, change["to"]):
                self._alter(f"{column} TYPE {change['to']}")
            else:
                self._plan.refuse(
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
                self._plan.refuse(f"column {name} has another collation")
        elif getattr(there, kind) != change["to"]:
            self._plan.refuse(
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

    def _alter(self, what: str) -> None:
        self._plan.statements.append(f"ALTER TABLE {self._name} {what}")


def _chain(renames: Mapping[str, str], first: str) -> Sequence[str]:
    """Return what *first* is renamed to, what that is, and so on, *first* in front; where they go
    round, each once.
    """
    names = [first]
    while (name := renames.get(names[-1])) is not None and name != first:
        names.append(name)
    return names


def _literal(text: str) -> str:
    """A constant of unknown type, whatever standard_conforming_strings says."""
    return sql.Literal(text).as_string()
