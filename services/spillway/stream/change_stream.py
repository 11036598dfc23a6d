"""ChangeStream: one client's hold on a slot.

Two things happen at once in a stream: batches go out, feedback comes in. ::

    engine ──next_batch──▶ sender ──write──▶ client
    engine ◀───confirm──── feedback ◀─read── client

The sender awaits each write: HTTP/2's window bounds what is in flight, and one batch is read ahead
of it.

Either ends the other: an error in one cancels the other, a client that goes away cancels both, and
in every case leaving ``engine.stream`` frees the slot. So does who ends the session (``ended``),
also while a write waits for a client that reads nothing. A client that is silent is fine; one that
is gone without saying so, or stopped, does not answer HTTP/2 pings (see ``server``).

A client that closes its side (PostgreSQL's CopyDone) asks for no more than there is: it gets what
was decoded by then, or what is before the stream's ``upto_lsn``, and the stream ends.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import grpc

from spillway.errors import InvalidRequest, SpillwayError
from spillway.pg.lsn import Lsn
from spillway.service.leaving import opened
from spillway.stream import wire
from spillway.stream.status import errors_as_statuses
from spillway.v1 import change_stream_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from spillway.service.interface import EngineInterface, SlotStream
    from spillway.service.model import LiveConsumer, StreamBatch

SERVICE_NAME: Final = "spillway.v1.ChangeStream"

BATCH_BYTES_DEFAULT: Final = 512 * 1024
BATCH_BYTES_MIN: Final = 1024
#: A batch is a unit of memory on both sides; Spark's Arrow batches are large.
BATCH_BYTES_MAX: Final = 16 * 1024 * 1024

#: How long to wait for a new client's Start.
START_TIMEOUT_S: Final = 30.0
#: How often an idle stream looks whether positions moved, which is worth a keepalive.
POLL_S: Final = 1.0
#: How often an idle stream sends a keepalive though nothing moved: PostgreSQL's
#: wal_receiver_status_interval.
KEEPALIVE_S: Final = 10.0


class ChangeStream:
    """The service."""

    def __init__(self, engine: EngineInterface) -> None:
        self._engine = engine

    def generic_handler(self) -> Any:
        """Give what a gRPC server registers.

        Not by the generated function: it would serialise message objects, and these are bytes
        already.
        """
        method = grpc.stream_stream_rpc_method_handler(
            self.stream,
            request_deserializer=change_stream_pb2.StreamRequest.FromString,
            response_serializer=None,
        )
        return grpc.method_handlers_generic_handler(SERVICE_NAME, {"Stream": method})

    @errors_as_statuses
    async def stream(
        self, requests: AsyncIterator[change_stream_pb2.StreamRequest], context: Any
    ) -> None:
        """Serve one client until it or the stream ends."""
        await Session(self._engine, requests, context).run()


class Session:
    """A stream from its Start to its end.

    Args:
        engine: has the slots.
        requests: of the client.
        context: has gRPC's ``write``.
    """

    def __init__(
        self,
        engine: EngineInterface,
        requests: AsyncIterator[change_stream_pb2.StreamRequest],
        context: Any,
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._context = context
        # The sender and a reply to feedback may want to write at once; gRPC takes one write at a
        # time.
        self._writing = asyncio.Lock()
        self._wal_end = Lsn(0)
        self._confirm_lsn = Lsn(0)
        self._flush_lsn = Lsn(0)
        self._client_is_done = False
        #: who is given what comes live
        self._live: LiveConsumer | None = None
        self._heard_at_s = time.monotonic()
        self._sent_at_s = time.monotonic()

    @property
    def heard_at_s(self) -> float:
        """When the client last sent something, by the monotonic clock."""
        return self._heard_at_s

    async def run(self) -> None:
        """Serve it."""
        start = await self._read_start()
        async with opened(
            lambda: self._engine.stream(
                start.slot_name,
                start_lsn=Lsn(start.start_lsn) if start.start_lsn else None,
                upto_lsn=Lsn(start.upto_lsn) if start.upto_lsn else None,
                options=dict(start.options),
                batch_bytes=_batch_bytes(start.batch_bytes),
                peek=start.peek,
            )
        ) as stream:
            try:
                async with asyncio.TaskGroup() as tasks:
                    ended = tasks.create_task(stream.ended())
                    sending = tasks.create_task(self._send(stream, bounded=start.upto_lsn != 0))
                    feedback = tasks.create_task(self._take_feedback(stream))
                    await asyncio.wait((sending, feedback))
                    ended.cancel()
            except BaseExceptionGroup as failed:
                raise _first(failed) from None

    async def _read_start(self) -> change_stream_pb2.Start:
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                request = await anext(self._requests, None)
        except TimeoutError:
            request = None
        if request is None or not request.HasField("start"):
            raise InvalidRequest(
                "a stream's first message must be start", hint="Send Start with a slot_name."
            )
        return request.start

    async def _send(self, stream: SlotStream, *, bounded: bool) -> None:
        # Where a client that is done wants to be; None as long as it is not, or when upto_lsn says
        # it.
        end_lsn: Lsn | None = None
        # Something is sent at once, so that the client learns that the slot is its own.
        greeting = True
        batch: StreamBatch | None = None
        try:
            while True:
                batch = await stream.next_batch(0.0 if greeting else POLL_S, self._live)
                moved = (batch.wal_end, batch.confirm_lsn) != (self._wal_end, self._confirm_lsn)
                self._wal_end, self._confirm_lsn = batch.wal_end, batch.confirm_lsn
                if batch.messages.count or batch.final:
                    await self._write(wire.encode_changes(batch))
                elif greeting or moved or time.monotonic() - self._sent_at_s >= KEEPALIVE_S:
                    await self._write_keepalive()
                if batch.final:
                    return
                if self._client_is_done and not bounded:
                    end_lsn = end_lsn or batch.wal_end
                    if not batch.messages.count or batch.confirm_lsn >= end_lsn:
                        return
                greeting = False
        finally:
            # A traceback may keep this frame for long after the stream.
            del batch

    async def _take_feedback(self, stream: SlotStream) -> None:
        """Confirm until the client closes its side."""
        async for request in self._requests:
            self._heard_at_s = time.monotonic()
            if not request.HasField("feedback"):
                raise InvalidRequest(
                    "a stream is started once", hint="After start, send feedback only."
                )
            feedback = request.feedback
            if feedback.flush_lsn:
                await stream.confirm(
                    Lsn(feedback.write_lsn), Lsn(feedback.flush_lsn), Lsn(feedback.apply_lsn)
                )
                self._flush_lsn = max(self._flush_lsn, Lsn(feedback.flush_lsn))
            if feedback.reply_requested:
                await self._write_keepalive()
        self._client_is_done = True

    async def _write(self, message: bytes) -> None:
        try:
            async with self._writing:
                await self._context.write(message)
        finally:
            # As in _send.
            del message
        self._note_sent()

    def _note_sent(self) -> None:
        self._sent_at_s = time.monotonic()

    async def _write_keepalive(self) -> None:
        now_s = time.monotonic()
        overdue = self._confirm_lsn > self._flush_lsn and now_s - self._heard_at_s > KEEPALIVE_S
        await self._write(
            wire.encode_keepalive(
                wal_end=self._wal_end,
                confirm_lsn=self._confirm_lsn,
                flush_lsn=self._flush_lsn,
                reply_requested=overdue,
            )
        )


def _batch_bytes(asked: int) -> int:
    if asked == 0:
        return BATCH_BYTES_DEFAULT
    if not BATCH_BYTES_MIN <= asked <= BATCH_BYTES_MAX:
        raise InvalidRequest(
            f"batch_bytes is {asked}",
            hint=f"It must be from {BATCH_BYTES_MIN} to {BATCH_BYTES_MAX}, or 0 for the default.",
        )
    return asked


def _first(failed: BaseExceptionGroup[BaseException]) -> BaseException:
    """Give the one error of a group that says most: ours before any other."""
    known, others = failed.split(SpillwayError)
    first: BaseException = known or others or failed
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
