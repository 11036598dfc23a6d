"""What the engine and the subscriber tell, as protobuf messages."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.timestamp_pb2 import Timestamp

from spillway.declarations.slot_columns import SLOT_COLUMNS, PgType, SlotColumn
from spillway.pg.lsn import Lsn
from spillway.v1 import slots_pb2, subscriptions_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from spillway.service.model import (
        Change,
        Consumer,
        DatabaseSession,
        Decoding,
        PublicationInfo,
        SlotInfo,
        SlotSnapshot,
        SlotStats,
        SourceInfo,
        TableInfo,
    )
    from spillway.subscriber.model import (
        Failure,
        LastBatch,
        SubscriptionInfo,
        TableResync,
        TableState,
        Verification,
    )
    from spillway.subscriber.stats import SubscriptionStats


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
        created_at=timestamp(source.created_at),
        error=source.error,
        error_code=source.error_code,
        hint=source.hint,
        capture=slots_pb2.Capture(**source.capture),
        since=timestamp(source.since),
        heard_at=timestamp(source.heard_at),
    )


def _session_message(session: DatabaseSession) -> slots_pb2.DecodingSession:
    return slots_pb2.DecodingSession(
        database=session.database,
        datoid=session.datoid,
        snapshot_state=session.snapshot_state,
        log_damaged=session.log_damaged,
        decoded_lsn=session.decoded_lsn or 0,
        restart_lsn=session.restart_lsn or 0,
        error=session.error,
        error_code=session.error_code,
        hint=session.hint,
        state=session.state,
        since=timestamp(session.since),
    )


def slot_message(slot: SlotInfo) -> slots_pb2.Slot:
    """Make a Slot; its fields are the columns that have a number."""
    values = {
        column.name: _column_value(column, getattr(slot, column.name))
        for column in SLOT_COLUMNS
        if column.number is not None
    }
    return slots_pb2.Slot(**values)


def _column_value(column: SlotColumn, value: Any) -> Any:
    """Give a column's value as a message has it."""
    if value is None:
        return _ZEROS[column.type] if column.zero_is_null or column.type == "pg_lsn" else None
    if column.type == "record":
        return _RECORDS[column.name](value)
    return _FORMS.get(column.type, lambda same: same)(value)


def consumer_message(consumer: Consumer) -> slots_pb2.Consumer:
    """Make a Consumer."""
    return slots_pb2.Consumer(
        kind=consumer.kind,
        address=consumer.address,
        client=consumer.client,
        subscription=consumer.subscription,
        since=timestamp(consumer.since),
        last_feedback_at=timestamp(consumer.last_feedback_at),
        sent_lsn=consumer.sent_lsn or 0,
        protocol=consumer.protocol,
        user=consumer.user,
    )


def decoding_message(decoding: Decoding) -> slots_pb2.Decoding:
    """Make a Decoding."""
    return slots_pb2.Decoding(
        state=decoding.state,
        decoded_lsn=decoding.decoded_lsn or 0,
        since=timestamp(decoding.since),
        error=decoding.error,
        error_code=decoding.error_code,
        hint=decoding.hint,
    )


def snapshot_message(snapshot: SlotSnapshot) -> slots_pb2.Snapshot:
    """Make a Snapshot."""
    return slots_pb2.Snapshot(
        slot_name=snapshot.slot_name,
        snapshot_name=snapshot.snapshot_name,
        consistent_point=snapshot.consistent_point,
        contents=snapshot.contents,
        method=snapshot.method,
        attempts=snapshot.attempts,
        reason=snapshot.reason,
        taken_at=timestamp(snapshot.taken_at),
        held_until=timestamp(snapshot.held_until),
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
        stats_reset=timestamp(stats.stats_reset),
    )


def change_message(change: Change) -> slots_pb2.Change:
    """Make a Change."""
    return slots_pb2.Change(
        lsn=change.lsn, xid=change.xid, data=change.data, data_bytes=change.data_bytes or b""
    )


def table_message(table: TableInfo) -> slots_pb2.Table:
    """Make a Table."""
    return slots_pb2.Table(
        schema=table.schema,
        name=table.name,
        kind=table.kind,
        partition_of=table.partition_of,
        replica_identity=table.replica_identity,
        primary_key=table.primary_key,
        identity_columns=table.identity_columns,
        columns=[
            slots_pb2.TableColumn(
                name=column.name,
                type=column.type,
                not_null=column.not_null,
                generated=column.generated,
            )
            for column in table.columns
        ],
        publications=table.publications,
        captured=table.captured,
        warnings=table.warnings,
    )


def publication_message(publication: PublicationInfo) -> slots_pb2.Publication:
    """Make a Publication."""
    return slots_pb2.Publication(
        name=publication.name,
        all_tables=publication.all_tables,
        publish_insert=publication.insert,
        publish_update=publication.update,
        publish_delete=publication.delete,
        publish_truncate=publication.truncate,
        via_root=publication.via_root,
        tables=[
            slots_pb2.PublishedTable(
                schema=table.schema,
                name=table.name,
                columns=table.columns or (),
                all_columns=table.columns is None,
                has_row_filter=table.has_row_filter,
                row_filter=table.row_filter,
            )
            for table in publication.tables
        ],
        schemas=publication.schemas,
    )


