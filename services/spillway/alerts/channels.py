"""What a channel may be, checked; and what its secrets are, which never leave the service.

Who changes a channel and leaves a secret out keeps it; but not for another receiver: where a
channel's address changes, its secrets must be given again, or whoever may change a channel could
have them sent to himself.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from spillway.alerts import email, slack, webhook
from spillway.alerts.outbound import checked_url
from spillway.alerts.rules import checked_name
from spillway.errors import InvalidRequest
from spillway.store.rows import AlertChannelRow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from spillway.store.rows import AlertMessageRow

CHANNELS_MAX: Final = 50
ADDRESSES_MAX: Final = 50
_TEXT_MAX: Final = 1000
_SECURITY: Final = {"starttls": 587, "tls": 465, "none": 25}
_ADDRESS: Final = re.compile(r"[^\s@<>,]+@[^\s@<>,]+")

SENDERS: Final[Mapping[str, Callable[[AlertChannelRow, AlertMessageRow], Awaitable[None]]]] = {
    "webhook": webhook.send,
    "slack": slack.send,
    "email": email.send,
}
#: By kind: what is shown, and what is not.
CONFIG: Final = {
    "webhook": ("url", "ui_url"),
    "slack": ("ui_url",),
    "email": ("host", "port", "security", "user", "from", "to", "ui_url"),
}
SECRETS: Final = {
    "webhook": ("secret", "authorization"),
    "slack": ("url",),
    "email": ("password",),
}


def checked_channel(
    name: str, given: Mapping[str, Any], before: AlertChannelRow | None
) -> AlertChannelRow:
    """Return a channel as it is stored.

    Args:
        name: the channel's.
        given: ``kind``, ``enabled``, and what the kind has.
        before: the one that is there: secrets that are left out are its.

    Raises:
        InvalidRequest: something of it can't be.
    """
    checked_name(name, "an alert channel")
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in SENDERS:
        raise InvalidRequest(f"kind is {kind!r}", hint=f"There are {', '.join(SENDERS)}.")
    known = {"kind", "enabled", *CONFIG[kind], *SECRETS[kind]}
    if unknown := {k for k, v in given.items() if v is not None} - known:
        raise InvalidRequest(
            f"a channel of kind {kind} has no {min(unknown)}",
            hint=f"It has {', '.join((*CONFIG[kind], *SECRETS[kind]))}.",
        )
    config = {k: given[k] for k in CONFIG[kind] if given.get(k) is not None}
    secrets = {k: _text(given[k], k) for k in SECRETS[kind] if given.get(k) is not None}
    if "ui_url" in config:
        checked_url(config["ui_url"], "ui_url")
    _CHECKS[kind](config)
    if before is not None and before.kind == kind:
        kept = {k: v for k, v in before.secrets.items() if k not in secrets}
        if kept and kind != "slack" and _receiver(config) != _receiver(before.config):
            raise InvalidRequest(
                f'the address of alert channel "{name}" changes, and not its {", ".join(kept)}',
                hint=f"Give {', '.join(kept)} again (an empty text for none): secrets are not sent "
                "elsewhere than they were given for.",
            )
        secrets = {**kept, **secrets}
    secrets = {k: v for k, v in secrets.items() if v}
    if kind == "slack":
        checked_url(secrets.get("url"), "url")
    if kind == "email" and secrets.get("password"):
        if config["security"] == "none":
            raise InvalidRequest(
                "a password would cross the network as clear text",
                hint="Set security to starttls or tls, or give no password.",
            )
        if not config.get("user"):
            raise InvalidRequest("there is a password and no user", hint="Give user, too.")
    return AlertChannelRow(
        name=name,
        kind=kind,
        enabled=bool(given.get("enabled", True)),
        config=config,
        secrets=secrets,
    )


def _receiver(config: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(config.get(name) for name in ("url", "host", "port", "security", "user"))


def _webhook(config: dict[str, Any]) -> None:
    checked_url(config.get("url"), "url")


def _slack(config: dict[str, Any]) -> None:
    """Nothing but its address, which is a secret."""


def _email(config: dict[str, Any]) -> None:
    host = config["host"] = _text(config.get("host"), "host")
    if not re.fullmatch(r"[A-Za-z0-9.:_-]{1,253}", host):
        raise InvalidRequest(f"host is {host!r}", hint="Write the mail server's name or address.")
    security = config.setdefault("security", "starttls")
    if security not in _SECURITY:
        raise InvalidRequest(f"security is {security!r}", hint=f"There are {', '.join(_SECURITY)}.")
    port = config.setdefault("port", _SECURITY[security])
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        raise InvalidRequest(f"port is {port!r}", hint="Write a number from 1 to 65535.")
    if "user" in config:
        config["user"] = _text(config["user"], "user")
    sender, to = config.get("from"), config.get("to")
    if not isinstance(to, list) or not 0 < len(to) <= ADDRESSES_MAX:
        raise InvalidRequest(
            "to has no addresses, or too many", hint=f"Write a list of 1 to {ADDRESSES_MAX}."
        )
    for name, one in (("from", sender), *(("to", one) for one in to)):
        if not isinstance(one, str) or not _ADDRESS.fullmatch(one):
            raise InvalidRequest(f"{name} has {one!r}", hint="Write name@host, and nothing else.")


_CHECKS: Final[Mapping[str, Callable[[dict[str, Any]], None]]] = {
    "webhook": _webhook,
    "slack": _slack,
    "email": _email,
}


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or len(value) > _TEXT_MAX or not value.isprintable():
        raise InvalidRequest(
            f"{name} is no text that can be sent",
            hint=f"Write a text of {_TEXT_MAX} characters at most, without line ends.",
        )
    return value
