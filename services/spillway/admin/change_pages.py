"""What happened to a row: a form that is its own address, and what was found for it.

A page of found changes, each with its values before and after side by side. From a change one goes
to its transaction, to its row's history, to what a plugin makes of it, and takes a slot back to
before it. What is shown is somebody's data: it is only ever put into templates, which escape it.

An export has all that the question means, from its first page to its last, in the page's order: a
page at a time is found, written and sent. Should one fail, the download is broken off, so that
nobody takes a part for the whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from spillway.admin.equivalents import equivalents_of_changes
from spillway.admin.forms import moment_of
from spillway.admin.page_group import PageGroup
from spillway.errors import InvalidLsn, InvalidRequest, SpillwayError
from spillway.pg.lsn import Lsn
from spillway.service.change_views import ARROW, JSON_LINES, json_lines
from spillway.service.model import LIMIT_MAX, OPERATIONS, ChangeQuery, Position

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from starlette.requests import Request

    from spillway.service.model import ChangePage, ColumnValue, FoundChange

#: changes of one page
_LIMIT: Final = 25
#: What is exported, by the end of its address: its media type, and the file that a browser makes.
_EXPORTS: Final = {
    "jsonl": (JSON_LINES, "changes.jsonl"),
    "arrow": (ARROW, "changes.arrows"),
}
_VALUE_CHARACTERS: Final = 160
#: messages of a transaction that a page shows
_PRINTED_MAX: Final = 200
_FIELDS: Final = (
    "source",
    "database",
    "table",
    "key",
    "op",
    "prefix",
    "xid",
    "since",
    "until",
    "from_lsn",
    "upto_lsn",
    "order",
)


@dataclass(frozen=True, slots=True)
class Shown:
    """A change with what leads on from it."""

    change: FoundChange
    columns: tuple[ColumnValue, ...]
    #: addresses of its row's history, if it has a key, and of its transaction
    history: str | None
    transaction: str
    printed: str


class ChangePages(PageGroup):
    """``/ui/changes``."""

    def routes(self) -> list[Route]:
        return [
            Route("/ui/changes", self._show),
            Route("/ui/changes/print", self._print),
            Route("/ui/changes/export/{form}", self._export, methods=["GET"]),
        ]

    async def _show(self, request: Request) -> Response:
        view = await self._sampler.look()
        asked = {name: request.query_params.get(name, "").strip() for name in _FIELDS}
        asked["source"] = asked["source"] or (view.sources[0].info.name if view.sources else "")
        decoded = [
            session.database
            for source in view.sources
            if source.info.name == asked["source"]
            for session in source.info.sessions
        ]
        asked["database"] = asked["database"] or (decoded[0] if decoded else "")
        page: ChangePage | None = None
        problem: SpillwayError | None = None
        if asked["source"] and asked["database"]:
            try:
                query = question(asked, request.query_params.get("after", ""))
                page = await self._engine.find_changes(asked["source"], asked["database"], query)
            except SpillwayError as error:
                problem = error
        slots = [
            slot.info.slot_name
            for slot in view.slots
            if (slot.info.source, slot.info.database) == (asked["source"], asked["database"])
        ]
        return self._pages.page(
            request,
            "changes.html",
            live="",
            asked=asked,
            sources=[source.info.name for source in view.sources],
            decoded=decoded,
            operations=OPERATIONS,
            cut=cut,
            plugins=[plugin.name for plugin in await self._engine.list_plugins()],
            slots=slots,
            page=page,
            problem=problem,
            shown=[self._shown(change, asked) for change in page.changes] if page else [],
            following=(
                address({**asked, "after": str(page.following)})
                if page is not None and page.following is not None
                else None
            ),
            exports={form: address(asked, f"/export/{form}") for form in _EXPORTS},
            equivalents=equivalents_of_changes(with_zones(asked), _LIMIT) if page else [],
            is_one_transaction=is_one_transaction(asked),
        )

    async def _export(self, request: Request) -> Response:
        """Send all changes that the page's question means, as a file."""
        form = request.path_params["form"]
        if form not in _EXPORTS:
            raise InvalidRequest(
                f"Changes can't be exported as {form!r}.", hint="jsonl and arrow are there."
            )
        asked = {name: request.query_params.get(name, "").strip() for name in _FIELDS}
        query = replace(question(asked, ""), limit=LIMIT_MAX)
        # What can't be asked is told before anything is sent.
        first = await self._engine.find_changes(asked["source"], asked["database"], query)
        if query.upto_lsn is None:
            # What comes meanwhile is another export's: this one has an end.
            query = replace(query, upto_lsn=Lsn(first.decoded_lsn + 1))
        pages = self._pages_of(asked["source"], asked["database"], query, first)
        media_type, name = _EXPORTS[form]
        return StreamingResponse(
            _json_lines(pages) if form == "jsonl" else _arrow(pages),
            media_type=media_type,
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )

    async def _pages_of(
        self, source: str, database: str, query: ChangeQuery, page: ChangePage
    ) -> AsyncIterator[ChangePage]:
        """Yield *page* and those that follow."""
        yield page
        while page.following is not None:
            query = replace(query, after=page.following)
            page = await self._engine.find_changes(source, database, query)
            yield page

    def _shown(self, change: FoundChange, asked: Mapping[str, str]) -> Shown:
        place = {"source": asked["source"], "database": asked["database"]}
        table = f"{change.schema}.{change.table}"
        keys = [c for c in change.columns if c.is_key]
        values = [c.new if c.new_is == "value" else c.old for c in keys]
        history = None
        if keys and all(value is not None and "\n" not in value for value in values):
            key = "\n".join(f"{c.name}={v}" for c, v in zip(keys, values, strict=True))
            history = address({**place, "table": table, "key": key})
        bounds = {"from_lsn": str(change.commit_lsn), "upto_lsn": str(Lsn(change.commit_lsn + 1))}
        transaction = address({**place, **bounds, "order": "oldest"})
        printed = "/ui/changes/print?" + urlencode(
            {**place, "commit_lsn": str(change.commit_lsn), "plugin": "test_decoding"}
        )
        return Shown(
            change,
            change.columns,
            history,
            transaction,
            printed,
        )

    async def _print(self, request: Request) -> Response:
        """Show a transaction as a plugin prints it."""
        query = request.query_params
        changes = await self._engine.print_transaction(
            query.get("source", ""),
            query.get("database", ""),
            Lsn.parse(query.get("commit_lsn", "")),
            query.get("plugin", "test_decoding"),
            {},
        )
        return HTMLResponse(
            self._pages.text(
                "parts/printed.html",
                lines=[change.data for change in changes[:_PRINTED_MAX]],
                more=max(0, len(changes) - _PRINTED_MAX),
            )
        )


