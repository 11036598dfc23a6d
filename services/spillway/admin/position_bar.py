"""Where a slot stands between what is kept and what is decoded, as a bar.

A bar is as wide as what is kept. Its parts are as wide as what they have of that, but none that has
something is thinner than a hand's breadth of pixels: a lag of a few kB of many GB is seen as a lag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spillway.pg.lsn import Lsn

WIDTH: Final = 1000
_LEAST: Final = 14.0


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the bar, from one position to the next."""

    #: kept: delivered, and can be again; sent: handed out and not confirmed; waits: neither
    kind: str
    bytes: int
    left: float
    width: float


@dataclass(frozen=True, slots=True)
class PositionBar:
    """The bar, and its positions; None: not known."""

    kept: Lsn | None
    confirmed: Lsn | None
    sent: Lsn | None
    decoded: Lsn | None
    parts: tuple[Part, ...]

    def bytes_of(self, kind: str) -> int | None:
        """How much a part is; None: not known."""
        return next((part.bytes for part in self.parts if part.kind == kind), None)


def position_bar(
    kept: Lsn | None, confirmed: Lsn | None, sent: Lsn | None, decoded: Lsn | None
) -> PositionBar:
    """Lay out the bar of a slot."""
    sizes: list[tuple[str, int]] = []
    if confirmed is not None and decoded is not None:
        if kept is not None:
            sizes.append(("kept", max(0, confirmed - kept)))
        # What a stream handed out in a session before may be confirmed meanwhile.
        handed = None if sent is None else min(max(sent, confirmed), max(decoded, confirmed))
        if handed is not None:
            sizes.append(("sent", max(0, handed - confirmed)))
        sizes.append(("waits", max(0, decoded - (confirmed if handed is None else handed))))
    return PositionBar(kept, confirmed, sent, decoded, tuple(_laid_out(sizes)))


def _laid_out(sizes: list[tuple[str, int]]) -> list[Part]:
    there = [size for _, size in sizes if size]
    total = sum(there)
    spread = WIDTH - _LEAST * len(there)
    parts = []
    left = 0.0
    for kind, size in sizes:
        width = _LEAST + spread * size / total if size else 0.0
        parts.append(Part(kind, size, round(left, 1), round(width, 1)))
        left += width
    return parts
