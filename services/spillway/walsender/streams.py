"""A stream of bytes that can be read too far, and whose end is known when it comes.

A relay reads pieces of any size, and finds that the last message of one is not its own. And it must
know at once that one side has gone, also while the other is at work and nobody reads.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Reader(asyncio.StreamReader):
    """What the other side sends."""

    _given_back = b""
    _listener: Callable[[], object] | None = None
    has_ended = False

    def unread(self, data: bytes) -> None:
        """Have *data* read again."""
        self._given_back = data + self._given_back

    async def read(self, n: int = -1) -> bytes:
        """Read as StreamReader does."""
        if not self._given_back:
            return await super().read(n)
        size = len(self._given_back) if n < 0 else n
        data, self._given_back = self._given_back[:size], self._given_back[size:]
        return data

    async def read_more(self, n: int) -> bytes:
        """Read what was given back, with the next piece behind it; empty: there is none."""
        given_back, self._given_back = self._given_back, b""
        piece = await super().read(n)
        return given_back + piece if piece and given_back else piece

    async def readexactly(self, n: int) -> bytes:
        """Read as StreamReader does."""
        given_back = self._given_back
        if not given_back:
            return await super().readexactly(n)
        more = await super().readexactly(max(0, n - len(given_back)))
        self._given_back = given_back[n:]
        return given_back[:n] + more

    def at_eof(self) -> bool:
        """Whether nothing is left to read, and nothing will come."""
        return not self._given_back and super().at_eof()

    def when_ended(self, listener: Callable[[], object] | None) -> None:
        """Have *listener* called when the other side has gone, or at once if it has; None:
        nobody.
        """
        self._listener = listener
        if listener is not None and self.has_ended:
            listener()

    def feed_eof(self) -> None:
        """Take it that the other side says no more."""
        super().feed_eof()
        self._end()

    def set_exception(self, exc: Exception) -> None:
        """Take it that the connection broke."""
        super().set_exception(exc)
        self._end()

    def _end(self) -> None:
        self.has_ended = True
        if self._listener is not None:
            self._listener()
