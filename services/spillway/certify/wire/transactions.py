"""A stream of pgoutput taken apart into what a subscriber makes of it: transactions in the order in
which they end, each with its changes.

Where a transaction that is streamed while in progress is cut, and whether it is streamed at all,
depends in PostgreSQL on what else its memory holds, and when its decoding began; here on the
transaction alone. What comes of it must not differ: which transactions, in which order, with which
changes at which LSNs, and what was announced of a table by the time that each change is applied.
That is what is made here of either stream. Left out are what only a cut decides: Stream Start and
Stop, the Begin that has its place otherwise, how often a relation is announced, types, the LSN of
an Origin (a part does not know it yet), transactions without changes, what was streamed of a
(sub)transaction that aborted, and messages within transactions: a part says of them that they are
the transaction's, whatever subtransaction they are of, so that those of one that aborted later are
there if they were streamed before.

Whether there is an Origin is a cut's matter only where the sides differ in what began the first
part (:func:`is_origin_of_cuts`). A transaction that comes whole has the origin of its commit, and a
first part that of the first change in it (ReorderBufferProcessTXN): a message has none, nor has a
change that is PostgreSQL's own, such as the command counter's and the invalidations that a CREATE
TABLE begins with. That first change may have been of a subtransaction that had aborted by the time
that the other side cut.

Changes wait for their transaction's end in a file, once they are more than a little.
"""

from __future__ import annotations

import itertools
import struct
import tempfile
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.certify.wire.connection import Frame

_IN_MEMORY_BYTES: Final = 1 << 18
_HEAD: Final = struct.Struct("<QII")
_BEGIN_XID_AT: Final = 17
_ORIGIN_NAME_AT: Final = 9
_ENDS: Final = b"CcPp"
_CHANGES: Final = b"IUDTMRYO"


class Change(NamedTuple):
    """A change as it is applied."""

    lsn: int
    data: bytes
    #: of its tables, as announced last
    relations: tuple[bytes, ...]


class Transaction:
    """What ends at one place: of kind C (committed), P (prepared), K, r, or M for a message outside
    of transactions.
    """

    def __init__(self, *, is_streamed: bool = False) -> None:
        #: some of it was sent before its end was known
        self.is_streamed = is_streamed
        self._file = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - closed in close()
            max_size=_IN_MEMORY_BYTES, prefix="spillway-certify-"
        )
        self._aborted: set[int] = set()
        #: (sub)transaction → how many changes it has
        self._changes: dict[int, int] = {}
        #: of the last frame
        self.end_lsn = 0
        #: what its last message says of it
        self.title = b""

    def close(self) -> None:
        """Free its file. May be repeated."""
        self._file.close()

    def put(self, lsn: int, xid: int, data: bytes) -> None:
        """Append a change of (sub)transaction *xid*."""
        self._file.write(_HEAD.pack(lsn, xid, len(data)) + data)
        if data[:1] not in b"RYO":
            self._changes[xid] = self._changes.get(xid, 0) + 1

    def abort(self, subxid: int) -> None:
        """Leave out what subtransaction *subxid* did so far."""
        self._aborted.add(subxid)
        self._changes.pop(subxid, None)

    @property
    def has_aborted(self) -> bool:
        """A subtransaction of it had been streamed and then aborted."""
        return bool(self._aborted)

    @property
    def is_empty(self) -> bool:
        """There is no change in it that is applied."""
        return not self._changes

    def applied(self, announced: dict[bytes, bytes]) -> Iterator[Change]:
        """Give changes as they are applied, and take down in *announced* what is said of tables."""
        self._file.seek(0)
        while head := self._file.read(_HEAD.size):
            lsn, xid, size = _HEAD.unpack(head)
            data = self._file.read(size)
            if xid in self._aborted:
                continue
            kind = data[:1]
            if kind == b"R":
                announced[data[1:5]] = data
            elif kind != b"Y":
                yield Change(lsn, data, tuple(announced.get(oid, b"") for oid in _tables(data)))


