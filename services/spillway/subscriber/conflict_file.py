"""The conflicts that a subscription's program met: ``conflicts.jsonl``, which it appends to.

A line a conflict, as JSON, with its ``log`` and its ``position`` there; the file that was full
before is beside it (``….1``). The subscriber takes them into the metadata store
(:mod:`spillway.store.conflicts`), which knows what it has: this reader only remembers what it need
not read again. A line that can't be read counts as nothing said: it may have been cut off.
"""

from __future__ import annotations

import json
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spillway.store.rows import MetConflict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import BinaryIO

FILE: Final = "conflicts.jsonl"
#: What is taken in at once of a file; a larger one goes on with the next look.
_BYTES_AT_ONCE: Final = 4 << 20
#: Two files differ in their first bytes: a line begins with its log and its position.
_BEGIN_BYTES: Final = 96


@dataclass(frozen=True, slots=True)
class Reading:
    """What was found."""

    met: tuple[MetConflict, ...] = ()
    #: up to where files are read, by their first bytes
    ends: Mapping[bytes, int] | None = None


class ConflictReader:
    """Reads what is new. Blocks."""

    def __init__(self, path: Path) -> None:
        self._paths = (path.with_name(f"{path.name}.1"), path)
        self._ends: Mapping[bytes, int] = {}

    def read(self) -> Reading:
        """Return what came since what was :meth:`taken`, oldest first."""
        with ExitStack() as opened:
            files: list[BinaryIO] = []
            # The one that is written first: should it become the older one now, nothing is missed.
            for path in reversed(self._paths):
                with suppress(OSError):
                    files.insert(0, opened.enter_context(path.open("rb")))
            met: list[MetConflict] = []
            ends: dict[bytes, int] = {}
            for file in files:
                begin = file.read(_BEGIN_BYTES)
                if not begin or begin in ends:
                    continue
                start = self._ends.get(begin, 0)
                file.seek(start)
                lines, newline, _ = file.read(_BYTES_AT_ONCE).rpartition(b"\n")
                ends[begin] = start + len(lines) + len(newline)
                met.extend(one for line in lines.splitlines() if (one := _conflict(line)))
                if ends[begin] < file.seek(0, 2) and newline:
                    # The rest of it before the next one.
                    break
        return Reading(tuple(met), ends)

    def taken(self, reading: Reading) -> None:
        """Pass over what was found from now on."""
        self._ends = reading.ends or {}


def _conflict(line: bytes) -> MetConflict | None:
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        one = json.loads(line)
        for name in ("id", "kind", "schema", "table"):
            if not isinstance(one[name], str):
                return None
        return MetConflict(str(one.pop("log", "")), int(one.pop("position", 0)), one)
    return None
