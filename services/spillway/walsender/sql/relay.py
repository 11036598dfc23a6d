"""A normal connection: everything that either side says is passed on, both ways at once, until one
of them has ended.

Whichever ends ends the other. A client that is gone closes its backend's connection at once, as if
it had been connected there itself; what the source has said before it ended, its FATAL above all,
still goes to the client.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from spillway._kernels.walsender.frame_heads import FrameHeads
from spillway.walsender.sql.upstream import PIECE_BYTES

if TYPE_CHECKING:
    from spillway.walsender.handshake import Connection
    from spillway.walsender.sql.upstream import Upstream


class Relay:
    """One client's connection with its upstream."""

    def __init__(self, connection: Connection, upstream: Upstream) -> None:
        self._connection = connection
        self._upstream = upstream
        self._answers = FrameHeads(b"")

    @property
    def is_between_messages(self) -> bool:
        """Whether something may be said to the client without tearing what the source says."""
        return self._answers.is_between

    async def run(self) -> None:
        """Pass everything on until one side has ended."""
        client, upstream = self._connection, self._upstream
        client.writer.transport.set_write_buffer_limits(high=PIECE_BYTES)
        # Also while what it has sent waits for the source.
        client.reader.when_ended(upstream.abort)
        pumps = [asyncio.create_task(self._ask()), asyncio.create_task(self._answer())]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            if pumps[0].done() and not client.reader.has_ended:
                # The source is gone; it may have said why.
                await pumps[1]
        finally:
            client.reader.when_ended(None)
            for pump in pumps:
                pump.cancel()
            ended = await asyncio.gather(*pumps, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception) and not isinstance(error, OSError):
                raise error

    async def cancel(self) -> None:
        """End what the upstream does."""
        await self._upstream.cancel()

    async def close(self) -> None:
        """End the upstream."""
        await self._upstream.close()

    async def _ask(self) -> None:
        with contextlib.suppress(OSError):
            while data := await self._connection.reader.read(2 * PIECE_BYTES):
                await self._upstream.write(data)

    async def _answer(self) -> None:
        while data := await self._upstream.read():
            position, _ = self._answers.walk(data, 0)
            await self._connection.send(data[:position])
            self._upstream.unread(data[position:])
