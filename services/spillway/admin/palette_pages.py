"""``/ui/palette``: what Ctrl-K finds.

Tables are asked for once somebody has typed something, and remembered for a while: a database may
have thousands, and who types asks with every letter.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from spillway.admin.page_group import PageGroup
from spillway.admin.palette import Table, entries_of, entries_of_tables, find
from spillway.errors import SpillwayError

if TYPE_CHECKING:
    from starlette.requests import Request

    from spillway.watch.sampler import View

_SHOWN: Final = 12
_QUESTION_MAX: Final = 200
#: tables that are looked at of one database, and databases whose tables are
_TABLES_MAX: Final = 2000
_DATABASES_MAX: Final = 20
_REMEMBERED_S: Final = 30.0


class _Known(NamedTuple):
    at: float
    tables: tuple[Table, ...]
    #: the database has more
    cut: bool


class PalettePages(PageGroup):
    """``/ui/palette``."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._known: dict[tuple[str, str], _Known] = {}

    def routes(self) -> list[Route]:
        return [Route("/ui/palette", self._find)]

    async def _find(self, request: Request) -> Response:
        question = request.query_params.get("q", "")[:_QUESTION_MAX]
        view = self._sampler.view
        if view.seen_at is None:
            view = await self._sampler.look()
        entries = entries_of(view)
        note = ""
        if question.strip():
            tables, cut = await self._tables(view)
            entries += entries_of_tables(tables)
            if cut:
                note = f"Of large databases the first {_TABLES_MAX:,} tables were looked at."
        found = find(entries, question, _SHOWN)
        return JSONResponse({"entries": [asdict(entry) for entry in found], "note": note})

    async def _tables(self, view: View) -> tuple[list[Table], bool]:
        wanted = [
            (source.info.name, session.database)
            for source in view.sources
            for session in source.info.sessions
        ]
        for gone in self._known.keys() - set(wanted):
            del self._known[gone]
        for key in wanted[:_DATABASES_MAX]:
            known = self._known.get(key)
            if known is None or time.monotonic() - known.at > _REMEMBERED_S:
                self._known[key] = await self._ask(*key)
        found = [table for known in self._known.values() for table in known.tables]
        return found, any(known.cut for known in self._known.values())

    async def _ask(self, source: str, database: str) -> _Known:
        try:
            tables, following = await self._engine.list_tables(source, database, 0, _TABLES_MAX)
        except SpillwayError:
            # It is not decoded yet, or not any more: it has no tables that could be shown.
            tables, following = [], None
        return _Known(
            time.monotonic(),
            tuple(Table(source, database, f"{table.schema}.{table.name}") for table in tables),
            following is not None,
        )
