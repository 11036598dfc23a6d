"""The command line as a whole, and how it ends.

Exit codes: 0 done, 1 an error (message, hint and code on stderr), 2 wrong usage, 130 interrupted.
What is wrong with a command line is said as all errors are, in words of ours: typer's tell what its
parser missed, in boxes. A traceback means a bug.

Hints of the service speak of REST's calls; here they get the words of the commands
(``spillway.wording``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import sys
from functools import cache
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.exceptions import TyperException

import spillway
from spillway.cli import (
    alert,
    certify,
    changes,
    completion,
    connection,
    context,
    ddl,
    decode,
    event,
    recv,
    slot,
    source,
    status,
    subscription,
    tables,
    user,
)
from spillway.cli.help_texts import made_plain
from spillway.collector import collector
from spillway.errors import SpillwayError
from spillway.settings import Settings
from spillway.wording import for_commands

if TYPE_CHECKING:
    from spillway.service.settings import EngineSettings

#: gRPC's handlers of forks, which its library has on unless this says 0. What they do in a forked
#: child while other threads are in gRPC kills one in six before it has become the program that it
#: was forked for. We start programs without a fork; Spark forks to start its JVM, when a job's
#: client is connected.
_GRPC_FORK_HANDLERS: Final = "GRPC_ENABLE_FORK_SUPPORT"
#: Set by the shell when it asks for completions.
_COMPLETE: Final = "_SPILLWAY_COMPLETE"

app = typer.Typer(
    name="spillway",
    help="PostgreSQL logical decoding outside the server: replication slots as a service.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="`spillway demo` shows everything; `spillway serve`, `source add`, `slot create` and "
    "`slot peek` are the first steps on a database of your own, and `status` says whether all is "
    "well. SPILLWAY_URL says where the service is, unless it is http://127.0.0.1:8080; `context` "
    "gives services names.",
    rich_markup_mode=None,
)
app.command("status")(status.status)
app.add_typer(slot.app, name="slot")
app.add_typer(source.app, name="source")
app.add_typer(subscription.app, name="subscription")
app.add_typer(user.app, name="user")
app.add_typer(alert.app, name="alert")
app.add_typer(event.app, name="event")
app.add_typer(context.app, name="context")
app.command("recv")(recv.recv)
app.command("changes")(changes.changes)
app.command("ddl")(ddl.ddl)
app.command("decode")(decode.decode)
app.command("certify")(certify.certify)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"spillway {spillway.__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[  # noqa: ARG001 - its callback does it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Say which.")
    ] = False,
    context_name: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="CONTEXT",
            help="The service to talk to, by the name that `spillway context` gave it.",
            autocompletion=completion.contexts,
        ),
    ] = None,
) -> None:
    """PostgreSQL logical decoding outside the server: replication slots as a service."""
    connection.use(context_name)


def engine_settings(settings: Settings) -> EngineSettings:
    """Return what the environment sets about the engine, and otherwise its own defaults."""
    from spillway.service import settings as service  # noqa: PLC0415 - heavy

    return dataclasses.replace(
        service.EngineSettings(),
        logical_decoding_work_mem=settings.logical_decoding_work_mem,
        stream_bytes=settings.stream_bytes,
        max_slot_retained_bytes=settings.max_slot_retained_bytes,
        log_keep_bytes=settings.log_keep_bytes,
        audit=settings.audit,
        wal_store_max_bytes=settings.wal_store_max_bytes,
        wal_archives=settings.wal_archives,
        snapshot_hold_s=settings.snapshot_hold,
        dsn_files=settings.dsn_files,
    )


@app.command()
def serve(
    context: typer.Context,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where WAL and transactions are kept.")
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="Listen here; any address but loopback needs SPILLWAY_TOKEN and SPILLWAY_TLS_CERT."
        ),
    ] = None,
    http_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="REST's port; 0 for a free one.")
    ] = None,
    grpc_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="gRPC's port; 0 for a free one.")
    ] = None,
    pg_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="PostgreSQL's replication protocol's port; 0 for a free one."
        ),
    ] = None,
    metadata_url: Annotated[
        str | None,
        typer.Option(help="sqlite:///FILE or postgresql://…; SQLite in the data directory."),
    ] = None,
) -> None:
    """Run the service: receivers, decoders, REST and gRPC in one process, until SIGTERM.

    What is not given is taken from the environment (SPILLWAY_DATA_DIR, SPILLWAY_HOST, …).
    """
    # Until it listens: begin() is then serve's.
    collector.start()
    context.call_on_close(collector.end)
    from spillway.memory import set_up_malloc  # noqa: PLC0415 - heavy
    from spillway.serve import ServeSettings, tls_files  # noqa: PLC0415 - heavy
    from spillway.serve import serve as run  # noqa: PLC0415 - heavy

    # The process is the service's own.
    set_up_malloc()
    # What it keeps is all that its sources hold, and their passwords. A lake is for others, too:
    # its programs get back what this one was started with.
    umask = os.umask(0o077)
    settings = Settings.from_environment()
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    # It announces itself at every start, whether or not there is anything to migrate.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    raise typer.Exit(
        run(
            ServeSettings(
                data_dir=data_dir or settings.data_dir,
                host=host or settings.host,
                http_port=settings.http_port if http_port is None else http_port,
                grpc_port=settings.grpc_port if grpc_port is None else grpc_port,
                pg_port=settings.pg_port if pg_port is None else pg_port,
                token=settings.token,
                auth_off=settings.auth_off,
                tls=tls_files(settings.tls_cert, settings.tls_key, settings.tls_client_ca),
                tls_off=settings.tls_off,
                umask=umask,
                client_timeout_s=settings.client_timeout,
                connections_per_address=settings.connections_per_address,
                sql_connections=settings.sql_connections,
                metadata_url=metadata_url or settings.metadata_url,
                engine=engine_settings(settings),
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
    """Run ``spillway.lake.commands.app``, which imports Spark."""
    if connection.is_asked():
        # Its programs read the environment, and Spark's processes that of theirs. A context that is
        # merely in use is no matter of theirs: a service may have started them.
        os.environ.update(connection.environment())
    from spillway.lake.commands.app import app as lake_app  # noqa: PLC0415 - heavy

    code = built(lake_app)(args=context.args, prog_name="spillway lake", standalone_mode=False)
    raise typer.Exit(code if isinstance(code, int) else 0)


@app.command(
    "apply",
    context_settings=_PASS_ON,
    help="Apply a slot's changes to tables of another PostgreSQL: what subscriptions run.",
)
def apply_changes(context: typer.Context) -> None:
    """Run ``spillway.apply.commands.app``."""
    from spillway.apply.commands.app import app as apply_app  # noqa: PLC0415 - heavy

    code = built(apply_app)(args=context.args, prog_name="spillway apply", standalone_mode=False)
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
    keep: Annotated[
        bool | None,
        typer.Option(
            "--keep/--no-keep",
            help="Stay up at the end, with the UI, until Ctrl-C; at a terminal it does.",
        ),
    ] = None,
) -> None:
    """Show everything on a private PostgreSQL: workload, slots, stream, lake; every row
    compared.
    """
    from spillway.demo.run import run_demo  # noqa: PLC0415 - heavy

    raise typer.Exit(run_demo(directory, bulk_rows=bulk_rows, table_format=table_format, keep=keep))


@cache
def built(commands: typer.Typer) -> Any:
    """Return the parser of *commands*, made once: it reads the annotations of each of them, which
    takes longer than most commands do.
    """
    return made_plain(typer.main.get_command(commands))


def main(arguments: list[str] | None = None) -> int:
    """Run a command line and return the exit code."""
    # gRPC reads it when a command first needs it.
    os.environ.setdefault(_GRPC_FORK_HANDLERS, "0")
    if _COMPLETE in os.environ:
        _complete_lake()
    try:
        code = built(app)(args=arguments, prog_name="spillway", standalone_mode=False)
    except SpillwayError as error:
        _report(error)
        return 1
    except TyperException as error:
        return _report_usage(error)
    except typer.Abort:
        return 130
    except SystemExit as ended:
        # Completion ends so, and a pipe that nobody reads any more.
        return ended.code if isinstance(ended.code, int) else 0
    finally:
        # It was said of this command line alone.
        connection.use(None)
    return code if isinstance(code, int) else 0


def _complete_lake() -> None:
    """Put the lake's own commands in the place of the one that hands on to them, if the shell asks
    about them.
    """
    asked = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    if "lake" not in asked.split()[1:2]:
        return
    # What can't be loaded completes nothing; the command itself says why.
    with contextlib.suppress(ImportError):
        from spillway.lake.commands.app import app as lake_app  # noqa: PLC0415 - heavy

        app.registered_commands = [c for c in app.registered_commands if c.callback is not lake]
        app.add_typer(lake_app, name="lake")


def _report(error: SpillwayError) -> None:
    said = [f"spillway: error: {error.message}"]
    if error.hint:
        said.append(f"hint: {for_commands(error.hint)}")
    _say([*said, f"code: {error.code}"])


def _report_usage(error: TyperException) -> int:
    """Say what is wrong with a command line; return the exit code."""
    from spillway.cli import usage  # noqa: PLC0415 - only when something is wrong

    message, hint = usage.in_words(error)
    if hint is None:
        typer.echo(message, err=True)
    else:
        _say([f"spillway: error: {message}", f"hint: {hint}"])
    return error.exit_code


def _say(lines: list[str]) -> None:
    """Print sentences on standard error; at a terminal they break between words."""
    if sys.stderr.isatty():
        pieces = [piece for line in lines for piece in line.splitlines()]
        lines = tables.text_lines(pieces, tables.width())
    for line in lines:
        typer.echo(line, err=True)
