"""``spillway subscription``: REST's calls on subscriptions."""

from __future__ import annotations

import json
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from spillway.cli import (
    apply_verify,
    completion,
    cut_over,
    lake_verify,
    only_one,
    subscription_log,
    waiting,
)
from spillway.cli.answer import Answer, Columns, Record, Rows, Text
from spillway.cli.confirmation import Yes, confirm
from spillway.cli.connection import call
from spillway.cli.lists import Sort, in_order, only
from spillway.cli.options import Origin, PluginOptions
from spillway.cli.output import shows
from spillway.cli.past import Range, Step, past
from spillway.declarations import spark_settings, times
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
from spillway.wording import for_commands

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


class TableSync(StrEnum):
    """How a table of a subscription is."""

    WAITING = "waiting"
    COPYING = "copying"
    READY = "ready"
    QUARANTINED = "quarantined"
    PAUSED = "paused"


class SubscriptionState(StrEnum):
    """How a subscription is."""

    INITIALIZING = "initializing"
    COPYING = "copying"
    STREAMING = "streaming"
    PAUSED = "paused"
    FAILED = "failed"


class Streaming(StrEnum):
    """When a large transaction is written."""

    OFF = "off"
    ON = "on"
    PARALLEL = "parallel"


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

OneTable = Annotated[
    str,
    typer.Argument(
        metavar="SCHEMA.TABLE", help="The table.", autocompletion=completion.subscription_tables
    ),
]
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
_LISTED: Final = Columns(
    names=(
        "name", "state", "lag_bytes", "lag_seconds", "rows", "restarts", "source", "database",
        "slot", "confirmed_flush_lsn",
    ),
    ranked=(
        "name", "state", "lag_bytes", "lag_seconds", "rows", "restarts", "database", "source",
        "slot", "confirmed_flush_lsn",
    ),
    sentences=("error",),
)  # fmt: skip
_CONFLICTS: Final = Columns(
    names=("committed_at", "lsn", "table", "kind", "resolution"),
    ranked=("committed_at", "lsn", "table", "kind", "resolution"),
    sentences=("detail",),
)
_COUNTS: Final = Columns(("table", "kind", "count"), ("table", "kind", "count"))
_RATES: Final = Columns(
    names=(
        "table", "state", "sync_state", "changes", "changes_per_second", "bytes_copied",
        "bytes_total", "bytes_per_second", "seconds_left", "rows", "files", "bytes",
        "deleted_share", "bytes_rewritten", "newest_change_at", "waiting_since", "resync",
    ),
    ranked=(
        "table", "state", "changes", "changes_per_second", "bytes_copied", "bytes_total",
        "seconds_left", "resync", "rows", "waiting_since", "bytes", "files", "deleted_share",
        "bytes_rewritten", "newest_change_at", "bytes_per_second", "sync_state",
    ),
    sentences=("reason", "written_alone", "resync_reason"),
)  # fmt: skip
_TABLES: Final = Columns(
    names=("table", "state", "changes", "bytes_copied", "bytes_total", "resync"),
    ranked=("table", "state", "changes", "bytes_copied", "bytes_total", "resync"),
    sentences=("reason", "resync_reason"),
)
#: The program of a refreshed subscription is begun anew in the service's time, a few seconds.
_REFRESHED_S: Final = 5.0


