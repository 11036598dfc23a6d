"""Which streams share a reader, and how much their readers keep.

Slots with the same plugin and options, at the same place of one log, get the same messages. Their
streams then follow one :class:`~spillway.delivery.shared_reader.SharedReader`.

A stream *joins* where it stands at one of the boundaries between the kept steps with an encoder in
the same state (pgoutput's knows what its consumer was told). That is so when it begins where
another began, and when both have seen the end of the log: who was behind has caught up. A stream
*leaves* when the step that it needs next is not kept any more: it was too slow, and goes on with a
reader of its own, whose plugin resumes from the state at the boundary. Whoever is ahead waits for
those who are just behind, but not for long: :mod:`spillway.delivery.stragglers`.

Readers that began at the same place number their steps alike (their *origin*; it is kept when a
stream leaves). So a stream whose reader is behind another of the same origin *catches up* when the
other keeps the step that it needs: clients that begin together come within tenths of a second, in
which the first has had more made than is kept.

Only our own plugins share, those whose state can be told (``OutputPlugin.state``), and streams that
end at the same place or never.

Used on the event loop. Memory: KEPT_BYTES of kept steps, and the newest step of each reader. Of
what all its streams have taken, a reader keeps PASSED_BYTES and PASSED_STEPS at most: live, a step
is a transaction, so that 8 MiB of them would be thousands, a dozen objects each, which Python's
collector looks at again and again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from spillway.delivery.shared_reader import SharedReader
from spillway.delivery.stragglers import Pace, Straggler, StragglerWait
from spillway.txlog.cursor import TransactionCursor

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from concurrent.futures import Executor

    from spillway.delivery.reader import SlotReader
    from spillway.delivery.shared_reader import Boundary, Follower
    from spillway.plugins.interface import OutputPlugin
    from spillway.txlog.reader import LogReader

KEPT_BYTES: Final = 32 << 20
#: What a reader keeps though all its streams have taken it: for those who begin just behind them.
PASSED_BYTES: Final = 8 << 20
PASSED_STEPS: Final = 256


class SharedReaders:
    """The readers of the service's streams, by what streams must have in common to share one."""

    def __init__(
        self, workers: Executor, kept_bytes: int = KEPT_BYTES, pace: Pace | None = None
    ) -> None:
        self.workers = workers
        self._pace = pace or Pace()
        self._kept_bytes = kept_bytes
        self._by_key: dict[Hashable, list[SharedReader]] = {}
        # Whose steps are kept, the oldest first, by the number of the step behind; and the bytes of
        # them all.
        self._order: deque[tuple[SharedReader, int]] = deque()
        self._bytes = 0

    async def join(
        self,
        key: Hashable | None,
        log: LogReader,
        begin: int,
        plugin: OutputPlugin,
        open_reader: Callable[[OutputPlugin, int], SlotReader],
        batch_bytes: int,
        *,
        at_once: bool,
    ) -> tuple[SharedReader, Follower]:
        """Have a stream at position *begin* follow a reader, one that others follow if that can be.

        Args:
            key: equal for streams that may share: log, plugin, options, batch_bytes; None for one
                that may not.
            log: what is read.
            begin: the stream's position.
            plugin: a fresh one; the reader's from here on, or shut down.
            open_reader: makes the reader of a plugin at a position; it owns the plugin. Called on a
                worker.
            batch_bytes: of a step.
            at_once: see :class:`SharedReader`.

        Raises:
            LsnNotRetained: the log begins after *begin*.
        """
        try:
            for shared in tuple(self._by_key.get(key, ())):
                number = await self._number_at(shared, log, begin, plugin.state())
                if number is not None:
                    plugin.shutdown()
                    return shared, shared.follow(number)
        except BaseException:
            plugin.shutdown()
            raise

        def open_at() -> tuple[SlotReader, int]:
            reader = open_reader(plugin, begin)
            # The same for all who begin before the same transaction.
            return reader, max(begin, _first_lsn(log, begin))

        loop = asyncio.get_running_loop()
        reader, place = await loop.run_in_executor(self.workers, open_at)
        shared = SharedReader(reader, log, self.workers, batch_bytes, place, at_once=at_once)
        self.add(key, shared, waits=True)
        return shared, shared.follow(0)

    async def _number_at(
        self, shared: SharedReader, log: LogReader, begin: int, state: object
    ) -> int | None:
        """Return the number of the step of *shared* that a stream may begin with at *begin*, None
        for none.
        """
        head, number = shared.head, shared.next
        if head is None:
            return None
        loop = asyncio.get_running_loop()
        at_head, at_begin = await loop.run_in_executor(
            self.workers, _first_lsns, log, head.place, begin
        )
        if not shared.followers or not shared.is_usable:
            return None
        # It may have gone on meanwhile.
        if at_head == at_begin != _NOT_DECODED and shared.next == number and shared.head == head:
            return number if not head.steps and head.state == state else None
        return shared.find(at_begin, state) if at_begin > 0 else None

    def add(self, key: Hashable | None, shared: SharedReader, *, waits: bool) -> None:
        """Make a reader known to those who come; with *waits* it waits for those just behind."""
        if key is None:
            return
        self._by_key.setdefault(key, []).append(shared)
        shared.on_kept = self._note
        if waits:
            shared.wait = StragglerWait(self._pace, lambda: self._behind(key, shared))

    def _behind(self, key: Hashable, shared: SharedReader) -> Iterator[Straggler]:
        """Yield the streams that may come to share the steps that *shared* takes."""
        for other in self._by_key[key]:
            if other.origin == shared.origin is not None:
                for follower in other.followers:
                    if not follower.left:
                        yield Straggler(shared.made - follower.made, follower.moved_s)

    def look(self, key: Hashable) -> None:
        """See whether somebody waits for nobody any more: a stream has taken a step, or has
        gone.
        """
        for shared in self._by_key.get(key, ()):
            if shared.wait is not None:
                shared.wait.look()

    async def release(self, key: Hashable | None, shared: SharedReader, follower: Follower) -> None:
        """Take a stream off a reader; the last one closes it."""
        shared.followers.discard(follower)
        if key is not None:
            self.look(key)
        if shared.followers:
            return
        if key is not None:
            same = self._by_key[key]
            same.remove(shared)
            if not same:
                del self._by_key[key]
            shared.on_kept = None
            if shared.wait is not None:
                shared.wait.end()
            self._order = deque(entry for entry in self._order if entry[0] is not shared)
            self._bytes -= shared.forget()
        # To its end, also when the stream that was the last is cancelled.
        await asyncio.shield(asyncio.ensure_future(shared.close()))

    def is_only(self, key: Hashable, shared: SharedReader) -> bool:
        """Whether *shared* is the only reader of its kind."""
        same = self._by_key.get(key, ())
        return len(same) == 1 and same[0] is shared

    def find_ahead(
        self, key: Hashable | None, shared: SharedReader, number: int, after: Boundary | None
    ) -> SharedReader | None:
        """Return a reader ahead of *shared* whose step *number*, which it keeps, begins at
        *after*.
        """
        same = self._by_key.get(key, ()) if key is not None else ()
        if len(same) > 1 and after is not None:
            for other in same:
                if (
                    other.next > shared.next
                    and other.first <= number < other.next
                    and other.is_usable
                    and other.origin == shared.origin
                    and other.boundary(number) == after
                ):
                    return other
        return None

    def find_at_end(self, key: Hashable | None, shared: SharedReader) -> SharedReader | None:
        """Return an older reader that stands where *shared* does, both at the log's end."""
        for other in self._by_key.get(key, ()):
            if other is shared:
                break
            if other.at_end and shared.at_end and other.head == shared.head is not None:
                return other
        return None

    def _note(self, shared: SharedReader) -> None:
        """Account for a step that *shared* keeps from now on, and forget the oldest that are too
        much.
        """
        order = self._order
        order.append((shared, shared.next))
        self._bytes += shared.newest_cost
        self._bytes -= shared.limit(PASSED_BYTES, PASSED_STEPS)
        while order and order[0][0].first >= order[0][1]:
            order.popleft()
        for _ in range(len(order)):
            if self._bytes <= self._kept_bytes:
                break
            oldest, number = order.popleft()
            if number == oldest.next:
                # The newest of its reader, which stays.
                order.append((oldest, number))
            else:
                self._bytes -= oldest.forget_before(number)


#: What _first_lsn says when transactions before the position may yet become visible.
_NOT_DECODED: Final = -1


def _first_lsns(log: LogReader, head: int, begin: int) -> tuple[int, int]:
    """Return final_lsn of the first transaction from *head* on and from *begin* on.

    When they are equal, none lies between the two. In this order: what was before *head* is
    visible, also when *begin* is looked at.
    """
    return _first_lsn(log, head), _first_lsn(log, begin)


def _first_lsn(log: LogReader, begin: int) -> int:
    """Return final_lsn of the first transaction from *begin* on; 0 when there is none yet."""
    cursor = TransactionCursor(log, begin)
    try:
        found = cursor.next()
        if found is not None:
            return found.header.final_lsn
        return 0 if begin <= cursor.decoded_lsn else _NOT_DECODED
    finally:
        cursor.close()
