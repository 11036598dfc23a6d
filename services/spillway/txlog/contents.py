"""The log's table of contents: which tables have changes in which stretch of it, when those were
committed and by which transactions.

Whoever looks for a row's changes in 10 GB of log reads the stretches that can have them, and no
other. In comes a sealed segment, read once; out goes a :class:`Contents`: *blocks*, each of about
:data:`BLOCK_BYTES` of changes or one larger transaction, with the range of their commit LSNs,
commit times and xids, and for each table that has changes in one the operations and their number.
It is kept beside the segment as ``<name>.contents``; the writer's process makes it soon after the
segment is sealed (:meth:`LogContents.keep_one`). Like the segment's index it is a cache: where it
is missing, damaged or of another segment of that name, the segment is read again. What the last
segment has so far is known in memory only, and grows as it is asked for.

A table is known by its oid, so that one that was renamed is one table, and under every name that it
had. Logical messages are of none: they have oid 0. Only transactions that committed are counted,
once each: neither parts of one in progress nor what is merely prepared. A message outside of
transactions has a place and no commit: where a block has nothing else, its first commit time is
above its last.

Format 1 knew nothing of messages; a file of that format is made anew.

Bounds: :data:`SEGMENTS_MAX` tables of contents in memory, some kB each and 16 bytes for each table
of a block.

::

    file   := u32 crc32c of the rest | header | block* | entry* | tables as JSON
    header := u32 format | u64 size of the segment | u64 its last final_lsn | u32 blocks |
              u32 entries
    block  := u64 first, last final_lsn | i64 first, last commit time | u32 least, greatest xid |
              u64 transactions | u64 bytes of changes | u64 entries
    entry  := u32 table | u32 operations | u64 changes      those of a block side by side
"""

from __future__ import annotations

import json
import logging
import struct
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Self
from weakref import WeakKeyDictionary

from spillway._kernels.pg.crc32c import crc32c
from spillway._kernels.reorder.change_search import NO_RELATION, Survey
from spillway._kernels.reorder.transaction_run import TransactionRun
from spillway.decoding.transaction import TransactionKind
from spillway.errors import CorruptTransactionLog, LsnNotRetained, SpillwayError
from spillway.storage.durable_files import replace_cache
from spillway.txlog.cursor import TransactionCursor
from spillway.txlog.segment import SIDECARS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.txlog.cursor import LoggedTransaction
    from spillway.txlog.reader import LogReader
    from spillway.txlog.segment import Segment

log = logging.getLogger(__name__)

_SUFFIX: Final = SIDECARS[1]
#: A block that has so much takes no more. Reading one takes about a millisecond.
BLOCK_BYTES: Final = 512 << 10
#: Tables of contents in memory: those of 16 GB of log.
SEGMENTS_MAX: Final = 256
_FORMAT: Final = 2
_HEADER: Final = struct.Struct("<IQQII")
_BLOCK: Final = struct.Struct("<QQqqIIQQQ")
_ENTRY: Final = struct.Struct("<IIQ")

#: The oid under which logical messages are counted.
NO_TABLE: Final = 0

#: What is committed, once each.
_COMMITTED: Final = frozenset({TransactionKind.COMMIT, TransactionKind.COMMIT_PREPARED})


class TableName(NamedTuple):
    """A table under a name that it had; bytes that are no characters are escaped
    (surrogateescape).
    """

    oid: int
    schema: str
    name: str
    #: (schema, name) of the partitioned tables that it was in: the parent first
    ancestors: tuple[tuple[str, str], ...] = ()


class Found(NamedTuple):
    """What a block has of a table."""

    #: bits of ``change_search.OPERATION_BITS``
    operations: int
    changes: int


@dataclass(slots=True)
class Block:
    """Transactions that lie side by side in a segment."""

    first_lsn: int
    last_lsn: int
    #: microseconds since 2000-01-01; the least is above the greatest when nothing commits in it
    time_min: int
    time_max: int
    xid_min: int
    xid_max: int
    transactions: int
    nbytes: int
    #: by the table's oid; logical messages by 0
    tables: dict[int, Found] = field(default_factory=dict)


