"""pgoutput message by message, without a server: what frames transactions, parts of them and
prepared ones.
"""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from harness.remedies import remedy
from spillway._kernels.messages.buffer import MessageBuffer
from spillway.catalog.descriptor import (
    ColumnDescriptor,
    Memberships,
    PublicationOptions,
    RelationDescriptor,
    TableMembership,
    TypeDescriptor,
)
from spillway.decoding import change_format
from spillway.decoding.transaction import Prepared, Streamed, TransactionHeader, TransactionKind
from spillway.errors import ConflictingPublications, DecodingError, UnknownPublication
from spillway.plugins.interface import PluginContext
from spillway.plugins.pgoutput import Pgoutput

HEADER = TransactionHeader(700, 0x100, 0x300, 0x330, 42)
PREPARED = Prepared("gid", 0x280, 0x290, 41)
TABLE = RelationDescriptor(
    16400, "public", "t", "r", "p", "d",
    (ColumnDescriptor(1, "id", 23, -1, 4, True, "i"),),
    identity_columns=(1,),
    database_publications=(PublicationOptions(16500, "p"),),
    memberships=(Memberships(16400, 2200, (TableMembership(16500),)),),
)  # fmt: skip
RELATION = b"R\0\0\x40\x10public\0td\0\1\1id\0\0\0\0\x17\xff\xff\xff\xff".replace(b"td", b"t\0d")
OPTIONS = {"proto_version": "4", "publication_names": "p"}


def change(
    action: int,
    section: bytes,
    *,
    lsn: int = 0x200,
    xid: int = 700,
    flags: int = 0,
    relation: int = 1,
) -> bytes:
    padded = section + bytes(-len(section) % 8)
    size = change_format.HEADER_SIZE + len(padded)
    flags |= change_format.HAS_NEW
    return (
        struct.pack("<IBBHIIQII", size, action, flags, 0, relation, xid, lsn, len(section), 0)
        + padded
    )


def insert(value: int, **more: int) -> bytes:
    return change(change_format.INSERT, struct.pack("<HHBBHBi", 1, 0, 24, 0, 0, 0, value), **more)


def invalidation(*oids: int) -> bytes:
    section = struct.pack(f"<Q{len(oids)}Q", len(oids), *oids)
    return change(change_format.INVALIDATION, section, relation=0)


def message(text: bytes, *, transactional: bool, **more: int) -> bytes:
    section = struct.pack("<II", transactional, 1) + b"m" + text
    return change(change_format.MESSAGE, section, relation=0, **more)


def row(value: int, xid: bytes = b"") -> bytes:
    text = str(value).encode()
    return b"I" + xid + struct.pack(">I", 16400) + b"N\0\1t" + struct.pack(">I", len(text)) + text


class Reader:
    """Calls a plugin and collects its messages."""

    def __init__(
        self, options: dict[str, str] | None = None, version: int = 180000, **context: object
    ) -> None:
        merged = OPTIONS | (options or {})
        self.plugin = Pgoutput(merged, PluginContext("s", "d", version, **context))  # type: ignore[arg-type]
        self.out = MessageBuffer()
        self.relations = {1: TABLE}

    def call(self, name: str, header: TransactionHeader) -> None:
        getattr(self.plugin, name)(header, self.out)

    def changes(self, *changes: bytes, header: TransactionHeader = HEADER) -> None:
        self.plugin.changes(header, memoryview(b"".join(changes)), self.relations, self.out)

    def transaction(self, *changes: bytes, header: TransactionHeader = HEADER) -> list[bytes]:
        self.call("begin", header)
        self.changes(*changes, header=header)
        self.call("commit", header)
        return self.data()

    def part(self, number: int, *changes: bytes, header: TransactionHeader = HEADER) -> list[bytes]:
        streamed = Streamed(number, last_lsn=0x2F0)
        header = header._replace(kind=TransactionKind.STREAM, streamed=streamed)
        self.call("stream_start", header)
        self.changes(*changes, header=header)
        self.call("stream_stop", header)
        return self.data()

    def rows(self) -> list[tuple[int, int, bytes]]:
        batch = self.out.take()
        lengths = struct.unpack(f"<{batch.count}I", batch.lengths)
        lsns = struct.unpack(f"<{batch.count}Q", batch.lsns)
        xids = struct.unpack(f"<{batch.count}I", batch.xids)
        rows, at = [], 0
        for length, lsn, xid in zip(lengths, lsns, xids, strict=True):
            rows.append((lsn, xid, bytes(batch.payload[at : at + length])))
            at += length
        return rows

    def data(self) -> list[bytes]:
        return [data for _, _, data in self.rows()]


