"""What changed in the schema: what DDL did to tables, in words, and what each subscription made of
it. What is asked is in the address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from starlette.responses import HTMLResponse
from starlette.routing import Route

from spillway.admin.page_group import PageGroup
from spillway.errors import InvalidRequest, SpillwayError
from spillway.watch.newest_first import Page
from spillway.watch.timeline import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from spillway.watch.timeline import SchemaChange, Timeline

_LIMIT: Final = 50
#: of one subscription, and among how many they are looked for
_OF_SUBSCRIPTION: Final = 5
_LOOKED_AT: Final = 200
_DIGITS_MAX: Final = 16
_FIELDS: Final = ("source", "database", "table")


class SchemaPages(PageGroup):
    """``/ui/schema``."""

    def __init__(self, timeline: Timeline, *parts: Any) -> None:
        super().__init__(*parts)
        self._timeline = timeline

    def routes(self) -> list[Route]:
        return [
            Route("/ui/schema", self._show),
            Route("/ui/schema/of/{subscription}", self._of_subscription),
        ]

    async def _of_subscription(self, request: Request) -> Response:
        """Give the last changes that a subscription has to do with."""
        one = await self._subscriptions.get(request.path_params["subscription"])
        found = await self._timeline.last(_LOOKED_AT, source=one.source, database=one.database)
        mine = [change for change in found if one.name in change.outcomes][:_OF_SUBSCRIPTION]
        return HTMLResponse(
            self._pages.text("subscription/schema.html", one=one, changes=mine, outcomes=OUTCOMES)
        )

    async def _show(self, request: Request) -> Response:
        view = self._sampler.view
        asked = {name: request.query_params.get(name, "").strip() for name in _FIELDS}
        before = request.query_params.get("before", "")
        page: Page[SchemaChange] = Page([], None)
        problem: SpillwayError | None = None
        try:
            if before and not (
                before.isascii() and before.isdecimal() and len(before) < _DIGITS_MAX
            ):
                raise InvalidRequest(
                    f"before is {before!r}.", hint="It is a number; begin with the newest again."
                )
            page = await self._timeline.page(
                _LIMIT,
                before=int(before) if before else None,
                **{name: value or None for name, value in asked.items()},
            )
        except SpillwayError as error:
            problem = error
        return self._pages.page(
            request,
            "schema.html",
            live="",
            asked=asked,
            is_asked=any(asked.values()),
            problem=problem,
            changes=page.items,
            outcomes=OUTCOMES,
            sources=[source.info.name for source in view.sources],
            subscriptions={one.name for one in view.subscriptions},
            is_first=not before,
            first=_address(asked),
            following=(
                None
                if page.next_before is None
                else _address({**asked, "before": str(page.next_before)})
            ),
        )


def _address(query: Mapping[str, str]) -> str:
    found = {name: value for name, value in query.items() if value}
    return "/ui/schema" + ("?" + urlencode(found) if found else "")
