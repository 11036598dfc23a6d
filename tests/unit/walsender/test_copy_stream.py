"""Frames of a batch, and a client that reads nothing: what it costs has a bound."""

from __future__ import annotations

import array
import asyncio
import socket
import struct
from typing import TYPE_CHECKING, cast

import pytest

from harness.asleep import asleep
from spillway._kernels.walsender.copy_data import OPEN_WRITES, copy_data_frames
from spillway.loop_turn import LendingLoop
from spillway.pg.lsn import Lsn
from spillway.plugins.messages import EncodedBatch
from spillway.service.model import StreamBatch
from spillway.walsender.copy_stream import BATCH_BYTES, ClientGone, CopyStream
from spillway.walsender.failures import WireError
from spillway.walsender.handshake import Connection

if TYPE_CHECKING:
    from spillway.delivery.model import LiveConsumer
    from spillway.service.interface import SlotStream
    from spillway.walsender.streams import Reader


def _frames(messages: list[bytes], plugin: str) -> list[tuple[int, bytes]]:
    """LSN and payload of each frame; message n is at LSN n + 1."""
    data = copy_data_frames(
        b"".join(messages),
        array.array("I", map(len, messages)).tobytes(),
        array.array("Q", range(1, len(messages) + 1)).tobytes(),
        -5,
        OPEN_WRITES[plugin],
    )
    found = []
    while data:
        letter, length, kind, start, end, sent = struct.unpack_from(">cicQQq", data)
        assert (letter, kind, sent) == (b"d", b"w", -5)
        assert start == end
        found.append((start, data[30 : length + 1]))
        data = data[length + 1 :]
    return found


def test_frames_bear_the_lsns_of_a_walsender() -> None:
    messages = [b"B1", b"O", b"R", b"I", b"C", b"B2", b"I", b"", b"S", b"O", b"Y", b"b", b"O"]
    lsns = [0, 2, 0, 4, 5, 6, 7, 8, 0, 10, 0, 0, 13]
    assert _frames(messages, "pgoutput") == list(zip(lsns, messages, strict=True))
    assert [lsn for lsn, _ in _frames(messages, "")] == list(range(1, 14))
    texts = [b"BEGIN 5", b"table", b"COMMIT 5", b"opening a streamed block", b"BEGI"]
    assert [lsn for lsn, _ in _frames(texts, "test_decoding")] == [0, 2, 3, 0, 5]
    assert _frames([], "pgoutput") == []


def test_arrays_that_do_not_fit_are_refused() -> None:
    for payload, lengths, lsns in (
        (b"ab", array.array("I", [3]), array.array("Q", [1])),
        (b"ab", array.array("I", [1]), array.array("Q", [1])),
        (b"ab", array.array("I", [2]), array.array("Q", [])),
        (b"", array.array("I", [0xFFFFFFFF]), array.array("Q", [1])),
    ):
        with pytest.raises(ValueError, match="batch"):
            copy_data_frames(payload, lengths.tobytes(), lsns.tobytes(), 0, 0)


#: where the slot stands that is streamed
BEGINS = Lsn(30)


class Scripted:
    """A stream that gives what it was told, then nothing; and takes note of what is confirmed."""

    def __init__(self, *batches: StreamBatch) -> None:
        self._batches = list(batches)
        self.confirmed: list[int] = []
        self.asked = asyncio.Event()

    async def next_batch(self, timeout_s: float, live: LiveConsumer | None = None) -> StreamBatch:
        if self._batches:
            return self._batches.pop(0)
        self.asked.set()
        await asyncio.sleep(timeout_s or 0)
        await asyncio.Event().wait()
        raise AssertionError

    async def confirm(
        self,
        write_lsn: Lsn,
        flush_lsn: Lsn,
        apply_lsn: Lsn,
        *,
        beyond: bool = False,
    ) -> None:
        assert beyond
        self.confirmed.append(flush_lsn)

    async def ended(self) -> None:
        await asyncio.Event().wait()

    async def wanted(self) -> None:
        await asyncio.Event().wait()

    def heard(self) -> None:
        """Nobody has asked."""


def _batch(data: bytes, lsn: int, confirm_lsn: int, wal_end: int) -> StreamBatch:
    count = 1 if data else 0
    messages = EncodedBatch(
        data,
        array.array("I", [len(data)] * count).tobytes(),
        array.array("Q", [lsn] * count).tobytes(),
        array.array("I", [7] * count).tobytes(),
        count,
    )
    return StreamBatch(messages, Lsn(lsn), Lsn(wal_end), Lsn(confirm_lsn))


