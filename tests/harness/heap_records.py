"""Heap, transaction and message records as bytes, for tests that hand WAL of their own making to
the decoder.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.wal_writer import WalWriter
from spillway._kernels.wal.walker import Walker
from spillway.pg import rmgr
from spillway.pg.versions import WAL_VERSIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spillway._kernels.wal.record_batch import RecordBatch

#: tablespace, database, relfilenode
Locator = tuple[int, int, int]
#: infomask2, infomask, hoff, and the bytes from offset 23
TupleParts = tuple[int, int, int, bytes]

START = 16 << 20
SEGMENT_SIZE = 16 << 20

DATABASE = 5
TABLE = (1663, DATABASE, 1000)
TABLE_ID = 7
TOAST = (1663, DATABASE, 1001)
CATALOG = (1663, DATABASE, 1259)


def block(
    locator: Locator, data: bytes, *, block_id: int = 0, number: int = 0
) -> tuple[bytes, bytes]:
    """Return a block reference's header and data."""
    flags = 0x20 if data else 0
    head = struct.pack("<BBH", block_id, flags, len(data)) + struct.pack("<IIII", *locator, number)
    return head, data


def body(main: bytes, *blocks: tuple[bytes, bytes], top_xid: int = 0) -> bytes:
    """Return a record's body: headers, block data, main data."""
    head = b"".join(b[0] for b in blocks)
    if top_xid:
        head += struct.pack("<BI", 252, top_xid)
    if main:
        head += (
            bytes([255, len(main)]) if len(main) < 256 else b"\xfe" + struct.pack("<I", len(main))
        )
    return head + b"".join(b[1] for b in blocks) + main


