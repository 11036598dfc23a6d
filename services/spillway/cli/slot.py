"""``spillway slot``: REST's calls on slots."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from spillway.cli import completion
from spillway.cli.options import PluginOptions  # noqa: TC001 - typer reads the annotations
from spillway.cli.output import AsJson, print_changes, print_json, print_record, print_table
from spillway.cli.rest_client import RestClient
from spillway.declarations.slot_columns import listed_columns
from spillway.errors import InvalidRequest
from spillway.pg.option_list import parse_option_list
from spillway.settings import Settings

app = typer.Typer(help="Create, look at, read and move slots.", no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(metavar="SLOT", help="The slot's name.", autocompletion=completion.slots)
]
UptoLsn = Annotated[
    str | None, typer.Option("--upto-lsn", help="Stop before what commits at this LSN or later.")
]
UptoChanges = Annotated[
    int | None,
    typer.Option(
        "--upto-nchanges", min=0, help="Stop at the end of the transaction that reaches this many."
    ),
]

_LIST_COLUMNS: Final = tuple(column.name for column in listed_columns())
_LIST_RANKED: Final = tuple(
    column.name for column in sorted(listed_columns(), key=lambda column: column.rank)
)


@app.command()
def create(
    name: Name,
    source: Annotated[
        str,
        typer.Option(help="The source that its WAL comes from.", autocompletion=completion.sources),
    ],
    database: Annotated[
        str,
        typer.Option(help="The database that it decodes.", autocompletion=completion.databases),
    ],
    plugin: Annotated[
        str, typer.Option(help="The output plugin.", autocompletion=completion.plugins)
    ] = "test_decoding",
    option: PluginOptions = None,
    start_lsn: Annotated[
        str | None, typer.Option(help="Begin at this retained LSN instead of at the present.")
    ] = None,
    temporary: Annotated[
        bool, typer.Option("--temporary", help="Gone when the service stops.")
    ] = False,
    two_phase: Annotated[
        bool,
        typer.Option("--two-phase", help="Decode prepared transactions when they are prepared."),
    ] = False,
    failover: Annotated[
        bool, typer.Option("--failover", help="Marked to be kept on standbys.")
    ] = False,
    snapshot: Annotated[
        bool,
        typer.Option(
            "--snapshot",
            help="Begin at the LSN of an exact snapshot, and hold that on the source for who "
            "copies tables.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create a slot (pg_create_logical_replication_slot)."""
    body: dict[str, object] = {
        "slot_name": name,
        "source": source,
        "database": database,
        "plugin": plugin,
        "temporary": temporary,
        "two_phase": two_phase,
        "failover": failover,
        "options": parse_option_list(option),
    }
    if start_lsn is not None:
        body["start_lsn"] = start_lsn
    if snapshot:
        body["snapshot"] = "export"
    answer = _call("POST", "slots", body=body)
    if as_json:
        print_json(answer)
        return
    # One of an earlier release has none.
    held = answer.pop("snapshot", None)
    print_record(answer)
    if held is not None:
        typer.echo("snapshot")
        print_record(held)


@app.command("list")
def list_slots(as_json: AsJson = False) -> None:
    """List slots (pg_replication_slots)."""
    answer = _call("GET", "slots")
    if as_json:
        print_json(answer["slots"])
    else:
        print_table(
            [_all_listed(slot) for slot in answer["slots"]], _LIST_COLUMNS, ranked=_LIST_RANKED
        )


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show every column of a slot."""
    _show(_call("GET", "slots", name), as_json=as_json)


@app.command()
def alter(
    name: Name,
    option: PluginOptions = None,
    no_options: Annotated[
        bool, typer.Option("--no-options", help="None from now on: the plugin's defaults.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Give a slot that nobody has other plugin options, all of them; its position stays."""
    if no_options == bool(option):
        raise InvalidRequest(
            "what the options are to be is not said",
            hint="Give all of them with --option, or --no-options.",
        )
    body = {"options": parse_option_list(option)}
    _show(_call("PATCH", "slots", name, body=body), as_json=as_json)