async def _told(batches: list[StreamBatch], sent: list[bytes]) -> tuple[list[bytes], list[int]]:
    """Stream *batches* to a client that then sends *sent* and CopyDone; give what it gets, times
    left out, and what is confirmed.
    """
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    client, to_server = await asyncio.open_connection(sock=theirs)
    source = Scripted(*batches)
    connection = Connection(cast("Reader", reader), writer, is_tls=False, end_point=None)
    running = asyncio.create_task(
        CopyStream(connection, cast("SlotStream", source), 0, 0.0, BEGINS).run()
    )
    try:
        await source.asked.wait()
        to_server.write(b"".join(sent) + b"c\0\0\0\4")
        await running
        writer.close()
        data = await client.read()
    finally:
        for end in (writer, to_server):
            end.transport.abort()
            await asyncio.sleep(0)
    got = []
    while data:
        length = int.from_bytes(data[1:5], "big")
        body = data[5 : length + 1]
        got.append(body[:17] + body[25:] if body[:1] == b"w" else body[:9] + body[17:])
        data = data[length + 1 :]
    return got, source.confirmed


def _feedback(flush_lsn: int, *, reply_requested: bool) -> bytes:
    body = struct.pack(">cQQQqB", b"r", flush_lsn, flush_lsn, 0, 0, reply_requested)
    return b"d" + struct.pack(">i", len(body) + 4) + body


def test_keepalives_promise_what_was_sent() -> None:
    """Decoding is at 900; a transaction that ends at 100 is sent in two parts, of which one is
    there.
    """
    part, all_of_it, nothing = (
        _batch(b"x", 60, 50, 900),
        _batch(b"y", 100, 100, 900),
        _batch(b"", 0, 120, 900),
    )
    asking = [_feedback(0, reply_requested=True)]
    for batches, promised in (
        ([part], [50]),
        ([part, all_of_it], [100]),
        ([part, nothing], [120, 120]),
    ):
        got, _ = asyncio.run(_told(batches, asking))
        keepalives = [int.from_bytes(one[1:9], "big") for one in got if one[:1] == b"k"]
        assert keepalives == [BEGINS, *promised]
        # Each behind all that it promises.
        data = [one[:1] for one in got[1:]]
        assert data == sorted(data, reverse=True)


def test_feedback_confirms_what_is_flushed() -> None:
    sent = [_feedback(lsn, reply_requested=False) for lsn in (0, 70, 60)]
    _, confirmed = asyncio.run(_told([_batch(b"x", 60, 80, 900)], sent))
    assert confirmed == [70, 60]


@pytest.mark.parametrize("bad", [b"d", b"dr", b"Q", b"f"])
def test_what_a_stream_does_not_take(bad: bytes) -> None:
    message = bad[:1] + struct.pack(">i", len(bad) + 3) + bad[1:]
    with pytest.raises(WireError) as refused:
        asyncio.run(_told([], [message]))
    assert refused.value.sqlstate == "08P01"
    # What is cut is an error of the command alone.
    assert refused.value.fatal == (bad[:1] != b"d")


def test_who_sends_what_no_standby_sends_is_left() -> None:
    with pytest.raises(ClientGone):
        asyncio.run(_told([], [b"d" + struct.pack(">i", 5) + b"x"]))


class Endless:
    """A stream that always has more, and counts what was taken."""

    def __init__(self) -> None:
        self.taken = 0

    async def next_batch(self, timeout_s: float, live: LiveConsumer | None = None) -> StreamBatch:
        self.taken += 1
        messages = EncodedBatch(
            bytes(BATCH_BYTES),
            array.array("I", [BATCH_BYTES]).tobytes(),
            array.array("Q", [self.taken]).tobytes(),
            array.array("I", [7]).tobytes(),
            1,
        )
        lsn = Lsn(self.taken)
        return StreamBatch(messages, lsn, lsn, lsn)

    async def ended(self) -> None:
        await asyncio.Event().wait()

    async def wanted(self) -> None:
        await asyncio.Event().wait()

    def heard(self) -> None:
        """Nobody has asked."""


async def _stalled() -> int:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    source = Endless()
    connection = Connection(cast("Reader", reader), writer, is_tls=False, end_point=None)
    stream = CopyStream(connection, cast("SlotStream", source), 0, 0.0, BEGINS)
    running = asyncio.create_task(stream.run())
    before = -1
    while before != source.taken:
        before = source.taken
        # Whatever can go on does so within these turns of the loop.
        for _ in range(200):
            await asyncio.sleep(0)
    held = writer.transport.get_write_buffer_size()
    assert held < 3 * BATCH_BYTES
    theirs.close()
    with pytest.raises(ClientGone):
        await running
    writer.transport.abort()
    return source.taken


def test_a_client_that_reads_nothing_is_waited_for() -> None:
    # What the sockets hold, and a batch or two.
    assert asyncio.run(_stalled()) < 32


# ---- what is written by who has borrowed the loop's turn


