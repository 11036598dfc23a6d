"""Where conflicts are written down: a file of bounded size beside the program's status file, from
which the subscriber takes them into the metadata store.

A line is a conflict, as JSON. It is appended before the transaction that met it commits, so that a
conflict that was resolved is never forgotten. If the transaction is tried again, its conflicts are
written again under the same ids, and a reader keeps the last line of each id. A file that is full
becomes ``….1`` and a new one begins, so that never more than twice :data:`FILE_BYTES_MAX` are kept.

Lines are numbered across all files, and all programs that had the directory: ``log`` tells this
directory from any other, ``position`` counts from 1. So a reader knows which lines it has, wherever
it died, and how many were overwritten before it came.

A file that can't be written ends nothing: the rows on the target are what matters. The numbers of
those conflicts are missing then.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from spillway.errors import StorageError
from spillway.storage.durable_files import put_in_place

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from spillway.apply.conflicts.conflict import Conflict

_log = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 4 << 20
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
    """The file, written by one program; safe to use from several threads. None is nowhere."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        lines = None if path is None else _last_line(path) or _last_line(_older(path))
        self._log, self._position = lines or _new_log()
        #: whether a line before may have been cut off
        self._may_be_cut = True

    def record(self, conflicts: Sequence[Conflict]) -> None:
        path = self._path
        if not conflicts or path is None:
            return
        with self._lock:
            lines = []
            for one in conflicts:
                self._position += 1
                lines.append(_line(self._log, self._position, one.as_json()))
            try:
                self._append(path, lines)
            except (OSError, StorageError) as error:
                self._may_be_cut = True
                _log.warning("conflicts can't be written into %s: %s", path, error)

    def _append(self, path: Path, lines: list[bytes]) -> None:
        with path.open("ab") as file:
            if self._may_be_cut and file.tell():
                # An empty line means nothing.
                file.write(b"\n")
            self._may_be_cut = False
            file.writelines(lines)
            size = file.tell()
        if size >= FILE_BYTES_MAX:
            put_in_place(path, _older(path))


def _new_log() -> tuple[str, int]:
    return secrets.token_hex(8), 0


def _last_line(path: Path) -> tuple[str, int] | None:
    """Return the log and position of the last whole line; None if there is none that has them."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 2 * _LINE_CHARACTERS_MAX))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        with suppress(ValueError, KeyError, TypeError):
            one = json.loads(line)
            return str(one["log"]), int(one["position"])
    return None


def _older(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def _line(log: str, position: int, conflict: dict[str, Any]) -> bytes:
    cut: dict[str, Any] = {"log": log, "position": position}
    cut |= {name: _cut(value) for name, value in conflict.items()}
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
