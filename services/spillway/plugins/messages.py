"""Encoded messages on their way out: what a message buffer is emptied into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Messages back to back, as an output plugin made them. Arrays are little-endian, one element a message."""

    payload: bytes
    #: u32 array: message i is the next lengths[i] bytes of payload
    lengths: bytes
    #: u64 array: PostgreSQL's lsn column
    lsns: bytes
    #: u32 array
    xids: bytes
    count: int

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
