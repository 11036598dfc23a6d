"""Metrics in the metadata store: how sources, slots and subscriptions were, of thirty days.

A row is one of them in one stretch of time: the largest that each number was, for peaks are what
one looks for. Stretches have three lengths (:data:`LEVELS`), the longer the older::

    step      kept       rows of one series
    2 min     26 h          780
    10 min     8 d        1 152
    1 h       31 d          744

So a series is 2 676 rows at most, some 200 kB, and :data:`SERIES_MAX` of them are kept. A write
raises the row of each length that a moment lies in; nothing is ever read back to be made coarser,
and what was written twice is there once. What a stretch has no row for is not known: the service
did not run, or could not ask.

A series goes with what it is of. A source's lease is proved in the transaction that writes what
concerns it, so that a service that stands by, or was paused, writes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import bindparam, delete, select, text

from spillway.errors import LeaseLost
from spillway.store.fencing import check_fence
from spillway.store.schema import METRIC_SERIES, METRICS, SLOTS, SOURCES, SUBSCRIPTIONS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy import Table
    from sqlalchemy.engine import Connection

    from spillway.store.database import Database
    from spillway.store.rows import Fence


class Level(NamedTuple):
    """A length of stretches, and how long they are kept, both in seconds."""

    step: int
    kept: int


LEVELS: Final = (Level(120, 26 * 3600), Level(600, 8 * 86_400), Level(3600, 31 * 86_400))
SERIES_MAX: Final = 500
COLUMNS: Final = ("lag_bytes", "lag_seconds", "retained_bytes", "rate")
#: between two removals of what is too old
_TRIM_S: Final = 3600
#: Where what has a past is stored, by kind.
_TABLES: Final[Mapping[str, Table]] = {
    "source": SOURCES,
    "slot": SLOTS,
    "subscription": SUBSCRIPTIONS,
}

# Both databases take this as it is. NULL is larger than nothing.
_RAISED: Final = ", ".join(
    f"{name} = CASE WHEN excluded.{name} > COALESCE(metrics.{name}, -1) "
    f"THEN excluded.{name} ELSE metrics.{name} END"
    for name in COLUMNS
)
_RAISE: Final = text(
    f"INSERT INTO metrics (series, step, at, {', '.join(COLUMNS)}) "  # noqa: S608 - names of columns
    f"VALUES (:series, :step, :at, {', '.join(f':{name}' for name in COLUMNS)}) "
    f"ON CONFLICT (series, step, at) DO UPDATE SET {_RAISED}"
)
#: A write that nobody waits for any more may be making the same.
_MAKE_SERIES: Final = {
    kind: text(f"INSERT INTO metric_series ({kind}) VALUES (:name) ON CONFLICT DO NOTHING")  # noqa: S608 - names of columns
    for kind in _TABLES
}
_TRIM: Final = delete(METRICS).where(
    METRICS.c.series == bindparam("of"),
    METRICS.c.step == bindparam("of_step"),
    METRICS.c.at < bindparam("before"),
)


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """How one thing was in a stretch of time; a number that is not known is None."""

    #: source, slot or subscription
    kind: str
    name: str
    #: whose lease it goes by
    source: str
    #: seconds since 1970, within the stretch
    at: int
    lag_bytes: float | None = None
    lag_seconds: float | None = None
    retained_bytes: float | None = None
    rate: float | None = None


class StoredMetric(NamedTuple):
    """A stretch as it is stored."""

    at: int
    lag_bytes: float | None
    lag_seconds: float | None
    retained_bytes: float | None
    rate: float | None


class MetricTable:
    """The metrics. Every method may raise :class:`~spillway.errors.MetadataError`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._trimmed_at = 0

    async def add(self, points: Sequence[MetricPoint], fences: Mapping[str, Fence]) -> None:
        """Remember *points*, in one transaction.

        What is of a source without a fence, or whose fence is out of date, is left out: another
        process writes it. So is what does not exist any more.
        """
        mine = [point for point in points if point.source in fences]
        if mine:
            await self._database.write(lambda connection: self._add(connection, mine, fences))

    def _add(
        self, connection: Connection, points: Sequence[MetricPoint], fences: Mapping[str, Fence]
    ) -> None:
        held = set()
        for source in sorted({point.source for point in points}):
            try:
                check_fence(connection, fences[source])
            except LeaseLost:
                continue
            held.add(source)
        points = [point for point in points if point.source in held]
        ids = _series_of(connection, {(point.kind, point.name) for point in points})
        rows = [
            {
                "series": ids[point.kind, point.name],
                "step": level.step,
                "at": point.at - point.at % level.step,
                **{name: getattr(point, name) for name in COLUMNS},
            }
            for point in points
            if (point.kind, point.name) in ids
            for level in LEVELS
        ]
        if rows:
            connection.execute(_RAISE, rows)
            self._trim(connection, max(point.at for point in points))

    def _trim(self, connection: Connection, now: int) -> None:
        if now - self._trimmed_at < _TRIM_S:
            return
        self._trimmed_at = now
        found = [
            {"of": series, "of_step": level.step, "before": now - level.kept}
            for series in connection.scalars(select(METRIC_SERIES.c.id))
            for level in LEVELS
        ]
        if found:
            connection.execute(_TRIM, found)

    async def of(self, kind: str, name: str, step: int, since: int) -> list[StoredMetric]:
        """Return the stretches of *step* of one thing that began at *since* or later, oldest
        first.
        """
        columns = [METRICS.c[column] for column in StoredMetric._fields]
        statement = (
            select(*columns)
            .join(METRIC_SERIES, METRIC_SERIES.c.id == METRICS.c.series)
            .where(METRIC_SERIES.c[kind] == name, METRICS.c.step == step, METRICS.c.at >= since)
            .order_by(METRICS.c.at)
        )
        found = await self._database.read(lambda c: list(c.execute(statement)))
        return [StoredMetric(*row) for row in found]


def _series_of(
    connection: Connection, wanted: Collection[tuple[str, str]]
) -> dict[tuple[str, str], int]:
    """Return the series of what is wanted and exists; those that are missing are made."""
    ids = _known(connection)
    missing = sorted(wanted - ids.keys())[: max(0, SERIES_MAX - len(ids))]
    for kind, table in _TABLES.items():
        names = [name for of, name in missing if of == kind]
        key = next(iter(table.primary_key))
        # What was dropped meanwhile has none.
        there = list(connection.scalars(select(key).where(key.in_(names)))) if names else []
        if there:
            connection.execute(_MAKE_SERIES[kind], [{"name": name} for name in there])
    return _known(connection) if missing else ids


def _known(connection: Connection) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = defaultdict(int)
    for row in connection.execute(select(METRIC_SERIES)).mappings():
        for kind in _TABLES:
            if row[kind] is not None:
                found[kind, row[kind]] = row["id"]
    return dict(found)
