"""The Python client without a service: messages, values, positions, the package itself."""

from __future__ import annotations

import datetime as dt
import json
import random
import re
import sqlite3
import struct
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import sqlalchemy

from spillway.pg.lsn import Lsn as ServiceLsn
from spillway_client import (
    AsyncSlot,
    Changes,
    InvalidUse,
    Lsn,
    MalformedMessage,
    PgText,
    Position,
    PositionConflict,
    Progress,
    Slot,
    Tls,
    errors,
    parse_array,
)
from spillway_client._v1 import change_stream_pb2, slots_pb2
from spillway_client.arrow import BatchAssembly
from spillway_client.assembly import TransactionAssembly
from spillway_client.follower import Follower, settings_of
from spillway_client.service import Address
from spillway_client.values import converter_of

if TYPE_CHECKING:
    from collections.abc import Callable

PROJECT = Path(__file__).resolve().parents[3]
CLIENT = PROJECT / "client"


def test_lsn_is_written_as_the_service_writes_it() -> None:
    for number in (0, 1, 0x16B3748, 1 << 32, (1 << 64) - 1):
        assert str(Lsn(number)) == str(ServiceLsn(number)) == f"{Lsn(number)}"
        assert Lsn(str(Lsn(number))) == number
    for wrong in ("", "0", "0/", "/0", "x/1", "0/123456789", -1, 1 << 64):
        with pytest.raises(ValueError, match="not an LSN"):
            Lsn(wrong)


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (23, "x"), (16, "true"), (17, "abc"), (1082, "infinity"), (1083, "24:00:00"),
        (1114, "-infinity"),
        (1184, "0044-03-15 00:00:00+00 BC"), (1700, "one"), (2950, "x"), (114, "{"), (1007, "{1"),
        (1007, "{1}}"),
        (1007, "1"), (1009, '{"a'), (1009, ""), (1009, "[0:1]"),
    ],
)  # fmt: skip
def test_what_is_no_value_of_its_type_is_text(oid: int, text: str) -> None:
    value = converter_of(oid)(text)
    assert isinstance(value, PgText)
    assert value == text


def test_arrays() -> None:
    assert parse_array("{}") == []
    assert parse_array('[2:3][1:1]={{1},{"a,b"}}') == [["1"], ["a,b"]]
    assert parse_array('{1,NULL,"NULL"}') == ["1", None, "NULL"]
    assert parse_array("{(1,2),(0,0);(3,4),(5,6)}", delimiter=";") == ["(1,2),(0,0)", "(3,4),(5,6)"]
    with pytest.raises(ValueError, match="text of an array"):
        parse_array("{1}{2}")


def _text(value: str) -> bytes:
    return value.encode() + b"\0"


def _relation(oid: int = 7, names: tuple[str, ...] = ("id",)) -> bytes:
    columns = b"".join(b"\1" + _text(name) + struct.pack(">Ii", 23, -1) for name in names)
    head = b"R" + struct.pack(">I", oid) + _text("public") + _text("t") + b"d"
    return head + struct.pack(">H", len(names)) + columns


BEGIN = b"B" + struct.pack(">QqI", 100, 5, 3)
COMMIT = b"C" + struct.pack(">BQQq", 0, 100, 140, 5)


def _insert(number: int, oid: int = 7) -> bytes:
    text = str(number).encode()
    row = b"N" + struct.pack(">H", 1) + b"t" + struct.pack(">I", len(text)) + text
    return b"I" + struct.pack(">I", oid) + row


def _response(*messages: bytes) -> change_stream_pb2.Changes:
    return change_stream_pb2.Changes(
        payload=b"".join(messages), message_length=[len(m) for m in messages]
    )


def _assembly(**more: Any) -> TransactionAssembly:
    return TransactionAssembly(
        **{"buffer_bytes": 1 << 20, "max_transaction_bytes": None, "converters": {}, **more}
    )


def test_a_cut_leaves_nothing_of_a_transaction() -> None:
    assembly = _assembly()
    assert assembly.feed(_response(BEGIN, _relation(), _insert(1))) == []
    assembly.reconnected()
    (tx,) = assembly.feed(_response(BEGIN, _relation(), _insert(1), _insert(2), COMMIT))
    assert [c.new for c in tx.changes] == [{"id": 1}, {"id": 2}]
    assert (tx.xid, tx.commit_lsn, tx.end_lsn) == (3, 100, 140)
    assert tx.commit_time == dt.datetime(2000, 1, 1, 0, 0, 0, 5, dt.UTC)


