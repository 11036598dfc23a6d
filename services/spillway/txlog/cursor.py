"""Reading the transaction log: a cursor is a place in the sequence of transactions.

A cursor belongs to one reader and one thread at a time; making one costs an index lookup and the
relation descriptors of one segment, wherever in the log it starts. It never sees past the log's
visible end, so it never meets half a transaction; where it finds a frame damaged it raises, with
file, byte and LSN.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from spillway._kernels.reorder.transaction_run import TransactionRun, find_run
from spillway.catalog.descriptor import RelationDescriptor
from spillway.errors import LsnNotRetained
from spillway.pg.lsn import Lsn
from spillway.txlog import frames
from spillway.txlog.segment import Frame, Segment, SegmentReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.decoding.transaction import TransactionHeader
    from spillway.txlog.reader import LogReader


#: Descriptors that a cursor keeps parsed: some 20 kB each, which cursors share.
_PARSED_MAX: Final = 256
#: … and the last ones that any cursor had, for a peek like the last one.
_RECENT_MAX: Final = 64

#: Descriptors that any cursor has, by their texts: equal ones once, so that encoders may compare
#: them by identity.
_shared: Final[WeakValueDictionary[bytes, RelationDescriptor]] = WeakValueDictionary()
_shared_lock: Final = threading.Lock()


@lru_cache(maxsize=_RECENT_MAX)
def _descriptor(text: bytes) -> RelationDescriptor:
    """Parse a descriptor, unless somebody has it."""
    found = _shared.get(text)
    if found is not None:
        return found
    parsed = RelationDescriptor.from_json(json.loads(text))
    with _shared_lock:
        return _shared.setdefault(text, parsed)


class LoggedRelations(Mapping[int, RelationDescriptor]):
    """Descriptors by id: where in the segment they are, read and parsed when they are asked for.

    A segment in which tables come and go has tens of thousands, and one who reads it asks for a
    few. Kept are the places of all, and at most :data:`_PARSED_MAX` descriptors.
    """

    def __init__(self, reader: SegmentReader | None = None) -> None:
        """Begin without any. Texts are read again with *reader*, and kept without one."""
        self._reader = reader
        self._texts: dict[int, bytes | int] = {}
        self._parsed: dict[int, RelationDescriptor] = {}

    def add(self, payload: memoryview, offset: int = 0) -> None:
        """Take a RELATION frame, which is at *offset* of the segment: from here on its id means
        what it says.
        """
        relation_id, _ = frames.RELATION_PREFIX.unpack_from(payload)
        self._texts[relation_id] = (
            bytes(payload[frames.RELATION_PREFIX.size :]) if self._reader is None else offset
        )
        self._parsed.pop(relation_id, None)

    def __getitem__(self, relation_id: int) -> RelationDescriptor:
        found = self._parsed.get(relation_id)
        if found is None:
            text = self._texts[relation_id]
            found = _descriptor(text if isinstance(text, bytes) else self._read(text))
            if len(self._parsed) >= _PARSED_MAX:
                self._parsed.clear()
            self._parsed[relation_id] = found
        return found

    def _read(self, offset: int) -> bytes:
        assert self._reader is not None
        payload = self._reader.payload(offset)
        if payload is None:
            raise frames.corrupt(
                str(self._reader.path), offset, 0, "a relation's frame fails its checksum"
            )
        return payload[frames.RELATION_PREFIX.size :]

    def __iter__(self) -> Iterator[int]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


class LoggedTransaction:
    """A transaction in the log. Its chunks must be read, or skipped, before the cursor moves on."""

    __slots__ = ("_cursor", "_first", "header", "relations")

    def __init__(
        self,
        cursor: TransactionCursor,
        header: TransactionHeader,
        relations: Mapping[int, RelationDescriptor],
        first: memoryview | None,
    ) -> None:
        self.header = header
        #: descriptors by id; a live view, to be used while this transaction is the cursor's current
        #: one
        self.relations = relations
        self._cursor = cursor
        self._first = first

    def chunks(self) -> Iterator[memoryview]:
        """Return the changes in LSN order (decoding/change_format.py); once.

        Raises:
            CorruptTransactionLog: a frame is damaged.
        """
        if self._first is not None:
            return iter((self._first,) if len(self._first) else ())
        # Unlike a generator it does not hold the chunk that it gave last, which may have a row of 1
        # GB, while nobody asks.
        return iter(self._cursor._next_chunk, None)  # noqa: SLF001 - one unit in two classes

    def close(self) -> None:
        """Do nothing: what it reads is the cursor's."""


