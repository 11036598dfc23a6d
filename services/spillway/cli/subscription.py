"""``spillway subscription``: REST's calls on subscriptions."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from spillway.cli import apply_verify, completion, cut_over
from spillway.cli.options import Origin, PluginOptions
from spillway.cli.output import AsJson, print_json, print_record, print_table
from spillway.cli.rest_client import RestClient
from spillway.declarations import spark_settings
from spillway.declarations.command_line import takes
from spillway.declarations.lake_options import (
    LAKE_OPTIONS,
    NUMBERS,
    SEVERAL,
    form_options,
    job_options,
    lake_option,
)
from spillway.declarations.postgres_options import POSTGRES_OPTIONS
from spillway.errors import InvalidRequest
from spillway.pg.option_list import parse_option_list
from spillway.settings import Settings
from spillway.wording import for_commands

if TYPE_CHECKING:
    from collections.abc import Mapping

app = typer.Typer(
    help="Create, look at and change subscriptions: what fills a lake, or another PostgreSQL, from "
    "a slot.",
    no_args_is_help=True,
)


class TableFormat(StrEnum):
    """What a lake's tables are made of."""

    DELTA = "delta"
    ICEBERG = "iceberg"
    PARQUET = "parquet"


#: What the lake's job takes by --job-option. Other names are the service's to refuse.
JOB_OPTIONS: Final = tuple(sorted(option.name for option in job_options()))
#: Those that are numbers in the contract: all else is text, also where it looks like one.
_NUMBERS: Final = frozenset(option.name for option in LAKE_OPTIONS if option.kind in NUMBERS)
#: Those that are said of tables, or by name; what is said of one of them can be said anew.
_SEVERAL: Final = tuple(option for option in form_options() if option.kind in SEVERAL)
#: Fields of the lake that have options of their own.
_OWN_OPTION: Final = {
    "path": "--path",
    "format": "--format",
    "kind": "--path",
    **{option.name: option.option for option in form_options()},
}

Name = Annotated[
    str,
    typer.Argument(
        metavar="SUBSCRIPTION",
        help="The subscription's name.",
        autocompletion=completion.subscriptions,
    ),
]
Tables = Annotated[
    list[str] | None,
    typer.Option("--table", help="Only this one: schema.table; may be repeated; all unless named."),
]
Publications = Annotated[
    list[str] | None,
    typer.Option("--publication", help="What this one publishes; may be repeated."),
]
JobOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--job-option",
        "-j",
        metavar="NAME=VALUE",
        help="How the lake's job runs, retention=30d or driver_memory=4g for one; may be repeated. "
        f"There are {', '.join(JOB_OPTIONS)}.",
    ),
]
TargetDsn = Annotated[
    str | None,
    typer.Option(
        "--target-dsn",
        envvar="SPILLWAY_TARGET_DSN",
        show_default=False,
        help="A PostgreSQL: the connection string of the database that is filled; - reads it from "
        "stdin.",
    ),
]
TargetOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--target-option",
        "-t",
        metavar="NAME=VALUE",
        help="How a PostgreSQL is filled, create_tables=true for one; may be repeated. There are "
        f"{', '.join(option.name for option in POSTGRES_OPTIONS)}; a value is JSON or a text.",
    ),
]
_LIST_COLUMNS: Final = (
    "name", "state", "lag_bytes", "lag_seconds", "rows", "restarts", "source", "database", "slot",
    "confirmed_flush_lsn",
)  # fmt: skip
_LIST_RANKED: Final = (
    "name", "state", "lag_bytes", "lag_seconds", "rows", "restarts", "database", "source", "slot",
    "confirmed_flush_lsn",
)  # fmt: skip
_CONFLICT_COLUMNS: Final = ("committed_at", "lsn", "table", "kind", "resolution")
_COUNT_COLUMNS: Final = ("table", "kind", "count")
_RATE_COLUMNS: Final = (
    "table", "state", "sync_state", "changes", "changes_per_second", "bytes_copied", "bytes_total",
    "bytes_per_second", "seconds_left",
)  # fmt: skip
_RATE_RANKED: Final = (
    "table", "state", "changes", "changes_per_second", "bytes_copied", "bytes_total",
    "seconds_left", "bytes_per_second", "sync_state",
)  # fmt: skip
_TABLE_COLUMNS: Final = ("table", "state", "changes", "bytes_copied", "bytes_total")


