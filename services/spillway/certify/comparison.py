"""Line by line: what PostgreSQL's slot returns against what we have rendered.

PostgreSQL's side sets the pace: its slot is asked for what ends before our position, and each of
its messages is held against our next one. Both begin where its slot does: ours was consistent
before (see ``run``).

A plugin with a memory is asked once only, at the end: pgoutput describes a relation when it first
meets it in a session, and each call of pg_logical_slot_get_binary_changes is one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spillway.certify.spool import LineSpool
from spillway.failpoints import failpoint
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from spillway.certify.oracle import OracleSlot
    from spillway.certify.rendering import Line

_CHANGES_MAX: Final = 10_000
_CONTEXT_LINES: Final = 5
_SHOWN_BYTES: Final = 2000
#: Ours is decoded already when PostgreSQL's slot is asked; this only covers the thread's handing
#: over.
_PATIENCE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where both sides differ."""

    plugin: str
    #: number of the line among those compared, from 1
    line: int
    #: rows as text: LSN, xid, data
    before: tuple[str, ...]
    ours: str
    theirs: str


@dataclass(slots=True)
class Compared:
    """What was compared, of one subject."""

    lines: int = 0
    transactions: int = 0
    bytes: int = 0
    difference: Difference | None = None
    before: deque[Line] = field(default_factory=lambda: deque(maxlen=_CONTEXT_LINES))


class Comparison:
    """One subject on both sides."""

    def __init__(self, oracle: OracleSlot) -> None:
        self._oracle = oracle
        #: takes our messages, in the follower's thread
        self.spool: Final = LineSpool()
        self.result = Compared()

    def close(self) -> None:
        """Free what ours waits in; the oracle is closed by whom opened it."""
        self.spool.close()

    def advance(self, upto_lsn: int) -> bool:
        """Compare what ends up to *upto_lsn*, which we have decoded; return whether PostgreSQL had
        anything.

        Raises:
            SourceError: its slot failed.
        """
        if self._oracle.subject.binary:
            return False
        return self._advance(upto_lsn, _CHANGES_MAX)

    def finish(self, upto_lsn: int) -> None:
        """Compare the rest, when the follower has stopped at *upto_lsn*: neither side may have
        more.

        Raises:
            SourceError: PostgreSQL's slot failed.
        """
        changes_max = None if self._oracle.subject.binary else _CHANGES_MAX
        while self._advance(upto_lsn, changes_max):
            pass
        if self.result.difference is None and (ours := self.spool.get()) is not None:
            self._differ(ours, None)

    def _advance(self, upto_lsn: int, changes_max: int | None) -> bool:
        if self.result.difference is not None:
            return False
        anything = False
        for line in self._oracle.changes(upto_lsn, changes_max):
            anything = True
            # What follows a difference is read to its end, so that the slot is left in good order.
            if self.result.difference is None:
                self._compare(line)
        return anything

    def _compare(self, theirs: Line) -> None:
        ours = self.spool.get(_PATIENCE_S)
        try:
            failpoint("certify.compare")
        except OSError:
            ours = None if ours is None else ours._replace(data=ours.data + b" (corrupted)")
        if ours != theirs:
            self._differ(ours, theirs)
            return
        result = self.result
        result.lines += 1
        result.bytes += len(theirs.data)
        result.transactions += _is_commit(theirs, binary=self._oracle.subject.binary)
        result.before.append(theirs)

    def _differ(self, ours: Line | None, theirs: Line | None) -> None:
        binary = self._oracle.subject.binary
        self.result.difference = Difference(
            self._oracle.subject.plugin,
            self.result.lines + 1,
            tuple(_shown(line, binary=binary) for line in self.result.before),
            "nothing" if ours is None else _shown(ours, binary=binary),
            "nothing" if theirs is None else _shown(theirs, binary=binary),
        )


def _is_commit(line: Line, *, binary: bool) -> bool:
    return line.data.startswith(b"C" if binary else b"COMMIT")


def _shown(line: Line, *, binary: bool) -> str:
    data = line.data[:_SHOWN_BYTES]
    text = data.hex(" ") if binary else data.decode(errors="replace")
    more = f" … ({len(line.data)} bytes)" if len(line.data) > _SHOWN_BYTES else ""
    return f"{Lsn(line.lsn)} {line.xid} {text}{more}"
