"""``spillway serve``: everything in one process.

One event loop carries the engine, REST (uvicorn) and gRPC; receivers and decoders are threads of the
engine. Start: lock the data directory, bring the engine up, then listen, so that whoever can connect is
answered. What listens is imported only then, on a thread beside the engine's: it takes longer than all the rest,
and decoding neither waits for it nor, when little was stored, has to share the interpreter with it.
Programs of subscriptions are started last and ended first, for they are clients.
SIGTERM or SIGINT: stop listening, end streams, checkpoint, close; a second one ends at once, which loses nothing either.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spillway.engine.engine import Engine
from spillway.engine.layout import DataDirectory
from spillway.engine.settings import EngineSettings
from spillway.errors import InvalidRequest
from spillway.loopback import is_loopback
from spillway.store.metadata import MetadataStore
from spillway.subscriber.subscriptions import Subscriptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path
    from types import ModuleType

log = logging.getLogger(__name__)

#: What decoding gets of the interpreter before the interfaces' import begins: usually all is decoded before that.
_HEAD_START_S: Final = 0.3


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
    #: how long a client over gRPC may leave the service without an answer, in seconds; 0: for ever
    client_timeout_s: float = 60.0
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


@contextlib.asynccontextmanager
async def running(settings: ServeSettings) -> AsyncIterator[tuple[int, int]]:
    """Run the service within this context; yield the HTTP and the gRPC port that it listens on."""
    data = DataDirectory(settings.data_dir)
    try:
        url = settings.metadata_url or f"sqlite:///{data.root / 'spillway.db'}"
        metadata = MetadataStore(url, data.reserve.release)
        engine = Engine(data, metadata, settings.engine)
        subscriptions = Subscriptions(engine, metadata, data.root / "subscriptions")
        token = None if settings.auth_off else settings.token
        try:
            await engine.start()
            await subscriptions.load()
            await engine.settle(_HEAD_START_S)
            interfaces = await asyncio.to_thread(_import_interfaces)
            async with interfaces.listening(
                engine,
                subscriptions,
                settings.host,
                settings.http_port,
                settings.grpc_port,
                token,
                client_timeout_s=settings.client_timeout_s,
            ) as ports:
                # Programs are clients: they need gRPC from their first to their last word.
                await subscriptions.start(_own_address(settings.host, ports[1]), token)
                try:
                    yield ports
                finally:
                    await subscriptions.stop()
        finally:
            await engine.stop()
    finally:
        data.close()


def _own_address(host: str, port: int) -> str:
    """Return where this machine's programs find what listens on *host*."""
    own = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - not listened on
    return f"[{own}]:{port}" if ":" in own else f"{own}:{port}"


def _import_interfaces() -> ModuleType:
    # FastAPI, uvicorn and gRPC: see the top.
    from spillway import interfaces  # noqa: PLC0415

    return interfaces
