"""Batches merged without Spark, on tables that Spark reads, merges into and maintains in
between.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from harness.arrow_slot import Table, delete, insert, update
from spillway.lake.tables.delta import small_merge

if TYPE_CHECKING:
    from harness.lake import Lake

#: Types of the lake, and values that a writer gets wrong: far dates, both scales of time, digits
#: that fill 16 bytes.
_VALUES: dict[str, tuple[pa.DataType, Any, Any]] = {
    "small": (pa.int16(), -5, 7),
    "big": (pa.int64(), 2**62, -(2**62)),
    "real": (pa.float32(), 1.5, -2.25),
    "double": (pa.float64(), 0.1, 1e300),
    "flag": (pa.bool_(), True, False),
    "text": (pa.string(), "é" * 50, ""),
    "body": (pa.string(), "a body", "another"),
    "bytes": (pa.binary(), b"\x00\xff", b""),
    "day": (pa.date32(), date(1, 1, 1), date(2026, 2, 3)),
    "at": (
        pa.timestamp("us", tz="UTC"),
        datetime(1500, 3, 1, 1, 2, 3, 456789, UTC),
        datetime(2026, 2, 3, 4, 5, 6, 789012, UTC),
    ),
    "money": (pa.decimal128(12, 2), Decimal("-1.23"), Decimal("99999.00")),
    "digits": (pa.decimal128(38, 10), Decimal("1234567890123456789012345678.0123456789"), None),
    "tags": (pa.list_(pa.field("element", pa.string())), ["a", None], []),
    "pair": (pa.struct([("x", pa.int32()), ("y", pa.string())]), {"x": 1, "y": None}, None),
}
ALL = Table("all", {"id": pa.int64()} | {name: type_ for name, (type_, _, _) in _VALUES.items()})


def row(id_: int, which: int) -> dict[str, Any]:
    return {"id": id_} | {name: values[1 + which] for name, values in _VALUES.items()}


def shown(id_: int, which: int) -> dict[str, Any]:
    """Return the row as Spark's collect has it."""
    at = _VALUES["at"][1 + which].replace(tzinfo=None)
    bytes_ = bytearray(_VALUES["bytes"][1 + which])
    return row(id_, which) | {"at": at, "bytes": bytes_}


def operations(lake: Lake, table: str) -> list[tuple[str, str]]:
    """Return who made the current table's commits, and what they are called."""
    history = lake.spark.sql(f"DESCRIBE HISTORY delta.`{lake.path / 'current' / table}`")
    return [(re.split("[/:]", r["engineInfo"])[0], r["operation"]) for r in history.collect()][::-1]


@pytest.mark.long
@pytest.mark.parametrize("by", ["spillway", "delta-rs"])
def test_both_merge_into_one_table(
    delta_lake: Lake, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    lake, direct = delta_lake, (by, "MERGE")
    if by == "delta-rs":
        # As in a table that is not small.
        monkeypatch.setattr(small_merge, "SMALL_BYTES", -1)
    lake.slot.commit(*(insert(ALL, **row(i, 0)) for i in range(1, 6)))
    lake.run()
    where = lake.path / "current" / "public.all"
    lake.spark.sql(
        f"ALTER TABLE delta.`{where}` SET TBLPROPERTIES ('delta.checkpointInterval' = '4')"
    )
    lake.slot.commit(
        update(ALL, row(1, 1)),
        update(ALL, row(20, 1), old={"id": 2}),
        delete(ALL, id=3),
        insert(ALL, **row(6, 0)),
    )
    lake.run()
    assert operations(lake, "public.all")[3:] == [direct]
    after_direct = [shown(1, 1), shown(20, 1), shown(4, 0), shown(5, 0), shown(6, 0)]
    assert lake.current("public.all") == sorted(after_direct, key=lambda r: str(r["id"]))
    # By delta-rs, in either case, and Spark has read from it.
    assert json.loads((where / "_delta_log" / "_last_checkpoint").read_text())["version"] == 3

    # Spark leaves files out by what the log says of them.
    current = lake.spark.read.format("delta").load(str(where))
    for name in ("big", "double", "text", "day", "at", "money"):
        value = F.lit(_VALUES[name][2]).cast(current.schema[name].dataType)
        assert current.where(F.col(name) == value).count() == 2, name

    # Spark's MERGE on files that it didn't write, and the other way round.
    lake.slot.commit(update(ALL, row(4, 1) | {"body": None}, unchanged=("body",)))
    lake.run()
    lake.slot.commit(delete(ALL, id=20), update(ALL, row(6, 1)))
    lake.run()
    assert operations(lake, "public.all")[4:] == [("Apache-Spark", "MERGE"), direct]
    rows = [shown(1, 1), shown(4, 1) | {"body": "a body"}, shown(5, 0), shown(6, 1)]
    assert lake.current("public.all") == rows

    # Maintenance in between.
    lake.spark.sql(f"OPTIMIZE delta.`{where}`").collect()
    lake.slot.commit(update(ALL, row(5, 1)))
    lake.run()
    assert operations(lake, "public.all")[-1] == direct
    assert lake.current("public.all") == [*rows[:2], shown(5, 1), rows[3]]


ORDERS = Table("orders", {"id": pa.int64(), "total": pa.int64()})


@pytest.mark.long
def test_tables_that_ask_for_more_are_merged_by_spark(delta_lake: Lake) -> None:
    lake = delta_lake
    lake.slot.commit(insert(ORDERS, id=1, total=1), insert(ORDERS, id=2, total=2))
    lake.run()
    where = lake.path / "current" / "public.orders"
    lake.spark.sql(
        f"ALTER TABLE delta.`{where}` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    )
    lake.slot.commit(update(ORDERS, {"id": 1, "total": 10}))
    lake.run()
    assert operations(lake, "public.orders")[-1] == ("Apache-Spark", "MERGE")
    assert lake.current("public.orders") == [{"id": 1, "total": 10}, {"id": 2, "total": 2}]


@pytest.mark.long
def test_a_batch_without_effect(delta_lake: Lake) -> None:
    """What came and went leaves no row to write, and the table says all the same how far it is."""
    lake = delta_lake
    table = Table("items", {"id": pa.int64(), "name": pa.string()})
    bag = Table("bag", {"name": pa.string()}, primary_key=(), replica_identity="f")
    fleeting = Table("fleeting", {"id": pa.int64()})
    lake.slot.commit(
        insert(table, id=1, name="a"), insert(bag, name="a"), insert(fleeting, id=1),
        delete(fleeting, id=1),
    )  # fmt: skip
    lake.run()
    assert lake.current("public.fleeting") == []
    lake.slot.commit(
        insert(table, id=2, name="b"), delete(table, id=2), insert(bag, name="b"),
        delete(bag, name="b"),
    )  # fmt: skip
    lake.run()
    assert lake.current("public.items") == [{"id": 1, "name": "a"}]
    assert [row["name"] for row in lake.current("public.bag")] == ["a"]
