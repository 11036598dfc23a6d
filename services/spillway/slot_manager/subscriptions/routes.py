"""``/v1/subscriptions``."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from spillway.slot_manager.dependencies import NoQuery, Subscriptions
from spillway.slot_manager.subscriptions.models import (
    AlterSubscription,
    ConflictList,
    ConflictView,
    CreateSubscription,
    DroppedSubscription,
    LogView,
    SkipTo,
    StatsView,
    SubscriptionList,
    SubscriptionView,
    VerifyTables,
    plain,
)
from spillway.subscriber.model import SubscriptionSpec
from spillway.subscriber.stats import stats_of

router = APIRouter(prefix="/subscriptions", tags=["subscriptions"])


class DropQuery(BaseModel):
    """DROP SUBSCRIPTION's choice."""

    model_config = ConfigDict(extra="forbid")

    keep_slot: bool = Field(
        default=False, description="Leave the slot, which goes on keeping changes."
    )


class LogQuery(BaseModel):
    """How much of a log."""

    model_config = ConfigDict(extra="forbid")

    lines: int = Field(default=100, ge=0, le=10_000)


class ConflictsQuery(BaseModel):
    """How many conflicts."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(default=100, ge=0, le=10_000)
    kind: str | None = Field(default=None, description="Only those of this kind.")
    table: str | None = Field(
        default=None, description="Only those of this one: schema.table, as on the target."
    )


@router.post("", status_code=201, operation_id="create_subscription", dependencies=[NoQuery])
async def create_subscription(
    body: CreateSubscription, subscriptions: Subscriptions, response: Response
) -> SubscriptionView:
    """Create a subscription, and its slot unless that is there, and start to fill its target
    (CREATE SUBSCRIPTION).
    """
    created = await subscriptions.create(
        SubscriptionSpec(
            name=body.name,
            source=body.source,
            database=body.database,
            target=plain(body.target),
            slot=body.slot or "",
            tables=None if body.tables is None else tuple(body.tables),
            publications=None if body.publications is None else tuple(body.publications),
            enabled=body.enabled,
            copy_data=body.copy_data,
            origin=body.origin,
            streaming=body.streaming,
            two_phase=body.two_phase,
            options=body.options,
        )
    )
    response.headers["Location"] = f"/v1/subscriptions/{created.name}"
    return SubscriptionView.model_validate(created)


@router.get("", operation_id="list_subscriptions", dependencies=[NoQuery])
async def list_subscriptions(subscriptions: Subscriptions) -> SubscriptionList:
    """List the subscriptions (pg_subscription, pg_stat_subscription)."""
    found = await subscriptions.list_all()
    return SubscriptionList(subscriptions=[SubscriptionView.model_validate(s) for s in found])


@router.get("/{name}", operation_id="get_subscription", dependencies=[NoQuery])
async def get_subscription(name: str, subscriptions: Subscriptions) -> SubscriptionView:
    """Show a subscription."""
    return SubscriptionView.model_validate(await subscriptions.get(name))


@router.patch("/{name}", operation_id="alter_subscription", dependencies=[NoQuery])
async def alter_subscription(
    name: str, body: AlterSubscription, subscriptions: Subscriptions
) -> SubscriptionView:
    """Change what can change in place (ALTER SUBSCRIPTION); its program is started anew for it."""
    return SubscriptionView.model_validate(await subscriptions.alter(name, body.changes()))


@router.delete("/{name}", operation_id="drop_subscription")
async def drop_subscription(
    name: str, query: Annotated[DropQuery, Query()], subscriptions: Subscriptions
) -> DroppedSubscription:
    """Drop a subscription and its slot (DROP SUBSCRIPTION); what is in its target stays."""
    notes = await subscriptions.drop(name, keep_slot=query.keep_slot)
    return DroppedSubscription(name=name, notes=notes)


@router.post("/{name}/enable", operation_id="enable_subscription", dependencies=[NoQuery])
async def enable_subscription(name: str, subscriptions: Subscriptions) -> SubscriptionView:
    """Start a subscription that was disabled (ALTER SUBSCRIPTION … ENABLE)."""
    return SubscriptionView.model_validate(await subscriptions.enable(name))


@router.post("/{name}/disable", operation_id="disable_subscription", dependencies=[NoQuery])
async def disable_subscription(name: str, subscriptions: Subscriptions) -> SubscriptionView:
    """Stop a subscription; its slot keeps what comes (ALTER SUBSCRIPTION … DISABLE)."""
    return SubscriptionView.model_validate(await subscriptions.disable(name))


@router.post("/{name}/refresh", operation_id="refresh_subscription", dependencies=[NoQuery])
async def refresh_subscription(name: str, subscriptions: Subscriptions) -> SubscriptionView:
    """Look again which tables are published; new ones are copied first (ALTER SUBSCRIPTION …
    REFRESH PUBLICATION).
    """
    return SubscriptionView.model_validate(await subscriptions.refresh(name))


@router.post("/{name}/skip", operation_id="skip_subscription", dependencies=[NoQuery])
async def skip_subscription(
    name: str, body: SkipTo, subscriptions: Subscriptions
) -> SubscriptionView:
    """Give up what commits before an LSN and is not in the target yet (ALTER SUBSCRIPTION …
    SKIP).
    """
    return SubscriptionView.model_validate(await subscriptions.skip(name, body.lsn))


@router.post(
    "/{name}/tables/{table}/pause",
    operation_id="pause_subscription_table",
    dependencies=[NoQuery],
)
async def pause_table(name: str, table: str, subscriptions: Subscriptions) -> SubscriptionView:
    """Set one table, schema.table, of a lake aside from the job's next batch on, while the others
    go on: what comes for it is kept in the lake as it came, and the slot is confirmed.
    """
    return SubscriptionView.model_validate(await subscriptions.pause_table(name, table))


@router.post(
    "/{name}/tables/{table}/resume",
    operation_id="resume_subscription_table",
    dependencies=[NoQuery],
)
async def resume_table(name: str, table: str, subscriptions: Subscriptions) -> SubscriptionView:
    """Have a table that is paused, or was set aside, come back with the job's next batch, with all
    that was kept for it.
    """
    return SubscriptionView.model_validate(await subscriptions.resume_table(name, table))


@router.post(
    "/{name}/tables/{table}/resync",
    operation_id="resync_subscription_table",
    dependencies=[NoQuery],
)
async def resync_table(name: str, table: str, subscriptions: Subscriptions) -> SubscriptionView:
    """Have the job load one table, schema.table, of a lake anew, as of an LSN, while it and the
    others are followed. The wish is durable when this answers; its table's resync says how far it
    is. Asked for again while it waits, it is the same wish.
    """
    return SubscriptionView.model_validate(await subscriptions.resync_table(name, table))


@router.post(
    "/{name}/tables/{table}/cancel-resync",
    operation_id="cancel_subscription_table_resync",
    dependencies=[NoQuery],
)
async def cancel_resync(name: str, table: str, subscriptions: Subscriptions) -> SubscriptionView:
    """Take back that one table, schema.table, of a lake is to be loaded anew, which is possible
    until its load begins: then it is a conflict. It is durable when this answers.
    """
    return SubscriptionView.model_validate(await subscriptions.cancel_resync(name, table))


@router.post("/{name}/verify", operation_id="verify_subscription", dependencies=[NoQuery])
async def verify_subscription(
    name: str, body: VerifyTables, subscriptions: Subscriptions
) -> SubscriptionView:
    """Begin to compare a lake with its source, as of one LSN, while the job goes on; what comes out
    is its verification. One comparison at a time.
    """
    return SubscriptionView.model_validate(await subscriptions.verify(name, body.tables or ()))


@router.get("/{name}/log", operation_id="get_subscription_log")
async def get_subscription_log(
    name: str, query: Annotated[LogQuery, Query()], subscriptions: Subscriptions
) -> LogView:
    """Show the end of what its programs printed."""
    return LogView(name=name, lines=await subscriptions.log(name, query.lines))


@router.get("/{name}/conflicts", operation_id="get_subscription_conflicts")
async def get_subscription_conflicts(
    name: str, query: Annotated[ConflictsQuery, Query()], subscriptions: Subscriptions
) -> ConflictList:
    """Show the last conflicts that its programs met, and what became of them."""
    found = await subscriptions.conflicts(name, query.limit, kind=query.kind, table=query.table)
    totals = (await subscriptions.get(name)).conflicts
    return ConflictList(
        name=name,
        conflicts=[ConflictView.model_validate(one) for one in found],
        kept=totals.kept,
        dropped=totals.dropped,
        missed=totals.missed,
    )


@router.get("/{name}/stats", operation_id="get_subscription_stats", dependencies=[NoQuery])
async def get_subscription_stats(name: str, subscriptions: Subscriptions) -> StatsView:
    """Show how it is doing (pg_stat_subscription, pg_stat_subscription_stats)."""
    return StatsView.model_validate(stats_of(await subscriptions.get(name)))
