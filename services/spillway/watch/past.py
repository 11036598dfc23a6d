"""How a source, a slot or a subscription was: what is stored of it and what is not stored yet, on
a grid of time.

A :class:`PastSeries` has a number, or None, for each step from its beginning to its end: None is a
stretch of which nothing is known, and is shown as a gap. Each number is the largest that was seen
in its step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spillway.errors import InvalidRequest
from spillway.store.metrics import COLUMNS, LEVELS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spillway.store.metrics import Level, MetricTable
    from spillway.watch.recorder import Recorder

KINDS: Final = ("source", "slot", "subscription")
RANGE_MAX_S: Final = 30 * 86_400
RANGE_MIN_S: Final = LEVELS[0].step
POINTS_MAX: Final = 2000
#: Which numbers each kind has, and what they are of it.
METRICS: Final[Mapping[str, Mapping[str, str]]] = {
    "source": {
        "lag_bytes": "received and not yet decoded, of the database that is furthest behind",
        "retained_bytes": "what its slots keep here, of the slot that keeps most",
        "rate": "bytes of WAL received a second",
    },
    "slot": {
        "lag_bytes": "decoded and not yet confirmed",
        "lag_seconds": "age of the oldest commit that is not confirmed",
        "retained_bytes": "what is kept here for it",
        "rate": "bytes of WAL confirmed a second",
    },
    "subscription": {
        "lag_bytes": "decoded and not yet in the target",
        "lag_seconds": "age of the oldest commit that is not in the target",
        "rate": "changes written a second",
    },
}


@dataclass(frozen=True, slots=True)
class PastSeries:
    """The past of one thing."""

    kind: str
    name: str
    step_s: int
    #: the beginning of each step, in seconds since 1970
    times: tuple[int, ...]
    #: by the metric's name: a number for each step; None: not known
    values: Mapping[str, tuple[float | None, ...]]


class Past:
    """Used on the event loop."""

    def __init__(self, table: MetricTable, recorder: Recorder) -> None:
        self._table = table
        self._recorder = recorder

    async def series(
        self, kind: str, name: str, *, range_s: int, step_s: int | None = None
    ) -> PastSeries:
        """Return the last *range_s* seconds of something.

        Args:
            kind: of :data:`KINDS`.
            name: of what.
            range_s: how far back.
            step_s: how long a step is to be; longer where nothing as fine is kept that far back.

        Raises:
            InvalidRequest: range or step is out of bounds.
            MetadataError: the metadata store does not answer.
        """
        if not RANGE_MIN_S <= range_s <= RANGE_MAX_S:
            raise InvalidRequest(
                f"the range is {range_s} s",
                hint=f"Give one from {RANGE_MIN_S} s to 30 days: metrics are kept for so long.",
            )
        level, step = _level_and_step(range_s, step_s)
        now = int(time.time())
        first = (now - range_s) // step * step + step
        times = range(first, now // step * step + step, step)
        stored = await self._table.of(kind, name, level.step, first)
        cells: dict[str, list[float | None]] = {column: [None] * len(times) for column in COLUMNS}
        _raise(cells, first, step, ((row[0], row[1:]) for row in stored))
        _raise(cells, first, step, self._recorder.not_written(kind, name))
        values = {metric: tuple(cells[metric]) for metric in METRICS[kind]}
        return PastSeries(kind, name, step, tuple(times), values)


def _level_and_step(range_s: int, step_s: int | None) -> tuple[Level, int]:
    """Return which of the levels to read, and the step: a multiple of the level's."""
    if step_s is not None and step_s < 1:
        raise InvalidRequest(f"the step is {step_s} s", hint="Give a second or more, as 10m.")
    reaching = [level for level in LEVELS if level.kept >= range_s]
    fitting = [level for level in reaching if step_s is None or level.step <= step_s]
    # The coarsest that is as fine as was asked for costs least to read.
    level = reaching[0] if step_s is None or not fitting else fitting[-1]
    step = level.step * -(-(step_s or 1) // level.step)
    if range_s // step > POINTS_MAX:
        raise InvalidRequest(
            f"{range_s} s in steps of {step} s are more than {POINTS_MAX} points",
            hint="Give a longer step or a shorter range.",
        )
    return level, step


def _raise(
    cells: Mapping[str, list[float | None]],
    first: int,
    step: int,
    rows: Iterable[tuple[int, tuple[float | None, ...]]],
) -> None:
    for at, numbers in rows:
        place = (at - first) // step
        if not 0 <= place < len(cells[COLUMNS[0]]):
            continue
        for column, number in zip(COLUMNS, numbers, strict=True):
            before = cells[column][place]
            if number is not None and (before is None or number > before):
                cells[column][place] = number
