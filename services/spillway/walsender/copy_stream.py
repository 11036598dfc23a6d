"""START_REPLICATION … LOGICAL: a slot's changes as a walsender sends them, until one side ends it.

::

    engine ──next_batch──▶ sender ──frames──▶ client     one kernel call and one write a batch
    engine ───────────────take─────frames──▶ client     what comes live, while the sender waits
    engine ◀───confirm──── feedback ◀───r──── client
                           watchdog ──k?───▶ client      wal_sender_timeout

What comes live the stream hands over as it comes (:class:`~spillway.delivery.model.LiveConsumer`),
as long as all that was written before is sent; whoever has the event loop's turn does that, most
often the decoder's thread. Whatever writes has the turn, so that messages neither mix nor overtake
each other, and what the socket does not take at once the transport sends, as ever.

Each writes whole messages, so that none has to wait for another. Whichever ends ends the others; a
client that is gone frees its slot at once, one that reads nothing has a batch and the high-water
mark of its connection in memory, and loses both when it has not answered for wal_sender_timeout.

A keepalive's walEnd is a promise: clients confirm it by themselves when they are idle (pgjdbc,
psycopg2, the apply worker). So it is the LSN up to which everything was written to *this* socket,
never where the log or the receiver stands. The first one comes before any change and says where the
slot stands: a client that has all it wants (pg_recvlogical --endpos) ends by it, and takes nothing
twice.

Source: WalSndLoop, WalSndWaitForWal, ProcessStandbyReplyMessage, WalSndKeepaliveIfNecessary
(src/backend/replication/walsender.c)
"""

from __future__ import annotations

import asyncio
import struct
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway._kernels.walsender.copy_data import OPEN_WRITES, copy_data_frames
from spillway.pg.boolean import parse_bool
from spillway.pg.lsn import Lsn
from spillway.pg.timestamps import now_us
from spillway.walsender import messages
from spillway.walsender.failures import WireError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from spillway._kernels.walsender.text_conversion import TextConversion
    from spillway.service.interface import SlotStream
    from spillway.service.model import EncodedBatch
    from spillway.walsender.handshake import Connection

#: Payload of a batch: what a client that reads nothing costs, twice, and what a write is made of.
BATCH_BYTES: Final = 512 * 1024
#: What may be written and not sent yet before the next batch is waited with.
_HIGH_WATER_BYTES: Final = 256 * 1024
#: How long after the last message a keepalive says that this was all.
_CAUGHT_UP_S: Final = 0.01
#: How often an idle stream looks whether its position moved, which is worth a keepalive.
_POLL_S: Final = 0.25
#: How often the watchdog looks, at most; a fourth of the timeout if that is less.
_WATCH_S: Final = 1.0

#: in EncodedBatch
_LENGTH_BYTES: Final = 4
_LSN_BYTES: Final = 8

_COPY_DATA: Final = ord("d")
_COPY_DONE: Final = ord("c")
_TERMINATE: Final = ord("X")


class ClientGone(Exception):
    """Nobody is there to be answered any more."""


class ConvertedText(NamedTuple):
    """How text reaches a client that does not speak UTF-8."""

    conversion: TextConversion
    #: makes the error of a character that can't be converted
    failure: Callable[[bytes], WireError]
    #: says where that was, by the message's first byte and its LSN
    context: Callable[[bytes, Lsn], str | None]


