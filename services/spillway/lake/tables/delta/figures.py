"""What there is to tell of Delta tables (:mod:`spillway.lake.tables.figures`), from their logs.

Memory: three numbers a file, of the tables that are looked at.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spillway.lake.shape.kinds import CURRENT
from spillway.lake.tables.delta import log
from spillway.lake.tables.delta.log import Action, Snapshot
from spillway.lake.tables.figures import TableFigures
from spillway.lake.tables.plain_changes import NotDirect

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spillway.storage.place import LakePath


@dataclass(slots=True)
class _Counted(Snapshot):
    """A version of which only counts are kept of each file."""

    #: of files that commits have replaced
    rewritten: int = 0

    def add(self, actions: Iterable[Action]) -> None:
        """Take up the actions of one commit."""
        counted: list[Action] = []
        gone: dict[str, int] = {}
        for action in actions:
            if "add" in action:
                counted.append({"add": _counts(action["add"])})
                continue
            if "remove" in action:
                path = action["remove"]["path"]
                gone[path] = self.files[path]["size"] if path in self.files else 0
            counted.append(action)
        # A file whose vector changes is removed and added, and stays.
        stays = {action["add"]["path"] for action in counted if "add" in action}
        self.rewritten += sum(size for path, size in gone.items() if path not in stays)
        Snapshot.add(self, counted)


def _counts(file: Action) -> Action:
    rows = json.loads(file.get("stats") or "{}").get("numRecords")
    vector = file.get("deletionVector") or {}
    return {
        "path": file["path"],
        "size": int(file["size"]),
        "rows": rows,
        "deleted": int(vector.get("cardinality") or 0),
    }


class DeltaLooks:
    """See :class:`spillway.lake.tables.figures.Looks`."""

    def __init__(self, path: LakePath) -> None:
        self._path = path
        self._seen: dict[str, _Counted] = {}

    def look(self, name: str) -> TableFigures | None:
        table = self._path / CURRENT / name
        before = self._seen.pop(name, None)
        try:
            found = log.load(table, _Counted()) if before is None else log.refresh(table, before)
        except (NotDirect, OSError, ValueError, KeyError):
            return None
        assert isinstance(found, _Counted)  # it was given
        # Of what was before the first look nobody knows whose it was.
        rewritten = 0 if before is None else found.rewritten
        found.rewritten = 0
        self._seen[name] = found
        files = found.files.values()
        unknown = any(file["rows"] is None for file in files)
        deleted = sum(file["deleted"] for file in files)
        return TableFigures(
            None if unknown else sum(file["rows"] for file in files) - deleted,
            len(files),
            sum(file["size"] for file in files),
            deleted,
            rewritten,
        )

    def forget(self, name: str) -> None:
        self._seen.pop(name, None)
