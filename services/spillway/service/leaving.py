"""Opening a slot whose last consumer is about to leave.

A client that was killed has its slot until that is heard of, and one that closed its side until its
stream has ended. It, or another one, may be back before: Debezium, once refused, tries again after
ten seconds, and a program that closes a slot and opens it again has nobody to blame. So both doors
wait a moment for whoever has it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

from spillway.errors import SlotActive

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from spillway.service.interface import SlotStream

_LEAVING_S: Final = 0.5
_POLL_S: Final = 0.01


@asynccontextmanager
async def opened(
    open_stream: Callable[[], AbstractAsyncContextManager[SlotStream]],
) -> AsyncIterator[SlotStream]:
    """Open a stream as *open_stream* does.

    Raises:
        SlotActive: somebody has the slot who is not about to leave.
    """
    deadline_s = time.monotonic() + _LEAVING_S
    while True:
        async with AsyncExitStack() as held:
            try:
                stream = await held.enter_async_context(open_stream())
            except SlotActive:
                if time.monotonic() >= deadline_s:
                    raise
            else:
                yield stream
                return
        await asyncio.sleep(_POLL_S)
