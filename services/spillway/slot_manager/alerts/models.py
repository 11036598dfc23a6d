"""Alerts on the wire. Secrets come in, and never go out."""

from datetime import datetime
from typing import Any

from pydantic import ConfigDict, Field

from spillway.slot_manager.json_fields import RequestModel, ResponseModel

_UI_URL = "Where people reach the admin UI, for links in messages."


class AlertChannel(RequestModel):
    """Where alerts are told: what its kind has, and a secret that is left out stays."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

    kind: str = Field(description="webhook, slack or email.", examples=["webhook"])
    enabled: bool = True
    ui_url: str | None = Field(default=None, description=_UI_URL)
    url: str | None = Field(
        default=None,
        description="Of a webhook: its address, which is shown. Of slack: its address, which is "
        "its secret and is not.",
    )
    secret: str | None = Field(
        default=None, description="Of a webhook: signs messages (Spillway-Signature)."
    )
    authorization: str | None = Field(
        default=None, description="Of a webhook: its Authorization header."
    )
    host: str | None = Field(default=None, description="Of email: the mail server.")
    port: int | None = Field(default=None, description="Of email: 587, 465 or 25 by security.")
    security: str | None = Field(default=None, description="Of email: starttls, tls or none.")
    user: str | None = Field(default=None, description="Of email: who logs in at the server.")
    password: str | None = Field(default=None, description="Of email: with this.")
    sender: str | None = Field(default=None, alias="from", description="Of email: an address.")
    to: list[str] | None = Field(default=None, description="Of email: addresses.")

    def given(self) -> dict[str, Any]:
        """Give what was said, by the names of the wire."""
        return self.model_dump(by_alias=True, exclude_none=True)


class AlertChannelView(ResponseModel):
    """A channel, without its secrets."""

    model_config = ConfigDict(from_attributes=True, populate_by_name=True)

    name: str
    kind: str
    enabled: bool
    ui_url: str | None = None
    url: str | None = None
    host: str | None = None
    port: int | None = None
    security: str | None = None
    user: str | None = None
    sender: str | None = Field(default=None, alias="from")
    to: list[str] | None = None
    secrets: list[str] = Field(description="The names of those that it has.")
    created_at: datetime


class AlertChannelList(ResponseModel):
    """All channels."""

    channels: list[AlertChannelView]


class AlertRule(RequestModel):
    """What is told, from where on, and to which channels; what is left out is as said here."""

    enabled: bool = True
    codes: list[str] | None = Field(default=None, description="Of findings; null: all of them.")
    sources: list[str] | None = Field(
        default=None, description="Only what concerns these sources; null: everything."
    )
    subjects: list[str] | None = Field(
        default=None, description="Patterns such as `shop_*`; null: everything."
    )
    severity: str = Field(default="warn", description="warn: all; bad: what stands still.")
    limits: dict[str, float] = Field(
        default_factory=dict,
        description="lag_s, lag_bytes, unread_s, unread_bytes, near_limit, stale_s, conflicts_s.",
        examples=[{"lag_s": 60}],
    )
    hold_s: int = Field(default=0, description="How long it must last before it is told.")
    clear_s: int = Field(default=60, description="How long it must be over before that is told.")
    repeat_s: int = Field(default=14_400, description="Told again so often; 0: never.")
    quiet: dict[str, Any] | None = Field(
        default=None,
        description="Hours when nobody is told: from, to, timezone, days.",
        examples=[{"from": "22:00", "to": "07:00", "timezone": "Europe/Vienna"}],
    )
    channels: list[str] = Field(default_factory=list)


class AlertRuleView(ResponseModel):
    """A rule."""

    name: str
    enabled: bool
    codes: list[str] | None
    sources: list[str] | None
    subjects: list[str] | None
    severity: str
    limits: dict[str, float]
    hold_s: int
    clear_s: int
    repeat_s: int
    quiet: dict[str, Any] | None
    channels: list[str]
    created_at: datetime


class AlertRuleList(ResponseModel):
    """All rules, and what they may tell."""

    rules: list[AlertRuleView]
    codes: dict[str, str] = Field(description="Every code of a finding, and what it means.")


class AlertView(ResponseModel):
    """What a rule has found."""

    id: int
    state: str = Field(description="pending, firing or resolved.")
    rule: str
    code: str
    subject: str
    source: str
    severity: str
    title: str
    detail: str
    remedy: str
    link: str
    seen_at: datetime
    fired_at: datetime | None
    resolved_at: datetime | None
    told_at: datetime | None
    told: int


class AlertList(ResponseModel):
    """Alerts, the newest first."""

    alerts: list[AlertView]


class AlertMessageView(ResponseModel):
    """What was or is to be sent."""

    id: int
    message_id: str
    alert_id: int | None
    rule: str
    channel: str
    reason: str = Field(description="firing, reminder, resolved or test.")
    state: str = Field(description="waiting, sent or failed.")
    title: str
    attempts: int
    error: str | None = Field(description="Of the last attempt.")
    created_at: datetime
    finished_at: datetime | None


class AlertMessageList(ResponseModel):
    """Messages, the newest first."""

    messages: list[AlertMessageView]


class ChannelTested(ResponseModel):
    """The channel took a message."""

    channel: str
    delivered: bool = True
