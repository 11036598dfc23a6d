"""A stored segment fetched again: from the archive, or from the primary while that still has it.

For WAL that this disk lost or changed. One segment is in memory at a time.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from spillway.errors import ReplicationFailed, SpillwayError, SystemIdMismatch
from spillway.pg.conninfo import replication_conninfo
from spillway.pg.lsn import Lsn
from spillway.receiver.awaited_wal import awaited_wal
from spillway.receiver.continuity import check_continues
from spillway.receiver.replication_connection import (
    CommandFailed,
    ReplicationConnection,
    WakeUp,
)

if TYPE_CHECKING:
    from spillway.receiver.archive import WalArchive
    from spillway.receiver.wal_writer import WalWriter

log = logging.getLogger(__name__)

_SILENCE_MAX_S: Final = 20.0


def mend_segments(
    dsn: str, archive: WalArchive | None, store: WalWriter, first_lsn: int, last_lsn: int
) -> bool:
    """Put right the stored segments from that of *first_lsn* to that of *last_lsn*; return whether
    any was wrong.

    What can't be had stays as it is: the reason is logged. Blocking; a receiver may be at work
    meanwhile.
    """
    size = store.segment_size
    mended = False
    for number in range(first_lsn // size, last_lsn // size + 1):
        start = number * size
        length = min(size, store.flushed_lsn - start)
        if length <= 0:
            break
        for whence, data in (
            ("the archive", _from_archive(archive, start, length)),
            ("the primary", _from_primary(dsn, store, start, length)),
        ):
            if data is not None and store.mend(number, data):
                log.warning(
                    "WAL from %s on was lost or damaged here, and came again from %s",
                    Lsn(start),
                    whence,
                )
                mended = True
                break
    return mended


def _from_archive(archive: WalArchive | None, start: int, length: int) -> bytes | None:
    if archive is None:
        return None
    data = b""
    try:
        while len(data) < length:
            piece = archive.read(start + len(data), length - len(data))
            if not piece:
                return None
            data += piece
    except SpillwayError as error:
        log.warning("WAL at %s can't be had from the archive: %s", Lsn(start), error)
        return None
    return data


def _from_primary(dsn: str, store: WalWriter, start: int, length: int) -> bytes | None:
    try:
        # Not of a copy that went its own way.
        check_continues(dsn, store.reader)
        return wal_of_primary(dsn, store.system_id, store.timeline, start, length)
    except SpillwayError as error:
        log.warning("WAL at %s can't be had from the primary: %s", Lsn(start), error)
        return None


def wal_of_primary(dsn: str, system_id: str, timeline: int, start: int, length: int) -> bytes:
    """Return *length* bytes of the primary's WAL from *start* on. Needs no slot.

    Raises:
        SystemIdMismatch: the server is another cluster.
        ReplicationFailed: it has removed them, ended the stream, or sent something else or nothing.
        SourceError: there is no connection.
    """
    data = bytearray()
    with ReplicationConnection.connect(replication_conninfo(dsn), WakeUp()) as connection:
        try:
            identity = connection.identify_system()
            if identity.system_id != system_id:
                raise SystemIdMismatch(
                    f"the server is cluster {identity.system_id}, the source is cluster "
                    f"{system_id}",
                    hint="Point the source at the cluster it was created for.",
                )
            connection.start_replication(None, start, timeline)
            for _, piece in awaited_wal(connection, start, start + length, _SILENCE_MAX_S):
                data += piece
        except CommandFailed as failure:
            raise ReplicationFailed(
                f"the server does not send WAL from {Lsn(start)} on: {failure.message}",
                hint="Copy the segment from its archive.",
                sqlstate=failure.sqlstate,
            ) from failure
    return bytes(data[:length])


def primary_timeline(dsn: str) -> int:
    """Ask which timeline the primary is on.

    Raises:
        SourceError: it can't be asked.
    """
    with ReplicationConnection.connect(replication_conninfo(dsn), WakeUp()) as connection:
        try:
            return connection.identify_system().timeline
        except CommandFailed as failure:
            raise ReplicationFailed(
                f"the server does not say its timeline: {failure.message}",
                hint="It is asked again by itself.",
                sqlstate=failure.sqlstate,
            ) from failure
