"""What a job decides where a table's shape changes."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest

from harness.remedies import remedy
from spillway.errors import LakeSchemaChange
from spillway.lake.batch.schema_policy import Decision, OnSchemaChange, TableChanges, decide
from spillway.lake.shape.changes import (
    ADD,
    CREATED_AGAIN,
    DROP,
    FIRST_SEEN,
    RENAME,
    RENAMED_TABLE,
    RETYPE,
    SchemaChange,
    changes_of,
    shape_from_text,
    shape_text,
)
from spillway.lake.shape.columns import Shape, TableColumn
from spillway.lake.shape.partition import Partition
from spillway.lake.shape.type_changes import SourceType
from spillway.lake.state.quarantine import Quarantine

EVOLVE, PAUSE, QUARANTINE = OnSchemaChange
ID = TableColumn(1, "id", pa.int64(), source=SourceType("bigint", 20))
NAME = TableColumn(2, "name", pa.string(), source=SourceType("character varying(5)", 1043, 9))
WIDER = TableColumn(2, "name", pa.string(), source=SourceType("text", 25))
TITLE = TableColumn(2, "title", pa.int32(), source=SourceType("integer", 23))
EXTRA = TableColumn(3, "extra", pa.decimal128(8, 2), "1.50", SourceType("numeric(8,2)", 1700, 9))


def _shape(lsn: int, *columns: TableColumn, oid: int = 16384) -> Shape:
    return Shape((lsn, 0), (lsn + 5, 3), columns, oid)


def _decide(
    policy: OnSchemaChange,
    tables: dict[str, tuple[SchemaChange, ...]],
    quarantined: dict[str, int] | None = None,
    loaded: dict[str, int] | None = None,
    *,
    has_current: bool = True,
) -> Decision:
    aside = {name: _aside(name, lsn) for name, lsn in (quarantined or {}).items()}
    parts = _parts(tables, has_current=has_current)
    return decide(policy, parts, aside, lambda name, lsn: (loaded or {}).get(name, 0) > lsn)


def _aside(name: str, lsn: int) -> Quarantine:
    return Quarantine(name, f"0/{lsn:X}", "", "")


def _parts(
    tables: dict[str, tuple[SchemaChange, ...]], *, has_current: bool = True
) -> list[TableChanges]:
    return [TableChanges(name, name, changes, has_current) for name, changes in tables.items()]


def test_differences() -> None:
    first, second = _shape(10, ID, NAME), _shape(20, ID, TITLE, EXTRA)
    third, other = _shape(30, ID, EXTRA), _shape(40, ID, EXTRA, oid=16999)
    found = changes_of("s.t", None, [first, second, third, other])
    assert [(c.kind, c.place[0]) for c in found] == [
        (FIRST_SEEN, 10),
        (RENAME, 20),
        (RETYPE, 20),
        (ADD, 20),
        (DROP, 30),
        (CREATED_AGAIN, 40),
    ]
    assert [c.loses_values for c in found] == [False, True, True, False, False, False]
    assert str(found[2]) == "column 'title' was character varying(5) and is integer"
    wider = changes_of("s.t", first, [_shape(20, ID, WIDER)])
    assert [(c.kind, c.needs_nothing) for c in wider] == [(RETYPE, True)]
    assert changes_of("s.t", first, [_shape(20, ID, NAME)]) == ()


def test_a_table_that_had_another_name() -> None:
    before, after = _shape(10, ID), _shape(20, ID, oid=16999)
    for known in (None, before):
        (change,) = changes_of("s.t", known, [after], lambda shape: f"s.t{shape.oid}")
        assert (change.kind, change.old_name, change.loses_values) == (
            RENAMED_TABLE,
            "s.t16999",
            True,
        )
        assert str(change) == "the table was s.t16999 before"
    (change,) = changes_of("s.t", before, [after], lambda _: None)
    assert change.kind == CREATED_AGAIN
    assert changes_of("s.t", before, [_shape(20, ID)], lambda _: "s.t") == ()


def test_a_shape_survives_being_text() -> None:
    shape = _shape(10, ID, NAME, EXTRA, TableColumn("at", "at", pa.timestamp("us")))
    kept = shape_from_text(shape_text(shape), (10, 0))
    assert kept.columns == shape.columns
    assert kept.oid == shape.oid


def _mood(in_key: bool, **labels: str) -> TableColumn:
    source = SourceType("mood", 16400, is_enum=True, labels=labels)
    return TableColumn(2, "m", pa.string(), source=source, in_key=in_key)


def test_labels_of_an_enum() -> None:
    """What is renamed is lost where rows are told by it; it looks old elsewhere until a row is
    changed.
    """
    for in_key in (True, False):
        known = _shape(10, ID, _mood(in_key, a="sad"))
        (more,) = changes_of("s.t", known, [_shape(20, ID, _mood(in_key, a="sad", b="glad"))])
        assert (more.kind, more.needs_nothing, more.loses_values) == (RETYPE, True, False)
        assert str(more) == "column 'm' mood may have other values"
        kept = shape_from_text(shape_text(more.shape), (20, 0))
        (renamed,) = changes_of("s.t", kept, [_shape(30, ID, _mood(in_key, a="blue", b="glad"))])
        assert (renamed.needs_nothing, renamed.loses_values) == (not in_key, in_key)
        assert str(renamed) == "values of column 'm' mood were renamed: 'sad' is 'blue' now"


ADDED = changes_of("s.a", _shape(10, ID), [_shape(20, ID, EXTRA)])
RETYPED = changes_of("s.r", _shape(10, ID, NAME), [_shape(15, ID, TITLE)])


def test_evolve_sets_aside_only_where_values_are_lost() -> None:
    assert _decide(EVOLVE, {"s.a": ADDED}) == Decision()
    decision = _decide(EVOLVE, {"s.a": ADDED, "s.r": RETYPED})
    assert (decision.stop_lsn, decision.error) == (None, None), "no table stops another"
    assert decision.set_aside["s.r"][0] == 15
    assert list(decision.set_aside) == ["s.r"]
    assert "--resync --table s.r" in decision.set_aside["s.r"][1]
    # Nothing has to be followed by a table that was loaded since, nor by one that has only a
    # history.
    assert _decide(EVOLVE, {"s.r": RETYPED}, loaded={"s.r": 16}) == Decision()
    assert _decide(EVOLVE, {"s.r": RETYPED}, has_current=False) == Decision()


@pytest.mark.follows_hint("lake_schema_change")
def test_pause_stops_at_the_first_change() -> None:
    decision = _decide(PAUSE, {"s.a": ADDED, "s.r": RETYPED})
    assert (decision.stop_lsn, decision.set_aside) == (15, {})
    decision = _decide(PAUSE, {"s.a": ADDED})
    assert isinstance(decision.error, LakeSchemaChange)
    way = re.search(r"--on-schema-change (\w+)", remedy(decision.error, "lake_schema_change"))
    assert way is not None
    assert _decide(OnSchemaChange(way[1]), {"s.a": ADDED}) == Decision(), "it goes on from here"
    assert decision.error.details == {
        "relation": "s.a", "lsn": "0/14", "change": ADD, "column": "extra",
    }  # fmt: skip
    wider = changes_of("s.t", _shape(10, ID, NAME), [_shape(20, ID, WIDER)])
    assert _decide(PAUSE, {"s.t": wider}) == Decision()
    assert _decide(PAUSE, {"s.t": changes_of("s.t", None, [_shape(10, ID)])}) == Decision()


def test_quarantine_and_the_way_back() -> None:
    decision = _decide(QUARANTINE, {"s.a": ADDED, "s.r": RETYPED})
    assert decision.stop_lsn is None
    assert {name: lsn for name, (lsn, _) in decision.set_aside.items()} == {"s.a": 20, "s.r": 15}
    aside = {"s.a": 20, "s.r": 15}
    tables = {"s.a": ADDED, "s.r": RETYPED}
    for policy, loaded, released in (
        (QUARANTINE, {}, set()),
        (PAUSE, {}, set()),
        (EVOLVE, {}, {"s.a"}),
        (QUARANTINE, {"s.r": 16}, {"s.r"}),
        (EVOLVE, {"s.r": 16}, {"s.a", "s.r"}),
    ):
        decision = _decide(policy, tables, aside, loaded)
        assert decision == Decision(released=released), policy


def _is_loaded_after(loaded: int, _: str, lsn: int) -> bool:
    return loaded > lsn


def test_what_stays_aside_until_a_command_asks_for_it() -> None:
    tables = {"s.a": ADDED, "s.r": RETYPED}
    stays = {name: replace(_aside(name, 10), by_command=True) for name in tables}
    asked = {name: replace(state, resumed=True) for name, state in stays.items()}
    for policy in OnSchemaChange:
        assert decide(policy, _parts(tables), stays, lambda *_: False) == Decision()
        # Who asks for it takes what its changes are; not all can be followed.
        decision = decide(policy, _parts(tables), asked, lambda *_: False)
        assert decision.released == {"s.a"}
        assert list(decision.refused) == ["s.r"]
        assert "--resync --table s.r" in decision.refused["s.r"]
    # A load leads back, one that came after the last try.
    tried = {"s.a": replace(stays["s.a"], tried="0/64")}
    for loaded, released in ((100, set()), (101, {"s.a"})):
        part = _parts({"s.a": ()})
        decision = decide(EVOLVE, part, tried, partial(_is_loaded_after, loaded))
        assert decision == Decision(released=released)


def test_a_column_named_like_a_partition_is_a_conflict_of_its_table_alone() -> None:
    clash = TableColumn(3, "_BY_name", pa.string(), source=SourceType("text", 25))
    changes = changes_of("s.a", _shape(10, ID, NAME), [_shape(20, ID, NAME, clash)])
    part = TableChanges("s.a", "s.a", changes, True, (Partition("name"),))
    decision = decide(EVOLVE, [part], {}, lambda *_: False)
    assert decision.stop_lsn is None
    assert "partitioned by name" in decision.set_aside["s.a"][1]


@pytest.mark.parametrize("policy", OnSchemaChange)
def test_without_changes_nothing_is_decided(policy: OnSchemaChange) -> None:
    assert _decide(policy, {"s.a": ()}) == Decision()
