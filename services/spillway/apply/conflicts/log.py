"""Where conflicts are written down: a file of bounded size beside the program's status file.

A line a conflict, JSON. The file is appended to before the transaction is committed that met them:
a conflict that was resolved is never forgotten, and one whose transaction is tried again is written
again under the same id, of which a reader keeps the last. A file that is full becomes ``….1`` and
a new one begins, so that never more than twice :data:`FILE_BYTES_MAX` are kept; counts by table and
kind outlive that: they are this run's, in memory, and the program's status tells them.

That a file can't be written ends nothing: the rows on the target are what matters.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from spillway.errors import StorageError
from spillway.storage.durable_files import put_in_place

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from spillway.apply.conflicts.conflict import Conflict

_log = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 1 << 20
#: A value of a row that is longer is cut in the file; the table on the target has it whole.
VALUE_CHARACTERS_MAX: Final = 1024
#: A line may be this long at most; else its rows are left out.
_LINE_CHARACTERS_MAX: Final = 64 << 10


class ConflictLog(Protocol):
    """Where conflicts are written down before the transaction is committed that met them."""

    def record(self, conflicts: Sequence[Conflict]) -> None:
        """Write these down. They may come again, with the same ids, when their transaction is tried
        again.
        """


class ConflictFile:
    """The file, written by one program.

    Attributes:
        counts: conflicts by (table with its schema, kind), of this run; a conflict whose
            transaction is tried again directly is counted once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: frozenset[str] = frozenset()
        self.counts: Counter[tuple[str, str]] = Counter()

    def record(self, conflicts: Sequence[Conflict]) -> None:
        if not conflicts:
            return
        again, self._last = self._last, frozenset(one.conflict_id for one in conflicts)
        for one in conflicts:
            if one.conflict_id not in again:
                self.counts[(f"{one.schema}.{one.table}", one.kind.value)] += 1
        try:
            with self._path.open("ab") as file:
                for one in conflicts:
                    file.write(_line(one.as_json()))
                size = file.tell()
            if size >= FILE_BYTES_MAX:
                put_in_place(self._path, _older(self._path))
        except (OSError, StorageError) as error:
            _log.warning("conflicts can't be written into %s: %s", self._path, error)


def _older(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def _line(conflict: dict[str, Any]) -> bytes:
    cut = {name: _cut(value) for name, value in conflict.items()}
    line = json.dumps(cut)
    if len(line) > _LINE_CHARACTERS_MAX:
        cut |= {"local": [], "remote": None, "identity": None, "detail": "", "is_cut": True}
        line = json.dumps(cut)
    return line.encode() + b"\n"


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= VALUE_CHARACTERS_MAX else f"{value[:VALUE_CHARACTERS_MAX]}…"
    if isinstance(value, dict):
        return {name: _cut(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_cut(one) for one in value]
    return value
