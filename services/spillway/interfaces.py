"""REST and the admin UI (uvicorn), gRPC and PostgreSQL's own protocol on one event loop, in front
of an engine that runs.

``serve`` imports this when the engine is up: everything heavy that a client needs and decoding does
not is here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from spillway import __version__
from spillway.admin.application import Admin
from spillway.alerts.registry import Alerts
from spillway.alerts.watchman import Watchman
from spillway.connection_bound import ConnectionBound
from spillway.errors import StorageError
from spillway.listener_signs import ListenerSigns
from spillway.slot_manager.app import create_app
from spillway.slot_manager.server import HttpServer
from spillway.stream.connections import GrpcConnections
from spillway.stream.own_door import OwnDoor
from spillway.stream.server import CLIENT_TIMEOUT_S, create_grpc_server
from spillway.stream.watch_service import Watched
from spillway.token_gate import TokenGate
from spillway.walsender.server import ClientRules, WalsenderServer
from spillway.watch.actions import SOURCE_ACTIONS, SUBSCRIPTION_ACTIONS, USER_ACTIONS, noted
from spillway.watch.ddl_recorder import DdlRecorder
from spillway.watch.past import Past
from spillway.watch.recorder import Recorder
from spillway.watch.sampler import Sampler
from spillway.watch.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from spillway.open_files import ConnectionLimits
    from spillway.service.interface import EngineInterface
    from spillway.store.metadata import MetadataStore
    from spillway.subscriber.interface import SubscriptionInterface
    from spillway.tls import ServerCertificate
    from spillway.users.registry import Users

_GRPC_GRACE_S = 2.0
#: How often the certificate's files are looked at: a renewal has days to be noticed, a mistake in
#: it should be seen at once.
_CERTIFICATE_LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class Doors:
    """Where to listen, and who may come in."""

    host: str
    #: 0 takes a free port
    http_port: int
    grpc_port: int
    token: str | None
    limits: ConnectionLimits
    #: None: no TLS
    certificate: ServerCertificate | None = None
    #: a Unix socket for gRPC of the service's own programs
    own_socket: Path | None = None
    #: … and for their streams; None: there is none
    own_door: Path | None = None
    #: see :func:`~spillway.stream.server.create_grpc_server`
    client_timeout_s: float = CLIENT_TIMEOUT_S
    #: of REST and of gRPC, see :class:`~spillway.connection_bound.ConnectionBound`
    connections_per_address: int | None = None
    #: of PostgreSQL's own protocol, 0 for a free one; None: it is not served
    pg_port: int | None = None
    #: how many connections to a source the clients of that may have for SQL
    sql_connections: int = 50


class Ports(NamedTuple):
    """Where the service listens."""

    http: int
    grpc: int
    #: of PostgreSQL's own protocol; None: it is not served
    pg: int | None


@contextlib.asynccontextmanager
async def listening(
    engine: EngineInterface,
    subscriptions: SubscriptionInterface,
    users: Users,
    metadata: MetadataStore,
    process: str,
    doors: Doors,
) -> AsyncIterator[Ports]:
    """Serve *engine* within this context; yield the ports, where 0 was given the free ones taken.

    *process* names this process among those that have the same *metadata*, also after it was
    started again.

    Raises:
        StorageError, AddressUnavailable: a port can't be used.
    """
    engine = noted(engine, SOURCE_ACTIONS, metadata.events)
    subscriptions = noted(subscriptions, SUBSCRIPTION_ACTIONS, metadata.events)
    users = noted(users, USER_ACTIONS, metadata.events)
    sampler = Sampler(engine, subscriptions)
    alerts = Alerts(metadata)
    recorder = Recorder(metadata.metrics, engine, sampler)
    past = Past(metadata.metrics, recorder)
    ddl_recorder = DdlRecorder(metadata.schema_changes, engine, sampler)
    timeline = Timeline(metadata.schema_changes)
    watchman = Watchman(metadata, engine, sampler, process)
    listener = _bind(doors.host, doors.http_port)
    pg_listener = None if doors.pg_port is None else _bind(doors.host, doors.pg_port)
    gate = TokenGate(doors.token)
    http_bound = ConnectionBound("REST", doors.limits.http, doors.connections_per_address)
    grpc_bound = ConnectionBound("gRPC", doors.limits.grpc, doors.connections_per_address)
    pg_bound = ConnectionBound("PostgreSQL", doors.limits.pg, doors.connections_per_address)
    admin = Admin(
        engine,
        subscriptions,
        token=doors.token,
        version=__version__,
        gate=gate,
        sampler=sampler,
        alerts=alerts,
        past=past,
        timeline=timeline,
    )
    app = create_app(
        engine,
        subscriptions,
        token=doors.token,
        version=__version__,
        admin=admin,
        gate=gate,
        certificate=doors.certificate,
        bounds=(http_bound, grpc_bound, pg_bound),
        users=users,
        alerts=alerts,
        sampler=sampler,
        past=past,
        timeline=timeline,
    )
    server = HttpServer(app, bound=http_bound, certificate=doors.certificate)
    # gRPC binds by number, so a free port has to be found first.
    grpc_port = doors.grpc_port or _free_port(doors.host)
    grpc_server = await create_grpc_server(
        engine,
        subscriptions,
        host=doors.host,
        port=grpc_port,
        token=doors.token,
        gate=gate,
        certificate=doors.certificate,
        own_socket=doors.own_socket,
        client_timeout_s=doors.client_timeout_s,
        watched=Watched(sampler, alerts, past, timeline),
    )
    await grpc_server.start()
    own_door = None
    if doors.own_door is not None:
        own_door = OwnDoor(engine, gate, doors.own_door, doors.client_timeout_s)
        await own_door.start()
    admin.start()
    watchman.start()
    recorder.start()
    ddl_recorder.start()
    connections = GrpcConnections(grpc_port, grpc_bound)
    watches = [asyncio.create_task(connections.watch(), name="spillway-grpc-connections")]
    if doors.certificate is not None:
        watches.append(asyncio.create_task(_renew(doors.certificate), name="spillway-certificate"))
    http = asyncio.create_task(server.serve(listener), name="spillway-http")
    pg_port = None
    if pg_listener is not None:
        pg_port = pg_listener.getsockname()[1]
        rules = ClientRules(doors.certificate, doors.client_timeout_s, doors.sql_connections)
        host = f"[{doors.host}]" if ":" in doors.host else doors.host
        signs = ListenerSigns(pg_bound.door, f"{host}:{pg_port}")
        engine.watch_listener(signs)
        walsender = WalsenderServer(
            engine, users, metadata.session_settings, pg_bound, rules, signs
        )
        watches.append(
            asyncio.create_task(walsender.serve(pg_listener), name="spillway-walsenders")
        )
    try:
        while not server.started and not http.done():  # noqa: ASYNC110 - uvicorn sets a flag
            await asyncio.sleep(0.01)
        yield Ports(listener.getsockname()[1], grpc_port, pg_port)
    finally:
        server.stop()
        for watch in watches:
            watch.cancel()
        # Pages that are open would hold the server for as long as they are.
        await recorder.stop()
        await ddl_recorder.stop()
        await watchman.stop()
        await admin.stop()
        if own_door is not None:
            await own_door.stop()
        await grpc_server.stop(_GRPC_GRACE_S)
        await http
        await asyncio.gather(*watches, return_exceptions=True)


async def _renew(certificate: ServerCertificate) -> None:
    while True:
        await asyncio.sleep(_CERTIFICATE_LOOK_S)
        await asyncio.to_thread(certificate.refresh)


def _free_port(host: str) -> int:
    with _bind(host, 0) as probe:
        port: int = probe.getsockname()[1]
        return port


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, for asyncio turns Nagle's algorithm off only then; an answer's body would wait 40 ms
    # for an acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise StorageError(
            f"can't listen on {host}:{port}: {error.strerror}",
            hint="Choose another port with --http-port or --pg-port, or stop what listens there.",
        ) from error
    return listener
