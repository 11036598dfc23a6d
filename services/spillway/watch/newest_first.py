"""Lists of what is numbered as it happens, the newest first, in pages: what follows a page has
smaller numbers than its last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Numbered(Protocol):
    @property
    def id(self) -> int: ...


Item = TypeVar("Item", bound=_Numbered)


class Page(NamedTuple, Generic[Item]):
    """A part of such a list."""

    items: Sequence[Item]
    #: what follows has numbers below this one; None: nothing follows
    next_before: int | None


def page_of(found: Sequence[Item], limit: int) -> Page[Item]:
    """Make a page of *limit* items at most; whoever *found* them has looked for one more."""
    items = found[:limit]
    return Page(items, items[-1].id if len(found) > limit else None)
