"""Planning and reading of the data source, without Spark's JVM."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from harness.arrow_slot import ArrowSlot, Table, insert, truncate, update
from spillway.errors import InvalidLsn, InvalidOption, LakeError, SlotInvalidated, UnknownSlot
from spillway.lake.shape.payload import parse_message
from spillway.lake.source.data_source import LsnRange, SpillwayDataSource, SpillwayStreamReader
from spillway.lake.state import boundaries

if TYPE_CHECKING:
    from pathlib import Path

ITEMS = Table("items", {"id": pa.int64(), "body": pa.string()})
ORDERS = Table("orders", {"id": pa.int64()})


@pytest.fixture
def slot(tmp_path: Path) -> ArrowSlot:
    return ArrowSlot(tmp_path, start_lsn=0x1000000)


def source(slot: ArrowSlot, **options: str) -> SpillwayDataSource:
    return SpillwayDataSource({"slot": "shop", **slot.options, **options})


def stream(slot: ArrowSlot, **options: str) -> SpillwayStreamReader:
    made = source(slot, **options)
    return made.streamReader(made.schema())  # type: ignore[arg-type]


def read(reader: SpillwayStreamReader, start: int, end: int) -> list[dict[str, object]]:
    return [row for batch in reader.read(LsnRange(start, end)) for row in batch.to_pylist()]


def test_offsets_are_lsns(slot: ArrowSlot) -> None:
    reader = stream(slot, max_bytes_per_batch="4096")
    assert reader.initialOffset() == {"lsn": "0/1000000"}
    assert reader.latestOffset({"lsn": "0/1000000"}, reader.getDefaultReadLimit()) == {
        "lsn": "0/1000000"
    }
    slot.set(decoded_lsn=0x1002000)
    assert reader.reportLatestOffset() == {"lsn": "0/1002000"}
    assert reader.latestOffset({"lsn": "0/1000000"}, ReadMaxBytes(4096)) == {"lsn": "0/1001000"}
    assert reader.latestOffset({"lsn": "0/1000000"}, ReadAllAvailable()) == {"lsn": "0/1002000"}
    # A slot that was rewound, or a service that decodes again, is behind for a while: never
    # backward.
    assert reader.latestOffset({"lsn": "0/2000000"}, ReadAllAvailable()) == {"lsn": "0/2000000"}
    assert stream(slot, start_lsn="0/1000800").initialOffset() == {"lsn": "0/1000800"}


def test_available_now_ends_where_it_began_to_look(slot: ArrowSlot) -> None:
    reader = stream(slot)
    slot.set(decoded_lsn=0x1001000)
    reader.prepareForTriggerAvailableNow()
    slot.set(decoded_lsn=0x1002000)
    assert reader.latestOffset({"lsn": "0/1000000"}, ReadAllAvailable()) == {"lsn": "0/1001000"}
    assert reader.latestOffset({"lsn": "0/1001000"}, ReadAllAvailable()) == {"lsn": "0/1001000"}


def test_a_batch_ends_where_it_is_asked_to(slot: ArrowSlot, tmp_path: Path) -> None:
    slot.set(decoded_lsn=0x1003000)
    reader = stream(slot, boundaries=str(boundaries.folder(tmp_path)))
    start = {"lsn": "0/1000000"}
    everything = {"lsn": "0/1003000"}
    assert reader.latestOffset(start, ReadAllAvailable()) == everything
    with boundaries.request(tmp_path, 0x1001008), boundaries.request(tmp_path, 0x1002000):
        assert reader.latestOffset(start, ReadAllAvailable()) == {"lsn": "0/1001008"}
        assert reader.latestOffset({"lsn": "0/1001008"}, ReadMaxBytes(16)) == {"lsn": "0/1001018"}
        assert reader.latestOffset({"lsn": "0/1001008"}, ReadAllAvailable()) == {"lsn": "0/1002000"}
        assert reader.latestOffset({"lsn": "0/1002000"}, ReadAllAvailable()) == everything
    assert reader.latestOffset(start, ReadAllAvailable()) == everything


@pytest.mark.parametrize("upto", [0x1001008, 0x1001009])
def test_what_was_asked_for_is_forgotten_once_it_is_past(tmp_path: Path, upto: int) -> None:
    """Who was killed does not take it back."""
    ahead = boundaries.request(tmp_path, 0x1002000)
    with ahead, boundaries.request(tmp_path, 0x1001008):
        boundaries.forget(tmp_path, 0x1001007)
        assert boundaries.is_asked(tmp_path, 0x1001008)
        boundaries.forget(tmp_path, upto)
        assert not boundaries.is_asked(tmp_path, 0x1001008)
        assert boundaries.is_asked(tmp_path, 0x1002000)
        boundaries.served(tmp_path, 0x1002000)
        assert not boundaries.is_asked(tmp_path, 0x1002000)
        # Another one may have been there for the same.
        boundaries.served(tmp_path, 0x1002000)


def test_a_held_job_plans_nothing(slot: ArrowSlot, tmp_path: Path) -> None:
    slot.set(decoded_lsn=0x1003000)
    start = {"lsn": "0/1000000"}
    options = {"boundaries": str(boundaries.folder(tmp_path))}
    reader, ending = stream(slot, **options), stream(slot, **options)
    ending.prepareForTriggerAvailableNow()
    with boundaries.hold(tmp_path):
        with boundaries.hold(tmp_path):
            assert reader.latestOffset(start, ReadAllAvailable()) == start
        assert reader.latestOffset(start, ReadAllAvailable()) == start
        # Its end is fixed, and before any LSN that is still to come: no news would end it too
        # early.
        assert ending.latestOffset(start, ReadAllAvailable()) == {"lsn": "0/1003000"}
    assert reader.latestOffset(start, ReadAllAvailable()) == {"lsn": "0/1003000"}


def test_partitions_are_arithmetic(slot: ArrowSlot) -> None:
    reader = stream(slot, partitions="4")

    def cut(start: str, end: str) -> list[tuple[int, int]]:
        return [(part.start, part.end) for part in reader.partitions({"lsn": start}, {"lsn": end})]  # type: ignore[attr-defined]

    assert cut("0/1000", "0/1000") == []
    assert cut("0/1000", "0/1001") == [(0x1000, 0x1001)]
    parts = cut("0/0", "0/2000001")
    assert parts == [
        (0, 0x800000),
        (0x800000, 0x1000000),
        (0x1000000, 0x1800000),
        (0x1800000, 0x2000001),
    ]
    assert len(cut("0/0", "1/0")) == 4


def test_a_range_reads_the_same_however_it_is_cut(slot: ArrowSlot) -> None:
    ends = [slot.commit(insert(ITEMS, id=i, body="b"), insert(ORDERS, id=i)) for i in range(5)]
    reader = stream(slot)
    whole = read(reader, 0x1000000, ends[-1])
    assert whole == read(reader, 0x1000000, ends[-1])
    assert [row["relation"] for row in whole] == ["public.items", "public.orders"] * 5 + [None]
    assert (whole[-1]["range_start"], whole[-1]["range_end"]) == (0x1000000, ends[-1])
    for cut in (ends[1] - 1, ends[1], ends[1] + 1):
        parts = read(reader, 0x1000000, cut)[:-1] + read(reader, cut, ends[-1])[:-1]
        assert [row["payload"] for row in parts] == [row["payload"] for row in whole[:-1]]


def test_envelopes(slot: ArrowSlot) -> None:
    end = slot.commit(insert(ITEMS, id=1, body="b"), insert(ITEMS, id=2, body="b"))
    slot.commit(update(ITEMS, {"id": 1, "body": None}, unchanged=("body",)))
    end = slot.commit(truncate(ORDERS))
    first, kept, emptied, _ = read(stream(slot), 0x1000000, end)
    assert (first["relation"], first["changes"], first["special"]) == ("public.items", 2, False)
    assert (kept["special"], emptied["special"]) == (True, True)
    assert first["fingerprint"] == kept["fingerprint"] != emptied["fingerprint"]
    payload = first["payload"]
    assert isinstance(payload, bytes)
    assert parse_message(payload).batch.num_rows == 2


def test_rows_of_one_table(slot: ArrowSlot) -> None:
    end = slot.commit(insert(ORDERS, id=7), insert(ITEMS, id=1, body="b"))
    slot.commit(insert(ITEMS.with_columns(added=pa.int64()), id=2, body="c", added=5))
    reader = stream(slot, table="public.items")
    rows = read(reader, 0x1000000, slot.state["decoded_lsn"])
    assert [(row["_op"], row["id"], row["body"]) for row in rows] == [("I", 1, "b"), ("I", 2, "c")]
    assert read(reader, end, end) == []
    with pytest.raises(LakeError, match=r"holds no change of public\.nothing"):
        source(slot, table="public.nothing").schema()


def test_some_tables_and_some_columns(slot: ArrowSlot) -> None:
    end = slot.commit(insert(ORDERS, id=7), insert(ITEMS, id=1, body="b"))
    rows = read(stream(slot, tables='["public.orders", "public.none"]'), 0x1000000, end)
    assert [row["relation"] for row in rows] == ["public.orders", None]
    reader = stream(slot, table="public.items", columns='["id", "_op"]')
    assert read(reader, 0x1000000, end) == [{"id": 1, "_op": "I"}]
    with pytest.raises(InvalidOption, match="no column 'nothing'"):
        source(slot, table="public.items", columns='["nothing"]').schema()
    for wrong in ("orders", "[1]", '{"a": 1}'):
        with pytest.raises(InvalidOption, match="JSON list of names"):
            source(slot, tables=wrong)
    with pytest.raises(InvalidOption, match="columns are a table's"):
        source(slot, columns='["id"]')


def test_filters_that_spark_pushes(slot: ArrowSlot) -> None:
    ends = [
        slot.commit(*(insert(ITEMS, id=10 * i + j, body=f"b{j}") for j in range(3)))
        for i in range(4)
    ]
    made = source(slot, table="public.items", filter_pushdown="true")
    schema = made.schema()
    lsns: list[Any] = [
        row["_commit_lsn"] for row in read(stream(slot, table="public.items"), 0x1000000, ends[-1])
    ][::3]

    def ids(*filters: Filter) -> tuple[list[Any], tuple[int, int]]:
        reader = made.reader(schema)  # type: ignore[arg-type]
        assert list(reader.pushFilters(list(filters))) == list(filters)
        parts = reader.partitions()
        rows = [
            row["id"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()
        ]  # type: ignore[union-attr]
        return rows, (parts[0].start, parts[-1].end)  # type: ignore[attr-defined]

    everything = (0x1000000, ends[-1])
    assert len(ids()[0]) == 12
    assert ids(LessThan(("id",), 11), GreaterThan(("id",), 1)) == ([2, 10], everything)
    assert ids(In(("body",), ("b1", None, "x")), GreaterThanOrEqual(("id",), 20)) == (
        [21, 31],
        everything,
    )
    assert ids(IsNull(("body",)))[0] == []
    assert len(ids(IsNotNull(("body",)))[0]) == 12
    # By the LSN of the commit, only what is wanted is asked for.
    at = ("_commit_lsn",)
    assert ids(EqualTo(at, lsns[1])) == ([10, 11, 12], (lsns[1], lsns[1] + 1))
    assert ids(GreaterThan(at, lsns[1]), LessThanOrEqual(at, lsns[2])) == (
        [20, 21, 22],
        (lsns[1] + 1, lsns[2] + 1),
    )
    assert ids(GreaterThanOrEqual(at, lsns[2]), LessThan(at, lsns[3]))[1] == (lsns[2], lsns[3])
    assert ids(LessThan(at, 5))[0] == []
    # What can't be compared as Spark does, or is not a column, is left to Spark.
    for other in (
        StringStartsWith(("body",), "b"), EqualTo(("_old_key", "id"), 1), EqualTo(("id",), 1.5),
        EqualTo(("_commit_time",), datetime.now(UTC)), EqualTo(("nothing",), 1),
        Not(EqualTo(("id",), 1)),
    ):  # fmt: skip
        assert len(ids(other)[0]) == 12
    # A reader that takes filters is made only when it is asked for: Spark refuses one while its
    # setting is off.
    plain = source(slot, table="public.items").reader(schema)  # type: ignore[arg-type]
    assert type(plain).pushFilters is DataSourceReader.pushFilters


def test_batch_reads_end_somewhere(slot: ArrowSlot) -> None:
    first = slot.commit(insert(ORDERS, id=1))
    slot.commit(insert(ORDERS, id=2))
    made = source(slot, end_lsn=f"0/{first:X}")
    reader = made.reader(from_arrow_schema(pa.schema([("id", pa.int64())])))
    assert [(part.start, part.end) for part in reader.partitions()] == [(0x1000000, first)]  # type: ignore[attr-defined]


def test_what_was_confirmed_reads_as_empty(slot: ArrowSlot) -> None:
    end = slot.commit(insert(ORDERS, id=1))
    slot.set(confirmed_flush_lsn=end)
    (closing,) = read(stream(slot), 0x1000000, end)
    assert closing["relation"] is None


def test_bad_options_and_slots(slot: ArrowSlot) -> None:
    with pytest.raises(InvalidOption, match="needs the option `slot`"):
        SpillwayDataSource({})
    with pytest.raises(InvalidOption, match="max_bytes_per_batch"):
        source(slot, max_bytes_per_batch="0")
    with pytest.raises(InvalidLsn):
        source(slot, start_lsn="here")
    unknown = SpillwayDataSource({**slot.options, "slot": "other"})
    with pytest.raises(UnknownSlot):
        unknown.streamReader(from_arrow_schema(pa.schema([]))).initialOffset()
    slot.set(plugin="test_decoding")
    with pytest.raises(LakeError, match="the lake reads `arrow` only"):
        stream(slot).initialOffset()
    slot.set(plugin="arrow", invalidation_reason="wal_removed")
    with pytest.raises(SlotInvalidated, match="wal_removed"):
        stream(slot).initialOffset()