def kinds(messages: list[bytes]) -> str:
    return b"".join(m[:1] for m in messages).decode()


def test_a_transaction_is_opened_by_its_first_published_change() -> None:
    reader = Reader()
    reader.call("begin", HEADER)
    assert reader.rows() == []
    reader.changes(insert(1), insert(2, lsn=0x210))
    begin = b"B" + struct.pack(">QqI", 0x300, 42, 700)
    assert reader.rows() == [
        (0x200, 700, begin), (0x200, 700, RELATION), (0x200, 700, row(1)), (0x210, 700, row(2)),
    ]  # fmt: skip
    reader.call("commit", HEADER)
    assert reader.rows() == [(0x330, 700, b"C\0" + struct.pack(">QQq", 0x300, 0x330, 42))]
    assert reader.transaction(insert(3))[1] == row(3)


def test_version_14_frames_every_transaction() -> None:
    assert Reader().transaction(invalidation(0)) == []
    reader = Reader({"proto_version": "1"}, version=140000)
    reader.call("begin", HEADER)
    assert [lsn for lsn, _, _ in reader.rows()] == [0x100]
    reader.call("commit", HEADER)
    assert kinds(reader.data()) == "C"


def test_an_invalidation_has_the_table_announced_again() -> None:
    reader = Reader()
    assert (
        kinds(reader.transaction(insert(1), invalidation(16400), insert(2), insert(3))) == "BRIRIIC"
    )
    assert kinds(reader.transaction(invalidation(16401), insert(1))) == "BIC"
    assert kinds(reader.transaction(invalidation(1, 0), insert(1))) == "BRIC"
    # What is left out for its origin invalidates all the same.
    reader = Reader({"origin": "none"})
    reader.transaction(insert(1))
    assert (
        reader.transaction(insert(2), invalidation(16400), header=HEADER._replace(origin_id=3))
        == []
    )
    assert kinds(reader.transaction(insert(1))) == "BRIC"


def test_origins() -> None:
    header = HEADER._replace(origin_id=3, origin_lsn=0x77, origin_name="far")
    origin = b"O" + struct.pack(">Q", 0x77) + b"far\0"
    assert Reader().transaction(insert(1), header=header)[1] == origin
    # One that was dropped since has no name.
    assert kinds(Reader().transaction(insert(1), header=header._replace(origin_name=""))) == "BRIC"
    local = Reader({"origin": "none"})
    assert local.transaction(insert(1), header=header) == []
    mixed = local.transaction(insert(1, flags=change_format.FROM_ORIGIN), insert(2))
    assert mixed[2:3] == [row(2)]


def test_messages() -> None:
    assert Reader().transaction(message(b"hi", transactional=True)) == []
    reader = Reader({"messages": "on"})
    body = b"m\0" + struct.pack(">I", 2) + b"hi"
    inside = reader.transaction(message(b"hi", transactional=True))
    assert inside[1] == b"M\1" + struct.pack(">Q", 0x200) + body
    alone = HEADER._replace(xid=0, kind=TransactionKind.MESSAGE)
    assert reader.transaction(message(b"hi", transactional=False), header=alone) == [
        b"M\0" + struct.pack(">Q", 0x200) + body
    ]


