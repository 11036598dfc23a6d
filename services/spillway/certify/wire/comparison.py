"""One subject on both sides: what the primary sends is held against what the service sends.

Frame by frame, each with its LSNs, what it says and where it stands. Of live traffic announcements
that repeat what was announced before are left out: a walsender makes them whenever its session
hears of a change to a table, which is no matter of the WAL. They are left out with the option
``origin`` too: of a transaction that its origin keeps out, PostgreSQL does not throw away what
others made invalid while it was in progress, and ours does.

Transaction by transaction, where more is left open (:mod:`.transactions` says what): of what is
streamed while transactions are in progress; and with ``two_phase``, since a server that decodes a
prepared transaction when it has been rolled back leaves out what it would need the catalog for.
What differs in such a one counts only if it was not rolled back.

Who is ahead is not read from any more, until the other one has come after.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spillway.certify.wire.connection import Frame
from spillway.certify.wire.messages import described, first_difference
from spillway.certify.wire.transactions import (
    Assembler,
    is_origin_of_cuts,
    without_lone_origin,
)
from spillway.failpoints import failpoint
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.certify.rendering import Subject
    from spillway.certify.wire.connection import SlotConnection
    from spillway.certify.wire.transactions import Change, Transaction

_CONTEXT: Final = 5
#: What one side may be ahead by.
_AHEAD_BYTES_MAX: Final = 8 << 20
_AHEAD_MAX: Final = 10_000
#: Frames that are taken in one go, so that feedback is given in between.
_AT_ONCE: Final = 2_000
_ROLLED_BACK: Final = b"r"
#: where a message's xid is, with the transaction's name behind it
_ROLLED_BACK_XID_AT: Final = 34
_PREPARED_XID_AT: Final = 26


@dataclass(frozen=True, slots=True)
class WireDifference:
    """The first place where both sides differ."""

    #: number of the frame, or the transaction, from 1
    number: int
    #: LSNs, letter, and bytes of those before it, which are equal
    before: tuple[str, ...]
    ours: str
    theirs: str
    #: the first byte of the message that differs; None: the LSNs do, or one side has nothing
    byte: int | None


@dataclass(slots=True)
class WireCompared:
    """What was compared, of one subject."""

    frames: int = 0
    transactions: int = 0
    bytes: int = 0
    difference: WireDifference | None = None
    before: deque[str] = field(default_factory=lambda: deque(maxlen=_CONTEXT))


class _Side:
    """What came from one side and was not compared yet."""

    def __init__(
        self, connection: SlotConnection, assembler: Assembler | None, *, once: bool
    ) -> None:
        self.connection = connection
        self.assembler = assembler
        self._once = once
        #: letter and OID → what was announced
        self._announced: dict[bytes, bytes] = {}
        self.frames: deque[Frame] = deque()
        self.transactions: deque[Transaction] = deque()
        self._waiting_bytes = 0

    @property
    def is_ahead(self) -> bool:
        waiting = len(self.frames) + len(self.transactions)
        return self._waiting_bytes > _AHEAD_BYTES_MAX or waiting > _AHEAD_MAX

    def take(self) -> int:
        """Take what is there; return the bytes of it."""
        taken = 0
        for _ in range(_AT_ONCE):
            if self.is_ahead or (frame := self.connection.receive()) is None:
                break
            taken += len(frame.data) + 1
            if self.assembler is None:
                if self._repeats(frame.data):
                    continue
                self.frames.append(frame)
                self._waiting_bytes += len(frame.data)
            elif (ended := self.assembler.take(frame)) is not None:
                self.transactions.append(ended)
        return taken

    def _repeats(self, data: bytes) -> bool:
        if not self._once or data[:1] not in b"RY":
            return False
        before = self._announced.get(data[:5])
        self._announced[data[:5]] = data
        return before == data

    def frame(self) -> Frame:
        frame = self.frames.popleft()
        self._waiting_bytes -= len(frame.data)
        return frame

    def close(self) -> None:
        while self.transactions:
            self.transactions.popleft().close()
        if self.assembler is not None:
            self.assembler.close()


class WireComparison:
    """One subject on both sides, from the moment at which both stream."""

    def __init__(
        self,
        subject: Subject,
        ours: SlotConnection,
        theirs: SlotConnection,
        *,
        is_live: bool,
    ) -> None:
        """Begin.

        Args:
            subject: what both were asked for.
            ours: the service's side, which streams.
            theirs: the walsender's, likewise.
            is_live: leave out announcements that only repeat what was announced.
        """
        self.subject = subject
        self._ours, self._theirs = (
            _Side(
                connection,
                Assembler() if by_transactions(subject) else None,
                once=subject.plugin == "pgoutput" and is_live,
            )
            for connection in (ours, theirs)
        )
        self._announced: tuple[dict[bytes, bytes], dict[bytes, bytes]] = ({}, {})
        #: of prepared transactions, by their xid and name, whose end is not known yet
        self._forgivable: dict[bytes, WireDifference] = {}
        self.result = WireCompared()

    def close(self) -> None:
        """Free what waits; connections are closed by whom opened them."""
        self._ours.close()
        self._theirs.close()

    def waiting_for(self) -> list[SlotConnection]:
        """Return the connections that something is expected from."""
        return [side.connection for side in (self._ours, self._theirs) if not side.is_ahead]

    def advance(self) -> bool:
        """Compare what has come, and give feedback; return whether anything has.

        Raises:
            ReplicationFailed: a stream ended.
        """
        taken = self._theirs.take() + self._ours.take()
        result = self.result
        while result.difference is None and self._ours.frames and self._theirs.frames:
            self._compare(self._ours.frame(), self._theirs.frame())
        while result.difference is None and self._ours.transactions and self._theirs.transactions:
            self._compare_transactions()
        for side in (self._ours, self._theirs):
            side.connection.feed_back()
        return taken > 0

    def has_reached(self, lsn: int) -> bool:
        """Whether both sides have sent all of what commits before *lsn*."""
        return self.result.difference is not None or all(
            side.connection.position >= lsn for side in (self._ours, self._theirs)
        )

    def finish(self, lsn: int) -> None:
        """Insist, once both sides have reached *lsn*, that neither has what the other has not."""
        if self.result.difference is None:
            self.result.difference = next(iter(self._forgivable.values()), None)
        if self.result.difference is not None:
            return
        for side, other in ((self._ours, self._theirs), (self._theirs, self._ours)):
            if side.transactions and side.transactions[0].end_lsn <= lsn:
                self._differ_in_transactions(
                    side.transactions[0] if side is self._ours else None,
                    side.transactions[0] if side is self._theirs else None,
                )
                return
            # What both have not sent to its end yet ends later.
            if not other.frames and _ends_by(side.frames, lsn, self.subject.plugin):
                first = side.frame()
                self._differ(*((first, None) if side is self._ours else (None, first)))
                return

    # ---- frames

    def _compare(self, ours: Frame, theirs: Frame) -> None:
        try:
            failpoint("certify.compare")
        except OSError:
            ours = ours._replace(data=ours.data + b" (corrupted)")
        if ours != theirs:
            self._differ(ours, theirs)
            return
        result, plugin = self.result, self.subject.plugin
        result.frames += 1
        result.bytes += len(theirs.data)
        if _is_end(theirs.data, plugin):
            result.transactions += 1
            self._done(theirs.end)
        result.before.append(described(theirs, plugin))

    def _differ(self, ours: Frame | None, theirs: Frame | None) -> None:
        plugin = self.subject.plugin
        self.result.difference = self._difference(
            self.result.frames,
            None if ours is None else (described(ours, plugin), ours.data),
            None if theirs is None else (described(theirs, plugin), theirs.data),
        )

    def _difference(
        self, equal: int, ours: tuple[str, bytes] | None, theirs: tuple[str, bytes] | None
    ) -> WireDifference:
        """Make a difference behind *equal* equal ones, of each side's words and bytes."""
        byte = None
        if ours is not None and theirs is not None and ours[1] != theirs[1]:
            byte = first_difference(ours[1], theirs[1])
        return WireDifference(
            equal + 1,
            tuple(self.result.before),
            "nothing" if ours is None else ours[0],
            "nothing" if theirs is None else theirs[0],
            byte,
        )

    def _done(self, lsn: int) -> None:
        for side in (self._ours, self._theirs):
            side.connection.done_lsn = max(side.connection.done_lsn, lsn)

    # ---- transactions

    def _compare_transactions(self) -> None:
        ours, theirs = (side.transactions.popleft() for side in (self._ours, self._theirs))
        if ours.title != theirs.title:
            self._differ_in_transactions(ours, theirs)
        else:
            self._compare_changes(ours, theirs)
        ours.close()
        theirs.close()
        if self.result.difference is not None:
            return
        result = self.result
        if (kind := theirs.title[:1]) == _ROLLED_BACK:
            self._forgivable.pop(theirs.title[_ROLLED_BACK_XID_AT:], None)
        elif kind == b"K":
            result.difference = self._forgivable.pop(theirs.title[_PREPARED_XID_AT:], None)
        result.transactions += 1
        result.before.append(_titled(theirs))
        self._done(theirs.end_lsn)

    def _compare_changes(self, ours: Transaction, theirs: Transaction) -> None:
        result = self.result
        ours_and_theirs = self._applied(ours, theirs)
        if is_origin_of_cuts(ours, theirs):
            ours_and_theirs = without_lone_origin(*ours_and_theirs)
        for our_change, their_change in itertools.zip_longest(*ours_and_theirs):
            if our_change != their_change or _is_corrupted():
                difference = self._difference_in_changes(our_change, their_change)
                if theirs.title[:1] == b"P":
                    self._forgivable[theirs.title[_PREPARED_XID_AT:]] = difference
                    # What is announced in there goes on to count.
                    deque(ours_and_theirs[0], maxlen=0)
                    deque(ours_and_theirs[1], maxlen=0)
                else:
                    result.difference = difference
                return
            result.frames += 1
            result.bytes += len(their_change.data)

    def _applied(
        self, ours: Transaction, theirs: Transaction
    ) -> tuple[Iterator[Change], Iterator[Change]]:
        return ours.applied(self._announced[0]), theirs.applied(self._announced[1])

    def _differ_in_transactions(self, ours: Transaction | None, theirs: Transaction | None) -> None:
        self.result.difference = self._difference(
            self.result.transactions,
            None if ours is None else (_titled(ours), ours.title),
            None if theirs is None else (_titled(theirs), theirs.title),
        )

    def _difference_in_changes(self, ours: Change | None, theirs: Change | None) -> WireDifference:
        return self._difference(
            self.result.transactions,
            None if ours is None else (_changed(ours), ours.data),
            None if theirs is None else (_changed(theirs), theirs.data),
        )


def by_transactions(subject: Subject) -> bool:
    """Whether transactions are compared, or frames."""
    return "streaming" in subject.options or "two_phase" in subject.options


def _is_corrupted() -> bool:
    try:
        failpoint("certify.compare")
    except OSError:
        return True
    return False


def _titled(transaction: Transaction) -> str:
    frame = Frame(transaction.end_lsn, transaction.end_lsn, transaction.title)
    return (
        f"a transaction that ends with {described(frame, '')}, bytes {transaction.title.hex(' ')}"
    )


def _changed(change: Change) -> str:
    shown = described(Frame(change.lsn, change.lsn, change.data), "pgoutput")
    return f"{shown}; tables announced as {[one.hex(' ') for one in change.relations]}"


def _is_end(data: bytes, plugin: str) -> bool:
    if plugin == "pgoutput":
        return data[:1] in b"CPKr"
    return data.startswith((b"COMMIT", b"PREPARE TRANSACTION", b"ROLLBACK PREPARED"))


def _ends_by(frames: deque[Frame], lsn: int, plugin: str) -> bool:
    return any(Lsn(frame.end) <= lsn and _is_end(frame.data, plugin) for frame in frames)
