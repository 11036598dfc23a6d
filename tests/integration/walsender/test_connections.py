"""Who comes in over PostgreSQL's own protocol, how, and what becomes of clients that misbehave or
go away.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import os
import random
import socket
import ssl
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from psycopg import pq

from harness.certificates import Authority
from harness.pg_port import PASSWORD, create_user, dsn_of, serving
from harness.remedies import remedy
from harness.replication_client import Failure, ReplicationClient
from spillway.cli.program import main
from spillway.pg.lsn import Lsn
from spillway.tls import TlsFiles
from spillway.walsender import commands, handshake
from spillway.walsender.copy_stream import CopyStream

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database
    from harness.service import Service
    from spillway.plugins.messages import EncodedBatch

CREATE = "CREATE_REPLICATION_SLOT {} LOGICAL test_decoding NOEXPORT_SNAPSHOT"


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "WRONG_PASSWORD_DELAY_S", 0.0)


def _refusal(dsn: str, replication: str = "database") -> str:
    with pytest.raises(ConnectionRefusedError) as refused:
        ReplicationClient(dsn, replication=replication)
    return str(refused.value)


def test_who_comes_in(pg15: Database, tmp_path: Path) -> None:
    name = pg15.name
    with serving(pg15, tmp_path) as (service, dsn):
        with ReplicationClient(dsn) as alice:
            assert alice.run("IDENTIFY_SYSTEM").rows[0][3] == name
        # The same by both names of the database, and by no other.
        with ReplicationClient(dsn_of(service, "alice", f"main/{name}")) as alice:
            assert alice.run("IDENTIFY_SYSTEM").rows[0][3] == name
        for wrong in ("none", "none/none", "main/none"):
            assert f'FATAL:  database "{wrong}" does not exist' in _refusal(
                dsn_of(service, "alice", wrong)
            )
        assert "permission denied for database" in _refusal(dsn_of(service, "alice", "postgres"))
        # Of a wrong password and of an unknown user the same is said.
        for user in ("alice", "nobody"):
            assert f'password authentication failed for user "{user}"' in _refusal(
                dsn_of(service, user, name, "wrong")
            )
        assert "permission denied to run SQL commands" in _refusal(dsn, "false")
        with ReplicationClient(dsn, replication="true") as physical:
            assert physical.run("IDENTIFY_SYSTEM").rows[0][3] is None

        # Who has left comes in no more, and a verifier is taken over from PostgreSQL.
        pg15.execute("CREATE ROLE bob PASSWORD 'ﬁve ways\u00a0in'")
        try:
            verifier = pg15.value("SELECT rolpassword FROM pg_authid WHERE rolname = 'bob'")
        finally:
            pg15.execute("DROP ROLE bob")
        create_user(service, "bob", name, verifier=verifier, slots=["bobs"])
        bob = dsn_of(service, "bob", name, "five ways in")
        with ReplicationClient(bob) as connection, ReplicationClient(dsn) as alice:
            denied = Failure("42501", 'permission denied to create replication slot "bobs"')
            assert connection.run(CREATE.format("bobs")).failure == denied
            assert alice.run(CREATE.format("others")).failure is None
            assert alice.run(CREATE.format("bobs")).failure is None
            failure = connection.run("START_REPLICATION SLOT others LOGICAL 0/0").failure
            assert failure == Failure("42501", 'permission denied to use replication slot "others"')
            failure = connection.run("DROP_REPLICATION_SLOT bobs").failure
            assert failure == Failure("42501", 'permission denied to drop replication slot "bobs"')
            assert connection.run("SHOW hba_file").failure == Failure(
                "42501", 'permission denied to examine "hba_file"'
            )
            assert connection.run("SELECT 1").failure == Failure(
                "42501", "permission denied to run SQL commands"
            )
            service.call("PATCH", "/users/bob", json={"run_sql": True})
            connection.start("bobs")
        with ReplicationClient(bob) as connection:
            assert connection.run("SHOW wal_level").rows == (("logical",),)
            assert connection.run("SHOW no_such_thing").failure == Failure(
                "42704", 'unrecognized configuration parameter "no_such_thing"'
            )
            assert connection.run("SELECT 1").rows == (("1",),)
        service.call("DELETE", "/users/bob")
        assert "password authentication failed" in _refusal(bob)


@pytest.mark.follows_hint("unknown_user")
def test_users_by_command(
    pg15: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving(pg15, tmp_path) as (service, _):
        monkeypatch.setenv("SPILLWAY_URL", f"http://127.0.0.1:{service.http_port}")
        monkeypatch.setattr(sys, "stdin", io.StringIO(PASSWORD + "\n"))
        assert main(["user", "create", "carol", "--database", "main/*", "--password-stdin"]) == 0
        assert "SCRAM" not in capsys.readouterr().out
        carol_dsn = dsn_of(service, "carol", pg15.name)
        with ReplicationClient(carol_dsn) as carol:
            assert carol.run(CREATE.format("c")).failure is not None
        assert main(["user", "alter", "carol", "--manage-slots", "--slot", "c"]) == 0
        with ReplicationClient(carol_dsn) as carol:
            assert carol.run(CREATE.format("c")).failure is None
            assert carol.run(CREATE.format("d")).failure is not None
        capsys.readouterr()
        assert main(["user", "list"]) == 0
        listed = capsys.readouterr().out
        assert "alice" in listed
        assert "carol" in listed
        assert main(["user", "drop", "carol"]) == 0
        assert main(["user", "show", "carol"]) == 1
        hint = remedy(capsys.readouterr().err, "unknown_user")
        # What the hint says to do is done.
        assert "`spillway user list`" in hint
        assert "`spillway user create`" in hint
        assert main(["user", "list"]) == 0
        monkeypatch.setattr(sys, "stdin", io.StringIO(PASSWORD + "\n"))
        assert main(["user", "create", "carol", "--database", "main/*", "--password-stdin"]) == 0
        assert main(["user", "show", "carol"]) == 0
        problem = service.problem(
            "POST", "/users", json={"name": "d", "password": "x", "databases": ["shop"]}
        )
        assert problem["code"] == "invalid_request"


def _is_delivered_live(
    database: Database, dsn: str, slot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stream a slot until a transaction has come from a thread that decoded it: the session's, or
    the receiver's in its stead.
    """
    takers: list[str] = []
    take = CopyStream.take

    def noted(stream: CopyStream, messages: EncodedBatch, confirm_lsn: Lsn) -> None:
        takers.append(threading.current_thread().name)
        take(stream, messages, confirm_lsn)

    with monkeypatch.context() as patched, ReplicationClient(dsn) as client:
        patched.setattr(CopyStream, "take", noted)
        assert client.run(CREATE.format(slot)).failure is None
        client.start(slot)
        for number in range(1, 101):
            database.execute("INSERT INTO live VALUES (%s)", [number])
            frames = client.read_to(str(database.value("SELECT pg_current_wal_flush_lsn()::text")))
            if takers[-1].startswith(("spillway-decode", "walreceiver")):
                break
        assert takers[-1].startswith(("spillway-decode", "walreceiver"))
        rows = [frame.data for frame in frames if frame.data.startswith(b"table")]
        assert rows == [
            f"table public.live: INSERT: i[integer]:{i}".encode() for i in range(1, number + 1)
        ]
        assert all(before.end <= after.end for before, after in itertools.pairwise(frames))


