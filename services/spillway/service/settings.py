"""What an operator can set about the service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spillway.sessions.settings import SessionSettings

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class EngineSettings(SessionSettings):
    """A session's, and what is set for the service as a whole; bytes and seconds."""

    #: a slot that holds more of the transaction log than this is invalidated; None: never
    max_slot_retained_bytes: int | None = None
    #: directory below which a source's DSN may name certificates and keys; None: nowhere
    dsn_files: Path | None = None
    #: how long creating a slot waits for a consistent point
    consistent_timeout_s: float = 90.0
    #: how long a snapshot of the source is held for a slot
    snapshot_hold_s: float = 900.0
    #: how long snapshots are taken until one can be paired with an LSN; then the primary is asked
    #: for one
    snapshot_pairing_timeout_s: float = 10.0
    #: a lease on a source lasts this long without renewal
    lease_ttl_s: float = 15.0
