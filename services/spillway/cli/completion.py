"""Names that the shell completes: asked of the service, at once or not at all.

A completion runs at each press of a key, so it waits half a second for the service and no longer,
and whatever goes wrong (no service, no token, a wrong URL) completes nothing and says nothing: the
command itself will say it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from spillway.cli.rest_client import RestClient
from spillway.errors import SpillwayError
from spillway.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable

_TIMEOUT_S: Final = 0.5


def slots(incomplete: str) -> list[str]:
    """Complete the name of a slot."""
    return _beginning(incomplete, (slot["slot_name"] for slot in _ask("slots")))


def arrow_slots(incomplete: str) -> list[str]:
    """Complete the name of a slot that a lake can read."""
    found = (slot["slot_name"] for slot in _ask("slots") if slot["plugin"] == "arrow")
    return _beginning(incomplete, found)


def sources(incomplete: str) -> list[str]:
    """Complete the name of a source."""
    return _beginning(incomplete, (source["name"] for source in _ask("sources")))


def databases(incomplete: str) -> list[str]:
    """Complete the name of a database that is decoded."""
    found = {session["database"] for source in _ask("sources") for session in source["sessions"]}
    return _beginning(incomplete, sorted(found))


def subscriptions(incomplete: str) -> list[str]:
    """Complete the name of a subscription."""
    return _beginning(incomplete, (found["name"] for found in _ask("subscriptions")))


def plugins(incomplete: str) -> list[str]:
    """Complete the name of an output plugin."""
    return _beginning(incomplete, (plugin["name"] for plugin in _ask("plugins")))


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _ask(what: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    # Whatever else listens there answers in forms of its own.
    with (
        contextlib.suppress(SpillwayError, KeyError, TypeError, ValueError),
        RestClient(Settings.from_environment(), timeout_s=_TIMEOUT_S) as client,
    ):
        found = list(client.call("GET", what)[what])
    return found
