"""What the charts ask for: how something was, and what happened meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse
from starlette.routing import Route

from spillway.admin.charts import MARKS_MAX, RANGES, ddl_mark, marks_of, series_of
from spillway.admin.page_group import PageGroup
from spillway.errors import InvalidRequest
from spillway.watch.past import KINDS

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from spillway.alerts.registry import Alerts
    from spillway.watch.past import Past
    from spillway.watch.timeline import Timeline


class PastPages(PageGroup):
    """``/ui/past``."""

    def __init__(
        self, past: Past | None, alerts: Alerts | None, timeline: Timeline | None, *parts: Any
    ) -> None:
        super().__init__(*parts)
        self._past = past
        self._alerts = alerts
        self._timeline = timeline

    def routes(self) -> list[Route]:
        return [
            Route("/ui/past/{kind}/{name}", self._series),
            Route("/ui/past/{kind}/{name}/marks", self._marks),
        ]

    async def _series(self, request: Request) -> Response:
        kind, name, reach = _asked(request)
        track = self._sampler.track(kind, name)
        return JSONResponse(await series_of(track, self._past, kind, name, reach))

    async def _marks(self, request: Request) -> Response:
        kind, name, reach = _asked(request)
        since = datetime.now(UTC) - timedelta(seconds=RANGES[reach])
        source = self._source_of(kind, name)
        marks = marks_of(await self._events(kind, name, since), kind, name, source)
        if self._timeline is not None and source is not None:
            changes = await self._timeline.last(
                MARKS_MAX, since=since, source=source, database=self._database_of(kind, name)
            )
            marks += [ddl_mark(change) for change in changes]
        marks.sort(key=lambda mark: mark["at"])
        return JSONResponse(marks[-MARKS_MAX:])

    async def _events(self, kind: str, name: str, since: datetime) -> list[Any]:
        if self._alerts is None:
            return []
        source = self._source_of(kind, name)
        questions: list[dict[str, Any]] = [{kind: name}, {"kind": "started"}, {"kind": "stopped"}]
        if source is not None and kind != "source":
            questions.append({"source": source})
        found: list[Any] = []
        for where in questions:
            found += await self._alerts.events(MARKS_MAX, since=since, **where)
        return found

    def _source_of(self, kind: str, name: str) -> str | None:
        view = self._sampler.view
        if kind == "slot":
            slot = view.slot(name)
            return None if slot is None else slot.info.source
        if kind == "subscription":
            one = view.subscription(name)
            return None if one is None else one.source
        return name

    def _database_of(self, kind: str, name: str) -> str | None:
        view = self._sampler.view
        if kind == "slot":
            slot = view.slot(name)
            return None if slot is None else slot.info.database
        one = view.subscription(name) if kind == "subscription" else None
        return None if one is None else one.database


def _asked(request: Request) -> tuple[str, str, str]:
    kind, name = request.path_params["kind"], request.path_params["name"]
    reach = request.query_params.get("range", "15m")
    if kind not in KINDS or reach not in RANGES:
        raise InvalidRequest(
            f"{kind}, {reach} is no chart",
            hint=f"There are {', '.join(KINDS)}, and {', '.join(RANGES)}.",
        )
    return kind, name, reach
