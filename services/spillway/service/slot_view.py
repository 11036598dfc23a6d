"""A slot as it is shown: the columns of PostgreSQL's views, of what delivery knows of it and of how
its session stands.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from spillway.service.model import Decoding, SlotInfo, SlotStats

if TYPE_CHECKING:
    from spillway.delivery.slots import Slot


def describe(
    slot: Slot, *, decoding: Decoding, retained_bytes: int | None, safe_bytes: int | None
) -> SlotInfo:
    """Describe the slot with PostgreSQL 18's columns.

    What is not known while the source is not up is None.

    ``restart_lsn`` equals ``confirmed_flush_lsn``, and ``catalog_xmin`` is null: the transaction
    log holds whole transactions with the descriptors they need, so a slot keeps neither older WAL
    nor old catalog rows.
    """
    row, lost, consumer = slot.row, slot.invalidation_reason is not None, slot.consumer
    kept = None if retained_bytes is None else "reserved"
    if slot.is_elsewhere:
        kept = "unreserved"
    return SlotInfo(
        slot_name=row.slot_name,
        plugin=row.plugin,
        slot_type="logical",
        datoid=row.datoid,
        database=row.database,
        temporary=row.temporary,
        active=consumer is not None,
        # As in PostgreSQL, the process that serves the consumer; ``consumer`` says who that is.
        active_pid=row.active_pid if slot.is_shown_as_stored else os.getpid() if consumer else None,
        xmin=None,
        catalog_xmin=None,
        restart_lsn=None if lost else slot.confirmed_flush_lsn,
        confirmed_flush_lsn=slot.confirmed_flush_lsn,
        wal_status="lost" if lost else kept,
        safe_wal_size=None if lost else safe_bytes,
        two_phase=row.two_phase,
        two_phase_at=row.two_phase_at,
        inactive_since=None if consumer else slot.inactive_since,
        conflicting=False,
        invalidation_reason=slot.invalidation_reason,
        failover=row.failover,
        synced=False,
        source=row.source,
        options=row.options,
        decoded_lsn=decoding.decoded_lsn,
        retained_bytes=retained_bytes,
        created_at=row.created_at,
        consumer=consumer,
        decoding=decoding,
        confirmed_at=slot.confirmed_at,
    )


def statistics(slot: Slot, spill_txns: int, spill_count: int, spill_bytes: int) -> SlotStats:
    """Describe the slot as pg_stat_replication_slots does; spilling is the shared session's."""
    return SlotStats(
        slot_name=slot.name,
        spill_txns=spill_txns,
        spill_count=spill_count,
        spill_bytes=spill_bytes,
        stream_txns=slot.counts.stream_txns,
        stream_count=slot.counts.stream_count,
        stream_bytes=slot.counts.stream_bytes,
        total_txns=slot.counts.total_txns,
        total_bytes=slot.counts.total_bytes,
        stats_reset=None,
        total_messages=slot.counts.total_messages,
    )
