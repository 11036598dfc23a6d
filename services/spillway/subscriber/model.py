"""The values that the subscriber takes and gives: what REST, the UI and commands show."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from spillway.store.rows import ConflictTotals

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from spillway.pg.lsn import Lsn


class SubscriptionState(StrEnum):
    """How a subscription is; see :mod:`spillway.subscriber.supervisor`."""

    #: its slot is being made, or its program starts
    INITIALIZING = "initializing"
    #: it follows its slot, and tables are still being copied
    COPYING = "copying"
    #: it follows its slot
    STREAMING = "streaming"
    #: it is disabled
    PAUSED = "paused"
    #: its program ended with an error, and is started again after a while
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SubscriptionSpec:
    """What a caller says to create a subscription."""

    name: str
    source: str
    database: str
    #: with its ``kind``
    target: Mapping[str, object]
    #: made unless it is there; "": of the subscription's name
    slot: str = ""
    #: ``schema.table``; None: by publications, or all
    tables: tuple[str, ...] | None = None
    publications: tuple[str, ...] | None = None
    enabled: bool = True
    copy_data: bool = True
    origin: str = "any"
    streaming: str = "off"
    two_phase: bool = False
    #: of the slot's output plugin
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run failed."""

    code: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class TableResync:
    """The last wish to load a table of a lake anew."""

    #: waiting, loading, done, failed, cancelled; what failed is tried again, unless the reason says
    #: otherwise
    state: str
    asked_at: datetime
    #: when it was done, taken back, or failed last
    ended_at: datetime | None = None
    #: as of which it was loaded
    lsn: Lsn | None = None
    #: why it failed, and what mends it
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class TableState:
    """One table of a subscription, as its program tells."""

    #: ``schema.table``
    table: str
    #: waiting, copying, ready, quarantined, paused
    state: str
    #: changes that are durable in the target
    changes: int = 0
    #: of its heap, while it is copied and after
    bytes_copied: int | None = None
    bytes_total: int | None = None
    #: why it is in quarantine or paused, or is not copied yet
    reason: str | None = None
    #: of a PostgreSQL: pg_subscription_rel's, ``i``, ``d``, ``f``, ``s`` or ``r``
    sync_state: str | None = None
    #: of a PostgreSQL: why its changes are written one by one; None when they are not
    written_alone: str | None = None
    #: of a lake, as its current table was at ``figures_at``; None: not known
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    #: rows in those files that are marked as gone; not in ``rows``
    deleted_rows: int | None = None
    #: of files that commits have replaced
    bytes_rewritten: int | None = None
    figures_at: datetime | None = None
    #: of a lake: when the newest change of the table was committed at the source
    newest_change_at: datetime | None = None
    #: of a lake: when the oldest change was committed that history has and current has not
    waiting_since: datetime | None = None
    #: of a lake: the last wish to load it anew; None: there was none
    resync: TableResync | None = None
    #: over the last seconds; None while that is not known: no program runs, or one has just begun
    changes_per_second: float | None = None
    bytes_per_second: float | None = None

    @property
    def deleted_share(self) -> float | None:
        """Which share of the rows in a lake's files is marked as gone; None when nobody knows."""
        if self.rows is None or self.deleted_rows is None:
            return None
        stored = self.rows + self.deleted_rows
        return self.deleted_rows / stored if stored else 0.0

    @property
    def seconds_left(self) -> float | None:
        """How long the rest of its copy takes at that rate; None when nobody knows."""
        if self.state != "copying" or not self.bytes_per_second:
            return None
        if self.bytes_copied is None or self.bytes_total is None:
            return None
        # The heap's size is a guess of what COPY sends.
        return max(0, self.bytes_total - self.bytes_copied) / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The last batch of a lake that brought changes."""

    #: when it was durable
    ended_at: datetime
    #: from its start until then
    seconds: float
    changes: int
    #: that it had changes of
    tables: int
    #: its changes committed from here …
    from_lsn: Lsn
    #: … until before here
    to_lsn: Lsn


class VerificationState(StrEnum):
    """How a comparison of the target with the source is, or came out."""

    RUNNING = "running"
    EQUAL = "equal"
    DIFFERENT = "different"
    #: it came to no result
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class VerifiedTable:
    """What a comparison found of one table."""

    #: ``schema.table``
    table: str
    equal: bool
    source_rows: int
    target_rows: int
    #: keys that were found to differ; with ``more``, there are others
    differences: int
    more: bool
    #: why it was not compared; "": it was
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class Verification:
    """The last comparison of the target with the source, as of one LSN."""

    state: VerificationState
    began_at: datetime
    ended_at: datetime | None = None
    #: both sides had everything before it
    lsn: Lsn | None = None
    tables: tuple[VerifiedTable, ...] = ()
    #: why it failed
    error: Failure | None = None

    @property
    def differing(self) -> tuple[VerifiedTable, ...]:
        return tuple(table for table in self.tables if not table.equal)


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """A subscription: as it was declared, then how it is."""

    name: str
    source: str
    database: str
    slot: str
    tables: tuple[str, ...] | None
    publications: tuple[str, ...] | None
    target: Mapping[str, object]
    enabled: bool
    copy_data: bool
    origin: str
    streaming: str
    two_phase: bool
    options: Mapping[str, str]
    state: SubscriptionState
    error: Failure | None
    confirmed_flush_lsn: Lsn | None
    #: WAL that is decoded and not confirmed
    lag_bytes: int | None
    #: age of the oldest change that is not confirmed
    lag_seconds: float | None
    #: changes that are durable in the target since the subscription was created
    rows: int
    #: how often its program was started again after it had failed
    restarts: int
    #: of the running program
    pid: int | None
    table_states: tuple[TableState, ...]
    created_at: datetime
    #: what its program has beside that, by name; of a PostgreSQL, the columns of
    #: pg_stat_subscription and pg_stat_subscription_stats
    stats: Mapping[str, object] = field(default_factory=dict)
    #: that its programs met
    conflicts: ConflictTotals = field(default_factory=ConflictTotals)
    #: of a lake; None: there was none yet, or nobody knows of it
    last_batch: LastBatch | None = None
    #: when its program last told of itself: of then tables and stats are; None: never
    told_at: datetime | None = None
    #: of a lake: the last comparison with its source; None: there was none
    verification: Verification | None = None
    #: of those that it reads by, the publications that do not exist as of where decoding is; None:
    #: not known
    missing_publications: tuple[str, ...] | None = ()
    #: when it is created, what is good to know of its target and in nobody's way; later: none
    notes: tuple[str, ...] = ()
