"""``/metrics``: positions and lags in Prometheus's text format.

Made afresh of the engine's lists at each scrape, so that a dropped slot's series end at once. LSNs
are numbers of bytes: differences and rates of them are bytes and bytes per second. (A sample is a
float64: exact up to 2**53, 8 PiB of WAL.)
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, TypeVar

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from spillway.alerts.registry import Alerts
from spillway.connection_bound import ConnectionBound
from spillway.errors import SpillwayError, UnknownSlot
from spillway.listener_signs import ListenerSigns
from spillway.service.interface import EngineInterface
from spillway.service.model import Obstacle, SlotInfo, SlotStats, SourceInfo
from spillway.slot_manager.dependencies import Engine, Subscriptions
from spillway.subscriber.model import SubscriptionInfo, SubscriptionState, VerificationState
from spillway.tls import ServerCertificate
from spillway.watch.findings import SCHEMA_CHANGES

router = APIRouter(include_in_schema=False)

#: what a series is of: a table, or a table and a kind
Which = TypeVar("Which", bound=tuple[str, ...])
#: series that a subscription has at most of what is told table by table
TABLES_MAX: Final = 100
#: How long the metadata store is waited for. Prometheus gives a scrape ten seconds.
_ALERTS_S: Final = 2.0


@router.get("/metrics")
async def metrics(request: Request, engine: Engine, subscriptions: Subscriptions) -> Response:
    """Give every metric."""
    registry = CollectorRegistry(auto_describe=False)
    slots = await engine.list_slots()
    lags = {slot.slot_name: await _lag_seconds(engine, slot) for slot in slots}
    registry.register(_Obstacles(engine.obstacles(), engine.warnings()))
    registry.register(_Positions(await engine.list_sources(), slots, lags))
    stats = {slot.slot_name: await _stats(engine, slot) for slot in slots}
    registry.register(_Delivered(slots, stats))
    registry.register(_SubscriptionStates(await subscriptions.list_all()))
    registry.register(_Connections(request.app.state.bounds, engine.listeners()))
    if request.app.state.alerts is not None:
        registry.register(await _alerts(request.app.state.alerts))
    if request.app.state.certificate is not None:
        registry.register(_Certificate(request.app.state.certificate))
    ProcessCollector(registry=registry)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


class _Connections(Collector):
    def __init__(
        self, bounds: Sequence[ConnectionBound], listeners: Sequence[ListenerSigns]
    ) -> None:
        self._bounds = bounds
        self._listeners = listeners

    def collect(self) -> Iterator[Metric]:
        refused = CounterMetricFamily(
            "spillway_connections_refused",
            "Connections that were refused since the start, by why: too many in all or of their "
            "address, or what the door said.",
            labels=("door", "reason"),
        )
        for bound in self._bounds:
            for reason, count in bound.refused.items():
                refused.add_metric([bound.door, reason], count)
        accepted = CounterMetricFamily(
            "spillway_connections_accepted",
            "Connections that were accepted since the start.",
            labels=("door",),
        )
        for listener in self._listeners:
            for why, count in sorted(listener.refused.items()):
                refused.add_metric([listener.door, why], count)
            accepted.add_metric([listener.door], listener.accepted)
        yield refused
        yield accepted
        yield _family(
            "spillway_listening",
            "1 while whoever connects to the door is answered, as its listener knows.",
            ("door",),
            (((one.door,), float(one.is_listening)) for one in self._listeners),
        )
        yield _family(
            "spillway_sessions",
            "Sessions of clients that have come in, by what they do: streaming a slot, commands "
            "with a database (logical) or without (physical), sql.",
            ("door", "doing"),
            (
                ((one.door, doing), float(one.sessions[doing]))
                for one in self._listeners
                for doing in ("streaming", "logical", "physical", "sql")
            ),
        )


class _Certificate(Collector):
    def __init__(self, certificate: ServerCertificate) -> None:
        self._certificate = certificate

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "spillway_tls_reload_failed",
            "1 while the certificate's files can't be used, and what was loaded before is.",
            value=float(self._certificate.is_reload_failed),
        )
        yield GaugeMetricFamily(
            "spillway_tls_loaded_timestamp_seconds",
            "When the certificate in use was loaded, in Unix time.",
            value=self._certificate.loaded_at_s,
        )
        expires_at_s = self._certificate.expires_at_s
        if expires_at_s is not None:
            yield GaugeMetricFamily(
                "spillway_tls_certificate_expires_timestamp_seconds",
                "When the certificate in use expires or has expired, in Unix time.",
                value=expires_at_s,
            )


async def _lag_seconds(engine: EngineInterface, slot: SlotInfo) -> float | None:
    try:
        return await engine.lag_seconds(slot.slot_name)
    except UnknownSlot:
        return None


async def _stats(engine: EngineInterface, slot: SlotInfo) -> SlotStats | None:
    try:
        return await engine.slot_stats(slot.slot_name)
    except UnknownSlot:
        return None


class _Delivered(Collector):
    """What slots' consumers were handed since the service started: counters."""

    def __init__(self, slots: Sequence[SlotInfo], stats: Mapping[str, SlotStats | None]) -> None:
        self._slots = slots
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        for name, column, meaning in (
            ("transactions", "total_txns", "Transactions that were handed to consumers."),
            (
                "messages",
                "total_messages",
                "Messages that were: changes, and the begins and commits that a plugin has.",
            ),
            ("bytes", "total_bytes", "Bytes that were, of messages."),
        ):
            family = CounterMetricFamily(
                f"spillway_slot_delivered_{name}",
                f"{meaning} Since the service started.",
                labels=("slot", "source", "database", "plugin"),
            )
            for slot in self._slots:
                stats = self._stats[slot.slot_name]
                if stats is not None:
                    labels = [slot.slot_name, slot.source, slot.database, slot.plugin]
                    family.add_metric(labels, getattr(stats, column))
            yield family


