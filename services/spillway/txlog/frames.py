"""The transaction log's file format.

A log is a directory of segment files named by the LSN that they start at,
``<16 hex digits>.txlog``. A segment holds every transaction whose commit record starts at or after
its start LSN and before the next segment's. It stands alone: the descriptor of a relation is
written in front of the first transaction of the segment that needs it, so a reader needs nothing
but the segment.

::

    segment := header frame*
    header  := magic 8 | u32 format | u32 crc32c of the rest | u64 system_id | u32 database_oid |
            u32 link | u64 start_lsn | zero to 64
    frame   := u32 crc32c of the rest | u32 length | u32 kind | u32 0 | payload[length] | zero to 8

    RELATION     u32 id | u32 0 | descriptor as JSON
    TRANSACTION  transaction header | a chunk           a transaction of one chunk
    BEGIN        transaction header                     then CHANGES*, END: a transaction of many
    CHANGES      a chunk (decoding/change_format.py)
    END          u64 final_lsn
    PROGRESS     u64 decoded_lsn | u64 restart_lsn      no transaction that commits before
                                                        decoded_lsn comes after this; those that do
                                                        began at restart_lsn or later

    transaction header := u32 xid | u16 origin_id | u8 kind | u8 parts
                          | u64 first_lsn | u64 final_lsn | u64 end_lsn
                          | i64 commit_time | u64 origin_lsn
                          | when parts & 1: PREPARED | when parts & 2: STREAMED
                          | when parts & 4: ORIGIN | when parts & 8: INVALIDATED
    PREPARED := u64 prepare_lsn | u64 prepare_end_lsn | i64 prepare_time
                | u32 empty | u32 length | gid, zero to 8
    STREAMED := u64 upto_lsn | u64 first_lsn | u64 last_lsn
                | u32 number | u32 n | u32 aborted xid[n], zero to 8
    ORIGIN   := u32 length | u32 0 | name, zero to 8
    INVALIDATED := u64 n | u64 item[n], as an INVALIDATION has them

A frame TRANSACTION or BEGIN stands for anything that has a header of its own: kinds
(``decoding/transaction.py``) are a prepared transaction, a part of one in progress, or the news
that one was rolled back, which have no changes. An ordinary transaction has none of these parts,
but maybe ORIGIN.

A frame TRANSACTION without parts and without an origin is an entry of a run
(``_kernels/reorder/transaction_run.pyx``): the reorder buffer writes such frames itself, many at a
time, and readers take them as many at a time.

The link names the segment before, so that one which vanished in between is missed: the CRC of its
start LSN, 0 for none and in segments of releases that did not write it. All else in a header is
known without it: a header that is damaged is written again from the file's name.

All integers are little-endian. Payloads begin 8-byte aligned in the file, as chunks want it. A
relation id holds until the next RELATION frame of that id; ids of two segments have nothing to do
with each other.

A torn tail (the process or the machine died) shows as a frame that is cut, fails its checksum, or a
BEGIN without its END; opening the log for writing cuts it off, and decoding writes it again.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from spillway._kernels.pg.crc32c import crc32c
from spillway.decoding.transaction import Prepared, Streamed, TransactionHeader, TransactionKind
from spillway.errors import CorruptTransactionLog
from spillway.pg.lsn import Lsn

SEGMENT_MAGIC: Final = b"SPWTXLOG"
FORMAT: Final = 3
#: A header that names a later one than this is damaged.
_FORMAT_MAX: Final = 64
SEGMENT_HEADER_SIZE: Final = 64
FRAME_HEADER_SIZE: Final = 16

RELATION: Final = 1
TRANSACTION: Final = 2
BEGIN: Final = 3
CHANGES: Final = 4
END: Final = 5
PROGRESS: Final = 6

#: A frame longer than this is not ours: a chunk is about 1 MiB, one change at most PostgreSQL's 1
#: GB twice over (old and new tuple) with TOAST values.
FRAME_LENGTH_MAX: Final = (1 << 32) - 1

FRAME: Final = struct.Struct("<IIII")
_FRAME_TAIL: Final = struct.Struct("<III")
_HEADER: Final = struct.Struct("<IHBBQQQqQ")
_PREPARED: Final = struct.Struct("<QQqII")
_STREAMED: Final = struct.Struct("<QQQII")
_ORIGIN: Final = struct.Struct("<II")
_COUNT: Final = struct.Struct("<Q")
PROGRESS_PAYLOAD: Final = struct.Struct("<QQ")
END_PAYLOAD: Final = struct.Struct("<Q")
RELATION_PREFIX: Final = struct.Struct("<II")
_SEGMENT_REST: Final = struct.Struct("<QIIQ")

_COMMIT: Final = TransactionKind.COMMIT

_HAS_PREPARED: Final = 1
_HAS_STREAMED: Final = 2
_HAS_ORIGIN: Final = 4
_HAS_INVALIDATED: Final = 8

_PADDING: Final = tuple(b"\0" * n for n in range(8))


def encode_frame(kind: int, *parts: bytes | memoryview) -> list[bytes | memoryview]:
    """Return the pieces of a frame, ready for one gathered write; *parts* are not copied.

    Raises:
        CorruptTransactionLog: the payload is longer than a frame can be.
    """
    length = sum(len(part) for part in parts)
    if length > FRAME_LENGTH_MAX:
        raise CorruptTransactionLog(
            f"a frame of {length} bytes is larger than the transaction log can hold",
            hint="One row change is larger than 4 GiB with its old values; report this.",
        )
    tail = _FRAME_TAIL.pack(length, kind, 0)
    crc = crc32c(tail)
    for part in parts:
        crc = crc32c(part, crc)
    return [crc.to_bytes(4, "little"), tail, *parts, _PADDING[-length % 8]]


def check_frame(header: bytes | memoryview, payload: bytes | memoryview) -> bool:
    """Say whether *payload* is what *header*'s checksum was computed over."""
    return crc32c(payload, crc32c(header[4:])) == int.from_bytes(header[:4], "little")