@pytest.mark.parametrize("buffer_bytes", [1, 100, 1 << 20])
def test_changes_are_the_same_in_memory_and_in_a_file(buffer_bytes: int) -> None:
    assembly = _assembly(buffer_bytes=buffer_bytes)
    inserts = [_insert(number) for number in range(500)]
    (tx,) = assembly.feed(_response(BEGIN, _relation(), *inserts, COMMIT))
    changes = tx.changes
    assert isinstance(changes, Changes)
    assert changes.is_spilled == (buffer_bytes < 1000)
    assert [c.new for c in changes] == [{"id": number} for number in range(500)]
    places = [0, 499, -1, -500, 250]
    assert [changes[at].new for at in places] == [{"id": n} for n in (0, 499, 499, 0, 250)]
    assert [c.new for c in changes[490:600:3]] == [{"id": n} for n in range(490, 500, 3)]
    for beyond in (500, -501):
        with pytest.raises(IndexError):
            changes[beyond]


def test_damaged_messages_are_typed_errors() -> None:
    rng = random.Random(20261123)
    whole = [BEGIN, _relation(), _insert(1234), COMMIT]
    refused = 0
    for _ in range(3000):
        damaged = [bytearray(m) for m in whole]
        victim = rng.choice(damaged)
        if rng.random() < 0.5:
            del victim[rng.randrange(len(victim)) :]
        else:
            victim[rng.randrange(len(victim))] = rng.randrange(256)
        try:
            for tx in _assembly().feed(_response(*map(bytes, damaged))):
                list(tx.changes)
        except MalformedMessage:
            refused += 1
    assert refused > 1000


