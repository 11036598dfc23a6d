"""What there is to tell of tables of plain Parquet (:mod:`spillway.lake.tables.figures`), from the
footers of their newest copy.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from spillway.errors import LakeError
from spillway.lake.shape.kinds import CURRENT
from spillway.lake.tables.figures import TableFigures
from spillway.lake.tables.parquet.tables import copy_at

if TYPE_CHECKING:
    from spillway.storage.place import LakePath

#: after every position
_NEWEST: Final = 1 << 63


class ParquetLooks:
    """See :class:`spillway.lake.tables.figures.Looks`."""

    def __init__(self, path: LakePath) -> None:
        self._path = path
        #: the copy that was the newest and its bytes, by table
        self._seen: dict[str, tuple[Path, int]] = {}

    def look(self, name: str) -> TableFigures | None:
        table = self._path / CURRENT / name
        assert isinstance(table, Path)  # such tables are of directories
        try:
            copy = copy_at(table, _NEWEST)
            if copy is None:
                return None
            files = sorted(copy.glob("*.parquet"))
            rows = sum(pq.read_metadata(file).num_rows for file in files)
            size = sum(file.stat().st_size for file in files)
        except (OSError, ValueError, LakeError, pa.ArrowException):
            # It was replaced while it was looked at: the next look finds the other one.
            return None
        before = self._seen.get(name)
        self._seen[name] = (copy, size)
        # A batch writes the whole table anew.
        rewritten = 0 if before is None or before[0] == copy else before[1]
        return TableFigures(rows, len(files), size, 0, rewritten)

    def forget(self, name: str) -> None:
        self._seen.pop(name, None)
