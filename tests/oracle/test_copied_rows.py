"""A row that is copied is the row that the slot delivers: the same Arrow type and the same value,
of every type.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from harness.service import service_in_process
from harness.sql_ascii import in_sql_ascii, write_bytes
from harness.type_values import SETUP, cases
from spillway.consumer.grpc_slot import GrpcSlotClient
from spillway.consumer.snapshots import Source
from spillway.errors import TableNotReadable, ValueNotRepresentable
from spillway.lake.load.copy_ranges import CopyRanges
from spillway.lake.shape.payload import conform, lake_schema, parse_message, relation_of
from spillway.pg.lsn import Lsn
from spillway.receiver.table_privileges import check_readable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from harness.cluster import Database
    from spillway.consumer.table_copy import BlockRange

#: The plugin's own columns, where a row came from, differ.
OWN = ("_op", "_lsn", "_commit_lsn", "_commit_end_lsn", "_xid", "_seq", "_commit_time")
#: Values whose type has an Arrow form and which themselves have none.
NO_ARROW_FORM = ("inf", "NaN", "24:00:00", "294276-12-31", "BC", "5874897")
AS_TEXT = {"numeric_as": "text", "temporal_as": "text"}
OPTIONS = {
    "native": {},
    "text": AS_TEXT,
    "settings": AS_TEXT
    | {
        "TimeZone": "America/New_York",
        "DateStyle": "SQL, DMY",
        "IntervalStyle": "iso_8601",
        "bytea_output": "escape",
        "extra_float_digits": "0",
    },
}


def copied(
    source: Source, tables: Sequence[str], ranges: Sequence[BlockRange] = ((0, None),)
) -> dict[str, pa.Table]:
    """Copy tables under one snapshot, as executors do."""
    snapshot = source.snapshot(source.tables(tables), lambda _: None, threading.Event())
    try:
        found = {}
        for name, table in snapshot.tables.items():
            schema = lake_schema(table.plan.schema)
            copy = CopyRanges(source, snapshot, table, schema, ranges)
            assert "password" not in repr(copy)
            numbers = pa.record_batch({"id": pa.array(range(len(ranges)), pa.int64())})
            found[name] = pa.Table.from_batches(copy([numbers]), schema=schema)
    finally:
        snapshot.close()
    return found


def delivered(address: str, slot: str) -> dict[str, pa.Table]:
    """Return what the slot has of each table."""
    client = GrpcSlotClient(address, "")
    found: dict[str, list[pa.RecordBatch]] = {}
    for body in client.read(slot, 0, client.position(slot).decoded_lsn):
        message = parse_message(body)
        schema = lake_schema(message.batch.schema)
        found.setdefault(message.relation.name, []).append(conform(message.batch, schema))
    return {name: pa.Table.from_batches(batches) for name, batches in found.items()}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_every_type(pg: Database, tmp_path: Path, options: Mapping[str, str]) -> None:
    pg.execute(SETUP)
    version = int(pg.value("SHOW server_version_num"))
    types = cases(version) | {
        "numeric(38,10)": [
            "0",
            "-1.5",
            "9999999999999999999999999999.9999999999",
            "10000",
            "0.0000000001",
        ],
        "numeric(4,4)": ["0.1234", "-0.0001", "0"],
        "price": ["1.5", "-99999.999"],
    }
    pg.execute("CREATE DOMAIN amount AS numeric(8, 3); CREATE DOMAIN price AS amount")
    native = not options
    with service_in_process(tmp_path) as service:
        service.create_source(pg.dsn)
        service.create_slot("s", pg.name, "arrow", options=options)
        with pg.connect() as connection, connection.cursor() as cursor:
            for number, (type_name, values) in enumerate(types.items()):
                cursor.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, v {type_name})")
                wanted = [
                    v for v in values if not native or not any(n in str(v) for n in NO_ARROW_FORM)
                ]
                cursor.executemany(
                    f"INSERT INTO t{number} VALUES (%s, %s::{type_name})",
                    [*enumerate(map(str, wanted)), (len(wanted), None)],
                )
        service.wait_decoded("s", pg)
        theirs = delivered(service.grpc_address, "s")
        position = GrpcSlotClient(service.grpc_address, "").position("s")
        assert position.options == options
        ours = copied(Source(pg.dsn, position.options), sorted(theirs))
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")
    assert len(theirs) == len(types)
    names = list(types)
    for table, of_slot in theirs.items():
        type_name = names[int(table.removeprefix("public.t"))]
        of_copy = ours[table]
        assert of_copy.schema.equals(of_slot.schema), type_name
        assert of_copy.num_rows == of_slot.num_rows, type_name
        v_of_copy, v_of_slot = of_copy["v"], of_slot["v"]
        if pa.types.is_floating(of_copy.schema.field("v").type):
            assert str(v_of_copy.to_pylist()) == str(v_of_slot.to_pylist())  # NaN equals nothing
        else:
            assert v_of_copy.equals(v_of_slot), (type_name, v_of_copy, v_of_slot)
        assert of_copy["id"].equals(of_slot["id"])
        assert set(of_copy["_op"].to_pylist()) <= {"R"}


def test_shapes_of_tables(pg: Database, tmp_path: Path) -> None:
    """What a message says of its table, a copy says too: columns and their numbers, keys, names
    that are escaped.
    """
    pg.execute(
        "CREATE TABLE plain (a int, b text); CREATE TABLE keyed (gone int, k varchar(7), _op text, "
        "a int NOT NULL,"
        ' "Odd, na\'me" timestamptz(3)[], g int GENERATED ALWAYS AS (a + 1) STORED, PRIMARY KEY '
        "(a, k));"
        "CREATE TABLE whole (a int, d numeric(5,2)); CREATE TABLE by_index (a int NOT NULL, b int "
        "NOT NULL);CREATE UNIQUE INDEX pairs ON by_index (b); CREATE TABLE none (id int PRIMARY "
        "KEY);"
        'CREATE TABLE later (id int PRIMARY KEY DEFERRABLE, v int); CREATE SCHEMA "S.s";'
        'CREATE TABLE "S.s"."T t" (id int PRIMARY KEY);'
        "ALTER TABLE keyed DROP COLUMN gone; ALTER TABLE whole REPLICA IDENTITY FULL;"
        "ALTER TABLE by_index REPLICA IDENTITY USING INDEX pairs; ALTER TABLE none REPLICA "
        "IDENTITY NOTHING"
    )
    with service_in_process(tmp_path) as service:
        service.create_source(pg.dsn)
        service.create_slot("s", pg.name, "arrow")
        pg.execute(
            "INSERT INTO plain VALUES (1, 'x'); INSERT INTO keyed (k, _op, a) VALUES ('k', 'o', 3);"
            "INSERT INTO whole VALUES (1, 2); INSERT INTO by_index VALUES (1, 2); INSERT INTO none "
            "VALUES (1);"
            'INSERT INTO later VALUES (1, 2); INSERT INTO "S.s"."T t" VALUES (5)'
        )
        service.wait_decoded("s", pg)
        client = GrpcSlotClient(service.grpc_address, "")
        schemas = {
            relation_of(schema).name: schema
            for body in client.read("s", 0, client.position("s").decoded_lsn)
            for schema in [parse_message(body).batch.schema]
        }
        source = Source(pg.dsn, {})
        assert sorted(t.name for t in source.tables(())) == sorted(schemas)
        snapshot = source.snapshot(source.tables(()), lambda _: None, threading.Event())
        described = {name: table.plan.schema for name, table in snapshot.tables.items()}
        assert snapshot.lsn >= Lsn.parse(service.slot("s")["confirmed_flush_lsn"])
        snapshot.close()
        rows = copied(source, sorted(schemas))
        theirs = delivered(service.grpc_address, "s")
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")
    for name, schema in schemas.items():
        assert described[name].equals(schema, check_metadata=True), name
        assert json.loads(described[name].metadata[b"spillway.relation"])
        own = [c for c in theirs[name].column_names if c not in OWN]
        assert rows[name].select(own).to_pylist() == [
            row | {"_old_key": None} if "_old_key" in own else row
            for row in theirs[name].select(own).to_pylist()
        ]


def test_ranges_are_the_table_once(pg: Database) -> None:
    pg.execute(
        "CREATE TABLE t (id int PRIMARY KEY, pad text);"
        "INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1, 2000) g; DELETE FROM t "
        "WHERE id % 7 = 0"
    )
    source = Source(pg.dsn, {})
    whole = copied(source, ["public.t"])["public.t"]
    parts = copied(source, ["public.t"], [(0, 10), (10, 11), (11, 100), (100, None)])["public.t"]
    ids = [i for i in range(1, 2001) if i % 7]
    assert whole["id"].to_pylist() == parts["id"].to_pylist() == ids
    places = whole["_seq"].to_pylist()
    assert places == sorted(set(places))
    assert places[0] == 1
    assert copied(source, ["public.t"], [(5000, None)])["public.t"].num_rows == 0


def test_values_that_arrow_cannot_hold_are_errors(pg15: Database) -> None:
    pg15.execute(
        "CREATE TABLE bad (id int, \"Odd v\" date); INSERT INTO bad VALUES (1, 'infinity')"
    )
    with pytest.raises(ValueNotRepresentable, match=r"public.bad: column Odd v: infinity") as error:
        copied(Source(pg15.dsn, {}), ["public.bad"])
    assert "temporal_as=text" in error.value.hint
    text = copied(Source(pg15.dsn, {"temporal_as": "text"}), ["public.bad"])["public.bad"]
    assert text["Odd v"].to_pylist() == ["infinity"]


ODD_NAMES = (
    b"CREATE TYPE \"m\xfc\" AS ENUM ('gr\xfcn', 'blau');"
    b'CREATE TYPE pair AS ("l\xfc" text, r int); CREATE SCHEMA "s\xfc";'
    b"CREATE TABLE plain (id int PRIMARY KEY, v text);"
    b'CREATE TABLE "s\xfc"."t\xe9""" ("k\xfc" text PRIMARY KEY, v varchar(9), c char(4), a text[],'
    b' j jsonb, m "m\xfc", p pair)'
)
ODD_VALUES = (
    b"INSERT INTO plain VALUES (1, 'gr\xc3\xbcn');"
    b'INSERT INTO "s\xfc"."t\xe9""" VALUES'
    b" ('\xfc\xc3\xbc\xe2\x82', '\xff', '\xe9', ARRAY['\xfe\xc3\xbc', NULL],"
    b" '{\"k\xfc\": \"\xe9\"}', 'gr\xfcn', ('\xfc', 1)),"
    b" ('plain', NULL, 'x', '{}', '1', 'blau', NULL)"
)


