"""A slot: what it is, how far its consumer is, what comes next, and what can be done with it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from spillway.admin.changes import OPERATIONS, Filter, rows_of
from spillway.admin.equivalents import equivalents_of
from spillway.admin.forms import Form, confirm_name, databases_of, done, moment_of
from spillway.admin.live import changed_regions, event
from spillway.admin.page_group import PageGroup
from spillway.admin.position_bar import PositionBar, position_bar
from spillway.errors import InvalidRequest, SpillwayError, UnknownSlot
from spillway.pg.lsn import Lsn
from spillway.service.model import ChangeQuery, SlotSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from spillway.service.model import Position, SlotInfo, SlotStats
    from spillway.watch.sampler import View
    from spillway.watch.views import SlotView

#: what a page of changes looks at
_PEEKED_CHANGES: Final = 200
#: what the tail takes at a time; the page keeps as many rows
_TAIL_CHANGES: Final = 200
_TAIL_POLL_S: Final = 0.5
#: how long a position is looked for
_LOOK_S: Final = 20.0
#: of a number in an address
_DIGITS_MAX: Final = 16

#: the built-in plugins, in a person's words
PLUGINS: Final = {
    "test_decoding": (
        "Readable lines, as PostgreSQL's own example plugin writes them. Good to look around."
    ),
    "pgoutput": (
        "The protocol of PostgreSQL's subscriptions. Options: proto_version and publication_names."
    ),
    "wal2json": "JSON, a document a transaction or (format-version = 2) a change.",
    "arrow": "Arrow record batches: what the lake and Spark read.",
}
_PLUGIN_OPTIONS: Final = {"pgoutput": "proto_version = 2\npublication_names = "}


class SlotPages(PageGroup):
    """``/ui/slots``."""

    def routes(self) -> list[Route]:
        slot = "/ui/slots/{name}"
        return [
            Route("/ui/slots", self._create, methods=["POST"]),
            Route("/ui/slots/new", self._new),
            Route("/ui/slots/as-commands", self._as_commands, methods=["POST"]),
            Route("/ui/slots/database", self._database),
            Route(slot, self._show),
            Route(f"{slot}/changes", self._changes),
            Route(f"{slot}/tail", self._tail),
            Route(f"{slot}/advance", self._advance, methods=["POST"]),
            Route(f"{slot}/rewind", self._find_position, methods=["GET"]),
            Route(f"{slot}/rewind", self._rewind, methods=["POST"]),
            Route(f"{slot}/alter", self._alter, methods=["POST"]),
            Route(f"{slot}/copy", self._copy, methods=["POST"]),
            Route(f"{slot}/end-session", self._end_session, methods=["POST"]),
            Route(f"{slot}/drop", self._drop, methods=["POST"]),
            Route("/ui/live/slots/{name}", self._live),
        ]

    # -- looking ------------------------------------------------------------------------------

    async def _show(self, request: Request) -> Response:
        self._sampler.watch()
        name = request.path_params["name"]
        await self._sampler.look()
        slot = self._find(name)
        return self._pages.page(
            request,
            "slot.html",
            **self._live_at(f"/ui/live/slots/{name}"),
            note=request.query_params.get("note", ""),
            operations=tuple(OPERATIONS.values()),
            **self._values(slot, await self._engine.slot_stats(name)),
        )

    async def _live(self, request: Request) -> Response:
        name = request.path_params["name"]

        async def render() -> dict[str, str] | None:
            slot = self._sampler.view.slot(name)
            if slot is None:
                return None
            try:
                stats = await self._engine.slot_stats(name)
            except UnknownSlot:
                return None
            values = self._values(slot, stats)
            return {
                region: self._pages.text(f"slot/{region}.html", **values)
                for region in (
                    "state",
                    "problems",
                    "consumer",
                    "position",
                    "attributes",
                    "counts",
                )
            }

        return self._streams.respond(changed_regions(render, self._sampler))

    def _find(self, name: str) -> SlotView:
        slot = self._sampler.view.slot(name)
        if slot is None:
            raise UnknownSlot(
                f'There is no slot "{name}".', hint="The overview shows what there is."
            )
        return slot

    def _values(self, slot: SlotView, stats: SlotStats) -> dict[str, Any]:
        view = self._sampler.view
        link = f"/ui/slots/{slot.info.slot_name}"
        return {
            "view": view,
            "slot": slot,
            "stats": stats,
            "findings": [finding for finding in view.findings if finding.link == link],
            "bar": _bar(view, slot.info),
        }

    # -- changes ------------------------------------------------------------------------------

    async def _changes(self, request: Request) -> Response:
        """Give a page of what comes next."""
        query = request.query_params
        name = request.path_params["name"]
        start = Lsn.parse(query["from"]) if query.get("from") else None
        skip = query.get("skip", "0")
        if not (skip.isdecimal() and len(skip) < _DIGITS_MAX):
            raise InvalidRequest(f"skip is {skip!r}", hint="It is a number of changes.")
        preview = await self._engine.preview(name, start, _PEEKED_CHANGES, int(skip))
        rows, seen = rows_of(preview.changes, _filter(request))
        return HTMLResponse(
            self._pages.text(
                "parts/changes.html",
                rows=rows,
                seen=seen,
                preview=preview,
                decoding=(await self._engine.get_slot(name)).decoding,
                name=name,
                start=start,
                skipped=int(skip),
                query={"table": query.get("table", ""), "op": query.get("op", "")},
            )
        )

    async def _tail(self, request: Request) -> Response:
        name = request.path_params["name"]
        slot = await self._engine.get_slot(name)
        start = slot.decoded_lsn or slot.confirmed_flush_lsn or Lsn(0)
        return self._streams.respond(self._tail_events(name, start, _filter(request)))

    async def _tail_events(self, name: str, start: Lsn, wanted: Filter) -> AsyncIterator[str]:
        """Follow what is decoded from *start* on; what comes faster than a page can show is
        counted, not shown.
        """
        while True:
            try:
                decoded = (await self._engine.get_slot(name)).decoded_lsn
                if decoded is None or decoded <= start:
                    await asyncio.sleep(_TAIL_POLL_S)
                    continue
                preview = await self._engine.preview(name, start, _TAIL_CHANGES)
            except UnknownSlot:
                yield event("gone", "")
                return
            except SpillwayError as error:
                yield event("problem", self._pages.text("parts/error.html", error=error))
                return
            rows, _ = rows_of(preview.changes, wanted)
            left_out = preview.cut
            if preview.more:
                # Faster than it can be read: go on with what is new by then.
                left_out, start = True, decoded
            else:
                start = max(start, preview.next_lsn)
            if rows or left_out:
                text = self._pages.text("parts/tail_rows.html", rows=rows, left_out=left_out)
                yield event("rows", text)
            await asyncio.sleep(_TAIL_POLL_S)

    # -- doing --------------------------------------------------------------------------------

    async def _new(self, request: Request) -> Response:
        view = await self._sampler.look()
        query = request.query_params
        chosen = query.get("source", view.sources[0].info.name if view.sources else "")
        return self._pages.page(
            request,
            "new_slot.html",
            live="",
            view=view,
            chosen=chosen,
            **databases_of(view, chosen),
            plugins=PLUGINS,
            others=[p.name for p in await self._engine.list_plugins() if p.name not in PLUGINS],
            plugin_options=_PLUGIN_OPTIONS,
        )

    async def _database(self, request: Request) -> Response:
        """Give the form's field for a database of another source."""
        found = databases_of(self._sampler.view, request.query_params.get("source", ""))
        return HTMLResponse(self._pages.text("parts/database_field.html", **found))

    async def _as_commands(self, request: Request) -> Response:
        form = Form(request)
        body: dict[str, Any] = {
            name: form.text(name) for name in ("slot_name", "source", "database", "plugin")
        }
        if options := form.options("options"):
            body["options"] = options
        if form.flag("two_phase"):
            body["two_phase"] = True
        if (start := form.lsn("start_lsn")) is not None:
            body["start_lsn"] = str(start)
        found = equivalents_of("slot", body)
        return HTMLResponse(self._pages.text("parts/equivalents.html", equivalents=found))

    async def _create(self, request: Request) -> Response:
        form = Form(request)
        slot = await self._engine.create_slot(
            SlotSpec(
                slot_name=form.text("slot_name"),
                source=form.text("source"),
                database=form.text("database"),
                plugin=form.text("plugin"),
                two_phase=form.flag("two_phase"),
                options=form.options("options"),
                start_lsn=form.lsn("start_lsn"),
            )
        )
        await self._sampler.look()
        return done(request, f"/ui/slots/{slot.slot_name}?note=created")

    async def _advance(self, request: Request) -> Response:
        name, form = request.path_params["name"], Form(request)
        upto = form.lsn("upto_lsn")
        if upto is None:
            # Everything that is decoded now.
            upto = (await self._engine.get_slot(name)).decoded_lsn
            if upto is None:
                raise InvalidRequest(
                    "Nothing is decoded yet.", hint="The source's page shows how far it is."
                )
        confirm_name(form, name)
        await self._engine.advance(name, upto)
        return await self._shown(request, "advanced")

    async def _find_position(self, request: Request) -> Response:
        """Find what was changed first at or after a time: where a slot goes back to."""
        name = request.path_params["name"]
        slot = await self._engine.get_slot(name)
        since = moment_of(request.query_params.get("before", "").strip())
        if since is None:
            raise InvalidRequest("A time is missing.", hint="Say when, to the second if you know.")
        after: Position | None = None
        deadline = time.monotonic() + _LOOK_S
        while True:
            page = await self._engine.find_changes(
                slot.source, slot.database, ChangeQuery(since=since, limit=1, after=after)
            )
            after = page.following
            if page.changes or after is None or time.monotonic() > deadline:
                break
        change = page.changes[0] if page.changes else None
        again = None
        if change is not None and slot.confirmed_flush_lsn is not None:
            again = int(slot.confirmed_flush_lsn) - int(change.commit_lsn)
        return HTMLResponse(
            self._pages.text(
                "slot/rewind.html",
                csrf=request.state.csrf,
                name=name,
                change=change,
                again_bytes=again if again is not None and again > 0 else None,
                forward_bytes=0 if again is None else max(0, -again),
                began_earlier=page.began_earlier,
                retained_from=page.retained_from,
                looked_upto=page.looked_upto_lsn if after is not None else None,
            )
        )

    async def _rewind(self, request: Request) -> Response:
        name, form = request.path_params["name"], Form(request)
        await self._engine.rewind(name, form.needed_lsn("lsn"))
        return await self._shown(request, "rewound")

    async def _alter(self, request: Request) -> Response:
        name = request.path_params["name"]
        await self._engine.alter_slot(name, Form(request).options("options"))
        return await self._shown(request, "altered")

    async def _copy(self, request: Request) -> Response:
        form = Form(request)
        copy = await self._engine.copy_slot(request.path_params["name"], form.text("new_name"))
        await self._sampler.look()
        return done(request, f"/ui/slots/{copy.slot_name}?note=copied")

    async def _end_session(self, request: Request) -> Response:
        await self._engine.end_session(request.path_params["name"])
        return await self._shown(request, "ended")

    async def _drop(self, request: Request) -> Response:
        name = request.path_params["name"]
        confirm_name(Form(request), name)
        await self._engine.drop_slot(name)
        await self._sampler.look()
        return done(request, "/")

    async def _shown(self, request: Request, note: str) -> Response:
        await self._sampler.look()
        return done(request, f"/ui/slots/{request.path_params['name']}?note={note}")


def _bar(view: View, info: SlotInfo) -> PositionBar:
    source = view.source(info.source)
    sessions = source.info.sessions if source is not None else ()
    kept = next((s.log_start_lsn for s in sessions if s.database == info.database), None)
    sent = info.consumer.sent_lsn if info.consumer is not None else None
    return position_bar(kept, info.confirmed_flush_lsn, sent, info.decoded_lsn)


def _filter(request: Request) -> Filter:
    query = request.query_params
    return Filter(query.get("table", "").strip(), query.get("op", ""))
