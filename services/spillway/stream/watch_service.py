"""WatchService: REST's calls of findings, events, the past and the schema's timeline over gRPC,
with the same semantics and the same errors.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spillway.alerts.registry import LIMIT_MAX as EVENTS_MAX
from spillway.alerts.registry import SEARCH_MAX
from spillway.errors import InvalidRequest
from spillway.stream.messages import timestamp
from spillway.stream.parts import limit_of, moment_of, refuse_nul, write_in_parts
from spillway.stream.status import errors_as_statuses
from spillway.v1 import watch_pb2 as pb
from spillway.v1 import watch_pb2_grpc
from spillway.watch.timeline import LIMIT_MAX as SCHEMA_CHANGES_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spillway.alerts.registry import Alerts
    from spillway.service.interface import EngineInterface
    from spillway.store.rows import EventRow
    from spillway.subscriber.interface import SubscriptionInterface
    from spillway.watch.findings import Finding
    from spillway.watch.past import Past, PastSeries
    from spillway.watch.sampler import Sampler
    from spillway.watch.timeline import SchemaChange, Timeline

SERVICE_NAME: Final = "spillway.v1.WatchService"

_RANGE_DEFAULT_S: Final = 86_400
_PLACES: Final = ("kind", "severity", "source", "slot", "subscription")


class Watched(NamedTuple):
    """What the service has seen, and who is told of it."""

    sampler: Sampler
    alerts: Alerts
    past: Past
    timeline: Timeline


class WatchService(watch_pb2_grpc.WatchServiceServicer):
    """One method a call; ``context`` is grpc.aio's."""

    def __init__(
        self, engine: EngineInterface, subscriptions: SubscriptionInterface, watched: Watched
    ) -> None:
        self._engine = engine
        self._subscriptions = subscriptions
        self._watched = watched

    @errors_as_statuses
    async def ListFindings(self, request: pb.ListFindingsRequest, context: Any) -> None:
        view = await self._watched.sampler.see()
        unknown = [
            pb.UnknownFinding(code=code, subject=subject)
            for code, subject in sorted(view.unknown())
        ]
        findings = map(_finding, view.findings)
        await write_in_parts(
            context, pb.ListFindingsResponse, "findings", findings, unknown=unknown
        )

    @errors_as_statuses
    async def ListEvents(self, request: pb.ListEventsRequest, context: Any) -> None:
        refuse_nul(request)
        if len(request.search) > SEARCH_MAX:
            raise InvalidRequest(
                "search is too long", hint=f"Give {SEARCH_MAX} characters at most.", field="search"
            )
        page = await self._watched.alerts.page_of_events(
            limit_of(request, EVENTS_MAX),
            before=request.before or None,
            since=moment_of(request, "since"),
            search=request.search or None,
            **{name: _given(request, name) for name in _PLACES},
        )
        await write_in_parts(
            context,
            pb.ListEventsResponse,
            "events",
            map(_event, page.items),
            next_before=page.next_before or 0,
        )

    @errors_as_statuses
    async def GetSourceMetrics(self, request: pb.GetMetricsRequest, context: Any) -> pb.Metrics:
        refuse_nul(request)
        await self._engine.get_source(request.name)
        return await self._metrics("source", request)

    @errors_as_statuses
    async def GetSlotMetrics(self, request: pb.GetMetricsRequest, context: Any) -> pb.Metrics:
        refuse_nul(request)
        await self._engine.get_slot(request.name)
        return await self._metrics("slot", request)

    @errors_as_statuses
    async def GetSubscriptionMetrics(
        self, request: pb.GetMetricsRequest, context: Any
    ) -> pb.Metrics:
        refuse_nul(request)
        await self._subscriptions.get(request.name)
        return await self._metrics("subscription", request)

    async def _metrics(self, kind: str, request: pb.GetMetricsRequest) -> pb.Metrics:
        found = await self._watched.past.series(
            kind,
            request.name,
            range_s=request.range_s or _RANGE_DEFAULT_S,
            step_s=request.step_s or None,
        )
        return _metrics(found)

    @errors_as_statuses
    async def ListSchemaChanges(self, request: pb.ListSchemaChangesRequest, context: Any) -> None:
        refuse_nul(request)
        page = await self._watched.timeline.page(
            limit_of(request, SCHEMA_CHANGES_MAX),
            source=_given(request, "source"),
            database=_given(request, "database"),
            table=_given(request, "table"),
            since=moment_of(request, "since"),
            before=request.before or None,
        )
        await write_in_parts(
            context,
            pb.ListSchemaChangesResponse,
            "schema_changes",
            map(_schema_change, page.items),
            next_before=page.next_before or 0,
        )


def _given(request: Any, field: str) -> str | None:
    return getattr(request, field) if request.HasField(field) else None


def _finding(finding: Finding) -> pb.Finding:
    return pb.Finding(
        severity=finding.severity,
        code=finding.code,
        subject=finding.subject,
        source=finding.source or None,
        slot=finding.slot,
        subscription=finding.subscription,
        title=finding.title,
        detail=finding.detail,
        remedy=finding.remedy,
        page=finding.link,
        since=timestamp(finding.since),
    )


def _event(row: EventRow) -> pb.Event:
    message = pb.Event(
        id=row.id,
        at=timestamp(row.at),
        kind=row.kind,
        severity=row.severity,
        source=row.source,
        slot=row.slot,
        subscription=row.subscription,
        title=row.title,
        detail=row.detail,
        caller=None if row.caller is None else pb.EventCaller(**row.caller),
    )
    if row.document is not None:
        message.document.update(dict(row.document))
    return message


def _metrics(series: PastSeries) -> pb.Metrics:
    return pb.Metrics(
        kind=series.kind,
        name=series.name,
        since=timestamp(datetime.fromtimestamp(series.times[0], UTC)),
        step_s=series.step_s,
        metrics={
            name: pb.MetricValues(values=[pb.MetricValue(value=value) for value in values])
            for name, values in series.values.items()
        },
    )


def _schema_change(change: SchemaChange) -> pb.SchemaChange:
    message = pb.SchemaChange(
        id=change.id,
        source=change.source,
        database=change.database,
        table=change.table,
        was=change.was,
        kind=change.kind,
        committed_at=timestamp(change.committed_at),
        commit_lsn=change.commit_lsn,
        xid=change.xid,
        words=change.words,
        more=change.more,
        outcomes=[_outcome(name, outcome) for name, outcome in sorted(change.outcomes.items())],
    )
    for one in change.changes:
        message.changes.add().update(dict(one))
    return message


def _outcome(subscription: str, outcome: Mapping[str, Any]) -> pb.SchemaChangeOutcome:
    return pb.SchemaChangeOutcome(
        subscription=subscription,
        outcome=outcome["outcome"],
        detail=outcome["detail"],
        at=timestamp(datetime.fromisoformat(outcome["at"])),
        was_paused=outcome["was_paused"],
    )
