"""``/v1/slots``.

Changes may be many, so their JSON is written piece by piece from what the engine gave, not through
a model per row.
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from spillway.errors import SpillwayError, UnknownSlot
from spillway.service.interface import EngineInterface
from spillway.service.model import Change, Decoding, SlotInfo, SlotSpec
from spillway.slot_manager.dependencies import Engine, NoQuery
from spillway.slot_manager.slots.models import (
    Advanced,
    AdvanceSlot,
    AlterSlot,
    ChangeList,
    ConsumerView,
    CopySlot,
    CreatedSlot,
    CreateSlot,
    DecodingView,
    EndedSession,
    GetChanges,
    PeekQuery,
    RewindSlot,
    SlotList,
    SlotStatsView,
    SlotView,
    SnapshotView,
)

router = APIRouter(prefix="/slots", tags=["slots"])

#: Changes encoded between two looks at the network.
_CHANGES_PER_PIECE: Final = 1000

_CHANGES: Final[dict[int | str, dict[str, Any]]] = {200: {"model": ChangeList}}


@router.post("", status_code=201, operation_id="create_slot", dependencies=[NoQuery])
async def create_slot(
    body: CreateSlot, engine: Engine, response: Response
) -> SlotView | CreatedSlot:
    """Create a slot (pg_create_logical_replication_slot), together with a snapshot of the source if
    that is asked for.
    """
    slot = await engine.create_slot(
        SlotSpec(
            slot_name=body.slot_name,
            source=body.source,
            database=body.database,
            plugin=body.plugin,
            temporary=body.temporary,
            two_phase=body.two_phase,
            failover=body.failover,
            options=body.options,
            start_lsn=body.start_lsn,
            exports_snapshot=body.snapshot == "export",
        )
    )
    response.headers["Location"] = f"/v1/slots/{slot.slot_name}"
    view = await _view(engine, slot)
    if body.snapshot == "nothing":
        return view
    snapshot = SnapshotView.model_validate(await engine.get_snapshot(slot.slot_name))
    return CreatedSlot(**dict(view), snapshot=snapshot)


@router.get("", operation_id="list_slots", dependencies=[NoQuery])
async def list_slots(engine: Engine) -> SlotList:
    """List the slots (pg_replication_slots)."""
    slots = await engine.list_slots()
    return SlotList(slots=[await _view(engine, slot) for slot in slots])


@router.get("/{slot_name}", operation_id="get_slot", dependencies=[NoQuery])
async def get_slot(slot_name: str, engine: Engine) -> SlotView:
    """Show a slot."""
    return await _view(engine, await engine.get_slot(slot_name))


@router.patch("/{slot_name}", operation_id="alter_slot", dependencies=[NoQuery])
async def alter_slot(slot_name: str, body: AlterSlot, engine: Engine) -> SlotView:
    """Give an idle slot other plugin options; its position stays."""
    return await _view(engine, await engine.alter_slot(slot_name, body.options))


@router.delete("/{slot_name}", status_code=204, operation_id="drop_slot", dependencies=[NoQuery])
async def drop_slot(slot_name: str, engine: Engine) -> None:
    """Drop a slot (pg_drop_replication_slot)."""
    await engine.drop_slot(slot_name)


@router.get("/{slot_name}/peek", operation_id="peek_changes", responses=_CHANGES)
async def peek_changes(
    slot_name: str, query: Annotated[PeekQuery, Query()], engine: Engine
) -> Response:
    """Show what comes next, without consuming it (pg_logical_slot_peek_changes).

    Plugin options are query parameters named `options.NAME`, such as `options.include-xids=0`.
    """
    changes = await engine.peek(
        slot_name, query.upto_lsn, query.upto_nchanges or None, query.options()
    )
    return await _change_list(engine, slot_name, changes)


@router.post(
    "/{slot_name}/get", operation_id="get_changes", responses=_CHANGES, dependencies=[NoQuery]
)
async def get_changes(slot_name: str, engine: Engine, body: GetChanges | None = None) -> Response:
    """Give what comes next and confirm it (pg_logical_slot_get_changes)."""
    asked = body or GetChanges()
    changes = await engine.get_changes(
        slot_name, asked.upto_lsn, asked.upto_nchanges or None, asked.options
    )
    return await _change_list(engine, slot_name, changes)


@router.post("/{slot_name}/end-session", operation_id="end_session", dependencies=[NoQuery])
async def end_session(slot_name: str, engine: Engine) -> EndedSession:
    """End the session of the slot's consumer (pg_terminate_backend); the next one may take the slot
    at once.
    """
    consumer = await engine.end_session(slot_name)
    view = ConsumerView.model_validate(consumer)
    return EndedSession(slot_name=slot_name, consumer=view)


@router.post("/{slot_name}/advance", operation_id="advance_slot", dependencies=[NoQuery])
async def advance_slot(slot_name: str, body: AdvanceSlot, engine: Engine) -> Advanced:
    """Move a slot forward (pg_replication_slot_advance), never past what is decoded."""
    end_lsn = await engine.advance(slot_name, body.upto_lsn)
    return Advanced(slot_name=slot_name, end_lsn=end_lsn)


@router.post("/{slot_name}/rewind", operation_id="rewind_slot", dependencies=[NoQuery])
async def rewind_slot(slot_name: str, body: RewindSlot, engine: Engine) -> SlotView:
    """Move a slot back to a position that is still retained."""
    return await _view(engine, await engine.rewind(slot_name, body.lsn))


@router.post("/{slot_name}/copy", status_code=201, operation_id="copy_slot", dependencies=[NoQuery])
async def copy_slot(slot_name: str, body: CopySlot, engine: Engine, response: Response) -> SlotView:
    """Make another slot at the same position (pg_copy_logical_replication_slot)."""
    copy = await engine.copy_slot(slot_name, body.slot_name)
    response.headers["Location"] = f"/v1/slots/{copy.slot_name}"
    return await _view(engine, copy)


@router.post(
    "/{slot_name}/snapshot",
    status_code=201,
    operation_id="take_snapshot",
    dependencies=[NoQuery],
)
async def take_snapshot(slot_name: str, engine: Engine) -> SnapshotView:
    """Take an exact snapshot of the source and hold it, in place of one that is held for the slot;
    the slot stays where it is.
    """
    return SnapshotView.model_validate(await engine.take_snapshot(slot_name))


@router.get("/{slot_name}/snapshot", operation_id="get_snapshot", dependencies=[NoQuery])
async def get_snapshot(slot_name: str, engine: Engine) -> SnapshotView:
    """Show the snapshot that is held for a slot."""
    return SnapshotView.model_validate(await engine.get_snapshot(slot_name))


@router.delete(
    "/{slot_name}/snapshot",
    status_code=204,
    operation_id="release_snapshot",
    dependencies=[NoQuery],
)
async def release_snapshot(slot_name: str, engine: Engine) -> None:
    """Give up the snapshot that is held for a slot; nothing happens when there is none."""
    await engine.release_snapshot(slot_name)


@router.get("/{slot_name}/stats", operation_id="get_slot_stats", dependencies=[NoQuery])
async def get_slot_stats(slot_name: str, engine: Engine) -> SlotStatsView:
    """Show a slot's statistics (pg_stat_replication_slots)."""
    return SlotStatsView.model_validate(await engine.slot_stats(slot_name))


