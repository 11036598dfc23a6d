"""``spillway_alert_channel`` and ``spillway_alert_rule``: who is told of what is wrong.

The service never tells a channel's secrets, so they are write-only here: Terraform hands them over
when it applies, and has them in no state and no plan. What it can see of them is
``secrets_wo_version``, a number of the configuration's own: when that changes, all of them are sent
again, and those that the configuration has no more are taken away. ``secrets`` are the names of
those that the service has. When they change without Terraform, the version in the state is
forgotten, and the next plan shows it. An import begins like that, too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tf.types import Bool, List, Map, Number, Set, String, Unknown

from terraform_provider_spillway.resource import ServiceData, ServiceResource, State
from terraform_provider_spillway.schema import Field, NestedField, as_number, as_value
from terraform_provider_spillway.service_client import ServiceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tf.iface import CreateContext, DeleteContext, ReadDataContext, UpdateContext
    from tf.utils import Diagnostics

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def _name(name: str) -> str | None:
    """The service's rules for names of channels and rules."""
    if _NAME.fullmatch(name):
        return None
    return (
        f'The name "{name}" must be 1 to 63 lower case letters, digits, - and _, and begin with a '
        "letter or a digit."
    )


def _url(text: str) -> str | None:
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        fits = False
    return None if fits else "It is no address such as https://ops.example/hooks/spillway."


def _as_set(names: list[str] | None) -> tuple[str, ...] | None:
    """Make equal what names the same; null is everything, an empty set nothing."""
    return None if names is None else tuple(sorted(names))


def _whole(number: float | str) -> str | None:
    return None if as_number(number) in range(7 * 86_400 + 1) else "It is 0 to 604800, a week."


_PLACES: Final = {
    "unknown_alert_channel": "name",
    "unknown_alert_rule": "name",
    "duplicate_name": "name",
}
#: By kind: the attribute, and the secret's name at the service.
_SECRETS: Final[Mapping[str, Mapping[str, str]]] = {
    "webhook": {"secret_wo": "secret", "authorization_wo": "authorization"},
    "slack": {"slack_url_wo": "url"},
    "email": {"password_wo": "password"},
}
#: Of a mail server, by its security, as the service has them.
_PORTS: Final = {"starttls": 587, "tls": 465, "none": 25}
_SHOWN: Final = ("ui_url", "url", "host", "port", "security", "user", "from", "to")


def _secret(name: str, description: str, **more: Any) -> Field:
    return Field(name, String(), description, optional=True, write_only=True, **more)


#: of channels and rules alike
_NAME_FIELD = Field(
    "name",
    String(),
    "Its name: 1 to 63 lower case letters, digits, - and _.",
    required=True,
    replaces=True,
    checks=[_name],
)


