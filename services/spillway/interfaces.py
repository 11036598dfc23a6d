"""REST and the admin UI (uvicorn) and gRPC on one event loop, in front of an engine that runs.

``serve`` imports this when the engine is up: everything heavy that a client needs and decoding does not is here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import uvicorn

from spillway import __version__
from spillway.admin.application import Admin
from spillway.errors import StorageError
from spillway.slot_manager.app import create_app
from spillway.stream.server import CLIENT_TIMEOUT_S, create_grpc_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from spillway.engine.interface import EngineInterface
    from spillway.subscriber.interface import SubscriptionInterface

_GRPC_GRACE_S = 2.0


class _HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: both servers stop together, and the engine after them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def listening(
    engine: EngineInterface,
    subscriptions: SubscriptionInterface,
    host: str,
    http_port: int,
    grpc_port: int,
    token: str | None,
    *,
    client_timeout_s: float = CLIENT_TIMEOUT_S,
) -> AsyncIterator[tuple[int, int]]:
    """Serve *engine* within this context; yield the HTTP and the gRPC port, where 0 was given the free one taken.

    Raises:
        StorageError, AddressUnavailable: a port can't be used.
    """
    listener = _bind(host, http_port)
    admin = Admin(engine, subscriptions, token=token, version=__version__)
    server = _HttpServer(
        uvicorn.Config(
            create_app(engine, subscriptions, token=token, version=__version__, admin=admin),
            log_level="warning",
            lifespan="off",
            access_log=False,
            timeout_graceful_shutdown=5,
        )
    )
    # gRPC binds by number, so a free port has to be found first.
    grpc_port = grpc_port or _free_port(host)
    grpc_server = await create_grpc_server(
        engine, host=host, port=grpc_port, token=token, client_timeout_s=client_timeout_s
    )
    await grpc_server.start()
    admin.start()
    http = asyncio.create_task(server.serve(sockets=[listener]), name="spillway-http")
    try:
        while not server.started and not http.done():  # noqa: ASYNC110 - uvicorn sets a flag
            await asyncio.sleep(0.01)
        yield listener.getsockname()[1], grpc_port
    finally:
        server.should_exit = True
        # Pages that are open would hold the server for as long as they are.
        await admin.stop()
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
