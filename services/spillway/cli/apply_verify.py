"""``spillway subscription verify`` and ``repair``: a subscription of kind ``postgres`` against its
source.

The service knows slot, tables and names; both databases are read by the command itself, whose user
brings the connection strings. They come in the environment, since all users of a machine see
command lines.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from spillway.cli import completion, connection, lake_verify
from spillway.cli.connection import call
from spillway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from spillway.apply.options import Rename
    from spillway.apply.selection import Selection
    from spillway.apply.verify.outcomes import TableOutcome
    from spillway.apply.verify.settings import VerifySettings

SOURCE_VARIABLE: Final = "SPILLWAY_APPLY_SOURCE_DSN"
TARGET_VARIABLE: Final = "SPILLWAY_APPLY_TARGET_DSN"

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
Timeout = Annotated[
    float, typer.Option(help="Seconds that the subscription may take to reach a snapshot.")
]
Grpc = Annotated[
    str | None, typer.Option(help="host:port of the service's gRPC; SPILLWAY_GRPC otherwise.")
]


def verify(
    subscription: Name,
    table: Tables = None,
    limit: Annotated[int, typer.Option(help="Differing keys to name, per table.")] = 20,
    timeout: Timeout = 600.0,
    grpc: Grpc = None,
) -> None:
    """Compare the target's tables with the source's by keyed checksums, as of one LSN, while the
    subscription runs; exit code 1 if any differs, or could not be compared.

    A lake is compared by the service, which keeps what came out; an interrupt here does not end it,
    and its log names the keys that differ.
    """
    view = call("GET", "subscriptions", subscription)
    if view["target"]["kind"] == "lake":
        lake_verify.verify(subscription, table or [], timeout)
        return
    _run(subscription, table, limit, timeout, grpc, repair=False)


def repair(
    subscription: Name,
    table: Tables = None,
    limit: Annotated[int, typer.Option(help="Keys to mend, per table.")] = 10_000,
    timeout: Timeout = 600.0,
    grpc: Grpc = None,
) -> None:
    """Bring the target's rows that differ in order by key, while the subscription runs; exit code 1
    if something differs still.
    """
    _run(subscription, table, limit, timeout, grpc, repair=True)


def _run(
    subscription: str,
    tables: list[str] | None,
    limit: int,
    timeout: float,
    grpc: str | None,
    *,
    repair: bool,
) -> None:
    from spillway.apply.verify.run import verify as run  # noqa: PLC0415 - imports Arrow

    settings = _settings(subscription, tables, limit, timeout, grpc)
    on_table: Callable[[TableOutcome], None] = lambda outcome: typer.echo(str(outcome))  # noqa: E731
    outcome = run(
        settings,
        repair=repair,
        tell=lambda news: typer.echo(news, err=True),
        on_table=on_table,
    )
    rows = sum(table.target_rows for table in outcome.tables)
    wrong = sum(not table.equal for table in outcome.tables)
    said = f"{wrong} of them differ, or could not be compared" if wrong else "no difference"
    typer.echo(f"{len(outcome.tables)} tables, {rows} rows, as of {outcome.lsn}: {said}")
    if wrong:
        raise typer.Exit(1)


def _settings(
    subscription: str, tables: list[str] | None, limit: int, timeout: float, grpc: str | None
) -> VerifySettings:
    from spillway.apply.verify.settings import VerifySettings  # noqa: PLC0415 - as above

    subscribed = look_up(subscription)
    settings = connection.settings()
    return VerifySettings(
        slot=subscribed.view["slot"],
        source_dsn=dsn_of(SOURCE_VARIABLE),
        target_dsn=dsn_of(TARGET_VARIABLE),
        subscription=subscription,
        tables=tuple(tables or ()),
        selection=subscribed.selection,
        rename=subscribed.rename,
        limit=limit,
        timeout_s=timeout,
        grpc=grpc or settings.grpc,
        token=settings.token or "",
    )


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A subscription that fills a PostgreSQL."""

    #: as REST shows it
    view: dict[str, Any]
    selection: Selection
    rename: Rename


def look_up(subscription: str) -> Subscribed:
    """Ask the service for a subscription.

    Raises:
        InvalidRequest: it fills something else.
    """
    from spillway.apply.options import Rename  # noqa: PLC0415 - as above
    from spillway.apply.selection import Selection  # noqa: PLC0415

    view: dict[str, Any] = call("GET", "subscriptions", subscription)
    if view["target"]["kind"] != "postgres":
        raise InvalidRequest(
            f'subscription "{subscription}" fills a {view["target"]["kind"]}',
            hint="A lake is compared by `spillway lake verify`.",
        )
    publications, wanted = view.get("publications"), view.get("tables")
    return Subscribed(
        view,
        Selection(
            tuple(publications) if publications else None,
            frozenset(wanted) if wanted else None,
        ),
        Rename(dict(view["target"].get("rename") or {})),
    )


def dsn_of(variable: str) -> str:
    """Return the connection string that the environment has.

    Raises:
        InvalidRequest: it has none.
    """
    dsn = os.environ.get(variable, "")
    if not dsn:
        raise InvalidRequest(
            f"{variable} is not set",
            hint="Set it to a connection string: the command reads the database itself.",
        )
    return dsn
