"""``/v1/changes``: what happened to a row, to a table, in a transaction.

An answer is JSON by default. Who asks for ``application/x-ndjson`` gets a change a line, and for
``application/vnd.apache.arrow.stream`` Arrow, a row a change; where the next
page begins is then in the header ``Spillway-Next``.
"""

import asyncio
import json
from collections.abc import Awaitable
from typing import Annotated, Any, Final, TypeVar

import pyarrow as pa
from fastapi import APIRouter, Query, Request, Response

from spillway.service.model import ChangePage, FoundChange
from spillway.slot_manager.changes.models import (
    ChangesPage,
    ChangesQuery,
    PrintQuery,
)
from spillway.slot_manager.dependencies import Engine

router = APIRouter(prefix="/changes", tags=["changes"])

T = TypeVar("T")

JSON_LINES: Final = "application/x-ndjson"
ARROW: Final = "application/vnd.apache.arrow.stream"
NEXT_HEADER: Final = "Spillway-Next"
#: how often it is looked whether the client is still there
_LOOK_S: Final = 0.5

_VALUE: Final = pa.struct(
    [
        pa.field("name", pa.utf8()),
        pa.field("type", pa.utf8()),
        pa.field("is_key", pa.bool_()),
        pa.field("old_is", pa.utf8()),
        pa.field("old", pa.utf8()),
        pa.field("new_is", pa.utf8()),
        pa.field("new", pa.utf8()),
        pa.field("changed", pa.bool_()),
    ]
)
_SCHEMA: Final = pa.schema(
    [
        pa.field("operation", pa.utf8()),
        pa.field("schema", pa.utf8()),
        pa.field("table", pa.utf8()),
        pa.field("table_oid", pa.int64()),
        pa.field("lsn", pa.uint64()),
        pa.field("commit_lsn", pa.uint64()),
        pa.field("commit_end_lsn", pa.uint64()),
        pa.field("xid", pa.uint32()),
        pa.field("committed_at", pa.timestamp("us", tz="UTC")),
        pa.field("origin", pa.utf8()),
        pa.field("columns", pa.list_(_VALUE)),
    ]
)
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
        return Response(as_arrow(page.changes), media_type=ARROW, headers=headers)
    if JSON_LINES in accepted:
        lines = "".join(f"{json.dumps(view(change))}\n" for change in page.changes)
        return Response(lines, media_type=JSON_LINES, headers=headers)
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


def view(change: FoundChange) -> dict[str, Any]:
    """Give a FoundChangeView; by hand, for a model costs more than finding it."""
    return {
        "operation": change.operation,
        "schema": change.schema,
        "table": change.table,
        "table_oid": change.table_oid,
        "lsn": str(change.lsn),
        "commit_lsn": str(change.commit_lsn),
        "commit_end_lsn": str(change.commit_end_lsn),
        "xid": change.xid,
        "committed_at": change.committed_at.isoformat().replace("+00:00", "Z"),
        "origin": change.origin,
        "columns": [_column(column) for column in change.columns],
        "position": str(change.position),
    }


def _column(column: Any) -> dict[str, Any]:
    return {field.name: getattr(column, field.name) for field in _VALUE}


def page_view(page: ChangePage) -> dict[str, Any]:
    """Give a ChangesPage."""
    return {
        "changes": [view(change) for change in page.changes],
        "next": None if page.following is None else str(page.following),
        "tables": list(page.tables),
        "looked_from_lsn": str(page.looked_from_lsn),
        "looked_upto_lsn": str(page.looked_upto_lsn),
        "retained_from_lsn": str(page.retained_from_lsn),
        "retained_from": page.retained_from
        and page.retained_from.isoformat().replace("+00:00", "Z"),
        "decoded_lsn": str(page.decoded_lsn),
        "began_earlier": page.began_earlier,
        "timed_out": page.timed_out,
        "undecided": page.undecided,
        "unreadable": [{"from_lsn": str(a), "upto_lsn": str(b)} for a, b in page.unreadable],
        "read_bytes": page.read_bytes,
        "passed_over_bytes": page.passed_over_bytes,
    }


def as_arrow(changes: tuple[FoundChange, ...]) -> bytes:
    """Write changes as an Arrow IPC stream, LSNs as numbers."""
    rows = [
        {
            **{field.name: getattr(change, field.name) for field in _SCHEMA},
            "columns": [_column(column) for column in change.columns],
        }
        for change in changes
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=_SCHEMA))
    written: bytes = sink.getvalue().to_pybytes()
    return written
