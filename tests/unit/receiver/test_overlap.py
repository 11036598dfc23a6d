"""What of the store is compared with a server, wherever messages are cut; real servers are in the
integration tests.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, Any

import pytest

from spillway.errors import ReplicationFailed, WalDiverged
from spillway.pg.lsn import Lsn
from spillway.receiver.continuity import Overlap, overlaps
from spillway.receiver.replication_connection import EndOfStream
from spillway.receiver.wal_writer import WalWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZE = 1 << 20
START = 3 * SIZE
KIB = 1 << 10
#: every position differs from its neighbours
WAL = array("Q", range(6 * SIZE // 8)).tobytes()


class Connection:
    """A server that sends *wal*, which begins at *lsn*, in messages of *size* bytes."""

    def __init__(self, lsn: int, wal: bytes, size: int = 100_000) -> None:
        self._messages = [b"k" + bytes(17)]
        for at in range(0, len(wal), size):
            header = struct.pack(">cQQq", b"w", lsn + at, lsn + len(wal), 0)
            self._messages.append(header + wal[at : at + size])

    def receive(self) -> memoryview:
        if not self._messages:
            raise EndOfStream
        return memoryview(self._messages.pop(0))

    def finish_copy(self) -> None:
        pass


@pytest.fixture
def store(tmp_path: Path) -> Iterator[WalWriter]:
    with WalWriter(tmp_path, system_id="1", segment_size=SIZE, start_lsn=START) as store:
        yield store


def fill(store: WalWriter, end: int) -> None:
    store.append(START, WAL[START:end])


def starts(store: WalWriter, end: int) -> list[int]:
    fill(store, end)
    return [overlap.start for overlap in overlaps(store.reader, end)]


def test_a_new_store_has_nothing_to_compare(store: WalWriter) -> None:
    assert list(overlaps(store.reader, START)) == []


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (START + 10, [START]),
        (START + 64 * KIB, [START]),
        (START + SIZE, [START]),
        # Little of the last segment: from the one before, if the server still has it.
        (START + SIZE + 40, [START + SIZE + 40 - 64 * KIB, START + SIZE]),
        (START + 2 * SIZE - 8, [START + SIZE]),
    ],
)
def test_where_comparing_begins(store: WalWriter, end: int, expected: list[int]) -> None:
    assert starts(store, end) == expected


@pytest.mark.parametrize("size", [1000, 8192, 130_000, 5 * SIZE])
@pytest.mark.parametrize("behind", [0, 1, 500])
def test_what_is_behind_the_end_is_not_lost(store: WalWriter, size: int, behind: int) -> None:
    end = START + SIZE + 81_920
    fill(store, end)
    start = START + SIZE - 3
    connection: Any = Connection(start, WAL[start : end + behind], size)
    rest = bytes(Overlap(store.reader, start, end).compare(connection))
    assert WAL[end : end + behind].startswith(rest)
    assert len(rest) == min(behind, -(end - start) % size)


@pytest.mark.parametrize("at", [0, 1, 8191, 8192, 140_000, 199_999])
def test_the_first_difference_is_named(
    store: WalWriter, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    monkeypatch.setattr(Overlap, "_damage", lambda _: None)
    end = START + 200_000
    fill(store, end)
    wal = bytearray(WAL[START:end])
    wal[at] ^= 1
    connection: Any = Connection(START, bytes(wal))
    with pytest.raises(WalDiverged) as caught:
        Overlap(store.reader, START, end).compare(connection)
    assert caught.value.details["lsn"] == str(Lsn(START + at))
    assert ("or before" in caught.value.message) == (at == 0)


def test_a_stream_that_ends_too_early(store: WalWriter) -> None:
    end = START + 200_000
    fill(store, end)
    connection: Any = Connection(START, WAL[START : end - 1])
    with pytest.raises(ReplicationFailed, match="ended the stream"):
        Overlap(store.reader, START, end).compare(connection)
    gap: Any = Connection(START + 8, WAL[START + 8 : end])
    with pytest.raises(ReplicationFailed, match="was to come"):
        Overlap(store.reader, START, end).compare(gap)
