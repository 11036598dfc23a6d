"""Connections that begin and say no more, and TLS that is cut or followed by junk: none is kept
longer than a login may take, none is an error of the log, and whoever comes next is served.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import struct
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from psycopg import pq

from harness.certificates import Authority
from harness.pg_port import serving
from harness.replication_client import ReplicationClient
from spillway.tls import TlsFiles
from spillway.walsender import server
from spillway.walsender.messages import GSSENC_REQUEST, SSL_REQUEST

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.cluster import Database

ASKS_FOR_TLS = struct.pack(">ii", 8, SSL_REQUEST)
ASKS_FOR_GSSAPI = struct.pack(">ii", 8, GSSENC_REQUEST)
#: What comes first within TLS and is no startup packet, or not the whole of one.
JUNK = [
    struct.pack(">i", 20_000) + b"x" * 50,
    struct.pack(">i", 0) + b"x" * 50,
    struct.pack(">i", 60) + b"x" * 20,
    b"\0\0",
    ASKS_FOR_TLS,
    ASKS_FOR_GSSAPI,
    struct.pack(">ii", 8, 196608),
    b"GET / HTTP/1.1\r\n\r\n",
    b"",
]


@dataclass(frozen=True, slots=True)
class Door:
    """The port of a service with a certificate."""

    address: tuple[str, int]
    context: ssl.SSLContext
    dsn: str

    def connect(self, *, direct: bool) -> socket.socket:
        """Connect so far that TLS is what comes next."""
        plain = socket.create_connection(self.address, timeout=30)
        if not direct:
            plain.sendall(ASKS_FOR_TLS)
            assert plain.recv(1) == b"S"
        return plain

    def tls_over(self, plain: socket.socket) -> ssl.SSLSocket:
        wrapped = self.context.wrap_socket(plain, server_hostname="127.0.0.1")
        assert wrapped.selected_alpn_protocol() == "postgresql"
        return wrapped

    def hello(self) -> bytes:
        """A ClientHello."""
        sent = ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            self.context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="127.0.0.1").do_handshake()
        return sent.read()

    def serves(self) -> bool:
        with ReplicationClient(self.dsn) as connection:
            return connection.run("IDENTIFY_SYSTEM").failure is None


@contextmanager
def _door(database: Database, tmp_path: Path) -> Iterator[Door]:
    authority = Authority.make(tmp_path)
    pair = authority.sign("service")
    context = ssl.create_default_context(cafile=authority.file)
    context.set_alpn_protocols(["postgresql"])
    # Of its own: HTTP's client sets other protocols.
    rest = ssl.create_default_context(cafile=authority.file)
    files = TlsFiles(pair.certificate, pair.key)
    with serving(database, tmp_path / "data", tls=files, asked_with=rest) as (service, dsn):
        verified = f"{dsn} sslmode=verify-full sslrootcert={authority.file}"
        if pq.version() >= 170_000:
            verified += " sslnegotiation=direct"
        yield Door(("127.0.0.1", service.pg_port or 0), context, verified)


@pytest.mark.parametrize("direct", [True, False])
def test_junk_within_tls(
    pg18: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, direct: bool
) -> None:
    with _door(pg18, tmp_path) as door, caplog.at_level(logging.WARNING):
        for junk in JUNK:
            with door.tls_over(door.connect(direct=direct)) as wrapped:
                wrapped.sendall(junk)
                # The service may have been the first to end it.
                with contextlib.suppress(OSError):
                    wrapped.shutdown(socket.SHUT_RDWR)
            assert door.serves(), junk
        hello = door.hello()
        for cut in (1, 5, 6, len(hello) // 2, len(hello) - 1):
            with door.connect(direct=direct) as plain:
                plain.sendall(hello[:cut])
            assert door.serves(), cut
        # Nobody is told outside of TLS what is amiss within.
        with door.tls_over(door.connect(direct=direct)) as wrapped:
            wrapped.sendall(JUNK[0])
            assert wrapped.recv(1) == b""
        assert not [record.getMessage() for record in caplog.records]


def test_who_says_no_more(
    pg18: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with _door(pg18, tmp_path) as door, caplog.at_level(logging.WARNING):
        monkeypatch.setattr(server, "AUTHENTICATION_TIMEOUT_S", 5.0)
        hello = door.hello()
        silent = [door.connect(direct=i % 2 == 0) for i in range(200)]
        for i, plain in enumerate(silent):
            plain.sendall(hello[: (i // 2) % 3 * 20])
        silent += [door.tls_over(door.connect(direct=i % 2 == 0)) for i in range(20)]
        for wrapped in silent[210:]:
            wrapped.sendall(b"\0\0")
        # Who comes in is given the time that a busy machine may need.
        monkeypatch.undo()
        assert door.serves()
        for connection in silent:
            with connection:
                assert connection.recv(1) == b""
        # Their sockets' numbers are those of who comes next.
        for _ in range(20):
            assert door.serves()
        assert not [record.getMessage() for record in caplog.records]


@pytest.mark.long
def test_a_login_has_one_time_for_all_of_it(
    pg18: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """authentication_timeout is not for each of its steps: who came first, and has got further, is
    sent away before who came later.
    """
    body = struct.pack(">i", 196608) + b"user\0alice\0\0"
    with _door(pg18, tmp_path) as door:
        monkeypatch.setattr(server, "AUTHENTICATION_TIMEOUT_S", 10.0)
        with door.tls_over(door.connect(direct=True)) as first:
            time.sleep(4.0)
            with door.connect(direct=False) as later:
                first.sendall(struct.pack(">i", len(body) + 4) + body)
                assert first.recv(1) == b"R"
                while first.recv(4096):
                    pass
                later.setblocking(False)
                with pytest.raises(BlockingIOError):
                    later.recv(1)
