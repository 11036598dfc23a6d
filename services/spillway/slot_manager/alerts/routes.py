"""``/v1/alerts``."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from spillway.alerts.registry import LIMIT_MAX, channel_document, message_document
from spillway.errors import InvalidRequest
from spillway.slot_manager.alerts.models import (
    AlertChannel,
    AlertChannelList,
    AlertChannelView,
    AlertList,
    AlertMessageList,
    AlertMessageView,
    AlertRule,
    AlertRuleList,
    AlertRuleView,
    AlertView,
    ChannelTested,
)
from spillway.slot_manager.dependencies import AlertRegistry, NoQuery
from spillway.watch.findings import CODES

router = APIRouter(prefix="/alerts", tags=["alerts"])

Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX)]


def _refuse_others(request: Request) -> None:
    for name in request.query_params.keys() - {"state", "limit"}:
        raise InvalidRequest(f'unknown query parameter "{name}"', hint="There are state and limit.")


@router.get("", operation_id="list_alerts")
async def list_alerts(
    request: Request, alerts: AlertRegistry, state: str | None = None, limit: Limit = 100
) -> AlertList:
    """List what rules have found, the newest first; what is over stays for 30 days."""
    _refuse_others(request)
    found = await alerts.alerts(limit, state=state)
    return AlertList(alerts=[AlertView.model_validate(row) for row in found])


@router.get("/messages", operation_id="list_alert_messages")
async def list_alert_messages(
    request: Request, alerts: AlertRegistry, state: str | None = None, limit: Limit = 100
) -> AlertMessageList:
    """List what was sent to channels, or waits, or was not taken; the newest first."""
    _refuse_others(request)
    found = await alerts.messages(limit, state=state)
    return AlertMessageList(
        messages=[AlertMessageView.model_validate(message_document(row)) for row in found]
    )


@router.get("/channels", operation_id="list_alert_channels", dependencies=[NoQuery])
async def list_alert_channels(alerts: AlertRegistry) -> AlertChannelList:
    """List the channels, without their secrets."""
    return AlertChannelList(channels=[_channel(row) for row in await alerts.channels()])


@router.get("/channels/{name}", operation_id="get_alert_channel", dependencies=[NoQuery])
async def get_alert_channel(name: str, alerts: AlertRegistry) -> AlertChannelView:
    """Show a channel, without its secrets."""
    return _channel(await alerts.channel(name))


@router.put("/channels/{name}", operation_id="put_alert_channel", dependencies=[NoQuery])
async def put_alert_channel(
    name: str, body: AlertChannel, alerts: AlertRegistry
) -> AlertChannelView:
    """Make a channel, or have it be so; secrets that are left out stay."""
    return _channel(await alerts.put_channel(name, body.given()))


@router.post("/channels/{name}/test", operation_id="test_alert_channel", dependencies=[NoQuery])
async def test_alert_channel(name: str, alerts: AlertRegistry) -> ChannelTested:
    """Send a test to a channel now; an answer means that it was taken."""
    await alerts.test_channel(name)
    return ChannelTested(channel=name)


@router.delete(
    "/channels/{name}", status_code=204, operation_id="drop_alert_channel", dependencies=[NoQuery]
)
async def drop_alert_channel(name: str, alerts: AlertRegistry) -> None:
    """Drop a channel that no rule tells."""
    await alerts.drop_channel(name)


@router.get("/rules", operation_id="list_alert_rules", dependencies=[NoQuery])
async def list_alert_rules(alerts: AlertRegistry) -> AlertRuleList:
    """List the rules, and the codes that a rule may name."""
    rules = [AlertRuleView.model_validate(row) for row in await alerts.rules()]
    return AlertRuleList(rules=rules, codes=dict(CODES))


@router.get("/rules/{name}", operation_id="get_alert_rule", dependencies=[NoQuery])
async def get_alert_rule(name: str, alerts: AlertRegistry) -> AlertRuleView:
    """Show a rule."""
    return AlertRuleView.model_validate(await alerts.rule(name))


@router.put("/rules/{name}", operation_id="put_alert_rule", dependencies=[NoQuery])
async def put_alert_rule(name: str, body: AlertRule, alerts: AlertRegistry) -> AlertRuleView:
    """Make a rule, or have it be so; what is left out is as by default."""
    return AlertRuleView.model_validate(await alerts.put_rule(name, body.model_dump()))


@router.delete(
    "/rules/{name}", status_code=204, operation_id="drop_alert_rule", dependencies=[NoQuery]
)
async def drop_alert_rule(name: str, alerts: AlertRegistry) -> None:
    """Drop a rule; what it has found is over, and nobody is told."""
    await alerts.drop_rule(name)


def _channel(row: Any) -> AlertChannelView:
    return AlertChannelView.model_validate(channel_document(row))
