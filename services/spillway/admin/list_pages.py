"""The lists: sources, slots, subscriptions, consumers.

What is searched, sorted and filtered is in the address, so a list can be handed on and comes back
as it was left; the page's own stream follows that address. Bulk actions ask first: what is ticked
is listed with what becomes of it, and what destroys asks for words to be typed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from spillway.admin.forms import Form
from spillway.admin.listing import Asked, Column, Kind, Listing, listed
from spillway.admin.live import changed_regions
from spillway.admin.page_group import PageGroup
from spillway.errors import InvalidRequest, NotFound, SpillwayError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from spillway.service.model import Consumer
    from spillway.subscriber.model import SubscriptionInfo
    from spillway.watch.sampler import View
    from spillway.watch.views import SlotView, SourceView

#: things of one bulk action
_BULK_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A source of the list."""

    view: SourceView
    severity: str | None
    slots: int

    @property
    def name(self) -> str:
        return self.view.info.name

    @property
    def state(self) -> str:
        return self.view.info.state

    @property
    def source(self) -> str:
        return self.name

    @property
    def text(self) -> str:
        databases = " ".join(session.database for session in self.view.info.sessions)
        return f"{self.name} {self.state} {self.view.info.dsn} {databases}"


@dataclass(frozen=True, slots=True)
class SlotRow:
    """A slot of the list."""

    view: SlotView
    severity: str | None

    @property
    def name(self) -> str:
        return self.view.info.slot_name

    @property
    def state(self) -> str:
        return self.view.state

    @property
    def source(self) -> str:
        return self.view.info.source

    @property
    def text(self) -> str:
        info = self.view.info
        who = info.consumer.shortly if info.consumer else ""
        return f"{info.slot_name} {self.state} {info.source} {info.database} {info.plugin} {who}"


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """A subscription of the list."""

    info: SubscriptionInfo
    severity: str | None

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def state(self) -> str:
        return self.info.state

    @property
    def source(self) -> str:
        return self.info.source

    @property
    def tables(self) -> tuple[int, int] | None:
        """How many of its tables are ready, of how many; None: it has not told yet."""
        states = self.info.table_states
        if not states:
            return None
        return sum(table.state == "ready" for table in states), len(states)

    @property
    def text(self) -> str:
        one = self.info
        target = f"{one.target.get('kind')} {one.target.get('format', '')} "
        return f"{one.name} {one.state} {one.source} {one.database} {target}{one.slot}"


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """A consumer of the list: who has a slot."""

    view: SlotView
    consumer: Consumer
    severity: str | None

    @property
    def name(self) -> str:
        """The slot's: what is ticked."""
        return self.view.info.slot_name

    @property
    def called(self) -> str:
        """What it calls itself."""
        one = self.consumer
        return one.subscription or one.program or one.user or f"a {one.kind}"

    @property
    def state(self) -> str:
        """What it speaks."""
        return self.consumer.protocol or "unknown"

    @property
    def source(self) -> str:
        return self.view.info.source

    @property
    def text(self) -> str:
        one, info = self.consumer, self.view.info
        parts = (self.called, one.client, one.address, one.user, one.subscription, self.state)
        return " ".join(filter(None, (*parts, info.slot_name, info.source, info.database)))


def _behind(row: SourceRow) -> float | None:
    return row.view.behind_bytes


