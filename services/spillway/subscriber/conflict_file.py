"""The conflicts that a subscription's program met: ``conflicts.jsonl``, which it appends to.

A line a conflict, as JSON; the file that was full before is beside it (``….1``). One whose
transaction was tried again is there twice under one id, and counts once. A line that can't be read
counts as nothing said: it may have been cut off.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

FILE: Final = "conflicts.jsonl"
#: A file that is larger was not written by a program of ours.
_BYTES_MAX: Final = 32 << 20


def read_conflicts(path: Path) -> list[dict[str, Any]]:
    """Return what the files have, oldest first, each conflict once. Blocks."""
    found: dict[str, dict[str, Any]] = {}
    for file in (path.with_name(f"{path.name}.1"), path):
        for line in _lines(file):
            with suppress(ValueError, KeyError, TypeError):
                one = json.loads(line)
                found.pop(one["id"], None)
                found[one["id"]] = one
    return list(found.values())


def _lines(path: Path) -> list[bytes]:
    try:
        with path.open("rb") as file:
            return file.read(_BYTES_MAX).splitlines()
    except OSError:
        return []
