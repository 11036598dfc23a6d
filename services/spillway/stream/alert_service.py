"""AlertService: REST's calls of alerts over gRPC, with the same semantics and the same errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf.json_format import MessageToDict

from spillway.alerts.registry import LIMIT_MAX, channel_document, message_document
from spillway.stream.messages import names_message, timestamp
from spillway.stream.parts import limit_of, refuse_nul, write_in_parts
from spillway.stream.status import errors_as_statuses
from spillway.v1 import alerts_pb2 as pb
from spillway.v1 import alerts_pb2_grpc
from spillway.watch.findings import CODES

if TYPE_CHECKING:
    from spillway.alerts.registry import Alerts
    from spillway.store.rows import AlertChannelRow, AlertMessageRow, AlertRow, AlertRuleRow

SERVICE_NAME: Final = "spillway.v1.AlertService"

#: What a channel's request has only where it is set.
_CHANNEL_TEXTS: Final = (
    "ui_url", "url", "secret", "authorization", "host", "port", "security", "user", "password",
)  # fmt: skip
_RULE_TIMES: Final = ("hold_s", "clear_s", "repeat_s")
_RULE_NAMES: Final = ("codes", "sources", "subjects")


class AlertService(alerts_pb2_grpc.AlertServiceServicer):
    """One method a call; ``context`` is grpc.aio's."""

    def __init__(self, alerts: Alerts) -> None:
        self._alerts = alerts

    @errors_as_statuses
    async def ListAlerts(self, request: pb.ListAlertsRequest, context: Any) -> None:
        found = await self._alerts.alerts(limit_of(request, LIMIT_MAX), state=request.state or None)
        await write_in_parts(context, pb.ListAlertsResponse, "alerts", map(_alert, found))

    @errors_as_statuses
    async def ListAlertMessages(self, request: pb.ListAlertMessagesRequest, context: Any) -> None:
        limit = limit_of(request, LIMIT_MAX)
        found = await self._alerts.messages(limit, state=request.state or None)
        messages = map(_alert_message, found)
        await write_in_parts(context, pb.ListAlertMessagesResponse, "messages", messages)

    @errors_as_statuses
    async def ListAlertChannels(
        self, request: pb.ListAlertChannelsRequest, context: Any
    ) -> pb.ListAlertChannelsResponse:
        found = await self._alerts.channels()
        return pb.ListAlertChannelsResponse(channels=map(_channel, found))

    @errors_as_statuses
    async def GetAlertChannel(
        self, request: pb.GetAlertChannelRequest, context: Any
    ) -> pb.AlertChannel:
        refuse_nul(request)
        return _channel(await self._alerts.channel(request.name))

    @errors_as_statuses
    async def PutAlertChannel(
        self, request: pb.PutAlertChannelRequest, context: Any
    ) -> pb.AlertChannel:
        refuse_nul(request)
        given: dict[str, Any] = {
            "kind": request.kind,
            "enabled": request.enabled if request.HasField("enabled") else True,
            **{name: getattr(request, name) for name in _CHANNEL_TEXTS if request.HasField(name)},
        }
        if request.HasField("sender"):
            given["from"] = request.sender
        if request.to:
            given["to"] = list(request.to)
        return _channel(await self._alerts.put_channel(request.name, given))

    @errors_as_statuses
    async def TestAlertChannel(
        self, request: pb.TestAlertChannelRequest, context: Any
    ) -> pb.TestAlertChannelResponse:
        refuse_nul(request)
        await self._alerts.test_channel(request.name)
        return pb.TestAlertChannelResponse(channel=request.name, delivered=True)

    @errors_as_statuses
    async def DropAlertChannel(
        self, request: pb.DropAlertChannelRequest, context: Any
    ) -> pb.DropAlertChannelResponse:
        refuse_nul(request)
        await self._alerts.drop_channel(request.name)
        return pb.DropAlertChannelResponse()

    @errors_as_statuses
    async def ListAlertRules(
        self, request: pb.ListAlertRulesRequest, context: Any
    ) -> pb.ListAlertRulesResponse:
        found = await self._alerts.rules()
        return pb.ListAlertRulesResponse(rules=map(_rule, found), codes=CODES)

    @errors_as_statuses
    async def GetAlertRule(self, request: pb.GetAlertRuleRequest, context: Any) -> pb.AlertRule:
        refuse_nul(request)
        return _rule(await self._alerts.rule(request.name))

    @errors_as_statuses
    async def PutAlertRule(self, request: pb.PutAlertRuleRequest, context: Any) -> pb.AlertRule:
        refuse_nul(request)
        given: dict[str, Any] = {
            "enabled": request.enabled if request.HasField("enabled") else True,
            "severity": request.severity or "warn",
            "limits": dict(request.limits),
            "channels": list(request.channels),
            "quiet": MessageToDict(request.quiet) if request.HasField("quiet") else None,
        }
        for name in _RULE_TIMES:
            if request.HasField(name):
                given[name] = getattr(request, name)
        for name in _RULE_NAMES:
            if request.HasField(name):
                given[name] = list(getattr(request, name).names)
        return _rule(await self._alerts.put_rule(request.name, given))

    @errors_as_statuses
    async def DropAlertRule(
        self, request: pb.DropAlertRuleRequest, context: Any
    ) -> pb.DropAlertRuleResponse:
        refuse_nul(request)
        await self._alerts.drop_rule(request.name)
        return pb.DropAlertRuleResponse()


def _alert(row: AlertRow) -> pb.Alert:
    return pb.Alert(
        id=row.id,
        state=row.state,
        rule=row.rule,
        code=row.code,
        subject=row.subject,
        source=row.source,
        severity=row.severity,
        title=row.title,
        detail=row.detail,
        remedy=row.remedy,
        link=row.link,
        seen_at=timestamp(row.seen_at),
        fired_at=timestamp(row.fired_at),
        resolved_at=timestamp(row.resolved_at),
        told_at=timestamp(row.told_at),
        told=row.told,
    )


def _alert_message(row: AlertMessageRow) -> pb.AlertMessage:
    return pb.AlertMessage(
        id=row.id,
        message_id=row.message_id,
        alert_id=row.alert_id,
        rule=row.rule,
        channel=row.channel,
        reason=row.reason,
        state=row.state,
        title=message_document(row)["title"],
        attempts=row.attempts,
        error=row.error,
        created_at=timestamp(row.created_at),
        finished_at=timestamp(row.finished_at),
    )


def _channel(row: AlertChannelRow) -> pb.AlertChannel:
    shown = channel_document(row)
    sender, created_at = shown.pop("from", None), shown.pop("created_at")
    return pb.AlertChannel(**shown, sender=sender, created_at=timestamp(created_at))


def _rule(row: AlertRuleRow) -> pb.AlertRule:
    message = pb.AlertRule(
        name=row.name,
        enabled=row.enabled,
        codes=names_message(row.codes),
        sources=names_message(row.sources),
        subjects=names_message(row.subjects),
        severity=row.severity,
        limits=row.limits,
        hold_s=row.hold_s,
        clear_s=row.clear_s,
        repeat_s=row.repeat_s,
        channels=row.channels,
        created_at=timestamp(row.created_at),
    )
    if row.quiet is not None:
        message.quiet.update(dict(row.quiet))
    return message