SOURCES: Final = Kind(
    "sources",
    (
        Column("name", "Name", lambda row: row.name),
        Column("state", "State", lambda row: row.state),
        Column("version", "PostgreSQL", lambda row: row.view.info.server_version_num),
        Column("databases", "Databases", lambda row: len(row.view.info.sessions)),
        Column("slots", "Slots", lambda row: row.slots, is_number=True),
        Column("received", "Received", lambda row: row.view.info.received_lsn, is_number=True),
        Column("behind", "To decode", _behind, is_number=True),
        Column("rate", "Throughput", lambda row: row.view.received_rate, is_number=True),
    ),
)
SLOTS: Final = Kind(
    "slots",
    (
        Column("name", "Name", lambda row: row.name),
        Column("state", "State", lambda row: row.state),
        Column("consumer", "Consumer", lambda row: _called(row.view.info.consumer)),
        Column("source", "Source / database", lambda row: (row.source, row.view.info.database)),
        Column("plugin", "Plugin", lambda row: row.view.info.plugin),
        Column("lag", "Lag", lambda row: row.view.lag_bytes, is_number=True),
        Column("lag_time", "Lag in time", lambda row: row.view.lag_seconds, is_number=True),
        Column("retained", "Retained", lambda row: row.view.info.retained_bytes, is_number=True),
        Column("rate", "Confirmed", lambda row: row.view.rate, is_number=True),
    ),
)
SUBSCRIPTIONS: Final = Kind(
    "subscriptions",
    (
        Column("name", "Name", lambda row: row.name),
        Column("state", "State", lambda row: row.state),
        Column("source", "Source / database", lambda row: (row.source, row.info.database)),
        Column("target", "Target", lambda row: str(row.info.target.get("kind"))),
        Column("tables", "Tables", lambda row: row.tables and row.tables[1], is_number=True),
        Column("lag", "Lag", lambda row: row.info.lag_bytes, is_number=True),
        Column("lag_time", "Freshness", lambda row: row.info.lag_seconds, is_number=True),
        Column("rows", "Changes written", lambda row: row.info.rows, is_number=True),
        Column("restarts", "Restarts", lambda row: row.info.restarts, is_number=True),
    ),
)
CONSUMERS: Final = Kind(
    "consumers",
    (
        Column("name", "Consumer", lambda row: row.called),
        Column("state", "Protocol", lambda row: row.state),
        Column("address", "Address", lambda row: row.consumer.address),
        Column("slot", "Slot", lambda row: row.name),
        Column("since", "Since", lambda row: row.consumer.since),
        Column("heard", "Acknowledged", lambda row: row.consumer.last_feedback_at),
        Column("lag", "Lag", lambda row: row.view.lag_bytes, is_number=True),
        Column("lag_time", "Lag in time", lambda row: row.view.lag_seconds, is_number=True),
    ),
)
_KINDS: Final = {kind.name: kind for kind in (SOURCES, SLOTS, SUBSCRIPTIONS, CONSUMERS)}


def _called(consumer: Consumer | None) -> str | None:
    return None if consumer is None else consumer.shortly


def rows_of(kind: Kind, view: View) -> list[Any]:
    """Give the rows of a list."""
    if kind is SOURCES:
        return [
            SourceRow(one, view.severity(f"/ui/sources/{one.info.name}"), len(view.slots_of(name)))
            for one in view.sources
            if (name := one.info.name)
        ]
    if kind is SUBSCRIPTIONS:
        return [
            SubscriptionRow(one, view.severity(f"/ui/subscriptions/{one.name}"))
            for one in view.subscriptions
        ]
    severities = {
        slot.info.slot_name: view.severity(f"/ui/slots/{slot.info.slot_name}")
        for slot in view.slots
    }
    if kind is SLOTS:
        return [SlotRow(slot, severities[slot.info.slot_name]) for slot in view.slots]
    return [
        ConsumerRow(slot, slot.info.consumer, severities[slot.info.slot_name])
        for slot in view.slots
        if slot.info.consumer is not None
    ]


@dataclass(frozen=True, slots=True)
class Bulk:
    """Something that can be done with all that is ticked."""

    verb: str
    #: on its button
    title: str
    #: what becomes of each
    means: str
    #: asks for words to be typed
    destroys: bool = False


_END_SESSION: Final = Bulk(
    "end-session",
    "End sessions",
    "The sessions of their consumers end with an error there, and others may take the slots. What "
    "was not confirmed comes again.",
)
_BULK: Final[dict[str, tuple[Bulk, ...]]] = {
    "sources": (
        Bulk(
            "drop",
            "Drop",
            "Receiving ends, the physical slots on the primaries are dropped, and what is stored "
            "here is deleted. A source that still has slots is left as it is.",
            destroys=True,
        ),
    ),
    "slots": (
        _END_SESSION,
        Bulk(
            "advance",
            "Advance",
            "They go forward to what is decoded now: their consumers never get what is passed "
            "over.",
            destroys=True,
        ),
        Bulk(
            "drop",
            "Drop",
            "The slots and their positions are gone; their consumers can't go on.",
            destroys=True,
        ),
    ),
    "subscriptions": (
        Bulk("enable", "Enable", "Their programs are started, and go on where they were."),
        Bulk("disable", "Disable", "Their programs are stopped; their slots keep what commits."),
        Bulk("refresh", "Refresh", "They look again which tables their publications have."),
        Bulk(
            "drop",
            "Drop",
            "Their programs are stopped and their slots dropped. What is in the targets stays.",
            destroys=True,
        ),
    ),
    "consumers": (_END_SESSION,),
}


