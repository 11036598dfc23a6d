"""What the program tells of itself: the status file of every consumer, and in it what
pg_stat_subscription and pg_stat_subscription_stats say of a worker of PostgreSQL's, by their names.

Counts of errors and conflicts go on from what the file says when the program starts.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from spillway.apply.sync.states import SyncState
from spillway.consumer.status_file import StatusFile
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path
    from types import TracebackType

    from spillway.apply.changes import Touched
    from spillway.apply.conflicts.log import ConflictFile
    from spillway.apply.grouped.writer import GroupedWriter
    from spillway.apply.stream import ArrivingChanges
    from spillway.apply.sync.states import TableName, TableState
    from spillway.apply.sync.table_sync import TableSync
    from spillway.apply.target.session import TargetSession

_LOOK_S: Final = 0.5
#: pg_subscription_rel's states, as a status file has them.
_STATES: Final = {
    SyncState.INIT: "waiting",
    SyncState.DATA_SYNC: "copying",
    SyncState.FINISHED_COPY: "copying",
    SyncState.SYNC_DONE: "ready",
    SyncState.READY: "ready",
}


class ApplyStatusFile(StatusFile):
    """See the module; changed on the worker's thread."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with self.changing() as told:
            self._before = dict(told.stats)
        self._looked_at = 0.0
        self._flushed = Lsn(0)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and isinstance(error, Exception):
            self.failed_once()
        super().__exit__(kind, error, traceback)

    def failed_once(self) -> None:
        """Count an error of applying, whatever becomes of it."""
        with self.changing() as told:
            told.stats["apply_error_count"] = int(told.stats.get("apply_error_count") or 0) + 1
            told.urgent = True

    def wrote(self, touched: Iterable[Touched], selected: Iterable[bool]) -> None:
        """Count what was committed, of those tables that are the subscription's."""
        with self.changing() as told:
            for table, counts in zip(touched, selected, strict=True):
                if counts:
                    changes = table.inserts + table.updates + table.deletes + table.truncates
                    name = f"{table.relation.schema}.{table.relation.name}"
                    told.table(name).changes += changes
                    told.changes += changes

    def copied(self, tables: Mapping[TableName, TableState]) -> None:
        """Tell how far tables are copied."""
        with self.changing() as told:
            known = {table.name for table in tables.values()}
            for name in [name for name in told.tables if name not in known]:
                del told.tables[name]
            failed = 0
            for table in tables.values():
                one = told.table(table.name)
                state, reason = _STATES[table.state], table.error or None
                failed += reason is not None and reason != one.reason
                one.state, one.reason, one.bytes_total = state, reason, table.bytes_total
                one.bytes_copied = table.bytes if table.bytes_total is not None else None
            if failed:
                stats = told.stats
                stats["sync_error_count"] = int(stats.get("sync_error_count") or 0) + failed

    def looked(
        self,
        session: TargetSession,
        stream: ArrivingChanges,
        conflicts: ConflictFile,
        sync: TableSync | None,
        grouped: GroupedWriter,
    ) -> None:
        """Tell where the worker is, if the last time was a while ago."""
        if time.monotonic() - self._looked_at < _LOOK_S:
            return
        self._looked_at = time.monotonic()
        if sync is not None:
            self.copied(sync.progress())
        with self.changing() as told:
            stats = told.stats
            stats["received_lsn"] = str(stream.received_lsn)
            stats["latest_end_lsn"] = str(stream.wal_end)
            stats["applied_lsn"] = str(session.position)
            stats["flushed_lsn"] = str(session.flushed_lsn)
            stats["last_msg_send_time"] = _time(stream.sent_at)
            stats["last_msg_receipt_time"] = _time(stream.received_at)
            stats["latest_end_time"] = _time(stream.sent_at)
            stats |= self._conflicts(conflicts)
            stats["groups_declined"] = grouped.declined
            stats["why_declined"] = grouped.why_declined or None
            if sync is not None:
                stats |= _of_sync(sync)

    def _conflicts(self, conflicts: ConflictFile) -> dict[str, int]:
        counts: dict[str, int] = {}
        for (_, kind), count in conflicts.counts.items():
            name = f"confl_{kind}"
            counts[name] = counts.get(name, int(self._before.get(name) or 0)) + count
        return counts


def _of_sync(sync: TableSync) -> dict[str, Any]:
    """What became of tables that the target lacked, and of sequences."""
    found: dict[str, Any] = {
        "tables_made_by": sync.missing.made_by or None,
        "not_made": dict(sync.missing.not_made) or None,
    }
    if (sequences := sync.sequences) is not None:
        found["sequences_synchronized_at"] = _time(sequences.at)
        found["sequences_failed"] = dict(sequences.failed) or None
    return found


def _time(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat() if seconds else None
