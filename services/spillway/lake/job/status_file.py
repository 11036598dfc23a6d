"""``lake run --status-file``: what a job tells of its lake's tables, in a
:class:`spillway.consumer.status_file.StatusFile`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from spillway.consumer.status_file import StatusFile
from spillway.errors import LakeError
from spillway.lake.shape.payload import directory_named
from spillway.lake.state import resyncs
from spillway.lake.state.loads import Stage, is_loading, load_state, loaded_tables
from spillway.lake.state.quarantine import quarantined
from spillway.lake.state.resyncs import ResyncState, ResyncStep

if TYPE_CHECKING:
    from spillway.consumer.status_file import Progress
    from spillway.lake.tables.figures import TableFigures
    from spillway.storage.place import LakePath

_BLOCK_BYTES: Final = 8192
#: States of tables that are set aside.
_ASIDE: Final = ("quarantined", "paused")


class LakeStatusFile(StatusFile):
    """A status file that knows what a lake's loads, batches and tables that are set aside mean for
    it.
    """

    def loads(self, lake: LakePath) -> None:
        """Look which tables are still to be loaded into *lake*; before the job follows its slot."""
        loads = [load_state(lake, directory) for directory in loaded_tables(lake)]
        with self.changing() as told:
            for load in loads:
                if load is None:
                    continue
                table = told.table(load.table)
                done, copying = load.stage == Stage.DONE, load.stage == Stage.COPYING
                table.state = "ready" if done else "copying" if copying else "waiting"
                table.reason = load.reason or None
                if load.reason:
                    table.state = "waiting"
                total = load.blocks * _BLOCK_BYTES
                of_chunk = load.range_blocks * load.chunk_ranges * _BLOCK_BYTES
                table.bytes_total = total if done or copying else None
                table.bytes_copied = total if done else min(total, load.chunks_done * of_chunk)
            _note_quarantined(told, lake)
            _note_resyncs(told, lake)
            told.urgent = True

    def figures(self, name: str, found: TableFigures) -> None:
        """Hear what a current table is like."""
        with self.changing() as told:
            table = told.table(name)
            table.rows, table.files, table.bytes = found.rows, found.files, found.size_bytes
            table.deleted_rows = found.deleted_rows
            table.bytes_rewritten = (table.bytes_rewritten or 0) + found.rewritten_bytes
            table.figures_at = datetime.now(UTC).isoformat()

    def waits(self, name: str, since: datetime | None) -> None:
        """Hear since when a current table lacks what its history has; None: it has all."""
        with self.changing() as told:
            told.table(name).waiting_since = None if since is None else since.isoformat()

    def heard(self, lake: LakePath, news: object) -> None:
        """Hear of a batch that is durable, of a step of a table's load, or of something else."""
        # Imported by now, whoever told: they bring PySpark along.
        from spillway.lake.batch.materialize import BatchReport  # noqa: PLC0415
        from spillway.lake.load.initial_load import LoadFailed, LoadProgress  # noqa: PLC0415

        with self.changing() as told:
            if isinstance(news, BatchReport):
                for name, count in news.changes.items():
                    told.table(name).changes += count
                    told.changes += count
                if news.changes:
                    told.last_batch = {
                        "ended_at": datetime.now(UTC).isoformat(),
                        "seconds": round(news.seconds, 3),
                        "changes": sum(news.changes.values()),
                        "tables": len(news.changes),
                        "from_lsn": str(news.start_lsn),
                        "to_lsn": str(news.end_lsn),
                    }
                for name, newest in news.newest.items():
                    told.table(name).newest_change_at = newest.isoformat()
                # On object storage a look is a request.
                if news.quarantined or any(t.state in _ASIDE for t in told.tables.values()):
                    _note_quarantined(told, lake)
                told.urgent = bool(news.changes)
            elif isinstance(news, LoadProgress):
                table = told.table(news.table)
                table.state, table.reason = "ready" if news.done else "copying", None
                table.bytes_copied, table.bytes_total = news.bytes_done, news.bytes_total
                told.urgent = news.done
            elif isinstance(news, LoadFailed):
                table = told.table(news.table)
                table.state, table.reason = "waiting", str(news)
                told.urgent = True
            elif isinstance(news, ResyncStep):
                _note_step(told, lake, news)
                told.urgent = True


def _note_quarantined(told: Progress, lake: LakePath) -> None:
    set_aside = {state.table: state for state in quarantined(lake).values()}
    for name, state in set_aside.items():
        table = told.table(name)
        table.reason = state.reason
        # Its load goes on all the same.
        if table.state in ("ready", *_ASIDE):
            table.state = "paused" if state.paused else "quarantined"
    for name, table in told.tables.items():
        if table.state in _ASIDE and name not in set_aside:
            table.state, table.reason = "ready", None


def _note_step(told: Progress, lake: LakePath, step: ResyncStep) -> None:
    """Tell of a step of a wish, and of what it makes of the table."""
    table = told.table(step.table)
    ended = step.state not in (ResyncState.WAITING, ResyncState.LOADING)
    table.resync = {
        "state": str(step.state),
        "asked_at": step.asked_at,
        "ended_at": datetime.now(UTC).isoformat() if ended else None,
        "lsn": step.lsn or None,
        "reason": step.reason or None,
    }
    if step.state == ResyncState.LOADING:
        # The rows of its last load are not this one's.
        table.state, table.reason = "waiting", None
        table.bytes_copied = table.bytes_total = None
    elif step.state == ResyncState.DONE:
        table.state, table.reason = "ready", None
    elif step.state == ResyncState.FAILED and is_loading(lake, directory_named(step.table)):
        # Its current table waits for that load.
        table.state, table.reason = "waiting", step.reason


def _note_resyncs(told: Progress, lake: LakePath) -> None:
    """Tell of the wishes that there are; of those that an earlier run told of and are no more, that
    they are fulfilled.
    """
    try:
        wishes = {wish.table: wish for wish in resyncs.asked(lake).values()}
        cancelled = {wish.table: wish for wish in resyncs.cancelled(lake)}
    except LakeError:
        # The one who loads says so; that is no reason to end the job.
        return
    for name, wish in wishes.items():
        state = ResyncState.FAILED if wish.reason else ResyncState.WAITING
        _note_step(told, lake, ResyncStep(name, state, wish.asked_at, wish.reason))
    for name, table in told.tables.items():
        at_work = (ResyncState.WAITING, ResyncState.LOADING)
        if name in wishes or table.resync is None or table.resync["state"] not in at_work:
            continue
        if name in cancelled:
            asked_at = cancelled[name].asked_at
            _note_step(told, lake, ResyncStep(name, ResyncState.CANCELLED, asked_at))
            continue
        # Removed when the table was loaded; nobody lived to tell.
        loaded = load_state(lake, directory_named(name))
        asked_at, lsn = table.resync["asked_at"], "" if loaded is None else loaded.lsn
        _note_step(told, lake, ResyncStep(name, ResyncState.DONE, asked_at, lsn=lsn))
