"""The current tables of a lake that delta-rs has open, because it merges into them.

To open a table takes delta-rs some milliseconds, as long as a merge takes; so tables that were
merged into stay open. An open table counts only while the file of the commit that it was read up to
is the very file that it was: another one may have made the table anew. What was committed since is
followed.

Bound: :data:`_TABLES_MAX` tables are open, and those that have :data:`_FILES_MAX` files together,
of which some hundred bytes each are kept; the one that was not used for the longest time goes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltalake.exceptions import DeltaError

from spillway.lake.tables.delta.known_logs import identity_of
from spillway.lake.tables.delta.merge import check_table, open_table

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from spillway.storage.place import LakePath

_TABLES_MAX: Final = 4096
_FILES_MAX: Final = 200_000


@dataclass(slots=True)
class _Open:
    table: DeltaTable
    identity: object
    files: int


class OpenTables:
    """The open tables of one lake. For any thread; a table is one thread's at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[LakePath, _Open] = OrderedDict()
        self._files = 0

    def table(self, path: LakePath) -> DeltaTable:
        """Return the newest version of the table at *path*, opened or still open.

        Raises:
            NotDirect: the path or the table is not for delta-rs.
        """
        with self._lock:
            held = self._open.get(path)
        if held is not None and self._is_newest(path, held):
            check_table(held.table)
            return held.table
        self.forget(path)
        table = open_table(path)
        self.keep(path, table, len(table.file_uris()))
        return table

    def _is_newest(self, path: LakePath, held: _Open) -> bool:
        """Bring an open table to its newest version; say whether that could be done."""
        before = held.table.version()
        if identity_of(path, before) != held.identity:
            return False
        try:
            held.table.update_incremental()
        except DeltaError:
            # What came since is not in the log any more.
            return False
        if held.table.version() != before:
            self.keep(path, held.table, len(held.table.file_uris()))
        else:
            with self._lock:
                if path in self._open:
                    self._open.move_to_end(path)
        return True

    def keep(self, path: LakePath, table: DeltaTable, files: int) -> None:
        """Remember a table as it is; it has *files*."""
        kept = _Open(table, identity_of(path, table.version()), files)
        with self._lock:
            before = self._open.pop(path, None)
            self._open[path] = kept
            self._files += kept.files - (0 if before is None else before.files)
            while len(self._open) > 1 and (
                len(self._open) > _TABLES_MAX or self._files > _FILES_MAX
            ):
                _, each = self._open.popitem(last=False)
                self._files -= each.files

    def forget(self, path: LakePath) -> None:
        """Close a table: what is known of it is not so, or may not be."""
        with self._lock:
            held = self._open.pop(path, None)
            self._files -= 0 if held is None else held.files
