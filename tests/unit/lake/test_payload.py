"""Messages of the arrow plugin as lake columns."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from harness.arrow_slot import Table
from spillway.errors import LakeError, LakeSchemaConflict
from spillway.lake.shape.payload import (
    Relation,
    conform,
    lake_schema,
    lake_type,
    merge_schemas,
    parse_message,
    relation_of,
    table_columns,
    table_of,
)
from spillway.lake.tables.contract import MULTISET, row_key

ITEMS = Table("items", {"id": pa.int64(), "name": pa.string()})


@pytest.mark.parametrize(
    ("arrow", "lake"),
    [
        (pa.uint64(), pa.int64()),
        (pa.uint32(), pa.int64()),
        (pa.decimal128(12, 2), pa.decimal128(12, 2)),
        (pa.decimal256(50, 2), pa.string()),
        (pa.time64("us"), pa.string()),
        (pa.timestamp("ns", tz="Europe/Berlin"), pa.timestamp("us", tz="UTC")),
        (pa.timestamp("ms"), pa.timestamp("us")),
        (pa.dictionary(pa.int32(), pa.large_string()), pa.string()),
        (pa.list_(pa.uint8()), pa.list_(pa.field("element", pa.int16()))),
        (pa.struct([]), None),
        (pa.struct([("a", pa.uint16()), ("b", pa.struct([]))]), pa.struct([("a", pa.int32())])),
    ],
)
def test_types(arrow: pa.DataType, lake: pa.DataType | None) -> None:
    assert lake_type(arrow) == lake


def test_relation_and_columns() -> None:
    schema = ITEMS.arrow_schema()
    relation = relation_of(schema)
    assert (relation.name, relation.primary_key, relation.replica_identity) == (
        "public.items",
        ("id",),
        "d",
    )
    assert table_columns(lake_schema(schema)) == ("id", "name")


def test_a_message_of_another_plugin_is_refused() -> None:
    with pytest.raises(LakeError, match="not an Arrow IPC stream") as caught:
        parse_message(b"table public.t: INSERT: id[integer]:1")
    assert "arrow" in caught.value.hint
    with pytest.raises(LakeError, match="does not say which relation"):
        relation_of(pa.schema([("id", pa.int64())]))


def test_columns_that_differ_in_case_only_are_refused() -> None:
    with pytest.raises(LakeSchemaConflict, match="differ in case only"):
        lake_schema(ITEMS.with_columns(Name=pa.string()).arrow_schema())


def test_schemas_grow_and_never_lose() -> None:
    stored = pa.schema(
        [("id", pa.int64()), ("gone", pa.string()), ("key", pa.struct([("a", pa.int64())]))]
    )
    incoming = pa.schema(
        [("id", pa.int32()), ("new", pa.date32()), ("key", pa.struct([("b", pa.string())]))]
    )
    merged = merge_schemas(stored, incoming, "public.t")
    assert merged.names == ["id", "gone", "key", "new"]
    assert merged.field("id").type == pa.int64()
    assert merged.field("key").type == pa.struct([("a", pa.int64()), ("b", pa.string())])
    # Of another kind: a column beside the old one, in structs, too; and once more finds it there.
    other = pa.schema([("id", pa.string()), ("key", pa.struct([("a", pa.string())]))])
    merged = merge_schemas(merged, other, "public.t")
    assert merged.names == ["id", "gone", "key", "new", "id__string"]
    assert [f.name for f in merged.field("key").type] == ["a", "b", "a__string"]
    assert merge_schemas(merged, other, "public.t") == merged
    assert merge_schemas(merged, incoming, "public.t") == merged
    batch = pa.record_batch(
        {"id": ["x"], "key": pa.array([{"a": "y"}], pa.struct([("a", pa.string())]))}
    )
    assert conform(batch, merged).to_pylist() == [
        {
            "id": None,
            "gone": None,
            "key": {"a": None, "b": None, "a__string": "y"},
            "new": None,
            "id__string": "x",
        }
    ]
    both = pa.schema([("id", pa.string()), ("id__string", pa.string())])
    with pytest.raises(LakeSchemaConflict, match=r"'id' and 'id__string' of .* would be one"):
        merge_schemas(stored, both, "public.t")


def test_conform() -> None:
    batch = pa.record_batch(
        {
            "_commit_lsn": pa.array([10, 20, 30], pa.uint64()),
            "at": pa.array([dt.time(1, 2, 3), dt.time(1, 2, 3, 500_000), None], pa.time64("us")),
            "_old_key": pa.array([{"id": 1}, None, {"id": 3}], pa.struct([("id", pa.uint32())])),
            "unwanted": [1, 2, 3],
        }
    )
    target = pa.schema(
        [
            ("_commit_lsn", pa.int64()),
            ("_old_key", pa.struct([("id", pa.int64()), ("more", pa.string())])),
            ("at", pa.string()),
            ("added", pa.int32()),
        ]
    )
    rows = conform(batch, target).to_pylist()
    assert rows == [
        {"_commit_lsn": 10, "_old_key": {"id": 1, "more": None}, "at": "01:02:03", "added": None},
        {"_commit_lsn": 20, "_old_key": None, "at": "01:02:03.5", "added": None},
        {"_commit_lsn": 30, "_old_key": {"id": 3, "more": None}, "at": None, "added": None},
    ]
    assert conform(batch, target, from_lsn=20).to_pylist() == rows[1:]
    assert conform(batch, target, from_lsn=31).num_rows == 0


@pytest.mark.parametrize(
    ("primary_key", "identity", "replica_identity", "key"),
    [
        (("id",), ("id",), "d", ("id",)),
        (("id",), ("id", "name"), "f", ("id",)),
        (("id",), ("name",), "i", ("name",)),
        ((), ("id", "name"), "f", MULTISET),
        (("id",), (), "n", None),
        ((), (), "d", None),
    ],
)
def test_row_key(
    primary_key: tuple[str, ...],
    identity: tuple[str, ...],
    replica_identity: str,
    key: tuple[str, ...] | None,
) -> None:
    relation = Relation("public", "t", 1, primary_key, identity, replica_identity)
    assert row_key(relation, ("id", "name")) == key


def test_directories_can_not_leave_the_lake() -> None:
    assert Relation("public", "Order items", 1, (), ()).directory == "public.Order~20items"
    assert Relation("..", "../x", 1, (), ()).directory == "~2E~2E.~2E~2E~2Fx"
    assert Relation("a.b", "c", 1, (), ()).directory != Relation("a", "b.c", 1, (), ()).directory
    assert Relation("public", "größe", 1, (), ()).directory == "public.größe"
    assert (
        Relation("public", "\u20ac", 1, (), ()).directory
        != Relation("public", " AC", 1, (), ()).directory
    )
    for name in (("a.b", "c"), ("..", "_x~y"), ("public", "\u20ac AC ~20"), ("größe", "😀")):
        assert table_of(Relation(*name, 1, (), ()).directory) == name


def test_a_value_that_the_lake_has_not_is_named() -> None:
    schema = pa.schema([("_commit_lsn", pa.uint64()), ("at", pa.timestamp("ns"))])
    stamps = [1000 * n for n in range(100)]
    stamps[61] += 1
    batch = pa.record_batch([list(range(256, 356)), stamps], schema=schema)
    target = lake_schema(schema)
    with pytest.raises(LakeError, match=r"column 'at' of s\.t, .* commits at 0/13D, is no") as said:
        conform(batch, target, relation="s.t")
    assert said.value.details == {"relation": "s.t", "column": "at", "lsn": "0/13D"}
    assert conform(batch, target, from_lsn=256 + 62).num_rows == 38
