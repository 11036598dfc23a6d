"""The overview: problems first, then sources, slots, and what the primaries keep."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from starlette.routing import Route

from spillway.admin.live import changed_regions
from spillway.admin.page_group import PageGroup
from spillway.watch.sampler import pinned

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from spillway.watch.sampler import View


class OverviewPages(PageGroup):
    """``/``."""

    def routes(self) -> list[Route]:
        return [Route("/", self._show), Route("/ui/live/overview", self._live)]

    async def _show(self, request: Request) -> Response:
        self._sampler.watch()
        view = await self._sampler.look()
        return self._pages.page(
            request, "overview.html", live="/ui/live/overview", **self._values(view)
        )

    async def _live(self, request: Request) -> Response:  # noqa: ARG002 - a route's form
        async def render() -> dict[str, str]:
            self._sampler.watch()
            values = self._values(self._sampler.view)
            return {
                name: self._pages.text(f"overview/{name}.html", **values)
                for name in ("totals", "findings", "sources", "subscriptions", "slots")
            }

        return self._streams.respond(changed_regions(render, self._sampler.next_look))

    def _values(self, view: View) -> dict[str, Any]:
        lags = [slot.lag_seconds for slot in view.slots if slot.lag_seconds is not None]
        rates = [s.received_rate for s in view.sources if not math.isnan(s.received_rate)]
        retained = [s.info.retained_bytes for s in view.slots if s.info.retained_bytes is not None]
        usable = [s for s in view.slots if s.info.invalidation_reason is None]
        return {
            "view": view,
            "longest_lag": max(lags, default=None),
            # Slots whose lag nobody knows: the longest may be among them.
            "unknown_lags": sum(slot.lag_seconds is None for slot in usable),
            "retained": sum(retained) if retained or not view.slots else None,
            "received_rate": sum(rates) if rates else None,
            "pinned": pinned(view),
            "received": {s.info.name: self._spark("source", s.info.name) for s in view.sources},
            "lag": {s.info.slot_name: self._spark("slot", s.info.slot_name) for s in view.slots},
        }

    def _spark(self, kind: str, name: str) -> list[float]:
        """Give what a sparkline draws: the last five minutes."""
        track = self._sampler.track(kind, name)
        if track is None:
            return []
        column = "rate" if kind == "source" else "lag_bytes"
        return list(track.series(column)[1][-150:])
