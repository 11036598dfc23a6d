"""Looks at a lake's current tables while a job is at work, on a thread of its own, and tells what
they are like (:mod:`spillway.lake.tables.figures`).

A table is looked at when the job begins, and after something has changed it, at most every
:data:`_PAUSE_S` (:mod:`spillway.lake.job.table_watch`). All that goes wrong when a look fails is
that figures stay as they were.

Bound: counts of each file are kept of the :data:`_TABLES_MAX` tables that changed last.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from spillway.lake.job.table_watch import TableWatch
from spillway.lake.shape.kinds import CURRENT
from spillway.lake.shape.payload import table_of
from spillway.lake.tables.formats import table_looks

if TYPE_CHECKING:
    from collections.abc import Callable

    from spillway.lake.tables.figures import TableFigures
    from spillway.storage.place import LakePath

_log = logging.getLogger(__name__)

_PAUSE_S: Final = 2.0
_TABLES_MAX: Final = 1000


class FigureWatch(TableWatch):
    """A context manager; at its end the tables that changed since are looked at once more."""

    def __init__(
        self,
        path: LakePath,
        table_format: str,
        tell: Callable[[str, TableFigures], None],
    ) -> None:
        """Take what is told, on any thread, of a table by its ``schema.table``."""
        super().__init__(path, "spillway-lake-figures", _PAUSE_S)
        self._tell = tell
        self._looks = table_looks(table_format, path)
        #: names, as they are told, and directories
        self._directories: dict[str, str] = {}
        self._kept: OrderedDict[str, None] = OrderedDict()

    def _begin(self) -> None:
        self._list()
        self.changed(self._directories)
        self._round()

    def _round(self) -> None:
        self._look(until_stopped=True)

    def _end(self) -> None:
        self._look(until_stopped=False)

    def _list(self) -> None:
        folder = self._path / CURRENT
        try:
            names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        except OSError:
            return
        self._directories = {".".join(table_of(name)): name for name in names}

    def _look(self, *, until_stopped: bool) -> None:
        changed = self._taken()
        if not changed <= self._directories.keys():
            self._list()
        names = sorted(changed & self._directories.keys())
        for at, name in enumerate(names):
            if until_stopped and self._stop.is_set():
                self.changed(names[at:])
                return
            try:
                found = self._looks.look(self._directories[name])
            except Exception as error:  # noqa: BLE001 - a batch is not to end for it
                _log.warning("nothing can be told of %s: %s", name, error)
                continue
            self._keep(self._directories[name])
            if found is not None:
                self._tell(name, found)

    def _keep(self, directory: str) -> None:
        self._kept.pop(directory, None)
        self._kept[directory] = None
        while len(self._kept) > _TABLES_MAX:
            self._looks.forget(self._kept.popitem(last=False)[0])
