"""Batches with changes of many tables: what is small is written without Spark, beside what is not,
and both ways go on from each other.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from harness.arrow_slot import Table, delete, insert, truncate, update
from spillway.lake.batch import near

if TYPE_CHECKING:
    from harness.arrow_slot import Change
    from harness.lake import Lake

_PLAIN = [
    Table(f"t{n}", {"id": pa.int64(), "note": pa.string(), "at": pa.timestamp("us")})
    for n in range(12)
]
#: What is Spark's to write: columns that need mapping, rows without a key, values left out.
ODD = Table("odd", {"id": pa.int64(), "a b": pa.string()})
BAG = Table("bag", {"name": pa.string()}, primary_key=(), replica_identity="f")
TOAST = Table("toast", {"id": pa.int64(), "note": pa.string(), "body": pa.string()})
CUT = Table("cut", {"id": pa.int64()})
#: History alone.
EVENTS = Table("events", {"what": pa.string()}, primary_key=(), replica_identity="n")


def writers(lake: Lake, kind: str, table: str) -> list[str]:
    """Return who made the commits of a Delta table, in order."""
    found = []
    for commit in sorted((lake.path / kind / table / "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            if line.startswith('{"commitInfo":'):
                info = json.loads(line)["commitInfo"]
                found.append(info["engineInfo"].partition(":")[0].partition("/")[0])
    return found


def round_of(n: int, rows: dict[str, dict[int, Any]]) -> list[Change]:
    """Return changes of all plain tables, and note what they come to."""
    made: list[Change] = []
    for table in _PLAIN:
        of = rows.setdefault(table.name, {})
        if n:
            made.append(update(table, {"id": n, "note": f"changed {n}", "at": None}))
            of[n] = f"changed {n}"
        if n > 1:
            made.append(delete(table, id=n - 1))
            del of[n - 1]
        made.append(insert(table, id=n + 1, note="new", at=None))
        of[n + 1] = "new"
    return made


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_small_parts_beside_large_ones(any_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = any_lake
    rows: dict[str, dict[int, Any]] = {}
    lake.slot.commit(
        *round_of(0, rows),
        insert(ODD, id=1, **{"a b": "x"}), insert(BAG, name="a"), insert(BAG, name="a"),
        insert(TOAST, id=1, note="n", body="kept"), insert(CUT, id=1), insert(EVENTS, what="one"),
    )  # fmt: skip
    assert len(lake.batch().changes) == 17
    lake.slot.commit(
        *round_of(1, rows),
        update(ODD, {"id": 1, "a b": "y"}), delete(BAG, name="a"),
        update(TOAST, {"id": 1, "note": "m", "body": None}, unchanged=("body",)),
        truncate(CUT), insert(CUT, id=2), insert(EVENTS, what="two"),
    )  # fmt: skip
    lake.batch()
    # Some of the tables, the others are Spark's.
    monkeypatch.setattr(near, "_NAMES_MAX", 5)
    lake.slot.commit(*round_of(2, rows), insert(EVENTS, what="x" * (1 << 16)))
    monkeypatch.setattr(near, "_TABLE_BYTES", 1 << 16)
    lake.batch()
    # All are Spark's.
    monkeypatch.setattr(near, "_BATCH_BYTES", 0)
    lake.slot.commit(*round_of(3, rows))
    lake.batch()
    monkeypatch.undo()
    # One has another column from here on.
    more = _PLAIN[0].with_columns(more=pa.int32())
    lake.slot.commit(*round_of(4, rows), insert(more, id=99, note="more", at=None, more=7))
    rows["t0"][99] = "more"
    assert lake.batch().confirmed_lsn == lake.slot.state["decoded_lsn"]

    for table in _PLAIN:
        found = lake.current(table.qualified)
        assert {row["id"]: row["note"] for row in found} == rows[table.name], table.name
        assert len(found) == len(rows[table.name])
    operations = [row["_op"] for row in lake.history("public.t1")]
    assert "".join(operations) == "IUIUDIUDIUDI"
    assert [row["more"] for row in lake.current("public.t0") if row["id"] == 99] == [7]
    assert [row["name"] for row in lake.current("public.bag")] == ["a"]
    assert lake.current("public.toast") == [{"id": 1, "note": "m", "body": "kept"}]
    assert lake.current("public.cut") == [{"id": 2}]
    assert [row["a b"] for row in lake.current("public.odd")] == ["y"]
    assert [len(row["what"]) for row in lake.history("public.events")] == [3, 3, 1 << 16]
    if lake.table_format != "delta":
        return
    by_us, by_spark = "spillway", "Apache-Spark"
    # Made, and a commit a batch.
    history = writers(lake, "history", "public.t1")
    assert history[:3] == [by_us] * 3
    assert history[-2:] == [by_spark, by_us]
    assert by_spark not in writers(lake, "current", "public.t1")
    assert by_us not in writers(lake, "history", "public.odd")
    assert writers(lake, "ddl", "events")[:2] == [by_us] * 2
