"""The gRPC server: both services, health and reflection, behind the token."""

from __future__ import annotations

import asyncio
import hmac
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from spillway.errors import AddressUnavailable, Unauthenticated
from spillway.stream import change_stream, slot_service, status
from spillway.stream._generated import slots_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from spillway.engine.interface import EngineInterface

_MIB: Final = 1024 * 1024
#: how often a client that watches a service's health has it looked at
_WATCH_S: Final = 1.0

#: Requests are small; 1 MiB as REST's bodies.
REQUEST_BYTES_MAX: Final = _MIB

_OPTIONS: Final = (
    # A plugin's message is never cut, and a row may be as large as PostgreSQL lets it be: 1 GB.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
    # Another process on the same port must be an error, not half of the clients' calls.
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Clients may ping as often, also while a stream is idle.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
)


#: PostgreSQL's wal_sender_timeout.
CLIENT_TIMEOUT_S: Final = 60.0


def _keepalive(client_timeout_s: float) -> tuple[tuple[str, int], ...]:
    """Give the options by which a client that vanished without a word, or is stopped, loses its slot in that time.

    Half of it passes before silence is worth a ping, half until that must be answered. A client's library answers by
    itself, however long its program takes for what it has got. ``ping_timeout_ms`` is what counts: without it gRPC
    waits for a minute, whatever ``keepalive_timeout_ms`` says.
    """
    if not client_timeout_s:
        return ()
    half_ms = max(1, int(client_timeout_s * 500))
    return (
        ("grpc.keepalive_time_ms", half_ms),
        ("grpc.keepalive_timeout_ms", half_ms),
        ("grpc.http2.ping_timeout_ms", half_ms),
    )


async def create_grpc_server(
    engine: EngineInterface,
    *,
    host: str,
    port: int,
    token: str | None,
    client_timeout_s: float = CLIENT_TIMEOUT_S,
) -> Any:
    """Make a grpc.aio.Server that listens on *host* and *port*.

    The caller awaits its ``start()``, and ``stop(grace)`` at the end, which ends the streams. It must be made on
    the event loop that it runs on.

    Args:
        engine: what does the work.
        host: an address or a name; ``::`` for every address.
        port: the TCP port.
        token: the bearer token that callers must present; None only where *host* is loopback.
        client_timeout_s: how long a client may leave the server's pings without an answer; 0: for ever.

    Raises:
        AddressUnavailable: the port is taken, or *host* is no address of this machine.
    """
    interceptors = [] if token is None else [_TokenInterceptor(token)]
    options = (*_OPTIONS, *_keepalive(client_timeout_s))
    server = grpc.aio.server(options=options, interceptors=interceptors)
    register: Any = slots_pb2_grpc.add_SlotServiceServicer_to_server
    register(slot_service.SlotService(engine), server)
    server.add_generic_rpc_handlers((change_stream.ChangeStream(engine).generic_handler(),))
    names = (slot_service.SERVICE_NAME, change_stream.SERVICE_NAME)
    health_pb2_grpc.add_HealthServicer_to_server(_Health(engine), server)
    reflection.enable_server_reflection(
        (*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server
    )
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:
        raise _unavailable(address) from error
    if bound == 0:
        raise _unavailable(address)
    return server


def _unavailable(address: str) -> AddressUnavailable:
    return AddressUnavailable(
        f"can't listen for gRPC on {address}",
        hint="Another program may have the port; choose one with --grpc-port.",
        address=address,
    )


class _Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """grpc.health.v1: each service serves while nothing is in the way of what it is for; "" is the whole, as ``/readyz``.

    Slots are looked at and changed as long as metadata can be written; a stream needs sources and databases, too.
    """

    def __init__(self, engine: EngineInterface) -> None:
        self._engine = engine

    def _status(self, service: str) -> int | None:
        kinds = {obstacle.kind for obstacle in self._engine.obstacles()}
        if service == slot_service.SERVICE_NAME:
            kinds &= {"metadata"}
        elif service not in ("", change_stream.SERVICE_NAME):
            return None
        response = health_pb2.HealthCheckResponse
        return response.NOT_SERVING if kinds else response.SERVING  # type: ignore[no-any-return]

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        found = self._status(request.service)
        if found is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f'no service "{request.service}"')
        return health_pb2.HealthCheckResponse(status=found)

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802 - gRPC's name
        """Tell how it stands, and again when that changes."""
        told: int | None = None
        while True:
            found = self._status(request.service)
            if found is None:
                found = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            if found != told:
                await context.write(health_pb2.HealthCheckResponse(status=found))
                told = found
            await asyncio.sleep(_WATCH_S)


class _TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses calls without the token, except the health service's: whoever probes has none."""

    def __init__(self, token: str) -> None:
        self._credentials = f"Bearer {token}".encode()
        self._refusal = grpc.unary_unary_rpc_method_handler(_refuse)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        if handler_call_details.method.startswith(f"/{health.SERVICE_NAME}/"):
            return await continuation(handler_call_details)
        for key, value in handler_call_details.invocation_metadata:
            given = value if isinstance(value, bytes) else value.encode()
            if key == "authorization" and hmac.compare_digest(given, self._credentials):
                return await continuation(handler_call_details)
        return self._refusal


async def _refuse(request: Any, context: Any) -> None:  # noqa: ARG001 - a handler's form
    await status.abort(
        context,
        Unauthenticated(
            "a bearer token is needed, and this one is none or wrong",
            hint="Send the service's SPILLWAY_TOKEN in the metadata authorization: Bearer ….",
        ),
    )
