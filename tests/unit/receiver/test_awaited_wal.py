"""WAL that a server is to send again: all of it, in order, or an error in time."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest

from spillway.errors import ReplicationFailed
from spillway.receiver import awaited_wal as module
from spillway.receiver.awaited_wal import awaited_wal
from spillway.receiver.replication_connection import EndOfStream

if TYPE_CHECKING:
    from collections.abc import Callable

KEEPALIVE = b"k" + bytes(17)


def wal(lsn: int, data: bytes) -> bytes:
    return struct.pack(">cQQq", b"w", lsn, lsn + len(data), 0) + data


class Connection:
    """A server that sends *messages*; None: nothing is ready. A wait takes the time that it may."""

    def __init__(self, messages: list[bytes | None]) -> None:
        self._messages = messages
        self.now = 0.0

    def receive(self) -> memoryview | None:
        if not self._messages:
            raise EndOfStream
        message = self._messages.pop(0)
        self.now += 1
        return None if message is None else memoryview(message)

    def wait(self, timeout_s: float) -> None:
        self.now += min(timeout_s, 5)

    def finish_copy(self) -> None: ...


@pytest.fixture
def receive(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[int, bytes]]]:
    """Receive [100, 110) of *messages* by their own clock."""

    def receive(*messages: bytes | None) -> list[tuple[int, bytes]]:
        connection: Any = Connection(list(messages))
        monkeypatch.setattr(module.time, "monotonic", lambda: connection.now)
        return [(lsn, bytes(data)) for lsn, data in awaited_wal(connection, 100, 110, 20)]

    return receive


def test_all_is_received_and_nothing_behind_it(
    receive: Callable[..., list[tuple[int, bytes]]],
) -> None:
    sent = (KEEPALIVE, wal(100, b"abcd"), None, None, None, wal(104, b"efghijkl"), wal(112, b"?"))
    assert receive(*sent) == [(100, b"abcd"), (104, b"efghijkl")]


@pytest.mark.parametrize("nothing", [None, KEEPALIVE])
def test_a_server_that_sends_no_wal_is_silent(
    receive: Callable[..., list[tuple[int, bytes]]], nothing: bytes | None
) -> None:
    with pytest.raises(ReplicationFailed, match=r"silent for \d+ s, and sent no WAL from 0/68 on"):
        receive(wal(100, b"abcd"), *[nothing] * 100)


def test_wal_breaks_the_silence(receive: Callable[..., list[tuple[int, bytes]]]) -> None:
    sent = [message for at in range(10) for message in (None, None, wal(100 + at, b"x"))]
    assert len(receive(*sent)) == 10


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([wal(100, b"abcd")], "ended the stream at 0/68, before 0/6E"),
        ([wal(100, b"abcd"), wal(105, b"fghijk")], "sent WAL at 0/69 where 0/68 was to come"),
        ([b"x?"], "message"),
    ],
)
def test_anything_else_is_told(
    receive: Callable[..., list[tuple[int, bytes]]], messages: list[bytes], told: str
) -> None:
    with pytest.raises(ReplicationFailed, match=told):
        receive(*messages)