def test_prepared_transactions() -> None:
    reader = Reader({"two_phase": "on"})
    assert reader.plugin.two_phase
    assert Reader(two_phase=True).plugin.two_phase
    assert not Reader({"proto_version": "2"}, version=140000, two_phase=True).plugin.two_phase
    prepare = HEADER._replace(final_lsn=0x280, end_lsn=0x290, commit_time=41,
                              kind=TransactionKind.PREPARE, prepared=PREPARED
    )  # fmt: skip
    reader.call("begin_prepare", prepare)
    reader.changes(insert(1), header=prepare)
    reader.call("prepare", prepare)
    facts = struct.pack(">QQqI", 0x280, 0x290, 41, 700) + b"gid\0"
    assert reader.rows() == [
        (0x100, 700, b"b" + facts), (0x200, 700, RELATION), (0x200, 700, row(1)),
        (0x290, 700, b"P\0" + facts),
    ]  # fmt: skip
    end = HEADER._replace(kind=TransactionKind.COMMIT_PREPARED, prepared=PREPARED)
    reader.call("commit_prepared", end)
    reader.call("rollback_prepared", end)
    assert reader.rows() == [
        (0x330, 700, b"K\0" + struct.pack(">QQqI", 0x300, 0x330, 42, 700) + b"gid\0"),
        (0x330, 700, b"r\0" + struct.pack(">QQqqI", 0x290, 0x330, 41, 42, 700) + b"gid\0"),
    ]


def test_a_part_says_whose_its_changes_are() -> None:
    reader = Reader({"streaming": "on"})
    assert reader.plugin.streaming
    part = reader.part(1, insert(1, xid=700), insert(2, xid=701))
    top, sub = struct.pack(">I", 700), struct.pack(">I", 701)
    announced = RELATION[:1] + top + RELATION[1:]
    assert part == [b"S" + top + b"\1", announced, row(1, top), row(2, sub), b"E"]
    assert reader.part(2, insert(3))[0] == b"S" + top + b"\0"


def test_what_a_streamed_transaction_announced_is_known_in_it_until_it_commits() -> None:
    reader = Reader({"streaming": "parallel"})
    other = HEADER._replace(xid=800)
    assert kinds(reader.part(1, insert(1))) == "SRIE"
    assert kinds(reader.part(1, insert(1), header=other)) == "SRIE"
    assert kinds(reader.part(2, insert(1))) == "SIE"
    assert kinds(reader.transaction(insert(1), header=HEADER._replace(xid=900))) == "BRIC"
    # A subtransaction's abort takes the announcements of all of it.
    aborted = Streamed(2, last_lsn=0x2F0, aborted_xid=701)
    reader.call(
        "stream_abort", HEADER._replace(kind=TransactionKind.STREAM_ABORT, streamed=aborted)
    )
    assert reader.rows() == [(0x330, 701, b"A" + struct.pack(">IIQq", 700, 701, 0x330, 42))]
    assert kinds(reader.part(3, insert(1))) == "SRIE"
    assert kinds(reader.part(4, invalidation(16400), insert(1))) == "SRIE"
    reader.call("stream_commit", HEADER)
    assert reader.rows() == [(0x330, 700, b"c" + struct.pack(">IBQQq", 700, 0, 0x300, 0x330, 42))]
    assert kinds(reader.transaction(insert(1), header=HEADER._replace(xid=901))) == "BIC"


def test_an_abort_has_no_position_for_who_does_not_apply_in_parallel() -> None:
    reader = Reader({"streaming": "on"})
    aborted = Streamed(1, last_lsn=0x2F0, aborted_xid=700)
    reader.call(
        "stream_abort", HEADER._replace(kind=TransactionKind.STREAM_ABORT, streamed=aborted)
    )
    assert reader.data() == [b"A" + struct.pack(">II", 700, 700)]