class TransactionCursor:
    """A place in a transaction log.

    ``next`` returns what has its ``final_lsn`` (a transaction's commit record starts there) at
    *lsn* or later, in that order: transactions, and what else the log has headers for.
    """

    def __init__(self, log: LogReader, lsn: int) -> None:
        """Place the cursor at *lsn*.

        Raises:
            LsnNotRetained: the log begins after *lsn*.
        """
        self._log = log
        self._lsn = lsn
        self._segment: Segment | None = None
        self._reader: SegmentReader | None = None
        self._offset = 0
        self._relations = LoggedRelations()
        self._in_large = False
        self._limit = 0
        #: how far WAL was decoded when ``next`` last looked: with None from ``next``, nothing that
        #: commits before this is missing
        self.decoded_lsn = 0
        start = log.start_lsn
        if start is not None and lsn < start:
            raise LsnNotRetained(
                f"position {Lsn(lsn)} is no longer retained; the transaction log begins at "
                f"{Lsn(start)}",
                hint="Create the slot again, or take a position at or after that LSN.",
                lsn=str(Lsn(lsn)),
                first_lsn=str(Lsn(start)),
            )

    @property
    def place(self) -> int:
        """What has its ``final_lsn`` here or later comes next."""
        return self._lsn

    def close(self) -> None:
        """Close the file that the cursor reads."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def next(self) -> LoggedTransaction | None:
        """Return the next visible transaction, or None when there is none yet; never waits.

        Raises:
            CorruptTransactionLog: a frame is damaged.
            LsnNotRetained: the log was cut off past the cursor.
        """
        piece = self._next_piece(runs=False)
        assert not isinstance(piece, TransactionRun)
        return piece

    def next_run(self) -> TransactionRun | LoggedTransaction | None:
        """Return what comes next, small transactions as many at a time as can be had; None when
        there is nothing yet.

        A run is to be read before the cursor moves on.

        Raises:
            As :meth:`next`.
        """
        return self._next_piece(runs=True)

    def _next_piece(self, *, runs: bool) -> TransactionRun | LoggedTransaction | None:
        while self._in_large:
            self._next_chunk()
        visible = self._log.snapshot()
        if visible is None:
            return None
        newest = visible.segments[-1]
        if self._segment is None:
            if self._lsn < visible.segments[0].start_lsn:
                raise self._gap()
            first = self._segment_for(visible.segments)
            self._enter(first, visible.end if first is newest else first.size)
        while True:
            segment = self._segment
            assert segment is not None
            if segment.cut:
                raise self._gap()
            self._limit = visible.end if segment is newest else segment.size
            if runs and segment is newest and 0 < visible.end - self._offset == len(visible.tail):
                run = self._run(memoryview(visible.tail))
                if run is not None:
                    return run
            while self._offset < self._limit:
                piece = (self._run() if runs else None) or self._transaction()
                if piece is not None:
                    return piece
            if segment is newest:
                self.decoded_lsn = visible.decoded_lsn
                return None
            following = self._successor(visible.segments, segment)
            self._enter(following, visible.end if following is newest else following.size)

    def _run(self, window: memoryview | None = None) -> TransactionRun | None:
        """Go behind the small transactions that come next, and are in *window* if that is given;
        return them if any is wanted.
        """
        if window is None:
            assert self._reader is not None
            window = self._reader.window(self._offset, self._limit)
        run, size, last_final_lsn = find_run(window, self._lsn, self._relations)
        self._offset += size
        self._lsn = max(self._lsn, last_final_lsn + 1)
        return run

    def _transaction(self) -> LoggedTransaction | None:
        """Go behind the frame that comes next; return what it begins if that is wanted."""
        if self._offset >= self._limit:
            return None
        offset = self._offset
        frame = self._frame()
        if frame.kind == frames.RELATION:
            self._relations.add(frame.payload, offset)
        elif frame.kind == frames.TRANSACTION:
            header, end = frames.decode_transaction_header(frame.payload)
            if header.final_lsn >= self._lsn:
                self._lsn = header.final_lsn + 1
                return LoggedTransaction(self, header, self._relations, frame.payload[end:])
        elif frame.kind == frames.BEGIN:
            self._in_large = True
            header, _ = frames.decode_transaction_header(frame.payload)
            if header.final_lsn >= self._lsn:
                self._lsn = header.final_lsn + 1
                return LoggedTransaction(self, header, self._relations, None)
            while self._in_large:
                self._next_chunk()
        return None

    def _next_chunk(self) -> memoryview | None:
        if not self._in_large:
            return None
        frame = self._frame()
        if frame.kind == frames.CHANGES:
            return frame.payload
        self._in_large = False
        if frame.kind != frames.END:
            raise self._corrupt("a transaction without its end")
        return None

    def _frame(self) -> Frame:
        assert self._reader is not None
        frame = self._reader.frame(self._offset, self._limit)
        if frame is None:
            raise self._corrupt("a frame fails its checksum")
        self._offset = frame.next_offset
        return frame

    def _corrupt(self, what: str) -> Exception:
        assert self._segment is not None
        self._log.note_damage(self._segment)
        return frames.corrupt(str(self._segment.path), self._offset, self._lsn, what)

    def _segment_for(self, segments: tuple[Segment, ...]) -> Segment:
        """Return the last segment that starts at or before the cursor's LSN."""
        found = segments[0]
        for segment in segments:
            if segment.start_lsn > self._lsn:
                break
            found = segment
        return found

    def _successor(self, segments: tuple[Segment, ...], segment: Segment) -> Segment:
        for candidate in segments:
            if candidate.start_lsn > segment.start_lsn:
                if candidate.follows == segment.start_lsn:
                    return candidate
                break
        raise self._gap()

    def _gap(self) -> LsnNotRetained:
        return LsnNotRetained(
            f"position {Lsn(self._lsn)} was removed from the transaction log while it was read",
            hint="Read again; if the slot was invalidated meanwhile, its invalidation_reason says "
            "why.",
            lsn=str(Lsn(self._lsn)),
        )

    def _enter(self, segment: Segment, limit: int) -> None:
        """Open *segment* at the cursor's LSN, with the descriptors that hold there."""
        self.close()
        if segment.lost:
            self._log.note_damage(segment)
            raise frames.corrupt(str(segment.path), 0, self._lsn, "the segment is lost")
        try:
            reader = SegmentReader(segment.path)
        except FileNotFoundError as error:
            raise self._gap() from error
        self._segment, self._reader = segment, reader
        self._log.index(segment, limit)
        self._offset = segment.offset_for(self._lsn, limit)
        self._relations = LoggedRelations(reader)
        for offset in tuple(segment.relations):
            if offset >= self._offset:
                break
            frame = reader.frame(offset, limit)
            if frame is None or frame.kind != frames.RELATION:
                raise self._corrupt("a relation's frame fails its checksum")
            self._relations.add(frame.payload, offset)
