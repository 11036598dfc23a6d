"""How far decoding is, for those who pair it with what the source shows of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


@dataclass(frozen=True, slots=True)
class DecodingMoment:
    """How decoding stands, between two batches."""

    #: WAL is decoded up to here
    position: int
    #: top-level xids in progress there
    in_progress: Collection[int]
    #: (end of a running-xacts record, the xid that was to be given out next then), oldest first
    marks: Sequence[tuple[int, int]]
