"""``spillway slot``: REST's calls on slots."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from spillway.cli import completion, only_one, waiting
from spillway.cli.answer import Answer, Columns, Record, Rows
from spillway.cli.confirmation import Yes, confirm
from spillway.cli.connection import call
from spillway.cli.lists import Sort, in_order, only
from spillway.cli.options import PluginOptions  # noqa: TC001 - typer reads the annotations
from spillway.cli.output import AsJson, print_changes, print_json, record, shows
from spillway.cli.past import Range, Step, past
from spillway.declarations.slot_columns import listed_columns
from spillway.errors import InvalidRequest
from spillway.pg.option_list import parse_option_list


class SlotState(StrEnum):
    """How a slot is."""

    #: a consumer has it
    ACTIVE = "active"
    #: nobody has it
    IDLE = "idle"
    #: its history was given up
    INVALIDATED = "invalidated"


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

_LISTED: Final = Columns(
    names=tuple(column.name for column in listed_columns()),
    ranked=tuple(
        column.name for column in sorted(listed_columns(), key=lambda column: column.rank)
    ),
)


@app.command()
@shows(short=False)
def create(
    name: Name,
    source: Annotated[
        str | None,
        typer.Option(help=only_one.SOURCE_HELP, autocompletion=completion.sources),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(help=only_one.DATABASE_HELP, autocompletion=completion.databases),
    ] = None,
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
    wait: waiting.Wait = False,
    timeout: waiting.Timeout = waiting.TIMEOUT_S,
) -> Answer:
    """Create a slot (pg_create_logical_replication_slot)."""
    source, database = only_one.meant(source, database, begins=True)
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
    answer = call("POST", "slots", body=body)
    # One of an earlier release has none.
    held = answer.get("snapshot")
    if wait:
        found = waiting.until(
            ("slots", name),
            waiting.slot_is_missing,
            what=f'slot "{name}"',
            timeout_s=timeout,
            hint=f"`spillway slot show {name}` says how its decoding stands.",
        )
        answer = found if held is None else {**found, "snapshot": held}
    parts = [Record({key: value for key, value in answer.items() if key != "snapshot"})]
    if held is not None:
        parts.append(Record(held, heading="snapshot"))
    return Answer(answer, [name], parts)


@app.command("list")
@shows(watch=True)
def list_slots(
    state: Annotated[
        list[SlotState] | None, typer.Option(help="Only those that are so; may be repeated.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(help="Only those of this source.", autocompletion=completion.sources),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(help="Only those of this database.", autocompletion=completion.databases),
    ] = None,
    plugin: Annotated[
        str | None,
        typer.Option(help="Only those of this plugin.", autocompletion=completion.plugins),
    ] = None,
    sort: Sort = None,
) -> Answer:
    """List slots (pg_replication_slots)."""
    found = call("GET", "slots")["slots"]
    if state:
        found = [slot for slot in found if state_of(slot) in state]
    found = in_order(only(found, source=source, database=database, plugin=plugin), sort)
    names = [slot["slot_name"] for slot in found]
    return Answer(found, names, [Rows([_all_listed(slot) for slot in found], _LISTED)])


def state_of(slot: dict[str, Any]) -> SlotState:
    """Say how a slot is that REST has told of."""
    if slot["invalidation_reason"]:
        return SlotState.INVALIDATED
    return SlotState.ACTIVE if slot["active"] else SlotState.IDLE


@app.command()
@shows(watch=True)
def show(name: Name) -> Answer:
    """Show every column of a slot."""
    return record(call("GET", "slots", name), name)


@app.command()
@shows(short=False)
def alter(
    name: Name,
    option: PluginOptions = None,
    no_options: Annotated[
        bool, typer.Option("--no-options", help="None from now on: the plugin's defaults.")
    ] = False,
) -> Answer:
    """Give a slot that nobody has other plugin options, all of them; its position stays."""
    if no_options == bool(option):
        raise InvalidRequest(
            "what the options are to be is not said",
            hint="Give all of them with --option, or --no-options.",
        )
    body = {"options": parse_option_list(option)}
    return record(call("PATCH", "slots", name, body=body), name)


@app.command()
@shows()
def snapshot(
    name: Name,
    release: Annotated[
        bool, typer.Option("--release", help="Give up the one that is held for the slot.")
    ] = False,
    show_held: Annotated[
        bool, typer.Option("--show", help="Show the one that is held, and take none.")
    ] = False,
) -> Answer:
    """Take an exact snapshot of the source and hold it there for who copies tables; the slot stays
    where it is.
    """
    if release:
        call("DELETE", "slots", name, "snapshot")
        return Answer(None, (), ())
    return record(call("GET" if show_held else "POST", "slots", name, "snapshot"), name)


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
    _show_changes(call("GET", "slots", name, "peek", query=query), as_json=as_json)


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
    _show_changes(call("POST", "slots", name, "get", body=body), as_json=as_json)


@app.command()
@shows()
def advance(
    name: Name,
    upto_lsn: Annotated[str, typer.Argument(metavar="LSN", help="Where to.")],
    yes: Yes = False,
) -> Answer:
    """Move a slot forward without reading (pg_replication_slot_advance)."""
    confirm(
        f"Advance slot {name} to {upto_lsn}? Its consumer never gets what commits before.", yes=yes
    )
    return record(call("POST", "slots", name, "advance", body={"upto_lsn": upto_lsn}), name)


@app.command()
@shows()
def rewind(
    name: Name,
    lsn: Annotated[str, typer.Argument(metavar="LSN", help="Where to; it must be retained.")],
    yes: Yes = False,
) -> Answer:
    """Move a slot back, so that what follows comes again."""
    confirm(f"Rewind slot {name} to {lsn}? Its consumer gets what follows once more.", yes=yes)
    return record(call("POST", "slots", name, "rewind", body={"lsn": lsn}), name)


@app.command()
@shows()
def copy(
    name: Name,
    new_name: Annotated[str, typer.Argument(metavar="NEW", help="The copy's name.")],
) -> Answer:
    """Make another slot at the same position (pg_copy_logical_replication_slot)."""
    return record(call("POST", "slots", name, "copy", body={"slot_name": new_name}), new_name)


@app.command("end-session")
@shows()
def end_session(name: Name, yes: Yes = False) -> Answer:
    """End the session of a slot's consumer, so that another may take the slot
    (pg_terminate_backend).
    """
    confirm(f"End the session of slot {name}'s consumer?", yes=yes)
    return record(call("POST", "slots", name, "end-session"), name)


@app.command()
def drop(name: Name, yes: Yes = False) -> None:
    """Drop a slot (pg_drop_replication_slot)."""
    confirm(f"Drop slot {name}? What its consumer has not confirmed is lost to it.", yes=yes)
    call("DELETE", "slots", name)


@app.command()
@shows(watch=True)
def stats(name: Name) -> Answer:
    """Show a slot's statistics (pg_stat_replication_slots)."""
    return record(call("GET", "slots", name, "stats"), name)


@app.command()
@shows()
def metrics(name: Name, reach: Range = timedelta(hours=24), step: Step = None) -> Answer:
    """Show how a slot was: lag, what it confirmed and what was kept for it.

    Each line has the largest of a stretch of time; - is not known.
    """
    return past("slots", name, reach, step)


def _all_listed(slot: dict[str, Any]) -> dict[str, Any]:
    """Fill in what a service of an earlier release doesn't tell: unknown."""
    return {**dict.fromkeys(_LISTED.names), **slot}


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
