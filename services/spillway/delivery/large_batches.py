"""How many streams may have large batches at a time.

A stream whose client does not read holds its batch twice: here, and as gRPC's copy that waits to be
sent. With the default's 512 KiB that is little for hundreds of streams; a client may ask for 32
times that. So what streams have beyond the default comes out of one budget. Who asks when it is
used up gets the default: the same messages, in more batches. The size is a stream's own from its
begin to its end, for who left a shared reader finds its step again by counting
(:meth:`SharedReader.sibling`).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ORDINARY_BYTES: Final = 512 << 10
#: Of the batches of all streams that have larger ones: eight of the largest.
LARGE_BYTES_MAX: Final = 128 << 20


class LargeBatches:
    """The budget. Used on the event loop."""

    def __init__(self, bytes_max: int = LARGE_BYTES_MAX) -> None:
        self._left = bytes_max

    @contextmanager
    def granted(self, asked_bytes: int) -> Iterator[int]:
        """Give the batch_bytes that a stream has while this lasts: *asked_bytes*, or the default
        when large ones are used up.
        """
        large = asked_bytes if ORDINARY_BYTES < asked_bytes <= self._left else 0
        self._left -= large
        try:
            yield large or min(asked_bytes, ORDINARY_BYTES)
        finally:
            self._left += large
