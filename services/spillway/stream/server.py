"""The gRPC server: its services, health and reflection, behind the token, and with a certificate behind TLS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from spillway.errors import AddressUnavailable
from spillway.stream import change_stream, slot_service, subscription_service
from spillway.stream.door import Door
from spillway.token_gate import TokenGate
from spillway.v1 import slots_pb2_grpc, subscriptions_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from spillway.engine.interface import EngineInterface
    from spillway.subscriber.interface import SubscriptionInterface
    from spillway.tls import ServerCertificate

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
    # A connection that does not say what it is (TLS, HTTP/2's preface and settings) is not kept.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.http2.settings_timeout", 10_000),
    # Nor one without calls; clients make it anew when they call.
    ("grpc.max_connection_idle_ms", 300_000),
    # Streams of one process share a connection.
    ("grpc.max_concurrent_streams", 1_000),
)


async def create_grpc_server(
    engine: EngineInterface,
    subscriptions: SubscriptionInterface,
    *,
    host: str,
    port: int,
    token: str | None,
    gate: TokenGate | None = None,
    certificate: ServerCertificate | None = None,
    own_socket: Path | None = None,
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
        gate: what compares tokens, where REST has the same; made of *token* otherwise.
        certificate: what TLS begins with; None: no TLS.
        own_socket: a Unix socket to listen on as well, without TLS, for programs of the service's own.

    Raises:
        AddressUnavailable: the port is taken, or *host* is no address of this machine.
    """
    server = grpc.aio.server(options=_OPTIONS, interceptors=[Door(gate or TokenGate(token))])
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
    credentials = None if certificate is None else _credentials(certificate)
    _bind(server, address, credentials)
    if own_socket is not None:
        _bind(server, f"unix:{own_socket}", None)
    return server


def _bind(server: Any, address: str, credentials: Any) -> None:
    try:
        bound = (
            server.add_insecure_port(address)
            if credentials is None
            else server.add_secure_port(address, credentials)
        )
    except RuntimeError as error:
        raise _unavailable(address) from error
    if bound == 0:
        raise _unavailable(address)


def _credentials(certificate: ServerCertificate) -> Any:
    """Make what gRPC asks for the certificate at every handshake."""

    def configuration() -> Any:
        key, chain, client_ca = certificate.pem
        return grpc.ssl_server_certificate_configuration(((key, chain),), client_ca)

    return grpc.dynamic_ssl_server_credentials(
        configuration(),
        _fetcher(certificate, configuration),
        require_client_authentication=certificate.asks_clients,
    )


def _fetcher(certificate: ServerCertificate, make: Callable[[], Any]) -> Callable[[], Any]:
    given = certificate.generation

    def fetch() -> Any:
        nonlocal given
        # None: the one that was given before stays.
        if certificate.generation == given:
            return None
        given = certificate.generation
        return make()

    return fetch


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