@app.command()
@shows(short=False)
@takes(form_options(), before="job_option", with_defaults=False)
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
    path: Annotated[
        str | None,
        typer.Option(
            "--path",
            "--lake",
            help="The lake: a directory of the service's machine, s3://bucket/prefix or "
            "az://container/prefix.",
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
    streaming: Annotated[
        Streaming,
        typer.Option(
            help="PostgreSQL: parallel writes large transactions while they are in progress; on "
            "and off when they have ended, and until then the service keeps them."
        ),
    ] = Streaming.OFF,
    wait: waiting.Wait = False,
    timeout: waiting.Timeout = waiting.TIMEOUT_S,
    **options: Any,
) -> Answer:
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
    source, database = only_one.meant(source, database, begins=True)
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
        "streaming": streaming.value,
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
    return _waited(call("POST", "subscriptions", body=body), timeout if wait else None)


@app.command("list")
@shows(watch=True)
def list_subscriptions(
    state: Annotated[
        list[SubscriptionState] | None,
        typer.Option(help="Only those that are so; may be repeated."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(help="Only those of this source.", autocompletion=completion.sources),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(help="Only those of this database.", autocompletion=completion.databases),
    ] = None,
    sort: Sort = None,
) -> Answer:
    """List subscriptions."""
    found = only(
        call("GET", "subscriptions")["subscriptions"],
        state=state,
        source=source,
        database=database,
    )
    found = in_order(found, sort)
    names = [one["name"] for one in found]
    return Answer(found, names, [Rows([_readable(one) for one in found], _LISTED)])


@app.command()
@shows(watch=True)
def show(name: Name) -> Answer:
    """Show everything about a subscription, its tables too."""
    return _shown(call("GET", "subscriptions", name))


@app.command()
@shows(short=False)
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
    **tables: Any,
) -> Answer:
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
        target = dict(call("GET", "subscriptions", name)["target"])
        # Tables that are not named stay as they are.
        by_table = {
            field: [*dict.fromkeys([*(target.get(field) or ()), *named])]
            if isinstance(named, list)
            else target.get(field, {}) | named
            for field, named in by_table.items()
        }
        body["target"] = target | options | by_table
    return _shown(call("PATCH", "subscriptions", name, body=body))


@app.command()
@shows()
def enable(
    name: Name, wait: waiting.Wait = False, timeout: waiting.Timeout = waiting.TIMEOUT_S
) -> Answer:
    """Start a subscription that was disabled."""
    return _waited(call("POST", "subscriptions", name, "enable"), timeout if wait else None)


@app.command()
@shows()
def disable(
    name: Name, wait: waiting.Wait = False, timeout: waiting.Timeout = waiting.TIMEOUT_S
) -> Answer:
    """Stop a subscription; its slot keeps what comes."""
    answer = call("POST", "subscriptions", name, "disable")
    if wait:
        answer = _until(name, waiting.subscription_is_running, timeout)
    return _shown(answer)


@app.command()
@shows()
def refresh(
    name: Name, wait: waiting.Wait = False, timeout: waiting.Timeout = waiting.TIMEOUT_S
) -> Answer:
    """Look again which tables its publications have; new ones are copied first."""
    answer = call("POST", "subscriptions", name, "refresh")
    if wait:
        answer = _until(
            name, waiting.Settled(waiting.subscription_is_missing, _REFRESHED_S), timeout
        )
    return _shown(answer)


@app.command("pause-table")
@shows()
def pause_table(name: Name, table: OneTable) -> Answer:
    """Have one table of a lake wait while the others go on; what comes for it is kept there."""
    return _shown(call("POST", "subscriptions", name, "tables", table, "pause"))


@app.command("resume-table")
@shows()
def resume_table(name: Name, table: OneTable) -> Answer:
    """Have a table that is paused, or was set aside, take in what was kept for it."""
    return _shown(call("POST", "subscriptions", name, "tables", table, "resume"))


@app.command("resync-table")
@shows()
def resync_table(
    name: Name,
    table: OneTable,
    wait: waiting.Wait = False,
    timeout: waiting.Timeout = waiting.TIMEOUT_S,
    yes: Yes = False,
) -> Answer:
    """Have one table of a lake loaded anew by the job, while it and the others are followed."""
    confirm(
        f"Load {table} anew? Its current rows in the lake of {name} give way to the source's, when "
        "all of them are there; its history stays, and gets them, too. What is set aside comes "
        "back.",
        yes=yes,
    )
    answer = call("POST", "subscriptions", name, "tables", table, "resync")
    if wait:
        answer = _until(name, waiting.TableIsLoaded(table), timeout)
    return _shown(answer)


@app.command("cancel-resync")
@shows()
def cancel_resync(name: Name, table: OneTable) -> Answer:
    """Take back that one table of a lake is to be loaded anew, while its load has not begun."""
    return _shown(call("POST", "subscriptions", name, "tables", table, "cancel-resync"))


@app.command()
@shows()
def skip(
    name: Name,
    lsn: Annotated[str, typer.Argument(metavar="LSN", help="Where to go on.")],
    yes: Yes = False,
) -> Answer:
    """Give up what commits before an LSN and is not in the target yet."""
    confirm(f"Skip to {lsn}? The target of {name} never gets what commits before.", yes=yes)
    return _shown(call("POST", "subscriptions", name, "skip", body={"lsn": lsn}))


@app.command()
def drop(
    name: Name,
    keep_slot: Annotated[
        bool, typer.Option("--keep-slot", help="Leave its slot, which goes on keeping changes.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Drop a subscription and its slot; what it filled stays (DROP SUBSCRIPTION)."""
    slot = "Its slot stays." if keep_slot else "Its slot goes, too; what it filled stays."
    confirm(f"Drop subscription {name}? {slot}", yes=yes)
    query = {"keep_slot": "true"} if keep_slot else None
    dropped = call("DELETE", "subscriptions", name, query=query)
    for note in dropped["notes"]:
        typer.echo(note, err=True)


@app.command()
@shows(watch=True)
def stats(name: Name) -> Answer:
    """Show how it is doing: positions, lag, errors, conflicts by kind (pg_stat_subscription)."""
    found = call("GET", "subscriptions", name, "stats")
    shown = {key: value for key, value in found.items() if key not in {"tables", "table_conflicts"}}
    parts: list[Rows | Record | Text] = [Record(shown)]
    by_table = [{**one, "table": one["table"] or "others"} for one in found["table_conflicts"]]
    if by_table:
        parts.append(Rows(by_table, _COUNTS))
    return Answer(found, [name], parts)


@app.command()
@shows(watch=True)
def tables(
    name: Name,
    state: Annotated[
        list[TableSync] | None, typer.Option(help="Only those that are so; may be repeated.")
    ] = None,
    sort: Sort = None,
) -> Answer:
    """Show its tables: how far each is copied, and how fast it goes (pg_subscription_rel)."""
    found = in_order(only(call("GET", "subscriptions", name)["table_states"], state=state), sort)
    return Answer(
        found,
        [one["table"] for one in found],
        [Rows([_readable_table(one) for one in found], _RATES)],
    )


@app.command()
@shows()
def metrics(name: Name, reach: Range = timedelta(hours=24), step: Step = None) -> Answer:
    """Show how it was: how fresh its target was, and what was written.

    Each line has the largest of a stretch of time; - is not known.
    """
    return past("subscriptions", name, reach, step)


@app.command()
@shows(watch=True)
def conflicts(
    name: Name,
    limit: Annotated[int, typer.Option(min=0, help="How many.")] = 20,
    kind: Annotated[
        str | None, typer.Option(help="Only those of this kind: update_missing, for one.")
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            help="Only those of this one: schema.table, as on the target.",
            autocompletion=completion.subscription_tables,
        ),
    ] = None,
) -> Answer:
    """Show the last conflicts that its programs met, and what became of them."""
    given = {"limit": limit, "kind": kind, "table": table}
    query = {option: value for option, value in given.items() if value is not None}
    answer = call("GET", "subscriptions", name, "conflicts", query=query)
    found = answer["conflicts"]
    rows = [{**one, "table": f"{one['schema']}.{one['table']}"} for one in found]
    more = []
    if answer["dropped"]:
        more.append(f"{answer['dropped']} older ones are kept no more")
    if answer["missed"]:
        more.append(f"{answer['missed']} were overwritten before they could be read")
    parts: list[Rows | Record | Text] = [Rows(rows, _CONFLICTS)]
    if more:
        parts.append(Text(more))
    return Answer(found, [one["id"] for one in found], parts)


app.command("log")(subscription_log.log)
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
        elif option.kind == "times" and value:
            found[name] = times.given(value, option.option)
        elif option.kind == "tables" and value:
            found[name] = list(value)
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


def _readable(subscription: dict[str, Any]) -> dict[str, Any]:
    """Put what is nested into texts."""
    error = subscription["error"]
    lag_seconds = subscription["lag_seconds"]
    return {
        **subscription,
        "error": None if error is None else f"{error['message']} ({error['code']})",
        "lag_seconds": None if lag_seconds is None else round(lag_seconds, 1),
    }


def _batch_text(batch: dict[str, Any]) -> str:
    """Put a batch into words."""
    return (
        f"{batch['changes']} changes of {batch['tables']} tables, {batch['from_lsn']} to "
        f"{batch['to_lsn']}, in {batch['seconds']:.1f} s, durable at {batch['ended_at']}"
    )


def _readable_table(table: dict[str, Any]) -> dict[str, Any]:
    """Round what is reckoned."""
    rates = ("changes_per_second", "bytes_per_second", "seconds_left")
    rounded = {n: None if table[n] is None else round(table[n]) for n in rates}
    share = table["deleted_share"]
    table = _with_resync(table)
    return {**table, **rounded, "deleted_share": None if share is None else round(share, 3)}


def _with_resync(table: dict[str, Any]) -> dict[str, Any]:
    """Have how the wish to load it anew is as a word, and why it failed beside it, if that is not
    what the table waits for, and said, anyway.
    """
    resync = table["resync"] or {"state": None, "reason": None}
    reason = None if resync["reason"] == table["reason"] else resync["reason"]
    return {**table, "resync": resync["state"], "resync_reason": reason}


def _until(name: str, missing: Callable[[dict[str, Any]], str], timeout_s: float) -> dict[str, Any]:
    return waiting.until(
        ("subscriptions", name),
        missing,
        what=f'subscription "{name}"',
        timeout_s=timeout_s,
        hint=f"`spillway subscription show {name}` says how it is.",
    )


def _waited(answer: dict[str, Any], timeout_s: float | None) -> Answer:
    """Show a subscription, when its tables are up to date if that is waited for."""
    if timeout_s is not None:
        notes = answer.get("notes", [])
        answer = _until(answer["name"], waiting.subscription_is_missing, timeout_s)
        answer |= {"notes": notes}
    return _shown(answer)


def _shown(answer: dict[str, Any]) -> Answer:
    shown = _readable(answer)
    if answer["error"] is not None:
        shown["hint"] = for_commands(answer["error"]["hint"])
    tables = shown.pop("table_states")
    notes = shown.pop("notes", [])
    shown |= shown.pop("stats")
    if shown["last_batch"] is not None:
        shown["last_batch"] = _batch_text(shown["last_batch"])
    if shown["verification"] is not None:
        shown["verification"] = lake_verify.text(shown["verification"])
    parts: list[Rows | Record | Text] = [Record(shown)]
    if tables:
        parts.append(Rows([_with_resync(one) for one in tables], _TABLES))
    if notes:
        parts.append(Text(notes, "good to know of the target"))
    return Answer(answer, [answer["name"]], parts)
