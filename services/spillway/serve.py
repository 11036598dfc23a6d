"""``spillway serve``: everything in one process.

One event loop carries the engine, REST (uvicorn) and gRPC; receivers and decoders are threads of
the engine. Start: lock the data directory, bring the engine up, then listen, so that whoever can
connect is answered. What listens is imported only then, on a thread beside the engine's: it takes
longer than all the rest, and decoding neither waits for it nor, when little was stored, has to
share the interpreter with it. Programs of subscriptions are started last and ended first, for they
are clients. SIGTERM or SIGINT: stop listening, end streams, checkpoint, close; a second one ends at
once, which loses nothing either.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spillway import __version__
from spillway.collector import collector
from spillway.errors import InvalidRequest
from spillway.loop_turn import LendingLoop
from spillway.loopback import is_loopback
from spillway.open_files import connection_limits, raise_limit
from spillway.service.engine import Engine
from spillway.service.settings import EngineSettings
from spillway.sessions.layout import DataDirectory
from spillway.store.metadata import MetadataStore
from spillway.subscriber.subscriptions import Subscriptions
from spillway.tls import ServerCertificate, TlsFiles
from spillway.users.registry import Users
from spillway.watch.actions import History

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from types import ModuleType

    from spillway.interfaces import Ports

log = logging.getLogger(__name__)

#: What decoding gets of the interpreter before the interfaces' import begins: usually all is
#: decoded before that.
_HEAD_START_S: Final = 0.3


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Where to listen and what to keep."""

    data_dir: Path
    host: str = "127.0.0.1"
    #: 0 takes a free port
    http_port: int = 8080
    grpc_port: int = 50051
    #: of PostgreSQL's own protocol; None: it is not served
    pg_port: int | None = None
    #: bearer token for REST and gRPC; None only on loopback
    token: str | None = None
    #: SPILLWAY_AUTH=off: no token is asked for although one is set; loopback only
    auth_off: bool = False
    #: the certificate that REST and gRPC begin with; None: no TLS
    tls: TlsFiles | None = None
    #: SPILLWAY_TLS=off: listen on any address without, for a proxy in front has one
    tls_off: bool = False
    #: of the service's programs, whose lakes others may read; None: as this process has it
    umask: int | None = None
    #: how long a client over gRPC may leave the service without an answer, in seconds; 0: for ever
    client_timeout_s: float = 60.0
    #: how many connections one address may have to REST, and as many to gRPC; 0: no bound; None: a
    #: quarter of all
    connections_per_address: int | None = None
    #: how many connections to a source clients may have for SQL
    sql_connections: int = 50
    #: None: SQLite in the data directory
    metadata_url: str | None = None
    engine: EngineSettings = field(default_factory=EngineSettings)


def check_settings(settings: ServeSettings) -> None:
    """Refuse to listen where anybody could connect without a token, or read one as it passes by.

    Raises:
        InvalidRequest: with what to set.
    """
    if settings.tls is not None and settings.tls_off:
        raise InvalidRequest(
            "SPILLWAY_TLS=off contradicts SPILLWAY_TLS_CERT", hint="Unset one of them."
        )
    if is_loopback(settings.host):
        return
    if settings.auth_off:
        raise InvalidRequest(
            f"SPILLWAY_AUTH=off is refused on {settings.host}: it is not a loopback address",
            hint="Unset SPILLWAY_AUTH and set SPILLWAY_TOKEN, or listen on 127.0.0.1.",
        )
    if not settings.token:
        raise InvalidRequest(
            f"listening on {settings.host} needs a token: it is not a loopback address",
            hint="Set SPILLWAY_TOKEN to a long random text, or listen on 127.0.0.1.",
        )
    if settings.tls is None and not settings.tls_off:
        raise InvalidRequest(
            f"listening on {settings.host} needs a certificate: without TLS the token and all data "
            "cross the network as clear text",
            hint="Set SPILLWAY_TLS_CERT and SPILLWAY_TLS_KEY; or SPILLWAY_TLS=off where a proxy in "
            "front has the certificate and nobody else can listen in; or listen on 127.0.0.1.",
        )
    if settings.tls is None:
        log.warning(
            "listening on %s without TLS (SPILLWAY_TLS=off): the token and all data are clear text "
            "on their way here",
            settings.host,
        )


def tls_files(
    certificate: Path | None, key: Path | None, client_ca: Path | None
) -> TlsFiles | None:
    """Put the settings of TLS together; None for none.

    Raises:
        InvalidRequest: one is there without the others that it needs.
    """
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise InvalidRequest(
            "TLS needs a certificate and its key",
            hint="Set SPILLWAY_TLS_CERT and SPILLWAY_TLS_KEY, both PEM files.",
        )
    return TlsFiles(certificate, key, client_ca)