class CopyStream:
    """One stream from CopyBothResponse to its end.

    Args:
        connection: the client's.
        stream: its hold on the slot.
        open_writes: a value of ``copy_data.OPEN_WRITES``: which messages bear 0/0.
        timeout_s: wal_sender_timeout; 0: none.
        begin_lsn: everything that commits before this the client has, or does not want.
        text: how text is converted; None: it goes out as it is.
        warns: whether the client wants warnings (client_min_messages).
        heard: awaited whenever the client has shown that it lives.
    """

    def __init__(
        self,
        connection: Connection,
        stream: SlotStream,
        open_writes: int,
        timeout_s: float,
        begin_lsn: Lsn,
        text: ConvertedText | None = None,
        *,
        warns: bool = True,
        heard: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._open_writes = open_writes
        self._timeout_s = timeout_s
        self._text = text
        self._warns = warns
        self._heard = heard
        #: everything that commits before this is written to the socket, whole
        self._sent_lsn = begin_lsn
        self._write_lsn = 0
        self._flush_lsn = 0
        #: walEnd of the last keepalive
        self._told_lsn = Lsn(0)
        self._heard_at_s = time.monotonic()
        #: a reply was asked for, and has not come
        self._is_pinged = False
        self._loop = asyncio.get_running_loop()
        #: when messages were written last, by the loop's clock
        self._wrote_at_s = 0.0
        #: says that this was all; None without anything to say it of
        self._rests: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Stream until the client has sent CopyDone; what is written by then is its own.

        Raises:
            ClientGone: the client went away, or did not answer for too long.
            WireError: it sent what it must not.
            SpillwayError: the slot can't be read any further, or an administrator ended the
                session.
        """
        self._connection.writer.transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self._write_keepalive(reply_requested=False)
        feedback = asyncio.create_task(self._take_feedback())
        tasks = [
            feedback,
            asyncio.create_task(self._send()),
            asyncio.create_task(self._stream.ended()),
            asyncio.create_task(self._ask()),
        ]
        if self._timeout_s:
            tasks.append(asyncio.create_task(self._watch()))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            if self._rests is not None:
                self._rests.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def _send(self) -> None:
        wait_s = 0.0
        while True:
            batch = await self._stream.next_batch(wait_s, self)
            if batch.messages.count or batch.messages.notices:
                self.take(batch.messages, batch.confirm_lsn)
            else:
                self._sent_lsn = batch.confirm_lsn
                if self._is_worth_telling():
                    self._write_keepalive(reply_requested=False)
            # Not kept while the client takes its time.
            del batch
            wait_s = _POLL_S
            await self._drain()

    def is_ready(self) -> bool:
        """Whether the client takes what is written: all that was is sent."""
        transport = self._connection.writer.transport
        return not transport.get_write_buffer_size() and not transport.is_closing()

    def take(self, messages: EncodedBatch, confirm_lsn: Lsn) -> None:
        """Write a batch's messages.

        Raises:
            WireError: one of them can't be converted; what is before it is written.
        """
        frames, failure = self._told(messages)
        self._connection.writer.write(frames)
        if failure is not None:
            raise failure
        self._sent_lsn = confirm_lsn
        self._wrote_at_s = self._loop.time()
        if self._rests is None:
            self._rests = self._loop.call_later(_CAUGHT_UP_S, self._rest)

    def _rest(self) -> None:
        """Tell the client that it has all, unless it was given more meanwhile."""
        left_s = self._wrote_at_s + _CAUGHT_UP_S - self._loop.time()
        self._rests = None
        if left_s > 0:
            self._rests = self._loop.call_later(left_s, self._rest)
        elif self._is_worth_telling():
            self._write_keepalive(reply_requested=False)

    def _told(self, encoded: EncodedBatch) -> tuple[bytes, WireError | None]:
        """Make what is sent of a batch: its frames, with notices in their places."""
        if not encoded.notices:
            return self._frames(encoded)
        first, *others = encoded.between_notices()
        told, failure = self._frames(first)
        for notice, part in zip(encoded.notices, others, strict=True):
            if failure is not None:
                break
            if self._warns:
                told += messages.warning(notice)
            frames, failure = self._frames(part)
            told += frames
        return told, failure

    def _frames(self, encoded: EncodedBatch) -> tuple[bytes, WireError | None]:
        """Make the frames of a batch, and the error of the message behind them, if they end there;
        PostgreSQL has sent what was before it, too.
        """
        if self._text is None:
            payload, lengths, lsns = encoded.payload, encoded.lengths, encoded.lsns
            return copy_data_frames(payload, lengths, lsns, now_us(), self._open_writes), None
        conversion, failure, context = self._text
        payload, lengths = conversion.convert(encoded.payload, encoded.lengths)
        lsns = encoded.lsns[: len(lengths) // _LENGTH_BYTES * _LSN_BYTES]
        frames = copy_data_frames(payload, lengths, lsns, now_us(), self._open_writes)
        if not conversion.failure:
            return frames, None
        error = failure(conversion.failure)
        before = len(lengths) // _LENGTH_BYTES
        begin = sum(struct.unpack_from(f"<{before}I", encoded.lengths))
        (lsn,) = struct.unpack_from("<Q", encoded.lsns, before * _LSN_BYTES)
        error.context = context(bytes(encoded.payload[begin : begin + 1]), Lsn(lsn))
        return frames, error

    def _is_worth_telling(self) -> bool:
        """Whether the client does not know that it has all up to here, as WalSndWaitForWal has
        it.
        """
        known = max(self._write_lsn, self._flush_lsn, self._told_lsn)
        return self._sent_lsn > known and not self._is_pinged

    async def _drain(self) -> None:
        try:
            await self._connection.writer.drain()
        except OSError:
            raise ClientGone from None

    async def _take_feedback(self) -> None:
        """Take what the client sends until its CopyDone."""
        while True:
            try:
                kind, body = await messages.read_message(self._connection.reader)
            except (OSError, asyncio.IncompleteReadError):
                raise ClientGone from None
            if kind == _COPY_DONE:
                return
            if kind == _TERMINATE:
                raise ClientGone
            if kind != _COPY_DATA:
                raise WireError("08P01", f'invalid standby message type "{chr(kind)}"', fatal=True)
            try:
                feedback = messages.parse_feedback(body)
            except messages.UnexpectedMessage:
                # PostgreSQL leaves such a client without a word, too; only its log has one.
                raise ClientGone from None
            # Whatever it is, it is a sign of life (ProcessRepliesIfAny).
            self._heard_at_s = time.monotonic()
            self._is_pinged = False
            self._stream.heard()
            if self._heard is not None:
                await self._heard()
            if feedback is None:
                continue
            self._write_lsn = max(self._write_lsn, feedback.write_lsn)
            self._flush_lsn = max(self._flush_lsn, feedback.flush_lsn)
            if feedback.reply_requested:
                self._write_keepalive(reply_requested=False)
            if feedback.flush_lsn:
                await self._stream.confirm(
                    Lsn(feedback.write_lsn),
                    Lsn(feedback.flush_lsn),
                    Lsn(feedback.apply_lsn),
                    beyond=True,
                )

    async def _ask(self) -> None:
        """Ask the client for an answer whenever somebody else wants the slot and its option
        ``takeover`` is set.
        """
        while True:
            await self._stream.wanted()
            self._is_pinged = True
            self._write_keepalive(reply_requested=True)

    async def _watch(self) -> None:
        """Ask a client that is silent for an answer, and leave one that gives none."""
        while True:
            await asyncio.sleep(min(_WATCH_S, self._timeout_s / 4))
            silent_s = time.monotonic() - self._heard_at_s
            if silent_s >= self._timeout_s:
                # Without a message, as PostgreSQL: who does not read does not read that either.
                self._connection.abort()
                raise ClientGone
            if silent_s >= self._timeout_s / 2 and not self._is_pinged:
                self._is_pinged = True
                self._write_keepalive(reply_requested=True)

    def _write_keepalive(self, *, reply_requested: bool) -> None:
        self._told_lsn = self._sent_lsn
        self._connection.writer.write(
            messages.keepalive(self._sent_lsn, now_us(), reply_requested=reply_requested)
        )


def open_writes_of(plugin: str, options: Mapping[str, str]) -> int:
    """Return which messages of a plugin with *options* bear 0/0 instead of their LSN."""
    if plugin == "test_decoding" and not parse_bool(options.get("skip-empty-xacts", "off")):
        return OPEN_WRITES[""]
    return OPEN_WRITES.get(plugin, OPEN_WRITES[""])
