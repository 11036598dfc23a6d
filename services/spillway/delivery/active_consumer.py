"""The consumer that has a slot, as long as it has it: who it is, how it stands, and the way to end
its session.

Whoever works for it looks at :meth:`ActiveConsumer.ended` wherever it waits for long. So a session
that is ended leaves the slot at once, whatever its client does: a stream whose client reads
nothing, too. What is not long is not interrupted: a confirmation that has begun is stored.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from spillway.caller import caller
from spillway.delivery.model import Consumer
from spillway.errors import SessionEnded

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from spillway.pg.lsn import Lsn

T = TypeVar("T")


class ActiveConsumer:
    """One consumer's session on a slot. Used on the event loop."""

    def __init__(self, slot_name: str, kind: str) -> None:
        """Take note of the present task's client; *kind* is what it does."""
        self._slot_name = slot_name
        self._kind = kind
        self._caller = caller()
        self._since = datetime.now(UTC)
        self.last_feedback_at: datetime | None = None
        self.sent_lsn: Lsn | None = None
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: whether its client can be asked for an answer at all
        self._can_be_asked = False
        self._question = asyncio.Event()
        self._answer = asyncio.Event()

    def consumer(self) -> Consumer:
        """Describe it."""
        return Consumer(
            kind=self._kind,
            address=self._caller.address,
            client=self._caller.client,
            subscription=self._caller.subscription,
            since=self._since,
            last_feedback_at=self.last_feedback_at,
            sent_lsn=self.sent_lsn,
            protocol=self._caller.protocol,
            user=self._caller.user,
        )

    def fed_back(self) -> None:
        """Take note that the client sent feedback."""
        self.last_feedback_at = datetime.now(UTC)

    async def wanted(self) -> None:
        """Wait until somebody wants to know whether the client is there: ask it, and say
        :meth:`heard` when it answers.
        """
        self._can_be_asked = True
        await self._question.wait()
        self._question.clear()

    def heard(self) -> None:
        """Take note that the client is there."""
        self._answer.set()

    async def is_silent(self, patience_s: float) -> bool:
        """Have the client asked whether it is there, and say if it gives no answer in time. One
        that can't be asked is not silent.
        """
        if not self._can_be_asked:
            return False
        self._answer.clear()
        self._question.set()
        try:
            async with asyncio.timeout(patience_s):
                await self._answer.wait()
        except TimeoutError:
            return True
        return False

    def end(self) -> None:
        """End the session; it leaves the slot when its task runs next."""
        if not self._end.done():
            self._end.set_result(None)

    async def ended(self) -> None:
        """Wait until the session is ended, and raise that.

        Raises:
            SessionEnded: somebody ended it.
        """
        await asyncio.shield(self._end)
        raise SessionEnded(
            f'the session on replication slot "{self._slot_name}" was ended by an administrator',
            hint="What was not confirmed comes again to who takes the slot next.",
            slot=self._slot_name,
        )

    async def unless_ended(self, work: Awaitable[T]) -> T:
        """Wait for *work*, but not longer than the session lasts.

        Raises:
            SessionEnded: somebody ended it.
        """
        doing = asyncio.ensure_future(work)
        try:
            await asyncio.wait((doing, self._end), return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                await self.ended()
            return await doing
        finally:
            # A worker thread goes on to its end; what it finds is dropped.
            doing.cancel()
