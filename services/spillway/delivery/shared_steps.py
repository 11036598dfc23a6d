"""A stream's way along a reader that others may follow, too: see
:mod:`spillway.delivery.shared_readers`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from spillway.plugins.messages import EncodedBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from spillway.delivery.reader import SlotReader
    from spillway.delivery.shared_reader import Boundary, Follower, KeptStep, SharedReader
    from spillway.delivery.shared_readers import SharedReaders
    from spillway.plugins.interface import OutputPlugin
    from spillway.txlog.reader import LogReader


async def share_steps(
    readers: SharedReaders,
    key: Hashable | None,
    log: LogReader,
    begin: int,
    plugin: OutputPlugin,
    new_plugin: Callable[[], OutputPlugin],
    open_reader: Callable[[OutputPlugin, int], SlotReader],
    batch_bytes: int,
    *,
    at_once: bool,
) -> SharedSteps:
    """Return a stream's steps from position *begin* on; *new_plugin* makes another one like
    *plugin*.

    The other arguments are those of :meth:`SharedReaders.join`, and so is what it raises.
    """

    def resume(boundary: Boundary) -> SlotReader:
        resumed = new_plugin()
        resumed.resume(boundary.state)
        return open_reader(resumed, boundary.place)

    shared, place = await readers.join(
        key, log, begin, plugin, open_reader, batch_bytes, at_once=at_once
    )
    return SharedSteps(readers, key, shared, place, resume)


class SharedSteps:
    """The steps of one stream. Used by one task at a time."""

    def __init__(
        self,
        readers: SharedReaders,
        key: Hashable | None,
        shared: SharedReader,
        place: Follower,
        resume: Callable[[Boundary], SlotReader],
    ) -> None:
        """Go on from *place* at *shared*; *resume* makes a reader of the stream's own for a
        boundary, on a worker.
        """
        self._readers = readers
        self._key = key
        self._shared = shared
        self._place = place
        self._resume = resume
        self._after = shared.boundary(place.number)
        self._loop = asyncio.get_running_loop()

    async def step(self) -> KeptStep:
        """Take the stream one step on.

        Raises:
            What the reader raises.
        """
        await self._catch_up()
        while (kept := self._shared.kept(self._place.number)) is None:
            if self._place.number < self._shared.first:
                await self._leave()
            elif (wait := self._wait()) is not None:
                # Not awaited itself: who is cancelled must not cancel it for the others.
                await asyncio.wait([wait])
            else:
                await self._shared.take()
        kept = self.passed(kept)
        if (
            self._key is not None
            and kept.step.exhausted
            and self._place.number == self._shared.next
        ):
            await self._join()
        return kept

    def next_at_once(self, limit_bytes: int) -> KeptStep | None:
        """Return the next step, which :meth:`passed` must be told of before anything else happens;
        None if it has to be waited for, or is more than *limit_bytes* of the log.

        Raises:
            What the reader raises.
        """
        shared, number = self._shared, self._place.number
        # With several readers one may be caught up with, or joined.
        if not shared.at_end or (
            self._key is not None and not self._readers.is_only(self._key, shared)
        ):
            return None
        ahead = shared.next - number
        if ahead:
            return shared.kept(number) if ahead == 1 else None
        return shared.make_at_once(limit_bytes)

    def passed(self, kept: KeptStep) -> KeptStep:
        """Account for *kept*, which the stream has from here on; return it with what goes with
        it.
        """
        self._shared.keep_made()
        self._place.number += 1
        self._place.made += kept.cost
        if self._place.number < self._shared.next:
            kept = self._with_following(kept)
        self._after = kept.after
        self._place.moved_s = self._loop.time()
        if self._key is None:
            self._shared.forget_before(self._place.number)
        else:
            self._readers.look(self._key)
        return kept

    def _with_following(self, kept: KeptStep) -> KeptStep:
        """Join to *kept* the steps behind it that were little because they were live: who is late
        gets them in one batch.
        """
        steps, payload_bytes = [kept.step], len(kept.step.messages.payload)
        last = kept
        while (
            last.step.exhausted and (following := self._shared.kept(self._place.number)) is not None
        ):
            payload_bytes += len(following.step.messages.payload)
            if payload_bytes > self._shared.batch_bytes:
                break
            steps.append(following.step)
            last = following
            self._place.number += 1
            self._place.made += following.cost
        if last is kept:
            return kept
        messages = EncodedBatch.joined([step.messages for step in steps])
        step = last.step._replace(messages=messages)
        return last._replace(step=step, counted=kept.counted, first_lsn=kept.first_lsn)

    def begin(self) -> None:
        """Have the next step taken ahead, if nobody has, and nobody is to be waited for."""
        if (
            self._place.number == self._shared.next
            and self._shared.is_usable
            and self._wait() is None
        ):
            self._shared.begin()

    def _wait(self) -> asyncio.Future[None] | None:
        """Return what is waited for before the next step is taken, None for nothing."""
        shared = self._shared
        return shared.wait.begin() if shared.wait is not None and shared.is_behind else None

    async def _catch_up(self) -> None:
        """Move to a reader ahead of ours, if it keeps the step that comes next."""
        other = self._readers.find_ahead(self._key, self._shared, self._place.number, self._after)
        if other is not None:
            self._place.left = False
            await self._move(other, self._place.number)

    async def _leave(self) -> None:
        """Go on with a reader of our own: the step that comes next is not kept any more."""
        after = self._after
        assert after is not None
        reader = await self._loop.run_in_executor(self._readers.workers, self._resume, after)
        # The middle of a large transaction can't be entered: what was handed out of it is made once
        # more, and passed over.
        own = self._shared.sibling(reader, after, self._place.number, self._place.made)
        self._readers.add(self._key, own, waits=False)
        self._place.left = True
        await self._move(own, self._place.number)

    async def _join(self) -> None:
        """Share the reader of other streams that stand where we do, at the log's end."""
        other = self._readers.find_at_end(self._key, self._shared)
        if other is not None:
            self._place.left = False
            self._place.made = other.made
            await self._move(other, other.next)

    async def _move(self, shared: SharedReader, number: int) -> None:
        before, self._shared = self._shared, shared
        self._place.number = number
        shared.followers.add(self._place)
        await self._readers.release(self._key, before, self._place)

    async def close(self) -> None:
        """Take no more steps; the last stream closes the reader."""
        await self._readers.release(self._key, self._shared, self._place)
