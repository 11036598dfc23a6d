"""A consumer's stream of a slot: pulls batches off the transaction log as they come.

The batches are steps of a reader, which other streams may share
(:mod:`spillway.delivery.shared_readers`). They are taken in two ways, by where the reader stands::

                      ┌──────── more than a little has come ────────┐
                      ▼                                             │
    start ▶ BEHIND: on a worker, one step ahead of the caller     LIVE: on the event loop, at once
                      │                                             ▲
                      └──────── a step found the log's end ─────────┘

Behind, the next batch is made while the caller writes this one, so that encoding and the network
overlap. Live, a commit costs less to encode than to hand to another thread and back; what comes is
taken on the event loop, as long as it is little (AT_ONCE_BYTES of the log, in the file that was
read before) and the plugin is one of ours, which wait for nothing. Nothing is polled: the log's
writer wakes the stream, once for however much it has published by the time the stream looks.

Bound: two batches, the caller's and, unless that is larger than AHEAD_BYTES_MAX, the one ahead,
beside what readers keep.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from spillway.delivery.model import StreamBatch
from spillway.errors import InvalidRequest, SpillwayError
from spillway.pg.lsn import Lsn
from spillway.plugins.messages import EncodedBatch

if TYPE_CHECKING:
    from spillway.delivery.active_consumer import ActiveConsumer
    from spillway.delivery.decoded_database import DecodedDatabase
    from spillway.delivery.reader import Step
    from spillway.delivery.shared_steps import SharedSteps
    from spillway.delivery.slots import Slot
    from spillway.txlog.reader import Snapshot

#: Behind a larger batch no step is taken ahead: a client that does not read would hold it, too.
AHEAD_BYTES_MAX: Final = 2 << 20

_NOTHING: Final = EncodedBatch(b"", b"", b"", b"", 0)


class EngineStream:
    """Implements :class:`spillway.service.interface.SlotStream`. Used by one task at a time for
    batches.

    Args:
        slot: whose stream this is; counted into, and confirmed unless *peek*.
        decoded: what is read.
        steps: of the reader that makes the batches; the stream's own from here on.
        begin: position that the stream begins at.
        active: the consumer that has the slot for it; None: it reads beside whoever has it.
    """

    def __init__(
        self,
        slot: Slot,
        decoded: DecodedDatabase,
        steps: SharedSteps,
        begin: int,
        active: ActiveConsumer | None,
    ) -> None:
        self._slot = slot
        self._active = active
        self._decoded = decoded
        self._steps = steps
        self._peek = active is None
        self._loop = asyncio.get_running_loop()
        #: what the caller may confirm: never what lies in a step ahead
        self._handed_out_lsn = begin
        # What was visible when the last step found the log's end; None while it did not.
        self._end: Snapshot | None = None
        # The log was written to since it was last looked at; who waits for that; whether the event
        # loop has yet to be told.
        self._more = False
        self._waiter: asyncio.Future[bool] | None = None
        self._notified = False
        decoded.log.add_listener(self._notify)
        slot.add_listener(self._wake)

    def _notify(self) -> None:
        # From the decoder's thread. What is visible changed before, so one wake-up serves all until
        # it has run.
        if not self._notified:
            self._notified = True
            # The loop may be gone when the service stops.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._notified = False
        self._more = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)

    async def wanted(self) -> None:
        """Wait until the client is to be asked whether it is there; see the interface."""
        if self._active is None:
            await self._loop.create_future()
        else:
            await self._active.wanted()

    def heard(self) -> None:
        """Take note that the client is there."""
        if self._active is not None:
            self._active.heard()

    async def next_batch(self, timeout_s: float) -> StreamBatch:
        """Wait for messages; see the interface."""
        deadline = self._loop.time() + timeout_s
        while True:
            self._slot.check_valid()
            self._more = False
            if self._end is None or self._end is not self._decoded.log.snapshot():
                try:
                    step = await self._next_step()
                except SpillwayError:
                    # A session that ends under its reader, since another process serves the source
                    # now.
                    self._slot.check_valid()
                    raise
                if step.messages.count or step.messages.notices or step.reached_end:
                    return self._batch(step.messages, final=step.reached_end)
            self._slot.check_valid()
            self._decoded.check_readable()
            if not await self._wait(deadline):
                return self._batch(_NOTHING)

    async def _next_step(self) -> Step:
        """Take one step on and account for it."""
        kept = await self._steps.step()
        step = kept.step
        self._handed_out_lsn = max(self._handed_out_lsn, step.confirm_lsn)
        if not self._peek:
            self._slot.count(kept.counts, kept.counted)
        self._end = kept.visible if step.exhausted else None
        little = len(step.messages.payload) <= AHEAD_BYTES_MAX
        if step.messages.count and little and not step.exhausted and not step.reached_end:
            self._steps.begin()
        return step

    async def _wait(self, deadline: float) -> bool:
        """Wait until the log was written to; False at *deadline*."""
        if self._loop.time() >= deadline:
            return False
        if self._more:
            return True
        waiter: asyncio.Future[bool] = self._loop.create_future()
        self._waiter = waiter
        timer = self._loop.call_at(deadline, _expire, waiter)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _batch(self, messages: EncodedBatch, *, final: bool = False) -> StreamBatch:
        confirm_lsn = self._handed_out_lsn
        if self._active is not None:
            self._active.sent_lsn = Lsn(confirm_lsn)
        first = int.from_bytes(messages.lsns[:8], "little") if messages.count else confirm_lsn
        return StreamBatch(
            messages=messages,
            wal_start=Lsn(first),
            wal_end=Lsn(self._decoded.decoded_lsn),
            confirm_lsn=Lsn(confirm_lsn),
            final=final,
        )

    async def confirm(
        self,
        write_lsn: Lsn,  # noqa: ARG002
        flush_lsn: Lsn,
        apply_lsn: Lsn,  # noqa: ARG002
        *,
        beyond: bool = False,
    ) -> None:
        """Advance the slot to *flush_lsn*, but never past what was handed out, or is decoded."""
        if self._active is None:
            raise InvalidRequest(
                "a peeking stream can't confirm", hint="Open it without peek, or advance the slot."
            )
        self._slot.check_valid()
        self._active.fed_back()
        known = self._decoded.decoded_lsn if beyond else 0
        self._slot.confirm(min(flush_lsn, max(self._handed_out_lsn, known)))

    async def ended(self) -> None:
        """Wait until somebody ends the session; see the interface."""
        await (self._loop.create_future() if self._active is None else self._active.ended())

    async def close(self) -> None:
        """Stop; waits for a step that is under way, since it uses the cursor."""
        self._decoded.log.remove_listener(self._notify)
        self._slot.remove_listener(self._wake)
        await self._steps.close()


def _expire(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
