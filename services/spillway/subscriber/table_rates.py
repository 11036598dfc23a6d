"""How fast each table of a subscription goes: of counts that its program tells, what came in the
last seconds.

A few earlier looks are kept, :data:`_APART_S` apart. A rate is what a count has grown since the
oldest of them: over ten to fifteen seconds, so that a program that commits every second does not
look as if it stood still in between. A count that went back has no rate; neither has a table that
was not told of before.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spillway.subscriber.model import TableState

_APART_S: Final = 5.0
_LOOKS: Final = 3
#: shorter than that, one commit more or less is the whole of it
_LEAST_S: Final = 1.0


class TableRates:
    """Of one run of a program."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Mapping[str, TableState]]] = deque(maxlen=_LOOKS)

    def forget(self) -> None:
        """Know nothing: another program begins."""
        self._looks.clear()

    def of(self, now: float, tables: Iterable[TableState]) -> tuple[TableState, ...]:
        """Return the tables with their rates, as of *now*, in seconds of a clock that never goes
        back.
        """
        tables = tuple(tables)
        if not self._looks or now - self._looks[-1][0] >= _APART_S:
            self._looks.append((now, {table.table: table for table in tables}))
        since, before = self._looks[0]
        if now - since < _LEAST_S:
            return tables
        return tuple(_with_rates(table, before.get(table.table), now - since) for table in tables)


def _with_rates(table: TableState, before: TableState | None, seconds: float) -> TableState:
    if before is None:
        return table
    return replace(
        table,
        changes_per_second=_rate(before.changes, table.changes, seconds),
        bytes_per_second=_rate(before.bytes_copied or 0, table.bytes_copied, seconds),
    )


def _rate(before: int, now: int | None, seconds: float) -> float | None:
    return None if now is None or now < before else (now - before) / seconds
