"""Sources and slots as protobuf messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.timestamp_pb2 import Timestamp

from spillway.stream._generated import slots_pb2

if TYPE_CHECKING:
    from datetime import datetime

    from spillway.engine.model import (
        Change,
        Consumer,
        DatabaseSession,
        Decoding,
        SlotInfo,
        SlotStats,
        SourceInfo,
    )


def source_message(source: SourceInfo) -> slots_pb2.Source:
    """Make a Source."""
    return slots_pb2.Source(
        name=source.name,
        dsn=source.dsn,
        system_id=source.system_id,
        server_version_num=source.server_version_num,
        timeline=source.timeline,
        wal_segment_size=source.wal_segment_size,
        slot_name=source.slot_name,
        state=source.state,
        received_lsn=source.received_lsn or 0,
        flushed_lsn=source.flushed_lsn or 0,
        sessions=[_session_message(session) for session in source.sessions],
        created_at=_timestamp(source.created_at),
        error=source.error,
        error_code=source.error_code,
        hint=source.hint,
        capture=slots_pb2.Capture(**source.capture),
        since=_timestamp(source.since),
        heard_at=_timestamp(source.heard_at),
    )


def _session_message(session: DatabaseSession) -> slots_pb2.DecodingSession:
    return slots_pb2.DecodingSession(
        database=session.database,
        datoid=session.datoid,
        snapshot_state=session.snapshot_state,
        decoded_lsn=session.decoded_lsn or 0,
        restart_lsn=session.restart_lsn or 0,
        error=session.error,
        error_code=session.error_code,
        hint=session.hint,
        state=session.state,
        since=_timestamp(session.since),
    )


def slot_message(slot: SlotInfo) -> slots_pb2.Slot:
    """Make a Slot."""
    return slots_pb2.Slot(
        slot_name=slot.slot_name,
        plugin=slot.plugin,
        slot_type=slot.slot_type,
        datoid=slot.datoid,
        database=slot.database,
        temporary=slot.temporary,
        active=slot.active,
        active_pid=slot.active_pid,
        xmin=slot.xmin,
        catalog_xmin=slot.catalog_xmin,
        restart_lsn=slot.restart_lsn or 0,
        confirmed_flush_lsn=slot.confirmed_flush_lsn or 0,
        wal_status=slot.wal_status or "",
        safe_wal_size=slot.safe_wal_size,
        two_phase=slot.two_phase,
        two_phase_at=slot.two_phase_at or 0,
        inactive_since=_timestamp(slot.inactive_since),
        conflicting=slot.conflicting,
        invalidation_reason=slot.invalidation_reason,
        failover=slot.failover,
        synced=slot.synced,
        source=slot.source,
        options=dict(slot.options),
        decoded_lsn=slot.decoded_lsn or 0,
        retained_bytes=slot.retained_bytes,
        created_at=_timestamp(slot.created_at),
        consumer=None if slot.consumer is None else consumer_message(slot.consumer),
        decoding=decoding_message(slot.decoding),
        confirmed_at=_timestamp(slot.confirmed_at),
    )


def consumer_message(consumer: Consumer) -> slots_pb2.Consumer:
    """Make a Consumer."""
    return slots_pb2.Consumer(
        kind=consumer.kind,
        address=consumer.address,
        client=consumer.client,
        subscription=consumer.subscription,
        since=_timestamp(consumer.since),
        last_feedback_at=_timestamp(consumer.last_feedback_at),
        sent_lsn=consumer.sent_lsn or 0,
    )


def decoding_message(decoding: Decoding) -> slots_pb2.Decoding:
    """Make a Decoding."""
    return slots_pb2.Decoding(
        state=decoding.state,
        decoded_lsn=decoding.decoded_lsn or 0,
        since=_timestamp(decoding.since),
        error=decoding.error,
        error_code=decoding.error_code,
        hint=decoding.hint,
    )


def stats_message(stats: SlotStats) -> slots_pb2.SlotStats:
    """Make a SlotStats."""
    return slots_pb2.SlotStats(
        slot_name=stats.slot_name,
        spill_txns=stats.spill_txns,
        spill_count=stats.spill_count,
        spill_bytes=stats.spill_bytes,
        stream_txns=stats.stream_txns,
        stream_count=stats.stream_count,
        stream_bytes=stats.stream_bytes,
        total_txns=stats.total_txns,
        total_bytes=stats.total_bytes,
        stats_reset=_timestamp(stats.stats_reset),
    )


def change_message(change: Change) -> slots_pb2.Change:
    """Make a Change."""
    return slots_pb2.Change(lsn=change.lsn, xid=change.xid, data=change.data)


def _timestamp(moment: datetime | None) -> Timestamp | None:
    if moment is None:
        return None
    timestamp = Timestamp()
    timestamp.FromDatetime(moment)
    return timestamp
