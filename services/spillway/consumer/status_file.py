"""What a consumer tells whoever keeps it running, in a file that it replaces as a whole.

The form is :mod:`spillway.subscriber.run_status`'s, which reads it. Counts go on from what the file
says when the consumer starts, so that they are about its target and not about the run; if it is
killed after it made changes durable and before it wrote the file, nobody counts those. News of
steps are written at most every :data:`_PAUSE_S`, what is urgent and errors at once. A file that
can't be written ends nothing.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from spillway.errors import InvalidRequest, SpillwayError
from spillway.storage.durable_files import is_replaceable, replace_cache

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

_log = logging.getLogger(__name__)

#: Set by whoever keeps the consumer running, and told back, so that an older run's news are not
#: taken for this one's.
RUN_VARIABLE: Final = "SPILLWAY_SUBSCRIPTION_RUN"
_PAUSE_S: Final = 0.5


@dataclass(slots=True)
class TableStatus:
    """How far one table is: ``waiting``, ``copying``, ``ready``, or, for a reason, ``quarantined``
    or ``paused``.
    """

    state: str = "ready"
    changes: int = 0
    bytes_copied: int | None = None
    bytes_total: int | None = None
    reason: str | None = None
    #: of a PostgreSQL: pg_subscription_rel's, ``i``, ``d``, ``f``, ``s`` or ``r``
    sync_state: str | None = None
    #: of a PostgreSQL: why its changes are written one by one; None when they are not
    written_alone: str | None = None
    #: of a lake, as its current table was at ``figures_at``; None: not known
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    #: rows in those files that are marked as gone; not in ``rows``
    deleted_rows: int | None = None
    #: of files that commits have replaced, of this run and those before it
    bytes_rewritten: int | None = None
    figures_at: str | None = None
    #: of a lake: when the newest change of the table was committed at the source
    newest_change_at: str | None = None
    #: of a lake: when the oldest change was committed that history has and current has not; None:
    #: there is none
    waiting_since: str | None = None
    #: of a lake: how the last wish to load the table anew is, see
    #: :class:`spillway.subscriber.model.TableResync`; None: nobody asked
    resync: dict[str, Any] | None = None


@dataclass(slots=True)
class Progress:
    """What the file tells and its consumer may change, within :meth:`StatusFile.changing`."""

    #: durable in the target, of this run and those before it
    changes: int = 0
    tables: dict[str, TableStatus] = field(default_factory=dict)
    #: of a lake: the last batch that brought changes; of this run or one before it
    last_batch: dict[str, Any] | None = None
    #: what this kind of consumer has beside that, JSON-encodable, by name
    stats: dict[str, Any] = field(default_factory=dict)
    #: whether the news can't wait for :data:`_PAUSE_S`
    urgent: bool = False

    def table(self, name: str) -> TableStatus:
        """Return the table's status, which begins as ready."""
        return self.tables.setdefault(name, TableStatus())


class StatusFile:
    """A context manager; what ends the block with an error is told. Safe to use from several
    threads.
    """

    def __init__(self, path: Path | None) -> None:
        """Take the file that is to be replaced, whose directory must exist; None tells nobody.

        Raises:
            InvalidRequest: something is there that is no file.
        """
        if path is not None and not is_replaceable(path):
            raise InvalidRequest(
                f"the status file {path} is no file",
                hint="Name a file, which is replaced as a whole each time, or leave the option "
                "out.",
            )
        self._path = path
        self._run = os.environ.get(RUN_VARIABLE, "")
        self._lock = threading.Lock()
        self._written_at = 0.0
        self._begun = False
        self._error: dict[str, str] | None = None
        self._progress = Progress() if path is None else _earlier(path)

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
        # What is told otherwise is at most some time old.
        self._write()

    @property
    def has_begun(self) -> bool:
        """Whether :meth:`begun` was heard."""
        return self._begun

    def begun(self) -> None:
        """Hear that the job follows its slot."""
        self._begun = True
        self._write()

    @contextmanager
    def changing(self) -> Iterator[Progress]:
        """Change what is told; the file is written afterwards, if that is urgent or the last time
        was long ago.
        """
        with self._lock:
            progress = self._progress
            progress.urgent = False
            yield progress
            urgent = progress.urgent
        if urgent or time.monotonic() - self._written_at >= _PAUSE_S:
            self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        with self._lock:
            value = {
                "run": self._run,
                "begun": self._begun,
                "changes": self._progress.changes,
                "tables": {name: asdict(table) for name, table in self._progress.tables.items()},
                "last_batch": self._progress.last_batch,
                "stats": self._progress.stats,
                "error": self._error,
            }
            try:
                # It is in the service's directory, where nothing is for others.
                replace_cache(self._path, json.dumps(value), mode=0o600)
            except OSError as error:
                _log.warning("the status file %s can't be written: %s", self._path, error.strerror)
            self._written_at = time.monotonic()


def _earlier(path: Path) -> Progress:
    """Return what earlier runs counted; nothing when there is no file, or none that can be read."""
    try:
        value: Any = json.loads(path.read_text())
        tables = {str(name): TableStatus(**table) for name, table in value["tables"].items()}
        return Progress(
            int(value["changes"]),
            tables,
            value.get("last_batch"),
            dict(value.get("stats") or {}),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Progress()
