"""The values that the service takes and gives: what REST, gRPC and the UI show.

Plain frozen dataclasses; interfaces convert them to their own wire forms. What sessions and
delivery say of themselves is theirs (``sessions/model.py``, ``delivery/model.py``) and is handed on
here, so that interfaces know the service alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spillway.delivery.change_query import (
    LIMIT_MAX,
    OPERATIONS,
    ChangePage,
    ChangeQuery,
    ColumnValue,
    FoundChange,
    LogicalMessage,
    Position,
)
from spillway.delivery.model import Change, Consumer, LiveConsumer, Preview, StreamBatch
from spillway.plugins.messages import EncodedBatch, Notice
from spillway.sessions.model import DatabaseSession, Decoding, SourceInfo

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from spillway.pg.lsn import Lsn

__all__ = [
    "LIMIT_MAX",
    "OPERATIONS",
    "Change",
    "ChangePage",
    "ChangeQuery",
    "ColumnInfo",
    "ColumnValue",
    "Consumer",
    "DatabaseSession",
    "DdlChange",
    "Decoding",
    "EncodedBatch",
    "FoundChange",
    "LiveConsumer",
    "LogicalMessage",
    "Notice",
    "Obstacle",
    "PluginInfo",
    "Position",
    "Preview",
    "PrimaryCost",
    "PublicationInfo",
    "PublishedTable",
    "SlotInfo",
    "SlotSpec",
    "SlotStats",
    "SourceInfo",
    "StreamBatch",
    "TableInfo",
    "TablePage",
]

_UNKNOWN: Final = Decoding("unknown", None, None)


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
    #: begin at the LSN of an exact snapshot of the source, which is held then
    exports_snapshot: bool = False
    #: hold that snapshot until it is released, however long that takes, whoever reads the slot:
    #: as PostgreSQL does for the connection that made it
    keeps_snapshot: bool = False


@dataclass(frozen=True, slots=True)
class SlotSnapshot:
    """A snapshot of a slot's database that is held on the source, paired with an LSN: it sees what
    has its commit record before :attr:`consistent_point`, and nothing else.
    """

    slot_name: str
    #: what SET TRANSACTION SNAPSHOT is given
    snapshot_name: str
    consistent_point: Lsn
    #: pg_current_snapshot(): tells it from another one of the same name
    contents: str
    #: paired: an ordinary snapshot; temporary_slot: of a logical slot that the primary had for a
    #: moment
    method: str
    #: how many were taken until one could be paired
    attempts: int
    #: why it was not paired; None: it was
    reason: str | None
    taken_at: datetime
    #: it is given up then, or when a consumer takes the slot; later and later while it is kept for
    #: a client of PostgreSQL's protocol
    held_until: datetime


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something that keeps the service from doing its work, or soon may."""

    #: metadata, disk, certificate, listener, source, database
    kind: str
    #: which one: metadata, a directory, tls, the door, the source's name, source/database
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
    """A slot: the columns of PG 18's pg_replication_slots under their names, then Spillway's
    own.
    """

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
    decoding: Decoding = _UNKNOWN
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
    #: Spillway's own: what the plugin made, changes and what stands around them
    total_messages: int = 0


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
    #: whether a lake has it as text, as PostgreSQL prints it
    as_text: bool = False


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
class DdlChange:
    """What DDL did to one table, in a transaction that committed."""

    source: str
    database: str
    xid: int
    #: where its transaction's commit record starts
    commit_lsn: Lsn
    committed_at: datetime
    #: counts what the transaction did, from 0 on
    number: int
    #: as docs/reference/ddl-events.md has it
    event: Mapping[str, Any]
    #: how many more the transaction did, of which nothing is noted
    more: int = 0


@dataclass(frozen=True, slots=True)
class PrimaryCost:
    """What a primary keeps for a source, as it says itself."""

    #: WAL that it keeps for our physical slot: what was written and not confirmed by us
    wal_bytes: int
    #: age in transactions of the oldest row versions that our slot holds back from vacuum; None: it
    #: holds none
    xmin_age: int | None
    catalog_xmin_age: int | None
    #: logical slots on the primary, of whoever
    logical_slots: int
