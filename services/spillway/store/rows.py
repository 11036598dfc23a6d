"""What the metadata store gives: frozen rows, detached from any session or connection."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spillway.pg.lsn import Lsn


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """A PostgreSQL cluster that WAL comes from."""

    name: str
    #: with its password, if it has one: never show it
    dsn: str
    #: pg_control's system identifier, decimal
    system_id: str
    #: PG_VERSION_NUM, 180004 for one
    server_version_num: int
    timeline: int
    #: bytes
    wal_segment_size: int
    #: the physical slot's name on the primary
    slot_name: str
    #: what is decoded at all: origin, tables, publications; {} for everything
    capture: Mapping[str, object] = field(default_factory=dict)
    state: str = "connecting"
    error: str | None = None
    error_code: str | None = None
    hint: str | None = None
    created_at: datetime = field(default_factory=_now)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRow:
    """What must be remembered of a slot; the rest of its columns is computed when it is shown."""

    slot_name: str
    source: str
    database: str
    datoid: int
    plugin: str
    slot_type: str = "logical"
    temporary: bool = False
    catalog_xmin: int | None = None
    restart_lsn: Lsn | None = None
    confirmed_flush_lsn: Lsn | None = None
    two_phase: bool = False
    two_phase_at: Lsn | None = None
    #: when its consumer was there last; of one that is there, now and then
    inactive_since: datetime | None = None
    #: when a confirmation last moved it
    confirmed_at: datetime | None = None
    conflicting: bool = False
    invalidation_reason: str | None = None
    failover: bool = False
    synced: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    created_at: datetime = field(default_factory=_now)
    #: of a temporary slot: the tenure in which it was made, by the token of its source's lease
    owner_token: int | None = None
    #: who has it now: the tenure and the process, None: nobody, or who had it in a tenure that is
    #: over
    active_token: int | None = None
    active_pid: int | None = None
    #: for whom that process has it: what it says of its consumer
    consumer: Mapping[str, str | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionRow:
    """A subscription as it was declared, and what must be remembered of how its runs went."""

    name: str
    source: str
    database: str
    slot: str
    #: ``schema.table``; None: by publications, or all
    tables: Sequence[str] | None = None
    publications: Sequence[str] | None = None
    #: which tables those are, since the last time that somebody looked; None: all there are and
    #: will be
    resolved_tables: Sequence[str] | None = None
    #: tables that have left those since, if they are there again or not, and of which no program
    #: has heard yet; with how many times it was
    forgotten_tables: Mapping[str, int] | None = None
    #: its ``kind``, and what that kind takes
    target: Mapping[str, object]
    enabled: bool = True
    copy_data: bool = True
    origin: str = "any"
    streaming: str = "off"
    two_phase: bool = False
    #: of the slot's output plugin
    options: Mapping[str, str] = field(default_factory=dict)
    #: creating, created, begun (a program follows the slot), copied (all tables are), refreshed
    #: (as begun, and the next program is to look which tables there are), dropping, dropping_all:
    #: what is to be done next, whoever dies in between
    phase: str = "creating"
    #: what commits before it and is not in the target is given up
    skip_lsn: Lsn | None = None
    restarts: int = 0
    #: why the last run failed; None since one went well
    error: str | None = None
    error_code: str | None = None
    hint: str | None = None
    created_at: datetime = field(default_factory=_now)

    @property
    def has_begun(self) -> bool:
        """Whether a program has followed its slot."""
        return self.phase in ("begun", "copied", "refreshed")


@dataclass(frozen=True, slots=True)
class MetConflict:
    """A conflict, as a subscription's program wrote it down."""

    #: which log of a program it is in; "" for one of a release that had no numbers
    log: str
    #: in that log, from 1; 0 where there are none
    position: int
    #: ``id``, ``kind``, ``schema``, ``table`` and whatever else is known of it
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ConflictTotals:
    """How many conflicts a subscription met; one that is tried again counts once."""

    #: by (``schema.table`` on the target, kind); "" for the tables beyond those that are counted
    #: one by one
    counts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    #: of which each is kept
    kept: int = 0
    #: that were overwritten in the program's log before they could be taken in: in no count
    missed: int = 0

    @property
    def total(self) -> int:
        """All that were counted."""
        return sum(self.counts.values())

    @property
    def dropped(self) -> int:
        """That were counted and are kept no more, since they are the oldest."""
        return max(0, self.total - self.kept)

    @property
    def by_kind(self) -> dict[str, int]:
        """Counts by kind."""
        found: dict[str, int] = {}
        for (_, kind), count in sorted(self.counts.items()):
            found[kind] = found.get(kind, 0) + count
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRow:
    """Who may come in over PostgreSQL's own protocol."""

    name: str
    #: SCRAM's, as pg_authid.rolpassword has one: never show it
    verifier: str
    #: source/database, source/* or *
    databases: Sequence[str]
    #: the only ones of these databases that the user may read, or have read; None: all
    slots: Sequence[str] | None = None
    manage_slots: bool = False
    run_sql: bool = False
    created_at: datetime = field(default_factory=_now)


