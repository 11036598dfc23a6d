"""``--wait``: until what was begun is done, or can't be, or takes too long.

What is missing is said on standard error whenever it changes, so that who waits sees what for.
"""

from __future__ import annotations

import time
from time import sleep as pause
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from spillway.cli.connection import connect, explain
from spillway.errors import NotReady, SpillwayError, remote_error

if TYPE_CHECKING:
    from collections.abc import Callable

_POLL_S: Final = 0.25
#: How long a service may be away while it is waited for: it is started again, for one.
_AWAY_S: Final = 30.0

Wait: TypeAlias = Annotated[bool, typer.Option("--wait", help="Return when it is done.")]
Timeout: TypeAlias = Annotated[
    float, typer.Option(min=0, help="With --wait: seconds that it may take.")
]
TIMEOUT_S: Final = 600.0


def until(
    path: tuple[str, ...],
    missing: Callable[[dict[str, Any]], str],
    *,
    what: str,
    timeout_s: float,
    hint: str,
) -> dict[str, Any]:
    """Look at ``/v1/PATH…`` until nothing is missing; return it as it was then.

    Args:
        path: what is looked at.
        missing: says what is missing yet, '' for nothing; raises where it won't come.
        what: names it in errors.
        timeout_s: how long it may take.
        hint: what to do when it takes longer.

    Raises:
        NotReady: it takes too long, or the service is away.
    """
    began = time.monotonic()
    said = ""
    away_since: float | None = None
    with connect() as client:
        while True:
            try:
                found: dict[str, Any] = client.call("GET", *path)
                away_since = None
            except NotReady as error:
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > min(_AWAY_S, timeout_s):
                    explain(error)
                    raise
                now = error.message
            else:
                now = missing(found)
                if not now:
                    return found
            if now != said:
                typer.echo(f"waiting for {what}: {now}", err=True)
                said = now
            if time.monotonic() - began >= timeout_s:
                raise NotReady(f"{what} is not there after {timeout_s:g} s: {now}", hint=hint)
            pause(_POLL_S)


def source_is_missing(source: dict[str, Any]) -> str:
    """Say what keeps a source from receiving WAL.

    Raises:
        SpillwayError: what its server says, where trying again won't help.
    """
    if source["state"] == "streaming":
        return ""
    if source["state"] in {"failed", "stopped"}:
        raise _failed(source["error_code"], source["error"] or "it has stopped", source["hint"])
    return f"it is {source['state']}" + (f", {source['error']}" if source["error"] else "")


def slot_is_missing(slot: dict[str, Any]) -> str:
    """Say what keeps a slot from giving changes.

    Raises:
        SpillwayError: it was invalidated, or its database's decoding has stopped.
    """
    if slot["invalidation_reason"]:
        raise _failed(
            "slot_invalidated",
            f'slot "{slot["slot_name"]}" was invalidated: {slot["invalidation_reason"]}',
            "Drop it and create it again.",
        )
    decoding = slot["decoding"]
    if decoding["state"] == "stopped":
        raise _failed(decoding["error_code"], decoding["error"], decoding["hint"])
    return "" if decoding["state"] == "running" else f"decoding is {decoding['state']}"


def subscription_is_missing(subscription: dict[str, Any]) -> str:
    """Say what keeps a subscription from having all of its tables up to date.

    Raises:
        SpillwayError: its program has failed, a table is in quarantine, or it is disabled.
    """
    name, state, error = subscription["name"], subscription["state"], subscription["error"]
    if state == "paused":
        raise NotReady(
            f'subscription "{name}" is disabled', hint=f"spillway subscription enable {name}"
        )
    if state == "failed":
        raise _failed(
            None if error is None else error["code"],
            f'subscription "{name}" has failed'
            + ("" if error is None else f": {error['message']}"),
            f"`spillway subscription log {name}` shows what its program said."
            if error is None
            else error["hint"],
        )
    tables = subscription["table_states"]
    aside = [one for one in tables if one["state"] == "quarantined"]
    if aside:
        raise NotReady(
            f'{aside[0]["table"]} of subscription "{name}" is in quarantine: {aside[0]["reason"]}',
            hint=f"`spillway subscription tables {name}` shows all of its tables.",
        )
    # One that somebody paused keeps nobody waiting.
    late = [one for one in tables if one["state"] not in ("ready", "paused")]
    if late:
        ready = len(tables) - len(late)
        first = f"{late[0]['table']} is {late[0]['state']}"
        return f"{ready} of {len(tables)} tables are ready, {first}"
    return "" if state == "streaming" else f"it is {state}"


def subscription_is_running(subscription: dict[str, Any]) -> str:
    """Say what a subscription has that is to be stopped; '' when its program has ended."""
    if subscription["state"] == "paused" and subscription["pid"] is None:
        return ""
    return f"it is {subscription['state']}"


class TableIsLoaded:
    """Whether a table of a lake was loaded anew, as somebody asked."""

    def __init__(self, table: str) -> None:
        self._table = table

    def __call__(self, subscription: dict[str, Any]) -> str:
        """Say what keeps it from being loaded.

        Raises:
            NotReady: it could not be, or is not to be any more.
        """
        tables = {one["table"]: one for one in subscription["table_states"]}
        found = tables.get(self._table, {})
        resync = found.get("resync") or {"state": "waiting"}
        if resync["state"] == "failed":
            raise NotReady(
                f"{self._table} could not be loaded anew: {resync['reason']}",
                hint=f"`spillway subscription tables {subscription['name']}` says how it is.",
            )
        if resync["state"] == "cancelled":
            raise NotReady(
                f"{self._table} is not loaded anew: somebody took that back",
                hint=f"`spillway event list --subscription {subscription['name']}` says who.",
            )
        if resync["state"] == "done":
            return ""
        if found.get("bytes_total"):
            return f"{100 * found['bytes_copied'] // found['bytes_total']} % are copied"
        return f"its load is {resync['state']}" if resync["state"] == "waiting" else "it begins"


def _failed(code: str | None, message: str, hint: str | None) -> SpillwayError:
    return remote_error(code or NotReady.code, message, hint=hint or "")


class Settled:
    """What is missing, and for a while whether anything will be: what was asked for begins a moment
    later.
    """

    def __init__(self, missing: Callable[[dict[str, Any]], str], settle_s: float) -> None:
        self._missing = missing
        self._settle_s = settle_s
        self._began = time.monotonic()
        self._has_begun = False

    def __call__(self, found: dict[str, Any]) -> str:
        """Say what is missing."""
        now = self._missing(found)
        self._has_begun = self._has_begun or bool(now)
        if now or self._has_begun or time.monotonic() - self._began >= self._settle_s:
            return now
        return "it may begin anew"
