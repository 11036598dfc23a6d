"""Rows that are gone stay in current tables, with the values that they had last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from harness.arrow_slot import Table, delete, insert, truncate, update
from spillway.lake.read import Lake as Reader
from spillway.lake.state import shown_tables
from spillway.lake.state.shown_tables import ShownTables

if TYPE_CHECKING:
    from harness.lake import Lake

ITEMS = Table("items", {"id": pa.int64(), "name": pa.string(), "large": pa.string()})
SEATS = Table(
    "seats",
    {"id": pa.int64(), "who": pa.string()},
    replica_identity="f",
    primary_key_deferrable=True,
)
COPIES = Table("copies", {"n": pa.int32()}, (), "f")
PLAIN = Table("plain", {"id": pa.int64()})


def item(id_: int, name: str | None, large: str | None = None) -> dict[str, Any]:
    return {"id": id_, "name": name, "large": large}


def found(lake: Lake, table: str = "public.items") -> dict[Any, tuple[Any, ...]]:
    """Return of each row by its key its values, and whether it is gone."""
    return {
        row["id"]: (*[row[c] for c in row if c not in ("id", "_deleted_at")],
                    row["_deleted_at"] is not None)
        for row in lake.current(table)
    }  # fmt: skip


def check_versions(lake: Lake, there: int) -> None:
    """Hold the history's versions against the current table: those that are there, and that each
    ends where the next begins.
    """
    rows = Reader(lake.spark, lake.path).at().versions("public.items", ["id"]).collect()
    open_ = {row["id"]: (row["name"], row["large"]) for row in rows if row["_valid_to"] is None}
    live = {key: row[:2] for key, row in found(lake).items() if not row[-1]}
    assert open_ == live
    assert len(open_) == there
    assert all(row["_valid_to"] is None or row["_valid_from"] <= row["_valid_to"] for row in rows)
    first = [row for row in rows if row["id"] == 1]
    assert [(row["name"], row["large"]) for row in first] == [("n1", "l1")]
    gone = {row["id"]: row["_deleted_at"] for row in lake.current("public.items")}
    assert first[0]["_valid_to"].timestamp() == gone[1].timestamp()


def test_rows_that_are_gone_stay(any_lake: Lake) -> None:
    lake, asked = any_lake, ShownTables(soft_deletes=("public.items", "public.seats"))
    shown_tables.settle(lake.path, asked)
    lake.slot.commit(
        *(insert(ITEMS, **item(n, f"n{n}", f"l{n}")) for n in range(1, 7)),
        insert(PLAIN, id=1),
        insert(PLAIN, id=2),
        insert(SEATS, id=1, who="ada"),
        insert(SEATS, id=2, who="bob"),
    )
    lake.batch()
    assert found(lake)[1] == ("n1", "l1", False)
    lake.slot.commit(
        delete(ITEMS, id=1),
        # Changed before it is gone, with a large value that isn't logged.
        update(ITEMS, {"id": 2, "name": "last"}, unchanged=["large"]),
        delete(ITEMS, id=2),
        # Another key: the old one is gone.
        update(ITEMS, item(30, "moved", "l3"), {"id": 3}),
        # It is gone, and back.
        delete(ITEMS, id=4),
        insert(ITEMS, **item(4, "anew", None)),
        # It came and went.
        insert(ITEMS, **item(7, "short", "l7")),
        delete(ITEMS, id=7),
        delete(PLAIN, id=1),
        # Two exchange their keys, in which one is nobody's for a while.
        update(SEATS, {"id": 2, "who": "ada"}, {"id": 1, "who": "ada"}),
        update(SEATS, {"id": 1, "who": "bob"}, {"id": 2, "who": "bob"}),
    )
    lake.batch()
    assert found(lake) == {
        1: ("n1", "l1", True),
        2: ("last", "l2", True),
        3: ("n3", "l3", True),
        30: ("moved", "l3", False),
        4: ("anew", None, False),
        5: ("n5", "l5", False),
        6: ("n6", "l6", False),
        7: ("short", "l7", True),
    }
    assert found(lake, "public.seats") == {1: ("bob", False), 2: ("ada", False)}
    assert [row["id"] for row in lake.current("public.plain")] == [2]
    gone_at = {row["id"]: row["_deleted_at"] for row in lake.current("public.items")}
    deleted = [row for row in lake.history("public.items") if row["_op"] == "D"]
    assert gone_at[1] == next(r["_commit_time"] for r in deleted if r["_old_key"]["id"] == 1)
    check_versions(lake, 4)
    # A large value that was logged under another key; TRUNCATE, and what comes after it.
    lake.slot.commit(
        update(ITEMS, {"id": 50, "name": "far"}, {"id": 5}, unchanged=["large"]),
        insert(ITEMS, **item(8, "eight")),
        truncate(ITEMS),
        insert(ITEMS, **item(6, "six", "again")),
        delete(SEATS, id=1, who="bob"),
    )
    lake.batch()
    after = found(lake)
    assert after[6] == ("six", "again", False)
    assert {key for key, row in after.items() if not row[-1]} == {6}
    assert after[30] == ("moved", "l3", True)
    assert after[8] == ("eight", None, True)
    assert after[5] == ("n5", "l5", True)
    assert found(lake, "public.seats") == {1: ("bob", True), 2: ("ada", False)}
    check_versions(lake, 1)
    # What was gone before keeps its time.
    now = {row["id"]: row["_deleted_at"] for row in lake.current("public.items")}
    assert [now[n] for n in (1, 2, 3)] == [gone_at[n] for n in (1, 2, 3)]


@pytest.mark.long
def test_a_table_that_is_there_gets_them(any_lake: Lake) -> None:
    lake = any_lake
    lake.slot.commit(insert(ITEMS, **item(1, "a")), insert(ITEMS, **item(2, "b")))
    lake.run()
    lake.slot.commit(delete(ITEMS, id=1))
    lake.run(shown=ShownTables(soft_deletes=("all",)))
    assert found(lake) == {1: ("a", None, True), 2: ("b", None, False)}
    # A column more, and one less.
    wider = ITEMS.with_columns(more=pa.int32()).without_column("large")
    lake.slot.commit(insert(wider, id=3, name="c", more=7), delete(wider, id=2))
    lake.run()
    rows = {row["id"]: row for row in lake.current("public.items")}
    assert set(rows[3]) == {"id", "name", "more", "_deleted_at"}
    assert (rows[3]["more"], rows[3]["_deleted_at"]) == (7, None)
    assert rows[2]["_deleted_at"] is not None
    # A row whose key is one again, as if it had never gone.
    lake.slot.commit(insert(wider, id=1, name="back", more=1))
    lake.run()
    assert {row["id"]: row["_deleted_at"] is None for row in lake.current("public.items")} == {
        1: True, 2: False, 3: True,
    }  # fmt: skip


@pytest.mark.long
def test_what_has_no_key_keeps_nothing(delta_lake: Lake) -> None:
    lake = delta_lake
    lake.slot.commit(insert(COPIES, n=1), insert(PLAIN, id=1))
    summary = lake.run(shown=ShownTables(soft_deletes=("all",)))
    assert "public.copies has no key" in summary.quarantined[0]
    named = Table("named", {"id": pa.int64(), "_DELETED_at": pa.string()})
    lake.slot.commit(insert(named, id=1))
    summary = lake.run()
    assert any("has a column '_deleted_at'" in each for each in summary.quarantined)
    assert [row["id"] for row in lake.current("public.plain")] == [1]