def test_tls(pg15: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pg15.execute("CREATE TABLE live (i int)")
    authority = Authority.make(tmp_path)
    pair = authority.sign("service")
    files = TlsFiles(pair.certificate, pair.key)
    asking = ssl.create_default_context(cafile=authority.file)
    with serving(pg15, tmp_path / "data", tls=files, asked_with=asking) as (service, dsn):
        verified = f"{dsn} sslrootcert={authority.file} sslmode=verify-full"
        for more in ("", "channel_binding=require", "channel_binding=disable", _direct()):
            with ReplicationClient(f"{verified} {more}") as connection:
                assert connection.pgconn.ssl_in_use
                assert connection.run("IDENTIFY_SYSTEM").failure is None
        _is_delivered_live(pg15, verified, "live", monkeypatch)
        assert "is without encryption, which this server asks for" in _refusal(
            f"{dsn} sslmode=disable"
        )
        # TLS at once needs ALPN.
        context = ssl.create_default_context(cafile=authority.file)
        with (
            socket.create_connection(("127.0.0.1", service.pg_port or 0)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
        ):
            assert wrapped.recv(1) == b""
        # What came without TLS behind the request for it is nobody's.
        with socket.create_connection(("127.0.0.1", service.pg_port or 0)) as early:
            early.sendall(struct.pack(">ii", 8, 80877103) + b"early")
            assert b"received unencrypted data after SSL request" in _all_of(early)


def _direct() -> str:
    """Ask for TLS without a request for it, where this libpq can."""
    return "sslnegotiation=direct" if pq.version() >= 170_000 else ""


def test_a_stream_and_its_ends(
    pg15: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pg15.execute("CREATE TABLE t (i int)")
    pg15.execute("CREATE TABLE live (i int)")
    with serving(pg15, tmp_path) as (service, dsn):
        _is_delivered_live(pg15, dsn, "live", monkeypatch)
        with ReplicationClient(dsn) as first:
            first.run(CREATE.format("s"))
            first.start("s")
            with ReplicationClient(dsn) as second:
                failure = second.run("START_REPLICATION SLOT s LOGICAL 0/0").failure
                assert failure is not None
                assert failure.sqlstate == "55006"
                assert "is active for PID" in failure.message
            consumer = service.slot("s")["consumer"]
            assert consumer["address"].startswith("127.0.0.1:")
            pg15.execute("INSERT INTO t VALUES (1)")
            end = str(pg15.value("SELECT pg_current_wal_flush_lsn()::text"))
            frames = first.read_to(end)
            # What a keepalive promises was sent before it.
            commit = max(frame.end for frame in frames)
            assert all(at == len(frames) for walend, at in first.keepalives if walend >= commit)
            first.feedback(commit, reply_requested=True)
            _wait(service, lambda slot: slot["confirmed_flush_lsn"] == str(Lsn(commit)))
        # It went without a word, and the slot is free.
        _wait(service, lambda slot: not slot["active"])
        with ReplicationClient(dsn) as third:
            pg15.execute("INSERT INTO t VALUES (2)")
            # Below what is confirmed: it goes on from there.
            third.start("s", lsn="0/1")
            third.read_until(lambda: len(third.frames) == 3)
            # Beyond what this stream has sent, as PostgreSQL takes it.
            service.wait_decoded("s", pg15)
            beyond = third.frames[-1].end
        _wait(service, lambda slot: not slot["active"])
        with ReplicationClient(dsn) as fourth:
            fourth.start("s", lsn=str(Lsn(beyond)))
            fourth.feedback(beyond)
            _wait(service, lambda slot: slot["confirmed_flush_lsn"] == str(Lsn(beyond)))
            service.call("POST", "/slots/s/end-session")
            with pytest.raises(EOFError, match="terminating connection due to administrator"):
                fourth.read_until(lambda: False)
        _wait(service, lambda slot: not slot["active"])
        # A temporary slot outlives its streams, and not its connection.
        with ReplicationClient(dsn) as fifth:
            fifth.run("CREATE_REPLICATION_SLOT t TEMPORARY LOGICAL test_decoding NOEXPORT_SNAPSHOT")
            fifth.start("t")
            fifth.finish_copy()
            fifth.start("t")
            fifth.finish_copy()
        _wait_gone(service, "t")
        # Who gives no answer loses the slot.
        with ReplicationClient(f"{dsn} options='-c wal_sender_timeout=200ms'") as silent:
            silent.start("s")
            silent.read_to_end()
            # Asked for an answer, before that.
            assert silent.keepalives
        _wait(service, lambda slot: not slot["active"])


def test_who_was_killed_is_back_at_once(pg15: Database, tmp_path: Path) -> None:
    """Also before the service has heard of it, and whether or not there is something to send:
    Debezium, once refused, waits for ten seconds.
    """
    pg15.execute("CREATE TABLE t (i int, b text)")
    with serving(pg15, tmp_path) as (service, dsn):
        service.create_slot("s", pg15.name)
        for rows in (0, 50_000):
            pg15.execute(
                "INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, %s) i", [rows]
            )
            service.wait_decoded("s", pg15)
            for _ in range(3):
                killed, back = ReplicationClient(dsn), ReplicationClient(dsn)
                killed.start("s")
                _reset(killed)
                # Without a failure.
                back.start("s")
                killed.pgconn.finish()
                _reset(back)
                back.pgconn.finish()
                _wait(service, lambda slot: not slot["active"])


def _reset(client: ReplicationClient) -> None:
    """End a connection as kill -9 does where not all was read: by RST, without a word."""
    descriptor = client.pgconn.socket
    with socket.socket(fileno=os.dup(descriptor)) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # libpq, when it is told to close, says so to nobody.
    nobody = os.open(os.devnull, os.O_RDWR)
    os.dup2(nobody, descriptor)
    os.close(nobody)


def _wait(service: Service, holds: object) -> None:
    deadline = time.monotonic() + 60
    while not holds(service.slot("s")):  # type: ignore[operator]
        assert time.monotonic() < deadline, service.slot("s")
        time.sleep(0.01)


def _wait_gone(service: Service, name: str) -> None:
    deadline = time.monotonic() + 60
    while any(slot["slot_name"] == name for slot in service.call("GET", "/slots")["slots"]):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_extended_protocol_and_negotiation(pg15: Database, tmp_path: Path) -> None:
    with serving(pg15, tmp_path) as (_, dsn):
        with ReplicationClient(dsn) as connection:
            refused = connection.run_extended("SELECT 1").failure
            assert refused == Failure(
                "08P01", "extended query protocol not supported in a replication connection"
            )
            # It lives on behind Sync.
            assert connection.run("IDENTIFY_SYSTEM").failure is None
        if pq.version() >= 180_000:
            with ReplicationClient(f"{dsn} max_protocol_version=latest") as newest:
                assert newest.run("IDENTIFY_SYSTEM").failure is None


def test_hostile_bytes(pg15: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    parameters = b"user\0alice\0database\0" + pg15.name.encode() + b"\0replication\0database\0\0"
    startup = struct.pack(">ii", 8 + len(parameters), 196608) + parameters
    sasl = b"p" + struct.pack(">i", 4 + 14 + 4 + 20) + b"SCRAM-SHA-256\0"
    sasl += struct.pack(">i", 20) + b"n,,n=,r=abcdefghijkl"
    seeds = [startup, startup + sasl, struct.pack(">ii", 8, 80877103) + startup]
    with serving(pg15, tmp_path) as (service, dsn), caplog.at_level(logging.ERROR):
        for _ in range(80):
            data = bytearray(draw.choice(seeds))
            for _ in range(draw.randrange(4)):
                data[draw.randrange(len(data))] = draw.randrange(256)
            cut = draw.randrange(len(data) + 1) if draw.random() < 0.3 else len(data)
            with socket.create_connection(("127.0.0.1", service.pg_port or 0)) as hostile:
                # It may have been sent away before it has said all.
                with contextlib.suppress(OSError):
                    hostile.sendall(bytes(data[:cut]))
                    hostile.shutdown(socket.SHUT_WR)
                _all_of(hostile)
        # Behind the login, too.
        for _ in range(25):
            with ReplicationClient(dsn) as connection:
                raw = socket.socket(fileno=connection.pgconn.socket)
                try:
                    kind = draw.choice(b"QXdcfPBEDCFSHpr\0\xff")
                    length = draw.choice([0, 3, 4, 5, 12, 10_005, 1 << 21, 0x7FFFFFFF, 0xFFFFFFFF])
                    raw.sendall(bytes([kind]) + struct.pack(">I", length) + draw.randbytes(20))
                    raw.shutdown(socket.SHUT_WR)
                    raw.setblocking(True)
                    _all_of(raw)
                finally:
                    raw.detach()
        with ReplicationClient(dsn) as connection:
            assert connection.run("IDENTIFY_SYSTEM").failure is None
        faults = [record.getMessage() for record in caplog.records]
        assert not faults, f"seed {seed}: {faults}"


def _all_of(connection: socket.socket) -> bytes:
    """Read to the end; that it ends is the point."""
    connection.settimeout(30)
    data = b""
    try:
        while piece := connection.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data


def test_what_a_server_cant_change_is_asked_once_for_all_who_begin(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pg_recvlogical asks as it begins; a session on the source for each costs more than it."""
    asked: list[str] = []

    def ask(dsn: str, name: str) -> tuple[str, str]:
        asked.append(name)
        return ask_setting(dsn, name)

    ask_setting = commands._ask_setting
    monkeypatch.setattr(commands, "_ask_setting", ask)
    mode = pg.value("SHOW data_directory_mode")

    def show(dsn: str, name: str = "data_directory_mode") -> tuple[tuple[str | None, ...], ...]:
        with ReplicationClient(dsn) as connection:
            return connection.run(f"SHOW {name}").rows

    with serving(pg, tmp_path) as (service, dsn):
        create_user(service, "bob", pg.name, run_sql=True)
        bob = dsn_of(service, "bob", pg.name)
        for each in (dsn, bob, dsn):
            assert show(each) == ((mode,),)
        assert asked == ["data_directory_mode"]
        with ReplicationClient(bob) as connection:
            # In a session that there is, it is that one's answer.
            assert connection.run("SELECT 1").rows == (("1",),)
            assert connection.run("SHOW data_directory_mode").rows == ((mode,),)
        assert len(asked) == 1
        # What a server can change is asked each time.
        for _ in range(2):
            assert show(dsn, "wal_level") == (("logical",),)
        assert len(asked) == 3
        # Another server may be there by now, or this one have started again.
        service.call(
            "PATCH", "/sources/main", json={"dsn": f"{pg.cluster.dsn()} connect_timeout=9"}
        )
        assert show(dsn) == ((mode,),)
        assert len(asked) == 4
        assert show(dsn) == ((mode,),)
        assert len(asked) == 4
        monkeypatch.setattr(commands, "_FIXED_S", 0.0)
        assert show(dsn) == ((mode,),)
        assert len(asked) == 5
