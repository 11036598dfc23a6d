"""``spillway event``: what happened, and who did what."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from spillway.cli import completion
from spillway.cli.answer import Answer, Columns, Rows
from spillway.cli.connection import call
from spillway.cli.moments import Since, since_query
from spillway.cli.output import shows

app = typer.Typer(help="Look at what happened, and who did what.", no_args_is_help=True)

_LISTED: Final = Columns(
    names=("at", "kind", "title", "source", "slot", "subscription", "by", "detail"),
    ranked=("at", "kind", "title", "by", "source", "subscription", "slot", "detail"),
    sentences=("title", "detail"),
)


@app.command("list")
@shows(watch=True)
def list_events(
    kind: Annotated[
        str | None,
        typer.Option(help="problem, resolved, action, taken, started, stopped or message."),
    ] = None,
    severity: Annotated[str | None, typer.Option(help="bad, warn, ok or info.")] = None,
    source: Annotated[
        str | None, typer.Option(help="Only of this source.", autocompletion=completion.sources)
    ] = None,
    slot: Annotated[
        str | None, typer.Option(help="Only of this slot.", autocompletion=completion.slots)
    ] = None,
    subscription: Annotated[
        str | None,
        typer.Option(help="Only of this subscription.", autocompletion=completion.subscriptions),
    ] = None,
    search: Annotated[
        str | None, typer.Option(help="Only with this in what it says, or in who did it.")
    ] = None,
    since: Since = None,
    before: Annotated[int | None, typer.Option(min=1, help="Only those below this id.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 50,
) -> Answer:
    """List what happened, the newest first: 30 days of it are kept."""
    given = {
        "kind": kind,
        "severity": severity,
        "source": source,
        "slot": slot,
        "subscription": subscription,
        "search": search,
        "since": since_query(since),
        "before": before,
        "limit": limit,
    }
    query = {name: value for name, value in given.items() if value is not None}
    answer = call("GET", "events", query=query)
    found = answer["events"]
    rows = [{**event, "by": _by(event["caller"])} for event in found]
    return Answer(answer, [str(event["id"]) for event in found], [Rows(rows, _LISTED)])


def _by(caller: dict[str, Any] | None) -> str | None:
    if caller is None:
        return None
    return caller["user"] or " ".join(filter(None, (caller["client"], caller["address"])))
