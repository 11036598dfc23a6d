"""What the program tells of itself: the status file of every consumer, and in it what
pg_stat_subscription and pg_stat_subscription_stats say of a worker of PostgreSQL's, by their names.

Counts of errors go on from what the file says when the program starts. Conflicts are counted where
they are kept, in the service's metadata store.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from spillway.apply.sync.states import SyncState
from spillway.consumer.status_file import StatusFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path
    from types import TracebackType

    from spillway.apply.changes import Touched
    from spillway.apply.grouped.writer import GroupedWriter
    from spillway.apply.stream import ArrivingChanges
    from spillway.apply.sync.states import TableName
    from spillway.apply.sync.table_sync import TableSync
    from spillway.apply.tables.target_tables import TargetTables
    from spillway.apply.target.session import TargetSession

_LOOK_S: Final = 0.5
_EXPLAIN_S: Final = 5.0
#: of what could not be made on the target, so many are told
_NOT_MADE_MAX: Final = 100
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

    def __init__(self, path: Path | None) -> None:
        super().__init__(path)
        with self.changing() as told:
            # Of an earlier release, which counted here.
            told.stats = {k: v for k, v in told.stats.items() if not k.startswith("confl_")}
            # Of a program that was killed meanwhile.
            told.stats.pop("waits_for_tables", None)
        self._looked_at = self._explained_at = 0.0

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

    def schema_change(self, event: Mapping[str, Any] | None) -> None:
        """Tell of the event of DDL in front of which the worker pauses; None: it went on."""
        with self.changing() as told:
            if event is not None:
                told.stats["schema_change"] = dict(event)
                told.urgent = True
            elif "schema_change" in told.stats:
                del told.stats["schema_change"]

    def waits_for_tables(self, tables: Iterable[TableName]) -> None:
        """Tell which tables have to catch up before the worker goes on; none: it goes on."""
        names = sorted(".".join(name) for name in tables)
        with self.changing() as told:
            if names:
                told.stats["waits_for_tables"] = names
            else:
                told.stats.pop("waits_for_tables", None)

    def wrote(self, touched: Iterable[Touched], selected: Iterable[bool]) -> None:
        """Count what was committed, of those tables that are the subscription's."""
        with self.changing() as told:
            for table, counts in zip(touched, selected, strict=True):
                if counts:
                    changes = table.inserts + table.updates + table.deletes + table.truncates
                    name = f"{table.relation.schema}.{table.relation.name}"
                    told.table(name).changes += changes
                    told.changes += changes

    def copied(self, sync: TableSync) -> None:
        """Tell how far tables are copied, and with that who made them: who reads that one is ready
        reads the other, too.
        """
        tables = sync.progress()
        with self.changing() as told:
            known = {table.name for table in tables.values()}
            for name in [name for name in told.tables if name not in known]:
                del told.tables[name]
            failed = 0
            for table in tables.values():
                one = told.table(table.name)
                state, reason = _STATES[table.state], table.error or None
                if table.is_set_aside:
                    state = "quarantined"
                failed += reason is not None and reason != one.reason
                one.state, one.reason, one.bytes_total = state, reason, table.bytes_total
                one.sync_state = table.state.value
                one.bytes_copied = table.bytes if table.bytes_total is not None else None
            stats = told.stats
            if failed:
                stats["sync_error_count"] = int(stats.get("sync_error_count") or 0) + failed
            stats |= _of_sync(sync)

    def looked(
        self,
        session: TargetSession,
        stream: ArrivingChanges,
        sync: TableSync | None,
    ) -> None:
        """Tell where the worker is, if the last time was a while ago."""
        if time.monotonic() - self._looked_at < _LOOK_S:
            return
        self._looked_at = time.monotonic()
        if sync is not None:
            self.copied(sync)
        with self.changing() as told:
            stats = told.stats
            stats["received_lsn"] = str(stream.received_lsn)
            stats["latest_end_lsn"] = str(stream.wal_end)
            stats["applied_lsn"] = str(session.position)
            stats["flushed_lsn"] = str(session.flushed_lsn)
            stats["last_msg_send_time"] = _time(stream.sent_at)
            stats["last_msg_receipt_time"] = _time(stream.received_at)
            stats["latest_end_time"] = _time(stream.sent_at)

    def explain(self, tables: TargetTables, grouped: GroupedWriter) -> None:
        """Tell why tables are not written in groups, if the last time was a while ago."""
        if time.monotonic() - self._explained_at < _EXPLAIN_S:
            return
        self._explained_at = time.monotonic()
        alone = {}
        for relation_id, table in tables.matched().items():
            relation = tables.relation(relation_id)
            if why := table.not_groupable:
                alone[f"{relation.schema}.{relation.name}"] = why
        with self.changing() as told:
            for name, one in told.tables.items():
                one.written_alone = alone.get(name)
            told.stats["groups_declined"] = grouped.declined
            told.stats["why_declined"] = grouped.why_declined or None


def _of_sync(sync: TableSync) -> dict[str, Any]:
    """What became of tables that the target lacked, and of sequences."""
    found: dict[str, Any] = {
        "tables_made_by": sync.missing.made_by or None,
        "not_made": dict(islice(sync.missing.not_made.items(), _NOT_MADE_MAX)) or None,
    }
    if (sequences := sync.sequences) is not None:
        found["sequences_synchronized_at"] = _time(sequences.at)
        found["sequences_failed"] = dict(sequences.failed) or None
    return found


def _time(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat() if seconds else None
