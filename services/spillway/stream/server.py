"""The gRPC server: its services, health and reflection, behind the token."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from spillway.errors import AddressUnavailable, Unauthenticated
from spillway.stream import change_stream, slot_service, status, subscription_service
from spillway.v1 import slots_pb2_grpc, subscriptions_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from spillway.engine.interface import EngineInterface
    from spillway.subscriber.interface import SubscriptionInterface

_MIB: Final = 1024 * 1024

#: Requests are small; 1 MiB as REST's bodies.
REQUEST_BYTES_MAX: Final = _MIB

_OPTIONS: Final = (
    # A plugin's message is never cut, and a row may be as large as PostgreSQL lets it be: 1 GB.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
    # Another process on the same port must be an error, not half of the clients' calls.
    ("grpc.so_reuseport", 0),
    # A client that vanished without a word must not hold its slot: found out within 40 seconds.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Clients may ping as often, also while a stream is idle.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
)


async def create_grpc_server(
    engine: EngineInterface,
    subscriptions: SubscriptionInterface,
    *,
    host: str,
    port: int,
    token: str | None,
) -> Any:
    """Make a grpc.aio.Server that listens on *host* and *port*.

    The caller awaits its ``start()``, and ``stop(grace)`` at the end, which ends the streams. It must be made on
    the event loop that it runs on.

    Args:
        engine: what does the work of sources and slots.
        subscriptions: what does that of subscriptions.
        host: an address or a name; ``::`` for every address.
        port: the TCP port.
        token: the bearer token that callers must present; None only where *host* is loopback.

    Raises:
        AddressUnavailable: the port is taken, or *host* is no address of this machine.
    """
    interceptors = [] if token is None else [_TokenInterceptor(token)]
    server = grpc.aio.server(options=_OPTIONS, interceptors=interceptors)
    register: Any = slots_pb2_grpc.add_SlotServiceServicer_to_server
    register(slot_service.SlotService(engine, subscriptions), server)
    register = subscriptions_pb2_grpc.add_SubscriptionServiceServicer_to_server
    register(subscription_service.SubscriptionService(subscriptions), server)
    server.add_generic_rpc_handlers((change_stream.ChangeStream(engine).generic_handler(),))
    names = (
        slot_service.SERVICE_NAME,
        subscription_service.SERVICE_NAME,
        change_stream.SERVICE_NAME,
    )
    await _add_health(server, names)
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


async def _add_health(server: Any, names: tuple[str, ...]) -> None:
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    for name in ("", *names):
        await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)


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
