"""SlotService: the REST calls over gRPC, with the same semantics and the same errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spillway.engine.model import SlotSpec
from spillway.pg.lsn import Lsn
from spillway.stream._generated import slots_pb2, slots_pb2_grpc
from spillway.stream.messages import (
    change_message,
    consumer_message,
    decoding_message,
    slot_message,
    source_message,
    stats_message,
)
from spillway.stream.status import errors_as_statuses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spillway.engine.interface import EngineInterface
    from spillway.engine.model import Change

SERVICE_NAME: Final = "spillway.v1.SlotService"

#: Bytes of changes after which a part of an answer is sent.
_PART_BYTES: Final = 256 * 1024


class SlotService(slots_pb2_grpc.SlotServiceServicer):
    """One method a call; ``context`` is grpc.aio's."""

    def __init__(self, engine: EngineInterface) -> None:
        self._engine = engine

    @errors_as_statuses
    async def CreateSource(
        self, request: slots_pb2.CreateSourceRequest, context: Any
    ) -> slots_pb2.Source:
        capture = {
            "origin": request.capture.origin or "any",
            "tables": list(request.capture.tables),
            "publications": list(request.capture.publications),
        }
        return source_message(await self._engine.create_source(request.name, request.dsn, capture))

    @errors_as_statuses
    async def ListSources(
        self, request: slots_pb2.ListSourcesRequest, context: Any
    ) -> slots_pb2.ListSourcesResponse:
        sources = await self._engine.list_sources()
        return slots_pb2.ListSourcesResponse(sources=[source_message(s) for s in sources])

    @errors_as_statuses
    async def GetSource(
        self, request: slots_pb2.GetSourceRequest, context: Any
    ) -> slots_pb2.Source:
        return source_message(await self._engine.get_source(request.name))

    @errors_as_statuses
    async def DropSource(
        self, request: slots_pb2.DropSourceRequest, context: Any
    ) -> slots_pb2.DropSourceResponse:
        await self._engine.drop_source(request.name)
        return slots_pb2.DropSourceResponse()

    @errors_as_statuses
    async def CreateSlot(
        self, request: slots_pb2.CreateSlotRequest, context: Any
    ) -> slots_pb2.Slot:
        spec = SlotSpec(
            slot_name=request.slot_name,
            source=request.source,
            database=request.database,
            plugin=request.plugin or "test_decoding",
            temporary=request.temporary,
            two_phase=request.two_phase,
            failover=request.failover,
            options=dict(request.options),
            start_lsn=_lsn(request.start_lsn),
        )
        return slot_message(await self._engine.create_slot(spec))

    @errors_as_statuses
    async def ListSlots(
        self, request: slots_pb2.ListSlotsRequest, context: Any
    ) -> slots_pb2.ListSlotsResponse:
        slots = await self._engine.list_slots()
        return slots_pb2.ListSlotsResponse(slots=[slot_message(slot) for slot in slots])

    @errors_as_statuses
    async def GetSlot(self, request: slots_pb2.GetSlotRequest, context: Any) -> slots_pb2.Slot:
        return slot_message(await self._engine.get_slot(request.slot_name))

    @errors_as_statuses
    async def DropSlot(
        self, request: slots_pb2.DropSlotRequest, context: Any
    ) -> slots_pb2.DropSlotResponse:
        await self._engine.drop_slot(request.slot_name)
        return slots_pb2.DropSlotResponse()

    @errors_as_statuses
    async def PeekChanges(self, request: slots_pb2.ReadChangesRequest, context: Any) -> None:
        changes = await self._engine.peek(
            request.slot_name,
            _lsn(request.upto_lsn),
            request.upto_nchanges or None,
            dict(request.options),
        )
        await self._write_parts(context, request.slot_name, changes)

    @errors_as_statuses
    async def GetChanges(self, request: slots_pb2.ReadChangesRequest, context: Any) -> None:
        changes = await self._engine.get_changes(
            request.slot_name,
            _lsn(request.upto_lsn),
            request.upto_nchanges or None,
            dict(request.options),
        )
        await self._write_parts(context, request.slot_name, changes)

    async def _write_parts(self, context: Any, slot_name: str, changes: Sequence[Change]) -> None:
        """Send changes in messages of bounded size, one change never cut; the last says how decoding stands."""
        part: list[slots_pb2.Change] = []
        size = 0
        for change in changes:
            part.append(change_message(change))
            size += len(change.data)
            if size >= _PART_BYTES:
                await context.write(slots_pb2.ReadChangesResponse(changes=part))
                part, size = [], 0
        decoding = decoding_message((await self._engine.get_slot(slot_name)).decoding)
        await context.write(slots_pb2.ReadChangesResponse(changes=part, decoding=decoding))

    @errors_as_statuses
    async def EndSession(
        self, request: slots_pb2.EndSessionRequest, context: Any
    ) -> slots_pb2.EndSessionResponse:
        consumer = consumer_message(await self._engine.end_session(request.slot_name))
        return slots_pb2.EndSessionResponse(slot_name=request.slot_name, consumer=consumer)

    @errors_as_statuses
    async def AdvanceSlot(
        self, request: slots_pb2.AdvanceSlotRequest, context: Any
    ) -> slots_pb2.AdvanceSlotResponse:
        end_lsn = await self._engine.advance(request.slot_name, Lsn(request.upto_lsn))
        return slots_pb2.AdvanceSlotResponse(slot_name=request.slot_name, end_lsn=end_lsn)

    @errors_as_statuses
    async def RewindSlot(
        self, request: slots_pb2.RewindSlotRequest, context: Any
    ) -> slots_pb2.Slot:
        return slot_message(await self._engine.rewind(request.slot_name, Lsn(request.lsn)))

    @errors_as_statuses
    async def CopySlot(self, request: slots_pb2.CopySlotRequest, context: Any) -> slots_pb2.Slot:
        return slot_message(await self._engine.copy_slot(request.slot_name, request.new_slot_name))

    @errors_as_statuses
    async def GetSlotStats(
        self, request: slots_pb2.GetSlotStatsRequest, context: Any
    ) -> slots_pb2.SlotStats:
        return stats_message(await self._engine.slot_stats(request.slot_name))


def _lsn(number: int) -> Lsn | None:
    return Lsn(number) if number else None