class Lively(Scripted):
    """A stream whose messages all come while its caller waits."""

    live: LiveConsumer | None = None

    async def next_batch(self, timeout_s: float, live: LiveConsumer | None = None) -> StreamBatch:
        if not timeout_s:
            return _batch(b"", 0, 40, 900)
        self.live = live
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


def _frames_of(data: bytes) -> list[tuple[bytes, int, int]]:
    """Kind, the LSN that it bears, and the payload's size, of each message."""
    found = []
    while data:
        length = int.from_bytes(data[1:5], "big")
        assert len(data) > length, "a message is cut"
        body = data[5 : length + 1]
        found.append((body[:1], int.from_bytes(body[1:9], "big"), len(body)))
        data = data[length + 1 :]
    return found


async def _taken_elsewhere(sizes: list[int], sent: bytes) -> tuple[list[bool], bytes]:
    """Have another thread give a stream messages of *sizes*, while its client reads nothing; then
    have it read all, and say *sent* and CopyDone. Return whether the stream was ready after each,
    and all that it wrote.
    """
    loop = asyncio.get_running_loop()
    assert isinstance(loop, LendingLoop)
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    theirs.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=ours)
    source = Lively()
    connection = Connection(cast("Reader", reader), writer, is_tls=False, end_point=None)
    running = asyncio.create_task(
        CopyStream(connection, cast("SlotStream", source), 0, 0.0, BEGINS).run()
    )
    await source.asked.wait()
    live = source.live
    assert live is not None

    def give() -> list[bool]:
        ready = []
        for number, size in enumerate(sizes, 1):
            asleep(loop)
            assert loop.borrow()
            live.take(_batch(bytes(size), 100 * number, 0, 0).messages, Lsn(100 * number + 1))
            ready.append(live.is_ready())
            loop.give_back()
        return ready

    ready = await asyncio.to_thread(give)
    await loop.sock_sendall(theirs, sent + b"c\0\0\0\4")
    got = asyncio.create_task(_read_all(theirs))
    await running
    writer.close()
    data = await got
    theirs.close()
    return ready, data


async def _read_all(client: socket.socket) -> bytes:
    loop, data = asyncio.get_running_loop(), b""
    while piece := await loop.sock_recv(client, 1 << 16):
        data += piece
    return data


def test_what_a_socket_does_not_take_at_once_keeps_its_place() -> None:
    """A message that is cut in two, then an answer to feedback: a promise of what is before it."""
    with asyncio.Runner(loop_factory=LendingLoop) as runner:
        ready, data = runner.run(
            asyncio.wait_for(
                _taken_elsewhere([10, 1 << 20], _feedback(0, reply_requested=True)), 60
            )
        )
    assert ready == [True, False]
    frames = _frames_of(data)
    assert [(lsn, size) for kind, lsn, size in frames if kind == b"w"] == [
        (100, 25 + 10),
        (200, 25 + (1 << 20)),
    ]
    # One for where the slot stands, one for where the stream began; none between is ahead of what
    # was written before it.
    assert frames.pop(0)[:2] == (b"k", BEGINS)
    before = 40
    for kind, lsn, _ in frames:
        if kind == b"k":
            assert lsn == before
        else:
            before = lsn + 1
    assert frames[-1][:2] == (b"k", 201)


@pytest.mark.parametrize("count", [1, 30])
def test_a_keepalive_follows_what_came_live(count: int) -> None:
    """By itself, and soon: clients confirm by it. One, for however much came."""

    async def told() -> list[tuple[bytes, int, int]]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, LendingLoop)
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=ours)
        source = Lively()
        connection = Connection(cast("Reader", reader), writer, is_tls=False, end_point=None)
        stream = CopyStream(connection, cast("SlotStream", source), 0, 0.0, BEGINS)
        running = asyncio.create_task(stream.run())
        await source.asked.wait()

        def give() -> None:
            asleep(loop)
            assert loop.borrow()
            assert source.live is not None
            for lsn in range(60, 60 + count):
                source.live.take(_batch(b"x", lsn, 0, 0).messages, Lsn(lsn + 1))
            loop.give_back()

        await asyncio.to_thread(give)
        data = b""
        while len(frames := _frames_of(data)) < count + 3:
            data += await loop.sock_recv(theirs, 1 << 16)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        writer.transport.abort()
        theirs.close()
        return frames

    with asyncio.Runner(loop_factory=LendingLoop) as runner:
        frames = runner.run(asyncio.wait_for(told(), 60))
    given = [(b"w", lsn) for lsn in range(60, 60 + count)]
    assert [(kind, lsn) for kind, lsn, _ in frames] == [
        (b"k", BEGINS),
        (b"k", 40),
        *given,
        (b"k", 60 + count),
    ]
