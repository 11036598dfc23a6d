"""``spillway ddl``: what changed in the schema, and what subscriptions made of it."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from spillway.cli import completion
from spillway.cli.answer import Answer, Columns, Rows
from spillway.cli.connection import call
from spillway.cli.moments import Since, since_query
from spillway.cli.output import shows

_COLUMNS: Final = Columns(
    names=("committed_at", "table", "subscriptions", "source", "database", "commit_lsn"),
    ranked=("committed_at", "table", "subscriptions", "commit_lsn", "source", "database"),
    sentences=("did",),
)


@shows(watch=True)
def ddl(
    source: Annotated[
        str | None,
        typer.Option(help="Only of this source.", autocompletion=completion.sources),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(help="Only of this database.", autocompletion=completion.databases),
    ] = None,
    table: Annotated[str | None, typer.Option(help="schema.table, as it is or was called.")] = None,
    since: Since = None,
    before: Annotated[int | None, typer.Option(min=1, help="Only those below this id.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 50,
) -> Answer:
    """Show what DDL did to tables, and what subscriptions made of it, the newest first: 30 days of
    it are kept.
    """
    given = {
        "source": source,
        "database": database,
        "table": table,
        "since": since_query(since),
        "before": before,
        "limit": limit,
    }
    query = {name: value for name, value in given.items() if value is not None}
    answer = call("GET", "schema-changes", query=query)
    found = answer["schema_changes"]
    rows = [
        {**one, "did": " ".join(one["words"]), "subscriptions": _made_of_it(one["outcomes"])}
        for one in found
    ]
    return Answer(answer, [str(one["id"]) for one in found], [Rows(rows, _COLUMNS)])


def _made_of_it(outcomes: list[dict[str, Any]]) -> str | None:
    said = [f"{one['subscription']}: {one['outcome'].replace('_', ' ')}" for one in outcomes]
    return ", ".join(said) or None
