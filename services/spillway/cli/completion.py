"""Names that the shell completes: asked of the service, at once or not at all.

A completion runs at each press of a key, so it waits half a second for the service and no longer,
and whatever goes wrong (no service, no token, a wrong URL) completes nothing and says nothing: the
command itself will say it. The service is the one that the command would talk to, by ``--context``
on the line that is being typed, too.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import typer  # noqa: TC002 - typer reads the annotations

from spillway.cli import connection
from spillway.errors import SpillwayError

if TYPE_CHECKING:
    from collections.abc import Iterable

_TIMEOUT_S: Final = 0.5


def slots(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a slot."""
    return _beginning(incomplete, (slot["slot_name"] for slot in _ask(ctx, "slots")))


def arrow_slots(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a slot that a lake can read."""
    found = (slot["slot_name"] for slot in _ask(ctx, "slots") if slot["plugin"] == "arrow")
    return _beginning(incomplete, found)


def sources(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a source."""
    return _beginning(incomplete, (source["name"] for source in _ask(ctx, "sources")))


def databases(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a database that is decoded: of the source that is named before it."""
    named = ctx.params.get("source") or ctx.params.get("name")
    found = _ask(ctx, "sources")
    of_it = [source for source in found if source["name"] == named] or found
    names = {session["database"] for source in of_it for session in source["sessions"]}
    return _beginning(incomplete, sorted(names))


def subscriptions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a subscription."""
    return _beginning(incomplete, (found["name"] for found in _ask(ctx, "subscriptions")))


def subscription_tables(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a table of the subscription that is named before it."""
    named = ctx.params.get("name") or ctx.params.get("subscription")
    tables = {
        table["table"]
        for one in _ask(ctx, "subscriptions")
        if named in {None, one["name"]}
        for table in one["table_states"]
    }
    return _beginning(incomplete, sorted(tables))


def plugins(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of an output plugin."""
    return _beginning(incomplete, (plugin["name"] for plugin in _ask(ctx, "plugins")))


def users(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a user."""
    return _beginning(incomplete, (user["name"] for user in _ask(ctx, "users")))


def alert_rules(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a rule of alerts."""
    return _beginning(incomplete, (rule["name"] for rule in _ask(ctx, "alerts", "rules")))


def alert_channels(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a channel that alerts are told on."""
    return _beginning(incomplete, (one["name"] for one in _ask(ctx, "alerts", "channels")))


def alert_codes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the code of what may be wrong."""
    return _beginning(incomplete, _ask(ctx, "alerts", "rules", field="codes"))


def contexts(incomplete: str) -> list[str]:
    """Complete the name of a context."""
    from spillway.cli.contexts import Contexts  # noqa: PLC0415 - who has none needs no JSON

    names: list[str] = []
    with contextlib.suppress(SpillwayError):
        names = list(Contexts.load().by_name)
    return _beginning(incomplete, names)


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _ask(ctx: typer.Context, *path: str, field: str | None = None) -> list[Any]:
    found: list[Any] = []
    connection.use(ctx.find_root().params.get("context_name"))
    # Whatever else listens there answers in forms of its own.
    with (
        contextlib.suppress(SpillwayError, KeyError, TypeError, ValueError),
        connection.connect(timeout_s=_TIMEOUT_S) as client,
    ):
        found = list(client.call("GET", *path)[field or path[-1]])
    return found