class LeaseState(NamedTuple):
    """A lease as it is stored."""

    holder: str
    token: int
    expires_at_ms: int
    has_run_out: bool


class Fence(NamedTuple):
    """Proof of a lease: a write that carries it fails once somebody else has taken the lease."""

    resource: str
    token: int


#: The lease on a source is on this, and the source's name.
SOURCE_LEASE: Final = "source/"


class Owner(NamedTuple):
    """Who acts on the slots of a source: a process, in one tenure of the source's lease."""

    source: str
    #: of the lease: the tenure's epoch
    token: int
    pid: int

    @property
    def fence(self) -> Fence:
        """The proof of the lease."""
        return Fence(SOURCE_LEASE + self.source, self.token)


class Presence(NamedTuple):
    """A sign of a slot's consumer."""

    #: when it was there last
    moment: datetime
    #: what is to be shown of it while it is there
    consumer: Mapping[str, str | None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """Something that happened."""

    #: counts up; 0: not stored yet
    id: int = 0
    at: datetime = field(default_factory=_now)
    #: problem, resolved, action, taken, started or message
    kind: str
    #: bad, warn, ok or info
    severity: str = "info"
    source: str | None = None
    slot: str | None = None
    subscription: str | None = None
    title: str
    detail: str = ""
    #: who did it: address, client, protocol, user; None: nobody from outside
    caller: Mapping[str, Any] | None = None
    document: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertChannelRow:
    """Where alerts are told."""

    name: str
    #: webhook, slack or email
    kind: str
    enabled: bool = True
    config: Mapping[str, Any] = field(default_factory=dict)
    #: never show them
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    created_at: datetime = field(default_factory=_now)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRuleRow:
    """What is told, from where on, and to which channels."""

    #: empty: the service's own, which makes events and tells nobody
    name: str
    enabled: bool = True
    #: of findings; None: all
    codes: Sequence[str] | None = None
    #: None: all, and what is of no source
    sources: Sequence[str] | None = None
    #: patterns as the shell has them; None: all
    subjects: Sequence[str] | None = None
    #: from this severity on: warn or bad
    severity: str = "warn"
    #: fields of ``watch.findings.Limits``; what is left out is as on the overview
    limits: Mapping[str, float] = field(default_factory=dict)
    #: how long it must be so before anybody is told
    hold_s: int = 0
    #: how long it must be over before that is told
    clear_s: int = 60
    #: how often it is told again while it lasts; 0: never
    repeat_s: int = 14_400
    #: ``from`` and ``to`` as HH:MM, ``timezone``, and ``days`` of the week; None: at any time
    quiet: Mapping[str, Any] | None = None
    channels: Sequence[str] = ()
    created_at: datetime = field(default_factory=_now)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRow:
    """What a rule has found."""

    #: counts up; 0: not stored yet
    id: int = 0
    open_key: str | None
    rule: str
    code: str
    subject: str
    source: str
    #: whose alone it is; empty: the process's that serves its source
    process: str = ""
    severity: str
    title: str
    detail: str
    remedy: str
    link: str
    #: first
    seen_at: datetime
    #: when it had lasted for as long as the rule asks; None: not yet
    fired_at: datetime | None = None
    #: since when it is not found; None: it is
    absent_at: datetime | None = None
    resolved_at: datetime | None = None
    #: when it was told last; None: never
    told_at: datetime | None = None
    #: somebody who was told of it is to be told that it is over
    owes_resolved: bool = False
    #: how often it was told
    told: int = 0

    @property
    def state(self) -> str:
        """Say how it stands: ``pending``, ``firing`` or ``resolved``."""
        if self.resolved_at is not None:
            return "resolved"
        return "pending" if self.fired_at is None else "firing"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertMessageRow:
    """What is to be sent to a channel."""

    #: counts up; 0: not stored yet
    id: int = 0
    message_id: str
    #: None: of a test
    alert_id: int | None
    rule: str
    channel: str
    #: firing, reminder, resolved or test
    reason: str
    #: waiting, sent or failed
    state: str = "waiting"
    document: Mapping[str, Any]
    attempts: int = 0
    #: by the database's clock
    next_at_ms: int = 0
    #: of the last attempt
    error: str | None = None
    created_at: datetime = field(default_factory=_now)
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChangeRow:
    """What DDL did to one table."""

    #: counts up; 0: not stored yet
    id: int = 0
    source: str
    database: str
    #: where its transaction's commit record starts
    commit_lsn: Lsn
    #: of what the transaction did
    number: int
    xid: int
    committed_at: datetime
    #: create_table, alter_table or drop_table
    kind: str
    #: ``schema.table``, after it
    table_name: str
    #: changes, columns, rewritten, before: see ``watch/ddl_recorder.py``
    document: Mapping[str, Any]
    #: what subscriptions made of it, by their names: outcome, at, detail, before
    outcomes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
