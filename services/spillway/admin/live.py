"""Server-sent events: the parts of an open page that changed, as HTML, each under its name.

A page names its regions; each look of the sampler renders them, and what reads as before is not
sent. The number of streams is bounded (a page beyond it still works, by reload, and tries again), a
stream ends when its browser goes away, when what it shows is dropped, and at once when the service
stops. A browser closes it while its tab is hidden.

Nothing comes back on a stream, so a client that reads nothing can't be told from one that does: the
kernels' buffers take a beat for hours. So no stream has its seat for good. When all are taken, who
comes has the seat of the stream that has had it longest, if that is :data:`SEAT_S`, as long as
PostgreSQL's wal_sender_timeout lets a client be silent. A browser whose stream was ended so comes
again by itself.

A connection that is open says nothing of who is at its other end: a service that stands still, or a
proxy whose service is gone, keeps it open for ever. So something comes of every stream at least
every :data:`BEAT_S`: ``look``, with the moment as of which the page is, or ``beat``, when there is
nothing to tell. A page to which nothing came for :data:`SILENCE_S`, or nothing new, says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final, Protocol

from starlette.responses import Response, StreamingResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from spillway.watch.sampler import View

STREAMS_MAX: Final = 64
#: How long a stream has its seat at least.
SEAT_S: Final = 60.0
BEAT_S: Final = 3.0
#: what a page waits for the next sign of life: three beats, and what a busy machine takes
SILENCE_S: Final = 3 * BEAT_S + 1.0


class Looks(Protocol):
    """What was seen last, and the next time that something is."""

    view: View

    async def next_look(self) -> View:
        """Wait for it."""


class _Seat:
    """One stream's."""

    def __init__(self) -> None:
        self.since_s = time.monotonic()
        #: set when it is to end
        self.ending = asyncio.Event()


class Streams:
    """The open streams."""

    def __init__(self) -> None:
        #: the longest first
        self._seats: dict[_Seat, None] = {}
        self._is_closed = False

    def close(self) -> None:
        """End every stream, and begin no more."""
        self._is_closed = True
        for seat in self._seats:
            seat.ending.set()

    def respond(self, events: AsyncIterator[str]) -> Response:
        """Answer with *events*, or say that there are too many streams."""
        if self._is_closed or not self._make_room():
            return Response(status_code=503, headers={"Retry-After": "5"})
        seat = _Seat()
        self._seats[seat] = None
        return StreamingResponse(
            self._until_ended(events, seat),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    def _make_room(self) -> bool:
        """Say whether a seat is free, or was made so: of whoever has had one the longest."""
        if len(self._seats) < STREAMS_MAX:
            return True
        oldest = next(iter(self._seats), None)
        if oldest is None or time.monotonic() - oldest.since_s < SEAT_S:
            return False
        oldest.ending.set()
        del self._seats[oldest]
        return True

    async def _until_ended(self, events: AsyncIterator[str], seat: _Seat) -> AsyncIterator[str]:
        ending = asyncio.ensure_future(seat.ending.wait())
        following: asyncio.Future[str] | None = None
        try:
            # How soon a browser comes again after the stream broke.
            yield "retry: 2000\n\n"
            while True:
                if following is None:
                    following = asyncio.ensure_future(anext(events))
                await asyncio.wait(
                    (ending, following),
                    timeout=BEAT_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if ending.done():
                    return
                if not following.done():
                    yield event("beat", "")
                    continue
                try:
                    text = following.result()
                except StopAsyncIteration:
                    return
                following = None
                yield text
        finally:
            self._seats.pop(seat, None)
            for task in (ending, following):
                if task is not None:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                        await task


def event(name: str, data: str) -> str:
    """Write one event."""
    lines = "".join(f"data: {line}\n" for line in data.splitlines() or [""])
    return f"event: {name}\n{lines}\n"


async def changed_regions(
    render: Callable[[], Awaitable[Mapping[str, str] | None]],
    looks: Looks,
) -> AsyncIterator[str]:
    """Give each region when it reads otherwise than before, and after each of the *looks* when that
    was (RFC 3339; empty while nothing was seen); end with ``gone`` when *render* gives None.
    """
    shown: dict[str, str] = {}
    while True:
        seen_at = looks.view.seen_at
        regions = await render()
        if regions is None:
            yield event("gone", "")
            return
        for name, text in regions.items():
            if shown.get(name) != text:
                shown[name] = text
                yield event(name, text)
        # Also what did not change is news: the page says that it is live, and charts go on.
        # A look that failed leaves the moment as it was.
        yield event("look", "" if seen_at is None else seen_at.isoformat())
        await looks.next_look()
