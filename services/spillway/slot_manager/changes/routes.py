"""``/v1/changes``: what happened to a row, to a table, in a transaction.

An answer is JSON by default. Who asks for ``application/x-ndjson`` gets a change a line, and for
``application/vnd.apache.arrow.stream`` Arrow, a row a change; where the next
page begins is then in the header ``Spillway-Next``.
"""

import asyncio
import json
from collections.abc import Awaitable
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Query, Request, Response

from spillway.service.change_views import ARROW, JSON_LINES, json_lines, page_view
from spillway.slot_manager.changes.models import (
    ChangesPage,
    ChangesQuery,
    PrintQuery,
)
from spillway.slot_manager.dependencies import Engine

router = APIRouter(prefix="/changes", tags=["changes"])

T = TypeVar("T")

NEXT_HEADER: Final = "Spillway-Next"
#: how often it is looked whether the client is still there
_LOOK_S: Final = 0.5

_FORMS: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "model": ChangesPage,
        "content": {JSON_LINES: {"schema": {"type": "string"}}, ARROW: {}},
        "headers": {
            NEXT_HEADER: {
                "description": "As `next`, of an answer that is no JSON document.",
                "schema": {"type": "string"},
            }
        },
    }
}


@router.get("", operation_id="find_changes", responses=_FORMS)
async def find_changes(
    query: Annotated[ChangesQuery, Query()], engine: Engine, request: Request
) -> Response:
    """Look for changes in all that is retained of a database, beside all slots: nothing is
    consumed, and no slot is needed but to have the database decoded.
    """
    question = query.query()
    page = await until_gone(request, engine.find_changes(query.source, query.database, question))
    accepted = request.headers.get("accept", "")
    headers = {} if page.following is None else {NEXT_HEADER: str(page.following)}
    if ARROW in accepted:
        from spillway.service.change_arrow import as_arrow  # noqa: PLC0415 - pyarrow

        return Response(as_arrow(page.changes), media_type=ARROW, headers=headers)
    if JSON_LINES in accepted:
        return Response(json_lines(page.changes), media_type=JSON_LINES, headers=headers)
    return Response(json.dumps(page_view(page)), media_type="application/json")


@router.get("/print", operation_id="print_transaction")
async def print_transaction(
    query: Annotated[PrintQuery, Query()], engine: Engine, request: Request
) -> Response:
    """Print a transaction as an output plugin does.

    Plugin options are query parameters named `options.NAME`. A binary plugin's messages are in
    hexadecimal digits.
    """
    changes = await until_gone(
        request,
        engine.print_transaction(
            query.source, query.database, query.commit_lsn, query.plugin, query.options()
        ),
    )
    shown = [{"lsn": str(c.lsn), "xid": c.xid, "data": c.data} for c in changes]
    return Response(json.dumps({"changes": shown}), media_type="application/json")


async def until_gone(request: Request, asked: Awaitable[T]) -> T:
    """Await *asked*, and cancel it when the client is gone."""
    task = asyncio.ensure_future(asked)
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=_LOOK_S)
            if not task.done() and await request.is_disconnected():
                break
    finally:
        if not task.done():
            task.cancel()
    return await task