class Contents:
    """What a segment has."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.names: set[TableName] = set()
        #: transactions whose final_lsn is before this are in it
        self.upto_lsn = 0

    def add(self, survey: Survey, tables: Mapping[int, Found]) -> None:
        """Take in what comes behind the last block, or in it while that is small."""
        last = self.blocks[-1] if self.blocks else None
        if last is None or last.nbytes + survey.nbytes > BLOCK_BYTES:
            last = Block(
                survey.first_lsn, survey.last_lsn, survey.time_min, survey.time_max,
                survey.xid_min, survey.xid_max, 0, 0,
            )  # fmt: skip
            self.blocks.append(last)
        last.last_lsn = survey.last_lsn
        last.time_min = min(last.time_min, survey.time_min)
        last.time_max = max(last.time_max, survey.time_max)
        last.xid_min = min(last.xid_min, survey.xid_min)
        last.xid_max = max(last.xid_max, survey.xid_max)
        last.transactions += survey.transactions
        last.nbytes += survey.nbytes
        merged = dict(last.tables)
        for oid, found in tables.items():
            before = merged.get(oid, Found(0, 0))
            merged[oid] = Found(
                before.operations | found.operations, before.changes + found.changes
            )
        # Replaced as a whole: others may read the block of the last segment.
        last.tables = merged
        self.upto_lsn = survey.last_lsn + 1

    def encode(self, segment: Segment) -> bytes:
        """Return the file that says so of *segment*, which is sealed."""
        oids = sorted({oid for block in self.blocks for oid in block.tables})
        numbers = {oid: number for number, oid in enumerate(oids)}
        blocks = b"".join(
            _BLOCK.pack(
                b.first_lsn, b.last_lsn, b.time_min, b.time_max, b.xid_min, b.xid_max,
                b.transactions, b.nbytes, len(b.tables),
            )
            for b in self.blocks
        )  # fmt: skip
        entries = b"".join(
            _ENTRY.pack(numbers[oid], found.operations, found.changes)
            for block in self.blocks
            for oid, found in block.tables.items()
        )
        # In ASCII: names may have bytes that are no characters.
        names = json.dumps({"oids": oids, "names": sorted(self.names)}).encode()
        count = len(entries) // _ENTRY.size
        head = _HEADER.pack(_FORMAT, segment.size, segment.last_final_lsn, len(self.blocks), count)
        body = b"".join((head, blocks, entries, names))
        return crc32c(body).to_bytes(4, "little") + body

    @classmethod
    def decode(cls, data: bytes, segment: Segment) -> Self | None:
        """Reverse :meth:`encode`; None when *data* is damaged or of another segment."""
        body = memoryview(data)[4:]
        if len(body) < _HEADER.size or crc32c(body) != int.from_bytes(data[:4], "little"):
            return None
        version, size, last_final_lsn, blocks, entries = _HEADER.unpack_from(body)
        if version != _FORMAT or (size, last_final_lsn) != (segment.size, segment.last_final_lsn):
            return None
        at = _HEADER.size
        behind = at + blocks * _BLOCK.size
        end = behind + entries * _ENTRY.size
        known = json.loads(bytes(body[end:]))
        oids = known["oids"]
        contents = cls()
        contents.names = {
            TableName(n[0], n[1], n[2], tuple(map(tuple, n[3]))) for n in known["names"]
        }
        found = _ENTRY.iter_unpack(body[behind:end])
        for *values, count in _BLOCK.iter_unpack(body[at:behind]):
            block = Block(*values)
            for _ in range(count):
                number, operations, changes = next(found)
                block.tables[oids[number]] = Found(operations, changes)
            contents.blocks.append(block)
        contents.upto_lsn = last_final_lsn + 1
        return contents


class LogContents:
    """The tables of contents of one log. For any thread."""

    def __init__(self) -> None:
        self._cache: OrderedDict[int, tuple[tuple[int, int], Contents]] = OrderedDict()
        self._lock = threading.Lock()
        self._reading: dict[int, threading.Lock] = {}
        #: segments whose file is there, or can't be made
        self._kept: set[int] = set()

    def of(
        self,
        log: LogReader,
        segment: Segment,
        upto_lsn: int,
        *,
        is_sealed: bool,
        check: Callable[[], None] = lambda: None,
    ) -> Contents:
        """Return what *segment* has of transactions whose final_lsn is before *upto_lsn*, where the
        next one begins or, of the last, how far WAL is decoded.

        *check* is called now and then while a segment is read, and may raise.

        Raises:
            CorruptTransactionLog: it is damaged.
            LsnNotRetained: it was removed.
            StorageError: it can't be read.
        """
        known = (segment.size, segment.last_final_lsn) if is_sealed else (0, 0)
        with self._lock:
            one = self._reading.setdefault(segment.start_lsn, threading.Lock())
        with one:
            with self._lock:
                found = self._cache.get(segment.start_lsn)
                if found is not None and found[0] in ((0, 0), known):
                    self._cache.move_to_end(segment.start_lsn)
                    contents = found[1]
                else:
                    contents = None
            if contents is None and is_sealed:
                contents = load(segment)
            contents = contents or Contents()
            if contents.upto_lsn <= segment.last_final_lsn or not is_sealed:
                extend(contents, log, segment, upto_lsn, check)
            with self._lock:
                self._cache[segment.start_lsn] = known, contents
                while len(self._cache) > SEGMENTS_MAX:
                    self._reading.pop(self._cache.popitem(last=False)[0], None)
        return contents

    def keep_one(self, log: LogReader) -> bool:
        """Write the file of a sealed segment that has none; False when all have. For the writer's
        process.
        """
        visible = log.snapshot()
        if visible is None:
            return False
        sealed = visible.segments[:-1]
        self._kept &= {segment.start_lsn for segment in sealed}
        for segment, following in zip(sealed, visible.segments[1:], strict=True):
            if segment.lost or segment.start_lsn in self._kept:
                continue
            self._kept.add(segment.start_lsn)
            if load(segment) is not None:
                continue
            try:
                contents = self.of(log, segment, following.start_lsn, is_sealed=True)
                replace_cache(_path(segment), contents.encode(segment))
                if not segment.path.exists():
                    # Removed meanwhile, and its file before this was there.
                    _path(segment).unlink(missing_ok=True)
            except (SpillwayError, OSError) as error:
                # Damage is noted by whoever met it; who searches reads the segment.
                self._log_failure(segment, error)
            return True
        return False

    @staticmethod
    def _log_failure(segment: Segment, error: Exception) -> None:
        log.warning("the contents of %s can't be kept: %s", segment.path, error)


_all: Final[WeakKeyDictionary[LogReader, LogContents]] = WeakKeyDictionary()
_all_lock: Final = threading.Lock()


def contents_of(reader: LogReader) -> LogContents:
    """Return the tables of contents of the log that *reader* shows; they live as long as it."""
    with _all_lock:
        found = _all.get(reader)
        if found is None:
            found = _all[reader] = LogContents()
        return found


def _path(segment: Segment) -> Path:
    return segment.path.with_suffix(_SUFFIX)


def load(segment: Segment) -> Contents | None:
    """Return what the file beside *segment*, which is sealed, says; None without one that is
    right.
    """
    try:
        return Contents.decode(_path(segment).read_bytes(), segment)
    except OSError:
        return None


def extend(
    contents: Contents,
    log: LogReader,
    segment: Segment,
    upto_lsn: int,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Read on in *segment*, before *upto_lsn*, from where *contents* end; raises as
    :meth:`LogContents.of`.
    """
    cursor = TransactionCursor(log, max(contents.upto_lsn, segment.start_lsn))
    try:
        for piece in pieces(cursor, upto_lsn):
            check()
            survey = Survey()
            relations = piece.relations
            if isinstance(piece, TransactionRun):
                survey.run(piece)
            elif piece.header.kind in _COMMITTED:
                survey.transaction(piece.header)
                for chunk in piece.chunks():
                    survey.chunk(chunk)
                    check()
            elif is_outside(piece):
                for chunk in piece.chunks():
                    survey.chunk(chunk)
                if survey.nbytes:
                    # Others of its kind are invalidations, which nobody looks for.
                    survey.outside(piece.header)
            if survey.transactions:
                contents.add(survey, _tables(contents, survey, relations))
    finally:
        cursor.close()


