"""The arrow plugin's columns hold the values that a real server returns for the same rows."""

from __future__ import annotations

import datetime as dt
import json
import re
import struct
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from harness import heap_rows
from harness.remedies import remedy
from spillway._kernels.messages.buffer import MessageBuffer
from spillway.decoding import change_format
from spillway.decoding.transaction import TransactionHeader
from spillway.errors import DecodingError, InvalidOption, ValueNotRepresentable
from spillway.plugins.arrow import ArrowPlugin
from spillway.plugins.interface import PluginContext
from spillway.plugins.refused_values import refused_of
from spillway.plugins.registry import create_plugin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.cluster import Database
    from spillway.catalog.descriptor import RelationDescriptor

INSERT, UPDATE, DELETE = change_format.INSERT, change_format.UPDATE, change_format.DELETE
CHANGE_COLUMNS = [
    "_op", "_lsn", "_commit_lsn", "_commit_end_lsn", "_xid", "_seq", "_commit_time",
    "_unchanged_toast",
]  # fmt: skip
COMMIT_TIME = dt.datetime(2026, 11, 21, 9, 30, 1, 250, tzinfo=dt.UTC)


def header(number: int = 1, **changes: Any) -> TransactionHeader:
    base = number * 0x1000
    microseconds = (COMMIT_TIME - dt.datetime(2000, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(
        microseconds=1
    )
    return TransactionHeader(700 + number, base, base + 0x800, base + 0x830, microseconds)._replace(
        **changes
    )


class Reader:
    """Runs a plugin as a slot's reader does."""

    def __init__(self, options: Mapping[str, str] | None = None, version: int = 180000) -> None:
        self.plugin = create_plugin("arrow", options or {}, PluginContext("s", "d", version))
        self.out = MessageBuffer()

    def transaction(
        self,
        changes: Sequence[bytes],
        relations: Mapping[int, RelationDescriptor],
        number: int = 1,
        chunk_size: int = 1000,
    ) -> None:
        head = header(number)
        self.plugin.begin(head, self.out)
        for i in range(0, len(changes), chunk_size):
            chunk = b"".join(changes[i : i + chunk_size])
            self.plugin.changes(head, memoryview(chunk), relations, self.out)
        self.plugin.commit(head, self.out)

    def messages(self, *, flush: bool = True) -> list[tuple[int, int, pa.Table]]:
        if flush:
            self.plugin.flush(self.out)
        batch = self.out.take()
        result, position = [], 0
        for i in range(batch.count):
            (length,), (lsn,), (xid,) = (
                struct.unpack_from("<I", batch.lengths, 4 * i),
                struct.unpack_from("<Q", batch.lsns, 8 * i),
                struct.unpack_from("<I", batch.xids, 4 * i),
            )
            with pa.ipc.open_stream(batch.payload[position : position + length]) as stream:
                batches = list(stream)
            assert len(batches) == 1
            batches[0].validate(full=True)
            result.append((lsn, xid, pa.Table.from_batches(batches)))
            position += length
        return result


def described(pg: Database, table: str) -> RelationDescriptor:
    """The descriptor with its keys, which ``heap_rows`` leaves out."""
    descriptor = heap_rows.relation_descriptor(pg, table)
    primary_key = tuple(
        row[0]
        for row in pg.query(
            "SELECT k.attnum::int FROM pg_index, unnest(indkey) WITH ORDINALITY k(attnum, n)"
            " WHERE indrelid = %s AND indisprimary ORDER BY n",
            [descriptor.oid],
        )
    )
    live = tuple(c.attnum for c in descriptor.columns if not c.dropped)
    identity = {"d": primary_key, "n": (), "f": live}[descriptor.replica_identity]
    return replace(descriptor, primary_key=primary_key, identity_columns=identity)


def rows_of(
    descriptor: RelationDescriptor,
    changes: Sequence[bytes],
    options: Mapping[str, str] | None = None,
) -> pa.Table:
    reader = Reader(options)
    reader.transaction(changes, {1: descriptor})
    ((_, _, table),) = reader.messages()
    return table


def inserts(pg: Database, table: str, **more: Any) -> list[bytes]:
    descriptor = described(pg, table)
    toast = heap_rows.toast_values(pg, descriptor)
    return [
        heap_rows.build_change(INSERT, new=section, toast=toast, **more)
        for section in heap_rows.sections(pg, table)
    ]


UTC = dt.UTC
LOCAL = dt.datetime(2000, 1, 1)  # noqa: DTZ001
DAYS_TO_1970 = dt.timedelta(days=10957)
SAME = object()
# type → (Arrow type, SQL literals, what Arrow gives; SAME: what the server returns as text)
TYPES: dict[str, tuple[pa.DataType, list[str | None], Any]] = {
    "bool": (pa.bool_(), ["t", "f", None, "t"], [True, False, None, True]),
    "int2": (pa.int16(), ["-32768", None, "32767"], [-32768, None, 32767]),
    "int4": (pa.int32(), ["-2147483648", None, "2147483647"], [-(2**31), None, 2**31 - 1]),
    "int8": (pa.int64(), ["-9223372036854775808", "9223372036854775807"], [-(2**63), 2**63 - 1]),
    "float4": (pa.float32(), ["1.5", "-0", "Infinity"], [1.5, -0.0, float("inf")]),
    "float8": (pa.float64(), ["0.1", "5e-324", "-Infinity", None],
               [0.1, 5e-324, float("-inf"), None]),
    "text": (pa.utf8(), ["", "línea ☃ 🎉", None, "x" * 3000], ["", "línea ☃ 🎉", None, "x" * 3000]),
    "varchar(9)": (pa.utf8(), ["abc", None], ["abc", None]),
    "char(5)": (pa.utf8(), ["abc", None], ["abc  ", None]),
    "json": (pa.utf8(), ['{"a" :  1}'], ['{"a" :  1}']),
    "bytea": (pa.binary(), ["\\x", "\\x00ff", None], [b"", b"\x00\xff", None]),
    "date": (
        pa.date32(),
        ["2000-01-01", "1969-12-31", "0001-01-01", "9999-12-31", None],
        [dt.date(2000, 1, 1), dt.date(1969, 12, 31), dt.date(1, 1, 1), dt.date(9999, 12, 31), None],
    ),
    "time": (
        pa.time64("us"),
        ["00:00", "23:59:59.999999", None],
        [dt.time(0), dt.time(23, 59, 59, 999999), None],
    ),
    "timestamp": (
        pa.timestamp("us"),
        ["2000-01-01 00:00", "1969-12-31 23:59:59.999999", None],
        [LOCAL, LOCAL - dt.timedelta(microseconds=1) - DAYS_TO_1970, None],
    ),
    "timestamptz(3)": (
        pa.timestamp("us", tz="UTC"),
        ["2024-06-15 12:00:00.1234+02"],
        [dt.datetime(2024, 6, 15, 10, 0, 0, 123000, tzinfo=UTC)],
    ),
    "numeric(10,2)": (
        pa.decimal128(10, 2),
        ["0", "12345678.9", "-99999999.99", "0.01", "-0.1", "100", "10000", None],
        [Decimal(v) for v in ("0.00", "12345678.90", "-99999999.99", "0.01", "-0.10", "100.00",
                              "10000.00")]
        + [None],
    ),
    "numeric(38,0)": (pa.decimal128(38, 0), ["9" * 38, "-" + "9" * 38, "1" + "0" * 37, "7"], SAME),
    "numeric(38,38)": (pa.decimal128(38, 38), ["0." + "9" * 38, "-0." + "0" * 37 + "1", "0"], SAME),
    "numeric(5,3)": (pa.decimal128(5, 3), ["12.345", "0.001", "99.999", "1"], SAME),
    "numeric(20,10)": (pa.decimal128(20, 10),
                       ["1234567890.0987654321", "0.0000000001", "1000000000"], SAME),
    "numeric": (pa.utf8(), ["NaN", "1e40", "0.10", None], ["NaN", "1" + "0" * 40, "0.10", None]),
    "numeric(39,1)": (pa.utf8(), ["1.5"], ["1.5"]),
    "numeric(3,-2)": (pa.utf8(), ["12345"], ["12300"]),
    "numeric(2,4)": (pa.utf8(), ["0.0012"], ["0.0012"]),
    "uuid": (pa.utf8(), ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"], SAME),
    "jsonb": (pa.utf8(), ['{"b": [1, null], "a": "ü"}', None], SAME),
    "interval": (pa.utf8(), ["1 year 2 mons -3 days"], SAME),
    "int4[]": (pa.utf8(), ["{1,NULL,3}"], SAME),
    "mood": (pa.utf8(), ["sad", "äh", None], ["sad", "äh", None]),
    "positive": (pa.int32(), ["5", None], [5, None]),
    "price": (pa.decimal128(8, 3), ["1.5", None], [Decimal("1.500"), None]),
    "inet": (pa.utf8(), ["10.0.0.1/8"], SAME),
    "oid": (pa.utf8(), ["4294967295"], SAME),
}  # fmt: skip
SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'äh');
CREATE DOMAIN positive AS int4 CHECK (VALUE > 0);
CREATE DOMAIN amount AS numeric(8, 3);
CREATE DOMAIN price AS amount;
"""


def test_values_of_every_type(pg: Database) -> None:
    pg.execute(SETUP)
    for number, (type_name, (arrow_type, literals, given)) in enumerate(TYPES.items()):
        if type_name in {"numeric(3,-2)", "numeric(2,4)"} and pg.cluster.major < 15:
            continue
        name = f"t{number}"
        pg.execute(f"CREATE TABLE {name} (id int, v {type_name})")
        with pg.connect() as connection, connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO {name} VALUES (%s, %s::text::{type_name})", list(enumerate(literals))
            )
        descriptor = described(pg, name)
        table = rows_of(descriptor, inserts(pg, name))
        assert table.schema.field("v").type == arrow_type, type_name
        values = table["v"].to_pylist()
        expected = given
        if given is SAME:
            expected = [row[0] for row in pg.query(f"SELECT v::text FROM {name} ORDER BY id")]
            if pa.types.is_decimal(arrow_type):
                expected = [Decimal(text) for text in expected]
        assert values == expected, type_name
        assert table["_op"].to_pylist() == ["I"] * len(literals)


NOT_REPRESENTABLE = [
    ("numeric(10,2)", "NaN", "numeric_as"),
    ("date", "infinity", "temporal_as"),
    ("date", "-infinity", "temporal_as"),
    ("timestamp", "infinity", "temporal_as"),
    ("timestamptz", "-infinity", "temporal_as"),
    ("timestamp", "294276-12-31 23:59:59.999999", "temporal_as"),
    ("time", "24:00:00", "temporal_as"),
]


@pytest.mark.parametrize(("type_name", "value", "option"), NOT_REPRESENTABLE)
@pytest.mark.follows_hint("value_not_representable")
def test_values_that_arrow_cannot_hold_are_errors(
    pg15: Database, type_name: str, value: str, option: str
) -> None:
    pg15.execute(
        f"CREATE TABLE bad (id int, \"Odd v\" {type_name}); INSERT INTO bad VALUES (1, '{value}')"
    )
    descriptor = described(pg15, "bad")
    reader = Reader()
    with pytest.raises(ValueNotRepresentable) as error:
        reader.transaction(inserts(pg15, "bad", lsn=0x1234), {1: descriptor})
    assert error.value.code == "value_not_representable"
    assert error.value.details == {"lsn": "0/1234", "relation": "public.bad", "column": "Odd v"}
    named = re.search(rf"\b({option})=(\w+)", remedy(error.value, "value_not_representable"))
    assert named is not None
    assert "table public.bad, column Odd v" in error.value.message
    # Nothing of it is left behind; with the option the value is text.
    assert reader.messages() == []
    table = rows_of(descriptor, inserts(pg15, "bad"), {named[1]: named[2]})
    assert table["Odd v"].to_pylist() == [value]
    assert table.schema.field("Odd v").type == pa.utf8()


@pytest.mark.parametrize(("type_name", "value", "option"), NOT_REPRESENTABLE)
def test_values_that_arrow_cannot_hold_are_told_of_when_asked_for(
    pg15: Database, type_name: str, value: str, option: str
) -> None:
    pg15.execute(
        f'CREATE TABLE bad (id int, "Odd v" {type_name}, w text); ALTER TABLE bad REPLICA IDENTITY '
        f"FULL; INSERT INTO bad VALUES (1, NULL, 'a'), (2, '{value}', 'b'), (3, '{value}', 'c')"
    )
    descriptor = described(pg15, "bad")
    reader = Reader({"not_representable": "mark"})
    old, new, other = heap_rows.sections(pg15, "bad")
    reader.transaction([heap_rows.build_change(INSERT, new=old, lsn=0x1100)], {1: descriptor})
    reader.transaction(
        [
            heap_rows.build_change(INSERT, new=new, lsn=0x2100),
            heap_rows.build_change(UPDATE, new=old, old=other, lsn=0x2200),
        ],
        {1: descriptor},
        number=2,
    )
    ((_, _, table),) = reader.messages()
    assert table["id"].to_pylist() == [1, 2, 1]
    assert table["w"].to_pylist() == ["a", "b", "a"]
    assert table["Odd v"].to_pylist() == [None, None, None]
    assert table["_old_key"].to_pylist()[2] == {"id": 3, "Odd v": None, "w": "c"}
    refused = refused_of(table.schema)
    assert refused is not None
    assert refused.count == 2
    assert [
        (each.column, each.row, each.lsn, each.commit_lsn, each.value) for each in refused.values
    ] == [("Odd v", 1, 0x2100, 0x2800, value), ("Odd v", 2, 0x2200, 0x2800, value)]
    assert all(each.reason and option in each.hint for each in refused.values)
    assert refused.from_lsn(0x2801) is None
    # A message without such values says nothing of them.
    reader.transaction([heap_rows.build_change(INSERT, new=old)], {1: descriptor}, number=3)
    ((_, _, after),) = reader.messages()
    assert refused_of(after.schema) is None
    assert after["w"].to_pylist() == ["a"]


def test_refused_texts_and_how_many_are_told_of(pg15: Database) -> None:
    pg15.execute("CREATE TABLE bad (id int, v text); INSERT INTO bad VALUES (1, 'abc')")
    descriptor = described(pg15, "bad")
    (section,) = heap_rows.sections(pg15, "bad")
    not_utf8 = section[:-3] + b"\xff\xfe\xfd"
    reader = Reader({"not_representable": "mark"})
    good = heap_rows.build_change(INSERT, new=section)
    reader.transaction(
        [good, *(heap_rows.build_change(INSERT, new=not_utf8) for _ in range(40)), good],
        {1: descriptor},
    )
    ((_, _, table),) = reader.messages()
    assert table["v"].to_pylist() == ["abc", *[None] * 40, "abc"]
    refused = refused_of(table.schema)
    assert refused is not None
    assert (refused.count, len(refused.values)) == (40, 32)
    assert refused.values[0].value == "\\xff\\xfe\\xfd"
    # What comes later may be among those that are not told of.
    assert refused.from_lsn(0x9999) == refused.values[-1]


def test_columns_of_the_change_and_metadata(pg: Database) -> None:
    pg.execute(
        "CREATE TABLE t (a int NOT NULL, gone int, _op text, __op int, k varchar(7), ts "
        "timestamptz(3)[], PRIMARY KEY (k, a)); INSERT INTO t VALUES (1, 2, 'x', 3, 'key'); ALTER "
        "TABLE t DROP COLUMN gone"
    )
    descriptor = described(pg, "t")
    reader = Reader(version=int(pg.value("SHOW server_version_num")))
    changes = inserts(pg, "t", lsn=0x1100) + inserts(pg, "t", lsn=0x1180)
    reader.transaction(changes, {1: descriptor})
    ((lsn, xid, table),) = reader.messages()
    assert (lsn, xid) == (0x1830, 701)
    assert table.schema.names == [*CHANGE_COLUMNS, "_old_key", "a", "__op", "___op", "k", "ts"]
    assert table.select(CHANGE_COLUMNS).to_pylist() == [
        {
            "_op": "I", "_lsn": at, "_commit_lsn": 0x1800, "_commit_end_lsn": 0x1830, "_xid": 701,
            "_seq": seq, "_commit_time": COMMIT_TIME, "_unchanged_toast": None,
        }
        for seq, at in enumerate((0x1100, 0x1180))
    ]  # fmt: skip
    assert table["_old_key"].to_pylist() == [None, None]
    assert table.schema.field("_old_key").type == pa.struct([("k", pa.utf8()), ("a", pa.int32())])
    assert json.loads(table.schema.metadata[b"spillway.relation"]) == {
        "schema": "public", "table": "t", "oid": descriptor.oid, "replica_identity": "d",
        "primary_key": ["k", "a"], "identity_columns": ["k", "a"], "attributes": 6,
    }  # fmt: skip
    columns = {
        f.name: json.loads(f.metadata[b"spillway.column"])
        for f in table.schema
        if f.metadata is not None
    }
    assert columns["a"]["type"] == "integer"
    assert columns["a"]["not_null"] is True
    assert (columns["__op"]["name"], columns["___op"]["name"]) == ("_op", "__op")
    assert (columns["k"]["type"], columns["k"]["typmod"]) == ("character varying(7)", 11)
    assert columns["ts"]["type"] == "timestamp(3) with time zone[]"
    expected = pg.query(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = 't'::regclass AND attnum > 0 AND NOT attisdropped"
    )
    assert {c["name"]: c["type"] for c in columns.values()} == dict(expected)


def test_update_delete_truncate(pg: Database) -> None:
    pg.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, big text); ALTER TABLE t ALTER big SET "
        "STORAGE EXTERNAL;INSERT INTO t VALUES (1, 'one', repeat('x', 9000)), (2, 'two', NULL);"
        "CREATE TABLE keys (id int, v text, big text); INSERT INTO keys VALUES (9), (1)"
    )
    descriptor = described(pg, "t")
    one, two = heap_rows.sections(pg, "t")
    nine, key_one = heap_rows.sections(pg, "keys")
    truncate = heap_rows.build_change(
        change_format.TRUNCATE, relation=0, new=struct.pack("<IIII", 0, 2, 1, 2), lsn=0x1500
    )
    other = replace(descriptor, oid=descriptor.oid + 1, name="other")
    reader = Reader()
    reader.transaction(
        [
            heap_rows.build_change(UPDATE, new=one),  # big is unchanged TOAST
            heap_rows.build_change(UPDATE, new=two, old=nine),  # the key changed
            heap_rows.build_change(DELETE, old=key_one),
            truncate,
        ],
        {1: descriptor, 2: other},
    )
    (_, _, table), (_, _, second) = reader.messages()
    assert table.drop_columns(CHANGE_COLUMNS).to_pylist() == [
        {"_old_key": None, "id": 1, "v": "one", "big": None},
        {"_old_key": {"id": 9}, "id": 2, "v": "two", "big": None},
        {"_old_key": {"id": 1}, "id": 1, "v": None, "big": None},
        {"_old_key": None, "id": None, "v": None, "big": None},
    ]
    assert table["_op"].to_pylist() == ["U", "U", "D", "T"]
    assert table["_seq"].to_pylist() == [0, 1, 2, 3]
    assert table["_unchanged_toast"].to_pylist() == [["big"], None, None, None]
    assert (second["_op"].to_pylist(), second["_seq"].to_pylist()) == (["T"], [4])


def test_replica_identity_full_and_nothing(pg15: Database) -> None:
    pg15.execute("CREATE TABLE t (id int, v text); INSERT INTO t VALUES (1, 'old'), (1, 'new')")
    old, new = heap_rows.sections(pg15, "t")
    changes = [
        heap_rows.build_change(UPDATE, new=new, old=old),
        heap_rows.build_change(DELETE, old=new),
    ]
    pg15.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    table = rows_of(described(pg15, "t"), changes)
    assert table.drop_columns(CHANGE_COLUMNS).to_pylist() == [
        {"_old_key": {"id": 1, "v": "old"}, "id": 1, "v": "new"},
        {"_old_key": {"id": 1, "v": "new"}, "id": 1, "v": "new"},
    ]
    pg15.execute("ALTER TABLE t REPLICA IDENTITY NOTHING")
    table = rows_of(described(pg15, "t"), [heap_rows.build_change(DELETE), changes[0]])
    assert table.drop_columns(CHANGE_COLUMNS).to_pylist() == [
        {"id": None, "v": None},
        {"id": 1, "v": "new"},
    ]


def test_batches_over_transactions(pg15: Database) -> None:
    pg15.execute("CREATE TABLE t (id int); INSERT INTO t SELECT generate_series(1, 100)")
    descriptor = described(pg15, "t")
    changes = inserts(pg15, "t")
    reader = Reader({"batch_rows": "10"})
    # Below the bound nothing is emitted; at it, at a transaction's end.
    reader.transaction(changes[:4], {1: descriptor}, 1)
    reader.transaction(changes[:5], {1: descriptor}, 2)
    assert reader.messages(flush=False) == []
    reader.transaction(changes[:4], {1: descriptor}, 3)
    ((lsn, xid, table),) = reader.messages(flush=False)
    assert (lsn, xid, len(table)) == (0x3830, 703, 13)
    assert table["_commit_lsn"].to_pylist() == [0x1800] * 4 + [0x2800] * 5 + [0x3800] * 4
    assert table["_seq"].to_pylist() == [*range(4), *range(5), *range(4)]
    # A transaction that alone is over the bound is cut, with its numbers going on.
    for i, change in enumerate(changes):
        changes[i] = change[:16] + struct.pack("<Q", 0x4000 + i) + change[24:]
    reader.transaction(changes[:3], {1: descriptor}, 3)
    reader.transaction(changes[:27], {1: descriptor}, 4, chunk_size=8)
    messages = reader.messages()
    assert [(lsn, len(table)) for lsn, _, table in messages] == [
        (0x4009, 13),
        (0x4013, 10),
        (0x4830, 7),
    ]
    assert messages[1][2]["_seq"].to_pylist() == list(range(10, 20))
    assert reader.messages() == []
    # Bytes bound as rows do.
    reader = Reader({"batch_bytes": "2000"})
    reader.transaction(changes, {1: descriptor})
    sizes = [len(table) for _, _, table in reader.messages()]
    assert sum(sizes) == 100
    assert max(sizes) - min(sizes[:-1]) <= 1
    assert len(sizes) == 4


def test_tables_are_emitted_together_and_a_new_descriptor_begins_a_batch(pg15: Database) -> None:
    pg15.execute(
        "CREATE TABLE a (id int); CREATE TABLE b (id int); INSERT INTO a VALUES (1); INSERT INTO b "
        "VALUES (2)"
    )
    a, b = (described(pg15, name) for name in "ab")
    pg15.execute("ALTER TABLE a ADD v int DEFAULT 7")
    wider = described(pg15, "a")
    columns = (wider.columns[0], replace(wider.columns[1], missing=struct.pack("<i", 7)))
    wider = replace(wider, columns=columns)
    insert_a, insert_b, insert_wider = (
        heap_rows.build_change(INSERT, relation=r, new=heap_rows.sections(pg15, name)[0])
        for r, name in ((1, "a"), (2, "b"), (3, "a"))
    )
    relations = {1: a, 2: b, 3: wider}
    reader = Reader()
    reader.transaction([insert_a], relations, 1)
    reader.transaction([insert_b, insert_a], relations, 2)
    reader.transaction([insert_wider, insert_a, insert_b], relations, 3)
    messages = reader.messages()
    found = [
        (
            json.loads(t.schema.metadata[b"spillway.relation"])["table"],
            lsn,
            t["_commit_lsn"].to_pylist(),
        )
        for lsn, _, t in messages
    ]
    assert found == [
        ("a", 0x2830, [0x1800, 0x2800]),
        ("b", 0x3830, [0x2800, 0x3800]),
        ("a", 0x3830, [0x3800]),
        ("a", 0x3830, [0x3800]),
    ]
    assert messages[2][2]["v"].to_pylist() == [7]
    assert "v" not in messages[3][2].schema.names
    # An equal descriptor, loaded anew, does not end a batch.
    reader.transaction([insert_a], relations, 4)
    reader.transaction([insert_a], {1: replace(a)}, 5)
    assert [len(t) for _, _, t in reader.messages()] == [2]


def test_logical_messages_are_left_out() -> None:
    reader = Reader()
    message = heap_rows.build_change(
        change_format.MESSAGE, relation=0, new=struct.pack("<II", 1, 1) + b"pcontent"
    )
    reader.transaction([message], {})
    assert reader.messages() == []


def test_malformed_changes_are_located(pg15: Database) -> None:
    pg15.execute("CREATE TABLE t (id int, v text); INSERT INTO t VALUES (1, 'abc')")
    descriptor = described(pg15, "t")
    (section,) = heap_rows.sections(pg15, "t")
    reader = Reader()
    with pytest.raises(DecodingError) as error:
        reader.transaction(
            [heap_rows.build_change(INSERT, new=section[:-3], lsn=0x77)], {1: descriptor}
        )
    assert error.value.details["lsn"] == "0/77"
    assert error.value.details["relation"] == "public.t"
    with pytest.raises(DecodingError, match="did not come with it"):
        reader.transaction([heap_rows.build_change(INSERT, new=section)], {})
    not_utf8 = section[:-3] + b"\xff\xfe\xfd"
    with pytest.raises(ValueNotRepresentable, match="UTF-8"):
        reader.transaction([heap_rows.build_change(INSERT, new=not_utf8)], {1: descriptor})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_rows": "0"}, 'could not parse value "0" for parameter "batch_rows"'),
        ({"batch_bytes": "1MB"}, "batch_bytes"),
        ({"batch_bytes": str(1 << 40)}, "batch_bytes"),
        ({"numeric_as": "float"}, "numeric_as"),
        ({"temporal_as": ""}, "temporal_as"),
        ({"compression": "zstd"}, 'option "compression" = "zstd" is unknown'),
        ({"TimeZone": "Mars"}, "Mars"),
    ],
)
def test_options(options: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        ArrowPlugin(options, PluginContext("s", "d", 180000))
