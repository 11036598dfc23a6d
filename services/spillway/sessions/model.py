"""How sources and their sessions stand, as values for whoever looks from outside.

Plain frozen dataclasses, which ``service/model.py`` hands on to the interfaces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from spillway.pg.lsn import Lsn


@dataclass(frozen=True, slots=True)
class Decoding:
    """How the decoding stands that a slot reads from."""

    #: running, starting (not yet where it stood before the service started), stopped, or unknown
    #: (its source is not up)
    state: str
    decoded_lsn: Lsn | None
    #: since when it is so; None: not known
    since: datetime | None
    error: str | None = None
    error_code: str | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class DatabaseSession:
    """A decoding session: one database of a source."""

    database: str
    datoid: int
    #: start, building_snapshot, full_snapshot, consistent (SnapBuildState), or failed
    snapshot_state: str
    decoded_lsn: Lsn | None
    restart_lsn: Lsn | None
    error: str | None = None
    error_code: str | None = None
    hint: str | None = None
    #: running, starting, stopped: as :class:`Decoding`
    state: str = "starting"
    #: since when it is in that state; None: not known
    since: datetime | None = None
    #: it is known how far the decoding is behind what is received, as of these last seconds
    current: bool = False
    #: the transaction log has a hole, which is being mended
    log_damaged: bool = False
    #: when that part of the log was found whole which was looked at longest ago, in seconds since
    #: the epoch; None: some was never looked at, or none is sealed
    log_verified_at: float | None = None
    #: the database's, by PostgreSQL's name; None: not known
    encoding: str | None = None
    #: where its transaction log begins: slots can be taken back to there; None: not known
    log_start_lsn: Lsn | None = None


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """A PostgreSQL cluster that WAL comes from. Its DSN is never shown with the password in it."""

    name: str
    dsn: str
    system_id: str
    server_version_num: int
    timeline: int
    wal_segment_size: int
    #: physical slot's name on the primary
    slot_name: str
    #: what is decoded at all: origin, tables, publications
    capture: Mapping[str, Any]
    #: connecting, streaming, failed
    state: str
    received_lsn: Lsn | None
    flushed_lsn: Lsn | None
    sessions: tuple[DatabaseSession, ...]
    created_at: datetime
    error: str | None = None
    error_code: str | None = None
    hint: str | None = None
    #: since when it streams, or since when it does not; None: not known
    since: datetime | None = None
    #: when the server was last heard; None: not since the service started
    heard_at: datetime | None = None
