"""``spillway subscription``: REST's calls on subscriptions."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from spillway.cli import completion
from spillway.cli.options import Origin, PluginOptions
from spillway.cli.output import AsJson, print_json, print_record, print_table
from spillway.cli.rest_client import RestClient
from spillway.errors import InvalidRequest
from spillway.pg.option_list import parse_option_list
from spillway.settings import Settings
from spillway.wording import for_commands

app = typer.Typer(
    help="Create, look at and change subscriptions: what fills a lake from a slot.",
    no_args_is_help=True,
)


class TableFormat(StrEnum):
    """What a lake's tables are made of."""

    DELTA = "delta"
    ICEBERG = "iceberg"
    PARQUET = "parquet"


class HistoryUnit(StrEnum):
    """What of their commits' time histories are partitioned by."""

    DAY = "day"
    MONTH = "month"
    YEAR = "year"
    NONE = "none"


#: What the lake's job takes by --job-option; a test holds this against the contract. Other names are the service's to refuse.
JOB_OPTIONS: Final = (
    "driver_memory", "history_retention", "interval_s", "maintenance_interval", "master", "max_bytes_per_batch",
    "metrics_port", "on_schema_change", "retention",
)  # fmt: skip
#: Those that are numbers in the contract: all else is text, also where it looks like one.
NUMBERS: Final = frozenset({"interval_s", "max_bytes_per_batch", "metrics_port"})
#: Fields of the lake that have options of their own.
_OWN_OPTION: Final = {
    "path": "--path",
    "format": "--format",
    "kind": "--path",
    "partition_history": "--partition-history",
    "partition_by": "--partition-by",
    "cluster_by": "--cluster-by",
    "iceberg_catalog": "--iceberg-catalog",
    "iceberg_prefix": "--iceberg-prefix",
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
PartitionHistory = Annotated[
    HistoryUnit | None,
    typer.Option(
        help="Delta: partition histories by day, month or year of their commits; or none.",
    ),
]
PartitionBy = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TABLE=COLUMN,…",
        help="Delta: what a current table is partitioned by: columns, or day(column), month(column), year(column) of "
        "times; may be repeated.",
    ),
]
ClusterBy = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TABLE=COLUMN,…",
        help="Delta: columns by which maintenance brings a current table's rows together; may be repeated.",
    ),
]
IcebergCatalog = Annotated[
    str | None,
    typer.Option(
        help="Iceberg: the catalog for the tables, as PyIceberg's configuration on the service's machine names it.",
    ),
]
IcebergPrefix = Annotated[
    str | None,
    typer.Option(help="Iceberg: before each namespace, in a catalog that has other tables, too."),
]

_LIST_COLUMNS: Final = (
    "name", "state", "lag_bytes", "lag_seconds", "rows", "restarts", "source", "database", "slot", "confirmed_flush_lsn",
)  # fmt: skip
_LIST_RANKED: Final = (
    "name", "state", "lag_bytes", "lag_seconds", "rows", "restarts", "database", "source", "slot", "confirmed_flush_lsn",
)  # fmt: skip
_TABLE_COLUMNS: Final = ("table", "state", "changes", "bytes_copied", "bytes_total")


