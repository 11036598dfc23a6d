"""Timeline history files: where each timeline forked off its parent.

A line is ``<parent timeline> <tab> <fork LSN> <tab> <reason>``; blank lines and lines that begin
with ``#`` are comments.

Source: src/backend/access/transam/timeline.c
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from spillway.errors import CorruptWal
from spillway.pg.lsn import Lsn

_LINE: Final = re.compile(rb"\s*(\d+)\s+([0-9A-Fa-f]+/[0-9A-Fa-f]+)(?:\s.*)?")


@dataclass(frozen=True, slots=True)
class TimelineFork:
    """*timeline* was left at *fork_lsn* for the next one in the file."""

    timeline: int
    fork_lsn: Lsn


def parse_history(history: bytes) -> list[TimelineFork]:
    """Parse a history file, oldest timeline first.

    Raises:
        CorruptWal: a line is malformed, or the timelines are not ascending.
    """
    forks: list[TimelineFork] = []
    for line in history.splitlines():
        if not line.strip() or line.lstrip().startswith(b"#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None or (forks and int(match[1]) <= forks[-1].timeline):
            raise CorruptWal(
                f"malformed line in a timeline history: {line!r}",
                hint="Check the history files of the source.",
            )
        forks.append(TimelineFork(int(match[1]), Lsn.parse(match[2].decode())))
    return forks


def fork_lsn(history: bytes, timeline: int) -> Lsn | None:
    """Return where *timeline* was left, None if it is not an ancestor."""
    return next(
        (fork.fork_lsn for fork in parse_history(history) if fork.timeline == timeline), None
    )
