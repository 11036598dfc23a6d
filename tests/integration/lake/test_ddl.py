"""ALTER TABLE between changes: the current table shows what the source shows, in both formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from harness.arrow_slot import Table, delete, insert, update
from integration.lake.test_crash import kill

if TYPE_CHECKING:
    from harness.lake import Lake

ITEMS = Table("items", {"id": pa.int64(), "name": pa.string()})
GROWN = (
    ITEMS.with_columns(
        n=pa.int32(), ok=pa.bool_(), raw=pa.binary(), at=pa.timestamp("us"),
        price=pa.decimal128(8, 2)
    )
    .with_default("n", "7")
    .with_default("ok", "t")
    .with_default("raw", "\\x00ff")
    .with_default("at", "2024-02-29 12:00:00.5")
)  # fmt: skip
LOG = Table("log", {"line": pa.string()}, primary_key=(), replica_identity="f")


@pytest.mark.long
def test_fast_defaults(lake: Lake) -> None:
    lake.slot.commit(insert(ITEMS, id=1, name="a"), insert(ITEMS, id=2, name="b"))
    lake.run()
    # Rows from before the batch, from before the ALTER in it, and from the ALTER's own transaction.
    lake.slot.commit(insert(ITEMS, id=3, name="c"))
    lake.slot.commit(
        insert(ITEMS, id=4, name="d"),
        update(GROWN, {"id": 2, "name": "b", "n": None, "ok": False, "raw": b"", "at": None}),
        insert(GROWN, id=5, name="e"),
    )
    lake.run()
    rows = lake.current("public.items")
    assert [(row["id"], row["n"], row["ok"]) for row in rows] == [
        (1, 7, True),
        (2, None, False),
        (3, 7, True),
        (4, 7, True),
        (5, None, None),
    ]
    assert bytes(rows[0]["raw"]) == b"\x00\xff"
    assert str(rows[0]["at"]) == "2024-02-29 12:00:00.500000"
    assert rows[0]["price"] is None
    # History says what was, when it was.
    assert [row["n"] for row in lake.history("public.items")] == [None] * 6


@pytest.mark.long
def test_renamed_dropped_and_added_again(lake: Lake) -> None:
    lake.slot.commit(insert(ITEMS, id=1, name="a"), insert(ITEMS, id=2, name="b"))
    lake.run()
    titled = ITEMS.renamed_column("name", "title")
    lake.slot.commit(update(ITEMS, {"id": 2, "name": "b2"}), insert(ITEMS, id=3, name="c"))
    lake.slot.commit(update(titled, {"id": 3, "title": None}, unchanged=("title",)))
    lake.run()
    assert lake.current("public.items") == [
        {"id": 1, "title": "a"},
        {"id": 2, "title": "b2"},
        {"id": 3, "title": "c"},
    ]
    again = titled.without_column("title").with_columns(title=pa.string())
    lake.slot.commit(
        update(titled, {"id": 1, "title": "x"}),
        update(again.with_default("title", "new"), {"id": 3, "title": "z"}),
    )
    lake.run()
    assert lake.current("public.items") == [
        {"id": 1, "title": "new"},
        {"id": 2, "title": "new"},
        {"id": 3, "title": "z"},
    ]


@pytest.mark.long
def test_copies_of_rows_get_the_default(lake: Lake) -> None:
    lake.slot.commit(*(insert(LOG, line="a") for _ in range(3)))
    lake.run()
    grown = LOG.with_columns(n=pa.int32()).with_default("n", "1")
    lake.slot.commit(delete(LOG, line="a"), delete(grown, line="a", n=1))
    lake.run()
    assert lake.current("public.log") == [{"line": "a", "n": 1, "_copies": 1}]


@pytest.mark.long
def test_killed_after_the_rewrite(lake: Lake) -> None:
    lake.slot.commit(insert(ITEMS, id=1, name="a"))
    lake.run()
    lake.slot.commit(insert(ITEMS, id=2, name="b"), insert(GROWN, id=3, name="c", n=0))
    kill(lake, lake.spark, "lake.after_reshape=kill")
    lake.run()
    assert [(row["id"], row["n"]) for row in lake.current("public.items")] == [
        (1, 7),
        (2, 7),
        (3, 0),
    ]
