"""The hand-written wire format against the standard protobuf library, both ways."""

from __future__ import annotations

import array
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.remedies import remedy
from spillway.errors import MalformedMessage
from spillway.pg.lsn import Lsn
from spillway.pg.timestamps import now_us
from spillway.plugins.messages import EncodedBatch
from spillway.service.model import StreamBatch
from spillway.stream import wire
from spillway.v1.change_stream_pb2 import Changes, Keepalive, StreamResponse

messages = st.lists(
    st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.binary(max_size=300)),
    max_size=40,
)
lsns = st.integers(0, 2**64 - 1).map(Lsn)


def encoded(rows: list[tuple[int, int, bytes]]) -> EncodedBatch:
    return EncodedBatch(
        payload=b"".join(data for _, _, data in rows),
        lengths=array.array("I", [len(data) for _, _, data in rows]).tobytes(),
        lsns=array.array("Q", [lsn for lsn, _, _ in rows]).tobytes(),
        xids=array.array("I", [xid for _, xid, _ in rows]).tobytes(),
        count=len(rows),
    )


@given(messages, lsns, lsns, lsns, st.booleans())
def test_standard_parser_reads_what_we_write(
    rows: list[tuple[int, int, bytes]], start: Lsn, end: Lsn, confirm: Lsn, final: bool
) -> None:
    data = wire.encode_changes(StreamBatch(encoded(rows), start, end, confirm, final))
    response = StreamResponse.FromString(data)
    assert response.WhichOneof("message") == "changes"
    changes = response.changes
    assert (changes.wal_start, changes.wal_end, changes.confirm_lsn) == (start, end, confirm)
    assert changes.final == final
    assert abs(changes.send_time - now_us()) < 60_000_000
    assert changes.payload == b"".join(data for _, _, data in rows)
    assert list(changes.message_length) == [len(data) for _, _, data in rows]
    assert list(changes.message_lsn) == [lsn for lsn, _, _ in rows]
    assert list(changes.message_xid) == [xid for _, xid, _ in rows]
    batch = wire.decode_response(data)
    assert list(batch.messages()) == rows
    assert (batch.wal_start, batch.wal_end, batch.confirm_lsn) == (start, end, confirm)
    assert (batch.count, batch.final) == (len(rows), final)


@given(messages, lsns, lsns, lsns)
def test_what_is_written_plainly_is_read(
    rows: list[tuple[int, int, bytes]], start: Lsn, end: Lsn, confirm: Lsn
) -> None:
    said = StreamBatch(encoded(rows), start, end, confirm)
    data = wire.encode_plainly(said)
    batch, standard = wire.decode_plain(data), wire.decode_response(wire.encode_changes(said))
    assert list(batch.messages()) == rows
    assert (batch.wal_start, batch.wal_end, batch.confirm_lsn) == (start, end, confirm)
    assert (batch.count, batch.final) == (standard.count, False)
    assert 0 <= standard.send_time - batch.send_time < 60_000_000
    assert list(batch.lengths) == list(standard.lengths)