class AlertChannel(ServiceResource):
    """The resource of a channel."""

    name = "alert_channel"
    description = (
        "Where alerts are told: a webhook, Slack or another chat that takes its form, or e-mail "
        "([what is sent](../../../docs/how-to/be-told-when-something-is-wrong.md#what-is-sent)). "
        "Its secrets are write-only arguments, which need Terraform 1.11: no state has them."
    )
    places = _PLACES
    fields = (
        _NAME_FIELD,
        Field(
            "kind",
            String(),
            "`webhook`, `slack` or `email`.",
            required=True,
            replaces=True,
            values=tuple(_SECRETS),
        ),
        Field("enabled", Bool(), "Whether anything is sent to it.", optional=True, default=True),
        Field(
            "ui_url",
            String(),
            "Where people reach the admin UI, for links in messages.",
            optional=True,
            checks=[_url],
        ),
        Field("url", String(), "Of a webhook: its address.", optional=True, checks=[_url]),
        Field("host", String(), "Of email: the mail server.", optional=True),
        Field(
            "port",
            Number(),
            "Of email: 587, 465 or 25 by `security` without it.",
            optional=True,
            computed=True,
        ),
        Field(
            "security",
            String(),
            "Of email: `starttls` (without it), `tls` or `none`.",
            optional=True,
            computed=True,
            values=("starttls", "tls", "none"),
        ),
        Field("user", String(), "Of email: who logs in at the server.", optional=True),
        Field("from", String(), "Of email: the sender's address.", optional=True),
        Field("to", List(String()), "Of email: who gets it.", optional=True),
        _secret("secret_wo", "Of a webhook: what messages are signed with."),
        _secret("authorization_wo", "Of a webhook: its Authorization header."),
        _secret("slack_url_wo", "Of slack: the webhook's address.", checks=[_url]),
        _secret("password_wo", "Of email: what `user` logs in with."),
        Field(
            "secrets_wo_version",
            Number(),
            "Change it to have the secrets sent again; without a change Terraform can't see that "
            "one is another.",
            optional=True,
        ),
        Field("secrets", List(String()), "The names of those that the service has.", computed=True),
        Field("created_at", String(), "When it was made.", computed=True, stable=True),
    )

    def filled_in(self, config: Mapping[str, Any], planned: State) -> State:
        if planned["kind"] != "email":
            return {**planned, "security": None, "port": None}
        security = config["security"] or "starttls"
        port = config["port"] or (Unknown if security is Unknown else _PORTS[security])
        return {**planned, "security": security, "port": port}

    def create(self, ctx: CreateContext, planned: State) -> State:
        _check_absent(lambda: self.service.get("alerts", "channels", planned["name"]), "channel")
        return self._put(planned, self._secrets(planned, every=True))

    def update(self, ctx: UpdateContext, current: State, planned: State) -> State:
        again = planned["secrets_wo_version"] != current["secrets_wo_version"]
        return self._put(planned, self._secrets(planned, every=again))

    def _secrets(self, planned: State, *, every: bool) -> dict[str, str]:
        """Give the secrets to send: those of the configuration; for *every* one that it has not,
        an empty text, which takes it away.
        """
        of_kind = _SECRETS[planned["kind"]]
        given = {name: self.write_only.get(attribute) for attribute, name in of_kind.items()}
        if every:
            return {name: value or "" for name, value in given.items()}
        return {name: value for name, value in given.items() if value is not None}

    def _put(self, planned: State, secrets: Mapping[str, str]) -> State:
        body: dict[str, Any] = {"kind": planned["kind"], "enabled": planned["enabled"]}
        for name in _SHOWN:
            if planned[name] not in (None, Unknown):
                body[name] = planned[name]
        view = self.service.put("alerts", "channels", planned["name"], json=body | dict(secrets))
        return self._state(planned, view)

    def delete(self, ctx: DeleteContext, current: State) -> None:
        self.remove("alerts", "channels", current["name"], unknown="unknown_alert_channel")

    def fetch(self, diags: Diagnostics, current: State) -> State:
        view = self.service.get("alerts", "channels", current["name"])
        state = self._state(current, view)
        if current["secrets"] != view["secrets"]:
            state["secrets_wo_version"] = None
        return state

    def _state(self, known: State, view: Mapping[str, Any]) -> State:
        state = {field.name: view.get(field.name) for field in self.fields}
        state["secrets_wo_version"] = known["secrets_wo_version"]
        return state


