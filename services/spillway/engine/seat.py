"""A stream's place at a reader that it may share: see :mod:`spillway.engine.shared_reader`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from spillway.plugins.messages import EncodedBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from spillway.engine.reader import SlotReader
    from spillway.engine.shared_reader import Boundary, KeptStep, SharedReader, SharedReaders


class Seat:
    """A stream's place at a shared reader. Used by one task at a time."""

    def __init__(
        self,
        readers: SharedReaders,
        key: Hashable | None,
        shared: SharedReader,
        number: int,
        resume: Callable[[Boundary], SlotReader],
    ) -> None:
        """Sit down at step *number*; *resume* makes a reader of the stream's own for a boundary, on a worker."""
        self._readers = readers
        self._key = key
        self._shared = shared
        #: of the step that comes next
        self.number = number
        self._resume = resume
        self._after = shared.boundary(number)
        self._loop = asyncio.get_running_loop()
        #: about the bytes of all steps before it
        self.made = shared.made_before(number)
        #: when it took its last step
        self.moved_s = self._loop.time()
        #: it was too slow, and went on alone
        self.left = False
        shared.seats.add(self)

    async def step(self) -> KeptStep:
        """Take the stream one step on.

        Raises:
            What the reader raises.
        """
        await self._catch_up()
        while (kept := self._shared.kept(self.number)) is None:
            if self.number < self._shared.first:
                await self._leave()
            elif (held := self._hold()) is not None:
                # Not awaited itself: who is cancelled must not cancel it for the others.
                await asyncio.wait([held])
            else:
                await self._shared.take()
        self.number += 1
        self.made += kept.cost
        if self.number < self._shared.next:
            kept = self._with_following(kept)
        self._after = kept.after
        self.moved_s = self._loop.time()
        if self._key is None:
            self._shared.forget_before(self.number)
            return kept
        self._readers.look(self._key)
        if kept.step.exhausted and self.number == self._shared.next:
            await self._join()
        return kept

    def _with_following(self, kept: KeptStep) -> KeptStep:
        """Join to *kept* the steps behind it that were little because they were live: who is late gets them in one batch."""
        steps, payload_bytes = [kept.step], len(kept.step.messages.payload)
        last = kept
        while last.step.exhausted and (following := self._shared.kept(self.number)) is not None:
            payload_bytes += len(following.step.messages.payload)
            if payload_bytes > self._shared.batch_bytes:
                break
            steps.append(following.step)
            last = following
            self.number += 1
            self.made += following.cost
        if last is kept:
            return kept
        messages = EncodedBatch.joined([step.messages for step in steps])
        step = replace(last.step, messages=messages)
        return last._replace(step=step, counted=kept.counted, first_lsn=kept.first_lsn)

    def begin(self) -> None:
        """Have the next step taken ahead, if nobody has, and nobody is to be waited for."""
        if self.number == self._shared.next and self._shared.is_usable and self._hold() is None:
            self._shared.begin()

    def _hold(self) -> asyncio.Future[None] | None:
        """Return what is waited for before the next step is taken, None for nothing."""
        shared = self._shared
        return shared.hold.begin() if shared.hold is not None and shared.is_behind else None

    async def _catch_up(self) -> None:
        """Move to a reader ahead of ours, if it keeps the step that comes next."""
        other = self._readers.find_ahead(self._key, self._shared, self.number, self._after)
        if other is not None:
            self.left = False
            await self._move(other, self.number)

    async def _leave(self) -> None:
        """Go on with a reader of our own: the step that comes next is not kept any more."""
        after = self._after
        assert after is not None
        reader = await self._loop.run_in_executor(self._readers.workers, self._resume, after)
        # The middle of a large transaction can't be entered: what was handed out of it is made once more, and passed over.
        own = self._shared.sibling(reader, after, self.number, self.made)
        self._readers.add(self._key, own, waits=False)
        self.left = True
        await self._move(own, self.number)

    async def _join(self) -> None:
        """Share the reader of other streams that stand where we do, at the log's end."""
        other = self._readers.find_at_end(self._key, self._shared)
        if other is not None:
            self.left = False
            self.made = other.made
            await self._move(other, other.next)

    async def _move(self, shared: SharedReader, number: int) -> None:
        before, self._shared = self._shared, shared
        self.number = number
        shared.seats.add(self)
        await self._readers.release(self._key, before, self)

    async def close(self) -> None:
        """Give the seat up; the last one closes the reader."""
        await self._readers.release(self._key, self._shared, self)
