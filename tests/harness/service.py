"""A running service for tests: the real engine, REST and gRPC, on free ports and a directory of its
own.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import httpx

from spillway.loop_turn import LendingLoop
from spillway.pg.lsn import Lsn
from spillway.serve import ServeSettings, running
from spillway.service.settings import EngineSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from harness.cluster import Database
    from spillway.interfaces import Ports
    from spillway.tls import TlsFiles

#: What a client is given that speaks in plain text: httpx would read all of this system's
#: authorities for each of them, which is the most expensive part of a request.
WITHOUT_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Service:
    """A client of a running service, with PostgreSQL's functions as methods."""

    def __init__(
        self,
        http_port: int,
        grpc_port: int,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        pg_port: int | None = None,
    ) -> None:
        self.http_port = http_port
        self.grpc_port = grpc_port
        self.pg_port = pg_port
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.http = httpx.Client(
            base_url=f"{'http' if tls is None else 'https'}://127.0.0.1:{http_port}",
            headers=headers,
            timeout=120,
            verify=WITHOUT_TLS if tls is None else tls,
        )

    @property
    def grpc_address(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def call(self, method: str, path: str, **arguments: Any) -> Any:
        """Call and insist on success; the problem document is in the assertion otherwise."""
        response = self.http.request(method, f"/v1{path}", **arguments)
        assert response.is_success, f"{method} {path}: {response.status_code} {response.text}"
        return response.json() if response.content else None

    def problem(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        """Call and insist on a problem document."""
        response = self.http.request(method, f"/v1{path}", **arguments)
        assert response.is_error, f"{method} {path} succeeded: {response.text}"
        assert response.headers["content-type"] == "application/problem+json"
        problem: dict[str, Any] = response.json()
        assert problem["status"] == response.status_code
        return problem

    def create_source(self, dsn: str, name: str = "main", **more: Any) -> Any:
        return self.call("POST", "/sources", json={"name": name, "dsn": dsn, **more})

    def create_slot(
        self, name: str, database: str, plugin: str = "test_decoding", **more: Any
    ) -> Any:
        body = {"slot_name": name, "source": "main", "database": database, "plugin": plugin, **more}
        return self.call("POST", "/slots", json=body)

    def drop_slot(self, name: str) -> None:
        self.call("DELETE", f"/slots/{name}")

    def slot(self, name: str) -> Any:
        return self.call("GET", f"/slots/{name}")

    def wait_decoded(self, name: str, database: Database, timeout_s: float = 180) -> str:
        """Wait until the slot's source is decoded up to where the server's WAL is now; return
        that.
        """
        lsn = str(database.value("SELECT pg_current_wal_flush_lsn()::text"))
        self.wait_for(name, lsn, timeout_s)
        return lsn

    def wait_for(self, name: str, lsn: str, timeout_s: float = 180) -> None:
        """Wait until the slot's source is decoded up to *lsn*."""
        deadline = time.monotonic() + timeout_s
        while True:
            slot = self.slot(name)
            if slot["decoded_lsn"] and Lsn.parse(slot["decoded_lsn"]) >= Lsn.parse(lsn):
                return
            if time.monotonic() > deadline:
                sources = self.call("GET", "/sources")
                raise AssertionError(f"not decoded up to {lsn}: {slot} {sources}")
            time.sleep(0.02)

    def peek(
        self,
        name: str,
        options: Mapping[str, str] | None = None,
        upto_lsn: str | None = None,
        upto_nchanges: int | None = None,
    ) -> list[tuple[str, int, str]]:
        params = {f"options.{k}": v for k, v in (options or {}).items()}
        if upto_lsn is not None:
            params["upto_lsn"] = upto_lsn
        if upto_nchanges is not None:
            params["upto_nchanges"] = str(upto_nchanges)
        answer = self.call("GET", f"/slots/{name}/peek", params=params)
        return [(c["lsn"], c["xid"], c["data"]) for c in answer["changes"]]

    def get(self, name: str, **body: Any) -> list[tuple[str, int, str]]:
        answer = self.call("POST", f"/slots/{name}/get", json=body)
        return [(c["lsn"], c["xid"], c["data"]) for c in answer["changes"]]


@contextmanager
def service_in_process(
    data_dir: Path,
    *,
    engine: EngineSettings | None = None,
    metadata_url: str | None = None,
    token: str | None = None,
    tls: TlsFiles | None = None,
    asked_with: ssl.SSLContext | None = None,
    client_timeout_s: float = 60.0,
    sql_connections: int = 50,
) -> Iterator[Service]:
    """Run the whole service on a thread of this process; with *tls* it is asked with
    *asked_with*.
    """
    settings = ServeSettings(
        data_dir=data_dir,
        http_port=0,
        grpc_port=0,
        pg_port=0,
        client_timeout_s=client_timeout_s,
        sql_connections=sql_connections,
        token=token,
        tls=tls,
        metadata_url=metadata_url,
        engine=engine or EngineSettings(),
    )
    ports: list[Ports] = []
    failure: list[BaseException] = []
    started = threading.Event()
    # The one that ``spillway serve`` has.
    loop = LendingLoop()
    stop = asyncio.Event()

    async def main() -> None:
        async with running(settings) as bound:
            ports.append(bound)
            started.set()
            await stop.wait()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(main())
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            failure.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="service")
    thread.start()
    started.wait(60)
    if failure:
        thread.join()
        raise failure[0]
    http_port, grpc_port, pg_port = ports[0]
    service = Service(http_port, grpc_port, token=token, tls=asked_with, pg_port=pg_port)
    try:
        yield service
    finally:
        service.http.close()
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        assert not thread.is_alive(), "the service did not stop"
    if failure:
        raise failure[0]
