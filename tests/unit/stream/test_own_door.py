"""The stream of the service's own programs, over the engine in memory and a real Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.fake_engine import FakeEngine
from spillway.apply.stream import ArrivingChanges
from spillway.errors import InvalidRequest, NotReady, SlotActive, Unauthenticated, UnknownSlot
from spillway.pg.lsn import Lsn
from spillway.stream.client import open_own_stream
from spillway.stream.own_client import OwnStreamReader
from spillway.stream.own_door import OwnDoor
from spillway.token_gate import TokenGate
from spillway.v1 import change_stream_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TOKEN = "t0ken"
_LARGE = 200_000
#: how long a program may be silent here
_SILENT_S = 1.0
#: A program that says often that it lives, and reads nothing until it is told to by a line.
_PROGRAM = """
import sys
from spillway.errors import NotReady
from spillway.stream.own_client import OwnStreamReader
from spillway.v1 import change_stream_pb2
reader = OwnStreamReader(
    sys.argv[1], change_stream_pb2.Start(slot_name="s1"), sys.argv[2], "stopped", alive_s=0.1
)
print("has it", flush=True)
sys.stdin.readline()
try:
    while True:
        next(reader)
except NotReady as error:
    print(error.code, flush=True)
"""


class Served:
    """A door on a loop of its own."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.engine = FakeEngine()
        self.engine.add_source()
        self.engine.add_slot()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._door = OwnDoor(self.engine, TokenGate(_TOKEN), path, client_timeout_s=_SILENT_S)
        self.run(self._door.start)

    def run(self, call: Callable[[], Any]) -> None:
        asyncio.run_coroutine_threadsafe(call(), self._loop).result(30)

    def commit(self, *data: str) -> None:
        self._loop.call_soon_threadsafe(lambda: self.engine.commit("shop", *data))

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """The service does nothing meanwhile, as if its process were stopped."""
        still, go_on = threading.Event(), threading.Event()

        def stand_still() -> None:
            still.set()
            go_on.wait(60)

        self._loop.call_soon_threadsafe(stand_still)
        assert still.wait(30)
        try:
            yield
        finally:
            go_on.set()

    def stop(self) -> None:
        self.run(self._door.stop)

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "own")
    yield made
    made.close()


def _texts(reader: Any, number: int) -> list[str]:
    found: list[str] = []
    while len(found) < number:
        batch = reader.take(10.0)
        assert batch is not None
        found += [data.decode() for _, _, data in batch.messages()]
    return found


def test_what_is_committed_comes_and_what_is_confirmed_is_taken(served: Served) -> None:
    with open_own_stream(served.path, "s1", token=_TOKEN) as reader:
        greeting = next(reader)
        assert greeting.count == 0
        assert reader.take(0.0) is None
        sent = ["small", "x" * _LARGE, "y", "z" * 3_000_000, "last"]
        for one in sent:
            served.commit(one)
        assert _texts(reader, 5) == sent
        confirmed = served.engine.decoded_lsn
        reader.confirm(confirmed)
    assert served.engine.slots["s1"].confirmed_flush_lsn == confirmed


def test_who_waits_can_be_woken(served: Served) -> None:
    with open_own_stream(served.path, "s1", token=_TOKEN) as reader:
        next(reader)
        threading.Timer(0.05, reader.wake).start()
        began = time.monotonic()
        assert reader.take(30.0) is None
        assert time.monotonic() - began < 20
        reader.wake()
        assert reader.take(30.0) is None
    reader.wake()


@pytest.mark.parametrize(
    ("slot", "token", "error"),
    [
        ("none", _TOKEN, UnknownSlot),
        ("s1", "wrong", Unauthenticated),
        ("s1", None, Unauthenticated),
    ],
)
def test_refusals_are_those_of_grpc(
    served: Served, slot: str, token: str | None, error: type[Exception]
) -> None:
    with pytest.raises(error):
        open_own_stream(served.path, slot, token=token)


def test_a_slot_has_one_reader_and_is_free_when_that_is_gone(served: Served) -> None:
    with open_own_stream(served.path, "s1", token=_TOKEN), pytest.raises(SlotActive):
        open_own_stream(served.path, "s1", token=_TOKEN)
    deadline = time.monotonic() + 20
    while True:
        try:
            open_own_stream(served.path, "s1", token=_TOKEN).close()
            break
        except SlotActive:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_door_that_closes_is_a_service_that_is_not_there(served: Served) -> None:
    reader = open_own_stream(served.path, "s1", token=_TOKEN)
    next(reader)
    served.stop()
    with pytest.raises(NotReady):
        reader.take(10.0)
    reader.close()
    Path(served.path).unlink(missing_ok=True)
    with pytest.raises(NotReady):
        open_own_stream(served.path, "s1", token=_TOKEN)


