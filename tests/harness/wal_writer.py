"""Write WAL as a test wants it, sound or not: what no server can be made to write."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spillway._kernels.pg.crc32c import crc32c

if TYPE_CHECKING:
    from spillway.pg.versions import WalVersion

PAGE_SIZE = 8192
CONTRECORD, LONG, OVERWRITE = 1, 2, 8


def record_bytes(
    body: bytes,
    *,
    prev: int,
    xid: int = 0,
    rmid: int = 10,
    info: int = 0,
    total_len: int | None = None,
) -> bytes:
    """Return a record: header with a right checksum, then *body* (block headers, data)."""
    total = 24 + len(body) if total_len is None else total_len
    head = struct.pack("<IIQBBH", total, xid, prev, info, rmid, 0)
    return head + struct.pack("<I", crc32c(head, crc32c(body))) + body


def main_data(data: bytes) -> bytes:
    """Return the header and the bytes of main data."""
    if len(data) < 256:
        return bytes([255, len(data)]) + data
    return b"\xfe" + struct.pack("<I", len(data)) + data


@dataclass
class WalWriter:
    """Lays records out in pages from *start_lsn*, a segment's start, on."""

    version: WalVersion
    start_lsn: int
    segment_size: int = 1 << 20
    system_id: int = 7
    timeline: int = 1
    prev_lsn: int = 0
    data: bytearray = field(default_factory=bytearray)

    @property
    def lsn(self) -> int:
        return self.start_lsn + len(self.data)

    def page_header(self, **replace: int) -> None:
        """Append a page's header; *replace* sets, or falsifies, its fields."""
        page = self.lsn
        fields = {
            "magic": self.version.page_magic, "flags": 0, "timeline": self.timeline,
            "address": page,
            "rem_len": 0, "system_id": self.system_id, "segment_size": self.segment_size,
            "block_size": PAGE_SIZE,
        } | replace  # fmt: skip
        first = page % self.segment_size == 0
        if first and "flags" not in replace:
            fields["flags"] = LONG
        short = ("magic", "flags", "timeline", "address", "rem_len")
        self.data += struct.pack("<HHIQI4x", *(fields[n] for n in short))
        if first or fields["flags"] & LONG:
            more = ("system_id", "segment_size", "block_size")
            self.data += struct.pack("<QII", *(fields[n] for n in more))

    def append(self, body: bytes, **header: int) -> int:
        """Append a record, with page headers where they are due; return its LSN."""
        if self.lsn % PAGE_SIZE == 0:
            self.page_header()
        lsn = self.lsn
        record = record_bytes(body, **{"prev": self.prev_lsn, **header})
        self.raw(record)
        self.prev_lsn = lsn
        return lsn

    def raw(self, record: bytes) -> None:
        """Append a record's bytes, continued over pages, and the padding."""
        left = memoryview(record)
        while left:
            if self.lsn % PAGE_SIZE == 0:
                self.page_header(flags=self._flags(CONTRECORD), rem_len=len(left))
            step = min(len(left), PAGE_SIZE - self.lsn % PAGE_SIZE)
            self.data += left[:step]
            left = left[step:]
        self.data += bytes(-len(self.data) % 8)

    def _flags(self, flags: int) -> int:
        return flags | (LONG if self.lsn % self.segment_size == 0 else 0)

    def fill_page(self) -> None:
        """Zero the rest of the page, as a server that starts after a crash does."""
        self.data += bytes(-len(self.data) % PAGE_SIZE)