@app.command()
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
        str,
        typer.Option(
            "--path",
            "--lake",
            help="The lake: a directory of the service's machine, or s3://bucket/prefix.",
        ),
    ],
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
    partition_history: PartitionHistory = None,
    partition_by: PartitionBy = None,
    cluster_by: ClusterBy = None,
    iceberg_catalog: IcebergCatalog = None,
    iceberg_prefix: IcebergPrefix = None,
    job_option: JobOptions = None,
    option: PluginOptions = None,
    no_copy_data: Annotated[
        bool, typer.Option("--no-copy-data", help="Leave out what is in the tables already.")
    ] = False,
    disabled: Annotated[bool, typer.Option("--disabled", help="Don't start it yet.")] = False,
    origin: Annotated[
        Origin, typer.Option(help="none: only changes without a replication origin.")
    ] = Origin.ANY,
    as_json: AsJson = False,
) -> None:
    """Create a subscription that keeps a lake in step with a database (CREATE SUBSCRIPTION)."""
    body: dict[str, object] = {
        "name": name,
        "source": source,
        "database": database,
        "target": {
            "kind": "lake",
            "format": table_format.value,
            "path": path,
            **_given(
                partition_history=partition_history and partition_history.value,
                partition_by=_by_table("--partition-by", partition_by),
                cluster_by=_by_table("--cluster-by", cluster_by),
                iceberg_catalog=iceberg_catalog,
                iceberg_prefix=iceberg_prefix,
            ),
            **_job_options(job_option),
        },
        "enabled": not disabled,
        "copy_data": not no_copy_data,
        "origin": origin.value,
        "options": parse_option_list(option),
    }
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
    partition_by: PartitionBy = None,
    cluster_by: ClusterBy = None,
    job_option: JobOptions = None,
    option: PluginOptions = None,
    as_json: AsJson = False,
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
    by_table = _given(
        partition_by=_by_table("--partition-by", partition_by),
        cluster_by=_by_table("--cluster-by", cluster_by),
    )
    options = _given(path=path) | _job_options(job_option)
    if by_table or options:
        target = dict(_call("GET", "subscriptions", name)["target"])
        # Tables that are not named stay as they are.
        by_table = {field: target.get(field, {}) | tables for field, tables in by_table.items()}
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
    """Give up what commits before an LSN and is not in the lake yet."""
    _show(_call("POST", "subscriptions", name, "skip", body={"lsn": lsn}), as_json=as_json)


@app.command()
def drop(
    name: Name,
    keep_slot: Annotated[
        bool, typer.Option("--keep-slot", help="Leave its slot, which goes on keeping changes.")
    ] = False,
) -> None:
    """Drop a subscription and its slot; the lake stays (DROP SUBSCRIPTION)."""
    query = {"keep_slot": "true"} if keep_slot else None
    _call("DELETE", "subscriptions", name, query=query)


@app.command()
def log(
    name: Name,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many.")] = 100,
) -> None:
    """Show the end of what its programs printed."""
    for line in _call("GET", "subscriptions", name, "log", query={"lines": lines})["lines"]:
        typer.echo(line)


def _job_options(given: list[str] | None) -> dict[str, object]:
    """Read NAME=VALUE; an option that is a number becomes one, all else is text."""
    options: dict[str, object] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidRequest(
                f"--job-option {text!r} is not NAME=VALUE",
                hint=f"Write --job-option retention=30d, for one; there are {', '.join(JOB_OPTIONS)}.",
            )
        if name in _OWN_OPTION:
            raise InvalidRequest(
                f"{name} is the lake's, and no option of its job",
                hint=f"Give it by {_OWN_OPTION[name]}.",
            )
        if name in options:
            raise InvalidRequest(f"--job-option {name} is given twice", hint="Give it once.")
        options[name] = _number(name, value) if name in NUMBERS else value
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


def _by_table(option: str, given: list[str] | None) -> dict[str, list[str]] | None:
    """Read TABLE=COLUMN,…; nothing behind = is none."""
    if not given:
        return None
    found: dict[str, list[str]] = {}
    for text in given:
        table, equals, columns = (part.strip() for part in text.partition("="))
        if not equals or table in found:
            raise InvalidRequest(
                f"{option} {text!r} does not say of which table, or of one that was named before",
                hint=f"{option} 'schema.table=column,column'; once for each table; nothing behind = for none.",
            )
        found[table] = [name.strip() for name in columns.split(",") if name.strip()]
    return found


def _given(**options: object) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


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


def _show(answer: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    record = _readable(answer)
    if answer["error"] is not None:
        record["hint"] = for_commands(answer["error"]["hint"])
    tables = record.pop("table_states")
    print_record(record)
    if tables:
        typer.echo()
        print_table(tables, _TABLE_COLUMNS, ranked=_TABLE_COLUMNS, sentences=("reason",))