@pytest.mark.parametrize(
    "frame",
    [
        b"\x03\x00\x00\x00{]}",
        b"\x02\x00\x00\x00[]",
        b"\xff\xff\xff\x7f",
        b"\x12\x00\x00\x00" + json.dumps({"token": _TOKEN}).encode() + b"\x02\x00\x00\x00\xff\xff",
    ],
)
def test_bytes_that_are_no_program_s_are_refused(served: Served, frame: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(served.path)
        client.sendall(frame)
        client.settimeout(20)
        answer = b""
        while data := client.recv(4096):
            answer += data
    assert answer[4:5] == b"e"
    assert json.loads(answer[5:])["code"] == InvalidRequest.code


def test_a_program_that_reads_nothing_bounds_what_is_written(served: Served) -> None:
    reader = open_own_stream(served.path, "s1", token=_TOKEN)
    next(reader)
    sent = [f"{n}:" + "x" * 1_000_000 for n in range(12)]
    for one in sent:
        served.commit(one)
    assert _texts(reader, 12) == sent
    reader.close()


def test_the_reading_thread_rests_while_little_comes(served: Served) -> None:
    with ArrivingChanges("", "s1", Lsn(0), {}, token=_TOKEN, own_socket=served.path) as arriving:

        def taken(number: int) -> list[str]:
            found: list[str] = []
            while len(found) < number:
                batch = arriving.take(10.0)
                if batch is not None:
                    found += [data.decode() for _, _, data in batch.messages()]
            return found

        for round_ in range(3):
            small = [f"{round_}.{n}" for n in range(20)]
            for one in small:
                served.commit(one)
                assert taken(1) == [one]
            assert not arriving.is_read_ahead
            served.commit("x" * _LARGE)
            assert taken(1) == ["x" * _LARGE]
            assert arriving.is_read_ahead
            large = ["y" * _LARGE, "z" * _LARGE, "end"]
            for one in large:
                served.commit(one)
            assert taken(3) == large
            assert arriving.received_lsn == served.engine.decoded_lsn
            # The first small batch ends it.
            served.commit("small")
            assert taken(1) == ["small"]
            assert not arriving.is_read_ahead
        threading.Timer(0.05, arriving.wake).start()
        began = time.monotonic()
        while arriving.take(30.0) is not None:
            pass
        assert time.monotonic() - began < 20
        arriving.confirm(arriving.received_lsn, arriving.received_lsn)
    assert served.engine.slots["s1"].confirmed_flush_lsn == served.engine.decoded_lsn


def _until(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_program_that_is_stopped_loses_its_slot(served: Served) -> None:
    """SIGSTOP, with more for it than the socket holds; who lives and reads nothing keeps it."""
    program = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, served.path, _TOKEN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "has it\n"
        for n in range(6):
            served.commit(f"{n}:" + "x" * 1_000_000)
        time.sleep(2 * _SILENT_S)
        assert served.engine.slots["s1"].active
        program.send_signal(signal.SIGSTOP)
        _until("the slot is free", lambda: not served.engine.slots["s1"].active)
        with open_own_stream(served.path, "s1", token=_TOKEN) as other:
            assert _texts(other, 6)[5].startswith("5:")
        program.send_signal(signal.SIGCONT)
        told, _ = program.communicate("go on\n", timeout=30)
        assert told == f"{NotReady.code}\n"
    finally:
        program.kill()
        program.communicate()


def test_a_program_that_waits_long_keeps_its_slot(served: Served) -> None:
    start = change_stream_pb2.Start(slot_name="s1")
    reader = OwnStreamReader(served.path, start, _TOKEN, "waits", alive_s=0.1)
    time.sleep(2 * _SILENT_S)
    served.commit("late")
    assert _texts(reader, 1) == ["late"]
    reader.close()


def _reader(served: Served, silence_s: float) -> OwnStreamReader:
    start = change_stream_pb2.Start(slot_name="s1")
    return OwnStreamReader(served.path, start, _TOKEN, "x", alive_s=0.1, silence_s=silence_s)


def test_a_service_that_stands_still_is_left(served: Served) -> None:
    """Whoever reads holds its target, which another service's program may wait for."""
    with _reader(served, 0.3) as reader, served.standing_still():
        with pytest.raises(NotReady, match=r"has said nothing for 0\.3 s") as left:
            _texts(reader, 1)
        assert "SPILLWAY_CLIENT_TIMEOUT" in left.value.hint
    _until("the slot is free", lambda: not served.engine.slots["s1"].active)
    with _reader(served, 0.3) as reader, served.standing_still():
        # Who waits until what it says is sent is not held up either.
        while not reader.is_given_up:
            reader.confirm(Lsn(1))
        with pytest.raises(NotReady, match="has said nothing"):
            _texts(reader, 1)


def test_a_service_that_answers_is_heard(served: Served) -> None:
    """Keepalives come each ten seconds only; who hears nothing asks. What waits to be read counts,
    too, and without a bound nobody looks.
    """
    with _reader(served, 0.3) as reader:
        time.sleep(2 * _SILENT_S)
        served.commit("late")
        assert _texts(reader, 1) == ["late"]
    _until("the slot is free", lambda: not served.engine.slots["s1"].active)
    with _reader(served, 0.3) as busy:
        served.commit("unread")
        assert select.select([busy._socket], [], [], 30)[0]
        with served.standing_still():
            time.sleep(0.6)
        assert not busy.is_given_up
    _until("the slot is free", lambda: not served.engine.slots["s1"].active)
    with _reader(served, 0) as patient:
        with served.standing_still():
            time.sleep(0.6)
        served.commit("later")
        assert _texts(patient, 3) == ["late", "unread", "later"]


@pytest.mark.parametrize("alive_s", [0, -1, 61, float("nan")])
def test_how_often_a_program_says_that_it_lives_has_bounds(served: Served, alive_s: float) -> None:
    start = change_stream_pb2.Start(slot_name="s1")
    with pytest.raises(InvalidRequest, match="alive_s"):
        OwnStreamReader(served.path, start, _TOKEN, "odd", alive_s=alive_s)


def _take_all(arriving: ArrivingChanges) -> None:
    while True:
        arriving.take(10.0)


def test_an_error_of_the_stream_comes_behind_what_came_before_it(served: Served) -> None:
    with ArrivingChanges("", "s1", Lsn(0), {}, token=_TOKEN, own_socket=served.path) as arriving:
        served.commit("x" * _LARGE, "y")
        batch = arriving.take(10.0)
        while batch is None or not batch.count:
            batch = arriving.take(10.0)
        served.stop()
        for _ in range(2):
            with pytest.raises(NotReady):
                _take_all(arriving)
        assert not arriving.has_ended
