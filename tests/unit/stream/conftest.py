"""A gRPC service over the engine in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.fake_engine import FakeEngine
from harness.fake_subscriptions import FakeSubscriptions
from spillway.stream.server import create_grpc_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine()
    engine.add_source("shop")
    engine.add_slot("s1")
    return engine


@pytest.fixture
def subscriptions() -> FakeSubscriptions:
    return FakeSubscriptions()


@pytest.fixture
async def target(
    engine: FakeEngine, subscriptions: FakeSubscriptions, unused_tcp_port: int
) -> AsyncIterator[str]:
    server = await create_grpc_server(
        engine, subscriptions, host="127.0.0.1", port=unused_tcp_port, token=None
    )
    await server.start()
    yield f"127.0.0.1:{unused_tcp_port}"
    await server.stop(0)
