"""The values that the engine takes and gives: what REST, gRPC and the UI show.

Plain frozen dataclasses; interfaces convert them to their own wire forms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from spillway.pg.lsn import Lsn
    from spillway.plugins.messages import EncodedBatch


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """What a caller says to create a slot."""

    slot_name: str
    source: str
    database: str
    plugin: str = "test_decoding"
    temporary: bool = False
    two_phase: bool = False
    failover: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    start_lsn: Lsn | None = None
    #: of a copied slot; a new one's is where it begins
    two_phase_at: Lsn | None = None


@dataclass(frozen=True, slots=True)
class Consumer:
    """Who has a slot."""

    #: stream, or the call that is under way: get, peek, advance, rewind, alter, drop
    kind: str
    #: host:port that it came from; None: it did not come over the network
    address: str | None
    #: how its program names itself (User-Agent)
    client: str | None
    #: of the subscription whose program it is
    subscription: str | None
    since: datetime
    #: when a stream's client last sent feedback; None: never
    last_feedback_at: datetime | None = None
    #: how far a stream was handed out; None: it is no stream
    sent_lsn: Lsn | None = None
    #: None: it is so now; else another process serves it, and stored this then
    as_of: datetime | None = None

    def __str__(self) -> str:
        """Name it as a person would."""
        what = {"stream": "a stream"}.get(self.kind, f"a {self.kind}")
        if self.subscription is not None:
            what += f" of subscription {self.subscription}"
        if self.address is not None:
            what += f" from {self.address}"
        if self.client:
            what += f" ({self.client})"
        return f"{what} since {self.since:%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True)
class Decoding:
    """How the decoding stands that a slot reads from."""

    #: running, starting (not yet where it stood before the service started), stopped, or unknown (its source is not up)
    state: str
    decoded_lsn: Lsn | None
    #: since when it is so; None: not known
    since: datetime | None
    error: str | None = None
    error_code: str | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something that keeps the service from doing its work, or soon may."""

    #: metadata, disk, certificate, source, database
    kind: str
    #: which one: metadata, a directory, tls, the source's name, source/database
    name: str
    code: str
    message: str
    hint: str
    #: None: not known
    since: datetime | None
    #: what it is in a few words; empty for sources and databases, which show it themselves
    title: str = ""


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """A slot: the columns of PG 18's pg_replication_slots under their names, then Spillway's own."""

    slot_name: str
    plugin: str
    slot_type: str
    datoid: int
    database: str
    temporary: bool
    active: bool
    active_pid: int | None
    xmin: int | None
    catalog_xmin: int | None
    restart_lsn: Lsn | None
    confirmed_flush_lsn: Lsn | None
    #: None: its source is not up, so that is not known
    wal_status: str | None
    safe_wal_size: int | None
    two_phase: bool
    two_phase_at: Lsn | None
    inactive_since: datetime | None
    conflicting: bool
    invalidation_reason: str | None
    failover: bool
    synced: bool
    # Spillway's own.
    source: str
    options: Mapping[str, str]
    decoded_lsn: Lsn | None
    #: None: its source is not up, so that is not known
    retained_bytes: int | None
    created_at: datetime
    #: who has it; None: nobody
    consumer: Consumer | None = None
    #: how the decoding stands that it reads from
    decoding: Decoding = Decoding("unknown", None, None)
    #: when a confirmation last moved it, as stored; None: never
    confirmed_at: datetime | None = None

    @property
    def lag_bytes(self) -> int | None:
        """How much decoded WAL its consumer has not confirmed; None: not known."""
        if self.decoded_lsn is None or self.confirmed_flush_lsn is None:
            return None
        return max(0, int(self.decoded_lsn) - int(self.confirmed_flush_lsn))


