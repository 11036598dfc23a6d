"""A consumer's hold on a slot: pulls batches off the transaction log as they come.

Steps of the reader are taken in two ways, by where it stands::

                      ┌──────── more than a little has come ────────┐
                      ▼                                             │
    start ▶ BEHIND: on a worker, one step ahead of the caller     LIVE: on the event loop, at once
                      │                                             ▲
                      └──────── a step found the log's end ─────────┘

Behind, the next batch is made while the caller writes this one, so that encoding and the network overlap.
Live, a commit costs less to encode than to hand to another thread and back; what comes is taken on the event
loop, as long as it is little (:data:`AT_ONCE_BYTES` of the log, in the file that was read before) and the plugin is
one of ours, which wait for nothing. Nothing is polled: the log's writer wakes the stream, once for however much it
has published by the time the stream looks.

Bound: two batches, the caller's and the one ahead.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from spillway.engine.model import StreamBatch
from spillway.errors import InvalidRequest
from spillway.pg.lsn import Lsn
from spillway.plugins.messages import EncodedBatch

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from spillway.engine.reader import Counts, SlotReader, Step
    from spillway.engine.session import Session
    from spillway.engine.slots import Slot
    from spillway.txlog.log import Snapshot

#: What the event loop may spend on one stream's step: some 500 small rows, which take the slowest of our plugins
#: less than a millisecond.
AT_ONCE_BYTES: Final = 64 * 1024

_NOTHING: Final = EncodedBatch(b"", b"", b"", b"", 0)


class EngineStream:
    """Implements :class:`spillway.engine.interface.SlotStream`. Used by one task at a time for batches.

    Args:
        slot: whose stream this is; counted into, and confirmed unless *peek*.
        session: decodes what *reader* reads.
        reader: the stream's own from here on.
        workers: threads for steps that take long.
        batch_bytes: payload bytes after which a batch ends.
        peek: it reads beside whoever holds the slot.
        at_once: whether the plugin may be called on the event loop, because it never waits.
    """

    def __init__(
        self,
        slot: Slot,
        session: Session,
        reader: SlotReader,
        workers: Executor,
        *,
        batch_bytes: int,
        peek: bool,
        at_once: bool = False,
    ) -> None:
        self._slot = slot
        self._session = session
        self._reader = reader
        self._workers = workers
        self._batch_bytes = batch_bytes
        self._peek = peek
        self._at_once = at_once
        self._loop = asyncio.get_running_loop()
        # The step on a worker: awaited now, or ahead of the caller.
        self._step: asyncio.Future[tuple[Step, Counts]] | None = None
        self._counted = reader.counts
        #: what the caller may confirm: never what lies in the step ahead
        self._handed_out_lsn = reader.confirm_lsn
        # What was visible when the last step found the log's end; None while it did not.
        self._end: Snapshot | None = None
        # A worker has had rows, so that what a plugin loads at its first is loaded.
        self._began = False
        # The log was written to since it was last looked at; who waits for that; whether the event loop has yet to be told.
        self._more = False
        self._waiter: asyncio.Future[bool] | None = None
        self._notified = False
        session.log.add_listener(self._notify)

    def _notify(self) -> None:
        # From the decoder's thread. What is visible changed before, so one wake-up serves all until it has run.
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

    async def next_batch(self, timeout_s: float) -> StreamBatch:
        """Wait for messages; see the interface."""
        deadline = self._loop.time() + timeout_s
        while True:
            self._slot.check_valid()
            self._more = False
            if self._end is None or self._end is not self._session.log.snapshot():
                step = await self._next_step()
                if step.messages.count or step.reached_end:
                    return self._batch(step.messages, final=step.reached_end)
            self._session.check_readable()
            if not await self._wait(deadline):
                return self._batch(_NOTHING)

    async def _next_step(self) -> Step:
        """Take the reader one step on and account for it."""
        visible = self._session.log.snapshot()
        if self._step is None and self._is_little(visible):
            step, counts = self._take_step()
        else:
            if self._step is None:
                self._step = self._loop.run_in_executor(self._workers, self._take_step)
            # When the caller is cancelled the step stays, for the next call or for close.
            step, counts = await asyncio.shield(self._step)
            self._step = None
            self._began = self._began or step.messages.count > 0
        self._handed_out_lsn = step.confirm_lsn
        if not self._peek:
            self._slot.count(counts, self._counted)
        self._counted = counts
        self._end = visible if step.exhausted else None
        if step.messages.count and not step.exhausted and not step.reached_end:
            self._step = self._loop.run_in_executor(self._workers, self._take_step)
        return step

    def _take_step(self) -> tuple[Step, Counts]:
        step = self._reader.step(self._batch_bytes)
        return step, self._reader.counts

    def _is_little(self, visible: Snapshot | None) -> bool:
        """Say whether the event loop may read from where the reader found the log's end up to *visible*."""
        before = self._end
        return (
            self._at_once
            and self._began
            and before is not None
            and visible is not None
            and visible.segments[-1] is before.segments[-1]
            and visible.end - before.end <= AT_ONCE_BYTES
        )

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
        first = int.from_bytes(messages.lsns[:8], "little") if messages.count else confirm_lsn
        return StreamBatch(
            messages=messages,
            wal_start=Lsn(first),
            wal_end=Lsn(self._session.decoded_lsn),
            confirm_lsn=Lsn(confirm_lsn),
            final=final,
        )

    async def confirm(self, write_lsn: Lsn, flush_lsn: Lsn, apply_lsn: Lsn) -> None:  # noqa: ARG002
        """Advance the slot to *flush_lsn*, but never past what was handed out."""
        if self._peek:
            raise InvalidRequest(
                "a peeking stream can't confirm", hint="Open it without peek, or advance the slot."
            )
        self._slot.confirm(min(flush_lsn, self._handed_out_lsn))

    async def close(self) -> None:
        """Stop; waits for a step that is under way, since it uses the cursor."""
        self._session.log.remove_listener(self._notify)
        if self._step is not None:
            await asyncio.wait([self._step])
            # What it raised nobody is left to be told.
            if not self._step.cancelled():
                self._step.exception()
        self._reader.close()


def _expire(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
