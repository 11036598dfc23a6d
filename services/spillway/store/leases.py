"""The leases on sources that this process holds.

Several processes may share a metadata store, each with a data directory of its own. One of them
serves a source: the one that holds its lease. It renews it long before it runs out; a process that
was paused, or cut off, for longer may find that another one has taken the source over. It can't
know that before it asks, so it proves its lease with every write
(:class:`~spillway.store.rows.Fence`), in the write's own transaction. ::

                 acquire                         renew, each third of the lease's time
    STANDING BY ─────────▶ taken ── begin ──▶ HELD ───┐
         ▲                                      │ ◀───┘
         └──── lose: a renewal or a write was refused

Who stands by asks each :data:`STANDBY_S`, whatever went wrong the last time, and so has a lease
within :data:`TAKEOVER_S` of its end, as long as the metadata store answers. A lease that has run
out may be that of a process that serves and could not renew it: the store did not answer, or
somebody had its tables locked. Such a process asks as often, and is let renew it: a lease is taken
from another process when :data:`LOOKS` in a row have found it run out, and untouched in between. A
source that changes its service for nothing loses what only the former one's disk has.

The holder is the data directory (``DataDirectory.instance``): the same process started again takes
its lease back at once, another one waits until it runs out or is given back. Who has lost a lease
while it ran waits, too: should a copy of the data directory have it, the two would take it from
each other for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.errors import LeaseLost, SpillwayError
from spillway.store.rows import SOURCE_LEASE, Fence, LeaseState, Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spillway.store.metadata import MetadataStore


#: how often a lease is asked for that another process has, at least
STANDBY_S: Final = 1.0
#: A lease that ran out, or was given back, is another's so many seconds later at the latest; the
#: answers of a metadata store that is slow are in it.
TAKEOVER_S: Final = 5.0


#: how many answers in a row must have found a lease run out before it is taken from another process
LOOKS: Final = 3


class Taken(NamedTuple):
    """A lease that was acquired."""

    fence: Fence
    #: whoever had it before did not give it back
    from_another: bool


class Leases:
    """Leases on sources, by their names. Used on the event loop."""

    def __init__(self, metadata: MetadataStore, holder: str, ttl_s: float) -> None:
        self._metadata = metadata
        self._holder = holder
        self._ttl_s = ttl_s
        self._fences: dict[str, Fence] = {}
        self._lost_once: set[str] = set()
        #: of leases that were found run out: which, and how often
        self._run_out: dict[str, tuple[LeaseState, int]] = {}
        self._wake_ups: dict[str, asyncio.Event] = {}
        self._listeners: list[Callable[[str], None]] = []

    @property
    def ttl_s(self) -> float:
        """How long a lease lasts without renewal."""
        return self._ttl_s

    @property
    def renewal_s(self) -> float:
        """How often a lease that is held is renewed: two renewals may fail before it runs out."""
        return self._ttl_s / 3

    def next_look_s(self, source: str, retry_s: float | None) -> float:
        """How long to wait until a source is looked after again; *retry_s* is what a failure asks
        for.

        Whoever has the lease renews it however little else works, and as soon as that can be done
        again; whoever stands by must not wait longer because the metadata store had no answer just
        now.
        """
        is_renewed = source in self._fences and retry_s is None
        longest = self.renewal_s if is_renewed else min(STANDBY_S, self.renewal_s)
        return longest if retry_s is None else min(longest, retry_s)

    def on_lost(self, listener: Callable[[str], None]) -> None:
        """Have *listener* called with the name of a source whose lease was lost, at once."""
        self._listeners.append(listener)

    def fence(self, source: str) -> Fence | None:
        """Return the proof that the lease on *source* is this process's; None when it is not."""
        return self._fences.get(source)

    def held(self, source: str) -> Fence:
        """Return the proof that the lease on *source* is this process's.

        Raises:
            LeaseLost: it is not.
        """
        fence = self._fences.get(source)
        if fence is None:
            raise held_by_another(source)
        return fence

    @contextmanager
    def fenced(self, source: str) -> Iterator[Fence]:
        """Write something of *source* with the proof that this gives; a write that is refused loses
        the lease.

        Raises:
            LeaseLost: it is not, or no longer, this process's.
        """
        fence = self.held(source)
        try:
            yield fence
        except LeaseLost:
            if self._fences.get(source) == fence:
                self.lose(source)
            raise held_by_another(source) from None

    @contextmanager
    def owned(self, source: str) -> Iterator[Owner]:
        """Act on the slots of *source* as the process that this says; what is refused for the
        lease's sake loses the lease.

        Raises:
            LeaseLost: it is not, or no longer, this process's.
        """
        with self.fenced(source) as fence:
            yield Owner(source, fence.token, os.getpid())

    def lose(self, source: str) -> None:
        """Know that another process has the lease; whoever waits to renew it wakes."""
        if self._fences.pop(source, None) is not None:
            self._lost_once.add(source)
            for listener in self._listeners:
                listener(source)
            self._wake_up(source).set()

    async def acquire(self, source: str, *, is_new: bool = False) -> Taken | None:
        """Take the lease, to be followed by :meth:`begin`; None while another process has it, or
        may be about to renew it. That of a source that *is_new* is nobody's to renew.
        """
        resource = _resource(source)
        stands = await self._metadata.lease(resource)
        before = None if stands is None else stands.holder
        is_own = before == self._holder and source not in self._lost_once
        if stands is not None and not (is_own or is_new) and not self._is_left(source, stands):
            return None
        token = await self._metadata.acquire_lease(
            resource, self._holder, self._ttl_s, restarted=source not in self._lost_once
        )
        if token is None:
            return None
        self._run_out.pop(source, None)
        return Taken(Fence(resource, token), before not in (None, self._holder))

    def _is_left(self, source: str, stands: LeaseState) -> bool:
        """Whether a lease of another process has run out, and been found so often enough."""
        if not stands.has_run_out:
            self._run_out.pop(source, None)
            return False
        found, looks = self._run_out.get(source, (stands, 0))
        looks = looks + 1 if found == stands else 1
        self._run_out[source] = stands, looks
        return looks >= LOOKS

    def begin(self, source: str, fence: Fence) -> None:
        """Hold the lease from now on: what it is needed for is ready."""
        self._fences[source] = fence
        self._lost_once.discard(source)

    async def renew(self, source: str) -> bool:
        """Extend the lease; False when another process has taken it, which loses it."""
        fence = self._fences.get(source)
        if fence is None:
            return False
        if await self._metadata.renew_lease(fence.resource, fence.token, self._ttl_s):
            return True
        if self._fences.get(source) == fence:
            self.lose(source)
        return False

    async def release(self, source: str, fence: Fence | None = None) -> None:
        """Give the lease back, or one that was acquired and not begun, so that others need not
        wait.
        """
        fence = self._fences.pop(source, None) or fence
        self._wake_ups.pop(source, None)
        if fence is not None:
            with contextlib.suppress(SpillwayError):
                await self._metadata.release_lease(fence.resource, fence.token)

    async def wait(self, source: str, seconds: float) -> None:
        """Wait until *seconds* have passed, or the lease is lost."""
        wake_up = self._wake_up(source)
        # Not wait_for: it swallows a cancellation that comes together with the loss, and then
        # whoever waits for the end of the caller's task waits for ever.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await wake_up.wait()
        wake_up.clear()

    def _wake_up(self, source: str) -> asyncio.Event:
        return self._wake_ups.setdefault(source, asyncio.Event())


def held_by_another(source: str) -> LeaseLost:
    """Make the error for what only the process may do that serves *source*."""
    return LeaseLost(
        f'source "{source}" is not served by this process: another one holds its lease, or this '
        "one is about to take it",
        hint="Nothing was changed. Ask the process that serves it; this one takes it over within "
        "seconds after that one stops or its lease runs out.",
        source=source,
    )


def _resource(source: str) -> str:
    return SOURCE_LEASE + source
