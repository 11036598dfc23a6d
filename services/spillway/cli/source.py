"""``spillway source``: REST's calls on sources."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from spillway.cli import completion, only_one, waiting
from spillway.cli.answer import Answer, Columns, Rows
from spillway.cli.confirmation import Yes, confirm
from spillway.cli.connection import call
from spillway.cli.lists import Sort, in_order, only
from spillway.cli.options import Origin
from spillway.cli.output import record, shows
from spillway.cli.past import Range, Step, past
from spillway.wording import for_commands


class SourceState(StrEnum):
    """How the receiver of a source is."""

    CONNECTING = "connecting"
    STREAMING = "streaming"
    WAITING = "waiting"
    FAILED = "failed"
    STOPPED = "stopped"


app = typer.Typer(help="Add, look at and drop sources: PostgreSQL clusters.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(metavar="SOURCE", help="The source's name.", autocompletion=completion.sources),
]
Database = Annotated[
    str | None,
    typer.Option(help=only_one.DATABASE_HELP, autocompletion=completion.databases),
]
Dsn = Annotated[
    str,
    typer.Argument(help="A connection string of a role with REPLICATION; - reads it from stdin."),
]

_LISTED: Final = Columns(
    names=("name", "state", "decoding", "server_version_num", "received_lsn", "flushed_lsn"),
    ranked=("name", "state", "decoding", "flushed_lsn", "received_lsn", "server_version_num"),
    sentences=("error", "hint"),
)
_TABLES: Final = Columns(
    names=("table", "primary_key", "replica_identity", "captured", "columns", "publications"),
    ranked=("table", "captured", "replica_identity", "primary_key", "columns", "publications"),
    sentences=("warnings",),
)
_PUBLICATIONS: Final = Columns(
    names=("name", "tables", "operations", "via_root"),
    ranked=("name", "tables", "operations", "via_root"),
)

#: What the service describes in a few tenths of a second.
_TABLES_A_PAGE: Final = 1000


@app.command()
@shows()
def add(
    name: Name,
    dsn: Dsn,
    origin: Annotated[
        Origin, typer.Option(help="none: leave out what came in through a replication origin.")
    ] = Origin.ANY,
    table: Annotated[
        list[str] | None,
        typer.Option(help="Capture only this one: schema.table or schema.*; may be repeated."),
    ] = None,
    publication: Annotated[
        list[str] | None,
        typer.Option(help="Capture only what this one publishes; may be repeated."),
    ] = None,
    wait: waiting.Wait = False,
    timeout: waiting.Timeout = waiting.TIMEOUT_S,
) -> Answer:
    """Check a cluster and begin to receive its WAL.

    What is captured can't be changed later: other tables are not decoded for any slot.

    A password on a command line is seen by other users of the machine; with - it is not.
    """
    capture = {"origin": origin.value, "tables": table or [], "publications": publication or []}
    body = {"name": name, "dsn": _read(dsn), "capture": capture}
    added = call("POST", "sources", body=body)
    if wait:
        added = waiting.until(
            ("sources", name),
            waiting.source_is_missing,
            what=f'source "{name}"',
            timeout_s=timeout,
            hint=f"`spillway source show {name}` says how it is.",
        )
    return _shown(added)


@app.command("list")
@shows(watch=True)
def list_sources(
    state: Annotated[
        list[SourceState] | None, typer.Option(help="Only those that are so; may be repeated.")
    ] = None,
    sort: Sort = None,
) -> Answer:
    """List sources."""
    found = in_order(only(call("GET", "sources")["sources"], state=state), sort)
    return Answer(
        found, [one["name"] for one in found], [Rows([_readable(one) for one in found], _LISTED)]
    )


@app.command()
@shows(watch=True)
def show(name: Name) -> Answer:
    """Show everything about a source."""
    return _shown(call("GET", "sources", name))


@app.command()
@shows()
def tables(name: Name, database: Database = None) -> Answer:
    """List a database's tables, as of where decoding is, in the order in which they were made."""
    _, database = only_one.meant(name, database)
    found: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        query = {"database": database, "after": str(after), "limit": str(_TABLES_A_PAGE)}
        page = call("GET", "sources", name, "tables", query=query)
        found += page["tables"]
        after = page["next"]
    rows = [
        {
            **table,
            "table": f"{table['schema']}.{table['name']}",
            "columns": len(table["columns"]),
            "warnings": table["warnings"] or None,
        }
        for table in found
    ]
    return Answer(found, [row["table"] for row in rows], [Rows(rows, _TABLES)])


