"""Let a server's transaction ids jump ahead, as ``pg_resetwal -x`` does, on majors that come
without it.

The next xid stands in the shutdown checkpoint's record and in pg_control's copy of it. Both are
rewritten in a data directory that was shut down cleanly, with their checksums; and pg_xact gets the
segment that the next xid is in. A jump of less than 2**31 leaves a healthy server: after VACUUM
(FREEZE) of every database, the next.

Source: src/include/catalog/pg_control.h (CheckPoint, ControlFileData),
src/bin/pg_resetwal/pg_resetwal.c
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from spillway._kernels.pg.crc32c import crc32c
from spillway.pg.wal_segment import segment_name, segment_number

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Cluster

# ControlFileData
_CHECKPOINT_LSN_AT = 32
_CHECKPOINT_COPY_AT = 40
# CheckPoint
_TIMELINE_AT = 8
_NEXT_XID_AT = 24
# XLogRecord, and the header of short main data
_RECORD_HEADER_SIZE = 24
_CRC_AT = 20
_WAL_PAGE_SIZE = 8192
_DATA_AT = _RECORD_HEADER_SIZE + 2

_CLOG_SEGMENT_SIZE = 32 * 8192
_XIDS_PER_CLOG_SEGMENT = _CLOG_SEGMENT_SIZE * 4
_JUMP_MAX = 1 << 30


def jump_to_xid(cluster: Cluster, target: int) -> None:
    """Have *cluster*, which runs, assign xids from about *target* on (64 bits); it runs again
    afterwards.
    """
    while True:
        current = int(cluster.value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8"))
        if current >= target:
            return
        _freeze(cluster)
        cluster.stop()
        _set_next_xid(cluster, min(target, current + _JUMP_MAX))
        cluster.start()


def _freeze(cluster: Cluster) -> None:
    cluster.execute("ALTER DATABASE template0 ALLOW_CONNECTIONS true")
    for (name,) in cluster.query("SELECT datname FROM pg_database"):
        cluster.execute("VACUUM (FREEZE)", dbname=name)
    cluster.execute("ALTER DATABASE template0 ALLOW_CONNECTIONS false")


def _set_next_xid(cluster: Cluster, xid: int) -> None:
    control = cluster.data_directory / "global" / "pg_control"
    content = bytearray(control.read_bytes())
    (lsn,) = struct.unpack_from("<Q", content, _CHECKPOINT_LSN_AT)
    (timeline,) = struct.unpack_from("<I", content, _CHECKPOINT_COPY_AT + _TIMELINE_AT)
    # The checksum is the last member; where that is depends on the major.
    crc_at = next(
        at
        for at in range(_CHECKPOINT_COPY_AT + 88, 512, 4)
        if struct.unpack_from("<I", content, at)[0] == crc32c(bytes(content[:at]))
    )
    size = cluster.wal_segment_size
    segment = cluster.wal_directory / segment_name(timeline, segment_number(lsn, size), size)
    wal = bytearray(segment.read_bytes())
    at = lsn % size
    (length,) = struct.unpack_from("<I", wal, at)
    if at % _WAL_PAGE_SIZE + length > _WAL_PAGE_SIZE:
        return  # the record lies on two pages; the next shutdown's lies elsewhere
    assert wal[at + _RECORD_HEADER_SIZE] == 255
    struct.pack_into("<Q", wal, at + _DATA_AT + _NEXT_XID_AT, xid)
    crc = crc32c(bytes(wal[at + _RECORD_HEADER_SIZE : at + length]) + bytes(wal[at : at + _CRC_AT]))
    struct.pack_into("<I", wal, at + _CRC_AT, crc)
    struct.pack_into("<Q", content, _CHECKPOINT_COPY_AT + _NEXT_XID_AT, xid)
    struct.pack_into("<I", content, crc_at, crc32c(bytes(content[:crc_at])))
    _overwrite(control, content)
    _overwrite(segment, wal)

    number = (xid & 0xFFFFFFFF) // _XIDS_PER_CLOG_SEGMENT
    clog = cluster.data_directory / "pg_xact" / f"{number:04X}"
    if not clog.exists():
        clog.write_bytes(bytes(_CLOG_SEGMENT_SIZE))
        status = control.stat()
        os.chown(clog, status.st_uid, status.st_gid)
        clog.chmod(0o600)


def _overwrite(path: Path, content: bytearray) -> None:
    with path.open("r+b") as file:
        file.write(content)