def pieces(
    cursor: TransactionCursor, upto_lsn: int
) -> Iterator[TransactionRun | LoggedTransaction]:
    """Yield what *cursor* gives before *upto_lsn*; each is to be read before the next is asked
    for.
    """
    while (piece := cursor.next_run()) is not None:
        if isinstance(piece, TransactionRun):
            if piece.next_lsn() >= upto_lsn:
                return
            piece.limit(upto_lsn)
            yield piece
            if piece.reached_upto:
                return
        else:
            if piece.header.final_lsn >= upto_lsn:
                return
            yield piece


def is_committed(transaction: LoggedTransaction) -> bool:
    """Say whether the log has *transaction* as one that committed."""
    return transaction.header.kind in _COMMITTED


def is_outside(transaction: LoggedTransaction) -> bool:
    """Say whether it is none, but a logical message outside of transactions (or invalidations)."""
    return transaction.header.kind is TransactionKind.MESSAGE


def _tables(
    contents: Contents, survey: Survey, relations: Mapping[int, RelationDescriptor]
) -> dict[int, Found]:
    tables: dict[int, Found] = {}
    for relation_id, (operations, changes) in survey.take_relations().items():
        if relation_id == NO_RELATION:
            tables[NO_TABLE] = Found(operations, changes)
            continue
        relation = relations[relation_id]
        before = tables.get(relation.oid, Found(0, 0))
        tables[relation.oid] = Found(before.operations | operations, before.changes + changes)
        ancestors = tuple((a.schema, a.name) for a in relation.ancestors)
        contents.names.add(TableName(relation.oid, relation.schema, relation.name, ancestors))
    return tables


#: What reading a segment raises that is not what was written, or not there any more.
UNREADABLE: Final = (CorruptTransactionLog, LsnNotRetained)
