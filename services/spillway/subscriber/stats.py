"""What pg_stat_subscription and pg_stat_subscription_stats say of a subscription, by their names,
and more: made from :class:`~spillway.subscriber.model.SubscriptionInfo`, for REST, gRPC and
commands.

Counts of conflicts are there for each of PostgreSQL's kinds, 0 too; of a target that knows no
conflicts they are 0. What a program has not told of is None.

Source: pg_stat_subscription, pg_stat_subscription_stats (src/backend/catalog/system_views.sql)
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spillway.subscriber.model import SubscriptionInfo, TableState

#: Of PostgreSQL 19, in the order of its view.
CONFLICT_KINDS: Final = (
    "insert_exists", "update_origin_differs", "update_exists", "update_deleted",
    "update_missing", "delete_origin_differs", "delete_missing", "multiple_unique_conflicts",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableConflicts:
    """How many conflicts of a kind a table had."""

    #: ``schema.table`` on the target; "" for tables beyond those that are counted one by one
    table: str
    kind: str
    count: int


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """The statistics of one subscription."""

    subname: str
    pid: int | None
    received_lsn: str | None
    last_msg_send_time: datetime | None
    last_msg_receipt_time: datetime | None
    latest_end_lsn: str | None
    latest_end_time: datetime | None
    #: written on the target
    applied_lsn: str | None
    #: durable there
    flushed_lsn: str | None
    lag_bytes: int | None
    lag_seconds: float | None
    apply_error_count: int
    sync_error_count: int
    confl_insert_exists: int
    confl_update_origin_differs: int
    confl_update_exists: int
    confl_update_deleted: int
    confl_update_missing: int
    confl_delete_origin_differs: int
    confl_delete_missing: int
    confl_multiple_unique_conflicts: int
    #: of the conflicts that were counted, those that are kept no more
    conflicts_dropped: int
    #: conflicts in no count: overwritten before the service could read them
    conflicts_missed: int
    table_conflicts: tuple[TableConflicts, ...]
    tables: tuple[TableState, ...]
    #: changes a second of all tables together
    changes_per_second: float | None
    #: when the program last told of itself: all but lag and conflicts is as of then
    told_at: datetime | None


def stats_of(info: SubscriptionInfo) -> SubscriptionStats:
    """Return the statistics."""
    told, conflicts = info.stats, info.conflicts
    kinds = conflicts.by_kind
    rates = [t.changes_per_second for t in info.table_states if t.changes_per_second is not None]

    def text(name: str) -> str | None:
        value = told.get(name)
        return None if value is None else str(value)

    def time(name: str) -> datetime | None:
        value = told.get(name)
        try:
            return datetime.fromisoformat(str(value)) if value else None
        except ValueError:
            return None

    def count(name: str) -> int:
        value = told.get(name)
        return value if isinstance(value, int) else 0

    return SubscriptionStats(
        subname=info.name,
        pid=info.pid,
        received_lsn=text("received_lsn"),
        last_msg_send_time=time("last_msg_send_time"),
        last_msg_receipt_time=time("last_msg_receipt_time"),
        latest_end_lsn=text("latest_end_lsn"),
        latest_end_time=time("latest_end_time"),
        applied_lsn=text("applied_lsn"),
        flushed_lsn=text("flushed_lsn"),
        lag_bytes=info.lag_bytes,
        lag_seconds=info.lag_seconds,
        apply_error_count=count("apply_error_count"),
        sync_error_count=count("sync_error_count"),
        **{f"confl_{kind}": kinds.get(kind, 0) for kind in CONFLICT_KINDS},
        conflicts_dropped=conflicts.dropped,
        conflicts_missed=conflicts.missed,
        table_conflicts=tuple(
            TableConflicts(table, kind, number)
            for (table, kind), number in sorted(conflicts.counts.items())
        ),
        tables=info.table_states,
        changes_per_second=sum(rates) if rates else None,
        told_at=info.told_at,
    )