def test_bytes_that_are_no_characters(pg: Database, tmp_path: Path) -> None:
    """Values and names in SQL_ASCII, which a session in UTF8 is refused."""
    odd = 's\\xfc.t\\xe9"'
    with in_sql_ascii(pg, ODD_NAMES) as bare, service_in_process(tmp_path) as service:
        service.create_source(bare.dsn)
        service.create_slot("s", bare.name, "arrow", options={"not_utf8": "escape"})
        write_bytes(bare, ODD_VALUES)
        # In the same cluster, where texts are read as such.
        service.wait_decoded("s", pg)
        theirs = delivered(service.grpc_address, "s")
        options = GrpcSlotClient(service.grpc_address, "").position("s").options
        ours = copied(Source(bare.dsn, options), ())
        check_readable(bare.dsn, None)
        # Without that option each such byte is an error of its own table.
        strict = Source(bare.dsn, {})
        assert copied(strict, ["public.plain"])["public.plain"]["v"].to_pylist() == ["grün"]
        with pytest.raises(ValueNotRepresentable, match="not UTF-8") as refused:
            copied(strict, [odd])
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")
    assert sorted(ours) == sorted(theirs) == ["public.plain", odd]
    for name, of_slot in theirs.items():
        assert ours[name].schema.equals(of_slot.schema, check_metadata=True)
        own = [c for c in of_slot.column_names if c not in OWN]
        assert ours[name].select(own).to_pylist() == of_slot.select(own).to_pylist()
    assert ours[odd]["k\\xfc"].to_pylist() == ["\\xfcü\\xe2\\x82", "plain"]
    assert refused.value.message.startswith(f"table {odd}: column ")
    assert "not_utf8=escape" in refused.value.hint


def test_a_table_named_by_bytes_may_not_be_read(pg15: Database) -> None:
    with in_sql_ascii(pg15, b'CREATE TABLE "t\xfc" (id int)') as bare:
        pg15.cluster.execute("CREATE ROLE reader_of_bytes LOGIN")
        try:
            dsn = f"{bare.dsn} user=reader_of_bytes"
            with pytest.raises(TableNotReadable, match=r"public\.t\\xfc") as refused:
                check_readable(dsn, None)
            script, told = refused.value.hint.split("; ")
            assert told == "Write each \\x.. of a name as the byte that it stands for."
            write_bytes(bare, script.encode().replace(b"\\xfc", b"\xfc"))
            check_readable(dsn, None)
        finally:
            write_bytes(bare, b"DROP OWNED BY reader_of_bytes")
            pg15.cluster.execute("DROP ROLE reader_of_bytes")