def question(asked: Mapping[str, str], after: str) -> ChangeQuery:
    """Make the question of a form's fields.

    Raises:
        InvalidRequest: a field can't be.
    """
    key: dict[str, str] = {}
    for line in asked["key"].splitlines():
        name, equals, value = line.partition("=")
        if not equals:
            raise InvalidRequest(
                f"The key {line!r} is not column = value.",
                hint="One a line: id = 42, with the value as PostgreSQL prints it.",
            )
        key[name.strip()] = value.strip()
    if asked["xid"] and not (asked["xid"].isdecimal() and len(asked["xid"]) < 11):
        raise InvalidRequest(f"xid is {asked['xid']!r}.", hint="It is a number.")
    return ChangeQuery(
        table=asked["table"],
        key=key,
        operations=frozenset({asked["op"]} - {""}),
        prefix=asked["prefix"] or None,
        xid=int(asked["xid"]) if asked["xid"] else None,
        since=moment_of(asked["since"]),
        until=moment_of(asked["until"]),
        from_lsn=Lsn.parse(asked["from_lsn"]) if asked["from_lsn"] else None,
        upto_lsn=Lsn.parse(asked["upto_lsn"]) if asked["upto_lsn"] else None,
        newest_first=asked["order"] != "oldest",
        limit=_LIMIT,
        after=Position.parse(after) if after else None,
    )


async def _json_lines(pages: AsyncIterator[ChangePage]) -> AsyncIterator[bytes]:
    async for page in pages:
        yield json_lines(page.changes).encode()


async def _arrow(pages: AsyncIterator[ChangePage]) -> AsyncIterator[bytes]:
    from spillway.service.change_arrow import ArrowWriter  # noqa: PLC0415 - pyarrow

    writer = ArrowWriter()
    async for page in pages:
        yield writer.write(page.changes)
    yield writer.end()


def with_zones(asked: Mapping[str, str]) -> dict[str, str]:
    """Return the fields with times as they are understood, in UTC, whoever reads them."""
    times = {name: moment_of(asked[name]) for name in ("since", "until")}
    written = {name: found.isoformat() for name, found in times.items() if found is not None}
    return {**asked, **written}


def is_one_transaction(asked: Mapping[str, str]) -> bool:
    """Say whether the fields' LSNs leave room for one commit record."""
    try:
        return Lsn.parse(asked["upto_lsn"]) == Lsn.parse(asked["from_lsn"]) + 1
    except InvalidLsn:
        return False


def address(query: Mapping[str, Any], below: str = "") -> str:
    """Return the page's address for a question, or that of something below it."""
    asked = urlencode({name: value for name, value in query.items() if value})
    return f"/ui/changes{below}?{asked}"


def cut(text: str | None) -> str:
    """Return a value as a page has room for."""
    if text is None:
        return ""
    if len(text) <= _VALUE_CHARACTERS:
        return text
    return f"{text[:_VALUE_CHARACTERS]}… ({len(text):,} characters)"
