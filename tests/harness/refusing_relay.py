"""A relay on loopback before a server, which takes no more connections once a test says so: what is
connected goes on, and a request to cancel does not arrive.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class RefusingRelay:
    """See the module.

    Args:
        port: the server's, on loopback.

    Attributes:
        port: its own.
    """

    def __init__(self, port: int) -> None:
        self._to = "127.0.0.1", port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def lead_to(self, port: int) -> None:
        """Take what connects from now on to another server; what is connected stays where it is."""
        self._to = "127.0.0.1", port

    def refuse(self) -> None:
        """Take no more connections."""
        with suppress(OSError):
            # Who waits in accept() is woken by this, and not by close().
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.refuse()
        for one in self._open:
            with suppress(OSError):
                # A thread that waits in recv() keeps it open beyond close(): for the server, too.
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._to)
                self._open += [client, server]
                threading.Thread(target=_pass_on, args=(client, server), daemon=True).start()
                threading.Thread(target=self._answer, args=(server, client), daemon=True).start()

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        """Give the client what the server says, until that ends."""
        _pass_on(server, client)


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    with suppress(OSError):
        other.shutdown(socket.SHUT_WR)
