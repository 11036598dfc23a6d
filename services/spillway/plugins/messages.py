"""Encoded messages on their way out: what a message buffer is emptied into."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True)
class EncodedBatch:
    """Messages back to back, as an output plugin made them. Arrays are little-endian, one element a
    message.

    Nobody changes them. But whoever serialises a batch that others will want too may keep the
    result in *serialised*, and put views of it in place of what it has in it, so that it is in
    memory once.
    """

    payload: bytes | memoryview
    #: u32 array: message i is the next lengths[i] bytes of payload
    lengths: bytes | memoryview
    #: u64 array: PostgreSQL's lsn column
    lsns: bytes | memoryview
    #: u32 array
    xids: bytes | memoryview
    count: int
    serialised: Any = field(default=None, compare=False, repr=False)

    @classmethod
    def joined(cls, batches: Sequence[EncodedBatch]) -> Self:
        """Return the messages of *batches*, one behind the other."""
        return cls(
            b"".join(batch.payload for batch in batches),
            b"".join(batch.lengths for batch in batches),
            b"".join(batch.lsns for batch in batches),
            b"".join(batch.xids for batch in batches),
            sum(batch.count for batch in batches),
        )
