"""``spillway changes``: what happened to a row, a table, in a transaction."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from spillway.cli import completion, only_one, tables
from spillway.cli.connection import connect
from spillway.cli.moments import Since, moment
from spillway.cli.output import print_json
from spillway.cli.similar import hint_names
from spillway.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spillway.cli.rest_client import RestClient

_PAGE: Final = 1000


class Operation(StrEnum):
    """What was done."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"
    MESSAGE = "message"


class Form(StrEnum):
    """How changes are printed."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


def changes(
    source: Annotated[
        str | None,
        typer.Option(help=only_one.SOURCE_HELP, autocompletion=completion.sources),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(help=only_one.DATABASE_HELP, autocompletion=completion.databases),
    ] = None,
    table: Annotated[
        str, typer.Option(help="schema.table or table; a former name does, too.")
    ] = "",
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE", help="Rows that have this value, or had it; may be repeated."
        ),
    ] = None,
    op: Annotated[
        list[Operation] | None, typer.Option(help="Only this operation; may be repeated.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help="Only logical messages that have this prefix.")
    ] = None,
    xid: Annotated[int | None, typer.Option(min=0, help="Only of this transaction.")] = None,
    since: Since = None,
    until: Annotated[str | None, typer.Option(help="Only before then; as --since.")] = None,
    from_lsn: Annotated[
        str | None, typer.Option(help="Its commit record starts at this LSN or later.")
    ] = None,
    upto_lsn: Annotated[
        str | None, typer.Option(help="Its commit record starts before this LSN.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many changes.")] = 100,
    oldest_first: Annotated[
        bool, typer.Option("--oldest-first", help="Begin with the first change, not the last.")
    ] = False,
    output: Annotated[
        Form, typer.Option("--output", "-o", help="For a person, or as the service's JSON.")
    ] = Form.TABLE,
    as_plugin: Annotated[
        str | None,
        typer.Option(
            "--print-as",
            help="Print the transactions as this output plugin does.",
            autocompletion=completion.plugins,
        ),
    ] = None,
) -> None:
    """Find changes in all that is retained, the last first: who changed this row, and to what."""
    now = datetime.now().astimezone()
    query: dict[str, Any] = {
        "table": table,
        "key": key or [],
        "op": [one.value for one in op or ()],
        "newest_first": "false" if oldest_first else "true",
    }
    given = {"prefix": prefix, "xid": xid, "from_lsn": from_lsn, "upto_lsn": upto_lsn}
    query |= {name: value for name, value in given.items() if value is not None}
    for name, text in (("since", since), ("until", until)):
        if text is not None:
            query[name] = moment(text, now, f"--{name}").astimezone(UTC).isoformat()
    with connect() as client:
        try:
            query["source"], query["database"] = only_one.source_and_database(
                client, source, database
            )
            page = _find(client, query, limit)
        except NotFound as error:
            hint_names(error, client)
            raise
        if as_plugin is not None:
            _print_as(client, query, page, as_plugin)
        elif output is Form.JSON:
            print_json(page)
        elif output is Form.JSONL:
            for change in page["changes"]:
                typer.echo(json.dumps(change, ensure_ascii=False))
        else:
            for change in page["changes"]:
                for line in lines_of(change):
                    typer.echo(line)
    width = tables.width() if sys.stderr.isatty() else None
    for line in tables.text_lines(list(remarks(page, table)), width):
        typer.echo(line, err=True)


def _find(client: RestClient, query: dict[str, Any], limit: int) -> dict[str, Any]:
    """Return a page of *limit* changes, however many of the service's it takes; it says what was
    looked at by all of them.
    """
    whole: dict[str, Any] | None = None
    while True:
        have = 0 if whole is None else len(whole["changes"])
        page: dict[str, Any] = client.call(
            "GET", "changes", query={**query, "limit": min(_PAGE, limit - have)}
        )
        if whole is not None:
            page["changes"] = whole["changes"] + page["changes"]
            page["undecided"] += whole["undecided"]
            page["read_bytes"] += whole["read_bytes"]
            page["passed_over_bytes"] += whole["passed_over_bytes"]
            side = "looked_upto_lsn" if query["newest_first"] == "true" else "looked_from_lsn"
            page[side] = whole[side]
        whole = page
        if page["next"] is None or len(page["changes"]) >= limit:
            return page
        query["after"] = page["next"]


def _print_as(
    client: RestClient, query: Mapping[str, Any], page: Mapping[str, Any], plugin: str
) -> None:
    # Each transaction once, in the order in which they were found.
    for commit_lsn in dict.fromkeys(change["commit_lsn"] for change in page["changes"]):
        answer = client.call(
            "GET",
            "changes",
            "print",
            query={
                "source": query["source"],
                "database": query["database"],
                "commit_lsn": commit_lsn,
                "plugin": plugin,
            },
        )
        for change in answer["changes"]:
            typer.echo(f"{change['lsn']}\t{change['xid']}\t{change['data']}")


def lines_of(change: Mapping[str, Any]) -> Iterator[str]:
    """Yield a change as lines for a person: what was done and when, then each column; what changed
    is marked.
    """
    # An older service knows nothing of messages.
    message = change.get("message")
    what = f"{change['schema']}.{change['table']}" if message is None else _line(message["prefix"])
    if change["committed_at"] is None:
        # Outside of transactions: its record has no time, and its place is its own.
        when, place = "at once", "at"
    else:
        at = datetime.fromisoformat(change["committed_at"]).astimezone()
        when, place = f"{at:%Y-%m-%d %H:%M:%S%z}", "commit"
    head = (
        f"{when}  {change['operation'].upper()} {what}  xid {change['xid']}  "
        f"{place} {change['commit_lsn']}"
    )
    yield head + (f"  origin {change['origin']}" if change["origin"] else "")
    if message is not None:
        content = message["content"]
        yield f"    {message['content_hex'] if content is None else _line(content)}"
    width = max((len(column["name"]) for column in change["columns"]), default=0)
    for column in change["columns"]:
        old, new = _shown(column, "old"), _shown(column, "new")
        if column["old_is"] == "none":
            text = new
        elif column["new_is"] == "none":
            text = old
        elif column["changed"]:
            text = f"{old} → {new}"
        elif column["changed"] is None:
            text = f"{new} (before: unknown)"
        else:
            text = f"{new}"
        mark = "*" if column["changed"] else " "
        yield f"  {mark} {_line(column['name']).ljust(width)}  {text}"


def _shown(column: Mapping[str, Any], side: str) -> str:
    is_ = column[f"{side}_is"]
    return _line(column[side]) if is_ == "value" else f"({is_})"


def _line(text: str) -> str:
    """Return *text* as one line that can't steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def remarks(page: Mapping[str, Any], table: str) -> Iterator[str]:
    """Yield what must be known of an answer: what it is about, and what it can't say."""
    count = len(page["changes"])
    if table and not page["tables"]:
        yield (
            f'No table "{table}" has a change in what is retained. '
            "`spillway source tables` lists what tables there are."
        )
    since = "with no transaction yet"
    if page["retained_from"] is not None:
        since = tables.local_time(page["retained_from"])
    yield (
        f"{count} change{'' if count == 1 else 's'}. Looked from {page['looked_from_lsn']} to "
        f"{page['looked_upto_lsn']}; retained from {page['retained_from_lsn']} ({since}), decoded "
        f"to {page['decoded_lsn']}."
    )
    if page["next"] is not None:
        yield "There may be more: give a larger --limit, or --since and --until."
    if page["began_earlier"]:
        yield (
            f"The log begins at {page['retained_from_lsn']} ({since}): what was committed before "
            "that was asked for, too, and is not in it."
        )
    if page["undecided"]:
        yield (
            f"{page['undecided']} DELETEs may be of that row: WAL has not got the columns that "
            "were asked for. ALTER TABLE … REPLICA IDENTITY FULL has them from then on."
        )
    for hole in page["unreadable"]:
        yield f"From {hole['from_lsn']} to {hole['upto_lsn']} the log is damaged and was not read."
