"""``/v1/events``."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request

from spillway.alerts.registry import LIMIT_MAX, SEARCH_MAX
from spillway.errors import InvalidRequest
from spillway.slot_manager.dependencies import AlertRegistry
from spillway.slot_manager.events.models import EventList, EventView

router = APIRouter(prefix="/events", tags=["events"])

_PARAMETERS = frozenset(
    {"kind", "severity", "source", "slot", "subscription", "search", "since", "before", "limit"}
)


@router.get("", operation_id="list_events")
async def list_events(
    request: Request,
    alerts: AlertRegistry,
    kind: str | None = None,
    severity: str | None = None,
    source: str | None = None,
    slot: str | None = None,
    subscription: str | None = None,
    search: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=SEARCH_MAX,
            description="In the title, the detail and who did it, in any case.",
        ),
    ] = None,
    since: Annotated[datetime | None, Query(description="With its time zone.")] = None,
    before: Annotated[int | None, Query(ge=1, description="Only those below this id.")] = None,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = 100,
) -> EventList:
    """List what happened, the newest first: of 30 days, 50,000 at most."""
    for name in request.query_params.keys() - _PARAMETERS:
        raise InvalidRequest(
            f'unknown query parameter "{name}"', hint=f"There are {', '.join(sorted(_PARAMETERS))}."
        )
    if since is not None and since.tzinfo is None:
        raise InvalidRequest(
            "since has no time zone", hint="Write 2026-11-23T08:00:00Z or …+01:00."
        )
    page = await alerts.page_of_events(
        limit,
        before=before,
        since=since,
        search=search,
        kind=kind,
        severity=severity,
        source=source,
        slot=slot,
        subscription=subscription,
    )
    return EventList(
        events=[EventView.model_validate(event) for event in page.items],
        next_before=page.next_before,
    )