def encode_transaction_header(header: TransactionHeader) -> bytes:
    """Pack *header*: 48 bytes for an ordinary transaction, a multiple of 8 for others."""
    parts, more = 0, b""
    if header.prepared is not None:
        p = header.prepared
        gid = p.gid.encode(errors="surrogateescape")
        more += _PREPARED.pack(
            p.prepare_lsn, p.prepare_end_lsn, p.prepare_time, p.empty, len(gid)
        ) + _padded(gid)
        parts |= _HAS_PREPARED
    if header.streamed is not None:
        s = header.streamed
        more += _STREAMED.pack(
            s.upto_lsn, s.first_lsn, s.last_lsn, s.parts, len(s.aborted_xids)
        ) + _padded(struct.pack(f"<{len(s.aborted_xids)}I", *s.aborted_xids))
        parts |= _HAS_STREAMED
    if header.origin_name:
        name = header.origin_name.encode(errors="surrogateescape")
        more += _ORIGIN.pack(len(name), 0) + _padded(name)
        parts |= _HAS_ORIGIN
    if header.invalidated:
        items = header.invalidated
        more += struct.pack(f"<Q{len(items)}Q", len(items), *items)
        parts |= _HAS_INVALIDATED
    packed = _HEADER.pack(
        header.xid,
        header.origin_id,
        header.kind,
        parts,
        header.first_lsn,
        header.final_lsn,
        header.end_lsn,
        header.commit_time,
        header.origin_lsn,
    )
    return packed + more if parts else packed


def _padded(data: bytes) -> bytes:
    return data + _PADDING[-len(data) % 8]


