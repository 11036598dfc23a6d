"""Commit, abort and prepare records.

In comes a record's info and main data, out a :class:`TransactionEnd`. The record is a fixed part
and, when its info says so, parts whose presence a bit mask gives, in this order: database,
subtransactions, relfilelocators, dropped statistics (15 and later), invalidations (commit only),
prepared xid, gid, origin. None of it is aligned beyond 4 bytes, the origin not even that (the gid
before it is text).

A prepare record is the prepared transaction's state file: a struct, then the gid and arrays of what
its end will bring, each part beginning 8-byte aligned.

Source: ParseCommitRecord, ParseAbortRecord, ParsePrepareRecord,
src/backend/access/rmgrdesc/xactdesc.c; src/include/access/xact.h
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.errors import CorruptWal
from spillway.pg import rmgr
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from spillway.pg.versions import WalVersion

_TIME: Final = struct.Struct("<q")
_XINFO: Final = struct.Struct("<qI")
_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_DBINFO: Final = struct.Struct("<II")
_ORIGIN: Final = struct.Struct("<Qq")

#: xl_xact_prepare; from 15 on with the numbers of dropped statistics
_PREPARE_WITHOUT_STATS: Final = struct.Struct("<IIIIqIiiii?xHQq")
_PREPARE: Final = struct.Struct("<IIIIqIiiiiii?xHQq")

#: xl_heap_truncate: database, number of relations, flags
_TRUNCATE: Final = struct.Struct("<IIB3x")

_RELFILELOCATOR_SIZE: Final = 12
_INVALIDATION_SIZE: Final = 16


class TransactionEnd(NamedTuple):
    """How a transaction ended, from its commit or abort record."""

    #: the transaction's own xid: of the prepared transaction, not of the one that committed it
    xid: int
    #: xl_xact_xinfo, 0 without
    xinfo: int
    #: microseconds since 2000-01-01; at the origin when the transaction was replayed from one
    time: int
    #: database of the transaction, 0 when the record does not say
    database_oid: int
    #: subtransactions that end with it
    subxids: tuple[int, ...]
    origin_lsn: int


class TransactionPrepare(NamedTuple):
    """How a transaction was prepared."""

    xid: int
    database_oid: int
    #: without its final zero, in the database's encoding
    gid: bytes
    #: microseconds since 2000-01-01; at the origin when the transaction was replayed from one
    time: int
    subxids: tuple[int, ...]
    origin_lsn: int


def parse_prepare(version: WalVersion, data: bytes, lsn: int) -> TransactionPrepare:
    """Parse the main data of a PREPARE record of *version* at *lsn*.

    Raises:
        CorruptWal: a part is longer than the record.
    """
    try:
        return _parse_prepare(version, data)
    except (struct.error, ValueError, OverflowError) as error:
        raise CorruptWal(
            f"the prepare record at {Lsn(lsn)} contradicts itself: {error}",
            hint="Fetch the WAL segment again from the source or the archive.",
            lsn=str(Lsn(lsn)),
        ) from error


def parse_truncate(data: bytes, lsn: int) -> tuple[int, tuple[int, ...]]:
    """Parse the main data of an XLOG_HEAP_TRUNCATE record at *lsn*; return its flags and the oids
    of the relations.

    Raises:
        CorruptWal: it names more relations than it holds.
    """
    try:
        _, count, flags = _TRUNCATE.unpack_from(data)
        return flags, struct.unpack_from(f"<{count}I", data, _TRUNCATE.size)
    except (struct.error, OverflowError) as error:
        raise CorruptWal(
            f"the truncate record at {Lsn(lsn)} contradicts itself: {error}",
            hint="Fetch the WAL segment again from the source or the archive.",
            lsn=str(Lsn(lsn)),
        ) from error


def _parse_prepare(version: WalVersion, data: bytes) -> TransactionPrepare:
    layout = _PREPARE if version.dropped_stats_item_size else _PREPARE_WITHOUT_STATS
    fields = layout.unpack_from(data)
    xid, database_oid, time, subxact_count = fields[2], fields[3], fields[4], fields[6]
    gid_size, origin_lsn, origin_time = fields[-3:]
    end = layout.size + gid_size
    if not gid_size or end > len(data) or data[end - 1]:
        raise ValueError("its global identifier does not end")
    if subxact_count < 0:
        raise ValueError(f"{subxact_count} subtransactions")
    gid = data[layout.size : end - 1]
    subxids = struct.unpack_from(f"<{subxact_count}I", data, end + -end % 8)
    return TransactionPrepare(xid, database_oid, gid, origin_time or time, subxids, origin_lsn)


def parse_transaction_end(
    version: WalVersion, info: int, xid: int, data: bytes, lsn: int
) -> TransactionEnd:
    """Parse the main data of a commit or abort record.

    Args:
        version: of the server that wrote it.
        info: the record's, with XLOG_XACT_HAS_INFO.
        xid: the record's.
        data: main data.
        lsn: of the record, for errors.

    Raises:
        CorruptWal: a part is longer than the record.
    """
    try:
        if not info & rmgr.XLOG_XACT_HAS_INFO:
            return TransactionEnd(xid, 0, _TIME.unpack_from(data)[0], 0, (), 0)
        return _parse_parts(version, info & rmgr.XLOG_XACT_OPMASK, xid, data)
    except (struct.error, ValueError) as error:
        raise CorruptWal(
            f"the commit or abort record at {Lsn(lsn)} contradicts itself: {error}",
            hint="Fetch the WAL segment again from the source or the archive.",
            lsn=str(Lsn(lsn)),
        ) from error


def _parse_parts(version: WalVersion, op: int, xid: int, data: bytes) -> TransactionEnd:
    time, xinfo = _XINFO.unpack_from(data)
    at = _XINFO.size
    database_oid = origin_lsn = 0
    subxids: tuple[int, ...] = ()
    if xinfo & rmgr.XACT_XINFO_HAS_DBINFO:
        database_oid, _ = _DBINFO.unpack_from(data, at)
        at += _DBINFO.size
    if xinfo & rmgr.XACT_XINFO_HAS_SUBXACTS:
        count, at = _count(data, at, 4)
        subxids = struct.unpack_from(f"<{count}I", data, at)
        at += 4 * count
    if xinfo & rmgr.XACT_XINFO_HAS_RELFILELOCATORS:
        count, at = _count(data, at, _RELFILELOCATOR_SIZE)
        at += _RELFILELOCATOR_SIZE * count
    if xinfo & rmgr.XACT_XINFO_HAS_DROPPED_STATS and version.dropped_stats_item_size:
        count, at = _count(data, at, version.dropped_stats_item_size)
        at += version.dropped_stats_item_size * count
    if xinfo & rmgr.XACT_XINFO_HAS_INVALS:
        count, at = _count(data, at, _INVALIDATION_SIZE)
        at += _INVALIDATION_SIZE * count
    if xinfo & rmgr.XACT_XINFO_HAS_TWOPHASE:
        (xid,) = _U32.unpack_from(data, at)
        at += 4
        if xinfo & rmgr.XACT_XINFO_HAS_GID:
            at = data.index(b"\0", at) + 1
    elif op in (rmgr.XLOG_XACT_COMMIT_PREPARED, rmgr.XLOG_XACT_ABORT_PREPARED):
        raise ValueError("a prepared transaction's xid is missing")
    if xinfo & rmgr.XACT_XINFO_HAS_ORIGIN:
        origin_lsn, time = _ORIGIN.unpack_from(data, at)
    return TransactionEnd(xid, xinfo, time, database_oid, subxids, origin_lsn)


def _count(data: bytes, at: int, item_size: int) -> tuple[int, int]:
    """Read how many items of a part follow; return that and where they begin."""
    (count,) = _I32.unpack_from(data, at)
    at += 4
    if count < 0 or count * item_size > len(data) - at:
        raise ValueError(f"{count} items of {item_size} bytes at byte {at} of {len(data)}")
    return count, at