@app.command()
def snapshot(
    name: Name,
    release: Annotated[
        bool, typer.Option("--release", help="Give up the one that is held for the slot.")
    ] = False,
    show_held: Annotated[
        bool, typer.Option("--show", help="Show the one that is held, and take none.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take an exact snapshot of the source and hold it there for who copies tables; the slot stays
    where it is.
    """
    if release:
        _call("DELETE", "slots", name, "snapshot")
        return
    _show(_call("GET" if show_held else "POST", "slots", name, "snapshot"), as_json=as_json)


@app.command()
def peek(
    name: Name,
    upto_lsn: UptoLsn = None,
    upto_nchanges: UptoChanges = None,
    option: PluginOptions = None,
    as_json: AsJson = False,
) -> None:
    """Show what comes next, and leave it there (pg_logical_slot_peek_changes)."""
    query: dict[str, str | int] = {
        f"options.{key}": value for key, value in parse_option_list(option).items()
    }
    if upto_lsn is not None:
        query["upto_lsn"] = upto_lsn
    if upto_nchanges is not None:
        query["upto_nchanges"] = upto_nchanges
    _show_changes(_call("GET", "slots", name, "peek", query=query), as_json=as_json)


@app.command()
def get(
    name: Name,
    upto_lsn: UptoLsn = None,
    upto_nchanges: UptoChanges = None,
    option: PluginOptions = None,
    as_json: AsJson = False,
) -> None:
    """Show what comes next, and confirm it (pg_logical_slot_get_changes)."""
    body = {
        "upto_lsn": upto_lsn,
        "upto_nchanges": upto_nchanges,
        "options": parse_option_list(option),
    }
    _show_changes(_call("POST", "slots", name, "get", body=body), as_json=as_json)


@app.command()
def advance(
    name: Name,
    upto_lsn: Annotated[str, typer.Argument(metavar="LSN", help="Where to.")],
    as_json: AsJson = False,
) -> None:
    """Move a slot forward without reading (pg_replication_slot_advance)."""
    answer = _call("POST", "slots", name, "advance", body={"upto_lsn": upto_lsn})
    _show(answer, as_json=as_json)


@app.command()
def rewind(
    name: Name,
    lsn: Annotated[str, typer.Argument(metavar="LSN", help="Where to; it must be retained.")],
    as_json: AsJson = False,
) -> None:
    """Move a slot back, so that what follows comes again."""
    _show(_call("POST", "slots", name, "rewind", body={"lsn": lsn}), as_json=as_json)


@app.command()
def copy(
    name: Name,
    new_name: Annotated[str, typer.Argument(metavar="NEW", help="The copy's name.")],
    as_json: AsJson = False,
) -> None:
    """Make another slot at the same position (pg_copy_logical_replication_slot)."""
    _show(_call("POST", "slots", name, "copy", body={"slot_name": new_name}), as_json=as_json)


@app.command("end-session")
def end_session(name: Name, as_json: AsJson = False) -> None:
    """End the session of a slot's consumer, so that another may take the slot
    (pg_terminate_backend).
    """
    _show(_call("POST", "slots", name, "end-session"), as_json=as_json)


@app.command()
def drop(name: Name) -> None:
    """Drop a slot (pg_drop_replication_slot)."""
    _call("DELETE", "slots", name)


@app.command()
def stats(name: Name, as_json: AsJson = False) -> None:
    """Show a slot's statistics (pg_stat_replication_slots)."""
    _show(_call("GET", "slots", name, "stats"), as_json=as_json)


def _call(method: str, *path: str, **arguments: Any) -> Any:
    with RestClient(Settings.from_environment()) as client:
        return client.call(method, *path, **arguments)


def _show(answer: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        print_record(answer)


def _all_listed(slot: dict[str, Any]) -> dict[str, Any]:
    """Fill in what a service of an earlier release doesn't tell: unknown."""
    return {**dict.fromkeys(_LIST_COLUMNS), **slot}


def _show_changes(answer: Any, *, as_json: bool) -> None:
    _say_how_decoding_stands(answer["decoding"])
    if as_json:
        print_json(answer["changes"])
    else:
        print_changes(answer["changes"])


def _say_how_decoding_stands(decoding: Any) -> None:
    """Say on stderr that what was shown may not be all that was committed."""
    if decoding["state"] == "running":
        return
    where = f" at {decoding['decoded_lsn']}" if decoding["decoded_lsn"] else ""
    since = f" since {decoding['since']}" if decoding["since"] else ""
    why = f": {decoding['error']} [{decoding['error_code']}]" if decoding["error"] else ""
    typer.echo(f"decoding is {decoding['state']}{where}{since}{why}", err=True)
    if decoding["hint"]:
        typer.echo(f"hint: {decoding['hint']}", err=True)
