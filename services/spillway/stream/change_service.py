"""ChangeService: REST's calls of changes over gRPC, with the same semantics and the same errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spillway.pg.lsn import Lsn
from spillway.service.model import ChangeQuery, Position
from spillway.stream.messages import change_message, timestamp
from spillway.stream.parts import moment_of, write_in_parts
from spillway.stream.status import errors_as_statuses
from spillway.v1 import changes_pb2 as pb
from spillway.v1 import changes_pb2_grpc

if TYPE_CHECKING:
    from spillway.service.interface import EngineInterface
    from spillway.service.model import ChangePage, FoundChange, LogicalMessage

SERVICE_NAME: Final = "spillway.v1.ChangeService"

_LIMIT: Final = 100


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
            prefix=request.prefix if request.HasField("prefix") else None,
            xid=request.xid if request.HasField("xid") else None,
            since=moment_of(request, "since"),
            until=moment_of(request, "until"),
            from_lsn=Lsn(request.from_lsn) if request.from_lsn else None,
            upto_lsn=Lsn(request.upto_lsn) if request.upto_lsn else None,
            newest_first=request.newest_first,
            limit=request.limit or _LIMIT,
            after=Position.parse(request.after) if request.after else None,
        )
        page = await self._engine.find_changes(request.source, request.database, query)
        await write_in_parts(
            context, pb.FindChangesResponse, "changes", map(_found, page.changes), page=_page(page)
        )

    @errors_as_statuses
    async def PrintTransaction(self, request: pb.PrintTransactionRequest, context: Any) -> None:
        changes = await self._engine.print_transaction(
            request.source,
            request.database,
            Lsn(request.commit_lsn),
            request.plugin or "test_decoding",
            dict(request.options),
        )
        await write_in_parts(
            context, pb.PrintTransactionResponse, "changes", map(change_message, changes)
        )


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
        committed_at=timestamp(change.committed_at),
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
        message=None if change.message is None else _message(change.message),
    )


def _message(message: LogicalMessage) -> pb.LogicalMessage:
    return pb.LogicalMessage(
        transactional=message.transactional, prefix=message.prefix, content=message.content
    )


def _page(page: ChangePage) -> pb.ChangesPage:
    return pb.ChangesPage(
        next="" if page.following is None else str(page.following),
        tables=page.tables,
        looked=pb.LsnRange(from_lsn=page.looked_from_lsn, upto_lsn=page.looked_upto_lsn),
        retained_from_lsn=page.retained_from_lsn,
        retained_from=timestamp(page.retained_from),
        decoded_lsn=page.decoded_lsn,
        began_earlier=page.began_earlier,
        timed_out=page.timed_out,
        undecided=page.undecided,
        unreadable=[pb.LsnRange(from_lsn=a, upto_lsn=b) for a, b in page.unreadable],
        read_bytes=page.read_bytes,
        passed_over_bytes=page.passed_over_bytes,
    )