def int_tuple(*values: int | None) -> TupleParts:
    """Return (infomask2, infomask, hoff, bytes from offset 23) of a tuple of int4 columns."""
    nulls = any(v is None for v in values)
    bits = bytearray((len(values) + 7) // 8) if nulls else bytearray()
    for i, value in enumerate(values):
        if nulls and value is not None:
            bits[i // 8] |= 1 << i % 8
    hoff = (23 + len(bits) + 7) // 8 * 8
    data = bytes(bits).ljust(hoff - 23, b"\0") + b"".join(
        struct.pack("<i", v) for v in values if v is not None
    )
    return len(values), 1 if nulls else 0, hoff, data


def heap_tuple(parts: TupleParts) -> bytes:
    """Return xl_heap_header and the tuple's bytes."""
    return struct.pack("<HHB", *parts[:3]) + parts[3]


def external_tuple(value_id: int, size: int, *, number: int = 1) -> TupleParts:
    """Return a tuple (int4, external text pointer to *value_id* of *size* uncompressed bytes)."""
    pointer = b"\x01\x12" + struct.pack("<iIII", size + 4, size, value_id, 9999)
    return 2, 0x0006, 24, b"\0" + struct.pack("<i", number) + pointer


@dataclass
class HeapWal:
    """WAL with heap records in it; ``batch`` walks what was written so far."""

    major: int = 15
    writer: WalWriter = field(init=False)

    def __post_init__(self) -> None:
        self.version = WAL_VERSIONS[self.major]
        self.writer = WalWriter(self.version, START, SEGMENT_SIZE)
        self._walker = Walker(self.version, START, SEGMENT_SIZE)
        self._fed = 0

    def batch(self) -> RecordBatch:
        """Return a batch of what was written since the last call."""
        data = bytes(self.writer.data[self._fed :])
        self._walker.feed(START + self._fed, data)
        self._fed += len(data)
        batch = self._walker.next_batch(1 << 20)
        assert batch is not None
        return batch

    def append(self, rmid: int, info: int, xid: int, payload: bytes) -> int:
        return self.writer.append(payload, rmid=rmid, info=info, xid=xid)

    def insert(
        self,
        xid: int,
        *values: int | None,
        flags: int = 8,
        locator: Locator = TABLE,
        top_xid: int = 0,
        parts: TupleParts | None = None,
    ) -> int:
        data = heap_tuple(parts or int_tuple(*values))
        main = struct.pack("<HB", 1, flags)
        return self.append(
            rmgr.RM_HEAP_ID,
            rmgr.XLOG_HEAP_INSERT,
            xid,
            body(main, block(locator, data), top_xid=top_xid),
        )

    def toast_chunk(
        self, xid: int, value_id: int, seq: int, data: bytes, *, top_xid: int = 0
    ) -> int:
        header = struct.pack("<I", (len(data) + 4) << 2)
        parts = (3, 2, 24, b"\0" + struct.pack("<II", value_id, seq) + header + data)
        return self.insert(xid, flags=8 | 16, locator=TOAST, parts=parts, top_xid=top_xid)

    def multi_insert(
        self, xid: int, rows: Sequence[TupleParts], *, last: bool = True, locator: Locator = TABLE
    ) -> int:
        data = b""
        for infomask2, infomask, hoff, bits in rows:
            data += (
                bytes(len(data) % 2)
                + struct.pack("<HHHB", len(bits), infomask2, infomask, hoff)
                + bits
            )
        main = struct.pack("<BxH", 8 | (2 if last else 0), len(rows))
        return self.append(
            rmgr.RM_HEAP2_ID,
            rmgr.XLOG_HEAP2_MULTI_INSERT | 0x80,
            xid,
            body(main, block(locator, data)),
        )

    def update(
        self,
        xid: int,
        new: TupleParts | None = None,
        old: TupleParts | None = None,
        *,
        old_flag: int = 8,
        locator: Locator = TABLE,
        hot: bool = False,
    ) -> int:
        flags = (0x10 if new else 0) | (old_flag if old else 0)
        main = struct.pack("<IHBBIH", xid, 1, 0, flags, 0, 2) + (heap_tuple(old) if old else b"")
        info = rmgr.XLOG_HEAP_HOT_UPDATE if hot else rmgr.XLOG_HEAP_UPDATE
        return self.append(
            rmgr.RM_HEAP_ID, info, xid, body(main, block(locator, heap_tuple(new) if new else b""))
        )

    def delete(
        self, xid: int, old: TupleParts | None = None, *, flags: int = 0, locator: Locator = TABLE
    ) -> int:
        main = struct.pack("<IHBB", xid, 1, 0, flags | (4 if old else 0)) + (
            heap_tuple(old) if old else b""
        )
        return self.append(
            rmgr.RM_HEAP_ID, rmgr.XLOG_HEAP_DELETE, xid, body(main, block(locator, b""))
        )

    def confirm(self, xid: int, *, locator: Locator = TABLE) -> int:
        return self.append(
            rmgr.RM_HEAP_ID, rmgr.XLOG_HEAP_CONFIRM, xid, body(b"\x01\0", block(locator, b""))
        )

    def truncate(self, xid: int, *oids: int, flags: int = 0, database: int = DATABASE) -> int:
        main = struct.pack("<IIB3x", database, len(oids), flags) + b"".join(
            struct.pack("<I", o) for o in oids
        )
        return self.append(rmgr.RM_HEAP_ID, rmgr.XLOG_HEAP_TRUNCATE, xid, body(main))

    def message(
        self,
        xid: int,
        prefix: str,
        content: bytes,
        *,
        transactional: bool,
        database: int = DATABASE,
        top_xid: int = 0,
    ) -> int:
        name = prefix.encode() + b"\0"
        main = (
            struct.pack("<IB3xQQ", database, transactional, len(name), len(content))
            + name
            + content
        )
        return self.append(rmgr.RM_LOGICALMSG_ID, 0, xid, body(main, top_xid=top_xid))

    def new_cid(self, xid: int) -> int:
        return self.append(rmgr.RM_HEAP2_ID, rmgr.XLOG_HEAP2_NEW_CID, xid, body(bytes(36)))

    def commit(
        self,
        xid: int,
        *subxids: int,
        time: int = 77,
        database: int = DATABASE,
        info: int = 0,
        **parts: Any,
    ) -> int:
        return self.append(
            rmgr.RM_XACT_ID, info | 0x80, xid, body(xact_end(time, database, subxids, **parts))
        )

    def abort(self, xid: int, *subxids: int, top_xid: int = 0) -> int:
        payload = body(xact_end(1, DATABASE, subxids), top_xid=top_xid)
        return self.append(rmgr.RM_XACT_ID, rmgr.XLOG_XACT_ABORT | 0x80, xid, payload)

    def running_xacts(self, next_xid: int, *xids: int) -> int:
        oldest = min(xids, default=next_xid)
        main = struct.pack("<ii?3xIII", len(xids), 0, False, next_xid, oldest, next_xid - 1)
        main += b"".join(struct.pack("<I", x) for x in xids)
        return self.append(rmgr.RM_STANDBY_ID, rmgr.XLOG_RUNNING_XACTS, 0, body(main))


def xact_end(
    time: int,
    database: int,
    subxids: Sequence[int] = (),
    *,
    invals: int = 0,
    prepared_xid: int = 0,
    gid: str = "",
    origin: Any = None,
    stats: Any = (),
) -> bytes:
    """Return the main data of a commit or abort record that has xl_xact_xinfo."""
    xinfo = rmgr.XACT_XINFO_HAS_DBINFO
    parts = struct.pack("<II", database, 1663)
    if subxids:
        xinfo |= rmgr.XACT_XINFO_HAS_SUBXACTS
        parts += struct.pack(f"<i{len(subxids)}I", len(subxids), *subxids)
    if stats:
        xinfo |= rmgr.XACT_XINFO_HAS_DROPPED_STATS
        parts += struct.pack("<i", len(stats)) + b"".join(stats)
    if invals:
        xinfo |= rmgr.XACT_XINFO_HAS_INVALS
        parts += struct.pack("<i", invals) + bytes(16 * invals)
    if prepared_xid:
        xinfo |= rmgr.XACT_XINFO_HAS_TWOPHASE
        parts += struct.pack("<I", prepared_xid)
        if gid:
            xinfo |= rmgr.XACT_XINFO_HAS_GID
            parts += gid.encode() + b"\0"
    if origin:
        xinfo |= rmgr.XACT_XINFO_HAS_ORIGIN
        parts += struct.pack("<Qq", *origin)
    return struct.pack("<qI", time, xinfo) + parts