async def _alerts(alerts: Alerts) -> Collector:
    """Read what is told; while the metadata store does not answer, nothing is. All else is known
    without it, and whoever scrapes would not wait that long.
    """
    try:
        async with asyncio.timeout(_ALERTS_S):
            return _AlertCounts(await alerts.firing_counts(), await alerts.message_counts())
    except (SpillwayError, TimeoutError):
        return _AlertCounts(None, {})


class _AlertCounts(Collector):
    def __init__(
        self,
        firing: Mapping[tuple[str, str, str], int] | None,
        messages: Mapping[tuple[str, str], int],
    ) -> None:
        self._firing = firing
        self._messages = messages

    def collect(self) -> Iterator[Metric]:
        if self._firing is None:
            return
        yield _family(
            "spillway_alerts_firing",
            "What rules have found and is not over.",
            ("rule", "code", "severity"),
            ((labels, float(count)) for labels, count in self._firing.items()),
        )
        yield _family(
            "spillway_alert_messages",
            "Messages to channels that are kept, by what became of them.",
            ("channel", "state"),
            ((labels, float(count)) for labels, count in self._messages.items()),
        )


class _Obstacles(Collector):
    def __init__(self, obstacles: Sequence[Obstacle], warnings: Sequence[Obstacle]) -> None:
        self._obstacles = obstacles
        self._warnings = warnings

    def collect(self) -> Iterator[Metric]:
        yield _family(
            "spillway_ready", "1 while /readyz is 200.", (), [((), float(not self._obstacles))]
        )
        yield _family(
            "spillway_not_ready",
            "1 for each thing that keeps the service from its work, as /readyz lists them.",
            ("kind", "name", "code"),
            {(one.kind, one.name, one.code): 1.0 for one in self._obstacles}.items(),
        )
        yield _family(
            "spillway_warning",
            "1 for each thing that will keep the service from its work if nobody does anything, as "
            "/readyz lists them.",
            ("kind", "name", "code"),
            {(one.kind, one.name, one.code): 1.0 for one in self._warnings}.items(),
        )


