"""A slot's columns: pg_replication_slots of PostgreSQL 18 under its names, then Spillway's own.

The order is the one in which a slot is shown. Made from this table are REST's ``SlotView``, gRPC's
``Slot`` with its message in proto/, what ``spillway slot list`` and ``show`` print, the attributes
on a slot's page, the provider's data source ``spillway_slot`` and the table in
docs/reference/rest.md.

Where a column's value comes from is no matter of this table: it is the attribute of its name of
``SlotInfo`` (:mod:`spillway.service.model`), and a test holds one against the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

#: PostgreSQL's types, as a view of them would have; options are jsonb, who and how are records.
PgType = Literal[
    "name", "text", "bool", "int4", "int8", "oid", "xid", "pg_lsn", "timestamptz", "float8",
    "jsonb", "record",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class SlotColumn:
    """A column, and where it is shown."""

    name: str
    type: PgType
    #: its number in gRPC's message, which never changes and is given once; None: it is not in it
    number: int | None
    #: what it is, in a sentence: in the contract, beside its value on the page, in the provider's
    #: schema and the reference
    meaning: str
    #: what null means, where it may be null; the empty text where PostgreSQL's documentation says
    #: it, None: it is never null
    null: str | None = None
    #: gRPC has a number or text that can't be absent, and 0 or "" for null; positions are so in any
    #: case
    zero_is_null: bool = False
    #: of a number: what it counts, for those who show it to a person
    unit: Literal["", "bytes", "seconds"] = ""
    #: an answer may be without it, since it is looked up beside the slot; it is null then
    beside: bool = False
    #: its place in ``spillway slot list``, from the left; None: that does not show it
    listed: int | None = None
    #: in a narrow terminal the columns of the highest rank go first
    rank: int = 99
    #: its place among the attributes on the slot's page; None: it is elsewhere on the page
    page: int | None = 99

    @property
    def description(self) -> str:
        """What it is, and what null means."""
        return f"{self.meaning} null: {self.null}" if self.null else self.meaning


SLOT_COLUMNS: Final = (
    SlotColumn(
        "slot_name",
        "name",
        1,
        "Unique in this service; PostgreSQL's rules for names hold.",
        listed=1,
        rank=1,
        page=None,
    ),
    SlotColumn(
        "plugin",
        "name",
        2,
        "The output plugin that turns transactions into messages, at delivery.",
        listed=6,
        rank=6,
        page=4,
    ),
    SlotColumn(
        "slot_type",
        "text",
        3,
        "Always logical: the one physical slot on the primary is the source's.",
        page=25,
    ),
    SlotColumn("datoid", "oid", 4, "The database's OID on the primary.", page=3),
    SlotColumn(
        "database", "name", 5, "The database whose changes it delivers.", listed=8, rank=7, page=2
    ),
    SlotColumn(
        "temporary",
        "bool",
        6,
        "A temporary slot goes when its consumer does, or the service stops.",
        page=21,
    ),
    SlotColumn(
        "active",
        "bool",
        7,
        "Whether a consumer has it. One at a time, as in PostgreSQL.",
        listed=3,
        rank=5,
        page=15,
    ),
    SlotColumn(
        "active_pid",
        "int4",
        8,
        "The process that serves its consumer: this service's own, or that of the service that "
        "serves its source. Who that consumer is, `consumer` says.",
        null="nobody has it.",
        page=16,
    ),
    SlotColumn(
        "xmin",
        "xid",
        9,
        "The oldest transaction whose rows it protects from vacuum: none, ever.",
        null="",
        page=13,
    ),
    SlotColumn(
        "catalog_xmin",
        "xid",
        10,
        "The oldest transaction whose catalog rows it protects from vacuum: none, ever. "
        "The transaction log holds the descriptors"
        "that changes need.",
        null="",
        page=14,
    ),
    SlotColumn(
        "restart_lsn",
        "pg_lsn",
        11,
        "The oldest WAL that it needs here, not on the primary. Equal to the confirmed "
        "position: its transactions are kept decoded.",
        null="it was invalidated.",
        listed=9,
        rank=11,
        page=7,
    ),
    SlotColumn(
        "confirmed_flush_lsn",
        "pg_lsn",
        12,
        "How far its consumer has confirmed; what commits later comes next.",
        null="",
        listed=10,
        rank=9,
        page=6,
    ),
    SlotColumn(
        "wal_status",
        "text",
        13,
        "reserved: everything it needs is here. unreserved: only the directory of "
        "another service has it. lost: it was invalidated.",
        null="not known, its source is not up.",
        zero_is_null=True,
        listed=2,
        rank=2,
        page=11,
    ),
    SlotColumn(
        "safe_wal_size",
        "int8",
        14,
        "How much more may be retained before it is invalidated; unlimited unless the "
        "service has a limit.",
        null="no limit, or not known.",
        unit="bytes",
        page=10,
    ),
    SlotColumn(
        "two_phase",
        "bool",
        15,
        "Whether prepared transactions come at PREPARE TRANSACTION.",
        page=19,
    ),
    SlotColumn(
        "two_phase_at",
        "pg_lsn",
        16,
        "From where on prepared transactions come at PREPARE TRANSACTION.",
        null="they don't.",
        page=20,
    ),
    SlotColumn(
        "inactive_since",
        "timestamptz",
        17,
        "When its last consumer left, or was there last before the service was started.",
        null="a consumer has it.",
        page=18,
    ),
    SlotColumn(
        "conflicting",
        "bool",
        18,
        "Whether recovery on a standby invalidated it; never here.",
        page=24,
    ),
    SlotColumn(
        "invalidation_reason",
        "text",
        19,
        "Why its history was given up, if it was.",
        null="",
        page=12,
    ),
    SlotColumn(
        "failover",
        "bool",
        20,
        "Kept for consumers that ask; a slot is not on the primary, so a failover does "
        "not touch it.",
        page=22,
    ),
    SlotColumn(
        "synced",
        "bool",
        21,
        "Whether it was copied from another server; never here.",
        page=23,
    ),
    # Spillway's own; their numbers begin at 30, so that PostgreSQL's next columns have room.
    SlotColumn(
        "source",
        "name",
        30,
        "The PostgreSQL cluster whose WAL it comes from.",
        listed=7,
        rank=8,
        page=1,
    ),
    SlotColumn("options", "jsonb", 31, "The plugin's options, as text.", page=5),
    SlotColumn(
        "decoded_lsn",
        "pg_lsn",
        32,
        "How far the source's WAL is decoded: the furthest it could be.",
        null="not known, its source is not up.",
        listed=11,
        rank=10,
        page=8,
    ),
    SlotColumn(
        "lag_bytes",
        "int8",
        None,
        "WAL that is decoded and that its consumer has not confirmed.",
        null="unknown.",
        unit="bytes",
        beside=True,
        listed=4,
        rank=3,
        page=None,
    ),
    SlotColumn(
        "lag_seconds",
        "float8",
        None,
        "Age of the oldest transaction that is decoded and not confirmed; 0 without one.",
        null="unknown.",
        unit="seconds",
        beside=True,
        listed=5,
        rank=4,
        page=None,
    ),
    SlotColumn(
        "retained_bytes",
        "int8",
        33,
        "What the transaction log keeps for it, on this machine. The primary keeps nothing for it.",
        null="not known, its source is not up.",
        unit="bytes",
        page=9,
    ),
    SlotColumn("created_at", "timestamptz", 34, "When it was made.", page=26),
    SlotColumn(
        "consumer",
        "record",
        35,
        "Who has it: where it came from, how its program names itself, since when.",
        null="nobody.",
        page=None,
    ),
    SlotColumn(
        "decoding",
        "record",
        36,
        "How the decoding stands that it reads from, and since when.",
        page=None,
    ),
    SlotColumn(
        "confirmed_at",
        "timestamptz",
        37,
        "When a confirmation last moved it. It outlives a restart.",
        null="never.",
        page=17,
    ),
)


def listed_columns() -> tuple[SlotColumn, ...]:
    """Return what a list of slots shows, from the left."""
    found = [column for column in SLOT_COLUMNS if column.listed is not None]
    return tuple(sorted(found, key=lambda column: column.listed or 0))


def page_columns() -> tuple[SlotColumn, ...]:
    """Return the attributes that a slot's page shows, from the top."""
    found = [column for column in SLOT_COLUMNS if column.page is not None]
    return tuple(sorted(found, key=lambda column: column.page or 0))
