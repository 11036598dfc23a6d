"""A consumer's hold on a slot: pulls batches off the transaction log as they come."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from spillway.engine.model import StreamBatch
from spillway.errors import InvalidRequest
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from spillway.engine.reader import SlotReader, Step
    from spillway.engine.session import Session
    from spillway.engine.slots import Slot


class EngineStream:
    """Implements :class:`spillway.engine.interface.SlotStream`. Used by one task at a time for batches.

    Bound: one batch. The next one is read when the caller asks for it.
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
    ) -> None:
        self._slot = slot
        self._session = session
        self._reader = reader
        self._workers = workers
        self._batch_bytes = batch_bytes
        self._peek = peek
        self._loop = asyncio.get_running_loop()
        self._more = asyncio.Event()
        self._more.set()
        self._step: asyncio.Future[Step] | None = None
        session.log.add_listener(self._notify)

    def _notify(self) -> None:
        # From the decoder's thread; the loop may be gone when the service stops.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._more.set)

    async def next_batch(self, timeout_s: float) -> StreamBatch:
        """Wait for messages; see the interface."""
        deadline = self._loop.time() + timeout_s
        while True:
            self._slot.check_valid()
            self._more.clear()
            before = self._reader.counts
            self._step = self._loop.run_in_executor(
                self._workers, self._reader.step, self._batch_bytes
            )
            step = await asyncio.shield(self._step)
            if not self._peek:
                self._slot.count(self._reader.counts, before)
            if step.messages.count or step.reached_end:
                return self._batch(step)
            self._session.check_readable()
            try:
                await asyncio.wait_for(self._more.wait(), max(0.0, deadline - self._loop.time()))
            except TimeoutError:
                return self._batch(step)

    def _batch(self, step: Step) -> StreamBatch:
        messages = step.messages
        first = int.from_bytes(messages.lsns[:8], "little") if messages.count else step.confirm_lsn
        return StreamBatch(
            messages=messages,
            wal_start=Lsn(first),
            wal_end=Lsn(self._session.decoded_lsn),
            confirm_lsn=Lsn(step.confirm_lsn),
            final=step.reached_end,
        )

    async def confirm(self, write_lsn: Lsn, flush_lsn: Lsn, apply_lsn: Lsn) -> None:  # noqa: ARG002
        """Advance the slot to *flush_lsn*, but never past what was handed out."""
        if self._peek:
            raise InvalidRequest(
                "a peeking stream can't confirm", hint="Open it without peek, or advance the slot."
            )
        self._slot.confirm(min(flush_lsn, self._reader.confirm_lsn))

    async def close(self) -> None:
        """Stop; waits for a step that is under way, since it uses the cursor."""
        self._session.log.remove_listener(self._notify)
        if self._step is not None and not self._step.done():
            await asyncio.wait([self._step])
        self._reader.close()
