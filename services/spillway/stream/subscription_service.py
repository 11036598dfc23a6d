"""SubscriptionService: REST's calls of subscriptions over gRPC, with the same semantics and the
same errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf.json_format import MessageToDict

from spillway.errors import InvalidRequest
from spillway.pg.lsn import Lsn
from spillway.stream.messages import subscription_message, subscription_stats_message
from spillway.stream.status import errors_as_statuses
from spillway.subscriber.model import SubscriptionSpec
from spillway.subscriber.stats import stats_of
from spillway.v1 import subscriptions_pb2 as pb
from spillway.v1 import subscriptions_pb2_grpc

if TYPE_CHECKING:
    from google.protobuf.struct_pb2 import Struct

    from spillway.subscriber.interface import SubscriptionInterface

SERVICE_NAME: Final = "spillway.v1.SubscriptionService"

_LOG_LINES_DEFAULT: Final = 100
_CONFLICTS_DEFAULT: Final = 100
#: of conflicts, in one message; one is 64 kB at most
_PART_BYTES: Final = 1 << 20
_ORIGINS: Final = ("any", "none")
_STREAMING: Final = ("off", "on", "parallel")


class SubscriptionService(subscriptions_pb2_grpc.SubscriptionServiceServicer):
    """One method a call; ``context`` is grpc.aio's."""

    def __init__(self, subscriptions: SubscriptionInterface) -> None:
        self._subscriptions = subscriptions

    @errors_as_statuses
    async def CreateSubscription(
        self, request: pb.CreateSubscriptionRequest, context: Any
    ) -> pb.Subscription:
        spec = SubscriptionSpec(
            name=request.name,
            source=request.source,
            database=request.database,
            slot=request.slot,
            tables=tuple(request.tables.names) if request.HasField("tables") else None,
            publications=(
                tuple(request.publications.names) if request.HasField("publications") else None
            ),
            target=_plain(request.target),
            enabled=request.enabled if request.HasField("enabled") else True,
            copy_data=request.copy_data if request.HasField("copy_data") else True,
            origin=_one_of("origin", request.origin, _ORIGINS),
            streaming=_one_of("streaming", request.streaming, _STREAMING),
            two_phase=request.two_phase,
            options=dict(request.options),
        )
        return subscription_message(await self._subscriptions.create(spec))

    @errors_as_statuses
    async def ListSubscriptions(
        self, request: pb.ListSubscriptionsRequest, context: Any
    ) -> pb.ListSubscriptionsResponse:
        found = await self._subscriptions.list_all()
        return pb.ListSubscriptionsResponse(subscriptions=map(subscription_message, found))

    @errors_as_statuses
    async def GetSubscription(
        self, request: pb.GetSubscriptionRequest, context: Any
    ) -> pb.Subscription:
        return subscription_message(await self._subscriptions.get(request.name))

    @errors_as_statuses
    async def AlterSubscription(
        self, request: pb.AlterSubscriptionRequest, context: Any
    ) -> pb.Subscription:
        changes: dict[str, object] = {}
        if request.all_tables:
            if request.HasField("tables") or request.HasField("publications"):
                raise InvalidRequest(
                    "all_tables is set together with tables or publications",
                    hint="Set one of them.",
                    field="all_tables",
                )
            changes |= {"tables": None, "publications": None}
        for name in ("tables", "publications"):
            if request.HasField(name):
                changes[name] = list(getattr(request, name).names)
        if request.HasField("target"):
            changes["target"] = _plain(request.target)
        if request.HasField("enabled"):
            changes["enabled"] = request.enabled
        if request.HasField("options"):
            changes["options"] = dict(request.options.options)
        return subscription_message(await self._subscriptions.alter(request.name, changes))

    @errors_as_statuses
    async def DropSubscription(
        self, request: pb.DropSubscriptionRequest, context: Any
    ) -> pb.DropSubscriptionResponse:
        notes = await self._subscriptions.drop(request.name, keep_slot=request.keep_slot)
        return pb.DropSubscriptionResponse(notes=notes)

    @errors_as_statuses
    async def EnableSubscription(
        self, request: pb.EnableSubscriptionRequest, context: Any
    ) -> pb.Subscription:
        return subscription_message(await self._subscriptions.enable(request.name))

    @errors_as_statuses
    async def DisableSubscription(
        self, request: pb.DisableSubscriptionRequest, context: Any
    ) -> pb.Subscription:
        return subscription_message(await self._subscriptions.disable(request.name))

    @errors_as_statuses
    async def RefreshSubscription(
        self, request: pb.RefreshSubscriptionRequest, context: Any
    ) -> pb.Subscription:
        return subscription_message(await self._subscriptions.refresh(request.name))

    @errors_as_statuses
    async def SkipSubscription(
        self, request: pb.SkipSubscriptionRequest, context: Any
    ) -> pb.Subscription:
        return subscription_message(await self._subscriptions.skip(request.name, Lsn(request.lsn)))

    @errors_as_statuses
    async def PauseSubscriptionTable(
        self, request: pb.SubscriptionTableRequest, context: Any
    ) -> pb.Subscription:
        paused = await self._subscriptions.pause_table(request.name, request.table)
        return subscription_message(paused)

    @errors_as_statuses
    async def ResumeSubscriptionTable(
        self, request: pb.SubscriptionTableRequest, context: Any
    ) -> pb.Subscription:
        resumed = await self._subscriptions.resume_table(request.name, request.table)
        return subscription_message(resumed)

    @errors_as_statuses
    async def ResyncSubscriptionTable(
        self, request: pb.SubscriptionTableRequest, context: Any
    ) -> pb.Subscription:
        asked = await self._subscriptions.resync_table(request.name, request.table)
        return subscription_message(asked)

    @errors_as_statuses
    async def CancelSubscriptionTableResync(
        self, request: pb.SubscriptionTableRequest, context: Any
    ) -> pb.Subscription:
        cancelled = await self._subscriptions.cancel_resync(request.name, request.table)
        return subscription_message(cancelled)

    @errors_as_statuses
    async def VerifySubscription(
        self, request: pb.VerifySubscriptionRequest, context: Any
    ) -> pb.Subscription:
        begun = await self._subscriptions.verify(request.name, tuple(request.tables))
        return subscription_message(begun)

    @errors_as_statuses
    async def GetSubscriptionLog(
        self, request: pb.GetSubscriptionLogRequest, context: Any
    ) -> pb.SubscriptionLog:
        lines = await self._subscriptions.log(request.name, request.lines or _LOG_LINES_DEFAULT)
        return pb.SubscriptionLog(name=request.name, lines=lines)

    @errors_as_statuses
    async def GetSubscriptionStats(
        self, request: pb.GetSubscriptionStatsRequest, context: Any
    ) -> pb.SubscriptionStats:
        return subscription_stats_message(stats_of(await self._subscriptions.get(request.name)))

    @errors_as_statuses
    async def GetSubscriptionConflicts(
        self, request: pb.GetSubscriptionConflictsRequest, context: Any
    ) -> None:
        found = await self._subscriptions.conflicts(
            request.name,
            request.limit or _CONFLICTS_DEFAULT,
            kind=request.kind or None,
            table=request.table or None,
        )
        part = pb.SubscriptionConflicts(name=request.name)
        size = 0
        for one in found:
            part.conflicts.add().update(one)
            size += part.conflicts[-1].ByteSize()
            if size >= _PART_BYTES:
                await context.write(part)
                part, size = pb.SubscriptionConflicts(name=request.name), 0
        totals = (await self._subscriptions.get(request.name)).conflicts
        part.kept, part.dropped, part.missed = totals.kept, totals.dropped, totals.missed
        await context.write(part)


def _plain(target: Struct) -> dict[str, object]:
    """Return a target as REST has it: a Struct's numbers are doubles, and null is what is left
    out.
    """
    found: dict[str, object] = MessageToDict(target)
    return {name: _number(value) for name, value in found.items() if value is not None}


def _number(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _one_of(field: str, value: str, known: tuple[str, ...]) -> str:
    if not value:
        return known[0]
    if value not in known:
        raise InvalidRequest(
            f'{field} is "{value}"', hint=f"One of {', '.join(known)}.", field=field
        )
    return value
