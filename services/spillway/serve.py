"""``spillway serve``: everything in one process.

One event loop carries the engine, REST (uvicorn) and gRPC; receivers and decoders are threads of the
engine. Start: lock the data directory, bring the engine up, then listen, so that whoever can connect is
answered. SIGTERM or SIGINT: stop listening, end streams, checkpoint, close; a second one ends at once,
which loses nothing either.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import uvicorn

from spillway import __version__
from spillway.engine.engine import Engine
from spillway.engine.layout import DataDirectory
from spillway.engine.settings import EngineSettings
from spillway.errors import InvalidRequest, StorageError
from spillway.slot_manager.app import create_app
from spillway.slot_manager.guard import is_loopback
from spillway.store.metadata import MetadataStore
from spillway.stream.server import create_grpc_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

log = logging.getLogger(__name__)

_GRPC_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Where to listen and what to keep."""

    data_dir: Path
    host: str = "127.0.0.1"
    #: 0 takes a free port
    http_port: int = 8080
    grpc_port: int = 50051
    #: bearer token for REST and gRPC; None only on loopback
    token: str | None = None
    #: SPILLWAY_AUTH=off: no token is asked for although one is set; loopback only
    auth_off: bool = False
    #: None: SQLite in the data directory
    metadata_url: str | None = None
    engine: EngineSettings = field(default_factory=EngineSettings)


def check_settings(settings: ServeSettings) -> None:
    """Refuse to listen where anybody could connect without a token.

    Raises:
        InvalidRequest: with what to set.
    """
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


def serve(settings: ServeSettings, announce: Callable[[str], None] = print) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. *announce* is told where it listens.

    Raises:
        InvalidRequest: the settings don't go together.
        Conflict: another process serves the data directory.
        StorageError: a port or the data directory can't be used.
        MetadataError: the metadata store can't be used.
    """
    check_settings(settings)
    asyncio.run(_serve(settings, announce))
    return 0


async def _serve(settings: ServeSettings, announce: Callable[[str], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_once, loop, number, stop)
    async with running(settings) as (http_port, grpc_port):
        announce(f"REST and UI  http://{settings.host}:{http_port}/")
        announce(f"gRPC         {settings.host}:{grpc_port}")
        await stop.wait()


def _stop_once(loop: asyncio.AbstractEventLoop, number: int, stop: asyncio.Event) -> None:
    loop.remove_signal_handler(number)
    stop.set()


class _HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: both servers stop together, and the engine after them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def running(settings: ServeSettings) -> AsyncIterator[tuple[int, int]]:
    """Run the service within this context; yield the HTTP and the gRPC port that it listens on."""
    data = DataDirectory(settings.data_dir)
    try:
        url = settings.metadata_url or f"sqlite:///{data.root / 'spillway.db'}"
        engine = Engine(data, MetadataStore(url), settings.engine)
        token = None if settings.auth_off else settings.token
        try:
            await engine.start()
            async with _listening(engine, settings, token) as ports:
                yield ports
        finally:
            await engine.stop()
    finally:
        data.close()


@contextlib.asynccontextmanager
async def _listening(
    engine: Engine, settings: ServeSettings, token: str | None
) -> AsyncIterator[tuple[int, int]]:
    listener = _bind(settings.host, settings.http_port)
    server = _HttpServer(
        uvicorn.Config(
            create_app(engine, token=token, version=__version__),
            log_level="warning",
            lifespan="off",
            access_log=False,
            timeout_graceful_shutdown=5,
        )
    )
    # gRPC binds by number, so a free port has to be found first.
    grpc_port = settings.grpc_port or _free_port(settings.host)
    grpc_server = await create_grpc_server(engine, host=settings.host, port=grpc_port, token=token)
    await grpc_server.start()
    http = asyncio.create_task(server.serve(sockets=[listener]), name="spillway-http")
    try:
        while not server.started and not http.done():  # noqa: ASYNC110 - uvicorn sets a flag
            await asyncio.sleep(0.01)
        yield listener.getsockname()[1], grpc_port
    finally:
        server.should_exit = True
        await grpc_server.stop(_GRPC_GRACE_S)
        await http
        listener.close()


def _free_port(host: str) -> int:
    with _bind(host, 0) as probe:
        port: int = probe.getsockname()[1]
        return port


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, for asyncio turns Nagle's algorithm off only then; an answer's body would wait 40 ms for an acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise StorageError(
            f"can't listen on {host}:{port}: {error.strerror}",
            hint="Choose another port with --http-port, or stop what listens there.",
        ) from error
    return listener
