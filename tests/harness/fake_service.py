"""REST and gRPC over the engine in memory, on real ports, in a thread of its own: for tests of
clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import uvicorn

from harness.fake_engine import FakeEngine
from harness.fake_subscriptions import FakeSubscriptions
from harness.fake_users import fake_users
from harness.kept_metadata import kept_metadata
from spillway.admin.application import Admin
from spillway.alerts.registry import Alerts
from spillway.demo.private_postgres import free_port
from spillway.slot_manager.app import create_app
from spillway.stream.server import create_grpc_server
from spillway.stream.watch_service import Watched
from spillway.watch.past import Past
from spillway.watch.recorder import Recorder
from spillway.watch.sampler import Sampler
from spillway.watch.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator


class _Http(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class FakeService:
    """``with FakeService() as service: service.engine.commit(…)``; signals stay the test's."""

    def __init__(
        self,
        token: str | None = None,
        *,
        engine: FakeEngine | None = None,
        pages: bool = False,
    ) -> None:
        self.engine = engine or FakeEngine()
        self._has_pages = pages
        self._admin: Admin | None = None
        self.subscriptions = FakeSubscriptions()
        self.token = token
        self.http_port = free_port()
        self.grpc_port = free_port()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake service")
        self._grpc: Any = None
        self._stored = tempfile.TemporaryDirectory()

    @property
    def environment(self) -> dict[str, str]:
        """What tells a command where the service is."""
        return {
            "SPILLWAY_URL": f"http://127.0.0.1:{self.http_port}",
            "SPILLWAY_GRPC": f"127.0.0.1:{self.grpc_port}",
            **({} if self.token is None else {"SPILLWAY_TOKEN": self.token}),
        }

    def __enter__(self) -> Self:
        self._thread.start()
        metadata = self.run(kept_metadata(Path(self._stored.name)))
        self.metadata = metadata
        self.alerts = Alerts(metadata)
        self.sampler = Sampler(self.engine, self.subscriptions)
        self.recorder = Recorder(metadata.metrics, self.engine, self.sampler)
        self._past = Past(metadata.metrics, self.recorder)
        self.schema_changes = metadata.schema_changes
        self._timeline = Timeline(metadata.schema_changes)
        if self._has_pages:
            self._admin = self.run(self._make_admin())
        config = uvicorn.Config(
            create_app(
                self.engine,
                self.subscriptions,
                token=self.token,
                version="0",
                admin=self._admin,
                users=fake_users(),
                alerts=self.alerts,
                sampler=self.sampler,
                past=self._past,
                timeline=self._timeline,
            ),
            port=self.http_port,
            log_level="warning",
            lifespan="off",
        )
        self._http = _Http(config)
        self._serving = asyncio.run_coroutine_threadsafe(self._http.serve(), self._loop)
        self.start_grpc()
        while not self._http.started:
            assert not self._serving.done()
            threading.Event().wait(0.01)
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop_grpc()
        if self._admin is not None:
            self.run(self._admin.stop())
        self._http.should_exit = True
        self._serving.result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        self._stored.cleanup()

    def look(self) -> None:
        """Have it look at how everything is, and remember that."""

        async def look() -> None:
            self.recorder.note(await self.sampler.look())

        self.run(look())

    async def _make_admin(self) -> Admin:
        admin = Admin(
            self.engine,
            self.subscriptions,
            token=self.token,
            version="0",
            sampler=self.sampler,
            alerts=self.alerts,
            past=self._past,
            timeline=self._timeline,
        )
        admin.start()
        return admin

    def start_grpc(self) -> None:
        """Listen for gRPC, again after :meth:`stop_grpc`."""

        async def start() -> Any:
            server = await create_grpc_server(
                self.engine,
                self.subscriptions,
                host="127.0.0.1",
                port=self.grpc_port,
                token=self.token,
                watched=Watched(self.sampler, self.alerts, self._past, self._timeline),
            )
            await server.start()
            return server

        self._grpc = self.run(start())

    def stop_grpc(self) -> None:
        """Drop every stream and stop to listen."""
        if self._grpc is not None:
            self.run(self._grpc.stop(0))
        self._grpc = None

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run *work* on the service's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)
