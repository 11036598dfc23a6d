"""Lines of our test_decoding equal those of PostgreSQL's, for rows as a real server wrote them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from harness import heap_rows
from harness.cluster import Database
from harness.oracle import create_slot
from harness.plugin_output import encode
from spillway.decoding import change_format
from spillway.decoding.transaction import TransactionHeader, TransactionKind
from spillway.pg.encoding import server_encoding

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import Cluster


def version_of(db: Database) -> int:
    return int(db.value("SHOW server_version_num"))


TABLES = """
CREATE SCHEMA "Odd schema";
CREATE TYPE "Odd schema"."Odd type" AS ENUM ('a', 'b''c');
CREATE TYPE plain AS (a int, b text);
CREATE TABLE everything (
    i2 int2, i4 int4, i8 int8, o oid, f4 float4, f8 float8, n numeric(10, 2), b bool, bit bit(3),
        vb varbit,
    t text, vc varchar(20), c char(5), "char" "char", nm name, by bytea, j json, jb jsonb, x xml,
        u uuid,
    d date, tm time, tz timetz, ts timestamp, tstz timestamptz, iv interval, "Weird "" name" int,
    "select" int, "value" int, merge int, json int, "json_table" int, system_user_ int, ia int[],
        ta text[], odd "Odd schema"."Odd type",
    odds "Odd schema"."Odd type"[], p plain, ps plain[], m money, ip inet, r int4range,
        mr int4multirange
);
CREATE TABLE "Odd schema"."Odd table" (id int, ov oidvector, iv int2vector, pt point, pts point[],
    b box, nm name[], ovs oidvector[]);
CREATE TABLE wide (id int, t text, u text, v int DEFAULT 7);
ALTER TABLE wide ALTER t SET STORAGE EXTERNAL;
"""
ROWS = """
INSERT INTO everything VALUES (1, 2, 3, 4, 1.5, 2.25, 3.10, true, B'101', B'1', 'it''s', 'v', 'c',
    'x', 'name', '\\x00ff',
    '{"a": 1}', '{"a": [1, "it''s"]}', '<a/>', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '2024-02-29',
        '01:02:03.4', '01:02:03+01', '2024-01-01',
    '2024-01-01 00:00+00', '1 day', 1, 2, 3, 4, 5, 6, 7, '{1,NULL}', '{"a b",''c''}', 'b''c',
        '{a,"b''c"}', '(1,"it''s")', '{"(1,x)"}',
    12.5, '10.0.0.1/8', '[1,2]', '{[1,2)}');
INSERT INTO everything (i2, b) VALUES (NULL, false), (7, NULL);
INSERT INTO everything (f4, f8, n) VALUES ('NaN', '-Infinity', 'NaN');
INSERT INTO "Odd schema"."Odd table" VALUES (1, '1 2', '3 -4', '(1,2)', '{"(1,2)"}', '(1,2),(3,4)',
    '{a}', '{1 2}');
INSERT INTO wide SELECT 1, repeat('toast''ed ', 2000), string_agg(md5(g::text), '')
    FROM generate_series(1, 2000) g;
