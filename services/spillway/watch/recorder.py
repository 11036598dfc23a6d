"""What is seen at each look, kept for thirty days: a row of each thing every two minutes.

The largest of what was seen since then is written (:mod:`spillway.store.metrics`), by the process
that holds the source's lease. It costs one transaction every two minutes, with a row for each
source, slot and subscription and each length of stretches; temporary slots, which clients make for
a connection, are left out. What can't be written is kept until it can, :data:`PENDING_MAX`
stretches of it; the end of the service writes what there is, and a kill loses two minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from typing import TYPE_CHECKING, Final

from spillway.errors import SpillwayError
from spillway.store.metrics import COLUMNS, LEVELS, SERIES_MAX, MetricPoint
from spillway.subscriber.stats import stats_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.service.interface import EngineInterface
    from spillway.store.metrics import MetricTable
    from spillway.watch.sampler import Sampler, View

log = logging.getLogger(__name__)

STEP_S: Final = LEVELS[0].step
#: an hour of a metadata store that does not answer
PENDING_MAX: Final = 30

#: kind, name
Key = tuple[str, str]
#: the numbers of :data:`COLUMNS`; None: not known
Numbers = tuple[float | None, ...]


class Recorder:
    """Used on the event loop."""

    def __init__(self, table: MetricTable, engine: EngineInterface, sampler: Sampler) -> None:
        self._table = table
        self._engine = engine
        self._sampler = sampler
        #: by the stretch's beginning: what was seen of each thing, and its source
        self._pending: dict[int, dict[Key, tuple[str, Numbers]]] = {}
        self._task: asyncio.Task[None] | None = None
        #: what was logged of a failure last, and the stretch that it happened in
        self._failure = ""
        self._failed_in = 0

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="spillway-metrics")

    async def stop(self) -> None:
        """Write what was seen, and end it; safe to call twice."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
            try:
                await self.write_all()
            except Exception:
                # What stops has more to do: leases are given back.
                log.exception("what was seen last is not kept")

    async def _run(self) -> None:
        while True:
            view = await self._sampler.next_look()
            try:
                begun = self.note(view)
                done = {at: seen for at, seen in self._pending.items() if at < begun}
                # What failed is tried again once a stretch, not at every look.
                if done and begun != self._failed_in:
                    await self._write(done)
            except Exception:
                log.exception("what was seen is not kept")

    def note(self, view: View) -> int:
        """Take what was seen; return the beginning of the stretch that it is in."""
        at = int(view.at) - int(view.at) % STEP_S
        if view.error is not None:
            # What is shown then was seen before.
            return at
        if at not in self._pending:
            for oldest in sorted(self._pending)[: max(0, len(self._pending) + 1 - PENDING_MAX)]:
                del self._pending[oldest]
        seen = self._pending.setdefault(at, {})
        for key, source, numbers in _numbers_of(view):
            if key in seen:
                seen[key] = source, tuple(map(_larger, seen[key][1], numbers))
            elif len(seen) < SERIES_MAX:
                seen[key] = source, numbers
        return at

    def not_written(self, kind: str, name: str) -> Iterator[tuple[int, Numbers]]:
        """Give what was seen of one thing and is not stored yet, oldest first."""
        for at in sorted(self._pending):
            found = self._pending[at].get((kind, name))
            if found is not None:
                yield at, found[1]

    async def write_all(self) -> None:
        """Write what was seen, also of the stretch that has not ended."""
        await self._write(self._pending.copy())

    async def _write(self, done: dict[int, dict[Key, tuple[str, Numbers]]]) -> None:
        points = [
            MetricPoint(kind, name, source, at, **dict(zip(COLUMNS, numbers, strict=True)))
            for at, seen in sorted(done.items())
            for (kind, name), (source, numbers) in seen.items()
        ]
        fences = {
            source: fence
            for source in {point.source for point in points}
            if (fence := self._engine.fence(source)) is not None
        }
        try:
            await self._table.add(points, fences)
        except SpillwayError as error:
            if not self._failure:
                log.warning("metrics are not stored (tried again): %s", error)
            self._failure = str(error)
            self._failed_in = max(self._pending, default=0)
            return
        self._failure, self._failed_in = "", 0
        for at in done:
            self._pending.pop(at, None)


def _numbers_of(view: View) -> Iterator[tuple[Key, str, Numbers]]:
    """Yield what a look saw of each thing that is kept, with its source."""
    for source in view.sources:
        name = source.info.name
        retained = [slot.info.retained_bytes for slot in view.slots_of(name)]
        numbers = (
            source.behind_bytes,
            None,
            max((size for size in retained if size is not None), default=None),
            source.received_rate,
        )
        yield ("source", name), name, tuple(map(_known, numbers))
    for one in view.subscriptions:
        subscription = (one.lag_bytes, one.lag_seconds, None, stats_of(one).changes_per_second)
        yield ("subscription", one.name), one.source, tuple(map(_known, subscription))
    for slot in view.slots:
        if not slot.info.temporary:
            info = slot.info
            of_slot = (slot.lag_bytes, slot.lag_seconds, info.retained_bytes, slot.rate)
            yield ("slot", info.slot_name), info.source, tuple(map(_known, of_slot))


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)


def _larger(a: float | None, b: float | None) -> float | None:
    if a is None or b is None:
        return a if b is None else b
    return max(a, b)
