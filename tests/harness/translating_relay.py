"""A relay on loopback before a server, which tells its errors as one of another language would: a
server whose lc_messages is none of English, for which the tests' servers have no catalogs.

PostgreSQL translates the severity, the message, detail and hint, and leaves the rest as it is.
Names of settings and objects stay what they are within a message.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class TranslatingRelay:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for one in (self._listener, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._to)
                self._open += [client, server]
                threading.Thread(target=_pass_on, args=(client, server), daemon=True).start()
                threading.Thread(target=_translate, args=(server, client), daemon=True).start()


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    with suppress(OSError):
        other.shutdown(socket.SHUT_WR)


def _translate(server: socket.socket, client: socket.socket) -> None:
    """Pass messages on, errors translated; the handshake is without TLS."""
    with suppress(OSError), server.makefile("rb") as stream:
        while len(head := stream.read(5)) == 5:
            (size,) = struct.unpack_from("!I", head, 1)
            body = stream.read(size - 4)
            if head[:1] == b"E":
                body = _translated(body)
                head = b"E" + struct.pack("!I", len(body) + 4)
            client.sendall(head + body)
    with suppress(OSError):
        client.shutdown(socket.SHUT_WR)


def _translated(body: bytes) -> bytes:
    fields = [field for field in body.split(b"\0") if field]
    return b"".join(_field(field[:1], field[1:]) + b"\0" for field in fields) + b"\0"


def _field(kind: bytes, value: bytes) -> bytes:
    if kind == b"S":
        return kind + b"\xd0\xa4\xd0\x90\xd0\xa2\xd0\x90\xd0\x9b\xd0\xac\xd0\x9d\xd0\x9e"
    if kind in b"MDH":
        # Every word, but not the names between quotes, nor those of settings.
        value = re.sub(
            rb'"[^"]*"|\w+[_.]\w+|[a-zA-Z]+',
            lambda word: word[0] if word[0].isalpha() is False else b"x" * len(word[0]),
            value,
        )
    return kind + value
