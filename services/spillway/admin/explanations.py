"""What each attribute of a slot means, in a sentence: shown beside its value."""

from __future__ import annotations

from typing import Final

#: attribute of :class:`spillway.engine.model.SlotInfo` or ``SlotStats`` to its meaning
SLOT: Final[dict[str, str]] = {
    "slot_name": "Unique in this service; PostgreSQL's rules for names hold.",
    "plugin": "The output plugin that turns transactions into messages, at delivery.",
    "slot_type": "Always logical: the one physical slot on the primary is the source's.",
    "datoid": "The database's OID on the primary.",
    "database": "The database whose changes it delivers.",
    "source": "The PostgreSQL cluster whose WAL it comes from.",
    "temporary": "A temporary slot goes when its consumer does, or the service stops.",
    "active": "Whether a consumer has it. One at a time, as in PostgreSQL.",
    "active_pid": "The process that serves its consumer: this service's own, or that of the service that serves its source. Who the consumer is stands above.",
    "xmin": "The oldest transaction whose rows it protects from vacuum: none, ever.",
    "catalog_xmin": "The oldest transaction whose catalog rows it protects from vacuum: none, ever. "
    "The transaction log holds the descriptors that changes need.",
    "restart_lsn": "The oldest WAL that it needs. Equal to the confirmed position: its transactions are kept decoded.",
    "confirmed_flush_lsn": "How far its consumer has confirmed; what commits later comes next.",
    "decoded_lsn": "How far the source's WAL is decoded: the furthest it could be.",
    "wal_status": "reserved: everything it needs is here. lost: it was invalidated. null: its source is not up.",
    "safe_wal_size": "How much more may be retained before it is invalidated; unlimited unless the service has a limit.",
    "retained_bytes": "What the transaction log keeps for it, on this machine. The primary keeps nothing for it.",
    "two_phase": "Whether prepared transactions come at PREPARE TRANSACTION.",
    "two_phase_at": "From where on they do.",
    "inactive_since": "When its last consumer left, or was there last before the service was started.",
    "confirmed_at": "When a confirmation last moved it.",
    "conflicting": "Whether recovery on a standby invalidated it; never here.",
    "invalidation_reason": "Why its history was given up, if it was.",
    "failover": "Kept for consumers that ask; a slot is not on the primary, so a failover does not touch it.",
    "synced": "Whether it was copied from another server; never here.",
    "options": "The plugin's options, as text.",
    "created_at": "When it was made.",
    "consumer": "Who has it: where it came from, how its program names itself, since when.",
    "decoding": "How the decoding stands that it reads from, and since when.",
    "total_txns": "Transactions delivered since the service started.",
    "total_bytes": "Bytes of messages delivered since the service started.",
    "spill_txns": "Transactions that went to disk while they were decoded; one decoding serves all slots of a database.",
    "spill_count": "How often that happened.",
    "spill_bytes": "Bytes that went to disk.",
    "stream_txns": "Large transactions that were delivered while in progress.",
    "stream_count": "Parts in which that was done.",
    "stream_bytes": "Bytes of those parts.",
}
