"""What an operator can set about sessions and their sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Bounds and times; bytes and seconds."""

    #: memory for transactions in progress, per decoding session, above which the largest is spilled
    logical_decoding_work_mem: int = 64 << 20
    #: changes of one transaction in progress that make a part of it due, for who streams; None: as
    #: the above
    stream_bytes: int | None = None
    #: how much of a transaction log is kept although no slot needs it, so that slots can be rewound
    log_keep_bytes: int = 256 << 20
    #: check the catalog mirror against NEW_CID records
    audit: bool = False
    #: a WAL store that holds more than this pauses its receiver until decoding has caught up; None:
    #: no bound
    wal_store_max_bytes: int | None = None
    #: directory that holds a directory a source, by its name, of archived WAL segments; None: no
    #: archive
    wal_archives: Path | None = None
    #: how often decoding state is serialised and the log synced while WAL comes in; less often, up
    #: to 30 times, where that takes so long that it would delay more than one commit in 200
    checkpoint_interval_s: float = 10.0
    #: bytes of WAL after which that is done sooner
    checkpoint_wal_bytes: int = 256 << 20

    @property
    def checkpoint_bytes(self) -> int:
        """As ``checkpoint_wal_bytes``, and sooner where the WAL store has a bound: it must not wait
        for a checkpoint.
        """
        if self.wal_store_max_bytes is None:
            return self.checkpoint_wal_bytes
        return min(self.checkpoint_wal_bytes, self.wal_store_max_bytes // 8)

    @property
    def carry_bytes(self) -> int:
        """Bytes of WAL that transactions in progress may hold back, beyond which a checkpoint
        carries them.
        """
        return min(self.checkpoint_wal_bytes, 2 * self.checkpoint_bytes)
