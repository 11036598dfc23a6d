"""``spillway subscription log``: what a subscription's programs printed, to its end or on and on.

The service gives the end of a log, so that following it is asking again and finding where the last
answer ended. What comes between two looks and is more than a look shows is missed, and said so.
"""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from spillway.cli import completion
from spillway.cli.connection import call
from spillway.errors import NotReady

#: A look's lines while it is followed: as many as the service gives.
_LOOK_LINES: Final = 10_000
_POLL_S: Final = 1.0


def log(
    name: Annotated[
        str,
        typer.Argument(
            metavar="SUBSCRIPTION",
            help="The subscription's name.",
            autocompletion=completion.subscriptions,
        ),
    ],
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many.")] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False,
) -> None:
    """Show the end of what its programs printed."""
    seen = _look(name, _LOOK_LINES if follow else lines)
    _print(seen[-lines:] if lines else [])
    said = ""
    while follow:
        time.sleep(_POLL_S)
        try:
            found = _look(name, _LOOK_LINES)
        except NotReady as error:
            # It is started again, for one. Once as long as it is the same.
            if error.message != said:
                typer.echo(f"spillway: {error.message}; looking again", err=True)
            said = error.message
            continue
        said = ""
        new = news(seen, found)
        if len(new) == len(found) and seen:
            typer.echo("spillway: lines may be missing here", err=True)
        _print(new)
        seen = found


def news(seen: list[str], found: list[str]) -> list[str]:
    """Return what *found*, the end of a log, has behind *seen*, its end a moment ago; all of it if
    nothing tells where that ended.
    """
    # Logs grow at their end: the longest end of what was seen that found begins with, or that
    # stands in it where its beginning was cut off.
    if found[: len(seen)] == seen:
        return found[len(seen) :]
    for start in range(len(seen)):
        rest = seen[start:]
        if found[: len(rest)] == rest:
            return found[len(rest) :]
    return found


def _look(name: str, lines: int) -> list[str]:
    found: list[str] = call("GET", "subscriptions", name, "log", query={"lines": lines})["lines"]
    return found


def _print(lines: list[str]) -> None:
    for line in lines:
        typer.echo(line)