def subscription_message(subscription: SubscriptionInfo) -> subscriptions_pb2.Subscription:
    """Make a Subscription."""
    failure = subscription.error
    message = subscriptions_pb2.Subscription(
        name=subscription.name,
        source=subscription.source,
        database=subscription.database,
        slot=subscription.slot,
        tables=names_message(subscription.tables),
        publications=names_message(subscription.publications),
        enabled=subscription.enabled,
        copy_data=subscription.copy_data,
        origin=subscription.origin,
        streaming=subscription.streaming,
        two_phase=subscription.two_phase,
        options=dict(subscription.options),
        state=str(subscription.state),
        error=_failure_message(failure),
        confirmed_flush_lsn=subscription.confirmed_flush_lsn or 0,
        lag_bytes=subscription.lag_bytes,
        lag_seconds=subscription.lag_seconds,
        rows=subscription.rows,
        restarts=subscription.restarts,
        pid=subscription.pid,
        table_states=[_table_message(table) for table in subscription.table_states],
        told_at=timestamp(subscription.told_at),
        notes=subscription.notes,
        last_batch=_batch_message(subscription.last_batch),
        verification=_verification_message(subscription.verification),
        created_at=timestamp(subscription.created_at),
    )
    target: dict[str, Any] = dict(subscription.target)
    message.target.update(target)
    return message


def subscription_stats_message(stats: SubscriptionStats) -> subscriptions_pb2.SubscriptionStats:
    """Make a SubscriptionStats."""
    forms: dict[str, Callable[[Any], Any]] = {
        "tables": lambda tables: map(_table_message, tables),
        "table_conflicts": lambda found: [
            subscriptions_pb2.TableConflicts(table=one.table, kind=one.kind, count=one.count)
            for one in found
        ],
        **dict.fromkeys(_STATS_LSNS, lambda text: Lsn.parse(text) if text else 0),
        **dict.fromkeys(_STATS_TIMES, timestamp),
    }
    values = {field.name: getattr(stats, field.name) for field in fields(stats)}
    formed = {name: forms[name](v) if name in forms else v for name, v in values.items()}
    return subscriptions_pb2.SubscriptionStats(**formed)


def _failure_message(failure: Failure | None) -> subscriptions_pb2.SubscriptionFailure | None:
    if failure is None:
        return None
    return subscriptions_pb2.SubscriptionFailure(
        code=failure.code, message=failure.message, hint=failure.hint
    )


def _verification_message(found: Verification | None) -> subscriptions_pb2.Verification | None:
    if found is None:
        return None
    return subscriptions_pb2.Verification(
        state=found.state,
        began_at=timestamp(found.began_at),
        ended_at=timestamp(found.ended_at),
        lsn=found.lsn or 0,
        tables=[subscriptions_pb2.VerifiedTable(**asdict(table)) for table in found.tables],
        error=_failure_message(found.error),
    )


def _batch_message(batch: LastBatch | None) -> subscriptions_pb2.LastBatch | None:
    if batch is None:
        return None
    return subscriptions_pb2.LastBatch(
        ended_at=timestamp(batch.ended_at),
        seconds=batch.seconds,
        changes=batch.changes,
        tables=batch.tables,
        from_lsn=batch.from_lsn,
        to_lsn=batch.to_lsn,
    )


def _table_message(table: TableState) -> subscriptions_pb2.SubscribedTable:
    return subscriptions_pb2.SubscribedTable(
        table=table.table,
        state=table.state,
        changes=table.changes,
        bytes_copied=table.bytes_copied,
        bytes_total=table.bytes_total,
        reason=table.reason,
        sync_state=table.sync_state,
        written_alone=table.written_alone,
        changes_per_second=table.changes_per_second,
        bytes_per_second=table.bytes_per_second,
        seconds_left=table.seconds_left,
        rows=table.rows,
        files=table.files,
        bytes=table.bytes,
        deleted_rows=table.deleted_rows,
        deleted_share=table.deleted_share,
        bytes_rewritten=table.bytes_rewritten,
        figures_at=timestamp(table.figures_at),
        newest_change_at=timestamp(table.newest_change_at),
        waiting_since=timestamp(table.waiting_since),
        resync=_resync_message(table.resync),
    )


def _resync_message(resync: TableResync | None) -> subscriptions_pb2.TableResync | None:
    if resync is None:
        return None
    return subscriptions_pb2.TableResync(
        state=resync.state,
        asked_at=timestamp(resync.asked_at),
        ended_at=timestamp(resync.ended_at),
        lsn=resync.lsn or 0,
        reason=resync.reason,
    )


def names_message(names: Sequence[str] | None) -> subscriptions_pb2.Names | None:
    """Make Names; None is a field that is not set."""
    return None if names is None else subscriptions_pb2.Names(names=names)


def timestamp(moment: datetime | None) -> Timestamp | None:
    """Make a Timestamp; None is a field that is not set."""
    if moment is None:
        return None
    made = Timestamp()
    made.FromDatetime(moment)
    return made


_STATS_LSNS: Final = ("received_lsn", "latest_end_lsn", "applied_lsn", "flushed_lsn")
_STATS_TIMES: Final = (
    "last_msg_send_time", "last_msg_receipt_time", "latest_end_time", "told_at",
)  # fmt: skip
#: What can't be absent in a message has these for null.
_ZEROS: Final[dict[PgType, object]] = {
    "name": "", "text": "", "bool": False, "int4": 0, "int8": 0, "oid": 0, "xid": 0, "pg_lsn": 0,
    "float8": 0.0,
}  # fmt: skip
_FORMS: Final[dict[PgType, Callable[[Any], Any]]] = {"timestamptz": timestamp, "jsonb": dict}
_RECORDS: Final[dict[str, Callable[[Any], Any]]] = {
    "consumer": consumer_message,
    "decoding": decoding_message,
}
