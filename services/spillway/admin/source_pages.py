"""A source: what is received and decoded of it, and the form that adds one.

To add one is two steps: the check, which changes nothing and lists all that is missing with the SQL
that mends it, and the adding, which is offered when nothing is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from psycopg.conninfo import make_conninfo
from starlette.responses import Response
from starlette.routing import Route

from spillway.admin.equivalents import equivalents_of
from spillway.admin.forms import Form, confirm_name, done
from spillway.admin.live import changed_regions
from spillway.admin.page_group import PageGroup
from spillway.errors import InvalidRequest, SourceError, SpillwayError, UnknownSource

if TYPE_CHECKING:
    from starlette.requests import Request

    from spillway.service.model import TableInfo
    from spillway.watch.views import SourceView

_TABLES_SHOWN: Final = 200
#: … of so many that are looked at every half minute
_TABLES_LOOKED: Final = 1000


class SourcePages(PageGroup):
    """``/ui/sources``."""

    def routes(self) -> list[Route]:
        return [
            Route("/ui/sources", self._create, methods=["POST"]),
            Route("/ui/sources/new", self._new),
            Route("/ui/sources/check", self._check, methods=["POST"]),
            Route("/ui/sources/as-commands", self._as_commands, methods=["POST"]),
            Route("/ui/sources/{name}", self._show),
            Route("/ui/sources/{name}/tables", self._tables),
            Route("/ui/sources/{name}/alter", self._alter, methods=["POST"]),
            Route("/ui/sources/{name}/drop", self._drop, methods=["POST"]),
            Route("/ui/live/sources/{name}", self._live),
        ]

    # -- looking ------------------------------------------------------------------------------

    async def _show(self, request: Request) -> Response:
        self._sampler.watch()
        name = request.path_params["name"]
        await self._sampler.look()
        return self._pages.page(
            request,
            "source.html",
            **self._live_at(f"/ui/live/sources/{name}"),
            note=request.query_params.get("note", ""),
            **self._values(self._find(name)),
        )

    async def _live(self, request: Request) -> Response:
        name = request.path_params["name"]

        async def render() -> dict[str, str] | None:
            self._sampler.watch()
            source = self._sampler.view.source(name)
            if source is None:
                return None
            values = self._values(source)
            return {
                region: self._pages.text(f"source/{region}.html", **values)
                for region in ("state", "keeps", "facts", "sessions", "slots")
            }

        return self._streams.respond(changed_regions(render, self._sampler))

    async def _tables(self, request: Request) -> Response:
        """Give a database's tables, as the mirrored catalog has them: those with something in their
        way first.
        """
        name = request.path_params["name"]
        problem: SpillwayError | None = None
        tables: list[TableInfo] = []
        following: int | None = None
        database = request.query_params.get("database", "")
        try:
            tables, following = await self._engine.list_tables(name, database, 0, _TABLES_LOOKED)
        except SpillwayError as error:
            problem = error
        tables.sort(key=lambda table: (not table.warnings, table.schema, table.name))
        text = self._pages.text(
            "source/tables.html",
            name=name,
            problem=problem,
            tables=tables[:_TABLES_SHOWN],
            left_out=max(0, len(tables) - _TABLES_SHOWN),
            looked=None if following is None else len(tables),
            database=database,
        )
        return Response(text, media_type="text/html")

    def _find(self, name: str) -> SourceView:
        source = self._sampler.view.source(name)
        if source is None:
            raise UnknownSource(
                f'There is no source "{name}".', hint="The overview shows what there is."
            )
        return source

    def _values(self, source: SourceView) -> dict[str, Any]:
        view = self._sampler.view
        link = f"/ui/sources/{source.info.name}"
        return {
            "view": view,
            "source": source,
            "findings": [finding for finding in view.findings if finding.link == link],
            "slots": view.slots_of(source.info.name),
        }

    # -- adding, altering and dropping --------------------------------------------------------

    async def _new(self, request: Request) -> Response:
        return self._pages.page(request, "new_source.html", live="")

    async def _check(self, request: Request) -> Response:
        form = Form(request)
        problems: list[dict[str, Any]] = []
        facts = None
        try:
            facts = await self._engine.check_source(form.text("name"), _dsn(form))
        except SpillwayError as error:
            problems = _problems(error)
        text = self._pages.text("parts/source_check.html", facts=facts, problems=problems)
        return Response(text, media_type="text/html")

    async def _as_commands(self, request: Request) -> Response:
        form = Form(request)
        body = {"name": form.text("name"), "capture": _capture(form)}
        text = self._pages.text(
            "parts/equivalents.html", equivalents=equivalents_of("source", body)
        )
        return Response(text, media_type="text/html")

    async def _create(self, request: Request) -> Response:
        form = Form(request)
        try:
            source = await self._engine.create_source(form.text("name"), _dsn(form), _capture(form))
        except SourceError as error:
            return self._missing(error)
        await self._sampler.look()
        return done(request, f"/ui/sources/{source.name}?note=added")

    async def _alter(self, request: Request) -> Response:
        name = request.path_params["name"]
        try:
            await self._engine.alter_source(name, Form(request).text("dsn"))
        except SourceError as error:
            return self._missing(error)
        await self._sampler.look()
        return done(request, f"/ui/sources/{name}?note=altered")

    def _missing(self, error: SourceError) -> Response:
        text = self._pages.text("parts/source_check.html", facts=None, problems=_problems(error))
        return Response(text, status_code=error.http_status, media_type="text/html")

    async def _drop(self, request: Request) -> Response:
        name = request.path_params["name"]
        form = Form(request)
        confirm_name(form, name)
        await self._subscriptions.check_unused(name)
        await self._engine.drop_source(name, keep_slot=form.flag("keep_slot"))
        await self._sampler.look()
        return done(request, "/")


def _capture(form: Form) -> dict[str, Any]:
    return {
        "origin": "none" if form.flag("capture_origin") else "any",
        "tables": form.lines("capture_tables"),
        "publications": form.lines("capture_publications"),
    }


def _dsn(form: Form) -> str:
    """Make the connection string of the fields, unless one was given whole."""
    if dsn := form.text("dsn"):
        return dsn
    fields = ("host", "port", "dbname", "user")
    given: dict[str, Any] = {name: form.text(name) for name in fields if form.text(name)}
    if password := form.secret("password"):
        given["password"] = password
    if "host" not in given:
        raise InvalidRequest(
            "Where is the server?", hint="Give its host name, or a connection string."
        )
    return make_conninfo("", **given)


def _problems(error: SpillwayError) -> list[dict[str, Any]]:
    listed = error.details.get("problems")
    if isinstance(listed, list):
        return listed
    return [{"code": error.code, "message": error.message, "hint": error.hint}]