@dataclass(frozen=True, slots=True)
class SlotStats:
    """pg_stat_replication_slots."""

    slot_name: str
    spill_txns: int
    spill_count: int
    spill_bytes: int
    stream_txns: int
    stream_count: int
    stream_bytes: int
    total_txns: int
    total_bytes: int
    stats_reset: datetime | None


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
    #: when that part of the log was found whole which was looked at longest ago, in seconds since the epoch; None: some was
    #: never looked at, or none is sealed
    log_verified_at: float | None = None
    #: the database's, by PostgreSQL's name; None: not known
    encoding: str | None = None


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


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """An output plugin that slots may have."""

    name: str
    #: Spillway's own; others come with installed packages
    built_in: bool


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """A column of a table."""

    name: str
    #: as format_type shows it
    type: str
    not_null: bool
    generated: bool


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table of a database, as of where decoding is."""

    schema: str
    name: str
    #: table, partitioned table
    kind: str
    #: of a partition: its parent first, the root last
    partition_of: tuple[str, ...]
    #: default, index, full, nothing
    replica_identity: str
    primary_key: tuple[str, ...]
    #: of the replica identity
    identity_columns: tuple[str, ...]
    columns: tuple[ColumnInfo, ...]
    #: those that publish it
    publications: tuple[str, ...]
    #: whether the source's capture filter lets it through
    captured: bool
    #: what stands in a consumer's way, each with what mends it
    warnings: tuple[str, ...]


class TablePage(NamedTuple):
    """Some of a database's tables, by schema and name."""

    tables: list[TableInfo]
    #: what the next page comes behind, as ``after`` takes it; None: there is none
    following: int | None


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table as a publication publishes it."""

    schema: str
    name: str
    #: None: all
    columns: tuple[str, ...] | None
    has_row_filter: bool
    #: its expression; None without one, or when it can't be shown as text
    row_filter: str | None
    #: the tables that have its rows: itself, or its partitions
    leaves: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PublicationInfo:
    """A publication, as of where decoding is."""

    name: str
    all_tables: bool
    insert: bool
    update: bool
    delete: bool
    truncate: bool
    via_root: bool
    #: those that are published whole
    schemas: tuple[str, ...]
    tables: tuple[PublishedTable, ...]


@dataclass(frozen=True, slots=True)
class Change:
    r"""A row of pg_logical_slot_peek_changes; *data* is ``\\x…`` hex for a binary plugin."""

    lsn: Lsn
    xid: int
    #: with U+FFFD for what is not UTF-8
    data: str
    #: the message itself when it is not UTF-8, as one of a database in SQL_ASCII may be
    data_bytes: bytes | None = None


@dataclass(frozen=True, slots=True)
class Preview:
    """Changes for a person to read; each ``data`` is a JSON object as wal2json's format 2 has it."""

    changes: tuple[Change, ...]
    #: where the next preview begins: behind the last transaction of which something is shown
    next_lsn: Lsn
    #: (start_lsn, skip) of the preview that goes on inside that one; None: it is shown whole, or too much of it came before
    rest: tuple[Lsn, int] | None
    #: something follows
    more: bool
    #: the last transaction is not shown whole
    cut: bool = False


@dataclass(frozen=True, slots=True)
class PrimaryCost:
    """What a primary keeps for a source, as it says itself."""

    #: WAL that it keeps for our physical slot: what was written and not confirmed by us
    wal_bytes: int
    #: age in transactions of the oldest row versions that our slot holds back from vacuum; None: it holds none
    xmin_age: int | None
    catalog_xmin_age: int | None
    #: logical slots on the primary, of whoever
    logical_slots: int


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """What a stream hands out in one step; ``messages.count`` may be 0: then it is a keepalive."""

    messages: EncodedBatch
    #: lsn of the first message, or where the stream stands
    wal_start: Lsn
    #: how far the source's WAL is decoded
    wal_end: Lsn
    #: a consumer that has processed everything so far may confirm up to here
    confirm_lsn: Lsn
    #: the stream reached the caller's upto_lsn: no more comes
    final: bool = False