class AlertRule(ServiceResource):
    """The resource of a rule."""

    name = "alert_rule"
    description = (
        "What is told, from where on, and to which channels "
        "([what a rule may say]"
        "(../../../docs/how-to/be-told-when-something-is-wrong.md#what-a-rule-may-say))."
    )
    places = _PLACES
    fields = (
        _NAME_FIELD,
        Field("enabled", Bool(), "Whether it finds anything.", optional=True, default=True),
        Field(
            "codes",
            Set(String()),
            "What is told, by findings' codes (`spillway alert rule codes` lists them); all "
            "without it.",
            optional=True,
            normal=_as_set,
        ),
        Field(
            "sources",
            Set(String()),
            "Only what concerns these sources; everything without it.",
            optional=True,
            normal=_as_set,
        ),
        Field(
            "subjects",
            Set(String()),
            "Only what fits one of these patterns, such as `shop_*`; everything without it.",
            optional=True,
            normal=_as_set,
        ),
        Field(
            "severity",
            String(),
            "`warn`: everything; `bad`: what stands still.",
            optional=True,
            default="warn",
            values=("warn", "bad"),
        ),
        Field(
            "limits",
            Map(Number()),
            "From where on an amount is told: `lag_s`, `lag_bytes`, `unread_s`, `unread_bytes`, "
            "`near_limit`, `stale_s`, `conflicts_s`; as on the overview without it.",
            optional=True,
        ),
        Field(
            "hold_s",
            Number(),
            "Seconds that it must last before it is told.",
            optional=True,
            default=0,
            checks=[_whole],
        ),
        Field(
            "clear_s",
            Number(),
            "Seconds that it must be over before that is told.",
            optional=True,
            default=60,
            checks=[_whole],
        ),
        Field(
            "repeat_s",
            Number(),
            "Told again after so many seconds while it lasts; 0: never.",
            optional=True,
            default=14_400,
            checks=[_whole],
        ),
        NestedField(
            "quiet",
            (
                Field("from", String(), "When they begin, as `22:00`.", required=True),
                Field("to", String(), "When they end, as `07:00`.", required=True),
                Field("timezone", String(), "Whose clocks: `UTC` without it.", optional=True),
                Field(
                    "days",
                    Set(String()),
                    "On which days they begin, of `mon`, `tue`, `wed`, `thu`, `fri`, `sat`, `sun`; "
                    "all without it.",
                    optional=True,
                ),
            ),
            "Hours when nobody is told.",
            optional=True,
            normal=lambda quiet: None if quiet is None else _quiet(quiet),
        ),
        Field(
            "channels",
            Set(String()),
            "Who is told, by channels' names; without any it is only shown.",
            optional=True,
        ),
        Field("created_at", String(), "When it was made.", computed=True, stable=True),
    )

    def create(self, ctx: CreateContext, planned: State) -> State:
        _check_absent(lambda: self.service.get("alerts", "rules", planned["name"]), "rule")
        return self._put(planned)

    def update(self, ctx: UpdateContext, current: State, planned: State) -> State:
        return self._put(planned)

    def _put(self, planned: State) -> State:
        body: dict[str, Any] = {
            name: planned[name] for name in ("enabled", "codes", "sources", "subjects", "severity")
        }
        body |= {name: int(as_number(planned[name])) for name in ("hold_s", "clear_s", "repeat_s")}
        limits = planned["limits"] or {}
        body["limits"] = {name: as_number(value) for name, value in limits.items()}
        body["channels"] = planned["channels"] or []
        if planned["quiet"] is not None:
            body["quiet"] = {k: v for k, v in planned["quiet"].items() if v is not None}
        view = self.service.put("alerts", "rules", planned["name"], json=body)
        return self._state(planned, view)

    def delete(self, ctx: DeleteContext, current: State) -> None:
        self.remove("alerts", "rules", current["name"], unknown="unknown_alert_rule")

    def fetch(self, diags: Diagnostics, current: State) -> State:
        return self._state(current, self.service.get("alerts", "rules", current["name"]))

    def _state(self, known: State, view: Mapping[str, Any]) -> State:
        state: State = {}
        told = {**view, "limits": {k: as_value(v) for k, v in view["limits"].items()}}
        for field in self.fields:
            value = told.get(field.name)
            # As the configuration has it, where it means the same: null or an empty list, days that
            # are all of them.
            state[field.name] = known[field.name] if field.same(known[field.name], value) else value
        return state


def _quiet(quiet: Mapping[str, Any]) -> tuple[Any, ...]:
    """Make equal what is quiet at the same times, by the service's defaults."""
    days = quiet.get("days") or ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
    return quiet["from"], quiet["to"], quiet.get("timezone") or "UTC", tuple(sorted(days))


def _check_absent(look: Any, what: str) -> None:
    """Refuse to take over what somebody else has made: a PUT would, without a word.

    Raises:
        ServiceError: it is there.
    """
    try:
        there = look()
    except ServiceError as error:
        if error.code == f"unknown_alert_{what}":
            return
        raise
    raise ServiceError(
        f'alert {what} "{there["name"]}" exists already',
        code="duplicate_name",
        hint="Choose another name.",
    )


class FindingsData(ServiceData):
    """What is wrong just now."""

    name = "findings"
    description = (
        "What is wrong just now, the worst first, each with cause and remedy, as the overview "
        "shows it: for `check` blocks, which then say so after each plan and apply."
    )
    fields = (
        Field("source", String(), "Only what concerns this source.", optional=True),
        Field("severity", String(), "Only `bad` ones, or only `warn` ones.", optional=True),
        NestedField(
            "findings",
            tuple(
                Field(name, String(), said, computed=True)
                for name, said in (
                    ("severity", "`bad`: something stands still; `warn`: it soon may."),
                    ("code", "What kind of thing is wrong."),
                    ("subject", "What it is wrong with."),
                    ("source", "The source that it concerns; null: none."),
                    ("slot", "The slot that it is about; null: none."),
                    ("subscription", "The subscription that it is about; null: none."),
                    ("title", "What is wrong, in a line."),
                    ("detail", "What is known of it."),
                    ("remedy", "What to do about it."),
                    ("since", "Since when; null: not known."),
                )
            ),
            "Those that there are.",
            nesting="list",
            computed=True,
        ),
    )

    def read(self, ctx: ReadDataContext, config: State) -> State:
        found = self.service.get("findings")["findings"]
        for name in ("source", "severity"):
            if config[name] is not None:
                found = [one for one in found if one[name] == config[name]]
        names = [field.name for field in self.fields[-1].fields]
        return {**config, "findings": [{name: one[name] for name in names} for one in found]}
