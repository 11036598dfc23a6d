"""The overview: problems first, then each source as what flows from it, then what is kept."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from starlette.routing import Route

from spillway.admin.flow import flows_of
from spillway.admin.live import changed_regions
from spillway.admin.page_group import PageGroup
from spillway.watch.sampler import pinned

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from spillway.watch.sampler import View

#: the others are folded
_FINDINGS_SHOWN: Final = 3


class OverviewPages(PageGroup):
    """``/``."""

    def routes(self) -> list[Route]:
        return [Route("/", self._show), Route("/ui/live/overview", self._live)]

    async def _show(self, request: Request) -> Response:
        self._sampler.watch()
        view = await self._sampler.look()
        return self._pages.page(
            request, "overview.html", **self._live_at("/ui/live/overview"), **self._values(view)
        )

    async def _live(self, request: Request) -> Response:  # noqa: ARG002 - a route's form
        async def render() -> dict[str, str]:
            self._sampler.watch()
            values = self._values(self._sampler.view)
            return {
                name: self._pages.text(f"overview/{name}.html", **values)
                for name in ("findings", "flow", "totals")
            }

        return self._streams.respond(changed_regions(render, self._sampler))

    def _values(self, view: View) -> dict[str, Any]:
        lags = [slot.lag_seconds for slot in view.slots if slot.lag_seconds is not None]
        rates = [s.received_rate for s in view.sources if not math.isnan(s.received_rate)]
        retained = [s.info.retained_bytes for s in view.slots if s.info.retained_bytes is not None]
        usable = [s for s in view.slots if s.info.invalidation_reason is None]
        flows = flows_of(view)
        return {
            "view": view,
            "longest_lag": max(lags, default=None),
            # Slots whose lag nobody knows: the longest may be among them.
            "unknown_lags": sum(slot.lag_seconds is None for slot in usable),
            "retained": sum(retained) if retained or not view.slots else None,
            "received_rate": sum(rates) if rates else None,
            "pinned": pinned(view),
            "flows": flows,
            "shown_findings": _FINDINGS_SHOWN,
            "lag": {
                name: self._lags(name)
                for flow in flows.shown
                for reader in flow.readers
                if (name := reader.slot.info.slot_name)
            },
        }

    def _lags(self, slot: str) -> list[float]:
        """Give what a sparkline draws: the last five minutes."""
        track = self._sampler.track("slot", slot)
        return [] if track is None else list(track.series("lag_bytes")[1][-150::3])
