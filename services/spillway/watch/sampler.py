"""Looks at the engine every two seconds, remembers what it saw, and wakes whoever waits: pages that
are open, and what makes alerts.

One look serves all of them: what they see is the same :class:`View`. A look that fails (the
metadata store is away, say) leaves the view that was there, with the error beside it; the next one
may succeed.

What is asked of a primary (:class:`spillway.service.model.PrimaryCost`) needs a connection to it.
So it is asked only while somebody looks, seldom, one source at a time, and never waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from spillway.errors import SpillwayError, UnknownSlot
from spillway.subscriber.stats import stats_of
from spillway.watch.findings import Finding, Limits, everything, told, unknown_subjects
from spillway.watch.history import TICK_S, Track
from spillway.watch.views import SlotView, SourceView

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spillway.service.interface import EngineInterface
    from spillway.service.model import Obstacle, PrimaryCost, SlotInfo, SourceInfo
    from spillway.subscriber.interface import SubscriptionInterface
    from spillway.subscriber.model import SubscriptionInfo

log = logging.getLogger(__name__)

#: beyond that many, slots and sources are shown without a past
TRACKS_MAX: Final = 500
_PRIMARY_INTERVAL_S: Final = 20.0
#: a primary is asked while a page was shown within this time
_WATCHED_S: Final = 30.0
#: of the last step's time; the next one has not come by then
_OVERDUE: Final = 1.5
#: whatever moved before, nothing moves now
_STANDS_S: Final = 300.0
SLOT_COLUMNS: Final = ("lag_bytes", "lag_seconds", "retained_bytes", "rate")
SOURCE_COLUMNS: Final = ("rate", "lag_bytes")
SUBSCRIPTION_COLUMNS: Final = ("lag_bytes", "lag_seconds", "rate")


@dataclass(frozen=True, slots=True)
class View:
    """Everything that pages show, as of one look."""

    at: float = 0.0
    #: when what is shown was seen: before *at* while looks fail
    seen_at: datetime | None = None
    sources: tuple[SourceView, ...] = ()
    slots: tuple[SlotView, ...] = ()
    subscriptions: tuple[SubscriptionInfo, ...] = ()
    findings: tuple[Finding, ...] = ()
    error: SpillwayError | None = None
    obstacles: tuple[Obstacle, ...] = ()
    warnings: tuple[Obstacle, ...] = ()
    #: when subscriptions were seen to have met a conflict, since the service started
    conflicts_at: Mapping[str, datetime] = field(default_factory=dict)

    def everything(self, limits: Limits | None = None) -> list[Finding]:
        """Give all that holds by *limits*; None: by the overview's."""
        return everything(
            self.sources,
            self.slots,
            self.subscriptions,
            self.obstacles,
            self.warnings,
            limits=limits,
            conflicts_at=self.conflicts_at,
        )

    def unknown(self) -> frozenset[tuple[str, str]]:
        """Give (code, subject) of what is not known: that it is not found says nothing."""
        return unknown_subjects(self.sources, self.slots, self.subscriptions)

    def source(self, name: str) -> SourceView | None:
        return next((source for source in self.sources if source.info.name == name), None)

    def slot(self, name: str) -> SlotView | None:
        return next((slot for slot in self.slots if slot.info.slot_name == name), None)

    def subscription(self, name: str) -> SubscriptionInfo | None:
        return next((one for one in self.subscriptions if one.name == name), None)

    def severity(self, link: str) -> str | None:
        """Give how bad the worst of the findings is that lead to *link*: what is shown of one thing
        has one colour.
        """
        found = {finding.severity for finding in self.findings if finding.link == link}
        return "bad" if "bad" in found else "warn" if found else None

    def slots_of(self, source: str) -> list[SlotView]:
        return [slot for slot in self.slots if slot.info.source == source]


