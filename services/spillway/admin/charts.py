"""Series for the charts: columns of numbers as JSON, what is not known as null."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spillway.watch.history import Track


def series_of(track: Track | None, by_minute: bool) -> dict[str, list[float | None]]:
    """Give the time and every column of *track*, oldest first."""
    if track is None:
        return {"time": []}
    times, _ = track.series(track.columns[0], by_minute=by_minute)
    series: dict[str, list[float | None]] = {"time": [round(time_s, 1) for time_s in times]}
    for column in track.columns:
        _, values = track.series(column, by_minute=by_minute)
        series[column] = [None if math.isnan(value) else round(value, 3) for value in values]
    return series