async def _view(engine: EngineInterface, slot: SlotInfo) -> SlotView:
    """Show a slot together with how far its consumer is behind."""
    lag_seconds = None
    if slot.lag_bytes is not None:
        # It may have been dropped meanwhile, or its log can't be read: then nobody knows.
        with contextlib.suppress(SpillwayError):
            lag_seconds = await engine.lag_seconds(slot.slot_name)
    view = SlotView.model_validate(slot)
    return view.model_copy(update={"lag_seconds": lag_seconds})


async def _change_list(engine: Engine, slot_name: str, changes: list[Change]) -> Response:
    try:
        decoding = (await engine.get_slot(slot_name)).decoding
    except UnknownSlot:
        # Dropped since.
        decoding = Decoding("unknown", None, None)
    return StreamingResponse(_pieces(changes, decoding), media_type="application/json")


def _pieces(changes: list[Change], decoding: Decoding) -> Iterator[str]:
    separator = ""
    yield '{"changes":['
    for start in range(0, len(changes), _CHANGES_PER_PIECE):
        some = changes[start : start + _CHANGES_PER_PIECE]
        yield separator + ",".join(map(_change_text, some))
        separator = ","
    yield f'],"decoding":{DecodingView.model_validate(decoding).model_dump_json()}}}'


def _change_text(change: Change) -> str:
    """Write a ChangeView; by hand, for a model a change costs more than all the rest."""
    text = f'{{"lsn":"{change.lsn}","xid":{change.xid},"data":{json.dumps(change.data)}'
    if change.data_bytes is None:
        return text + "}"
    return f'{text},"data_hex":"\\\\x{change.data_bytes.hex()}"}}'
