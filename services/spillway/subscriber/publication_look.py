"""Whether the publications that a subscription names are there, as of where decoding is.

PostgreSQL 18 passes over a publication that does not exist, with a warning in the publisher's log:
its tables' changes are not sent, nor are they later. Older ones fail when their walsender comes to
it. Either is worth being told before somebody misses rows.

The mirrored catalog is asked now and then, beside whatever else is done, and never waited for. What
could not be asked is not known (None), which is neither well nor wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final

from spillway.errors import SpillwayError

if TYPE_CHECKING:
    from spillway.service.interface import EngineInterface
    from spillway.store.rows import SubscriptionRow

log = logging.getLogger(__name__)

#: between two questions; each is a moment of the decoding thread's
_INTERVAL_S: Final = 10.0


class PublicationLook:
    """Knows which publications of one subscription are missing; on the event loop."""

    def __init__(self) -> None:
        #: by name, in the subscription's order; None: not known
        self.missing: tuple[str, ...] | None = None
        self._asked_at = -_INTERVAL_S
        self._question: asyncio.Task[None] | None = None

    def look(self, engine: EngineInterface, row: SubscriptionRow) -> None:
        """Ask anew, if it is time to."""
        if self._question is not None and not self._question.done():
            return
        now = time.monotonic()
        if now - self._asked_at < _INTERVAL_S:
            return
        self._asked_at = now
        self._question = asyncio.create_task(
            self._ask(engine, row), name=f"spillway-publications-of-{row.name}"
        )

    async def end(self) -> None:
        """Ask no more, and forget: nobody looks from now on."""
        question, self._question = self._question, None
        self.missing, self._asked_at = None, -_INTERVAL_S
        if question is not None:
            question.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await question

    async def _ask(self, engine: EngineInterface, row: SubscriptionRow) -> None:
        try:
            there = await engine.publication_names(row.source, row.database)
        except SpillwayError as error:
            log.debug('publications of subscription "%s": %s', row.name, error)
            self.missing = None
            return
        self.missing = tuple(name for name in row.publications or () if name not in there)
