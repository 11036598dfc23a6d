"""A slot's way through the transaction log: cursor → output plugin → messages.

One :class:`SlotReader` serves one peek, get or stream; it runs on a worker thread, never on the
event loop. It stops at transaction ends, as PostgreSQL does, and says after every step what a
consumer that has processed everything so far may confirm.

The log holds what any slot may want, so the reader chooses (``decoding/transaction.py`` has the
kinds):

- A prepared transaction goes out at its PREPARE when the plugin wants that (``two_phase``,
  ``filter_prepare``) and the PREPARE is not before ``two_phase_at``, the LSN that two-phase
  delivery began at; one from before goes out whole with its COMMIT PREPARED. For everyone else it
  is an ordinary transaction, at COMMIT PREPARED.
- Parts of a transaction in progress go out when the plugin wants them (``streaming``) and this
  reader has seen all of them from the first on. Then the end brings only what is left. Otherwise it
  brings the transaction whole.

Parts are not counted in what may be confirmed as if they were delivered: a position is about
transactions that have *ended* before it. A consumer that comes back after some parts gets the
transaction whole at its end.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from spillway._kernels.encoders.change_cut import changes_after
from spillway._kernels.messages.buffer import MessageBuffer
from spillway._kernels.reorder.transaction_run import TransactionRun
from spillway.decoding.invalidations import invalidation_change
from spillway.decoding.transaction import Streamed, TransactionKind
from spillway.delivery.model import Change
from spillway.errors import ValueNotRepresentable
from spillway.pg.lsn import Lsn
from spillway.txlog.cursor import TransactionCursor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spillway.decoding.transaction import Transaction, TransactionHeader
    from spillway.plugins.interface import OutputPlugin
    from spillway.plugins.messages import EncodedBatch
    from spillway.txlog.reader import LogReader

    Callback = Callable[[TransactionHeader, MessageBuffer], None]

# Looked up once; as an attribute of the enumeration it would cost at each transaction.
_MESSAGE: Final = TransactionKind.MESSAGE

#: Buffers that steps share, the last used first: as many as steps are taken at a time, not as
#: readers wait for their clients.
_BUFFERS_MAX: Final = 4
_buffers: Final[list[MessageBuffer]] = []
_NO_BUFFER: Final = MessageBuffer(0)


class Cursor(Protocol):
    """Where transactions come from; ``txlog.TransactionCursor`` is one."""

    decoded_lsn: int

    @property
    def place(self) -> int: ...

    def next_run(self) -> Transaction | TransactionRun | None: ...

    def close(self) -> None: ...


class Step(NamedTuple):
    """What :meth:`SlotReader.step` read."""

    messages: EncodedBatch
    #: everything that commits before this was handed out, whole
    confirm_lsn: int
    #: nothing more is visible just now
    exhausted: bool
    #: the reader met a transaction at or past its upto_lsn, or WAL is decoded past it: it is done
    reached_end: bool


class Counts(NamedTuple):
    """What was handed out, as pg_stat_replication_slots counts it; bytes are of payload."""

    #: transactions to their end
    total_txns: int = 0
    total_bytes: int = 0
    #: transactions that were streamed, and the parts of them
    stream_txns: int = 0
    stream_count: int = 0
    stream_bytes: int = 0
    #: what the plugin made: changes, begins and commits, as it has them
    total_messages: int = 0

    def plus(self, counts: Counts, before: Counts | None = None) -> Counts:
        """Return the sum with *counts*, of which *before* are in it already."""
        new = map(operator.sub, counts, before or Counts())
        return Counts(*map(operator.add, self, new))


class SlotReader:
    """Reads what has its final_lsn in [*start_lsn*, *upto_lsn*): where a transaction's commit
    record starts.
    """

    def __init__(
        self,
        cursor: Cursor,
        plugin: OutputPlugin,
        start_lsn: int,
        upto_lsn: int | None,
        two_phase_at: int = 0,
    ) -> None:
        """Read what *cursor*, which stands at *start_lsn*, gives; it and *plugin* are the reader's
        own from here on.
        """
        self._cursor = cursor
        self._plugin = plugin
        self._upto_lsn = upto_lsn
        self._two_phase_at = two_phase_at
        # Only during a step: between two there is nothing in it.
        self._out = _NO_BUFFER
        # What is being handed out: its log entry, its header as the plugin is told it, the chunks
        # that are left, and what to call after them when that is not commit.
        self._transaction: Transaction | None = None
        self._header: TransactionHeader | None = None
        self._chunks: Iterator[memoryview] | None = None
        self._endings: tuple[tuple[Callback, TransactionHeader], ...] = ()
        # Small transactions that are being handed out.
        self._run: TransactionRun | None = None
        # Where the parts ended whose changes are left out of the chunks; 0 for none.
        self._streamed_upto = 0
        # Payload bytes made before the current part.
        self._part_start = 0
        # Transactions of which all parts so far were handed out, and how many.
        self._streams: dict[int, int] = {}
        #: what was handed out so far ends here
        self.confirm_lsn = start_lsn
        self._gathered_to = start_lsn
        #: final_lsn of the first transaction that the last step met, 0 when it met none
        self.first_lsn = 0
        self._reached_end = False
        # What the next step raises.
        self._failure: ValueNotRepresentable | None = None
        #: transactions read to their end, and payload bytes made
        self.transactions = 0
        self.bytes = 0
        self.messages = 0
        self._streamed_transactions = 0
        self._parts = 0
        self._part_bytes = 0

    @classmethod
    def on_log(
        cls,
        log: LogReader,
        plugin: OutputPlugin,
        start_lsn: int,
        upto_lsn: int | None,
        two_phase_at: int = 0,
    ) -> Self:
        """Place a reader in *log*; *plugin* is its own from here on, and is shut down with it.

        Raises:
            LsnNotRetained: the log begins after *start_lsn*.
        """
        try:
            cursor = TransactionCursor(log, start_lsn)
        except BaseException:
            plugin.shutdown()
            raise
        return cls(cursor, plugin, start_lsn, upto_lsn, two_phase_at)

    @property
    def counts(self) -> Counts:
        """What was handed out so far."""
        return Counts(
            self.transactions,
            self.bytes,
            self._streamed_transactions,
            self._parts,
            self._part_bytes,
            self.messages,
        )

    @property
    def between(self) -> bool:
        """Whether the last step ended where a transaction ends."""
        return self._chunks is None

    @property
    def ends_at(self) -> int:
        """Where the transaction ends that the last step began and did not end; 0 between two."""
        return 0 if self.between or self._header is None else self._header.end_lsn

    @property
    def place(self) -> int:
        """Where the next step begins, between two transactions: what has its final_lsn here or
        later comes next.
        """
        return self._cursor.place if self._run is None else self._run.next_lsn()

    @property
    def state(self) -> object | None:
        """The plugin's, between two transactions: see :meth:`OutputPlugin.state`; None when it
        can't be told.
        """
        return self._plugin.state() if self.between and not self._streams else None

    def close(self) -> None:
        """Free the cursor and shut the plugin down."""
        self._run = self._transaction = self._chunks = None
        try:
            self._cursor.close()
        finally:
            self._plugin.shutdown()

    def step(self, batch_bytes: int, *, message_limit: int | None = None) -> Step:
        """Encode until *batch_bytes* of payload are there, *message_limit* is reached, or nothing
        is left.

        A large transaction is handed out in several steps. *message_limit* is looked at where a
        transaction ends, and so may be exceeded by the last one.
        """
        if self._failure is not None:
            raise self._failure
        out = self._out = _take_buffer()
        try:
            return self._step(out, batch_bytes, message_limit)
        except ValueNotRepresentable as error:
            if "character" not in error.details or not out.count:
                raise
            # A character that the client has not: what is before it is handed out, as a walsender
            # has sent it by then. It does not count as confirmed.
            self._failure = error
            messages = out.take()
            messages.notices = self._plugin.take_notices()
            self.bytes += len(messages.payload)
            return Step(messages, self.confirm_lsn, exhausted=False, reached_end=False)
        finally:
            self._out = _NO_BUFFER
            # Also what a step that failed has left in it.
            out.clear()
            if len(_buffers) < _BUFFERS_MAX:
                _buffers.append(out)

    def _step(self, out: MessageBuffer, batch_bytes: int, message_limit: int | None) -> Step:
        exhausted = False
        self.first_lsn = self._run.next_lsn() if self._run is not None else 0
        while not self._reached_end:
            if self._chunks is None and self._run is None and not self._next_transaction():
                exhausted = True
                break
            if self._run is not None:
                self._encode_run(self._run, batch_bytes, message_limit)
            else:
                self._encode(batch_bytes)
            if out.nbytes >= batch_bytes:
                break
            if self._chunks is None and message_limit is not None and out.count >= message_limit:
                break
        if self._chunks is None:
            # A plugin that gathers rows over transactions (arrow) gives what it has; only then does
            # everything up to here count as handed out.
            self._plugin.flush(out)
            self.confirm_lsn = max(self.confirm_lsn, self._gathered_to)
        messages = out.take()
        messages.notices = self._plugin.take_notices()
        self.bytes += len(messages.payload)
        self.messages += messages.count
        return Step(messages, self.confirm_lsn, exhausted, self._reached_end)

    def _next_transaction(self) -> bool:
        """Begin the next transaction, or run of small ones; False when there is none, now or
        ever.
        """
        upto = self._upto_lsn
        while (transaction := self._cursor.next_run()) is not None:
            if isinstance(transaction, TransactionRun):
                self.first_lsn = self.first_lsn or transaction.next_lsn()
                if upto is not None:
                    transaction.limit(upto)
                self._run = transaction
                return True
            header = transaction.header
            self.first_lsn = self.first_lsn or header.final_lsn
            if upto is not None and header.final_lsn >= upto:
                self._reached_end = True
                self._gathered_to = max(self._gathered_to, upto)
                return False
            if header.kind <= _MESSAGE and not (header.streamed or self._streams):
                self._transaction, self._header = transaction, header
                self._chunks = transaction.chunks()
                self._plugin.begin(header, self._out)
                return True
            if self._choose(transaction, header):
                return True
            self._gathered_to = header.end_lsn
        decoded = self._cursor.decoded_lsn
        self._reached_end = upto is not None and decoded >= upto
        self._gathered_to = max(self._gathered_to, min(decoded, upto) if upto else decoded)
        return False

    def _hand_out(
        self,
        transaction: Transaction,
        header: TransactionHeader,
        *endings: tuple[Callback, TransactionHeader],
        changes: bool = True,
    ) -> None:
        """Make *transaction* the current one; without *changes* the *endings* are called, after
        what it invalidated.
        """
        self._transaction = transaction
        self._header = header
        self._chunks = transaction.chunks() if changes else _invalidations(transaction.header)
        self._endings = endings

    def _choose(self, transaction: Transaction, header: TransactionHeader) -> bool:
        """Begin what is no ordinary transaction; False when the plugin is to hear nothing of it."""
        plugin = self._plugin
        if header.prepared is not None and header.prepared.empty and plugin.skips_empty_prepared:
            return False
        match header.kind:
            case TransactionKind.PREPARE:
                if self._takes_prepared(header) and header.final_lsn >= self._two_phase_at:
                    assert header.prepared is not None
                    if header.prepared.empty:
                        ending = (plugin.prepare, header)
                        self._hand_out(transaction, header, ending, changes=False)
                    else:
                        self._begin_prepared(transaction, header)
                    return True
            case TransactionKind.COMMIT_PREPARED:
                return self._commit_prepared(transaction, header)
            case TransactionKind.ROLLBACK_PREPARED:
                if self._takes_prepared(header):
                    self._streams.pop(header.xid, None)
                    ending = (plugin.rollback_prepared, header)
                    self._hand_out(transaction, header, ending, changes=False)
                    return True
                return self._abort_streamed(transaction, header)
            case TransactionKind.COMMIT:
                self._begin_committed(transaction, header)
                return True
            case TransactionKind.MESSAGE:
                self._hand_out(transaction, header)
                plugin.begin(header, self._out)
                return True
            case TransactionKind.STREAM:
                return self._begin_part(transaction, header)
            case TransactionKind.STREAM_ABORT:
                return self._abort_streamed(transaction, header)
        return False

    def _takes_prepared(self, header: TransactionHeader) -> bool:
        """Say whether the plugin treats this prepared transaction as one (FilterPrepare)."""
        return self._plugin.two_phase and not self._plugin.filter_prepare(header)

    def _commit_prepared(self, transaction: Transaction, header: TransactionHeader) -> bool:
        """Hand out a COMMIT PREPARED (DecodeCommit, ReorderBufferFinishPrepared)."""
        prepared = header.prepared
        assert prepared is not None
        if not self._takes_prepared(header):
            if prepared.empty:
                return False
            header = header._replace(kind=TransactionKind.COMMIT, prepared=None)
            self._begin_committed(transaction, header)
            return True
        ending = (self._plugin.commit_prepared, header)
        if prepared.empty or prepared.prepare_lsn >= self._two_phase_at:
            self._hand_out(transaction, header, ending, changes=False)
        else:
            prepare = header._replace(
                kind=TransactionKind.PREPARE,
                final_lsn=prepared.prepare_lsn,
                end_lsn=prepared.prepare_end_lsn,
                commit_time=prepared.prepare_time,
            )
            self._begin_prepared(transaction, prepare, ending)
        return True

    def _begin_committed(self, transaction: Transaction, header: TransactionHeader) -> None:
        if self._saw_all_parts(header):
            self._begin_rest(transaction, header, (self._plugin.stream_commit, header))
        else:
            self._hand_out(transaction, header)
            self._plugin.begin(header, self._out)

    def _begin_prepared(
        self,
        transaction: Transaction,
        header: TransactionHeader,
        *endings: tuple[Callback, TransactionHeader],
    ) -> None:
        plugin = self._plugin
        if self._saw_all_parts(header):
            self._begin_rest(transaction, header, (plugin.stream_prepare, header), *endings)
        else:
            self._hand_out(transaction, header, (plugin.prepare, header), *endings)
            plugin.begin_prepare(header, self._out)

    # ---- streaming

    def _begin_part(self, transaction: Transaction, header: TransactionHeader) -> bool:
        """Hand out a part, if the plugin streams and the parts before were handed out."""
        streamed = header.streamed
        assert streamed is not None
        if not self._plugin.streaming:
            return False
        if streamed.parts != self._streams.get(header.xid, 0) + 1:
            # It began before this reader did, or another transaction had this xid.
            return self._give_up(transaction, header)
        self._streamed_transactions += streamed.parts == 1
        self._streams[header.xid] = streamed.parts
        self._hand_out(transaction, header, (self._plugin.stream_stop, header))
        self._part_start = self.bytes + self._out.nbytes
        self._plugin.stream_start(header, self._out)
        return True

    def _give_up(self, transaction: Transaction, header: TransactionHeader) -> bool:
        """Take back parts that were handed out and do not fit what comes; False when there were
        none.
        """
        if self._streams.pop(header.xid, None) is None:
            return False
        self._hand_out(transaction, header, self._aborted(header, header.xid), changes=False)
        return True

    def _saw_all_parts(self, header: TransactionHeader) -> bool:
        """Say whether a transaction that ends was handed out in parts so far; it is no longer."""
        seen = self._streams.pop(header.xid, 0)
        if not seen:
            return False
        if header.streamed is not None and header.streamed.parts == seen:
            return True
        ending, aborted = self._aborted(header, header.xid)
        ending(aborted, self._out)
        return False

    def _begin_rest(
        self,
        transaction: Transaction,
        header: TransactionHeader,
        *endings: tuple[Callback, TransactionHeader],
    ) -> None:
        """Hand out, as one more part, what was not streamed of a transaction that ends."""
        streamed = header.streamed
        assert streamed is not None
        self._streamed_upto = streamed.upto_lsn
        if not streamed.first_lsn:
            # Nothing but what its end invalidates.
            self._hand_out(transaction, header, *endings)
            return
        part = header._replace(
            kind=TransactionKind.STREAM,
            streamed=replace(streamed, parts=streamed.parts + 1),
        )
        self._hand_out(transaction, part, (self._plugin.stream_stop, part), *endings)
        self._part_start = self.bytes + self._out.nbytes
        self._plugin.stream_start(part, self._out)

    def _abort_streamed(self, transaction: Transaction, header: TransactionHeader) -> bool:
        """Say what aborted of transactions that were handed out in parts; False when nothing
        did.
        """
        streamed = header.streamed
        if streamed is None or not self._streams:
            return False
        endings = []
        for xid in streamed.aborted_xids:
            # After a crash of the server each is a transaction of its own.
            top_xid = header.xid or xid
            if top_xid in self._streams:
                endings.append(self._aborted(header, xid))
                if top_xid == xid:
                    del self._streams[xid]
        if endings:
            self._hand_out(transaction, header, *endings, changes=False)
        return bool(endings)

    def _aborted(self, header: TransactionHeader, xid: int) -> tuple[Callback, TransactionHeader]:
        """Return the call that says that *xid* aborted."""
        streamed = header.streamed or Streamed(0, 0)
        header = header._replace(
            xid=header.xid or xid,
            kind=TransactionKind.STREAM_ABORT,
            # PostgreSQL gives no LSN for what a crash ended.
            end_lsn=header.end_lsn if header.xid else 0,
            streamed=replace(streamed, aborted_xid=xid),
        )
        return self._plugin.stream_abort, header

    def _encode(self, batch_bytes: int) -> None:
        """Encode the current transaction to its end, or until *batch_bytes* are there."""
        transaction, header, chunks = self._transaction, self._header, self._chunks
        assert transaction is not None
        assert header is not None
        assert chunks is not None
        for chunk in chunks if not self._streamed_upto else self._rest(chunks):
            self._plugin.changes(header, chunk, transaction.relations, self._out)
            if self._out.nbytes >= batch_bytes:
                return
        if not self._endings:
            self._plugin.commit(header, self._out)
            self.transactions += 1
        else:
            self._end_special(header)
        self._chunks = self._transaction = self._header = None
        self._gathered_to = transaction.header.end_lsn

    def _encode_run(self, run: TransactionRun, batch_bytes: int, message_limit: int | None) -> None:
        """Encode transactions of *run* until there is enough, to its end, or to upto_lsn."""
        taken = run.taken
        if self._streams and run.has_any_of(self._streams):
            # It has the xid of a transaction that was streamed in part and never ended.
            self._encode_one(next(run, None))
        else:
            self._plugin.transactions(run, self._out, batch_bytes, message_limit)
        self.transactions += run.taken - taken
        if run.taken > taken:
            self._gathered_to = run.last_end_lsn
        if run.reached_upto:
            assert self._upto_lsn is not None
            self._reached_end = True
            self._gathered_to = max(self._gathered_to, self._upto_lsn)
        if run.exhausted or run.reached_upto:
            self._run = None

    def _encode_one(self, transaction: Transaction | None) -> None:
        """Encode one small transaction; parts that were handed out under its xid are taken back."""
        if transaction is None:
            return
        header = transaction.header
        self._saw_all_parts(header)
        self._plugin.begin(header, self._out)
        for chunk in transaction.chunks():
            self._plugin.changes(header, chunk, transaction.relations, self._out)
        self._plugin.commit(header, self._out)

    def _end_special(self, header: TransactionHeader) -> None:
        """Make the calls that end what is no ordinary transaction."""
        for ending, header_at_end in self._endings:
            ending(header_at_end, self._out)
        if header.kind is TransactionKind.STREAM:
            self._parts += 1
            self._part_bytes += self.bytes + self._out.nbytes - self._part_start
        if len(self._endings) > 1 or header.kind is not TransactionKind.STREAM:
            self.transactions += 1
        self._streamed_upto = 0
        self._endings = ()

    def _rest(self, chunks: Iterator[memoryview]) -> Iterator[memoryview]:
        """Leave out of *chunks* what was streamed."""
        for chunk in chunks:
            rest = changes_after(chunk, self._streamed_upto)
            if len(rest):
                yield rest


def _take_buffer() -> MessageBuffer:
    # Steps are taken on several threads: between a look and a pop another one may be faster.
    try:
        return _buffers.pop()
    except IndexError:
        return MessageBuffer(64 * 1024)


def _invalidations(header: TransactionHeader) -> Iterator[memoryview]:
    """Yield what a plugin gets of a transaction whose changes it does not take at its end."""
    if header.invalidated:
        yield memoryview(invalidation_change(header.xid, header.final_lsn, header.invalidated))


def changes_of(messages: EncodedBatch, *, binary: bool) -> list[Change]:
    """Unpack *messages* into rows; peek and get answer in JSON, so rows are what is wanted."""
    payload = messages.payload
    lengths = memoryview(messages.lengths).cast("I")
    lsns = memoryview(messages.lsns).cast("Q")
    xids = memoryview(messages.xids).cast("I")
    changes, start = [], 0
    for length, lsn, xid in zip(lengths, lsns, xids, strict=True):
        piece = bytes(payload[start : start + length])
        start += length
        changes.append(_change(Lsn(lsn), xid, piece, binary=binary))
    return changes


def _change(lsn: Lsn, xid: int, piece: bytes, *, binary: bool) -> Change:
    if binary:
        return Change(lsn, xid, "\\x" + piece.hex())
    try:
        return Change(lsn, xid, piece.decode())
    except UnicodeDecodeError:
        return Change(lsn, xid, piece.decode(errors="replace"), piece)
