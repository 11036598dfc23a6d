"""The admin UI's ASGI application, and what runs beside it.

:class:`Admin` is made once for a service: :meth:`Admin.start` begins to look at the engine,
:meth:`Admin.stop` ends that and every open stream. ``app`` serves ``/`` and ``/ui/…``; the REST
service puts it beside its own routes, inside its guard.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from markupsafe import Markup
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from spillway.admin.access import (
    HEADERS,
    AccessCheck,
    Sessions,
    is_page,
    note_access,
    set_cookie,
)
from spillway.admin.alert_pages import AlertPages
from spillway.admin.change_pages import ChangePages
from spillway.admin.event_pages import EventPages
from spillway.admin.list_pages import ListPages
from spillway.admin.live import Streams
from spillway.admin.overview_pages import OverviewPages
from spillway.admin.palette_pages import PalettePages
from spillway.admin.past_pages import PastPages
from spillway.admin.rendering import Pages
from spillway.admin.schema_pages import SchemaPages
from spillway.admin.slot_pages import SlotPages
from spillway.admin.source_pages import SourcePages
from spillway.admin.subscription_pages import SubscriptionPages
from spillway.errors import NotFound, SpillwayError, TooManyAttempts, Unauthenticated
from spillway.token_gate import TokenGate
from spillway.watch.sampler import Sampler

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Scope

    from spillway.admin.page_group import PageGroup
    from spillway.alerts.registry import Alerts
    from spillway.service.interface import EngineInterface
    from spillway.subscriber.interface import SubscriptionInterface
    from spillway.watch.past import Past
    from spillway.watch.timeline import Timeline

log = logging.getLogger(__name__)


class Admin:
    """The admin UI of one service. Made on the event loop.

    Without *alerts* it has no pages of alerts and events, without *past* charts show what this
    process remembers.
    """

    def __init__(
        self,
        engine: EngineInterface,
        subscriptions: SubscriptionInterface,
        *,
        token: str | None,
        version: str,
        gate: TokenGate | None = None,
        sampler: Sampler | None = None,
        alerts: Alerts | None = None,
        past: Past | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        self.sessions = Sessions(token)
        self._gate = gate or TokenGate(token)
        self._pages = Pages(version)
        self._sampler = sampler or Sampler(engine, subscriptions)
        self._streams = Streams()
        parts = (self._pages, engine, subscriptions, self._sampler, self._streams)
        groups = (
            OverviewPages,
            ListPages,
            SourcePages,
            SlotPages,
            SubscriptionPages,
            ChangePages,
            PalettePages,
        )
        made: list[PageGroup] = [group(*parts) for group in groups]
        made.append(PastPages(past, alerts, timeline, *parts))
        if timeline is not None:
            made.append(SchemaPages(timeline, *parts))
        if alerts is not None:
            made += [AlertPages(alerts, *parts), EventPages(alerts, *parts)]
        routes = [
            *(route for group in made for route in group.routes()),
            Route("/ui/login", self._login, methods=["GET", "POST"]),
            Route("/ui/logout", self._logout, methods=["POST"]),
            Route("/ui", self._home),
            Route("/ui/", self._home),
            Mount("/ui/static", _Immutable(packages=[("spillway.admin", "static")])),
        ]
        handlers = {
            SpillwayError: self._spillway_error,
            HTTPException: self._http_exception,
            Exception: self._unexpected,
        }
        inside = Starlette(routes=routes, exception_handlers=handlers)  # type: ignore[arg-type]
        # A redirect would be made of the Host that the request names, which may be none.
        inside.router.redirect_slashes = False
        self.app: ASGIApp = AccessCheck(inside, self.sessions, self.problem)

    def has(self, path: str) -> bool:
        """Say whether *path* is one of its pages."""
        return is_page(path)

    def admits(self, scope: Scope) -> bool:
        """Say whether the REST service's guard lets a request without a token pass."""
        return self.sessions.admits(scope)

    def in_shell(self, request: Request, title: str, body: str) -> Response:
        """Show *body*, which is HTML, as a page among the others; for a request that the REST
        service's guard has let in, whoever it is of.
        """
        note_access(request, self.sessions)
        response = self._pages.page(request, "shell.html", live="", title=title, body=Markup(body))  # noqa: S704 - ours
        response.headers.update(HEADERS)
        response.headers["Cache-Control"] = "no-store"
        return response

    def start(self) -> None:
        """Begin to look at the engine."""
        self._sampler.start()

    async def stop(self) -> None:
        """End every stream and the looking; safe to call twice."""
        self._streams.close()
        await self._sampler.stop()

    # -- session ------------------------------------------------------------------------------

    async def _login(self, request: Request) -> Response:
        target = request.query_params.get("next", "/")
        if not target.startswith("/") or target.startswith(("//", "/\\")):
            target = "/"
        if not self.sessions.asks_token:
            return RedirectResponse("/", status_code=303)
        wrong = False
        if request.method == "POST":
            given = request.state.form.get("token", [""])[0]
            client = request.client
            try:
                self._gate.check(given.strip().encode(), None if client is None else client.host)
            except Unauthenticated:
                wrong = True
            except TooManyAttempts as error:
                refused = self.problem(request, error)
                refused.headers["Retry-After"] = str(error.details["retry_after_s"])
                return refused
            else:
                response = RedirectResponse(target, status_code=303)
                set_cookie(response, request, self.sessions.issue())
                return response
        return self._pages.page(
            request, "login.html", status=401 if wrong else 200, wrong=wrong, target=target
        )

    async def _logout(self, request: Request) -> Response:
        response = RedirectResponse("/ui/login", status_code=303)
        set_cookie(response, request, "")
        return response

    async def _home(self, request: Request) -> Response:  # noqa: ARG002 - a route's form
        return RedirectResponse("/", status_code=303)

    # -- errors -------------------------------------------------------------------------------

    def problem(self, request: Request, error: SpillwayError) -> Response:
        """Show an error: to htmx the part that says it, to a browser a page."""
        if request.headers.get("hx-request"):
            return HTMLResponse(
                self._pages.text("parts/error.html", error=error), status_code=error.http_status
            )
        return self._pages.page(request, "error.html", status=error.http_status, error=error)

    async def _spillway_error(self, request: Request, error: SpillwayError) -> Response:
        if error.is_for_the_log:
            log.warning("%s %s: %s", request.method, request.scope["path"], error)
        return self.problem(request, error)

    async def _http_exception(self, request: Request, error: HTTPException) -> Response:
        if error.status_code == 404:
            shown: SpillwayError = NotFound(
                "There is no such page.", hint="The overview shows what there is."
            )
        else:
            shown = SpillwayError(str(error.detail))
        response = self.problem(request, shown)
        response.status_code = error.status_code
        return response

    async def _unexpected(self, request: Request, error: Exception) -> Response:  # noqa: ARG002
        return self.problem(
            request,
            SpillwayError(
                "Something went wrong inside the service.",
                hint="Its log says what; please report it.",
            ),
        )


class _Immutable(StaticFiles):
    """Files whose address has their content's hash in it."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response
