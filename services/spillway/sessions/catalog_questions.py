"""Questions about a database's catalog, put by any thread and answered by the one that decodes it.

The catalog is the decoder's own and changes with each record; between two batches it stands still,
and a question may look. At most :data:`_QUESTIONS_MAX` wait; who asks more is refused.
"""

from __future__ import annotations

import asyncio
import queue
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

from spillway.errors import NotReady

if TYPE_CHECKING:
    from collections.abc import Callable

    from spillway.catalog.mirror import CatalogMirror

T = TypeVar("T")

_QUESTIONS_MAX: Final = 64
_ANSWER_TIMEOUT_S: Final = 60.0


class CatalogQuestions:
    """Those about one database."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._waiting: queue.Queue[tuple[Callable[[CatalogMirror], Any], Future[Any]]] = (
            queue.Queue(_QUESTIONS_MAX)
        )

    async def ask(self, question: Callable[[CatalogMirror], T], wake: Callable[[], None]) -> T:
        """Have *question* answered; *wake* has the decoding thread look.

        Raises:
            NotReady: the decoding thread has no time for it.
            SpillwayError: what the question raises.
        """
        answer: Future[T] = Future()
        try:
            self._waiting.put_nowait((question, answer))
        except queue.Full:
            raise self._no_answer() from None
        wake()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), _ANSWER_TIMEOUT_S)
        except TimeoutError:
            raise self._no_answer() from None

    def _no_answer(self) -> NotReady:
        return NotReady(
            f'decoding of database "{self._database}" has no time for questions about its catalog',
            hint="Try again when the backlog is decoded; GET /v1/sources shows how far it is.",
            database=self._database,
        )

    def are_waiting(self) -> bool:
        """Whether there is any to answer."""
        # The queue's own question takes a lock; this is asked several times for each commit.
        return bool(self._waiting.queue)

    def answer(self, mirror: CatalogMirror) -> None:
        """Answer what was asked since the last time; on the decoding thread."""
        while self.are_waiting():
            question, answer = self._waiting.get_nowait()
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(question(mirror))
            except BaseException as error:  # noqa: BLE001 - whoever asked is told
                answer.set_exception(error)
