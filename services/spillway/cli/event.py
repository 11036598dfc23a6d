"""``spillway event``: what happened, and who did what."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from spillway.cli.output import AsJson, print_json, print_table
from spillway.cli.rest_client import RestClient
from spillway.settings import Settings

app = typer.Typer(help="Look at what happened, and who did what.", no_args_is_help=True)

_COLUMNS: Final = ("at", "kind", "title", "source", "slot", "subscription", "by", "detail")
_RANKED: Final = ("at", "kind", "title", "by", "source", "subscription", "slot", "detail")


@app.command("list")
def list_events(
    kind: Annotated[
        str | None,
        typer.Option(help="problem, resolved, action, taken, started, stopped or message."),
    ] = None,
    severity: Annotated[str | None, typer.Option(help="bad, warn, ok or info.")] = None,
    source: Annotated[str | None, typer.Option(help="Only of this source.")] = None,
    slot: Annotated[str | None, typer.Option(help="Only of this slot.")] = None,
    subscription: Annotated[str | None, typer.Option(help="Only of this subscription.")] = None,
    search: Annotated[
        str | None, typer.Option(help="Only with this in what it says, or in who did it.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Only from then on: 2026-11-23T08:00:00Z.")
    ] = None,
    before: Annotated[int | None, typer.Option(min=1, help="Only those below this id.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List what happened, the newest first: 30 days of it are kept."""
    given = {
        "kind": kind,
        "severity": severity,
        "source": source,
        "slot": slot,
        "subscription": subscription,
        "search": search,
        "since": since,
        "before": before,
        "limit": limit,
    }
    query = {name: value for name, value in given.items() if value is not None}
    with RestClient(Settings.from_environment()) as client:
        answer = client.call("GET", "events", query=query)
    if as_json:
        print_json(answer)
    else:
        rows = [{**event, "by": _by(event["caller"])} for event in answer["events"]]
        print_table(rows, _COLUMNS, ranked=_RANKED, sentences=("title", "detail"))


def _by(caller: dict[str, Any] | None) -> str | None:
    if caller is None:
        return None
    return caller["user"] or " ".join(filter(None, (caller["client"], caller["address"])))