class _Positions(Collector):
    def __init__(
        self,
        sources: Sequence[SourceInfo],
        slots: Sequence[SlotInfo],
        lags: Mapping[str, float | None],
    ) -> None:
        self._sources = sources
        self._slots = slots
        self._lags = lags

    def collect(self) -> Iterator[Metric]:
        sources = self._sources
        yield _family(
            "spillway_source_streaming",
            "1 while WAL is being received from the source.",
            ("source",),
            (((s.name,), float(s.state == "streaming")) for s in sources),
        )
        yield _family(
            "spillway_source_received_lsn",
            "How far WAL has been received.",
            ("source",),
            (((s.name,), s.received_lsn) for s in sources),
        )
        yield _family(
            "spillway_source_flushed_lsn",
            "How far received WAL is durable, and confirmed to the source.",
            ("source",),
            (((s.name,), s.flushed_lsn) for s in sources),
        )
        yield _family(
            "spillway_source_heard_timestamp_seconds",
            "When the source was last heard; absent before the first time.",
            ("source",),
            (((s.name,), _timestamp(s.heard_at)) for s in sources),
        )
        sessions = [(source, session) for source in sources for session in source.sessions]
        yield _family(
            "spillway_session_decoded_lsn",
            "How far WAL is decoded.",
            ("source", "database"),
            (((s.name, d.database), d.decoded_lsn) for s, d in sessions),
        )
        yield _family(
            "spillway_session_restart_lsn",
            "The oldest WAL that decoding needs after a restart.",
            ("source", "database"),
            (((s.name, d.database), d.restart_lsn) for s, d in sessions),
        )
        yield _family(
            "spillway_session_consistent",
            "1 while the decoding session is consistent.",
            ("source", "database"),
            (((s.name, d.database), float(d.snapshot_state == "consistent")) for s, d in sessions),
        )
        yield _family(
            "spillway_session_decoding",
            "1 while WAL is decoded, 0 while that has stopped; absent until it is as far as before "
            "the service started.",
            ("source", "database"),
            (
                ((s.name, d.database), float(d.state == "running"))
                for s, d in sessions
                if d.state != "starting"
            ),
        )
        yield _family(
            "spillway_session_log_damaged",
            "1 while a part of the transaction log can't be read, and is decoded again.",
            ("source", "database"),
            (((s.name, d.database), float(d.log_damaged)) for s, d in sessions),
        )
        yield _family(
            "spillway_session_log_verified_timestamp_seconds",
            "When all sealed segments of the transaction log had been verified; absent while one "
            "was not.",
            ("source", "database"),
            (((s.name, d.database), d.log_verified_at) for s, d in sessions),
        )
        yield from self._collect_slots()

    def _collect_slots(self) -> Iterator[Metric]:
        labels = ("slot", "source", "database", "plugin")
        slots = [((s.slot_name, s.source, s.database, s.plugin), s) for s in self._slots]
        yield _family(
            "spillway_slot_active",
            "1 while a consumer has the slot.",
            labels,
            ((where, float(s.active)) for where, s in slots),
        )
        yield _family(
            "spillway_slot_confirmed_flush_lsn",
            "How far the consumer has confirmed.",
            labels,
            ((where, s.confirmed_flush_lsn) for where, s in slots),
        )
        yield _family(
            "spillway_slot_lag_bytes",
            "Decoded WAL that the consumer has not confirmed.",
            labels,
            ((where, s.lag_bytes) for where, s in slots),
        )
        yield _seconds(
            "spillway_slot_lag_seconds",
            "Age of the oldest transaction that is not confirmed; 0 without one, absent while that "
            "is not known.",
            labels,
            ((where, self._lags.get(s.slot_name)) for where, s in slots),
        )
        yield _family(
            "spillway_slot_confirmed_timestamp_seconds",
            "When a confirmation last moved the slot; absent if none did.",
            labels,
            ((where, _timestamp(s.confirmed_at)) for where, s in slots),
        )
        yield _family(
            "spillway_slot_retained_bytes",
            "Bytes of the transaction log that are kept for the slot.",
            labels,
            ((where, s.retained_bytes) for where, s in slots),
        )
        yield _family(
            "spillway_slot_safe_wal_bytes",
            "How much more may be kept for the slot before it is invalidated; absent without a "
            "limit.",
            labels,
            ((where, s.safe_wal_size) for where, s in slots),
        )
        yield _family(
            "spillway_slot_invalidated",
            "1 if the slot's history was given up.",
            labels,
            ((where, float(s.invalidation_reason is not None)) for where, s in slots),
        )


