"""``/healthz`` and ``/readyz``: two questions, for two decisions.

``/healthz``: shall the process be started again? 200 while its event loop turns and its threads
live. A primary that is gone, a full disk, a lock on metadata: no restart mends them, so none of
them is asked about.

``/readyz``: does the service do its work? 503 while anything keeps it from that, with a list of
what. Who probes it has no token. So where there is one, the list has names, codes and times for
everybody, and what the errors say, in which hosts and paths may be, for who presents it. What does
not keep it from its work yet, and will (a certificate that expires soon), stands beside ``ready``
as ``warnings``.
"""

import hmac

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from spillway.errors import NotReady
from spillway.service.model import Obstacle
from spillway.slot_manager.dependencies import Engine
from spillway.slot_manager.problems import problem_response

router = APIRouter(include_in_schema=False)


@router.get("/healthz")
async def healthz(engine: Engine) -> dict[str, str]:
    """Say that the process works as a process."""
    if not engine.alive():
        raise NotReady(
            "a thread or a task of the service has ended that should not",
            hint="Start the process again; its log says which it was. Please report it.",
        )
    return {"status": "ok"}


@router.get("/readyz", response_model=None)
async def readyz(request: Request, engine: Engine) -> Response:
    """Say whether the service does its work, and if not, all that keeps it from that."""
    found, in_full = engine.obstacles(), _may_read(request)
    if found:
        first, more = found[0], len(found) - 1
        what = f"{first.kind} {first.name}: {first.message if in_full else first.code}"
        error = NotReady(
            what + (f" (and {more} more)" if more else ""),
            hint=first.hint if in_full else "GET /readyz with the service's token says more.",
            not_ready=[_shown(one, in_full=in_full) for one in found],
        )
        # Not raised: what is in the way was logged when it came, and probes ask again every few
        # seconds.
        return problem_response(error, request.url.path)
    content: dict[str, object] = {"status": "ready"}
    if warnings := engine.warnings():
        content["warnings"] = [_shown(one, in_full=in_full) for one in warnings]
    return JSONResponse(content)


def _may_read(request: Request) -> bool:
    token: str | None = request.app.state.token
    given = request.headers.get("authorization", "").encode("latin-1")
    return token is None or hmac.compare_digest(given, f"Bearer {token}".encode())


def _shown(one: Obstacle, *, in_full: bool) -> dict[str, str | None]:
    since = None if one.since is None else one.since.isoformat()
    shown: dict[str, str | None] = {
        "kind": one.kind,
        "name": one.name,
        "code": one.code,
        "since": since,
    }
    return {**shown, "message": one.message, "hint": one.hint} if in_full else shown