def decode_transaction_header(payload: bytes | memoryview) -> tuple[TransactionHeader, int]:
    """Reverse :func:`encode_transaction_header`; return the header and where it ends in
    *payload*.
    """
    xid, origin_id, kind, parts, first, final, end, time, origin = _HEADER.unpack_from(payload)
    # Most are ordinary; asking the enumeration costs as much as the rest.
    kind = TransactionKind(kind) if kind else _COMMIT
    if not parts:
        header = TransactionHeader(xid, first, final, end, time, origin_id, origin, kind)
        return header, _HEADER.size
    at = _HEADER.size
    prepared = streamed = None
    origin_name = ""
    if parts & _HAS_PREPARED:
        prepare_lsn, prepare_end_lsn, prepare_time, empty, size = _PREPARED.unpack_from(payload, at)
        at += _PREPARED.size
        gid = bytes(payload[at : at + size]).decode(errors="surrogateescape")
        at += size + -size % 8
        prepared = Prepared(gid, prepare_lsn, prepare_end_lsn, prepare_time, bool(empty))
    if parts & _HAS_STREAMED:
        upto, first_change, last_change, number, count = _STREAMED.unpack_from(payload, at)
        at += _STREAMED.size
        aborted_xids = struct.unpack_from(f"<{count}I", payload, at)
        at += 4 * count + -4 * count % 8
        streamed = Streamed(number, last_change, 0, first_change, upto, aborted_xids)
    if parts & _HAS_ORIGIN:
        size, _ = _ORIGIN.unpack_from(payload, at)
        at += _ORIGIN.size
        origin_name = bytes(payload[at : at + size]).decode(errors="surrogateescape")
        at += size + -size % 8
    invalidated: tuple[int, ...] = ()
    if parts & _HAS_INVALIDATED:
        (count,) = _COUNT.unpack_from(payload, at)
        invalidated = struct.unpack_from(f"<{count}Q", payload, at + _COUNT.size)
        at += _COUNT.size + 8 * count
    header = TransactionHeader(
        xid, first, final, end, time, origin_id, origin, kind, prepared, streamed, origin_name,
        invalidated,
    )  # fmt: skip
    return header, at


class SegmentHeader(NamedTuple):
    """What a segment's header says."""

    system_id: int
    database_oid: int
    #: :func:`segment_link` of the segment before; 0 when that is not known
    link: int
    start_lsn: int


def encode_segment_header(
    system_id: int, database_oid: int, start_lsn: int, link: int = 0
) -> bytes:
    """Return the 64 bytes that open a segment."""
    rest = _SEGMENT_REST.pack(system_id, database_oid, link, start_lsn)
    rest = rest.ljust(SEGMENT_HEADER_SIZE - 16, b"\0")
    return SEGMENT_MAGIC + struct.pack("<II", FORMAT, crc32c(rest)) + rest


def decode_segment_header(data: bytes, where: str) -> SegmentHeader | None:
    """Return what a segment's first 64 bytes say; None when they are damaged.

    Raises:
        CorruptTransactionLog: they are sound, and of another format; *where* names the file.
    """
    if len(data) < SEGMENT_HEADER_SIZE or data[:8] != SEGMENT_MAGIC:
        return None
    version, crc = struct.unpack_from("<II", data, 8)
    if crc != crc32c(data[16:SEGMENT_HEADER_SIZE]) or version > _FORMAT_MAX:
        return None
    if version != FORMAT:
        raise CorruptTransactionLog(
            f"{where} has format {version}, this version reads {FORMAT}",
            hint="Run the version of Spillway that wrote it; or begin a new log, which costs the "
            "slots what they have not read yet: spillway source restart SOURCE DATABASE.",
        )
    return SegmentHeader(*_SEGMENT_REST.unpack_from(data, 16))


def segment_link(start_lsn: int) -> int:
    """Return how a segment is named in the header of the next one; never 0."""
    return crc32c(start_lsn.to_bytes(8, "little")) or 1


def segment_name(start_lsn: int) -> str:
    """Return the file name of the segment that starts at *start_lsn*."""
    return f"{start_lsn:016X}.txlog"


def corrupt(path: str, offset: int, lsn: int, what: str) -> CorruptTransactionLog:
    """Make the error that a reader raises when a frame is not what was written."""
    return CorruptTransactionLog(
        f"transaction log {path} is damaged at byte {offset}: {what}",
        hint="The disk returned other bytes than were written: check it. What WAL still covers is "
        "decoded again by itself; slots that need more than that are invalidated.",
        file=path,
        offset=offset,
        lsn=str(Lsn(lsn)),
    )
