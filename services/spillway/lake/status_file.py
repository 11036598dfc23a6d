"""``lake run --status-file``: what the job tells whoever keeps it running, in a file that it replaces as a whole.

The form is :mod:`spillway.subscriber.run_status`'s, which reads it. Counts go on from what the file says when the job starts, so that
they are about the lake and not about the run; a job that is killed between a batch and the next writing of the file counts that
batch's changes for nobody. News of steps are written at most every :data:`_PAUSE_S`, batches and errors at once. That the file
can't be written ends no job.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from spillway.errors import SpillwayError
from spillway.lake.initial_load_state import Stage, load_state, loaded_tables
from spillway.lake.quarantine import quarantined
from spillway.storage.durable_files import replace_cache

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from spillway.lake.storage import LakePath

_log = logging.getLogger(__name__)

#: Set by whoever keeps the job running, and told back, so that an older run's news are not taken for this one's.
RUN_VARIABLE: Final = "SPILLWAY_SUBSCRIPTION_RUN"
_PAUSE_S: Final = 0.5
_BLOCK_BYTES: Final = 8192


@dataclass(slots=True)
class _Table:
    state: str = "ready"
    changes: int = 0
    bytes_copied: int | None = None
    bytes_total: int | None = None
    reason: str | None = None


class StatusFile:
    """A context manager; what ends the block with an error is told. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        """Take the file that is to be replaced; its directory must exist."""
        self._path = path
        self._run = os.environ.get(RUN_VARIABLE, "")
        self._lock = threading.Lock()
        self._written_at = 0.0
        self._begun = False
        self._error: dict[str, str] | None = None
        self._changes, self._tables = _earlier(path)

    def __enter__(self) -> Self:
        self._write()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, SpillwayError):
            with self._lock:
                self._error = {"code": error.code, "message": error.message, "hint": error.hint}
            self._write()

    @property
    def has_begun(self) -> bool:
        """Whether :meth:`begun` was heard."""
        return self._begun

    def begun(self) -> None:
        """Hear that the job follows its slot."""
        self._begun = True
        self._write()

    def loads(self, lake: LakePath) -> None:
        """Look which tables are still to be loaded into *lake*; before the job follows its slot."""
        loads = [load_state(lake, directory) for directory in loaded_tables(lake)]
        with self._lock:
            for load in loads:
                if load is None:
                    continue
                table = self._tables.setdefault(load.table, _Table())
                done, copying = load.stage == Stage.DONE, load.stage == Stage.COPYING
                table.state = "ready" if done else "copying" if copying else "waiting"
                total = load.blocks * _BLOCK_BYTES
                of_chunk = load.range_blocks * load.chunk_ranges * _BLOCK_BYTES
                table.bytes_total = total if done or copying else None
                table.bytes_copied = total if done else min(total, load.chunks_done * of_chunk)
            self._note_quarantined(lake)
        self._write()

    def heard(self, lake: LakePath, news: object) -> None:
        """Hear of a batch that is durable, of a step of a table's load, or of something else."""
        # Imported by now, whoever told: they bring PySpark along.
        from spillway.lake.initial_load import LoadProgress  # noqa: PLC0415
        from spillway.lake.materialize import BatchReport  # noqa: PLC0415

        urgent = False
        with self._lock:
            if isinstance(news, BatchReport):
                for name, count in news.changes.items():
                    self._tables.setdefault(name, _Table()).changes += count
                    self._changes += count
                # On object storage a look is a request.
                if news.quarantined or any(t.state == "quarantined" for t in self._tables.values()):
                    self._note_quarantined(lake)
                urgent = bool(news.changes)
            elif isinstance(news, LoadProgress):
                table = self._tables.setdefault(news.table, _Table())
                table.state = "ready" if news.done else "copying"
                table.bytes_copied, table.bytes_total = news.bytes_done, news.bytes_total
                urgent = news.done
        if urgent or time.monotonic() - self._written_at >= _PAUSE_S:
            self._write()

    def _note_quarantined(self, lake: LakePath) -> None:
        set_aside = {q.table: q.reason for q in quarantined(lake).values()}
        for name, reason in set_aside.items():
            table = self._tables.setdefault(name, _Table())
            table.reason = reason
            # Its load goes on all the same.
            if table.state == "ready":
                table.state = "quarantined"
        for name, table in self._tables.items():
            if table.state == "quarantined" and name not in set_aside:
                table.state, table.reason = "ready", None

    def _write(self) -> None:
        with self._lock:
            value = {
                "run": self._run,
                "begun": self._begun,
                "changes": self._changes,
                "tables": {name: asdict(table) for name, table in self._tables.items()},
                "error": self._error,
            }
            try:
                # It is in the service's directory, where nothing is for others.
                replace_cache(self._path, json.dumps(value), mode=0o600)
            except OSError as error:
                _log.warning("the status file %s can't be written: %s", self._path, error.strerror)
            self._written_at = time.monotonic()


def _earlier(path: Path) -> tuple[int, dict[str, _Table]]:
    """Return what earlier runs counted; nothing when there is no file, or none that can be read."""
    try:
        value: Any = json.loads(path.read_text())
        tables = {str(name): _Table(**table) for name, table in value["tables"].items()}
        return int(value["changes"]), tables
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0, {}
