"""What there is to tell of a current table: its rows, its files, and what keeping it has cost.

A look reads what the table's own log or metadata says, never its rows. From the second one on it
reads only the commits since the last, of a Delta table: it costs by what changed. Looks matter to
nobody but those who watch: what can't be told is None, and no batch waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TableFigures:
    """A current table at a time; None: not known."""

    #: as they are stored: of a table without a key, different ones
    rows: int | None
    files: int
    #: of the files, and of those that mark rows in them as far as these are files of their own
    size_bytes: int
    #: rows in the files that are marked as gone; not in ``rows``
    deleted_rows: int | None
    #: of files that commits since the look before have replaced
    rewritten_bytes: int


class Looks(Protocol):
    """Looks at the tables of one lake and format. One thread's."""

    def look(self, name: str) -> TableFigures | None:
        """Return what there is to tell of the current table *name*; None: there is none, or it
        can't be read.
        """
        ...

    def forget(self, name: str) -> None:
        """Keep nothing of a table."""
        ...
