"""The command line as a whole, and how it ends.

Exit codes: 0 done, 1 an error (message, hint and code on stderr), 2 wrong usage, 130 interrupted.
Errors of ours pass through typer, which shows its own; a traceback means a bug.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated, Final

import typer

import spillway
from spillway.cli import certify, decode, recv, slot, source, subscription
from spillway.errors import SpillwayError
from spillway.settings import Settings

app = typer.Typer(
    name="spillway",
    help="PostgreSQL logical decoding outside the server: replication slots as a service.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(slot.app, name="slot")
app.add_typer(source.app, name="source")
app.add_typer(subscription.app, name="subscription")
app.command("recv")(recv.recv)
app.command("decode")(decode.decode)
app.command("certify")(certify.certify)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"spillway {spillway.__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Say which.")
    ] = False,
) -> None:
    """PostgreSQL logical decoding outside the server: replication slots as a service."""


@app.command()
def serve(
    data_dir: Annotated[
        Path | None, typer.Option(help="Where WAL and transactions are kept.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Listen here; any address but loopback needs SPILLWAY_TOKEN.")
    ] = None,
    http_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="REST's port; 0 for a free one.")
    ] = None,
    grpc_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="gRPC's port; 0 for a free one.")
    ] = None,
    metadata_url: Annotated[
        str | None,
        typer.Option(help="sqlite:///FILE or postgresql://…; SQLite in the data directory."),
    ] = None,
) -> None:
    """Run the service: receivers, decoders, REST and gRPC in one process, until SIGTERM.

    What is not given is taken from the environment (SPILLWAY_DATA_DIR, SPILLWAY_HOST, …).
    """
    from spillway.engine.settings import EngineSettings  # noqa: PLC0415 - heavy
    from spillway.memory import limit_arenas  # noqa: PLC0415 - heavy
    from spillway.serve import ServeSettings  # noqa: PLC0415 - heavy
    from spillway.serve import serve as run  # noqa: PLC0415 - heavy

    # The process is the service's own.
    limit_arenas()
    settings = Settings.from_environment()
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    # It announces itself at every start, whether or not there is anything to migrate.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    engine = dataclasses.replace(
        EngineSettings(),
        logical_decoding_work_mem=settings.logical_decoding_work_mem,
        stream_bytes=settings.stream_bytes,
        max_slot_retained_bytes=settings.max_slot_retained_bytes,
        log_keep_bytes=settings.log_keep_bytes,
        audit=settings.audit,
        wal_store_max_bytes=settings.wal_store_max_bytes,
        wal_archives=settings.wal_archives,
    )
    raise typer.Exit(
        run(
            ServeSettings(
                data_dir=data_dir or settings.data_dir,
                host=host or settings.host,
                http_port=settings.http_port if http_port is None else http_port,
                grpc_port=settings.grpc_port if grpc_port is None else grpc_port,
                token=settings.token,
                auth_off=settings.auth_off,
                client_timeout_s=settings.client_timeout,
                metadata_url=metadata_url or settings.metadata_url,
                engine=engine,
            )
        )
    )


# The commands of other programs: all their arguments, --help too, are theirs to read.
_PASS_ON: Final = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}


@app.command(context_settings=_PASS_ON, help="Materialise a slot into lake tables, with Spark.")
def lake(context: typer.Context) -> None:
    """Run ``spillway.lake.command``, which imports Spark."""
    from spillway.lake.command import app as lake_app  # noqa: PLC0415 - heavy

    code = lake_app(args=context.args, prog_name="spillway lake", standalone_mode=False)
    raise typer.Exit(code if isinstance(code, int) else 0)


@app.command()
def demo(
    directory: Annotated[
        Path | None, typer.Option(help="Keep its files here; deleted at the end otherwise.")
    ] = None,
    bulk_rows: Annotated[int, typer.Option(min=1, help="Rows of the large transaction.")] = 200_000,
    table_format: Annotated[
        str | None,
        typer.Option("--format", help="delta, iceberg or parquet; delta where its jars are."),
    ] = None,
) -> None:
    """Show everything on a private PostgreSQL: workload, slots, stream, lake; every row compared."""
    from spillway.demo.run import run_demo  # noqa: PLC0415 - heavy

    raise typer.Exit(run_demo(directory, bulk_rows=bulk_rows, table_format=table_format))


def main(arguments: list[str] | None = None) -> int:
    """Run a command line and return the exit code."""
    try:
        app(args=arguments, prog_name="spillway")
    except SpillwayError as error:
        _report(error)
        return 1
    except SystemExit as ended:
        # Usage errors, --help and typer.Exit end so; typer has said what there is to say.
        return ended.code if isinstance(ended.code, int) else 0
    return 0


def _report(error: SpillwayError) -> None:
    typer.echo(f"spillway: error: {error.message}", err=True)
    if error.hint:
        typer.echo(f"hint: {error.hint}", err=True)
    typer.echo(f"code: {error.code}", err=True)