class Assembler:
    """Frames in, transactions out. Used for one stream."""

    def __init__(self) -> None:
        self._streamed: dict[int, Transaction] = {}
        self._open: Transaction | None = None
        self._xid = 0
        self._in_part = False

    def close(self) -> None:
        """Free what has not ended."""
        for transaction in (*self._streamed.values(), self._open):
            if transaction is not None:
                transaction.close()

    def take(self, frame: Frame) -> Transaction | None:
        """Take the next frame; return the transaction that it ends, if any."""
        kind = frame.data[:1]
        if kind == b"S":
            self._xid = int.from_bytes(frame.data[1:5], "big")
            if self._xid not in self._streamed:
                self._streamed[self._xid] = Transaction(is_streamed=True)
            self._open = self._streamed[self._xid]
            self._in_part = True
        elif kind == b"E":
            self._open, self._in_part = None, False
        elif kind == b"A":
            self._abort(*struct.unpack_from(">II", frame.data, 1))
        elif kind in b"Bb":
            self._open = Transaction()
            at = _BEGIN_XID_AT if kind == b"B" else _BEGIN_XID_AT + 8
            self._xid = int.from_bytes(frame.data[at : at + 4], "big")
        elif kind in _CHANGES and self._open is not None:
            self._change(self._open, frame)
        elif kind in _ENDS:
            return self._end(kind, frame)
        else:
            alone = Transaction()
            alone.title, alone.end_lsn = frame.data, frame.end
            return alone
        return None

    def _abort(self, xid: int, subxid: int) -> None:
        if xid != subxid:
            if (transaction := self._streamed.get(xid)) is not None:
                transaction.abort(subxid)
        elif (transaction := self._streamed.pop(xid, None)) is not None:
            transaction.close()

    def _change(self, transaction: Transaction, frame: Frame) -> None:
        data, xid = frame.data, self._xid
        if data[:1] == b"M":
            return
        if data[:1] == b"O":
            data = b"O" + data[_ORIGIN_NAME_AT:]
        elif self._in_part:
            xid = int.from_bytes(data[1:5], "big")
            data = data[:1] + data[5:]
        # The announcements' frames have no LSN, and an Origin's is where a cut is.
        lsn = 0 if data[:1] in b"ORY" else frame.start
        transaction.put(lsn, xid, data)

    def _end(self, kind: bytes, frame: Frame) -> Transaction | None:
        data = frame.data
        if kind == b"c":
            xid = int.from_bytes(data[1:5], "big")
            ended = self._streamed.pop(xid, None)
            title = b"C" + data[5:] + data[1:5]
        elif kind == b"C":
            ended, self._open = self._open, None
            title = b"C" + data[1:] + self._xid.to_bytes(4, "big")
        else:
            title = b"P" + data[1:]
            if kind == b"p":
                ended = self._streamed.pop(int.from_bytes(data[26:30], "big"), None)
            else:
                ended, self._open = self._open, None
        if ended is None:
            ended = Transaction()
        if title[:1] == b"C" and ended.is_empty:
            ended.close()
            return None
        ended.title, ended.end_lsn = title, frame.end
        return ended


def is_origin_of_cuts(ours: Transaction, theirs: Transaction) -> bool:
    """Say whether one side may rightly have an Origin in a transaction that the other has none
    in.
    """
    return ours.is_streamed != theirs.is_streamed or ours.has_aborted or theirs.has_aborted


def without_lone_origin(
    ours: Iterator[Change], theirs: Iterator[Change]
) -> tuple[Iterator[Change], Iterator[Change]]:
    """Leave out the Origin that one side's changes begin with, if the other's do not; only where
    it is a matter of cuts.
    """
    firsts = next(ours, None), next(theirs, None)
    has_origin = [first is not None and first.data[:1] == b"O" for first in firsts]
    if has_origin[0] != has_origin[1]:
        firsts = (
            None if has_origin[0] else firsts[0],
            None if has_origin[1] else firsts[1],
        )
    return _led(firsts[0], ours), _led(firsts[1], theirs)


def _led(first: Change | None, rest: Iterator[Change]) -> Iterator[Change]:
    return rest if first is None else itertools.chain((first,), rest)


def _tables(data: bytes) -> Iterator[bytes]:
    kind = data[:1]
    if kind in b"IUD":
        yield data[1:5]
    elif kind == b"T":
        for number in range(int.from_bytes(data[1:5], "big")):
            yield data[6 + 4 * number : 10 + 4 * number]
