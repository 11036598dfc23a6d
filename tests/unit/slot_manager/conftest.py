"""A REST service over the engine in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from harness.fake_engine import FakeEngine
from harness.fake_subscriptions import FakeSubscriptions
from spillway.slot_manager.app import create_app

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
async def client(
    engine: FakeEngine, subscriptions: FakeSubscriptions
) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(engine, subscriptions, token=None, version="1.2.3")
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
        yield client
