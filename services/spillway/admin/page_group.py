"""A group of the admin UI's pages: what each of them is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.routing import Route

    from spillway.admin.live import Streams
    from spillway.admin.rendering import Pages
    from spillway.service.interface import EngineInterface
    from spillway.subscriber.interface import SubscriptionInterface
    from spillway.watch.sampler import Sampler


class PageGroup(ABC):
    """Pages about one kind of thing. Made once for a service."""

    def __init__(
        self,
        pages: Pages,
        engine: EngineInterface,
        subscriptions: SubscriptionInterface,
        sampler: Sampler,
        streams: Streams,
    ) -> None:
        self._pages = pages
        self._engine = engine
        self._subscriptions = subscriptions
        self._sampler = sampler
        self._streams = streams

    def _live_at(self, address: str) -> Mapping[str, Any]:
        """Give what a page is told whose parts follow by the stream at *address*: that, and as of
        when the page is as it is rendered now.
        """
        seen_at = self._sampler.view.seen_at
        return {"live": address, "seen_at": "" if seen_at is None else seen_at.isoformat()}

    @abstractmethod
    def routes(self) -> list[Route]:
        """Return what the application serves of it."""