class ListPages(PageGroup):
    """``/ui/sources``, ``/ui/slots``, ``/ui/subscriptions``, ``/ui/consumers``."""

    def routes(self) -> list[Route]:
        return [
            *(
                route
                for name in _KINDS
                for route in (
                    Route(f"/ui/{name}", self._show, methods=["GET"]),
                    Route(f"/ui/{name}/bulk", self._bulk, methods=["POST"]),
                )
            ),
            Route("/ui/live/list/{kind}", self._live),
        ]

    # -- looking ------------------------------------------------------------------------------

    async def _show(self, request: Request) -> Response:
        self._sampler.watch()
        kind = _KINDS[request.scope["path"].rpartition("/")[2]]
        view = await self._sampler.look()
        values = self._values(kind, view, Asked.of(request.query_params))
        if request.headers.get("hx-target") == "list":
            return HTMLResponse(self._pages.text("lists/list.html", **values))
        return self._pages.page(
            request,
            "list.html",
            **self._live_at(f"/ui/live/list/{kind.name}"),
            bulk=_BULK[kind.name],
            **values,
        )

    async def _live(self, request: Request) -> Response:
        kind = _KINDS.get(request.path_params["kind"])
        if kind is None:
            raise NotFound("There is no such list.", hint="The overview shows what there is.")
        asked = Asked.of(request.query_params)

        async def render() -> dict[str, str]:
            self._sampler.watch()
            values = self._values(kind, self._sampler.view, asked)
            return {"list": self._pages.text("lists/list.html", **values)}

        return self._streams.respond(changed_regions(render, self._sampler))

    def _values(self, kind: Kind, view: View, asked: Asked) -> dict[str, Any]:
        rows = rows_of(kind, view)
        sources = sorted({row.source for row in rows})
        of_source = [row for row in rows if asked.source in ("", row.source)]
        listing: Listing = listed(kind, of_source, asked)
        return {"view": view, "listing": listing, "sources": sources, "there": len(rows)}

    # -- doing --------------------------------------------------------------------------------

    async def _bulk(self, request: Request) -> Response:
        """Ask about what is ticked, or do it once that was answered."""
        kind = _KINDS[request.scope["path"].split("/")[2]]
        form = Form(request)
        names = list(dict.fromkeys(form.texts("name")))
        bulk = next((one for one in _BULK[kind.name] if one.verb == form.text("action")), None)
        if bulk is None:
            raise InvalidRequest("There is no such action.", hint="Reload the page and try again.")
        if not names:
            raise InvalidRequest("Nothing is ticked.", hint="Tick what it is to be done with.")
        if len(names) > _BULK_MAX:
            raise InvalidRequest(
                f"{len(names)} are ticked; {_BULK_MAX} go at once.", hint="Tick fewer."
            )
        words = f"{bulk.verb} {len(names)}" if bulk.destroys else ""
        asks = {"kind": kind, "bulk": bulk, "names": names, "words": words}
        if not form.flag("sure"):
            return HTMLResponse(
                self._pages.text("lists/ask.html", csrf=request.state.csrf, wrong=False, **asks)
            )
        if form.text("confirm") != words:
            return HTMLResponse(
                self._pages.text("lists/ask.html", csrf=request.state.csrf, wrong=True, **asks)
            )
        did = self._doing(kind.name, bulk.verb)
        outcome: list[tuple[str, SpillwayError | None]] = []
        # Of subscriptions that were dropped: what stays on their targets.
        left: list[str] = []
        for name in names:
            try:
                told = await did(name)
            except SpillwayError as error:
                outcome.append((name, error))
            else:
                outcome.append((name, None))
                if told and bulk.verb == "drop":
                    left.append(name)
        await self._sampler.look()
        return HTMLResponse(
            self._pages.text("lists/done.html", bulk=bulk, outcome=outcome, left=left)
        )

    def _doing(self, kind: str, verb: str) -> Callable[[str], Awaitable[Any]]:
        does: dict[tuple[str, str], Callable[[str], Awaitable[Any]]] = {
            ("sources", "drop"): self._drop_source,
            ("slots", "end-session"): self._engine.end_session,
            ("slots", "advance"): self._advance,
            ("slots", "drop"): self._engine.drop_slot,
            ("subscriptions", "enable"): self._subscriptions.enable,
            ("subscriptions", "disable"): self._subscriptions.disable,
            ("subscriptions", "refresh"): self._subscriptions.refresh,
            ("subscriptions", "drop"): self._subscriptions.drop,
            ("consumers", "end-session"): self._engine.end_session,
        }
        return does[kind, verb]

    async def _drop_source(self, name: str) -> None:
        await self._subscriptions.check_unused(name)
        await self._engine.drop_source(name)

    async def _advance(self, name: str) -> None:
        upto = (await self._engine.get_slot(name)).decoded_lsn
        if upto is None:
            raise InvalidRequest(
                "Nothing is decoded yet.", hint="The source's page shows how far it is."
            )
        await self._engine.advance(name, upto)
