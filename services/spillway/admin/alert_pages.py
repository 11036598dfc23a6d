"""Alerts: what fires now, who is told of what, and what came of it.

One page shows all of it; a rule and a channel each have a page with the form that changes it. The
forms send what REST's ``PUT`` takes, and the registry checks it, so that a page and a call can
declare the same. Of a channel's secrets a page knows the names; a field of one that is left empty
keeps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from spillway.admin.forms import Form, confirm_name, done
from spillway.admin.live import changed_regions
from spillway.admin.page_group import PageGroup
from spillway.alerts.channels import CONFIG, SECRETS
from spillway.alerts.quiet import DAYS
from spillway.alerts.registry import channel_document, message_document
from spillway.alerts.rules import LIMIT_NAMES, new_rule
from spillway.errors import Conflict, InvalidRequest, SpillwayError
from spillway.watch.findings import CODES, DEFAULT_LIMITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from spillway.alerts.registry import Alerts

#: alerts and messages that the page shows of each
_SHOWN_MAX: Final = 100
STATES: Final = ("firing", "pending", "resolved")
#: of an amount: what a form takes
_DIGITS_MAX: Final = 19

#: the kinds of channels, in a person's words
KINDS: Final = {
    "webhook": "JSON to an address of yours, signed with a secret if you give one.",
    "slack": "Slack, or another chat that takes Slack's form.",
    "email": "Messages by a mail server.",
}
#: what fields of a channel may be like
EXAMPLES: Final = {
    "webhook_url": "https://ops.example/hooks/spillway",
    "ui_url": "https://spillway.example",
}
#: what limits are, in a person's words
LIMITS: Final = {
    "lag_s": "A slot lags, seconds",
    "lag_bytes": "A slot lags, bytes of WAL",
    "unread_s": "Nobody reads a slot, seconds",
    "unread_bytes": "… and it holds back bytes",
    "near_limit": "A slot is near its limit, part left",
    "stale_s": "A subscription lags, seconds",
    "conflicts_s": "Conflicts count, seconds after the last",
}


class AlertPages(PageGroup):
    """``/ui/alerts``."""

    def __init__(self, alerts: Alerts, *parts: Any) -> None:
        super().__init__(*parts)
        self._alerts = alerts

    def routes(self) -> list[Route]:
        rule, channel = "/ui/alerts/rules/{name}", "/ui/alerts/channels/{name}"
        return [
            Route("/ui/alerts", self._show),
            Route("/ui/live/alerts", self._live),
            # No name that a rule or a channel may have, for these have a folder of their own.
            Route("/ui/alerts/new-rule", self._new_rule),
            Route("/ui/alerts/new-channel", self._new_channel),
            Route("/ui/alerts/rules", self._new_rule, methods=["GET"]),
            Route("/ui/alerts/rules", self._create_rule, methods=["POST"]),
            Route("/ui/alerts/channels", self._new_channel, methods=["GET"]),
            Route("/ui/alerts/channels", self._create_channel, methods=["POST"]),
            Route(rule, self._rule, methods=["GET"]),
            Route(rule, self._change_rule, methods=["POST"]),
            Route(f"{rule}/drop", self._drop_rule, methods=["POST"]),
            Route(channel, self._channel, methods=["GET"]),
            Route(channel, self._change_channel, methods=["POST"]),
            Route(f"{channel}/test", self._test_channel, methods=["POST"]),
            Route(f"{channel}/drop", self._drop_channel, methods=["POST"]),
        ]

    # -- looking ------------------------------------------------------------------------------

    async def _show(self, request: Request) -> Response:
        state = request.query_params.get("state", "")
        found = await self._alerts.alerts(_SHOWN_MAX + 1, state=state or None)
        return self._pages.page(
            request,
            "alerts.html",
            **self._live_at("/ui/live/alerts"),
            note=request.query_params.get("note", ""),
            state=state,
            states=STATES,
            history=found[:_SHOWN_MAX],
            more=len(found) > _SHOWN_MAX,
            shown_max=_SHOWN_MAX,
            **await self._values(),
        )

    async def _live(self, request: Request) -> Response:  # noqa: ARG002 - a route's form
        async def render() -> dict[str, str]:
            try:
                values = await self._values()
            except SpillwayError as error:
                # The page stays, and says that what it shows is not known to hold.
                return {"firing": self._pages.text("parts/error.html", error=error)}
            return {
                name: self._pages.text(f"alerts/{name}.html", **values)
                for name in ("firing", "channels", "rules", "messages")
            }

        return self._streams.respond(changed_regions(render, self._sampler))

    async def _values(self) -> dict[str, Any]:
        rules = await self._alerts.rules()
        channels = await self._alerts.channels()
        messages = [
            message_document(row) for row in await self._alerts.messages(_SHOWN_MAX, state=None)
        ]
        last: dict[str, dict[str, Any]] = {}
        for message in messages:
            last.setdefault(message["channel"], message)
        enabled = {channel.name for channel in channels if channel.enabled}
        return {
            "firing": await self._alerts.alerts(_SHOWN_MAX, state="firing"),
            "pending": await self._alerts.alerts(_SHOWN_MAX, state="pending"),
            "rules": rules,
            # What is said to nobody is not told, whatever the rule says.
            "telling": {rule.name for rule in rules if rule.enabled and enabled & {*rule.channels}},
            "channels": [_shown(channel) for channel in channels],
            "messages": messages,
            "last": last,
        }

    # -- rules --------------------------------------------------------------------------------

    async def _new_rule(self, request: Request) -> Response:
        return await self._rule_form(request, None)

    async def _rule(self, request: Request) -> Response:
        return await self._rule_form(request, await self._alerts.rule(request.path_params["name"]))

    async def _rule_form(self, request: Request, rule: Any) -> Response:
        view = await self._sampler.look()
        shown = rule or new_rule()
        return self._pages.page(
            request,
            "alert_rule.html",
            live="",
            rule=shown,
            is_new=rule is None,
            codes=CODES,
            days=DAYS,
            limits={
                name: (words, shown.limits.get(name), getattr(DEFAULT_LIMITS, name))
                for name, words in LIMITS.items()
            },
            # What it names may be gone meanwhile, and stays until somebody says otherwise.
            sources=sorted({s.info.name for s in view.sources} | {*(shown.sources or ())}),
            channels=[channel.name for channel in await self._alerts.channels()],
        )

    async def _create_rule(self, request: Request) -> Response:
        form = Form(request)
        name = form.text("name")
        if name in {rule.name for rule in await self._alerts.rules()}:
            raise Conflict(
                f'There is an alert rule "{name}" already.',
                hint="Take another name, or change that one on its page.",
            )
        await self._alerts.put_rule(name, rule_of(form))
        return done(request, "/ui/alerts?note=rule_made")

    async def _change_rule(self, request: Request) -> Response:
        name = (await self._alerts.rule(request.path_params["name"])).name
        await self._alerts.put_rule(name, rule_of(Form(request)))
        return done(request, "/ui/alerts?note=rule_changed")

    async def _drop_rule(self, request: Request) -> Response:
        name = request.path_params["name"]
        confirm_name(Form(request), name)
        await self._alerts.drop_rule(name)
        return done(request, "/ui/alerts?note=rule_dropped")

    # -- channels -----------------------------------------------------------------------------

    async def _new_channel(self, request: Request) -> Response:
        return self._pages.page(
            request,
            "alert_channel.html",
            live="",
            channel=None,
            kinds=KINDS,
            examples=EXAMPLES,
            values={},
            secrets=(),
        )

    async def _channel(self, request: Request) -> Response:
        channel = await self._alerts.channel(request.path_params["name"])
        return self._pages.page(
            request,
            "alert_channel.html",
            live="",
            channel=channel,
            kinds={channel.kind: KINDS[channel.kind]},
            examples=EXAMPLES,
            values=channel.config,
            secrets=sorted(channel.secrets),
        )

    async def _create_channel(self, request: Request) -> Response:
        form = Form(request)
        name = form.text("name")
        if name in {channel.name for channel in await self._alerts.channels()}:
            raise Conflict(
                f'There is an alert channel "{name}" already.',
                hint="Take another name, or change that one on its page.",
            )
        await self._alerts.put_channel(name, channel_of(form, form.text("kind")))
        return done(request, "/ui/alerts?note=channel_made")

    async def _change_channel(self, request: Request) -> Response:
        channel = await self._alerts.channel(request.path_params["name"])
        await self._alerts.put_channel(channel.name, channel_of(Form(request), channel.kind))
        return done(request, "/ui/alerts?note=channel_changed")

    async def _test_channel(self, request: Request) -> Response:
        name = request.path_params["name"]
        await self._alerts.test_channel(name)
        if request.headers.get("hx-request"):
            return HTMLResponse(self._pages.text("alerts/tested.html", name=name))
        return done(request, "/ui/alerts?note=channel_tested")

    async def _drop_channel(self, request: Request) -> Response:
        name = request.path_params["name"]
        confirm_name(Form(request), name)
        await self._alerts.drop_channel(name)
        return done(request, "/ui/alerts?note=channel_dropped")


def rule_of(form: Form) -> dict[str, Any]:
    """Make of a form what :meth:`~spillway.alerts.registry.Alerts.put_rule` takes.

    Raises:
        InvalidRequest: what should be a number is none.
    """
    quiet = None
    if form.text("quiet_from") or form.text("quiet_to"):
        quiet = {
            "from": form.text("quiet_from"),
            "to": form.text("quiet_to"),
            "timezone": form.text("quiet_timezone") or "UTC",
            "days": form.texts("quiet_days"),
        }
    limits = {name: _amount(form, f"limit_{name}") for name in LIMIT_NAMES}
    seconds = {name: _whole(form, name) for name in ("hold_s", "clear_s", "repeat_s")}
    return {
        "enabled": form.flag("enabled"),
        "codes": form.texts("codes") or None,
        "sources": form.texts("sources") or None,
        "subjects": form.lines("subjects") or None,
        "severity": form.text("severity"),
        "limits": {name: value for name, value in limits.items() if value is not None},
        "quiet": quiet,
        "channels": form.texts("channels"),
        **{name: value for name, value in seconds.items() if value is not None},
    }


def channel_of(form: Form, kind: str) -> dict[str, Any]:
    """Make of a form what :meth:`~spillway.alerts.registry.Alerts.put_channel` takes: of the fields
    of all kinds, those of *kind*.

    Raises:
        InvalidRequest: there is no such kind, or what should be a number is none.
    """
    if kind not in CONFIG:
        raise InvalidRequest("No kind is chosen.", hint=f"There are {', '.join(CONFIG)}.")
    given: dict[str, Any] = {"kind": kind, "enabled": form.flag("enabled")}
    for name in CONFIG[kind]:
        field = "ui_url" if name == "ui_url" else f"{kind}_{name}"
        value: object = form.text(field)
        if name == "to":
            value = form.lines(field)
        elif name == "port":
            value = _whole(form, field)
        if value not in ("", None):
            given[name] = value
    for name in SECRETS[kind]:
        if form.flag(f"forget_{name}"):
            given[name] = ""
        elif secret := form.secret(f"{kind}_{name}"):
            given[name] = secret
    return given


def _shown(channel: Any) -> dict[str, Any]:
    """Return a channel with where it tells, as a page has room for."""
    config = channel.config
    where = ""
    if channel.kind == "webhook":
        where = str(config["url"])
    elif channel.kind == "email":
        where = f"{_some(config['to'])} by {config['host']}"
    return {**channel_document(channel), "where": where}


def _some(addresses: Sequence[str]) -> str:
    more = len(addresses) - 2
    return ", ".join(addresses[:2]) + (f" and {more} more" if more > 0 else "")


def _whole(form: Form, name: str) -> int | None:
    text = form.text(name)
    if text and not (text.isascii() and text.isdecimal() and len(text) < _DIGITS_MAX):
        raise InvalidRequest(
            f"{text!r} is no whole number ({name}).", hint="Write digits only, or leave it empty."
        )
    return int(text) if text else None


def _amount(form: Form, name: str) -> float | None:
    text = form.text(name)
    if not text:
        return None
    try:
        value = float(text)
        # Shown again as it was written.
        return int(value) if value.is_integer() else value
    except ValueError:
        raise InvalidRequest(
            f"{text!r} is no number ({name}).", hint="Write a number, or leave it empty."
        ) from None