def _print(text: str) -> None:
    # At once: behind a pipe it would come when the service has ended.
    print(text, flush=True)  # noqa: T201 - what a program says is printed


def serve(settings: ServeSettings, announce: Callable[[str], None] = _print) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. *announce* is told where it listens.

    Raises:
        InvalidRequest: the settings don't go together.
        Conflict: another process serves the data directory.
        StorageError: a port or the data directory can't be used.
        MetadataError: the metadata store can't be used.
    """
    check_settings(settings)
    with asyncio.Runner(loop_factory=LendingLoop) as runner:
        runner.run(_serve(settings, announce))
    return 0


async def _serve(settings: ServeSettings, announce: Callable[[str], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_once, loop, number, stop)
    async with running(settings) as (http_port, grpc_port, pg_port):
        scheme = "http" if settings.tls is None else "https"
        announce(f"REST and UI  {scheme}://{settings.host}:{http_port}/")
        announce(
            f"gRPC         {'' if settings.tls is None else 'https://'}{settings.host}:{grpc_port}"
        )
        if pg_port is not None:
            announce(f"PostgreSQL   {settings.host}:{pg_port}")
        await stop.wait()


def _stop_once(loop: asyncio.AbstractEventLoop, number: int, stop: asyncio.Event) -> None:
    loop.remove_signal_handler(number)
    stop.set()


@contextlib.asynccontextmanager
async def running(settings: ServeSettings) -> AsyncIterator[Ports]:
    """Run the service within this context; yield the ports that it listens on."""
    # Read before anything else begins: a certificate that can't be used is a mistake of whoever
    # starts it.
    certificate = None if settings.tls is None else ServerCertificate(settings.tls)
    limits = connection_limits(raise_limit())
    data = DataDirectory(settings.data_dir)
    try:
        url = settings.metadata_url or f"sqlite:///{data.root / 'spillway.db'}"
        metadata = MetadataStore(url, data.reserve.release)
        engine = Engine(data, metadata, settings.engine, certificate)
        subscriptions = Subscriptions(engine, metadata, data.root / "subscriptions")
        users = Users(metadata)
        history = History(metadata.events, data.instance)
        engine.on_taken(history.taken)
        token = None if settings.auth_off else settings.token
        try:
            await engine.start()
            await subscriptions.load()
            await engine.settle(_HEAD_START_S)
            interfaces = await asyncio.to_thread(_import_interfaces)
            collector.begin()
            with _own_directory(data.root) as own_directory:
                # So that programs need no CA, no name and no certificate of their own, and go on
                # when the service's certificate has expired.
                own_socket = None if certificate is None else own_directory / "grpc"
                own_door = own_directory / "stream"
                async with interfaces.listening(
                    engine,
                    subscriptions,
                    users,
                    metadata,
                    data.instance,
                    interfaces.Doors(
                        settings.host,
                        settings.http_port,
                        settings.grpc_port,
                        token,
                        limits,
                        certificate,
                        own_socket,
                        own_door,
                        settings.client_timeout_s,
                        settings.connections_per_address,
                        settings.pg_port,
                        settings.sql_connections,
                    ),
                ) as ports:
                    # Programs are clients: they need gRPC from their first to their last word.
                    await subscriptions.start(
                        _own_address(settings.host, ports[1], own_socket),
                        token,
                        settings.umask,
                        str(own_door),
                    )
                    await history.started(__version__)
                    try:
                        yield ports
                    finally:
                        metadata.hurry()
                        await subscriptions.stop()
                        await history.stopped()
        finally:
            # What ends with the program need not be looked through.
            collector.end()
            await engine.stop()
    finally:
        data.close()


@contextlib.contextmanager
def _own_directory(data_dir: Path) -> Iterator[Path]:
    """Give a directory for sockets that nobody but this user reaches: those of the service's own
    programs. It goes at the end.
    """
    # Directories of tempfile are 0700.
    with contextlib.ExitStack() as stack:
        directory = ""
        # A socket's path has 107 bytes at most.
        if len(os.fsencode(data_dir)) < 70:
            # On a full disk the service starts all the same, to say so.
            with contextlib.suppress(OSError):
                directory = stack.enter_context(
                    tempfile.TemporaryDirectory(prefix="own-", dir=data_dir)
                )
        if not directory:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="own-"))
        yield Path(directory)


def _own_address(host: str, port: int, own_socket: Path | None) -> str:
    """Return where this machine's programs find what listens on *host*."""
    if own_socket is not None:
        return f"unix:{own_socket}"
    own = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - not listened on
    return f"[{own}]:{port}" if ":" in own else f"{own}:{port}"


def _import_interfaces() -> ModuleType:
    # FastAPI, uvicorn and gRPC: see the top.
    from spillway import interfaces  # noqa: PLC0415

    return interfaces