@app.command()
@takes(form_options(), before="job_option", with_defaults=False)
def create(
    name: Name,
    source: Annotated[
        str,
        typer.Option(
            help="The source that its changes come from.", autocompletion=completion.sources
        ),
    ],
    database: Annotated[
        str, typer.Option(help="The database.", autocompletion=completion.databases)
    ],
    path: Annotated[
        str | None,
        typer.Option(
            "--path",
            "--lake",
            help="The lake: a directory of the service's machine, or s3://bucket/prefix.",
        ),
    ] = None,
    target_dsn: TargetDsn = None,
    target_option: TargetOptions = None,
    table_format: Annotated[
        TableFormat, typer.Option("--format", help="What the lake's tables are made of.")
    ] = TableFormat.DELTA,
    slot: Annotated[
        str | None,
        typer.Option(
            help="Its slot, made unless it is there; of its name by default.",
            autocompletion=completion.arrow_slots,
        ),
    ] = None,
    table: Tables = None,
    publication: Publications = None,
    job_option: JobOptions = None,
    option: PluginOptions = None,
    no_copy_data: Annotated[
        bool, typer.Option("--no-copy-data", help="Leave out what is in the tables already.")
    ] = False,
    disabled: Annotated[bool, typer.Option("--disabled", help="Don't start it yet.")] = False,
    origin: Annotated[
        Origin, typer.Option(help="none: only changes without a replication origin.")
    ] = Origin.ANY,
    two_phase: Annotated[
        bool, typer.Option("--two-phase", help="PostgreSQL: prepare what the source prepares.")
    ] = False,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Create a subscription that keeps a lake, or another PostgreSQL, in step with a database
    (CREATE SUBSCRIPTION).

    A password on a command line is seen by other users of the machine: give --target-dsn - and the
    connection string on stdin, or set SPILLWAY_TARGET_DSN.
    """
    if (path is None) == (target_dsn is None):
        raise InvalidRequest(
            "a subscription fills a lake or a PostgreSQL, and this says "
            f"{'neither' if path is None else 'both'}",
            hint="Give --path for a lake, or --target-dsn for a PostgreSQL.",
        )
    body: dict[str, object] = {
        "name": name,
        "source": source,
        "database": database,
        "target": _postgres(target_dsn, target_option)
        if target_dsn is not None
        else {
            "kind": "lake",
            "format": table_format.value,
            "path": path,
            **_of_lake(options),
            **_job_options(job_option),
        },
        "enabled": not disabled,
        "copy_data": not no_copy_data,
        "origin": origin.value,
        "options": parse_option_list(option),
    }
    if two_phase:
        body["two_phase"] = True
    if slot is not None:
        body["slot"] = slot
    if table:
        body["tables"] = table
    if publication:
        body["publications"] = publication
    _show(_call("POST", "subscriptions", body=body), as_json=as_json)


@app.command("list")
def list_subscriptions(as_json: AsJson = False) -> None:
    """List subscriptions."""
    answer = _call("GET", "subscriptions")
    if as_json:
        print_json(answer["subscriptions"])
    else:
        print_table(
            [_readable(s) for s in answer["subscriptions"]],
            _LIST_COLUMNS,
            ranked=_LIST_RANKED,
            sentences=("error",),
        )


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show everything about a subscription, its tables too."""
    _show(_call("GET", "subscriptions", name), as_json=as_json)


@app.command()
@takes(_SEVERAL, before="job_option", with_defaults=False)
def alter(
    name: Name,
    table: Tables = None,
    publication: Publications = None,
    all_tables: Annotated[
        bool, typer.Option("--all-tables", help="All tables from now on.")
    ] = False,
    path: Annotated[
        str | None,
        typer.Option("--path", "--lake", help="Another lake, as long as nothing is in the first."),
    ] = None,
    job_option: JobOptions = None,
    target_dsn: TargetDsn = None,
    target_option: TargetOptions = None,
    option: PluginOptions = None,
    as_json: AsJson = False,
    **tables: Any,
) -> None:
    """Change what can change in place; what is not named stays (ALTER SUBSCRIPTION)."""
    body: dict[str, object] = {}
    if table:
        body["tables"] = table
    if publication:
        body["publications"] = publication
    if all_tables:
        body |= {"tables": None, "publications": None}
    if option is not None:
        body["options"] = parse_option_list(option)
    by_table = _of_lake(tables)
    options = ({} if path is None else {"path": path}) | _job_options(job_option)
    if target_dsn is not None:
        options |= _postgres(target_dsn, None)
    options |= _target_options(target_option)
    if by_table or options:
        target = dict(_call("GET", "subscriptions", name)["target"])
        # Tables that are not named stay as they are.
        by_table = {field: target.get(field, {}) | named for field, named in by_table.items()}
        body["target"] = target | options | by_table
    _show(_call("PATCH", "subscriptions", name, body=body), as_json=as_json)


@app.command()
def enable(name: Name, as_json: AsJson = False) -> None:
    """Start a subscription that was disabled."""
    _show(_call("POST", "subscriptions", name, "enable"), as_json=as_json)


@app.command()
def disable(name: Name, as_json: AsJson = False) -> None:
    """Stop a subscription; its slot keeps what comes."""
    _show(_call("POST", "subscriptions", name, "disable"), as_json=as_json)


@app.command()
def refresh(name: Name, as_json: AsJson = False) -> None:
    """Look again which tables its publications have; new ones are copied first."""
    _show(_call("POST", "subscriptions", name, "refresh"), as_json=as_json)


@app.command()
def skip(
    name: Name,
    lsn: Annotated[str, typer.Argument(metavar="LSN", help="Where to go on.")],
    as_json: AsJson = False,
) -> None:
    """Give up what commits before an LSN and is not in the target yet."""
    _show(_call("POST", "subscriptions", name, "skip", body={"lsn": lsn}), as_json=as_json)


@app.command()
def drop(
    name: Name,
    keep_slot: Annotated[
        bool, typer.Option("--keep-slot", help="Leave its slot, which goes on keeping changes.")
    ] = False,
) -> None:
    """Drop a subscription and its slot; what it filled stays (DROP SUBSCRIPTION)."""
    query = {"keep_slot": "true"} if keep_slot else None
    _call("DELETE", "subscriptions", name, query=query)


@app.command()
def stats(name: Name, as_json: AsJson = False) -> None:
    """Show how it is doing: positions, lag, errors, conflicts by kind (pg_stat_subscription)."""
    found = _call("GET", "subscriptions", name, "stats")
    if as_json:
        print_json(found)
        return
    by_table = [{**one, "table": one["table"] or "others"} for one in found.pop("table_conflicts")]
    found.pop("tables")
    print_record(found)
    if by_table:
        typer.echo()
        print_table(by_table, _COUNT_COLUMNS, ranked=_COUNT_COLUMNS)


@app.command()
def tables(name: Name, as_json: AsJson = False) -> None:
    """Show its tables: how far each is copied, and how fast it goes (pg_subscription_rel)."""
    found = _call("GET", "subscriptions", name)
    if as_json:
        print_json(found["table_states"])
        return
    print_table(
        [_readable_table(one) for one in found["table_states"]],
        _RATE_COLUMNS,
        ranked=_RATE_RANKED,
        sentences=("reason", "written_alone"),
    )


@app.command()
def conflicts(
    name: Name,
    limit: Annotated[int, typer.Option(min=0, help="How many.")] = 20,
    kind: Annotated[
        str | None, typer.Option(help="Only those of this kind: update_missing, for one.")
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="Only those of this one: schema.table, as on the target.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the last conflicts that its programs met, and what became of them."""
    given = {"limit": limit, "kind": kind, "table": table}
    query = {option: value for option, value in given.items() if value is not None}
    answer = _call("GET", "subscriptions", name, "conflicts", query=query)
    found = answer["conflicts"]
    if as_json:
        print_json(found)
        return
    rows = [{**one, "table": f"{one['schema']}.{one['table']}"} for one in found]
    print_table(rows, _CONFLICT_COLUMNS, ranked=_CONFLICT_COLUMNS, sentences=("detail",))
    if answer["dropped"]:
        typer.echo(f"{answer['dropped']} older ones are kept no more")
    if answer["missed"]:
        typer.echo(f"{answer['missed']} were overwritten before they could be read")


@app.command()
def log(
    name: Name,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many.")] = 100,
) -> None:
    """Show the end of what its programs printed."""
    for line in _call("GET", "subscriptions", name, "log", query={"lines": lines})["lines"]:
        typer.echo(line)


app.command()(apply_verify.verify)
app.command()(apply_verify.repair)
app.command()(cut_over.wait)
app.command()(cut_over.sequences)


def _postgres(dsn: str, given: list[str] | None) -> dict[str, object]:
    """Return a target of kind postgres."""
    if dsn == "-":
        dsn = typer.get_text_stream("stdin").readline().strip()
    return {"kind": "postgres", "dsn": dsn, **_target_options(given)}


def _target_options(given: list[str] | None) -> dict[str, object]:
    """Read NAME=VALUE; what is not JSON is a text."""
    options: dict[str, object] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not name or not equals or name in options:
            raise InvalidRequest(
                f"--target-option {text!r} is not NAME=VALUE, or names what was named before",
                hint="Write --target-option create_tables=true, for one.",
            )
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def _job_options(given: list[str] | None) -> dict[str, object]:
    """Read NAME=VALUE; an option that is a number becomes one, all else is text."""
    options: dict[str, object] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidRequest(
                f"--job-option {text!r} is not NAME=VALUE",
                hint="Write --job-option retention=30d, for one; there are "
                f"{', '.join(JOB_OPTIONS)}.",
            )
        if name in _OWN_OPTION:
            raise InvalidRequest(
                f"{name} is the lake's, and no option of its job",
                hint=f"Give it by {_OWN_OPTION[name]}.",
            )
        if name in options:
            raise InvalidRequest(f"--job-option {name} is given twice", hint="Give it once.")
        options[name] = _number(name, value) if name in _NUMBERS else value
    return options


def _number(name: str, text: str) -> int | float:
    try:
        number = json.loads(text)
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise InvalidRequest(
            f"--job-option {name} is {text!r}, and must be a number",
            hint=f"Write --job-option {name}=N.",
        )
    return number


def _of_lake(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a target's fields of the options that were given."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        option = lake_option(name)
        if option.kind == "settings" and value:
            found[name] = spark_settings.given(value, option.option)
        elif option.kind in SEVERAL and value:
            found[name] = _by_table(option.option, value)
        elif option.kind not in SEVERAL and value is not None:
            found[name] = str(value) if isinstance(value, StrEnum) else value
    return found


def _by_table(option: str, given: list[str]) -> dict[str, list[str]]:
    """Read TABLE=COLUMN,…; nothing behind = is none."""
    found: dict[str, list[str]] = {}
    for text in given:
        table, equals, columns = (part.strip() for part in text.partition("="))
        if not equals or table in found:
            raise InvalidRequest(
                f"{option} {text!r} does not say of which table, or of one that was named before",
                hint=f"{option} 'schema.table=column,column'; once for each table; nothing behind "
                "= for none.",
            )
        found[table] = [name.strip() for name in columns.split(",") if name.strip()]
    return found


def _call(method: str, *path: str, **arguments: Any) -> Any:
    with RestClient(Settings.from_environment()) as client:
        return client.call(method, *path, **arguments)


def _readable(subscription: dict[str, Any]) -> dict[str, Any]:
    """Put what is nested into texts."""
    error = subscription["error"]
    lag_seconds = subscription["lag_seconds"]
    return {
        **subscription,
        "error": None if error is None else f"{error['message']} ({error['code']})",
        "lag_seconds": None if lag_seconds is None else round(lag_seconds, 1),
    }


def _readable_table(table: dict[str, Any]) -> dict[str, Any]:
    """Round what is reckoned."""
    rates = ("changes_per_second", "bytes_per_second", "seconds_left")
    return {**table, **{n: None if table[n] is None else round(table[n]) for n in rates}}


def _show(answer: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    record = _readable(answer)
    if answer["error"] is not None:
        record["hint"] = for_commands(answer["error"]["hint"])
    tables = record.pop("table_states")
    record |= record.pop("stats")
    print_record(record)
    if tables:
        typer.echo()
        print_table(tables, _TABLE_COLUMNS, ranked=_TABLE_COLUMNS, sentences=("reason",))
