"""``spillway apply``: the commands; :mod:`spillway.cli` mounts :data:`app`.

The subscriber starts them. What is secret comes in the environment: the target with its DSN
(``SPILLWAY_APPLY_OPTIONS``, JSON) and the source's DSN (``SPILLWAY_APPLY_SOURCE_DSN``).
"""

from __future__ import annotations

import inspect
import logging
import os
import signal
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Final, ParamSpec

import typer

from spillway.apply.check import check_target
from spillway.apply.options import ApplyOptions
from spillway.apply.selection import Selection
from spillway.apply.settings import ApplySettings, target_plan
from spillway.apply.status import ApplyStatusFile
from spillway.apply.target.forget import forget_sql, forget_subscription
from spillway.apply.target.stop import stops_by_signals
from spillway.apply.worker import ApplyWorker
from spillway.caller import OWN_SOCKET_VARIABLE
from spillway.collector import collector
from spillway.consumer.connect import DEFAULT_ADDRESS
from spillway.errors import InvalidRequest
from spillway.memory import set_up_malloc
from spillway.pg.lsn import Lsn
from spillway.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")

app = typer.Typer(
    name="apply",
    help="Apply a slot's changes to tables of another PostgreSQL: what subscriptions run.",
    no_args_is_help=True,
    # The program's own completion reaches in here.
    add_completion=False,
)

OPTIONS_VARIABLE: Final = "SPILLWAY_APPLY_OPTIONS"
SOURCE_VARIABLE: Final = "SPILLWAY_APPLY_SOURCE_DSN"
CONFLICTS_FILE: Final = "conflicts.jsonl"
#: what stands before each line of ``forget`` that whoever drops the subscription is to read
LEFT: Final = "left: "

Subscription = Annotated[str, typer.Option(help="The subscription's name.")]
Identity = Annotated[
    str, typer.Option(help="What tells it from any other that had its name: hexadecimal.")
]
Slot = Annotated[str, typer.Option(help="The slot; its plugin must be pgoutput.")]
Grpc = Annotated[str, typer.Option(envvar="SPILLWAY_GRPC", help="host:port of the service.")]
Publications = Annotated[
    list[str] | None,
    typer.Option("--publication", help="What this one publishes; may be repeated."),
]
Tables = Annotated[
    list[str] | None,
    typer.Option("--table", help="Only this one: schema.table; may be repeated; all unless named."),
]
TwoPhase = Annotated[
    bool, typer.Option("--two-phase", help="Prepare transactions when the source does.")
]
Streaming = Annotated[
    bool, typer.Option("--streaming", help="Apply large transactions while they are in progress.")
]
OnlyLocal = Annotated[
    bool,
    typer.Option("--only-local", help="Leave out what came to the source through an origin."),
]
SkipTo = Annotated[
    str | None,
    typer.Option(metavar="LSN", help="Up to here the slot may be past what the target has."),
]
NoCopyData = Annotated[
    bool, typer.Option("--no-copy-data", help="Leave out what is in the tables already.")
]
HasBegun = Annotated[bool, typer.Option("--has-begun", help="It has followed its slot before.")]
Refresh = Annotated[
    bool, typer.Option("--refresh", help="Forget tables that are not published any more.")
]

Forget = Annotated[
    list[str] | None,
    typer.Option(
        "--forget", help="With --refresh: copy this one anew, schema.table; may be repeated."
    ),
]


def _settings(
    subscription: Subscription,
    identity: Identity,
    slot: Slot,
    grpc: Grpc = DEFAULT_ADDRESS,
    publication: Publications = None,
    table: Tables = None,
    *,
    two_phase: TwoPhase = False,
    streaming: Streaming = False,
    only_local: OnlyLocal = False,
    skip_to: SkipTo = None,
    no_copy_data: NoCopyData = False,
    has_begun: HasBegun = False,
    refresh: Refresh = False,
    forget: Forget = None,
) -> ApplySettings:
    given = os.environ.get(OPTIONS_VARIABLE, "")
    if not given:
        raise InvalidRequest(
            f"{OPTIONS_VARIABLE} is not set",
            hint='Set it to the target as JSON: {"dsn": "postgresql://…"}. It is not an option: a '
            "DSN has a password, and all users of a machine see command lines.",
        )
    environment = Settings.from_environment()
    return ApplySettings(
        subscription=subscription,
        identity=identity,
        slot=slot,
        grpc=grpc,
        options=ApplyOptions.parse(given),
        selection=Selection(
            tuple(publication) if publication else None, frozenset(table) if table else None
        ),
        token=environment.token,
        tls=environment.client_tls,
        own_socket=os.environ.get(OWN_SOCKET_VARIABLE, ""),
        client_timeout_s=environment.client_timeout,
        two_phase=two_phase,
        streaming=streaming,
        only_local=only_local,
        copy_data=not no_copy_data,
        has_begun=has_begun,
        refreshes=refresh,
        forgets=frozenset(forget or ()),
        skip_to=Lsn.parse(skip_to) if skip_to else Lsn(0),
        source_dsn=os.environ.get(SOURCE_VARIABLE, ""),
    )


def _takes_settings(command: Callable[P, None]) -> Callable[P, None]:
    """Give a command that has ``**given`` the options of :func:`_settings`, as if they stood in its
    signature; what it names itself is its own.
    """
    own = inspect.signature(command, eval_str=True)
    parameters = dict(inspect.signature(_settings, eval_str=True).parameters)
    parameters |= own.parameters
    command.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for one in parameters.values()
            if one.kind is not inspect.Parameter.VAR_KEYWORD
        ]
    )
    return command


@app.command()
@_takes_settings
def run(
    status_file: Annotated[
        Path | None,
        typer.Option(help="Tell of the program in this file, as JSON, replaced as a whole."),
    ] = None,
    **given: Any,
) -> None:
    """Apply until SIGTERM."""
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    set_up_malloc()
    stopping = stops_by_signals((signal.SIGTERM, signal.SIGINT))
    with ExitStack() as held:
        status = held.enter_context(ApplyStatusFile(status_file))
        settings = _settings(**given)
        if status_file is not None:
            settings = replace(settings, conflicts_file=status_file.with_name(CONFLICTS_FILE))
        # What is imported stays: it is not looked through between two transactions.
        collector.begin()
        ApplyWorker(settings, status, stopping).run()


@app.command()
@_takes_settings
def check(**given: Any) -> None:
    """Look whether the target can be filled, and say everything that is missing; nothing is made
    there.
    """
    for line in check_target(_settings(**given)):
        typer.echo(line)


@app.command()
@_takes_settings
def forget(
    slot: Slot = "",
    show: Annotated[
        bool, typer.Option("--show", help="Print a statement that does it, and ask nobody.")
    ] = False,
    **given: Any,
) -> None:
    """Remove what the subscription keeps on the target: its position, its origin, the states of its
    tables. Rows of tables stay.
    """
    plan = target_plan(_settings(slot=slot, **given))
    if show:
        typer.echo(forget_sql(plan))
    else:
        for line in forget_subscription(plan):
            typer.echo(f"{LEFT}{line}")
