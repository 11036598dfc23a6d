"""Encoded messages on their way out: what a message buffer is emptied into."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Sequence


class Notice(NamedTuple):
    """A warning of an output plugin: what a walsender's client gets as a NoticeResponse."""

    #: how many messages of the batch are before it
    at: int
    sqlstate: str
    message: str
    detail: str
    hint: str


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
    #: in their order
    notices: tuple[Notice, ...] = ()
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
            tuple(
                notice._replace(at=before + notice.at)
                for before, batch in zip(
                    itertools.accumulate((batch.count for batch in batches), initial=0),
                    batches,
                    strict=False,
                )
                for notice in batch.notices
            ),
        )

    def between_notices(self) -> list[Self]:
        """Split it where its notices are: each part but the first is behind one."""
        edges = [0, *(notice.at for notice in self.notices), self.count]
        sizes = memoryview(self.lengths).cast("I")
        parts = []
        begin = 0
        for first, last in itertools.pairwise(edges):
            end = begin + sum(sizes[first:last])
            parts.append(
                type(self)(
                    memoryview(self.payload)[begin:end],
                    memoryview(self.lengths)[4 * first : 4 * last],
                    memoryview(self.lsns)[8 * first : 8 * last],
                    memoryview(self.xids)[4 * first : 4 * last],
                    last - first,
                )
            )
            begin = end
        return parts
