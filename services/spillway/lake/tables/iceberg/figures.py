"""What there is to tell of Iceberg tables (:mod:`spillway.lake.tables.figures`), from the summaries
of their snapshots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spillway.errors import SpillwayError
from spillway.lake.shape.kinds import CURRENT
from spillway.lake.tables.figures import TableFigures
from spillway.lake.tables.iceberg import snapshots
from spillway.lake.tables.iceberg.catalog import LakeCatalog

if TYPE_CHECKING:
    from pyiceberg.table.snapshots import Snapshot

    from spillway.storage.place import LakePath

_ROWS: Final = "total-records"
_FILES: Final = "total-data-files"
_BYTES: Final = "total-files-size"
_DELETED: Final = "total-position-deletes"
_REPLACED: Final = "removed-files-size"


class IcebergLooks:
    """See :class:`spillway.lake.tables.figures.Looks`."""

    def __init__(self, path: LakePath) -> None:
        self._path = path
        self._catalog: LakeCatalog | None = None
        #: the snapshot that was the newest, by table
        self._seen: dict[str, int | None] = {}

    def look(self, name: str) -> TableFigures | None:
        try:
            if self._catalog is None:
                self._catalog = LakeCatalog(self._path)
            table = self._catalog.load(CURRENT, name)
        except (SpillwayError, OSError):
            return None
        if table is None:
            return None
        seen, is_first = self._seen.get(name), name not in self._seen
        newest = table.current_snapshot()
        self._seen[name] = None if newest is None else newest.snapshot_id
        if newest is None:
            return TableFigures(0, 0, 0, 0, 0)
        rewritten = 0
        if not is_first:
            for each in snapshots.ancestors(table.metadata):
                if each.snapshot_id == seen:
                    break
                rewritten += _count(each, _REPLACED) or 0
        rows, deleted = _count(newest, _ROWS), _count(newest, _DELETED)
        return TableFigures(
            None if rows is None or deleted is None else rows - deleted,
            _count(newest, _FILES) or 0,
            _count(newest, _BYTES) or 0,
            deleted,
            rewritten,
        )

    def forget(self, name: str) -> None:
        self._seen.pop(name, None)


def _count(snapshot: Snapshot, name: str) -> int | None:
    """Return what a summary says; None: it doesn't."""
    said = None if snapshot.summary is None else snapshot.summary.additional_properties.get(name)
    return None if said is None else int(said)
