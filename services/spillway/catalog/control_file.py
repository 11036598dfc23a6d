"""Where recovery of a data directory would begin: pg_control, or backup_label and the record that
it names.

A directory that is a base backup has a backup_label; its checkpoint then is the one that the backup
began with, and what pg_control says is newer and does not count. Otherwise pg_control's last
checkpoint is it.

::

    pg_control:  u64 system_identifier | u32 pg_control_version | u32 catalog_version_no | u32
                 state | 12 bytes u64 checkPoint | CheckPoint | … | u32 crc32c of what is before it
    CheckPoint:  u64 redo | u32 tli | u32 prev_tli | u32 full_page_writes, wal_level | u64
                 next_xid | u32 next_oid u32 next_multi | u32 next_multi_offset | … at 80: u32
                 oldest_active_xid

The fields that are read are at the same places in PostgreSQL 14 to 18; the checksum stands at the
end, which is not.

Source: src/include/catalog/pg_control.h; read_backup_label,
src/backend/access/transam/xlogrecovery.c
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spillway._kernels.pg.crc32c import crc32c
from spillway.catalog.source_queries import Checkpoint
from spillway.errors import CorruptWal, SourceError, WalGap
from spillway.pg import rmgr
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from spillway.catalog.raw_storage import ServerFiles
    from spillway.wal.reader import WalDirectory

_CONTROL: Final = struct.Struct("<QIII12xQ")
#: redo, tli, prev_tli, full_page_writes and wal_level, next_xid, next_oid, next_multi,
#: next_multi_offset
_CHECKPOINT: Final = struct.Struct("<QIIIIQIII")
_OLDEST_ACTIVE_XID: Final = struct.Struct("<I")
_OLDEST_ACTIVE_XID_AT: Final = 80
_CONTROL_FILE_SIZE: Final = 8192
#: where the checksum may stand: behind the last field of any version
_CRC_PLACES: Final = range(256, 512, 4)
_START: Final = re.compile(r"^START WAL LOCATION: ([0-9A-F]+/[0-9A-F]+) ", re.MULTILINE)
_CHECKPOINT_LOCATION: Final = re.compile(
    r"^CHECKPOINT LOCATION: ([0-9A-F]+/[0-9A-F]+)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class ControlFile:
    """What decoding asks of pg_control."""

    system_id: int
    catalog_version: int
    checkpoint: Checkpoint
    #: multixacts from this one on are in WAL; the first of their members would stand there
    next_multixact: int
    next_multixact_offset: int


def read_control_file(files: ServerFiles) -> ControlFile:
    """Read global/pg_control.

    Raises:
        SourceError: there is none, or it is damaged.
    """
    content = files.read("global/pg_control", 0, _CONTROL_FILE_SIZE)
    if not content:
        raise SourceError(
            "global/pg_control is not there",
            hint="Give the data directory of a PostgreSQL server, or a base backup of it.",
        )
    if len(content) < max(_CRC_PLACES) or not any(
        crc32c(content[:at]) == int.from_bytes(content[at : at + 4], "little") for at in _CRC_PLACES
    ):
        raise SourceError(
            "global/pg_control fails its checksum",
            hint="The copy is damaged, or was made while the server wrote the file: copy it again.",
        )
    system_id, _, catalog_version, _, _ = _CONTROL.unpack_from(content)
    checkpoint, multixact, offset = _parse_checkpoint(content[_CONTROL.size :])
    return ControlFile(system_id, catalog_version, checkpoint, multixact, offset)


def read_backup_label(files: ServerFiles, wal: WalDirectory) -> ControlFile | None:
    """Return what the checkpoint says that a backup began with; None when this is no backup.

    Only ``checkpoint`` and the multixact fields of the result are the backup's.

    Raises:
        SourceError: backup_label is malformed.
        WalGap: the checkpoint's segment is not in *wal*.
        CorruptWal: what is there is no checkpoint.
    """
    label = files.read("backup_label", 0, 1 << 16).decode(errors="replace")
    if not label:
        return None
    start, location = _START.search(label), _CHECKPOINT_LOCATION.search(label)
    if start is None or location is None:
        raise SourceError(
            "backup_label does not say where the backup began",
            hint="Copy the file again from the backup; PostgreSQL could not restore it either.",
        )
    lsn = Lsn.parse(location[1])
    record = next(wal.records(lsn), None)
    if record is None:
        raise WalGap(
            f"WAL of the checkpoint at {lsn}, with which the backup began, is not in {wal.path}",
            hint="Give a directory that holds all WAL from the backup's start on.",
            lsn=str(lsn),
        )
    if record.rmid != rmgr.RM_XLOG_ID or record.info not in {
        rmgr.XLOG_CHECKPOINT_ONLINE,
        rmgr.XLOG_CHECKPOINT_SHUTDOWN,
    }:
        raise CorruptWal(
            f"the record at {lsn}, which backup_label names, is no checkpoint",
            hint="Backup and WAL do not belong together.",
            lsn=str(lsn),
        )
    checkpoint, multixact, offset = _parse_checkpoint(record.data)
    return ControlFile(0, 0, checkpoint, multixact, offset)


def _parse_checkpoint(data: bytes) -> tuple[Checkpoint, int, int]:
    if len(data) < _OLDEST_ACTIVE_XID_AT + _OLDEST_ACTIVE_XID.size:
        raise SourceError("a checkpoint is cut short", hint="The copy is damaged: copy it again.")
    redo, timeline, _, _, _, next_xid, _, multixact, offset = _CHECKPOINT.unpack_from(data)
    (oldest_active,) = _OLDEST_ACTIVE_XID.unpack_from(data, _OLDEST_ACTIVE_XID_AT)
    return Checkpoint(Lsn(redo), timeline, next_xid, oldest_active), multixact, offset
