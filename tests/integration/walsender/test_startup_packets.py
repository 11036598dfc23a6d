"""What clients of any age say before they log in, answered as PostgreSQL 18 answers it: minor
versions and parameters of the protocol, requests for encryption, keys of CancelRequests.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from harness.certificates import Authority
from harness.pg_port import create_user, dsn_of, serving
from harness.replication_client import ReplicationClient
from spillway.tls import TlsFiles
from spillway.walsender.messages import (
    CANCEL_REQUEST,
    GSSENC_REQUEST,
    SSL_REQUEST,
    error_fields,
)

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database

#: Minor version, parameters beside user and database, and the minor version and the parameters
#: that NegotiateProtocolVersion has; None: there is none.
STARTUPS: list[tuple[int, list[str], tuple[int, list[str]] | None]] = [
    (0, [], None),
    (1, [], None),
    (2, [], None),
    (3, [], (2, [])),
    # What libpq of 19's betas sends.
    (9999, ["_pq_.test_protocol_negotiation"], (2, ["_pq_.test_protocol_negotiation"])),
    (2, ["_pq_.one", "_pq_.two"], (2, ["_pq_.one", "_pq_.two"])),
    (0, ["_pq_.one"], (0, ["_pq_.one"])),
]


def _startup(code: int, user: str, database: str, more: list[str]) -> bytes:
    given = {"user": user, "database": database, "replication": "database"}
    words = [word for pair in given.items() for word in pair]
    words += [word for name in more for word in (name, "")]
    body = struct.pack(">i", code) + b"".join(word.encode() + b"\0" for word in words) + b"\0"
    return struct.pack(">i", len(body) + 4) + body


def _read(connection: socket.socket) -> tuple[bytes, bytes]:
    """Read a message: its letter and what it holds."""
    head = _exactly(connection, 5)
    return head[:1], _exactly(connection, int.from_bytes(head[1:], "big") - 4)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        assert piece, "the connection has ended"
        data += piece
    return data


def _first_answer(address: tuple[str, int], sent: bytes) -> tuple[bytes, bytes]:
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(sent)
        return _read(connection)


def test_minor_versions(pg18: Database, tmp_path: Path) -> None:
    server = conninfo_to_dict(pg18.dsn)
    theirs = str(server["host"]), int(str(server["port"]))
    with serving(pg18, tmp_path) as (service, _):
        ours = "127.0.0.1", service.pg_port or 0
        sides = (theirs, str(server["user"])), (ours, "alice")
        for minor, more, negotiated in STARTUPS:
            for address, user in sides:
                sent = _startup(3 << 16 | minor, user, pg18.name, more)
                kind, body = _first_answer(address, sent)
                if negotiated is None:
                    assert kind == b"R", (minor, more, body)
                    continue
                newest, unknown = negotiated
                names = b"".join(name.encode() + b"\0" for name in unknown)
                expected = struct.pack(">ii", 3 << 16 | newest, len(unknown)) + names
                assert (kind, body) == (b"v", expected), (minor, more, address)
        # Later major versions (2.0 had errors of another form), and what is no packet of any.
        whole = _startup(3 << 16, "alice", pg18.name, [])
        for sent in (
            _startup(4 << 16, "alice", pg18.name, []),
            _startup(4 << 16 | 1, "alice", pg18.name, []),
            struct.pack(">i", len(whole) - 1) + whole[4:-1],
            struct.pack(">i", len(whole) + 1) + whole[4:] + b"x",
        ):
            told = [error_fields(_first_answer(address, sent)[1]) for address, _ in sides]
            severity, sqlstate, text = (told[0][field] for field in "SCM")
            assert [told[1][field] for field in "SCM"] == [severity, sqlstate, text]


def test_requests_for_encryption(pg18: Database, tmp_path: Path) -> None:
    """libpq with a Kerberos ticket asks for GSSAPI first."""
    gss, tls = (struct.pack(">ii", 8, code) for code in (GSSENC_REQUEST, SSL_REQUEST))
    startup = _startup(3 << 16, "alice", pg18.name, [])
    with serving(pg18, tmp_path / "plain") as (service, _):
        address = "127.0.0.1", service.pg_port or 0
        for requests in ([gss], [tls], [gss, tls], [tls, gss]):
            with socket.create_connection(address, timeout=30) as connection:
                for request in requests:
                    connection.sendall(request)
                    assert connection.recv(1) == b"N"
                connection.sendall(startup)
                assert _read(connection)[0] == b"R"
        # Nobody asks for ever.
        with socket.create_connection(address, timeout=30) as connection:
            for _ in range(3):
                connection.sendall(gss)
                assert connection.recv(1) == b"N"
            assert error_fields(_read(connection)[1])["C"] == "08P01"
    authority = Authority.make(tmp_path)
    pair = authority.sign("service")
    context = ssl.create_default_context(cafile=authority.file)
    files = TlsFiles(pair.certificate, pair.key)
    with serving(pg18, tmp_path / "tls", tls=files, asked_with=context) as (service, _):
        address = "127.0.0.1", service.pg_port or 0
        with socket.create_connection(address, timeout=30) as plain:
            plain.sendall(gss)
            assert plain.recv(1) == b"N"
            plain.sendall(tls)
            assert plain.recv(1) == b"S"
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped:
                wrapped.sendall(startup)
                kind, body = _read(wrapped)
                assert kind == b"R"
                assert body[4:].split(b"\0")[:2] == [b"SCRAM-SHA-256-PLUS", b"SCRAM-SHA-256"]
        # TLS at once is for who says that it is PostgreSQL's protocol.
        for protocols, answers in ((["postgresql"], True), (["http/1.1"], False)):
            context.set_alpn_protocols(protocols)
            assert _answers_at_once(address, context, startup) is answers


def _answers_at_once(address: tuple[str, int], context: ssl.SSLContext, startup: bytes) -> bool:
    """Whether a client is served that begins with TLS."""
    try:
        with (
            socket.create_connection(address, timeout=30) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
        ):
            assert wrapped.selected_alpn_protocol() == "postgresql"
            wrapped.sendall(startup)
            return wrapped.recv(1) == b"R"
    except (OSError, AssertionError):
        return False


def _cancel(client: ReplicationClient) -> None:
    """Cancel until the command is over, which may not have begun yet."""
    deadline = time.monotonic() + 60
    while client.pgconn.is_busy():
        assert time.monotonic() < deadline
        # Nothing waits inside libpq, for the service is in this process.
        request = client.pgconn.cancel_conn()
        request.start()
        while (status := request.poll()) != pq.PollingStatus.OK:
            assert status != pq.PollingStatus.FAILED, request.get_error_message()
            time.sleep(0.001)
        request.finish()
        client.pgconn.consume_input()


@pytest.mark.parametrize(("minor", "key_bytes"), [(0, 4), (2, 32)])
def test_cancel_keys(pg18: Database, tmp_path: Path, minor: int, key_bytes: int) -> None:
    version = f"3.{minor}"
    with serving(pg18, tmp_path) as (service, dsn):
        service.create_slot("s", pg18.name)
        create_user(service, "bob", pg18.name, run_sql=True)
        asking = f"min_protocol_version={version} max_protocol_version={version}"
        with ReplicationClient(dsn) as holder, ReplicationClient(f"{dsn} {asking}") as client:
            holder.start("s")
            assert client.pgconn.full_protocol_version == 30_000 + minor
            address = "127.0.0.1", service.pg_port or 0
            pid = client.pgconn.backend_pid
            # Whoever has not the key cancels nothing, whatever its length.
            for key in (b"", b"\0" * 4, b"\0" * key_bytes):
                request = struct.pack(">iii", 12 + len(key), CANCEL_REQUEST, pid) + key
                with socket.create_connection(address, timeout=30) as stranger:
                    stranger.sendall(request)
                    assert stranger.recv(1) == b""
            client.pgconn.send_query(b"DROP_REPLICATION_SLOT s WAIT")
            client.pgconn.flush()
            _cancel(client)
            result = client.result()
            assert result is not None
            assert b"canceling statement due to user request" in result.error_message
            assert client.result() is None
            assert client.run("READ_REPLICATION_SLOT none").failure is None
        # An ordinary session's is passed on to the source.
        with psycopg.connect(f"{dsn_of(service, 'bob', pg18.name)} {asking}") as bob:
            timer = threading.Timer(0.2, bob.cancel_safe)
            timer.start()
            with pytest.raises(psycopg.errors.QueryCanceled):
                bob.execute("SELECT pg_sleep(60)")
            timer.join()


def test_cancels_within_tls(pg18: Database, tmp_path: Path) -> None:
    """libpq 17 and later asks for a cancel as its connection came in: within TLS."""
    authority = Authority.make(tmp_path)
    pair = authority.sign("service")
    context = ssl.create_default_context(cafile=authority.file)
    files = TlsFiles(pair.certificate, pair.key)
    with serving(pg18, tmp_path / "data", tls=files, asked_with=context) as (service, dsn):
        service.create_slot("s", pg18.name)
        create_user(service, "bob", pg18.name, run_sql=True)
        verified = f"sslmode=verify-full sslrootcert={authority.file}"
        for more in ("", "sslnegotiation=direct"):
            asking = f"{verified} {more}"
            with (
                ReplicationClient(f"{dsn} {asking}") as holder,
                ReplicationClient(f"{dsn} {asking}") as client,
            ):
                holder.start("s")
                client.pgconn.send_query(b"DROP_REPLICATION_SLOT s WAIT")
                client.pgconn.flush()
                _cancel(client)
                result = client.result()
                assert result is not None
                assert b"canceling statement due to user request" in result.error_message
            with psycopg.connect(f"{dsn_of(service, 'bob', pg18.name)} {asking}") as bob:
                failures: list[BaseException] = []

                def cancel(bob: psycopg.Connection = bob, failures: Any = failures) -> None:
                    try:
                        bob.cancel_safe()
                    except psycopg.Error as error:
                        failures.append(error)

                timer = threading.Timer(0.2, cancel)
                timer.start()
                with pytest.raises(psycopg.errors.QueryCanceled):
                    bob.execute("SELECT pg_sleep(10)")
                timer.join()
                assert not failures
        # One that is cut, or longer than a key may be, cancels nothing and is no error of the log.
        for body in (b"", b"\0" * 5000):
            with (
                socket.create_connection(("127.0.0.1", service.pg_port or 0), timeout=30) as plain,
            ):
                plain.sendall(struct.pack(">ii", 8, SSL_REQUEST))
                assert plain.recv(1) == b"S"
                with context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped:
                    wrapped.sendall(struct.pack(">ii", 8 + len(body), CANCEL_REQUEST) + body)
                    assert wrapped.recv(1) == b""
