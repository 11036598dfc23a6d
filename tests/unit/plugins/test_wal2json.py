"""wal2json on changes made by hand: what no server of the oracle tests shows."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from harness import heap_rows
from harness.plugin_output import HEADER, messages
from spillway._kernels.encoders.wal2json.encoder import Format1Encoder
from spillway._kernels.messages.buffer import MessageBuffer
from spillway.catalog.descriptor import ColumnDescriptor, RelationDescriptor
from spillway.decoding import change_format
from spillway.decoding.transaction import TransactionHeader, TransactionKind
from spillway.errors import DecodingError
from spillway.pg.text_settings import TextSettings
from spillway.plugins.interface import PluginContext
from spillway.plugins.registry import create_plugin
from spillway.plugins.wal2json_options import Wal2JsonOptions

TABLE = RelationDescriptor(
    16384, "public", "t", "r", "p", "d",
    (ColumnDescriptor(1, "id", 23, -1, 4, True, "i"),
     ColumnDescriptor(2, "n", 700, -1, 4, True, "i")),
    primary_key=(1,), identity_columns=(1,),
)  # fmt: skip
MESSAGE_HEADER = TransactionHeader(0, 0x210, 0x200, 0x210, 0, kind=TransactionKind.MESSAGE)


def row(number: int, value: float) -> bytes:
    return struct.pack("<HHB3xx", 2, 0, 24) + struct.pack("<if", number, value)


def insert(number: int = 1, value: float = 1.5) -> bytes:
    return heap_rows.build_change(change_format.INSERT, new=row(number, value), lsn=0x110)


def message(transactional: bool, content: bytes) -> bytes:
    new = struct.pack("<II", transactional, 1) + b"p" + content
    return heap_rows.build_change(change_format.MESSAGE, relation=0, new=new, lsn=0x200)


def encode(
    transactions: list[tuple[TransactionHeader, list[bytes]]],
    options: dict[str, str] | None = None,
    table: RelationDescriptor = TABLE,
    version: int = 150000,
    encoding: str = "utf-8",
) -> list[tuple[int, int, str]]:
    plugin = create_plugin("wal2json", options or {}, PluginContext("s", "d", version, encoding))
    out = MessageBuffer()
    for header, changes in transactions:
        plugin.begin(header, out)
        for change in changes:
            plugin.changes(header, memoryview(change), {1: table}, out)
        plugin.commit(header, out)
    return messages(out.take())


def texts(*arguments: object, **named: object) -> list[str]:
    return [line[2] for line in encode(*arguments, **named)]  # type: ignore[arg-type]


def test_a_transaction_outlives_what_the_reader_takes_in_between() -> None:
    plugin = create_plugin("wal2json", {}, PluginContext("s", "d", 150000))
    out = MessageBuffer()
    plugin.begin(HEADER, out)
    for number in range(2):
        plugin.changes(HEADER, memoryview(insert(number)), {1: TABLE}, out)
        assert out.take().count == 0
    plugin.commit(HEADER, out)
    ((lsn, xid, text),) = messages(out.take())
    assert (lsn, xid) == (HEADER.end_lsn, HEADER.xid)
    assert text.count('"kind":"insert"') == 2


def test_a_transaction_that_was_broken_off_leaves_nothing_behind() -> None:
    plugin = create_plugin("wal2json", {}, PluginContext("s", "d", 150000))
    out = MessageBuffer()
    plugin.begin(HEADER, out)
    plugin.changes(HEADER, memoryview(insert()), {1: TABLE}, out)
    plugin.begin(HEADER, out)
    plugin.commit(HEADER, out)
    assert [line[2] for line in messages(out.take())] == ['{"change":[]}']


def test_the_releases_differ_in_a_comma() -> None:
    transactions = [(HEADER, [insert(1), insert(2)]), (MESSAGE_HEADER, [message(False, b"x")])]
    old, new = (texts(transactions, {"wal2json-version": v})[1] for v in ("2.5", "2.6"))
    assert old == (
        '{"change":[,{"kind":"message","transactional":false,"prefix":"p","content":"x"}]}'
    )
    assert new == old.replace("[,", "[")
    assert texts(transactions)[1] == old


def test_the_releases_differ_in_the_primary_key_of_another_identity() -> None:
    full = replace(TABLE, replica_identity="f", identity_columns=(1, 2))
    old, new = (
        texts([(HEADER, [insert()])], {"include-pk": "1", "wal2json-version": v}, full)[0]
        for v in ("2.5", "2.6")
    )
    assert '"pk"' not in old
    assert new == old.replace("]}]}", '],"pk":{"pknames":["id"],"pktypes":["integer"]}}]}')


@pytest.mark.parametrize(("version", "shown"), [(160000, False), (170000, True)])
def test_a_deferrable_primary_key_is_one_since_17(version: int, shown: bool) -> None:
    table = replace(
        TABLE, replica_identity="f", identity_columns=(1, 2), primary_key_deferrable=True
    )
    options = {"format-version": "2", "include-pk": "1", "include-transaction": "0"}
    (text,) = texts([(HEADER, [insert()])], options, table, version)
    assert text.endswith(
        ',"pk":[{"name":"id","type":"integer"}]}' if shown else ',"pk":[]}'
    )  # fmt: skip


def test_numbers_as_strings() -> None:
    for format_version, of_nan in (("1", '"columnvalues":["1","NaN"]'), ("2", '"value":"NaN"')):
        options = {"format-version": format_version, "numeric-data-types-as-string": "1"}
        assert of_nan in "".join(texts([(HEADER, [insert(1, float("nan"))])], options))


def test_a_transaction_from_a_filtered_origin() -> None:
    header = HEADER._replace(origin_id=3)
    lone = MESSAGE_HEADER._replace(origin_id=3)
    transactions = [(header, [insert()]), (lone, [message(False, b"x")])]
    assert encode(transactions, {"filter-origins": "2, 3"}) == []
    assert len(encode(transactions, {"filter-origins": "2"})) == 2


def test_messages_are_converted_from_the_databases_encoding() -> None:
    changes = [message(True, b"caf\xe9 \x00 rest")]
    for options in ({}, {"write-in-chunks": "1"}, {"format-version": "2"}):
        lines = texts([(HEADER, changes)], options, encoding="latin-1")
        assert '"content":"café "' in "".join(lines)


def test_rows_that_the_original_only_warns_of() -> None:
    keyless = replace(TABLE, primary_key=(), identity_columns=())
    changes = [
        heap_rows.build_change(change_format.UPDATE, new=row(1, 1), lsn=0x110),
        heap_rows.build_change(change_format.DELETE, lsn=0x110),
        heap_rows.build_change(change_format.INSERT, lsn=0x110),
    ]
    assert texts([(HEADER, changes)], table=keyless) == ['{"change":[]}']
    options = {"format-version": "2", "include-transaction": "0"}
    assert texts([(HEADER, changes)], options, keyless) == []
    # A delete without its old row, of a table that has an identity: only format 2 shows that.
    assert texts([(HEADER, changes[1:])]) == ['{"change":[]}']
    options["include-pk"] = "1"
    assert texts([(HEADER, changes[1:])], options) == [
        '{"action":"D","schema":"public","table":"t","pk":[]}'
    ]


def test_invalidations_are_passed_over() -> None:
    change = heap_rows.build_change(
        change_format.INVALIDATION, relation=0, new=struct.pack("<QQ", 1, 0)
    )
    assert texts([(HEADER, [change])]) == ['{"change":[]}']


@pytest.mark.parametrize("options", [{}, {"write-in-chunks": "1"}, {"format-version": "2"}])
@pytest.mark.parametrize(
    "change",
    [
        heap_rows.build_change(change_format.INSERT, new=row(1, 1)[:-5], lsn=0x110),
        heap_rows.build_change(change_format.INSERT, relation=9, new=row(1, 1), lsn=0x110),
        heap_rows.build_change(change_format.MESSAGE, relation=0, new=b"\x01\0\0\0\x09\0\0\0p",
                               lsn=0x110),
        heap_rows.build_change(99, new=row(1, 1), lsn=0x110),
    ],
)  # fmt: skip
def test_damage_is_an_error_that_says_where(options: dict[str, str], change: bytes) -> None:
    with pytest.raises(DecodingError, match="change at 0/110"):
        encode([(HEADER, [change])], options)


def test_a_truncation_that_lies() -> None:
    new = struct.pack("<III", 0, 7, 1)
    change = heap_rows.build_change(change_format.TRUNCATE, relation=0, new=new, lsn=0x110)
    assert texts([(HEADER, [change])]) == ['{"change":[]}']
    with pytest.raises(DecodingError, match="fewer relations"):
        encode([(HEADER, [change])], {"format-version": "2"})


def test_a_transaction_in_one_piece_has_a_bound() -> None:
    options = Wal2JsonOptions()
    encoder = Format1Encoder(TextSettings(150000), options, transaction_bytes_max=1000)
    out = MessageBuffer()
    encoder.begin(7)
    encoder.changes(memoryview(insert() * 3), {1: TABLE}, out)
    with pytest.raises(DecodingError, match="more than 1000 bytes") as raised:
        encoder.changes(memoryview(insert() * 10), {1: TABLE}, out)
    assert "write-in-chunks" in raised.value.hint
