"""A relay on loopback before a server, which tells its errors as one of another language would: a
server whose lc_messages is none of English, for which the tests' servers have no catalogs.

PostgreSQL translates the severity, the message, detail and hint, and leaves the rest as it is.
Names of settings and objects stay what they are within a message.
"""

from __future__ import annotations

import re
import socket
import struct
from contextlib import suppress

from harness.refusing_relay import RefusingRelay


class TranslatingRelay(RefusingRelay):
    """See the module; it is to be connected to without TLS."""

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
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