class _SubscriptionStates(Collector):
    def __init__(self, subscriptions: Sequence[SubscriptionInfo]) -> None:
        self._subscriptions = subscriptions

    def collect(self) -> Iterator[Metric]:
        labels = ("subscription", "source", "database", "slot")
        found = [((s.name, s.source, s.database, s.slot), s) for s in self._subscriptions]
        yield _family(
            "spillway_subscription_state",
            "1 for the state that the subscription is in, 0 for the others.",
            (*labels, "state"),
            (
                ((*where, str(state)), float(s.state == state))
                for where, s in found
                for state in SubscriptionState
            ),
        )
        yield _family(
            "spillway_subscription_lag_bytes",
            "Decoded WAL that is not confirmed: not in the target.",
            labels,
            ((where, s.lag_bytes) for where, s in found),
        )
        yield _seconds(
            "spillway_subscription_lag_seconds",
            "Age of the oldest transaction that is not confirmed; 0 without one, absent while that "
            "is not known.",
            labels,
            ((where, s.lag_seconds) for where, s in found),
        )
        yield _family(
            "spillway_subscription_rows",
            "Changes that are durable in the target.",
            labels,
            ((where, s.rows) for where, s in found),
        )
        yield _family(
            "spillway_subscription_restarts",
            "How often its program failed and was started again.",
            labels,
            ((where, s.restarts) for where, s in found),
        )
        yield _family(
            "spillway_subscription_tables",
            "Tables by what is done with them.",
            (*labels, "table_state"),
            (
                ((*where, state), float(count))
                for where, s in found
                for state, count in sorted(Counter(t.state for t in s.table_states).items())
            ),
        )
        yield _family(
            "spillway_subscription_waits_at_schema_change",
            "1 if it has failed at a change of the schema, and waits for somebody.",
            labels,
            (
                (
                    where,
                    float(
                        s.state == SubscriptionState.FAILED
                        and s.error is not None
                        and s.error.code in SCHEMA_CHANGES
                    ),
                )
                for where, s in found
            ),
        )
        yield _family(
            "spillway_subscription_verification",
            "1 for the state of the last comparison of a lake with its source, 0 for the others; "
            "absent while there was none.",
            (*labels, "verification_state"),
            (
                ((*where, str(state)), float(s.verification.state == state))
                for where, s in found
                if s.verification is not None
                for state in VerificationState
            ),
        )
        yield _family(
            "spillway_subscription_resyncs_failed",
            "Tables of a lake that somebody wanted anew, and whose load failed last.",
            labels,
            (
                (
                    where,
                    float(
                        sum(
                            t.resync is not None and t.resync.state == "failed"
                            for t in s.table_states
                        )
                    ),
                )
                for where, s in found
            ),
        )
        for name, meaning in (
            ("apply_error_count", "Errors of applying (pg_stat_subscription_stats)."),
            ("sync_error_count", "Errors of first copies (pg_stat_subscription_stats)."),
        ):
            yield _family(
                f"spillway_subscription_{name}",
                meaning,
                labels,
                ((where, _count(s.stats.get(name))) for where, s in found),
            )
        yield _family(
            "spillway_subscription_conflicts",
            "Conflicts by kind (confl_… of pg_stat_subscription_stats).",
            (*labels, "kind"),
            (
                ((*where, kind), float(count))
                for where, s in found
                for kind, count in s.conflicts.by_kind.items()
            ),
        )
        yield _family(
            "spillway_subscription_conflicts_missed",
            "Conflicts that were overwritten in the program's log before they were read: in no "
            "count.",
            labels,
            ((where, float(s.conflicts.missed)) for where, s in found if s.conflicts.total),
        )
        yield from self._collect_tables(labels, found)

    def _collect_tables(
        self, labels: Sequence[str], found: Sequence[tuple[Sequence[str], SubscriptionInfo]]
    ) -> Iterator[Metric]:
        """Of the tables with the most; the rest is one series whose table is empty."""
        yield _family(
            "spillway_subscription_table_conflicts",
            f"Conflicts by table of the target and kind, of the {TABLES_MAX} that have the most; "
            'of the others together as table "".',
            (*labels, "table", "kind"),
            (
                ((*where, *which), count)
                for where, s in found
                for which, count in _most(s.conflicts.counts).items()
            ),
        )
        yield _family(
            "spillway_subscription_table_changes",
            "Changes that are durable in the target by table of the source, of the "
            f'{TABLES_MAX} that have the most; of the others together as table "".',
            (*labels, "table"),
            (
                ((*where, table), count)
                for where, s in found
                for (table,), count in _most(
                    {(t.table,): t.changes for t in s.table_states}
                ).items()
            ),
        )
        for name, meaning in (
            ("rows", "Rows of a lake's current table"),
            ("files", "Data files of a lake's current table"),
            ("bytes", "Bytes of those files"),
            ("deleted_rows", "Rows in those files that are marked as gone"),
            ("bytes_rewritten", "Bytes of files that merging and compaction have replaced"),
        ):
            yield _family(
                f"spillway_subscription_table_{name}",
                f"{meaning}, of the {TABLES_MAX} tables that have the most; of the others together "
                'as table "".',
                (*labels, "table"),
                (
                    ((*where, table), count)
                    for where, s in found
                    for (table,), count in _most(_told(s, name)).items()
                ),
            )
        now = datetime.now(UTC)
        yield _seconds(
            "spillway_subscription_table_waiting_seconds",
            "Age of the oldest change that a lake's history has and its current table has not, of "
            f"the {TABLES_MAX} oldest; absent without one.",
            (*labels, "table"),
            (
                ((*where, table), seconds)
                for where, s in found
                for seconds, table in sorted(
                    (
                        (max(0.0, (now - t.waiting_since).total_seconds()), t.table)
                        for t in s.table_states
                        if t.waiting_since is not None
                    ),
                    reverse=True,
                )[:TABLES_MAX]
            ),
        )


def _told(subscription: SubscriptionInfo, name: str) -> dict[tuple[str], int]:
    """Return a count of its tables, of those for which it is known."""
    found = ((table.table, getattr(table, name)) for table in subscription.table_states)
    return {(table,): count for table, count in found if count is not None}


def _most(counts: Mapping[Which, int]) -> dict[tuple[str, ...], float]:
    """Return the greatest counts, and the sum of the others for a table without a name."""
    order = sorted(counts, key=lambda which: (-counts[which], which))
    found: dict[tuple[str, ...], float] = {one: float(counts[one]) for one in order[:TABLES_MAX]}
    for which in order[TABLES_MAX:]:
        rest = ("", *which[1:])
        found[rest] = found.get(rest, 0.0) + counts[which]
    return found


def _family(
    name: str,
    documentation: str,
    labels: Sequence[str],
    samples: Iterable[tuple[Sequence[str], float | None]],
) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(list(values), float(int(value)))
    return family


def _seconds(
    name: str,
    documentation: str,
    labels: Sequence[str],
    samples: Iterable[tuple[Sequence[str], float | None]],
) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(list(values), value)
    return family


def _timestamp(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _count(value: object) -> float | None:
    return float(value) if isinstance(value, int) else None