@given(messages.filter(len), st.data())
def test_what_is_cut_or_changed_is_no_plain_message(
    rows: list[tuple[int, int, bytes]], data: st.DataObject
) -> None:
    whole = wire.encode_plainly(StreamBatch(encoded(rows), Lsn(1), Lsn(2), Lsn(3)))
    with pytest.raises(MalformedMessage):
        wire.decode_plain(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(MalformedMessage):
        wire.decode_plain(whole + b"x")
    more = (len(rows) + 1).to_bytes(4, "little")
    with pytest.raises(MalformedMessage):
        # Of one message more, whose length would be what stands there.
        wire.decode_plain(whole[:32] + more + whole[36:] + b"\xff" * 4)


@given(st.lists(st.tuples(lsns, lsns, st.booleans()), min_size=1, max_size=6))
def test_streams_that_share_messages_send_what_each_would_alone(
    said: list[tuple[Lsn, Lsn, bool]],
) -> None:
    rows = [(5, 1, b"x" * 20_000), (6, 2, b""), (7, 3, b"yz")]
    shared = encoded(rows)
    for end, confirm, final in said:
        data = wire.encode_changes(StreamBatch(shared, Lsn(5), end, confirm, final))
        changes = StreamResponse.FromString(data).changes
        assert (changes.wal_end, changes.confirm_lsn, changes.final) == (end, confirm, final)
        assert list(wire.decode_response(data).messages()) == rows
        assert wire.encode_changes(StreamBatch(shared, Lsn(5), end, confirm, final)) is data
        assert shared == encoded(rows)


def test_what_was_serialised_long_ago_is_not_sent_again() -> None:
    batch = StreamBatch(encoded([(5, 1, b"x" * 20_000)]), Lsn(5), Lsn(6), Lsn(7))
    data = wire.encode_changes(batch)
    messages = batch.messages
    messages.serialised = messages.serialised._replace(
        send_time=messages.serialised.send_time - 2_000_000
    )
    again = wire.encode_changes(batch)
    assert again is not data
    assert StreamResponse.FromString(again).changes.payload == b"x" * 20_000


@given(messages, lsns, st.integers(-(2**63), 2**63 - 1), st.booleans())
def test_we_read_what_the_standard_library_writes(
    rows: list[tuple[int, int, bytes]], start: Lsn, send_time: int, final: bool
) -> None:
    data = StreamResponse(
        changes=Changes(
            wal_start=start,
            send_time=send_time,
            final=final,
            payload=b"".join(data for _, _, data in rows),
            message_length=[len(data) for _, _, data in rows],
            message_lsn=[lsn for lsn, _, _ in rows],
            message_xid=[xid for _, xid, _ in rows],
        )
    ).SerializeToString()
    batch = wire.decode_response(data)
    assert list(batch.messages()) == rows
    assert (batch.wal_start, batch.final) == (start, final)
    assert batch.send_time == send_time


def test_keepalive() -> None:
    data = wire.encode_keepalive(wal_end=7, confirm_lsn=5, flush_lsn=3, reply_requested=True)
    assert StreamResponse.FromString(data).keepalive.reply_requested
    batch = wire.decode_response(data)
    assert (batch.count, batch.wal_end, batch.confirm_lsn, batch.flush_lsn) == (0, 7, 5, 3)
    assert batch.reply_requested
    assert list(batch.messages()) == []
    assert not wire.decode_response(StreamResponse(keepalive=Keepalive()).SerializeToString()).final


def test_unusual_but_legal_protobuf() -> None:
    """An array in two pieces, one unpacked; an unknown field; a message in two pieces."""
    rows = [(5, 1, b"ab"), (6, 2, b"c"), (7, 3, b"")]
    whole = encoded(rows)

    def packed(number: int, content: bytes | memoryview) -> bytes:
        return bytes([number << 3 | 2, len(content), *content])

    inner = (
        packed(6, whole.payload)
        + packed(7, whole.lengths[:4])
        + packed(7, whole.lengths[4:])
        + b"".join(bytes([8 << 3 | 1]) + whole.lsns[i : i + 8] for i in (0, 8, 16))
        + packed(9, whole.xids)
        + packed(15, b"from a newer release")
    )
    data = packed(1, inner)
    assert list(wire.decode_response(data).messages()) == rows
    twice = data + packed(1, bytes([5 << 3, 1]))
    assert wire.decode_response(twice).final
    assert list(wire.decode_response(twice).messages()) == rows


@pytest.mark.parametrize(
    "data", [b"", b"\x0a", b"\x0a\x05", b"\xff" * 20, b"\x0a\x02\x3a\x01", b"\x0a\x03\x3a\x01\x00"]
)
@pytest.mark.follows_hint("malformed_message")
def test_malformed(data: bytes) -> None:
    with pytest.raises(MalformedMessage) as caught:
        wire.decode_response(data)
    # The next stream begins with what was not confirmed.
    assert remedy(caught.value, "malformed_message").startswith("Open the stream again")
    batch = StreamBatch(encoded([(5, 1, b"abc")]), Lsn(1), Lsn(2), Lsn(3))
    assert wire.decode_response(wire.encode_changes(batch)).count == 1


def test_any_damage_is_a_typed_error_or_another_batch() -> None:
    good = wire.encode_changes(
        StreamBatch(encoded([(5, 1, b"abc"), (6, 2, b"defg")]), Lsn(1), Lsn(2), Lsn(3))
    )
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(20_000):
        damaged = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            batch = wire.decode_response(bytes(damaged[: chance.randint(0, len(damaged))]))
        except MalformedMessage:
            continue
        assert len(list(batch.messages())) == batch.count
