"""Events: what happened, and who did what, of 30 days. What is asked is in the address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from starlette.routing import Route

from spillway.admin.forms import moment_of
from spillway.admin.page_group import PageGroup
from spillway.errors import InvalidRequest, SpillwayError
from spillway.watch.newest_first import Page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from spillway.alerts.registry import Alerts

#: events of one page
_LIMIT: Final = 50
_DIGITS_MAX: Final = 16
_FIELDS: Final = ("search", "kind", "severity", "source", "slot", "subscription", "since")
#: kinds of events, in a person's words
KINDS: Final = {
    "problem": "what went wrong",
    "resolved": "what is over",
    "action": "who did what",
    "message": "who was not told",
    "taken": "who serves a source",
    "started": "starts",
    "stopped": "stops",
}
SEVERITIES: Final = ("bad", "warn", "ok", "info")


class EventPages(PageGroup):
    """``/ui/events``."""

    def __init__(self, alerts: Alerts, *parts: Any) -> None:
        super().__init__(*parts)
        self._alerts = alerts

    def routes(self) -> list[Route]:
        return [Route("/ui/events", self._show)]

    async def _show(self, request: Request) -> Response:
        view = self._sampler.view
        asked = {name: request.query_params.get(name, "").strip() for name in _FIELDS}
        page: Page[Any] = Page([], None)
        problem: SpillwayError | None = None
        try:
            page = await self._find(asked, request.query_params.get("before", ""))
        except SpillwayError as error:
            problem = error
        return self._pages.page(
            request,
            "events.html",
            live="",
            asked=asked,
            is_asked=any(asked.values()),
            kinds=KINDS,
            severities=SEVERITIES,
            problem=problem,
            events=page.items,
            # What an event names may be gone: only what is there is a link.
            there={
                "source": {source.info.name for source in view.sources},
                "slot": {slot.info.slot_name for slot in view.slots},
                "subscription": {one.name for one in view.subscriptions},
            },
            is_first="before" not in request.query_params,
            first=address(asked),
            following=(
                None
                if page.next_before is None
                else address({**asked, "before": str(page.next_before)})
            ),
        )

    async def _find(self, asked: Mapping[str, str], before: str) -> Page[Any]:
        if before and not (before.isascii() and before.isdecimal() and len(before) < _DIGITS_MAX):
            raise InvalidRequest(
                f"before is {before!r}.", hint="It is a number; begin with the newest again."
            )
        where = ("kind", "severity", "source", "slot", "subscription")
        return await self._alerts.page_of_events(
            _LIMIT,
            before=int(before) if before else None,
            since=moment_of(asked["since"]),
            search=asked["search"] or None,
            **{name: asked[name] or None for name in where},
        )


def address(query: Mapping[str, str]) -> str:
    """Return the page's address for a question."""
    found = {name: value for name, value in query.items() if value}
    return "/ui/events" + ("?" + urlencode(found) if found else "")