def _columns(oid: int, rows: list[tuple[int, int]]) -> bytes:
    """A message of the plugin arrow: (commit record, number) of each change of a table."""
    described = json.dumps({"schema": "public", "table": f"t{oid}", "oid": oid})
    schema = pa.schema(
        [("_commit_lsn", pa.uint64()), ("_seq", pa.uint64())],
        metadata={"spillway.relation": described},
    )
    arrays = [pa.array(column, pa.uint64()) for column in zip(*rows, strict=True)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return bytes(sink.getvalue())


def test_a_cut_between_a_transactions_batches_gives_no_row_twice() -> None:
    """The service goes on from the last confirm_lsn, with the whole transaction; the messages are
    cut otherwise then.
    """
    assembly = BatchAssembly()

    def given(confirm_lsn: int, *messages: bytes) -> list[tuple[str, list[tuple[int, int]], int]]:
        response = _response(*messages)
        response.confirm_lsn = confirm_lsn
        return [
            (b.table, [tuple(r.values()) for r in b.record_batch.to_pylist()], b.end_lsn)
            for b in assembly.feed(response)
        ]

    first = given(50, _columns(1, [(40, 0)]), _columns(2, [(40, 1)]))
    assert first == [("t1", [(40, 0)], 0), ("t2", [(40, 1)], 50)]
    assert given(50, _columns(1, [(60, 0), (60, 2)])) == [("t1", [(60, 0), (60, 2)], 50)]
    assembly.reconnected()
    again = given(50, _columns(1, [(60, 0)]), _columns(2, [(60, 1)]))
    assert again == [("t2", [(60, 1)], 50)]
    rest = given(90, _columns(1, [(60, 2), (60, 3), (80, 0)]))
    assert rest == [("t1", [(60, 3), (80, 0)], 90)]
    # A loop that is begun anew is given again what was not handled.
    assembly.rewound()
    assert given(90, _columns(1, [(80, 0)])) == [("t1", [(80, 0)], 90)]


@pytest.fixture
def sqlite_file(tmp_path: Path) -> Callable[[], sqlite3.Connection]:
    return lambda: sqlite3.connect(tmp_path / "positions.db")


def test_a_position_in_sqlite(sqlite_file: Callable[[], sqlite3.Connection]) -> None:
    connection, position = sqlite_file(), Position("audit")
    connection.execute("CREATE TABLE work (n int)")
    assert position.load(connection) == 0
    with position.transaction(connection, Progress(Lsn(100))):
        connection.execute("INSERT INTO work VALUES (1)")
    with (
        pytest.raises(sqlite3.OperationalError),
        position.transaction(connection, Progress(Lsn(200))),
    ):
        connection.execute("INSERT INTO work VALUES (2), (no)")
    with pytest.raises(InvalidUse, match="not known"):
        print(position.lsn)
    connection.close()
    again = sqlite_file()
    assert position.load(again) == 100
    assert again.execute("SELECT n FROM work").fetchall() == [(1,)]
    rival = Position("audit")
    rival.load(again)
    with rival.transaction(again, Progress(Lsn(300))):
        pass
    with pytest.raises(PositionConflict), position.transaction(again, Progress(Lsn(400))):
        again.execute("INSERT INTO work VALUES (3)")
    assert again.execute("SELECT n FROM work").fetchall() == [(1,)]
    again.isolation_level = None
    with pytest.raises(InvalidUse, match="autocommit"):
        position.load(again)
    again.close()


def test_a_position_by_sqlalchemy(tmp_path: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'positions.db'}")
    position = Position("audit", table="spillway_position")
    with engine.connect() as connection:
        assert position.load(connection) == 0
        with position.transaction(connection, Progress(Lsn(7))):
            pass
        assert position.load(connection) == 7
    engine.dispose()
    with pytest.raises(InvalidUse, match="no name"):
        Position("audit", table="x; DROP TABLE y")


@pytest.mark.parametrize("kind", [Slot, AsyncSlot])
def test_what_cannot_be_meant_is_refused_at_once(kind: Any) -> None:
    wrong: list[dict[str, Any]] = [
        {"address": ""},
        {"address": []},
        {"feedback": "often"},
        {"start_lsn": "there"},
        {"queue_bytes": 0},
        {"options": {"streaming": "on"}},
    ]
    for given in wrong:
        with pytest.raises(InvalidUse) as refused:
            kind(**{"address": "127.0.0.1:1", "name": "s", **given})
        assert refused.value.hint


def test_what_is_tried_again_and_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr("spillway_client.follower.time.monotonic", lambda: now_s)
    given: dict[str, Any] = {
        "publications": None, "messages": False, "options": {}, "start_lsn": None, "upto_lsn": None,
        "feedback": "auto", "confirm_seconds": 1, "queue_bytes": 1, "buffer_bytes": 1,
        "max_transaction_bytes": None, "batch_bytes": 0, "converters": {},
    }  # fmt: skip
    settings = settings_of(["a:1", "b:1"], "s", None, None, retry_seconds=60.0, **given)
    follower = Follower(settings)
    active = errors.service_error("slot_active", "it is")
    with pytest.raises(errors.SlotActive):
        follower.delay_after(active)
    pgoutput = slots_pb2.Slot(
        slot_name="s", plugin="pgoutput", options={"publication_names": "p"}, confirmed_flush_lsn=70
    )
    follower.found(pgoutput)
    follower.took(pgoutput)
    assert (follower.resume_lsn, follower.reconnects, follower.address.text) == (70, 0, "a:1")
    whole = change_stream_pb2.StreamResponse(
        changes=_response(BEGIN, _relation(), _insert(1), COMMIT, BEGIN, _insert(2))
    )
    assert len(follower.take(whole)) == 1
    # Behind what is whole, and before what was cut.
    assert follower.start().start.start_lsn == 140
    pgoutput.confirmed_flush_lsn = 140
    # The service may not have noticed yet that our own connection is gone.
    delays = [follower.delay_after(active)]
    assert follower.address.text == "b:1"
    gone = errors.service_error("not_ready", "gone", is_transient=True)
    delays += [follower.delay_after(gone) for _ in range(9)]
    assert all(0 < delay <= 5 for delay in delays)
    assert delays[0] < 0.2
    assert delays[-1] > 2
    now_s += 60
    with pytest.raises(errors.Unavailable):
        follower.delay_after(gone)
    follower.took(pgoutput)
    assert follower.delay_after(gone) > 0
    with pytest.raises(errors.SessionEnded):
        follower.delay_after(errors.service_error("session_ended", "by an administrator"))
    pgoutput.confirmed_flush_lsn = 141
    with pytest.raises(errors.SlotAhead, match="0/8D"):
        follower.took(pgoutput)


def test_tls_is_asked_for_by_the_address_or_by_files(tmp_path: Path) -> None:
    made: list[str] = []

    def plain(target: str, **_: Any) -> None:
        made.append(f"plain {target}")

    def secure(target: str, *_: Any, **__: Any) -> None:
        made.append(f"secure {target}")

    for text, tls in (("h:1", None), ("http://h:1", None), ("https://h:1/", None), ("h:1", Tls())):
        Address(text, tls=tls).open(plain, secure)
    assert made == ["plain h:1", "plain h:1", "secure h:1", "secure h:1"]
    with pytest.raises(InvalidUse, match="without TLS"):
        Address("http://h:1", tls=Tls()).open(plain, secure)
    with pytest.raises(InvalidUse, match="can't be read"):
        Address("h:1", tls=Tls(ca=tmp_path / "none.pem")).open(plain, secure)


def test_the_errors_have_the_services_codes() -> None:
    known = set(
        re.findall(
            r"^\| `(\w+)` \|", (PROJECT / "docs/reference/errors.md").read_text(), re.MULTILINE
        )
    )
    assert set(errors.BY_CODE) <= known
    own = {e.code for e in errors.SpillwayError.__subclasses__()} - {errors.ServiceError.code}
    page = (PROJECT / "docs/reference/python-client.md").read_text()
    names = [n for n in vars(errors) if isinstance(getattr(errors, n), type)]
    assert all(f"`{name}`" in page for name in names if name != "Final")
    assert all(f"`{code}`" in page for code in own)


def test_client_and_service_import_together() -> None:
    """In either order; and a client of another release, whose messages have other fields, beside
    them.
    """
    program = (
        "import sys\n"
        "for name in sys.argv[1:]: __import__(name)\n"
        "from spillway.v1 import slots_pb2 as theirs\n"
        "from spillway_client._v1 import slots_pb2 as ours\n"
        "from spillway_client._v1.pool import define\n"
        "assert ours.Slot is not theirs.Slot\n"
        "assert theirs.Slot.FromString(ours.Slot(slot_name='s').SerializeToString()).slot_name == "
        "'s'\n"
        "from google.protobuf import descriptor_pb2, descriptor_pool\n"
        "other = descriptor_pb2.FileDescriptorProto.FromString(theirs.DESCRIPTOR.serialized_pb)\n"
        "other.message_type[0].field[0].name = 'renamed'\n"
        "try: descriptor_pool.Default().AddSerializedFile(other.SerializeToString())\n"
        "except TypeError: print('refused')\n"
    )
    for order in (["spillway.v1.slots_pb2", "spillway_client"], ["spillway_client"]):
        run = subprocess.run(
            [sys.executable, "-c", program, *order],
            env={"PYTHONPATH": f"{CLIENT / 'src'}"},
            capture_output=True,
            text=True,
            check=False,
        )
        # The pool that all share refuses what differs: that is why the client has one of its own.
        assert (run.returncode, run.stdout) == (0, "refused\n"), run.stderr


def test_it_installs_without_the_service(tmp_path: Path) -> None:
    """The wheel, with nothing beside it but what it says that it needs."""
    build = (
        "import os, sys\n"
        "from setuptools import build_meta\n"
        "os.chdir(sys.argv[1])\n"
        "build_meta.build_wheel(sys.argv[2])\n"
    )
    source = tmp_path / "client"
    for path in sorted(CLIENT.rglob("*")):
        wanted = path.is_file() and not {"build", "__pycache__"} & set(path.parts)
        if wanted and ".egg-info" not in str(path):
            target = source / path.relative_to(CLIENT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    subprocess.run(
        [sys.executable, "-c", build, str(source), str(tmp_path)], check=True, capture_output=True
    )
    (wheel,) = tmp_path.glob("spillway_client-*.whl")
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=False, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
        (metadata,) = (n for n in archive.namelist() if n.endswith("METADATA"))
        needs = re.findall(r"^Requires-Dist: (.+)$", archive.read(metadata).decode(), re.MULTILINE)
        assert "spillway_client/py.typed" in archive.namelist()
        assert "spillway_client/_v1/slots_pb2.pyi" in archive.namelist()
    always = [need for need in needs if "extra ==" not in need]
    assert [re.split(r"[>=]", need)[0] for need in always] == ["grpcio", "protobuf"]
    # What pip would bring for those two.
    for name in ("grpcio", "protobuf", "typing_extensions"):
        for file in distribution(name).files or ():
            top = file.parts[0]
            if not top.endswith(("dist-info", "..")) and not (packages / top).exists():
                (packages / top).symlink_to(Path(str(distribution(name).locate_file(top))))
    program = (
        "import sys, spillway_client\n"
        "print(spillway_client.__file__)\n"
        "print([m for m in ('spillway', 'fastapi', 'pyspark', 'pyarrow', 'sqlalchemy', 'httpx', "
        "'psycopg') if m in sys.modules])\n"
        "from spillway_client import Slot, InvalidUse\n"
        "from spillway_client.arrow import BatchAssembly\n"
        "try: BatchAssembly()\n"
        "except InvalidUse as error: print(error.hint)\n"
    )
    run = subprocess.run(
        [str(environment / "bin" / "python"), "-I", "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    where, loaded, hint = run.stdout.splitlines()
    assert where.startswith(str(packages))
    assert loaded == "[]"
    assert "extra `arrow`" in hint
