"""``/v1/schema-changes``."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request

from spillway.errors import InvalidRequest
from spillway.slot_manager.dependencies import SchemaTimeline
from spillway.slot_manager.schema_changes.models import (
    OutcomeView,
    SchemaChangeList,
    SchemaChangeView,
)
from spillway.watch.timeline import LIMIT_MAX, SchemaChange

router = APIRouter(prefix="/schema-changes", tags=["changes"])

_PARAMETERS = frozenset({"source", "database", "table", "since", "before", "limit"})


@router.get("", operation_id="list_schema_changes")
async def list_schema_changes(
    request: Request,
    timeline: SchemaTimeline,
    source: str | None = None,
    database: str | None = None,
    table: Annotated[str | None, Query(description="schema.table, as it is or was called.")] = None,
    since: Annotated[datetime | None, Query(description="With its time zone.")] = None,
    before: Annotated[int | None, Query(ge=1, description="Only those below this id.")] = None,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = 100,
) -> SchemaChangeList:
    """List what DDL did to captured tables, and what subscriptions made of it, the newest first: of
    30 days, 20,000 at most.
    """
    for name in request.query_params.keys() - _PARAMETERS:
        raise InvalidRequest(
            f'unknown query parameter "{name}"', hint=f"There are {', '.join(sorted(_PARAMETERS))}."
        )
    if since is not None and since.tzinfo is None:
        raise InvalidRequest(
            "since has no time zone", hint="Write 2026-11-23T08:00:00Z or …+01:00."
        )
    page = await timeline.page(
        limit, source=source, database=database, table=table, since=since, before=before
    )
    return SchemaChangeList(
        schema_changes=[_view(change) for change in page.items], next_before=page.next_before
    )


def _view(change: SchemaChange) -> SchemaChangeView:
    return SchemaChangeView(
        id=change.id,
        source=change.source,
        database=change.database,
        table=change.table,
        was=change.was,
        kind=change.kind,
        committed_at=change.committed_at,
        commit_lsn=change.commit_lsn,
        xid=change.xid,
        words=list(change.words),
        changes=[dict(one) for one in change.changes],
        more=change.more,
        outcomes=[
            OutcomeView(subscription=name, **outcome)
            for name, outcome in sorted(change.outcomes.items())
        ],
    )
