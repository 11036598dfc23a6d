"""``spillway subscription verify`` of a lake: the service compares, and this waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from spillway.cli import waiting
from spillway.cli.connection import call
from spillway.errors import remote_error

if TYPE_CHECKING:
    from collections.abc import Sequence


def verify(name: str, tables: Sequence[str], timeout_s: float) -> None:
    """Have a lake compared, and say what came out.

    Raises:
        Exit: with 1: something differs.
        SpillwayError: it can't be, or came to no result.
    """
    body = {"tables": list(tables)} if tables else {}
    call("POST", "subscriptions", name, "verify", body=body)
    view = waiting.until(
        ("subscriptions", name),
        _missing,
        what=f"the comparison of {name}",
        timeout_s=timeout_s,
        hint=f"It goes on: `spillway subscription show {name}` says what came out.",
    )
    found = view["verification"]
    if found["state"] == "failed":
        error = found["error"]
        raise remote_error(error["code"], error["message"], hint=error["hint"])
    for table in found["tables"]:
        typer.echo(table_text(table))
    typer.echo(text(found))
    if found["state"] != "equal":
        raise typer.Exit(1)


def table_text(table: dict[str, Any]) -> str:
    """Say what was found of one table."""
    if table["skipped"]:
        return f"{table['table']}: not compared, {table['skipped']}"
    counts = f"{table['source_rows']} rows at the source, {table['target_rows']} in the lake"
    if table["equal"]:
        return f"{table['table']}: equal, {counts}"
    least = "at least " if table["more"] else ""
    return f"{table['table']}: DIFFERENT, {least}{table['differences']} keys; {counts}"


def text(found: dict[str, Any]) -> str:
    """Say what came out of all."""
    state, since = found["state"], found["began_at"]
    if state == "running":
        return f"running since {since}"
    if state == "failed":
        return f"failed at {found['ended_at']}: {found['error']['message']}"
    differing = [table["table"] for table in found["tables"] if not table["equal"]]
    said = f"{', '.join(differing)} differ" if differing else "no difference"
    skipped = sum(bool(table["skipped"]) for table in found["tables"])
    if skipped:
        said += f", {skipped} not compared"
    return f"{len(found['tables'])} tables as of {found['lsn']}, at {found['ended_at']}: {said}"


def _missing(subscription: dict[str, Any]) -> str:
    found = subscription["verification"]
    return "" if found is not None and found["state"] != "running" else "it is at work"
