"""The plan of an event whose columns change names: it gives the target's columns the source's, each
its own, in an order that a server accepts; and it does nothing where that was done already.
"""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any

import pytest

from spillway.apply.schema.definitions import SourceCatalog, TargetColumnNow, TargetTableNow
from spillway.apply.schema.names_in_the_way import NamesInTheWay
from spillway.apply.schema.planner import Planner
from spillway.plugins.ddl_event import _changes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spillway.apply.schema.plan import Plan

_NAMES = "abcdef"
_STEP = re.compile(
    r'ALTER TABLE "public"."t" (RENAME|DROP|ADD) COLUMN "(\w+)"(?: TO "(\w+)"| (.*))?'
)


def _state(columns: Mapping[int, str]) -> dict[str, Any]:
    """A table with *columns*, names by attnum, each of a type of its own."""
    return {
        "schema": "public", "table": "t", "parent": None, "partitioned": False, "ancestors": [],
        "primary_key": [], "identity_columns": [], "replica_identity": "default",
        "columns": [
            {
                "attnum": attnum, "name": name, "type": f"type{attnum}", "type_oid": attnum,
                "typmod": -1, "not_null": False, "has_default": False, "missing": None,
                "generated": None, "identity": None, "collation": None,
            }
            for attnum, name in columns.items()
        ],
    }  # fmt: skip


def _plan(before: Mapping[int, str], after: Mapping[int, str], there: Mapping[str, str]) -> Plan:
    """Plan the event between the two, for a target that has columns *there*, types by name."""
    old, new = _state(before), _state(after)
    event = {
        "kind": "alter_table", "schema": "public", "table": "t", "oid": 1, "rewritten": False,
        "before": old, "after": new, "changes": list(_changes(old, new, set())), "xid": 7,
    }  # fmt: skip
    table = TargetTableNow(
        False,
        None,
        (),
        {
            name: TargetColumnNow(kind, False, None, None, None, None)
            for name, kind in there.items()
        },
    )
    none: Any = None
    plan = Planner(
        event,
        lambda schema, name: (schema, name),
        lambda name: table if name == ("public", "t") else None,
        SourceCatalog("", none),
        lambda _: True,
        NamesInTheWay(none),
        was_named_first=False,
    ).plan()
    assert plan is not None
    return plan


def _done(plan: Plan, there: Mapping[str, str]) -> dict[str, str]:
    """What a server makes of the statements, which has columns *there*."""
    columns = dict(there)
    for statement in plan.statements:
        step = _STEP.fullmatch(statement)
        assert step is not None, statement
        what, name, new, kind = step.groups()
        if what == "ADD":
            assert name not in columns, statement
            columns[name] = kind
        elif what == "DROP":
            del columns[name]
        else:
            assert new not in columns, statement
            columns[new] = columns.pop(name)
    return columns


def _types(columns: Mapping[int, str]) -> dict[str, str]:
    return {name: f"type{attnum}" for attnum, name in columns.items()}


@pytest.mark.parametrize("seed", range(300))
def test_names_at_random(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(2, 5)
    before = dict(enumerate(rng.sample(_NAMES, count), 1))
    kept = [attnum for attnum in before if rng.random() < 0.8]
    added = range(10, 10 + rng.randint(0, 2))
    names = rng.sample(_NAMES, min(len(kept) + len(added), len(_NAMES)))
    after = dict(zip([*kept, *added], names, strict=False))
    plan = _plan(before, after, _types(before))
    assert not plan.refused
    assert _done(plan, _types(before)) == _types(after)
    # A target that has all of it has nothing dropped, renamed or made again.
    again = _plan(before, after, _types(after))
    assert (again.statements, again.refused) == ([], [])


def test_columns_that_are_alike() -> None:
    """Nothing tells whether they were swapped already."""
    before, after = {1: "a", 2: "b"}, {1: "b", 2: "a"}
    alike = {"a": "int", "b": "int"}
    plan = _plan(before, after, alike)
    assert len(plan.statements) == 3
    assert plan.leaves_no_trace
