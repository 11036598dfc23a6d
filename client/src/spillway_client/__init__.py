"""Spillway's client: a replication slot's transactions as Python objects.

::

    from spillway_client import Slot

    with Slot("127.0.0.1:50051", "audit", publications=["audit"]) as slot:
        for tx in slot:
            for change in tx.changes:
                print(tx.commit_lsn, change.kind, change.table, change.old, change.new)

It needs grpcio and protobuf, and nothing of the service. The parts, from the wire up::

    _v1            the messages of proto/spillway/v1
    service        addresses, TLS, what the service's errors mean
    pgoutput       PostgreSQL's logical replication messages
    values         a value's text as a Python value
    arrow          Arrow batches
    transaction    a transaction and its changes
    assembly       messages → transactions
    follower       positions, retries: what slot and aio share
    slot, aio      the slot for threads, and for asyncio
    position       exactly once: the position in the user's own transaction
    snapshot       what to copy before the slot is followed
"""

from spillway_client.aio import AsyncSlot
from spillway_client.arrow import Batch
from spillway_client.errors import (
    ConflictingPublications,
    ConversionFailed,
    InvalidOption,
    InvalidUse,
    LeaseLost,
    LsnNotRetained,
    MalformedMessage,
    PositionConflict,
    ServiceError,
    SessionEnded,
    SlotActive,
    SlotAhead,
    SlotInvalidated,
    SpillwayError,
    TlsFailed,
    TransactionTooLarge,
    Unauthenticated,
    Unavailable,
    UnknownPublication,
    UnknownSlot,
    ValueNotRepresentable,
    WrongPlugin,
)
from spillway_client.lsn import Lsn
from spillway_client.pgoutput import UNCHANGED, Change, Column, Relation
from spillway_client.position import AsyncPosition, Position
from spillway_client.service import Tls
from spillway_client.slot import Slot
from spillway_client.snapshot import Snapshot, exported_snapshot
from spillway_client.transaction import Changes, Progress, Transaction
from spillway_client.values import PgText, parse_array
from spillway_client.version import VERSION

__version__ = VERSION

__all__ = [
    "UNCHANGED",
    "AsyncPosition",
    "AsyncSlot",
    "Batch",
    "Change",
    "Changes",
    "Column",
    "ConflictingPublications",
    "ConversionFailed",
    "InvalidOption",
    "InvalidUse",
    "LeaseLost",
    "Lsn",
    "LsnNotRetained",
    "MalformedMessage",
    "PgText",
    "Position",
    "PositionConflict",
    "Progress",
    "Relation",
    "ServiceError",
    "SessionEnded",
    "Slot",
    "SlotActive",
    "SlotAhead",
    "SlotInvalidated",
    "Snapshot",
    "SpillwayError",
    "Tls",
    "TlsFailed",
    "Transaction",
    "TransactionTooLarge",
    "Unauthenticated",
    "Unavailable",
    "UnknownPublication",
    "UnknownSlot",
    "ValueNotRepresentable",
    "WrongPlugin",
    "__version__",
    "exported_snapshot",
    "parse_array",
]
