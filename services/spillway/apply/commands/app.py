"""``spillway apply``: the commands; :mod:`spillway.cli` mounts :data:`app`.

The subscriber starts them. What is secret comes in the environment: the target with its DSN
(``SPILLWAY_APPLY_OPTIONS``, JSON) and the source's DSN (``SPILLWAY_APPLY_SOURCE_DSN``).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Final

import typer

from spillway.apply.check import check_target
from spillway.apply.options import ApplyOptions
from spillway.apply.selection import Selection
from spillway.apply.status import ApplyStatusFile
from spillway.apply.target.forget import forget_subscription
from spillway.apply.worker import ApplySettings, ApplyWorker, target_plan
from spillway.consumer.connect import DEFAULT_ADDRESS
from spillway.errors import InvalidRequest
from spillway.pg.lsn import Lsn
from spillway.settings import Settings

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


def _settings(
    subscription: str,
    identity: str,
    slot: str,
    grpc: str,
    publication: list[str] | None,
    table: list[str] | None,
    *,
    two_phase: bool,
    streaming: bool,
    only_local: bool,
    skip_to: str | None,
    no_copy_data: bool,
    status_file: Path | None = None,
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
        two_phase=two_phase,
        streaming=streaming,
        only_local=only_local,
        copy_data=not no_copy_data,
        skip_to=Lsn.parse(skip_to) if skip_to else Lsn(0),
        source_dsn=os.environ.get(SOURCE_VARIABLE, ""),
        conflicts_file=None if status_file is None else status_file.with_name(CONFLICTS_FILE),
    )


@app.command()
def run(
    subscription: Subscription,
    identity: Identity,
    slot: Slot,
    grpc: Grpc = DEFAULT_ADDRESS,
    publication: Publications = None,
    table: Tables = None,
    two_phase: TwoPhase = False,
    streaming: Streaming = False,
    only_local: OnlyLocal = False,
    skip_to: SkipTo = None,
    no_copy_data: NoCopyData = False,
    status_file: Annotated[
        Path | None,
        typer.Option(help="Tell of the program in this file, as JSON, replaced as a whole."),
    ] = None,
) -> None:
    """Apply until SIGTERM."""
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with ExitStack() as held:
        status = held.enter_context(ApplyStatusFile(status_file or Path(os.devnull)))
        settings = _settings(
            subscription,
            identity,
            slot,
            grpc,
            publication,
            table,
            two_phase=two_phase,
            streaming=streaming,
            only_local=only_local,
            skip_to=skip_to,
            no_copy_data=no_copy_data,
            status_file=status_file,
        )
        ApplyWorker(settings, status, stopping).run()


@app.command()
def check(
    subscription: Subscription,
    identity: Identity,
    slot: Slot,
    grpc: Grpc = DEFAULT_ADDRESS,
    publication: Publications = None,
    table: Tables = None,
    two_phase: TwoPhase = False,
    streaming: Streaming = False,
    only_local: OnlyLocal = False,
    skip_to: SkipTo = None,
    no_copy_data: NoCopyData = False,
) -> None:
    """Look whether the target can be filled, and say everything that is missing; nothing is made
    there.
    """
    settings = _settings(
        subscription,
        identity,
        slot,
        grpc,
        publication,
        table,
        two_phase=two_phase,
        streaming=streaming,
        only_local=only_local,
        skip_to=skip_to,
        no_copy_data=no_copy_data,
    )
    for line in check_target(settings):
        typer.echo(line)


@app.command()
def forget(
    subscription: Subscription,
    identity: Identity,
    slot: Slot = "",
    grpc: Grpc = DEFAULT_ADDRESS,
    publication: Publications = None,
    table: Tables = None,
    two_phase: TwoPhase = False,
    streaming: Streaming = False,
    only_local: OnlyLocal = False,
    skip_to: SkipTo = None,
    no_copy_data: NoCopyData = False,
) -> None:
    """Remove what the subscription keeps on the target: its position, its origin, the states of its
    tables. Rows of tables stay.
    """
    settings = _settings(
        subscription,
        identity,
        slot,
        grpc,
        publication,
        table,
        two_phase=two_phase,
        streaming=streaming,
        only_local=only_local,
        skip_to=skip_to,
        no_copy_data=no_copy_data,
    )
    forget_subscription(target_plan(settings))