@app.command()
@shows()
def alter(name: Name, dsn: Dsn) -> Answer:
    """Reach the same cluster by another connection string; slots and consumers go on.

    A password on a command line is seen by other users of the machine; with - it is not.
    """
    return _shown(call("PATCH", "sources", name, body={"dsn": _read(dsn)}))


@app.command()
@shows()
def restart(
    name: Name,
    database: Annotated[
        str,
        typer.Argument(
            help="The database whose decoding has stopped.", autocompletion=completion.databases
        ),
    ],
    yes: Yes = False,
) -> Answer:
    """Give the decoding of one database a way on from what has stopped it.

    It is tried again at once; where that can't help, decoding begins anew behind the place, and
    slots that missed something are invalidated. The other databases go on.
    """
    confirm(
        f"Restart the decoding of {name} / {database}? Slots that miss something by it are "
        "invalidated.",
        yes=yes,
    )
    return _shown(call("POST", "sources", name, "databases", database, "restart"))


@app.command()
@shows()
def publications(name: Name, database: Database = None) -> Answer:
    """List a database's publications (pg_publication), as of where decoding is."""
    _, database = only_one.meant(name, database)
    found = call("GET", "publications", query={"source": name, "database": database})
    rows = [
        {
            **publication,
            "tables": "all"
            if publication["all_tables"]
            else [f"{table['schema']}.{table['name']}" for table in publication["tables"]],
            "operations": [name for name, is_on in publication["publish"].items() if is_on],
        }
        for publication in found["publications"]
    ]
    names = [one["name"] for one in rows]
    return Answer(found["publications"], names, [Rows(rows, _PUBLICATIONS)])


@app.command()
def drop(
    name: Name,
    keep_slot: Annotated[
        bool,
        typer.Option(
            "--keep-slot",
            help="Leave its physical slot, and don't ask the server: for one that is gone for "
            "good.",
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """Stop receiving from a source and forget it; its slots must be gone."""
    confirm(f"Drop source {name}? What was received from it is removed here.", yes=yes)
    call("DELETE", "sources", name, query={"keep_slot": "true"} if keep_slot else None)


@app.command()
@shows()
def metrics(name: Name, reach: Range = timedelta(hours=24), step: Step = None) -> Answer:
    """Show how a source was: what it received, and what was not decoded yet.

    Each line has the largest of a stretch of time; - is not known.
    """
    return past("sources", name, reach, step)


def _read(dsn: str) -> str:
    return typer.get_text_stream("stdin").readline().strip() if dsn == "-" else dsn


def _readable(source: dict[str, Any]) -> dict[str, Any]:
    """Put what is nested into texts."""
    sessions = ", ".join(
        f"{session['database']} {session['snapshot_state']} {session['decoded_lsn'] or ''}".strip()
        for session in source["sessions"]
    )
    errors = [] if source["error"] is None else [source["error"]]
    errors += [
        f'database "{session["database"]}": {session["error"]}'
        for session in source["sessions"]
        if session["error"] is not None
    ]
    hint = source["hint"]
    return {
        **source,
        "decoding": sessions,
        "error": "; ".join(errors) or None,
        "hint": hint and for_commands(hint),
    }


def _shown(answer: dict[str, Any]) -> Answer:
    shown = _readable(answer)
    del shown["sessions"]
    return record(answer, answer["name"], shown)
