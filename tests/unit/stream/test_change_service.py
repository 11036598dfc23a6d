"""ChangeService over a real connection, with an engine in memory behind it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from spillway.pg.lsn import Lsn
from spillway.service.model import ColumnValue, FoundChange, Position
from spillway.v1 import changes_pb2 as pb
from spillway.v1 import changes_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from harness.fake_engine import FakeEngine

AT = datetime(2026, 11, 23, 10, tzinfo=UTC)


@pytest.fixture
async def stub(target: str) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(target) as channel:
        yield changes_pb2_grpc.ChangeServiceStub(channel)


def found(number: int, text: str = "b") -> FoundChange:
    return FoundChange(
        "update", "public", "t", 16384, Lsn(number), Lsn(number), Lsn(number + 8), 7, AT, "o",
        (
            ColumnValue("id", "integer", True, "value", "value", "1", "1", changed=False),
            ColumnValue("v", "text", False, "unknown", "null"),
            ColumnValue("w", "text", False, "value", "value", "a", text, changed=True),
        ),
        Position(number, number, 16384, 0),
    )  # fmt: skip


async def test_a_page_in_parts(stub: Any, engine: FakeEngine) -> None:
    engine.found = [found(n, "x" * 100_000) for n in range(1, 9)]
    request = pb.FindChangesRequest(
        source="shop", database="shop", table="t", key={"id": "1"}, op=["update"], xid=0, limit=7
    )
    request.since.FromDatetime(AT)
    parts = [part async for part in stub.FindChanges(request)]
    assert len(parts) > 1
    changes = [change for part in parts for change in part.changes]
    assert [change.lsn for change in changes] == [1, 2, 3, 4, 5, 6, 7]
    column = changes[0].columns
    assert (column[0].changed, column[0].HasField("changed")) == (False, True)
    assert (column[1].HasField("old"), column[1].HasField("changed")) == (False, False)
    assert changes[0].committed_at.ToDatetime(UTC) == AT
    assert [part.HasField("page") for part in parts] == [False] * (len(parts) - 1) + [True]
    page = parts[-1].page
    assert page.began_earlier
    (query,) = engine.asked
    assert (query.xid, query.since, query.key, query.limit) == (0, AT, {"id": "1"}, 7)
    request.after = page.next
    (last,) = [part async for part in stub.FindChanges(request)]
    assert ([change.lsn for change in last.changes], last.page.next) == ([8], "")


async def test_what_cannot_be_asked(stub: Any) -> None:
    for request in (
        pb.FindChangesRequest(source="shop", database="shop", limit=1001),
        pb.FindChangesRequest(source="shop", database="shop", op=["upsert"]),
        pb.FindChangesRequest(source="shop", database="shop", after="x"),
        pb.FindChangesRequest(source="shop", database="shop", key={"id": "1"}),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            _ = [part async for part in stub.FindChanges(request)]
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_transaction_as_printed(stub: Any, engine: FakeEngine) -> None:
    engine.commit("shop", "BEGIN 7", "a", "COMMIT 7")
    lsn = engine.transactions["shop"][0].final_lsn
    request = pb.PrintTransactionRequest(source="shop", database="shop", commit_lsn=lsn)
    parts = [part async for part in stub.PrintTransaction(request)]
    assert [c.data for part in parts for c in part.changes] == ["BEGIN 7", "a", "COMMIT 7"]
    request.commit_lsn = 1
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        _ = [part async for part in stub.PrintTransaction(request)]
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
