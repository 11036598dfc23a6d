"""Reading chunks of the change format as tests want to see them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spillway.decoding import change_format

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Change:
    """One change; tuples are (infomask2, infomask, hoff, bytes from offset 23)."""

    action: int
    flags: int
    relation: int
    xid: int
    lsn: int
    new: tuple[int, int, int, bytes] | bytes | None
    old: tuple[int, int, int, bytes] | None
    toast: dict[int, bytes]


def parse(chunks: Iterable[memoryview]) -> list[Change]:
    """Parse chunks, checking what the format promises on the way."""
    return [change for chunk in chunks for change in _parse_chunk(bytes(chunk))]


def _parse_chunk(chunk: bytes) -> list[Change]:
    changes = []
    at = 0
    while at < len(chunk):
        size, action, flags, toast_count, relation, xid, lsn, new_size, old_size = (
            struct.unpack_from("<IBBHIIQII", chunk, at)
        )
        assert size % 8 == 0
        assert at + size <= len(chunk)
        assert not flags & change_format.CLEAR_TOAST
        end = at + size
        at += change_format.HEADER_SIZE
        new: tuple[int, int, int, bytes] | bytes | None = None
        if flags & change_format.HAS_NEW:
            section = chunk[at : at + new_size]
            row = action in (change_format.INSERT, change_format.UPDATE)
            new = _tuple(section) if row else section
        at += _padded(chunk, at, new_size)
        old = _tuple(chunk[at : at + old_size]) if flags & change_format.HAS_OLD else None
        at += _padded(chunk, at, old_size)
        toast = {}
        for _ in range(toast_count):
            value_id, value_size = struct.unpack_from("<II", chunk, at)
            at += 8
            toast[value_id] = chunk[at : at + value_size]
            at += _padded(chunk, at, value_size)
        assert at == end
        changes.append(Change(action, flags, relation, xid, lsn, new, old, toast))
    return changes


def _tuple(section: bytes) -> tuple[int, int, int, bytes]:
    infomask2, infomask, hoff = struct.unpack_from("<HHB3x", section)
    return infomask2, infomask, hoff, section[8:]


def _padded(chunk: bytes, at: int, size: int) -> int:
    padded = (size + 7) // 8 * 8
    assert not any(chunk[at + size : at + padded]), "padding is not zero"
    return padded
