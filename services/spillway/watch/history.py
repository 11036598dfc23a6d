"""Numbers over time, in memory and bounded: the last quarter of an hour closely, the last half day
by the minute.

A :class:`Track` has a row of columns at each tick. Rows lie in two rings of doubles; a minute's row
has the largest value of each column in that minute, for peaks are what one looks for. What is not
known is NaN.
"""

from __future__ import annotations

import math
from array import array
from typing import Final

TICK_S: Final = 2.0
_RECENT_ROWS: Final = 450
_MINUTES: Final = 720


class Ring:
    """The last *capacity* rows of a time and *width* numbers."""

    def __init__(self, capacity: int, width: int) -> None:
        self._capacity = capacity
        self._stride = width + 1
        self._cells = array("d")
        self._next = 0

    def add(self, time_s: float, row: tuple[float, ...]) -> None:
        """Add a row; the oldest goes."""
        if len(self._cells) < self._capacity * self._stride:
            self._cells.extend((time_s, *row))
        else:
            start = self._next * self._stride
            self._cells[start : start + self._stride] = array("d", (time_s, *row))
        self._next = (self._next + 1) % self._capacity

    def column(self, number: int) -> array[float]:
        """Give a column, oldest first; 0 is the time."""
        values = self._cells[number :: self._stride]
        if len(values) < self._capacity:
            return values
        return values[self._next :] + values[: self._next]

    def __len__(self) -> int:
        return len(self._cells) // self._stride


class Track:
    """What is remembered of one slot or source."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.columns = columns
        self._recent = Ring(_RECENT_ROWS, len(columns))
        self._minutes = Ring(_MINUTES, len(columns))
        self._minute = 0
        self._largest: tuple[float, ...] = ()

    def add(self, time_s: float, row: tuple[float, ...]) -> None:
        """Add what was seen at *time_s*."""
        self._recent.add(time_s, row)
        minute = int(time_s // 60)
        if self._largest and minute != self._minute:
            self._minutes.add(self._minute * 60.0, self._largest)
            self._largest = ()
        self._minute = minute
        self._largest = (
            tuple(_larger(a, b) for a, b in zip(self._largest, row, strict=True))
            if self._largest
            else row
        )

    def series(self, column: str, *, by_minute: bool = False) -> tuple[array[float], array[float]]:
        """Give times and values of *column*, oldest first."""
        ring = self._minutes if by_minute else self._recent
        return ring.column(0), ring.column(self.columns.index(column) + 1)

    def last(self, column: str) -> float:
        """Give the newest value; NaN when there is none."""
        values = self._recent.column(self.columns.index(column) + 1)
        return values[-1] if values else math.nan


def _larger(a: float, b: float) -> float:
    if math.isnan(a):
        return b
    return a if math.isnan(b) or a >= b else b