INSERT INTO wide SELECT 2, repeat('z', 5000), repeat('compressed inline', 300);
INSERT INTO wide SELECT 3, 'small', '';
"""


def test_inserts_equal_postgresqls(pg: Database) -> None:
    pg.execute(TABLES)
    slot = create_slot(pg, f"s_{pg.name[-8:]}")
    pg.execute(ROWS)
    expected = [c.data for c in slot.peek() if c.data.startswith("table")]
    relations, changes = {}, []
    for number, table in enumerate(("everything", '"Odd schema"."Odd table"', "wide"), start=1):
        relations[number] = heap_rows.relation_descriptor(pg, table)
        toast = heap_rows.toast_values(pg, relations[number])
        changes += [
            heap_rows.build_change(change_format.INSERT, relation=number, new=section, toast=toast)
            for section in heap_rows.sections(pg, table)
        ]
    lines = [m[2] for m in encode(changes, relations, version_of(pg))[1:-1]]
    assert lines == expected


def test_short_tuples_dropped_columns_and_unchanged_toast(pg: Database) -> None:
    pg.execute(
        "CREATE TABLE t (a int, gone text, b text, c int8, gone2 int8); ALTER TABLE t ALTER b SET "
        "STORAGE EXTERNAL;INSERT INTO t VALUES (1, 'gone', repeat('x', 9000), 5, 6), (2, NULL, "
        "'b', NULL, NULL);ALTER TABLE t DROP COLUMN gone; ALTER TABLE t DROP COLUMN gone2; ALTER "
        "TABLE t ADD COLUMN d text;"
    )
    descriptor = heap_rows.relation_descriptor(pg, "t")
    first, second = heap_rows.sections(pg, "t")
    lines = encode(
        [
            heap_rows.build_change(change_format.UPDATE, new=first, old=second),
            heap_rows.build_change(change_format.DELETE, old=second),
            heap_rows.build_change(change_format.DELETE),
            heap_rows.build_change(change_format.UPDATE),
            heap_rows.build_change(change_format.INSERT),
        ],
        {1: descriptor},
        version_of(pg),
    )
    assert [line[2] for line in lines] == [
        "BEGIN 742",
        (
            "table public.t: UPDATE: old-key: a[integer]:2 b[text]:'b'"
            " new-tuple: a[integer]:1 b[text]:unchanged-toast-datum c[bigint]:5 d[text]:null"
        ),
        "table public.t: DELETE: a[integer]:2 b[text]:'b'",
        "table public.t: DELETE: (no-tuple-data)",
        "table public.t: UPDATE: (no-tuple-data)",
        "table public.t: INSERT: (no-tuple-data)",
        "COMMIT 742",
    ]


def message(transactional: bool, prefix: bytes, content: bytes) -> bytes:
    return heap_rows.build_change(
        change_format.MESSAGE,
        relation=0,
        new=struct.pack("<II", transactional, len(prefix)) + prefix + content,
        lsn=0x200,
    )


def truncate(flags: int, *relations: int) -> bytes:
    return heap_rows.build_change(
        change_format.TRUNCATE,
        relation=0,
        new=struct.pack(f"<II{len(relations)}I", flags, len(relations), *relations),
        lsn=0x210,
    )


@pytest.mark.parametrize("version", [160000, 170000])
def test_options_change_what_frames_a_transaction(version: int) -> None:
    begin, commit = (0x100, 742, "BEGIN 742"), (0x330, 742, "COMMIT 742")
    text = (0x200, 742, "message: transactional: 1 prefix: p, sz: 2 content:hi")
    changes = [message(True, b"p", b"hi")]
    assert encode(changes, {}, version) == [begin, text, commit]
    skipping = encode(changes, {}, version, {"skip-empty-xacts": "on"})
    # A message is a change that makes a transaction worth its BEGIN from 17 on.
    assert skipping == ([text] if version < 170000 else [(0x200, 742, "BEGIN 742"), text, commit])
    assert encode([], {}, version) == [begin, commit]
    assert encode([], {}, version, {"skip-empty-xacts": "1"}) == []
    assert encode([], {}, version, {"include-xids": "f", "include-timestamp": "t"}) == [
        (0x100, 742, "BEGIN"),
        (0x330, 742, "COMMIT (at 2025-09-28 03:34:38.9+00)"),
    ]


def test_a_message_outside_of_transactions_stands_alone() -> None:
    header = TransactionHeader(0, 0x200, 0x1D0, 0x200, 0, kind=TransactionKind.MESSAGE)
    assert encode([message(False, b"p", b"hi")], {}, 180000, {"skip-empty-xacts": "1"}, header) == [
        (0x200, 0, "message: transactional: 0 prefix: p, sz: 2 content:hi")
    ]


def test_only_local_leaves_out_what_came_by_replication() -> None:
    header = TransactionHeader(5, 1, 2, 3, 0, origin_id=2)
    assert encode([message(True, b"", b"")], {}, 180000, {"only-local": "1"}, header) == []
    assert len(encode([message(True, b"", b"")], {}, 180000, {}, header)) == 3


def test_truncate_names_its_relations(pg18: Database) -> None:
    pg18.execute('CREATE TABLE t (a int); CREATE TABLE "T 2" (a int)')
    relations = {
        3: heap_rows.relation_descriptor(pg18, "t"),
        67: heap_rows.relation_descriptor(pg18, '"T 2"'),
    }
    lines = encode(
        [truncate(0, 3), truncate(1, 3, 67), truncate(2, 67), truncate(3, 67, 3)], relations, 180000
    )
    assert [line[2] for line in lines[1:-1]] == [
        "table public.t: TRUNCATE: (no-flags)",
        'table public.t, public."T 2": TRUNCATE: cascade',
        'table public."T 2": TRUNCATE: restart_seqs',
        'table public."T 2", public.t: TRUNCATE: restart_seqs cascade',
    ]


@pytest.mark.parametrize("encoding", ["LATIN1", "EUC_JP"])
def test_lines_of_a_database_in_another_encoding_are_utf8(
    session_cluster: Callable[[int], Cluster], encoding: str
) -> None:
    cluster = session_cluster(18)
    name = f"encoding_{encoding.lower()}"
    cluster.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    database = Database(cluster, name)
    word = {"LATIN1": "Grüße", "EUC_JP": "日本語"}[encoding]
    try:
        with heap_rows.session(database) as session:
            session.execute(
                f"CREATE TYPE t AS ENUM ('{word}'); CREATE TABLE {word} ({word} text, e t, j "
                "jsonb, x xml, v tsvector, a text[], n name)"
            )
            slot = create_slot(database, name)
            session.execute(
                f"INSERT INTO {word} VALUES ('{word}''s', '{word}', '{{\"{word}\": [1]}}', "
                f"'<a>{word}</a>', '{word}', '{{\"{word} x\"}}', '{word}')"
            )
            expected = [c.data for c in slot.peek() if c.data.startswith("table")]
            descriptor = heap_rows.relation_descriptor(session, word)
            (section,) = heap_rows.sections(session, word)
        change = heap_rows.build_change(change_format.INSERT, new=section)
        codec = server_encoding(encoding).codec
        lines = encode([change], {1: descriptor}, 180000, encoding=codec)
        assert [line[2] for line in lines[1:-1]] == expected
        assert word in expected[0]
    finally:
        cluster.drop_database(name)
