"""Series for the charts, and the marks on their axis of time, as JSON: what is not known is null.

A chart shows the last quarter of an hour by each look, half a day by the minute, or a day, a week
and thirty days as they are stored (:mod:`spillway.watch.past`). Half a day is what this process
remembers, and before its start what is stored.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from spillway.errors import SpillwayError
from spillway.watch.history import TICK_S

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spillway.watch.history import Track
    from spillway.watch.past import Past
    from spillway.watch.timeline import SchemaChange

#: The ranges that the charts have, in seconds.
RANGES: Final = {
    "15m": 900,
    "12h": 12 * 3600,
    "24h": 24 * 3600,
    "7d": 7 * 86_400,
    "30d": 30 * 86_400,
}
_MINUTE_S: Final = 60
#: Kinds of events that are marks, for whatever they are of.
MARKED: Final = frozenset({"started", "stopped", "taken", "problem", "resolved", "action"})
MARKS_MAX: Final = 200

Series = dict[str, list[float | None]]


async def series_of(
    track: Track | None, past: Past | None, kind: str, name: str, reach: str
) -> Series:
    """Give the time and every column of something, oldest first, as far back as *reach* says.

    Raises:
        MetadataError: the metadata store does not answer, and nothing is known without it.
    """
    if reach == "15m":
        return _remembered(track, by_minute=False)
    if reach == "12h":
        return await _half_day(track, past, kind, name)
    if past is None:
        return {"time": []}
    found = await past.series(kind, name, range_s=RANGES[reach])
    times: list[float | None] = [float(at) for at in found.times]
    return {"time": times} | {column: list(values) for column, values in found.values.items()}


async def _half_day(track: Track | None, past: Past | None, kind: str, name: str) -> Series:
    remembered = _remembered(track, by_minute=True)
    try:
        found = await past.series(kind, name, range_s=RANGES["12h"]) if past else None
    except SpillwayError:
        # What this process has seen it knows without the store.
        found = None
    if found is None:
        return remembered
    minutes = found.step_s // _MINUTE_S
    grid = [float(at + m * _MINUTE_S) for at in found.times for m in range(minutes)]
    series: Series = {"time": list[float | None](grid)}
    places = {at: place for place, at in enumerate(grid)}
    for column, values in found.values.items():
        cells = [value for value in values for _ in range(minutes)]
        for at, value in zip(remembered["time"], remembered.get(column, ()), strict=False):
            place = places.get(at or 0.0)
            if place is not None and value is not None:
                cells[place] = value
        series[column] = cells
    return series


def _remembered(track: Track | None, *, by_minute: bool) -> Series:
    if track is None:
        return {"time": []}
    times, _ = track.series(track.columns[0], by_minute=by_minute)
    series: Series = {"time": [round(time_s, 1) for time_s in times]}
    for column in track.columns:
        _, values = track.series(column, by_minute=by_minute)
        series[column] = [None if math.isnan(value) else round(value, 3) for value in values]
    return with_gaps(series, 3 * (_MINUTE_S if by_minute else TICK_S))


def with_gaps(series: Series, longest_s: float) -> Series:
    """Put a row of nulls where two rows are further apart than *longest_s*: there nobody looked."""
    times = series["time"]
    holes = [
        place
        for place, (before, after) in enumerate(pairwise(times), 1)
        if before is not None and after is not None and after - before > longest_s
    ]
    if not holes:
        return series
    whole: Series = {column: [] for column in series}
    begin = 0
    for end in [*holes, len(times)]:
        for column, values in series.items():
            whole[column] += values[begin:end]
        if end < len(times):
            for column in series:
                before = times[end - 1] or 0.0
                whole[column].append(before + longest_s / 2 if column == "time" else None)
        begin = end
    return whole


def marks_of(
    events: Iterable[Any], kind: str, name: str, source: str | None
) -> list[dict[str, Any]]:
    """Return what of *events* belongs on the charts of something, oldest first: what is of it, of
    its source, and of the service.
    """
    found: list[Any] = []
    seen: set[int] = set()
    for event in sorted(events, key=lambda event: event.id, reverse=True):
        if event.id in seen or event.kind not in MARKED:
            continue
        seen.add(event.id)
        of = (event.source, event.slot, event.subscription)
        own = getattr(event, kind) == name
        of_service = of == (None, None, None) and event.kind in ("started", "stopped")
        of_source = source is not None and event.source == source and not any(of[1:])
        if own or of_service or of_source:
            found.append(event)
    return [
        {
            "at": round(event.at.timestamp(), 1),
            "kind": event.kind,
            "severity": event.severity,
            "title": event.title,
            "link": "",
        }
        for event in reversed(found[:MARKS_MAX])
    ]


def ddl_mark(change: SchemaChange) -> dict[str, Any]:
    """Return a change of the schema as a mark."""
    query = {"source": change.source, "database": change.database, "table": change.table}
    return {
        "at": round(change.committed_at.timestamp(), 1),
        "kind": "ddl",
        "severity": "ddl",
        "title": f"DDL on {change.table}: {' '.join(change.words)}",
        "link": f"/ui/schema?{urlencode(query)}",
    }
