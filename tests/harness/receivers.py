"""Who is told: a webhook's receiver and a mail server, both real, on ports of their own."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from aiosmtpd.controller import Controller

from spillway.demo.private_postgres import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from email.message import EmailMessage


class Webhook:
    """What came, in its order; ``statuses`` are answered one after the other, 200 after that."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        self.url = ""

    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.got]

    def reasons(self) -> list[tuple[str, str]]:
        return [(one["reason"], one["alert"]["code"]) for one in self.documents()]


@contextmanager
def webhook() -> Iterator[Webhook]:
    receiver = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = receiver.statuses.pop(0) if receiver.statuses else 200
            if 200 <= status < 300:
                receiver.got.append((dict(self.headers), body))
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", receiver.url)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, name="webhook")
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_port}/alerts"
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Mailbox:
    """The letters that came; ``refuse`` has addresses that it takes none for."""

    def __init__(self) -> None:
        self.letters: list[EmailMessage] = []
        self.refuse: set[str] = set()
        self.port = 0

    async def handle_RCPT(  # noqa: N802 - aiosmtpd's name
        self, server: Any, session: Any, envelope: Any, address: str, options: Any
    ) -> str:
        if address in self.refuse:
            return "550 no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        self.letters.append(message_from_bytes(envelope.content, policy=policy.default))
        return "250 OK"


@contextmanager
def mailbox() -> Iterator[Mailbox]:
    box = Mailbox()
    box.port = free_port()
    controller = Controller(box, hostname="127.0.0.1", port=box.port)
    controller.start()
    try:
        yield box
    finally:
        controller.stop()
