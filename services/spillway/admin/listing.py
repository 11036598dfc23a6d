"""A list on a page: the address says what is searched, sorted and filtered, and one page of it is
shown.

:class:`Column` says how a list is sorted, :class:`Kind` what it is a list of. :func:`listed` is all
there is to it: rows in, one page of them out, with how many there are of each state.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlencode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

#: rows of one page
PAGE_ROWS: Final = 100
_SEARCH_MAX: Final = 200
_DIGITS_MAX: Final = 6
#: A state that every list has: something is found wrong with it.
ATTENTION: Final = "attention"


class Row(Protocol):
    """What a list has of each of its things."""

    @property
    def state(self) -> str: ...

    #: how bad the worst finding about it is: bad, warn, or None
    @property
    def severity(self) -> str | None: ...

    #: everything that a search looks at
    @property
    def text(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a list."""

    #: in the address
    name: str
    title: str
    #: what rows are sorted by; None of what is not known, which comes last; no key: it is not
    key: Callable[[Any], Any] | None = None
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of list."""

    #: plural: its address is /ui/NAME
    name: str
    columns: tuple[Column, ...]
    #: how it is sorted unless asked otherwise
    sort: str = "name"


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of a list."""

    search: str = ""
    state: str = ""
    source: str = ""
    #: a column's name, with - before it the largest first; empty: as the list is sorted by itself
    sort: str = ""
    page: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Asked:
        """Read it from an address; what can't be is as if it were not there."""
        page = query.get("page", "")
        is_number = page.isascii() and page.isdecimal() and len(page) < _DIGITS_MAX
        return cls(
            query.get("q", "")[:_SEARCH_MAX].strip(),
            query.get("state", ""),
            query.get("source", ""),
            query.get("sort", ""),
            max(1, int(page)) if is_number else 1,
        )

    def query(self, **other: Any) -> str:
        """Write it into an address, with *other* in place of what it has; a page is asked for
        itself.
        """
        fields = {"q": self.search, "state": self.state, "source": self.source, "sort": self.sort}
        found = {name: value for name, value in {**fields, **other}.items() if value}
        return "?" + urlencode(found) if found else ""


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of a list."""

    kind: Kind
    asked: Asked
    rows: tuple[Any, ...]
    #: how many there are of each state, before they are filtered by one; ``attention`` among them
    states: tuple[tuple[str, int], ...]
    #: of that search and source, whatever the state
    all: int
    #: and of that state
    found: int
    pages: int

    @property
    def sorted_by(self) -> tuple[str, bool]:
        """The column, and whether the largest comes first."""
        sort = self.asked.sort.removeprefix("-")
        if sort not in {column.name for column in self.kind.columns if column.key}:
            return self.kind.sort.removeprefix("-"), self.kind.sort.startswith("-")
        return sort, self.asked.sort.startswith("-")

    def address(self, **other: Any) -> str:
        """Give the page's address, with *other* asked."""
        return f"/ui/{self.kind.name}{self.asked.query(**other)}"

    def sort_address(self, column: Column) -> str:
        """Give the address that sorts by *column*: numbers the largest first, and each the other
        way round the second time.
        """
        name, is_falling = self.sorted_by
        falls = not is_falling if name == column.name else column.is_number
        return self.address(sort=f"-{column.name}" if falls else column.name)


def listed(kind: Kind, rows: Iterable[Row], asked: Asked) -> Listing:
    """Give the page of *rows* that is asked for."""
    words = asked.search.casefold().split()
    of_search = [
        row for row in rows if not words or all(word in row.text.casefold() for word in words)
    ]
    counts = Counter(row.state for row in of_search)
    states = sorted(counts.items())
    if attention := sum(row.severity is not None for row in of_search):
        states.insert(0, (ATTENTION, attention))
    found = [row for row in of_search if _is_in(row, asked.state)]
    listing = Listing(kind, asked, (), tuple(states), len(of_search), len(found), 1)
    ordered = _sorted(found, kind.columns, *listing.sorted_by)
    pages = max(1, math.ceil(len(ordered) / PAGE_ROWS))
    page = min(asked.page, pages)
    return Listing(
        kind,
        Asked(asked.search, asked.state, asked.source, asked.sort, page),
        tuple(ordered[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]),
        tuple(states),
        len(of_search),
        len(found),
        pages,
    )


def _is_in(row: Row, state: str) -> bool:
    if state == ATTENTION:
        return row.severity is not None
    return not state or row.state == state


def _sorted(
    rows: Sequence[Row], columns: Sequence[Column], name: str, is_falling: bool
) -> list[Row]:
    key = next(column.key for column in columns if column.name == name)
    assert key is not None
    known = [(value, row) for row in rows if _is_known(value := key(row))]
    unknown = [row for row in rows if not _is_known(key(row))]
    known.sort(key=lambda one: one[0], reverse=is_falling)
    return [*(row for _, row in known), *unknown]


def _is_known(value: object) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))