def test_a_streamed_transaction_is_prepared() -> None:
    reader = Reader({"streaming": "on", "two_phase": "on"})
    header = HEADER._replace(final_lsn=0x280, end_lsn=0x290, commit_time=41, prepared=PREPARED)
    reader.call("stream_prepare", header)
    assert reader.data() == [b"p\0" + struct.pack(">QQqI", 0x280, 0x290, 41, 700) + b"gid\0"]


def test_a_missing_publication(caplog: pytest.LogCaptureFixture) -> None:
    reader = Reader({"publication_names": "p,q"}, version=170000)
    with pytest.raises(UnknownPublication, match=r'^publication "q" does not exist') as caught:
        reader.transaction(insert(1))
    assert caught.value.details == {"lsn": "0/200", "relation": "public.t", "publication": "q"}
    reader = Reader({"publication_names": "p,q"})
    assert kinds(reader.transaction(insert(1), invalidation(0), insert(2))) == "BRIRIC"
    assert caplog.text.count("publication q does not exist") == 1


@pytest.mark.follows_hint("conflicting_publications")
def test_conflicting_publications_say_where() -> None:
    reader = Reader({"publication_names": "p,q"})
    publications = (PublicationOptions(16500, "p"), PublicationOptions(16501, "q"))
    lists = (TableMembership(16500, columns=(1,)), TableMembership(16501, columns=(2,)))
    table = replace(
        TABLE,
        database_publications=publications,
        memberships=(Memberships(16400, 2200, lists),),
    )
    reader.relations = {1: table}
    with pytest.raises(
        ConflictingPublications, match="cannot use different column lists"
    ) as caught:
        reader.transaction(insert(1))
    assert caught.value.details["lsn"] == "0/200"
    hint = remedy(caught.value, "conflicting_publications")
    assert "the same column list in all publications of the slot, or none" in hint
    for same in ((1,), None):
        both = (TableMembership(16500, columns=same), TableMembership(16501, columns=same))
        reader = Reader({"publication_names": "p,q"})
        reader.relations = {1: replace(table, memberships=(Memberships(16400, 2200, both),))}
        assert kinds(reader.transaction(insert(1))) == "BRIC"


@pytest.mark.parametrize(
    "damaged",
    [
        insert(1, relation=2),
        change(change_format.INSERT, b""),
        change(change_format.TRUNCATE, b"\0\0\0\0"),
        change(change_format.TRUNCATE, struct.pack("<II", 0, 9)),
        change(change_format.INVALIDATION, b"\1\0"),
        change(change_format.INVALIDATION, struct.pack("<IIQ", 3, 0, 9)),
        change(change_format.MESSAGE, struct.pack("<II", 1, 9)),
        change(change_format.TOAST_CHUNK, b""),
    ],
)
def test_damage_is_a_typed_error(damaged: bytes) -> None:
    reader = Reader({"messages": "on"})
    with pytest.raises(DecodingError) as caught:
        reader.transaction(insert(1), damaged)
    assert caught.value.details["lsn"] == "0/200"
    # What was whole before it stays.
    assert kinds(reader.data()) == "BRI"


@pytest.mark.parametrize("encoding", ["utf-8", "iso8859-1"])
def test_values_of_a_type_that_nobody_knows_are_raw(encoding: str) -> None:
    complex_type = TypeDescriptor(20000, "public", "complex", "b", "U", 4, True, "i")
    column = ColumnDescriptor(1, "id", 20000, -1, 4, True, "i")
    for binary in ("false", "true"):
        reader = Reader({"binary": binary}, encoding=encoding)
        reader.relations = {1: replace(TABLE, columns=(column,), types={20000: complex_type})}
        (sent,) = (m for m in reader.transaction(insert(7)) if m[:1] == b"I")
        text = b"raw:public.complex:" + rb"\x07000000"
        assert sent.endswith(b"t" + struct.pack(">I", len(text)) + text)
