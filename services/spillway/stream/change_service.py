"""ChangeService: REST's calls of changes over gRPC, with the same semantics and the same errors."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.timestamp_pb2 import Timestamp

from spillway.pg.lsn import Lsn
from spillway.service.model import ChangeQuery, Position
from spillway.stream.messages import change_message
from spillway.stream.status import errors_as_statuses
from spillway.v1 import changes_pb2 as pb
from spillway.v1 import changes_pb2_grpc

if TYPE_CHECKING:
    from datetime import datetime

    from spillway.service.interface import EngineInterface
    from spillway.service.model import ChangePage, FoundChange

SERVICE_NAME: Final = "spillway.v1.ChangeService"

_LIMIT: Final = 100
#: Bytes after which a part of an answer is sent.
_PART_BYTES: Final = 256 * 1024


class ChangeService(changes_pb2_grpc.ChangeServiceServicer):
    """One method a call; ``context`` is grpc.aio's."""

    def __init__(self, engine: EngineInterface) -> None:
        self._engine = engine

    @errors_as_statuses
    async def FindChanges(self, request: pb.FindChangesRequest, context: Any) -> None:
        query = ChangeQuery(
            table=request.table,
            key=dict(request.key),
            operations=frozenset(request.op),
            xid=request.xid if request.HasField("xid") else None,
            since=_moment(request, "since"),
            until=_moment(request, "until"),
            from_lsn=Lsn(request.from_lsn) if request.from_lsn else None,
            upto_lsn=Lsn(request.upto_lsn) if request.upto_lsn else None,
            newest_first=request.newest_first,
            limit=request.limit or _LIMIT,
            after=Position.parse(request.after) if request.after else None,
        )
        page = await self._engine.find_changes(request.source, request.database, query)
        part: list[pb.FoundChange] = []
        size = 0
        for change in page.changes:
            message = _found(change)
            part.append(message)
            size += message.ByteSize()
            if size >= _PART_BYTES:
                await context.write(pb.FindChangesResponse(changes=part))
                part, size = [], 0
        await context.write(pb.FindChangesResponse(changes=part, page=_page(page)))

    @errors_as_statuses
    async def PrintTransaction(self, request: pb.PrintTransactionRequest, context: Any) -> None:
        changes = await self._engine.print_transaction(
            request.source,
            request.database,
            Lsn(request.commit_lsn),
            request.plugin or "test_decoding",
            dict(request.options),
        )
        part, size = [], 0
        for change in changes:
            part.append(change_message(change))
            size += len(change.data)
            if size >= _PART_BYTES:
                await context.write(pb.PrintTransactionResponse(changes=part))
                part, size = [], 0
        await context.write(pb.PrintTransactionResponse(changes=part))


def _moment(request: pb.FindChangesRequest, name: str) -> datetime | None:
    if not request.HasField(name):
        return None
    found: datetime = getattr(request, name).ToDatetime(UTC)
    return found


def _timestamp(moment: datetime | None) -> Timestamp | None:
    if moment is None:
        return None
    made = Timestamp()
    made.FromDatetime(moment)
    return made


def _found(change: FoundChange) -> pb.FoundChange:
    return pb.FoundChange(
        operation=change.operation,
        schema=change.schema,
        table=change.table,
        table_oid=change.table_oid,
        lsn=change.lsn,
        commit_lsn=change.commit_lsn,
        commit_end_lsn=change.commit_end_lsn,
        xid=change.xid,
        committed_at=_timestamp(change.committed_at),
        origin=change.origin,
        columns=[
            pb.ColumnValue(
                name=column.name,
                type=column.type,
                is_key=column.is_key,
                old_is=column.old_is,
                old=column.old,
                new_is=column.new_is,
                new=column.new,
                changed=column.changed,
            )
            for column in change.columns
        ],
        position=str(change.position),
    )


def _page(page: ChangePage) -> pb.ChangesPage:
    return pb.ChangesPage(
        next="" if page.following is None else str(page.following),
        tables=page.tables,
        looked=pb.LsnRange(from_lsn=page.looked_from_lsn, upto_lsn=page.looked_upto_lsn),
        retained_from_lsn=page.retained_from_lsn,
        retained_from=_timestamp(page.retained_from),
        decoded_lsn=page.decoded_lsn,
        began_earlier=page.began_earlier,
        timed_out=page.timed_out,
        undecided=page.undecided,
        unreadable=[pb.LsnRange(from_lsn=a, upto_lsn=b) for a, b in page.unreadable],
        read_bytes=page.read_bytes,
        passed_over_bytes=page.passed_over_bytes,
    )
