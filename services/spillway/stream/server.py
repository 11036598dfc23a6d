"""The gRPC server: its services, health and reflection, behind the token, and with a certificate
behind TLS.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from spillway.errors import AddressUnavailable
from spillway.stream import (
    alert_service,
    change_service,
    change_stream,
    slot_service,
    subscription_service,
    watch_service,
)
from spillway.stream.access import AccessCheck
from spillway.token_gate import TokenGate
from spillway.v1 import (
    alerts_pb2_grpc,
    changes_pb2_grpc,
    slots_pb2_grpc,
    subscriptions_pb2_grpc,
    watch_pb2_grpc,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from spillway.service.interface import EngineInterface
    from spillway.subscriber.interface import SubscriptionInterface
    from spillway.tls import ServerCertificate

_MIB: Final = 1024 * 1024
#: how often a client that watches a service's health has it looked at
_WATCH_S: Final = 1.0
#: Services that do their work as long as metadata can be read and written.
_OF_METADATA: Final = frozenset(
    {
        slot_service.SERVICE_NAME,
        subscription_service.SERVICE_NAME,
        alert_service.SERVICE_NAME,
        watch_service.SERVICE_NAME,
    }
)

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
    # A connection that does not say what it is (TLS, HTTP/2's preface and settings) is not kept.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.http2.settings_timeout", 10_000),
    # Nor one without calls; clients make it anew when they call.
    ("grpc.max_connection_idle_ms", 300_000),
    # Streams of one process share a connection.
    ("grpc.max_concurrent_streams", 1_000),
)


#: PostgreSQL's wal_sender_timeout.
CLIENT_TIMEOUT_S: Final = 60.0


def _keepalive(client_timeout_s: float) -> tuple[tuple[str, int], ...]:
    """Give the options by which a client that vanished without a word, or is stopped, loses its
    slot in that time.

    Half of it passes before silence is worth a ping, half until that must be answered. A client's
    library answers by itself, however long its program takes for what it has got.
    ``ping_timeout_ms`` is what counts: without it gRPC waits for a minute, whatever
    ``keepalive_timeout_ms`` says.
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
    subscriptions: SubscriptionInterface,
    *,
    host: str,
    port: int,
    token: str | None,
    gate: TokenGate | None = None,
    certificate: ServerCertificate | None = None,
    own_socket: Path | None = None,
    client_timeout_s: float = CLIENT_TIMEOUT_S,
    watched: watch_service.Watched | None = None,
) -> Any:
    """Make a grpc.aio.Server that listens on *host* and *port*.

    The caller awaits its ``start()``, and ``stop(grace)`` at the end, which ends the streams. It
    must be made on the event loop that it runs on.

    Args:
        engine: what does the work of sources and slots.
        subscriptions: what does that of subscriptions.
        host: an address or a name; ``::`` for every address.
        port: the TCP port.
        token: the bearer token that callers must present; None only where *host* is loopback.
        gate: what compares tokens, where REST has the same; made of *token* otherwise.
        certificate: what TLS begins with; None: no TLS.
        own_socket: a Unix socket to listen on as well, without TLS, for programs of the service's
            own.
        client_timeout_s: how long a client may leave the server's pings without an answer; 0: for
            ever.
        watched: what was seen, and who is told of it; None only where nobody asks for it.

    Raises:
        AddressUnavailable: the port is taken, or *host* is no address of this machine.
    """
    options = (*_OPTIONS, *_keepalive(client_timeout_s))
    server = grpc.aio.server(options=options, interceptors=[AccessCheck(gate or TokenGate(token))])
    register: Any = slots_pb2_grpc.add_SlotServiceServicer_to_server
    register(slot_service.SlotService(engine, subscriptions), server)
    register = subscriptions_pb2_grpc.add_SubscriptionServiceServicer_to_server
    register(subscription_service.SubscriptionService(subscriptions), server)
    register = changes_pb2_grpc.add_ChangeServiceServicer_to_server
    register(change_service.ChangeService(engine), server)
    server.add_generic_rpc_handlers((change_stream.ChangeStream(engine).generic_handler(),))
    names = [
        slot_service.SERVICE_NAME,
        subscription_service.SERVICE_NAME,
        change_service.SERVICE_NAME,
        change_stream.SERVICE_NAME,
    ]
    if watched is not None:
        register = alerts_pb2_grpc.add_AlertServiceServicer_to_server
        register(alert_service.AlertService(watched.alerts), server)
        register = watch_pb2_grpc.add_WatchServiceServicer_to_server
        register(watch_service.WatchService(engine, subscriptions, watched), server)
        names += [alert_service.SERVICE_NAME, watch_service.SERVICE_NAME]
    health_pb2_grpc.add_HealthServicer_to_server(_Health(engine), server)
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


class _Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """grpc.health.v1: each service serves while nothing is in the way of what it is for; "" is the
    whole, as ``/readyz``.

    Slots are looked at and changed as long as metadata can be written and clients can connect; a
    stream needs sources and databases, too.
    """

    def __init__(self, engine: EngineInterface) -> None:
        self._engine = engine

    def _status(self, service: str) -> int | None:
        kinds = {obstacle.kind for obstacle in self._engine.obstacles()}
        if service:
            # Who asks for one of gRPC's has come in by gRPC.
            kinds -= {"listener"}
        if service in _OF_METADATA:
            kinds &= {"metadata", "certificate"}
        elif service not in ("", change_stream.SERVICE_NAME, change_service.SERVICE_NAME):
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
