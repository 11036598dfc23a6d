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

A caller that can do with it what it does without waiting (:class:`~.model.LiveConsumer`) gets what
comes live without being woken::

    the log's writer ─ tells ─▶ the loop sleeps: borrow its turn, take the step, hand it over
                                it does not:     it does the same as it comes to it
                                more than a little, a backlog, a client that does not keep up:
                                                 the caller's task is woken, as ever

So a transaction that comes alone goes from the decoder's thread to the socket, without another
thread. That thread decodes for all, so it does so for a few streams only (``LogReader.prefer``),
and for BORROWED_BYTES of the log at most.

Bound: two batches, the caller's and, unless that is larger than AHEAD_BYTES_MAX, the one ahead,
beside what readers keep.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from spillway.delivery.model import StreamBatch
from spillway.delivery.shared_reader import AT_ONCE_BYTES
from spillway.errors import InvalidRequest, SpillwayError
from spillway.loop_turn import turn_of
from spillway.pg.lsn import Lsn
from spillway.plugins.messages import EncodedBatch

if TYPE_CHECKING:
    from spillway.delivery.active_consumer import ActiveConsumer
    from spillway.delivery.decoded_database import DecodedDatabase
    from spillway.delivery.model import LiveConsumer
    from spillway.delivery.reader import Step
    from spillway.delivery.shared_reader import KeptStep
    from spillway.delivery.shared_steps import SharedSteps
    from spillway.delivery.slots import Slot
    from spillway.txlog.reader import Snapshot

#: Behind a larger batch no step is taken ahead: a client that does not read would hold it, too.
AHEAD_BYTES_MAX: Final = 2 << 20
#: What another thread takes of the log in the loop's stead: a few small transactions.
BORROWED_BYTES: Final = 8 * 1024

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
        self._turn = turn_of(self._loop)
        #: what the caller may confirm: never what lies in a step ahead
        self._handed_out_lsn = begin
        # What was visible when the last step found the log's end; None while it did not.
        self._end: Snapshot | None = None
        # The log was written to since it was last looked at; who waits for that; whether the event
        # loop has yet to be told.
        self._more = False
        self._waiter: asyncio.Future[bool] | None = None
        self._notified = False
        # Who is given what comes while the caller waits.
        self._live: LiveConsumer | None = None
        decoded.log.add_listener(self._notify)
        slot.add_listener(self._wake)

    def _notify(self) -> None:
        # From the decoder's thread. What is visible changed before, so one wake-up serves all until
        # it has run.
        if self._notified:
            return
        if self._live is not None and self._turn.borrow():
            try:
                is_served = self._serve(BORROWED_BYTES)
            finally:
                self._turn.give_back()
            if is_served:
                return
        self._notified = True
        # The loop may be gone when the service stops.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        self._notified = False
        if not self._serve(AT_ONCE_BYTES):
            self._wake()

    def _wake(self) -> None:
        self._more = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)

    def _serve(self, limit_bytes: int) -> bool:
        """Give what has come to who is given it at once; False when the caller is to look itself.

        With the loop's turn, on whichever thread.
        """
        live, waiter = self._live, self._waiter
        if live is None or waiter is None or waiter.done() or not live.is_ready():
            return False
        try:
            self._slot.check_valid()
            self._decoded.check_readable()
            if self._end is None or self._end is self._decoded.log.snapshot():
                return self._end is not None
            kept = self._steps.next_at_once(limit_bytes)
        except Exception:  # noqa: BLE001 - not this thread's: the caller looks, and is raised the same
            return False
        if kept is None:
            return False
        # First of all it is on its way; the accounts can wait as long as this thread has the turn.
        step = kept.step
        try:
            if step.messages.count or step.messages.notices:
                live.take(step.messages, Lsn(max(self._handed_out_lsn, step.confirm_lsn)))
        except Exception as error:  # noqa: BLE001 - as above
            waiter.set_exception(error)
        finally:
            self._taken(self._steps.passed(kept))
            self._note_sent()
        return waiter.done() or (step.exhausted and not step.reached_end)

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

    async def next_batch(self, timeout_s: float, live: LiveConsumer | None = None) -> StreamBatch:
        """Wait for messages; see the interface."""
        if live is not None:
            self._decoded.log.prefer(self._notify)
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
            if not await self._wait(deadline, live):
                return self._batch(_NOTHING)

    async def _next_step(self) -> Step:
        """Take one step on and account for it."""
        step = self._taken(await self._steps.step())
        little = len(step.messages.payload) <= AHEAD_BYTES_MAX
        if step.messages.count and little and not step.exhausted and not step.reached_end:
            self._steps.begin()
        return step

    def _taken(self, kept: KeptStep) -> Step:
        step = kept.step
        self._handed_out_lsn = max(self._handed_out_lsn, step.confirm_lsn)
        if not self._peek:
            self._slot.count(kept.counts, kept.counted)
        self._end = kept.visible if step.exhausted else None
        return step

    async def _wait(self, deadline: float, live: LiveConsumer | None) -> bool:
        """Wait until the log was written to, and *live* was not given that; False at *deadline*."""
        if self._loop.time() >= deadline:
            return False
        if self._more:
            return True
        waiter: asyncio.Future[bool] = self._loop.create_future()
        self._waiter, self._live = waiter, live
        timer = self._loop.call_at(deadline, _expire, waiter)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiter = self._live = None

    def _note_sent(self) -> None:
        if self._active is not None:
            self._active.sent_lsn = Lsn(self._handed_out_lsn)

    def _batch(self, messages: EncodedBatch, *, final: bool = False) -> StreamBatch:
        confirm_lsn = self._handed_out_lsn
        self._note_sent()
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