@dataclass(slots=True)
class _Primary:
    cost: PrimaryCost | None = None
    error: str | None = None
    asked_at: float = -math.inf
    question: asyncio.Task[None] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the engine and the subscriptions said, one after the other."""

    sources: list[SourceInfo]
    slots: list[SlotInfo]
    subscriptions: tuple[SubscriptionInfo, ...]
    #: of each slot, by its name; None: not known
    lags: Mapping[str, float | None]


class Pace:
    """How fast a position moves that moves in steps: a consumer confirms every second, or every
    minute.

    Between two steps the pace is that of the last one, as long as the next is not overdue; then it
    falls with the time that passes. So a consumer that keeps up does not look as if it stood still
    in between, and one that stands still soon does.
    """

    def __init__(self, now: float, position: int) -> None:
        self._began_s = self._moved_s = now
        self._position = position
        self._step = 0

    def at(self, now: float, position: int) -> float:
        """Return the pace in bytes a second, given the *position* at *now*; NaN at the first
        look.
        """
        if now < self._moved_s:
            # The clock was set back: what was seen by it before says nothing of how long it took.
            self._began_s = self._moved_s = now
            self._step, self._position = 0, position
        if position != self._position:
            # A rewound slot has no pace.
            self._step = max(0, position - self._position)
            self._began_s, self._moved_s, self._position = self._moved_s, now, position
        if now <= self._began_s:
            return math.nan
        took_s = self._moved_s - self._began_s
        if now - self._moved_s <= max(took_s, TICK_S) * _OVERDUE and took_s > 0:
            return self._step / took_s
        return self._step / (now - self._began_s) if now - self._moved_s < _STANDS_S else 0.0


class Sampler:
    """Used on the event loop."""

    def __init__(self, engine: EngineInterface, subscriptions: SubscriptionInterface) -> None:
        self._engine = engine
        self._subscriptions = subscriptions
        self.view = View()
        self._tracks: dict[tuple[str, str], Track] = {}
        #: how fast positions move
        self._paces: dict[tuple[str, str], Pace] = {}
        self._primaries: dict[str, _Primary] = {}
        #: how many conflicts subscriptions had, and when that grew
        self._conflicts: dict[str, int] = {}
        self._conflicts_at: dict[str, datetime] = {}
        self._watched_at = -math.inf
        self._looked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._run(), name="spillway-sampler")

    async def stop(self) -> None:
        """End it; safe to call twice."""
        questions = [primary.question for primary in self._primaries.values()]
        for task in (self._task, *questions):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._task = None

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:
                # A bug in one look must not end all that follow.
                log.exception("the look at the engine failed")
            await asyncio.sleep(TICK_S)

    async def next_look(self) -> View:
        """Wait for the next look."""
        await self._looked.wait()
        return self.view

    def watch(self) -> None:
        """Somebody looks at a page: primaries may be asked."""
        self._watched_at = time.monotonic()

    async def look(self) -> View:
        """Look now, and wake who waits."""
        now = time.time()
        try:
            seen = await self._ask_engine()
        except SpillwayError as error:
            self.view = replace(self.view, at=now, error=error)
        else:
            self.view = self._reckon(now, seen)
        looked, self._looked = self._looked, asyncio.Event()
        looked.set()
        return self.view

    async def see(self) -> View:
        """Look for somebody who asks once: nothing is remembered of it, and nobody is woken.

        What a single look can't tell is as of the last one that was remembered: what primaries
        keep, when conflicts came. How fast positions move is not known (NaN).

        Raises:
            SpillwayError: why nothing is known.
        """
        self.watch()
        seen = await self._ask_engine()
        return self._view(
            time.time(),
            tuple(self._source_view(source, math.nan) for source in seen.sources),
            tuple(_slot_view(slot, seen, math.nan) for slot in seen.slots),
            seen.subscriptions,
        )

    async def _ask_engine(self) -> _Seen:
        sources = await self._engine.list_sources()
        slots = await self._engine.list_slots()
        subscriptions = tuple(await self._subscriptions.list_all())
        lags = {slot.slot_name: await self._lag_seconds(slot) for slot in slots}
        return _Seen(sources, slots, subscriptions, lags)

    async def _lag_seconds(self, slot: SlotInfo) -> float | None:
        try:
            return await self._engine.lag_seconds(slot.slot_name)
        except UnknownSlot:
            return None

    def track(self, kind: str, name: str) -> Track | None:
        """Give what is remembered of a source, a slot or a subscription."""
        return self._tracks.get((kind, name))

    # -- reckoning ----------------------------------------------------------------------------

    def _reckon(self, now: float, seen: _Seen) -> View:
        self._forget(
            {("source", source.name) for source in seen.sources}
            | {("slot", slot.slot_name) for slot in seen.slots}
            | {("subscription", one.name) for one in seen.subscriptions}
            | {
                ("session", f"{source.name}/{session.database}")
                for source in seen.sources
                for session in source.sessions
            }
        )
        self._ask_primaries({source.name for source in seen.sources})
        sources = tuple(self._source(now, source) for source in seen.sources)
        slots = tuple(self._slot(now, slot, seen) for slot in seen.slots)
        for one in seen.subscriptions:
            self._subscription(now, one)
        self._note_conflicts(seen.subscriptions)
        return self._view(now, sources, slots, seen.subscriptions)

    def _view(
        self,
        now: float,
        sources: tuple[SourceView, ...],
        slots: tuple[SlotView, ...],
        subscriptions: tuple[SubscriptionInfo, ...],
    ) -> View:
        view = View(
            now,
            datetime.now(UTC),
            sources,
            slots,
            subscriptions,
            obstacles=tuple(self._engine.obstacles()),
            warnings=tuple(self._engine.warnings()),
            conflicts_at=dict(self._conflicts_at),
        )
        return replace(view, findings=tuple(told(view.everything()).findings))

    def _note_conflicts(self, subscriptions: tuple[SubscriptionInfo, ...]) -> None:
        totals = {one.name: one.conflicts.total for one in subscriptions}
        for name, total in totals.items():
            if total > self._conflicts.get(name, total):
                self._conflicts_at[name] = datetime.now(UTC)
        for gone in self._conflicts_at.keys() - totals:
            del self._conflicts_at[gone]
        self._conflicts = totals

    def _source(self, now: float, info: SourceInfo) -> SourceView:
        key = ("source", info.name)
        decoded = {
            one.database: self._rate(
                ("session", f"{info.name}/{one.database}"), now, one.decoded_lsn
            )
            for one in info.sessions
        }
        view = self._source_view(info, self._rate(key, now, info.received_lsn), decoded)
        row = (view.received_rate, _number(view.behind_bytes))
        self._remember(key, SOURCE_COLUMNS, now, row)
        return view

    def _source_view(
        self,
        info: SourceInfo,
        received_rate: float,
        decoded_rates: Mapping[str, float] | None = None,
    ) -> SourceView:
        decoded = [s.decoded_lsn for s in info.sessions if s.decoded_lsn is not None]
        behind = (
            max(0, info.received_lsn - min(decoded))
            if decoded and info.received_lsn is not None
            else None
        )
        # A source that was added a moment ago is not among them yet.
        primary = self._primaries.get(info.name) or _Primary()
        return SourceView(
            info, received_rate, behind, primary.cost, primary.error, decoded_rates or {}
        )

    def _slot(self, now: float, info: SlotInfo, seen: _Seen) -> SlotView:
        key = ("slot", info.slot_name)
        view = _slot_view(info, seen, self._rate(key, now, info.confirmed_flush_lsn))
        row = (view.lag_bytes, view.lag_seconds, info.retained_bytes, view.rate)
        self._remember(key, SLOT_COLUMNS, now, tuple(map(_number, row)))
        return view

    def _subscription(self, now: float, info: SubscriptionInfo) -> None:
        row = (info.lag_bytes, info.lag_seconds, stats_of(info).changes_per_second)
        key = ("subscription", info.name)
        self._remember(key, SUBSCRIPTION_COLUMNS, now, tuple(map(_number, row)))

    def _rate(self, key: tuple[str, str], now: float, position: int | None) -> float:
        if position is None:
            return math.nan
        pace = self._paces.get(key)
        if pace is None:
            pace = self._paces[key] = Pace(now, position)
        return pace.at(now, position)

    def _remember(
        self, key: tuple[str, str], columns: tuple[str, ...], now: float, row: tuple[float, ...]
    ) -> None:
        track = self._tracks.get(key)
        if track is None:
            if len(self._tracks) >= TRACKS_MAX:
                return
            track = self._tracks[key] = Track(columns)
        track.add(now, row)

    def _forget(self, things: set[tuple[str, str]]) -> None:
        for kept in (self._tracks, self._paces):
            for key in kept.keys() - things:
                del kept[key]

    # -- primaries ----------------------------------------------------------------------------

    def _ask_primaries(self, names: set[str]) -> None:
        for gone in self._primaries.keys() - names:
            if (question := self._primaries.pop(gone).question) is not None:
                question.cancel()
        for name in names:
            self._primaries.setdefault(name, _Primary())
        now = time.monotonic()
        if now - self._watched_at > _WATCHED_S:
            return
        if any(p.question is not None and not p.question.done() for p in self._primaries.values()):
            return
        due = [(p.asked_at, name) for name, p in self._primaries.items()]
        if due and now - min(due)[0] >= _PRIMARY_INTERVAL_S:
            name = min(due)[1]
            primary = self._primaries[name]
            primary.asked_at = now
            primary.question = asyncio.create_task(self._ask(name, primary))

    async def _ask(self, name: str, primary: _Primary) -> None:
        try:
            primary.cost, primary.error = await self._engine.primary_cost(name), None
        except SpillwayError as error:
            primary.cost, primary.error = None, error.message


def pinned(view: View) -> Mapping[str, int | None]:
    """Sum up what the primaries keep: bytes, and the oldest transaction's age; None where no
    primary answered.

    *unknown* is how many did not answer, or were not asked yet: their share is not in the sums.
    """
    costs = [source.cost for source in view.sources if source.cost is not None]
    unknown = len(view.sources) - len(costs)
    if not costs:
        return {"bytes": None, "xids": None, "unknown": unknown}
    ages = [age for cost in costs for age in (cost.xmin_age, cost.catalog_xmin_age) if age]
    return {
        "bytes": sum(cost.wal_bytes for cost in costs),
        "xids": max(ages, default=0),
        "unknown": unknown,
    }


def _slot_view(info: SlotInfo, seen: _Seen, rate: float) -> SlotView:
    state = "invalidated" if info.invalidation_reason else "active" if info.active else "idle"
    return SlotView(info, info.lag_bytes, seen.lags.get(info.slot_name), rate, state)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
