"""Subscriptions on an engine in memory, a real metadata store, and programs that start quickly: for
unit tests.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from harness.fake_engine import FakeEngine
from spillway.service.model import ColumnInfo, PublicationInfo, PublishedTable, TableInfo
from spillway.store.metadata import MetadataStore
from spillway.subscriber.model import SubscriptionInfo, SubscriptionSpec
from spillway.subscriber.subscriptions import Subscriptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GRPC = "127.0.0.1:1"


def table(name: str, *, partition_of: tuple[str, ...] = (), kind: str = "table") -> TableInfo:
    schema, _, plain = name.partition(".")
    columns = (ColumnInfo("id", "integer", not_null=True, generated=False),)
    key = ("id",)
    return TableInfo(
        schema,
        plain,
        kind,
        partition_of,
        "default",
        key,
        key,
        columns,
        (),
        captured=True,
        warnings=(),
    )


def publication(name: str, *tables: str, **changed: Any) -> PublicationInfo:
    values: dict[str, Any] = {
        "all_tables": False,
        "insert": True,
        "update": True,
        "delete": True,
        "truncate": True,
        "via_root": False,
        "schemas": (),
        "tables": tuple(
            PublishedTable(schema, table, None, has_row_filter=False, row_filter=None, leaves=(t,))
            for t in tables
            for schema, table in [t.split(".")]
        ),
    }
    return PublicationInfo(name, **values | changed)


class Stage:
    """What a test works with; restarted, it is the service after a restart."""

    def __init__(self, directory: Path) -> None:
        self.engine = FakeEngine()
        self.engine.add_source("shop")
        self.root = directory / "subscriptions"
        #: of whoever has the lease
        self.token = 1
        self._url = f"sqlite:///{directory / 'metadata.db'}"

    async def start(self) -> Subscriptions:
        self.metadata = MetadataStore(self._url)
        await self.metadata.migrate()
        fence = self.engine.fence("shop")
        assert fence is not None
        if not await self.metadata.renew_lease(*fence, 600):
            assert await self.metadata.acquire_lease(fence.resource, "test", 600) == fence.token
        self.subscriptions = Subscriptions(self.engine, self.metadata, self.root)
        await self.subscriptions.load()
        await self.subscriptions.start(GRPC, "t0ken")
        return self.subscriptions

    async def stop(self) -> None:
        await self.subscriptions.stop()
        await self.metadata.close()

    async def lose_lease(self) -> None:
        """Let another process take the source over."""
        await self._take_lease("other")
        self.engine.tokens["shop"] = None

    async def take_lease(self) -> None:
        """Take the source back, as the engine does."""
        token = await self._take_lease("test")
        for listener in self.engine.taken_listeners:
            await listener("shop")
        self.engine.tokens["shop"] = token

    async def _take_lease(self, holder: str) -> int:
        await self.metadata.release_lease("source/shop", self.token)
        token = await self.metadata.acquire_lease("source/shop", holder, 600)
        assert token is not None
        self.token = token
        return token

    async def create(self, name: str = "a", **changed: Any) -> SubscriptionInfo:
        values: dict[str, Any] = {"source": "shop", "database": "shop", "target": {"kind": "fake"}}
        return await self.subscriptions.create(SubscriptionSpec(name, **values | changed))

    async def wait(
        self, name: str, ready: Callable[[SubscriptionInfo], object], timeout_s: float = 60
    ) -> SubscriptionInfo:
        """Wait until a subscription is as *ready* says."""
        deadline = time.monotonic() + timeout_s
        while not ready(info := await self.subscriptions.get(name)):
            assert time.monotonic() < deadline, info
            await asyncio.sleep(0.02)
        return info
