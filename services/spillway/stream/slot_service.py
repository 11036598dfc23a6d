"""SlotService: REST's calls of sources and slots over gRPC, with the same semantics and the same
errors.

What may be long (changes, tables, publications) comes in parts of bounded size, so that an answer
may be of any length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from google.protobuf.message import Message

from spillway.pg.lsn import Lsn
from spillway.service.model import SlotSpec
from spillway.stream.messages import (
    change_message,
    consumer_message,
    decoding_message,
    publication_message,
    slot_message,
    snapshot_message,
    source_message,
    stats_message,
    table_message,
)
from spillway.stream.status import errors_as_statuses
from spillway.v1 import slots_pb2, slots_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from spillway.service.interface import EngineInterface
    from spillway.service.model import Change
    from spillway.subscriber.interface import SubscriptionInterface

_Message = TypeVar("_Message", bound=Message)

SERVICE_NAME: Final = "spillway.v1.SlotService"

#: Bytes after which a part of an answer is sent.
_PART_BYTES: Final = 256 * 1024


class SlotService(slots_pb2_grpc.SlotServiceServicer):
    """One method a call; ``context`` is grpc.aio's."""

    def __init__(self, engine: EngineInterface, subscriptions: SubscriptionInterface) -> None:
        self._engine = engine
        self._subscriptions = subscriptions

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
    async def AlterSource(
        self, request: slots_pb2.AlterSourceRequest, context: Any
    ) -> slots_pb2.Source:
        return source_message(await self._engine.alter_source(request.name, request.dsn))

    @errors_as_statuses
    async def RestartDatabase(
        self, request: slots_pb2.RestartDatabaseRequest, context: Any
    ) -> slots_pb2.Source:
        return source_message(await self._engine.restart_database(request.name, request.database))

    @errors_as_statuses
    async def DropSource(
        self, request: slots_pb2.DropSourceRequest, context: Any
    ) -> slots_pb2.DropSourceResponse:
        await self._subscriptions.check_unused(request.name)
        await self._engine.drop_source(request.name, keep_slot=request.keep_slot)
        return slots_pb2.DropSourceResponse()

    @errors_as_statuses
    async def ListTables(self, request: slots_pb2.ListTablesRequest, context: Any) -> None:
        after: int | None = 0
        while after is not None:
            page = await self._engine.list_tables(request.source, request.database, after)
            for part in _parts(map(table_message, page.tables)):
                await context.write(slots_pb2.ListTablesResponse(tables=part))
            after = page.following

    @errors_as_statuses
    async def ListPublications(
        self, request: slots_pb2.ListPublicationsRequest, context: Any
    ) -> None:
        found = await self._engine.list_publications(request.source, request.database)
        for part in _parts(map(publication_message, found)):
            await context.write(slots_pb2.ListPublicationsResponse(publications=part))

    @errors_as_statuses
    async def ListPlugins(
        self, request: slots_pb2.ListPluginsRequest, context: Any
    ) -> slots_pb2.ListPluginsResponse:
        plugins = await self._engine.list_plugins()
        return slots_pb2.ListPluginsResponse(
            plugins=[slots_pb2.Plugin(name=p.name, built_in=p.built_in) for p in plugins]
        )

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
            exports_snapshot=request.export_snapshot,
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
    async def AlterSlot(self, request: slots_pb2.AlterSlotRequest, context: Any) -> slots_pb2.Slot:
        options = dict(request.options)
        return slot_message(await self._engine.alter_slot(request.slot_name, options))

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
        """Send changes in messages of bounded size, one change never cut; the last says how
        decoding stands.
        """
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
    async def TakeSnapshot(
        self, request: slots_pb2.TakeSnapshotRequest, context: Any
    ) -> slots_pb2.Snapshot:
        return snapshot_message(
            await self._engine.take_snapshot(request.slot_name, fall_back=not request.paired_only)
        )

    @errors_as_statuses
    async def GetSnapshot(
        self, request: slots_pb2.GetSnapshotRequest, context: Any
    ) -> slots_pb2.Snapshot:
        return snapshot_message(await self._engine.get_snapshot(request.slot_name))

    @errors_as_statuses
    async def ReleaseSnapshot(
        self, request: slots_pb2.ReleaseSnapshotRequest, context: Any
    ) -> slots_pb2.ReleaseSnapshotResponse:
        await self._engine.release_snapshot(request.slot_name)
        return slots_pb2.ReleaseSnapshotResponse()

    @errors_as_statuses
    async def GetSlotStats(
        self, request: slots_pb2.GetSlotStatsRequest, context: Any
    ) -> slots_pb2.SlotStats:
        return stats_message(await self._engine.slot_stats(request.slot_name))


def _lsn(number: int) -> Lsn | None:
    return Lsn(number) if number else None


def _parts(messages: Iterable[_Message]) -> Iterator[list[_Message]]:
    """Gather *messages* in lists of about the size of a part."""
    part: list[_Message] = []
    size = 0
    for message in messages:
        part.append(message)
        size += message.ByteSize()
        if size >= _PART_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part
