"""``spillway source``: REST's calls on sources."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from spillway.cli import completion
from spillway.cli.options import Origin
from spillway.cli.output import AsJson, print_json, print_record, print_table
from spillway.cli.rest_client import RestClient
from spillway.settings import Settings
from spillway.wording import for_commands

app = typer.Typer(help="Add, look at and drop sources: PostgreSQL clusters.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(metavar="SOURCE", help="The source's name.", autocompletion=completion.sources),
]
Database = Annotated[
    str, typer.Option(help="One that is decoded.", autocompletion=completion.databases)
]
Dsn = Annotated[
    str,
    typer.Argument(help="A connection string of a role with REPLICATION; - reads it from stdin."),
]

_LIST_COLUMNS: Final = (
    "name", "state", "decoding", "server_version_num", "received_lsn", "flushed_lsn",
)  # fmt: skip
_LIST_RANKED: Final = (
    "name", "state", "decoding", "flushed_lsn", "received_lsn", "server_version_num",
)  # fmt: skip
_TABLE_COLUMNS: Final = (
    "table", "primary_key", "replica_identity", "captured", "columns", "publications",
)  # fmt: skip
_TABLE_RANKED: Final = (
    "table", "captured", "replica_identity", "primary_key", "columns", "publications",
)  # fmt: skip
_PUBLICATION_COLUMNS: Final = ("name", "tables", "operations", "via_root")

#: What the service describes in a few tenths of a second.
_TABLES_A_PAGE: Final = 1000


@app.command()
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
    as_json: AsJson = False,
) -> None:
    """Check a cluster and begin to receive its WAL.

    What is captured can't be changed later: other tables are not decoded for any slot.

    A password on a command line is seen by other users of the machine; with - it is not.
    """
    capture = {"origin": origin.value, "tables": table or [], "publications": publication or []}
    body = {"name": name, "dsn": _read(dsn), "capture": capture}
    _show(_call("POST", "sources", body=body), as_json=as_json)


@app.command("list")
def list_sources(as_json: AsJson = False) -> None:
    """List sources."""
    answer = _call("GET", "sources")
    if as_json:
        print_json(answer["sources"])
    else:
        print_table(
            [_readable(row) for row in answer["sources"]],
            _LIST_COLUMNS,
            ranked=_LIST_RANKED,
            sentences=("error",),
        )


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show everything about a source."""
    _show(_call("GET", "sources", name), as_json=as_json)


@app.command()
def tables(name: Name, database: Database, as_json: AsJson = False) -> None:
    """List a database's tables, as of where decoding is, in the order in which they were made."""
    found: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        query = {"database": database, "after": str(after), "limit": str(_TABLES_A_PAGE)}
        page = _call("GET", "sources", name, "tables", query=query)
        found += page["tables"]
        after = page["next"]
    if as_json:
        print_json(found)
        return
    rows = [
        {
            **table,
            "table": f"{table['schema']}.{table['name']}",
            "columns": len(table["columns"]),
            "warnings": table["warnings"] or None,
        }
        for table in found
    ]
    print_table(rows, _TABLE_COLUMNS, ranked=_TABLE_RANKED, sentences=("warnings",))


@app.command()
def alter(name: Name, dsn: Dsn, as_json: AsJson = False) -> None:
    """Reach the same cluster by another connection string; slots and consumers go on.

    A password on a command line is seen by other users of the machine; with - it is not.
    """
    _show(_call("PATCH", "sources", name, body={"dsn": _read(dsn)}), as_json=as_json)


@app.command()
def restart(
    name: Name,
    database: Annotated[str, typer.Argument(help="The database whose decoding has stopped.")],
    as_json: AsJson = False,
) -> None:
    """Give the decoding of one database a way on from what has stopped it.

    It is tried again at once; where that can't help, decoding begins anew behind the place, and
    slots that missed something are invalidated. The other databases go on.
    """
    _show(_call("POST", "sources", name, "databases", database, "restart"), as_json=as_json)


@app.command()
def publications(name: Name, database: Database, as_json: AsJson = False) -> None:
    """List a database's publications (pg_publication), as of where decoding is."""
    answer = _call("GET", "publications", query={"source": name, "database": database})
    if as_json:
        print_json(answer["publications"])
        return
    rows = [
        {
            **publication,
            "tables": "all"
            if publication["all_tables"]
            else [f"{table['schema']}.{table['name']}" for table in publication["tables"]],
            "operations": [name for name, is_on in publication["publish"].items() if is_on],
        }
        for publication in answer["publications"]
    ]
    print_table(rows, _PUBLICATION_COLUMNS, ranked=_PUBLICATION_COLUMNS)


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
) -> None:
    """Stop receiving from a source and forget it; its slots must be gone."""
    _call("DELETE", "sources", name, query={"keep_slot": "true"} if keep_slot else None)


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


def _call(method: str, *path: str, **arguments: Any) -> Any:
    with RestClient(Settings.from_environment()) as client:
        return client.call(method, *path, **arguments)


def _show(answer: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        record = _readable(answer)
        del record["sessions"]
        print_record(record)
