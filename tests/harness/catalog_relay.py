"""A relay on loopback before an Iceberg REST catalog, which stops a commit of several tables where
a test wants it: before the catalog has the request, or before its sender has the answer.

::

    job ──▶ relay ──request──▶ catalog        held before it: the job may die meanwhile, and another
            relay ◀──answer───                one be at work when the request arrives at last
    job ◀── relay                             held after it: the job dies without having heard

Whoever is behind a connection may die; the relay goes on with what it holds when it is told to
(:meth:`Held.let_go`). All else goes through as it comes.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMMIT: Final = "/transactions/commit"
#: What a connection has to itself.
_OF_CONNECTION: Final = frozenset({"connection", "transfer-encoding", "content-length", "host"})
_TIMEOUT_S: Final = 240


@dataclass(slots=True)
class Held:
    """A commit that is held once it comes."""

    before: Literal["request", "answer"]
    came: threading.Event = field(default_factory=threading.Event)
    goes: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    #: what the catalog answered, once *done*, or *came* where the answer is held
    status: int | None = None

    def wait(self) -> None:
        """Wait until it is held."""
        assert self.came.wait(_TIMEOUT_S), "no commit of several tables came"

    def let_go(self) -> int:
        """Let it go on; return what the catalog answered to it."""
        self.goes.set()
        assert self.done.wait(_TIMEOUT_S)
        assert self.status is not None
        return self.status


class Relay:
    """See the module."""

    def __init__(self, catalog: str) -> None:
        self.catalog = catalog
        self._next: Held | None = None
        self._lock = threading.Lock()
        relay = self

        class Handler(BaseHTTPRequestHandler):
            def _pass(self) -> None:
                relay._relayed(self)

            do_GET = do_POST = do_HEAD = do_DELETE = _pass  # noqa: N815 - the library's names

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="relay")
        self._thread.start()

    def hold(self, before: Literal["request", "answer"]) -> Held:
        """Hold the next commit of several tables."""
        self._next = Held(before)
        return self._next

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _relayed(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("Content-Length") or 0)
        body = handler.rfile.read(length)
        held: Held | None = None
        if handler.path.endswith(_COMMIT):
            with self._lock:
                held, self._next = self._next, None
        if held is not None and held.before == "request":
            held.came.set()
            held.goes.wait(_TIMEOUT_S)
        status, headers, answer = self._asked(handler, body)
        if held is not None:
            held.status = status
            if held.before == "answer":
                held.came.set()
                held.goes.wait(_TIMEOUT_S)
            held.done.set()
        # Who asked may be dead.
        with contextlib.suppress(OSError):
            handler.send_response_only(status)
            for name, value in headers:
                if name.lower() not in _OF_CONNECTION:
                    handler.send_header(name, value)
            handler.send_header("Content-Length", str(len(answer)))
            handler.end_headers()
            handler.wfile.write(answer)

    def _asked(
        self, handler: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        where = urlsplit(self.catalog)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
        headers = {n: v for n, v in handler.headers.items() if n.lower() not in _OF_CONNECTION}
        try:
            connection.request(handler.command, handler.path, body or None, headers)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()


@contextmanager
def relay_to(catalog: str) -> Iterator[Relay]:
    """Run a relay to *catalog*, an address."""
    relay = Relay(catalog)
    try:
        yield relay
    finally:
        relay.close()
