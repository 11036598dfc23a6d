"""The archive reader: right bytes or a typed error, never another cluster's or timeline's."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from spillway.errors import CorruptWal, InvalidRequest, StorageError, SystemIdMismatch, WalGap
from spillway.pg.lsn import Lsn
from spillway.pg.wal_segment import history_name, segment_name
from spillway.receiver.archive import WalArchive

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 1 << 20


def add(path: Path, timeline: int, number: int, *, fill: bytes = b"a", system_id: int = 42) -> Path:
    header = struct.pack(
        "<HHIQI4xQII", 0xD110, 2, timeline, number * SIZE, 0, system_id, SIZE, 8192
    )
    file = path / segment_name(timeline, number, SIZE)
    file.write_bytes(header + fill * (SIZE - len(header)))
    return file


def last_byte(archive: WalArchive, number: int) -> bytes:
    return archive.read((number + 1) * SIZE - 1, 10)


def test_reads(tmp_path: Path) -> None:
    add(tmp_path, 1, 3)
    contents = add(tmp_path, 1, 4, fill=b"b").read_bytes()
    (tmp_path / "000000010000000000000005.partial").write_bytes(b"")
    (tmp_path / "readme").write_bytes(b"")
    archive = WalArchive(tmp_path, segment_size=SIZE, system_id="42")
    assert archive.first_lsn() == 3 * SIZE
    assert archive.read(4 * SIZE + 100, 50) == contents[100:150]
    assert archive.read(5 * SIZE - 3, 50) == b"bbb"
    assert archive.read(5 * SIZE, 50) == b""
    assert archive.read(2 * SIZE, 50) == b""
    add(tmp_path, 1, 5, fill=b"c")
    assert last_byte(archive, 5) == b"c", "archives grow"


def test_empty_and_missing(tmp_path: Path) -> None:
    assert WalArchive(tmp_path, segment_size=SIZE).first_lsn() is None
    with pytest.raises(StorageError):
        WalArchive(tmp_path / "no", segment_size=SIZE)
    with pytest.raises(InvalidRequest):
        WalArchive(tmp_path, segment_size=12345)


def test_other_cluster(tmp_path: Path) -> None:
    add(tmp_path, 1, 3)
    add(tmp_path, 1, 4, system_id=43)
    with pytest.raises(SystemIdMismatch):
        WalArchive(tmp_path, segment_size=SIZE, system_id="1").read(3 * SIZE, 1)
    archive = WalArchive(tmp_path, segment_size=SIZE)
    assert archive.read(3 * SIZE, 1)
    assert archive.system_id == "42"
    with pytest.raises(SystemIdMismatch):
        archive.read(4 * SIZE, 1)


def test_not_what_the_name_says(tmp_path: Path) -> None:
    add(tmp_path, 1, 3).rename(tmp_path / segment_name(1, 7, SIZE))
    (tmp_path / segment_name(1, 8, SIZE)).write_bytes(bytes(SIZE))
    add(tmp_path, 1, 9).write_bytes(b"short")
    archive = WalArchive(tmp_path, segment_size=SIZE)
    for number in (7, 8):
        with pytest.raises(CorruptWal) as caught:
            archive.read(number * SIZE, 1)
        assert caught.value.details["lsn"] == str(Lsn(number * SIZE))
    with pytest.raises(WalGap):
        archive.read(9 * SIZE, 1)


def test_timelines(tmp_path: Path) -> None:
    """Timeline 2 forked off in segment 4, timeline 3, which is not ours, off 1 in segment 3."""
    for number in (3, 4, 5):
        add(tmp_path, 1, number, fill=b"1")
    for number in (4, 5):
        add(tmp_path, 2, number, fill=b"2")
    for number in (3, 4):
        add(tmp_path, 3, number, fill=b"3")
    (tmp_path / history_name(2)).write_text(f"1\t{Lsn(4 * SIZE + 100)}\tpromoted\n")
    (tmp_path / history_name(3)).write_text(f"1\t{Lsn(3 * SIZE + 100)}\tpromoted\n")

    def bytes_on(timeline: int | None) -> bytes:
        archive = WalArchive(tmp_path, segment_size=SIZE, timeline=timeline)
        return b"".join(last_byte(archive, number) for number in (3, 4, 5))

    assert bytes_on(1) == b"111"
    assert bytes_on(2) == b"122"
    assert bytes_on(3) == b"33"
    assert bytes_on(None) == b"33", "the highest timeline"
    (tmp_path / segment_name(2, 4, SIZE)).unlink()
    assert WalArchive(tmp_path, segment_size=SIZE, timeline=2).read(4 * SIZE, 1) == b"", (
        "timeline 1's file of the fork's segment would be wrong behind the fork"
    )
