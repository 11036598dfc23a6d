"""The application: features, guard, problem documents and pages put together."""

from collections.abc import Sequence
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Security
from fastapi.openapi.utils import get_openapi
from fastapi.security import HTTPBearer

from spillway.alerts.registry import Alerts
from spillway.connection_bound import ConnectionBound
from spillway.service.interface import EngineInterface
from spillway.slot_manager import callers, guard, health, metrics, pages, plugins, problems
from spillway.slot_manager.alerts.routes import router as alerts_router
from spillway.slot_manager.changes.routes import router as changes_router
from spillway.slot_manager.events.routes import router as events_router
from spillway.slot_manager.findings.routes import router as findings_router
from spillway.slot_manager.past.routes import router as past_router
from spillway.slot_manager.publications.routes import router as publications_router
from spillway.slot_manager.schema_changes.routes import router as schema_changes_router
from spillway.slot_manager.slots.routes import router as slots_router
from spillway.slot_manager.sources.routes import router as sources_router
from spillway.slot_manager.subscriptions.routes import router as subscriptions_router
from spillway.slot_manager.users.routes import router as users_router
from spillway.subscriber.interface import SubscriptionInterface
from spillway.tls import ServerCertificate
from spillway.token_gate import TokenGate
from spillway.users.registry import Users
from spillway.watch.past import Past
from spillway.watch.sampler import Sampler
from spillway.watch.timeline import Timeline

_DESCRIPTION: Final = (
    "PostgreSQL logical decoding outside the server: replication slots as a service. LSNs are "
    "texts such as 0/16B3748, as PostgreSQL prints them. Every error is a problem document (RFC "
    "9457) with a stable code and a hint."
)


def create_app(
    engine: EngineInterface,
    subscriptions: SubscriptionInterface,
    *,
    token: str | None,
    version: str,
    admin: guard.Pages | None = None,
    gate: TokenGate | None = None,
    certificate: ServerCertificate | None = None,
    bounds: Sequence[ConnectionBound] = (),
    users: Users | None = None,
    alerts: Alerts | None = None,
    sampler: Sampler | None = None,
    past: Past | None = None,
    timeline: Timeline | None = None,
) -> FastAPI:
    """Make the REST service.

    The caller starts and stops *engine* and *subscriptions*; the app only calls them.

    Args:
        engine: what does the work of sources and slots.
        subscriptions: what does that of subscriptions.
        token: the bearer token that callers must present; None only where the service listens on
            loopback.
        version: Spillway's version, shown by the pages.
        admin: the admin UI, which has ``/`` and ``/ui``.
        gate: what compares tokens, where gRPC and the UI have the same; made of *token* otherwise.
        certificate: TLS's, for the metrics.
        bounds: those of the doors, for the metrics.
        users: who may come in over PostgreSQL's own protocol; None only where nobody asks for them.
        alerts: who is told what, and what happened; None only where nobody asks for it.
        sampler: what finds what is wrong, the one that pages have; one of its own otherwise.
        past: how things were; None only where nobody asks for it.
        timeline: what changed in the schema; likewise.
    """
    # FastAPI's own pages load scripts from elsewhere; ours do not.
    app = FastAPI(title="Spillway", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.engine = engine
    app.state.subscriptions = subscriptions
    app.state.users = users
    app.state.alerts = alerts
    app.state.sampler = sampler or Sampler(engine, subscriptions)
    app.state.admin = admin
    app.state.past = past
    app.state.timeline = timeline
    app.state.version = version
    app.state.certificate = certificate
    app.state.bounds = bounds
    app.state.token = token
    # The dependency only documents what the guard checks.
    bearer = Security(HTTPBearer(auto_error=False, description="SPILLWAY_TOKEN"))
    v1 = APIRouter(prefix="/v1", dependencies=[bearer], responses=_PROBLEM)
    v1.include_router(sources_router)
    v1.include_router(slots_router)
    v1.include_router(plugins.router)
    v1.include_router(changes_router)
    v1.include_router(subscriptions_router)
    v1.include_router(publications_router)
    v1.include_router(users_router)
    v1.include_router(alerts_router)
    v1.include_router(events_router)
    v1.include_router(findings_router)
    v1.include_router(past_router)
    v1.include_router(schema_changes_router)
    app.include_router(v1)
    app.include_router(health.router)
    app.include_router(metrics.router)
    app.include_router(pages.router)
    problems.install(app)
    if admin is not None:
        app.add_middleware(guard.Beside, pages=admin)
    app.add_middleware(callers.Callers)
    app.add_middleware(guard.Guard, gate=gate or TokenGate(token), pages=admin)
    app.openapi = lambda: openapi_document(app)  # type: ignore[method-assign]
    return app


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Give the contract: what FastAPI knows, less the validation errors that the app never
    sends.
    """
    if app.openapi_schema is None:
        document = get_openapi(
            title="Spillway", version="1", description=_DESCRIPTION, routes=app.routes
        )
        for operations in document["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
        for unused in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(unused, None)
        document["components"]["schemas"]["Problem"] = problems.Problem.model_json_schema()
        app.openapi_schema = document
    return app.openapi_schema


_PROBLEM: Final[dict[int | str, dict[str, Any]]] = {
    "default": {
        "description": "A problem; its code is stable.",
        "content": {
            problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}},
        },
    }
}
