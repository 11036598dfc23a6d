"""``spillway source``: REST's calls on sources."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from spillway.cli.output import AsJson, print_json, print_record, print_table
from spillway.cli.rest_client import RestClient
from spillway.settings import Settings

app = typer.Typer(help="Add, look at and drop sources: PostgreSQL clusters.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="SOURCE", help="The source's name.")]
Dsn = Annotated[
    str,
    typer.Argument(help="A connection string of a role with REPLICATION; - reads it from stdin."),
]

_LIST_COLUMNS: Final = (
    "name", "state", "server_version_num", "received_lsn", "flushed_lsn", "decoding", "error",
)  # fmt: skip


_TABLE_COLUMNS: Final = ("table", "kind", "replica_identity", "primary_key", "warnings")
#: What the service describes in a few tenths of a second.
_TABLES_A_PAGE: Final = 1000


@app.command()
def add(
    name: Name,
    dsn: Dsn,
    origin: Annotated[
        str, typer.Option(help="none: leave out what came in through a replication origin.")
    ] = "any",
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
    capture = {"origin": origin, "tables": table or [], "publications": publication or []}
    body = {"name": name, "dsn": _read(dsn), "capture": capture}
    _show(_call("POST", "sources", body=body), as_json=as_json)


@app.command("list")
def list_sources(as_json: AsJson = False) -> None:
    """List sources."""
    answer = _call("GET", "sources")
    if as_json:
        print_json(answer["sources"])
    else:
        print_table([_with_decoding(row) for row in answer["sources"]], _LIST_COLUMNS)


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show everything about a source."""
    _show(_call("GET", "sources", name), as_json=as_json)


@app.command()
def tables(
    name: Name,
    database: Annotated[str, typer.Argument(help="A database that is decoded.")],
    as_json: AsJson = False,
) -> None:
    """List a database's tables, with what stands in a consumer's way, in the order in which they were made."""
    found: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        page = _call(
            "GET",
            "sources",
            name,
            "tables",
            query={"database": database, "after": str(after), "limit": str(_TABLES_A_PAGE)},
        )
        found += page["tables"]
        after = page["next"]
    if as_json:
        print_json(found)
    else:
        rows = [
            table
            | {
                "table": f"{table['schema']}.{table['name']}",
                "primary_key": ", ".join(table["primary_key"]),
                "warnings": " ".join(table["warnings"]),
            }
            for table in found
        ]
        print_table(rows, _TABLE_COLUMNS)


@app.command()
def alter(name: Name, dsn: Dsn, as_json: AsJson = False) -> None:
    """Reach the same cluster by another connection string; slots and consumers go on.

    A password on a command line is seen by other users of the machine; with - it is not.
    """
    _show(_call("PATCH", "sources", name, body={"dsn": _read(dsn)}), as_json=as_json)


@app.command()
def drop(name: Name) -> None:
    """Stop receiving from a source and forget it; its slots must be gone."""
    _call("DELETE", "sources", name)


def _read(dsn: str) -> str:
    return typer.get_text_stream("stdin").readline().strip() if dsn == "-" else dsn


def _with_decoding(source: dict[str, Any]) -> dict[str, Any]:
    sessions = ", ".join(
        f"{session['database']} {session['snapshot_state']} {session['decoded_lsn'] or ''}".strip()
        for session in source["sessions"]
    )
    return {**source, "decoding": sessions}


def _call(method: str, *path: str, **arguments: Any) -> Any:
    with RestClient(Settings.from_environment()) as client:
        return client.call(method, *path, **arguments)


def _show(answer: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        record = _with_decoding(answer)
        del record["sessions"]
        print_record(record)
