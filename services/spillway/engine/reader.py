"""A slot's way through the transaction log: cursor → output plugin → messages.

One :class:`SlotReader` serves one peek, get or stream; it runs on a worker thread, never on the event
loop. It stops at transaction ends, as PostgreSQL does, and says after every step what a consumer that has
processed everything so far may confirm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spillway._kernels.message_buffer import MessageBuffer
from spillway.txlog import TransactionCursor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.plugins.interface import OutputPlugin
    from spillway.plugins.messages import EncodedBatch
    from spillway.txlog import LoggedTransaction, TransactionLog


@dataclass(frozen=True, slots=True)
class Step:
    """What :meth:`SlotReader.step` read."""

    messages: EncodedBatch
    #: everything that commits before this was handed out, whole
    confirm_lsn: int
    #: nothing more is visible just now
    exhausted: bool
    #: the reader met a transaction at or past its upto_lsn, or WAL is decoded past it: it is done
    reached_end: bool


class SlotReader:
    """Reads transactions whose commit record starts in [*start_lsn*, *upto_lsn*)."""

    def __init__(
        self,
        log: TransactionLog,
        plugin: OutputPlugin,
        start_lsn: int,
        upto_lsn: int | None,
    ) -> None:
        """Place the reader; *plugin* is its own from here on, and is shut down with it.

        Raises:
            LsnNotRetained: the log begins after *start_lsn*.
        """
        try:
            self._cursor = TransactionCursor(log, start_lsn)
        except BaseException:
            plugin.shutdown()
            raise
        self._plugin = plugin
        self._upto_lsn = upto_lsn
        self._out = MessageBuffer(64 * 1024)
        self._transaction: LoggedTransaction | None = None
        self._chunks: Iterator[memoryview] | None = None
        #: what was handed out so far ends here
        self.confirm_lsn = start_lsn
        self._gathered_to = start_lsn
        self._reached_end = False
        #: transactions read to their end, and payload bytes made
        self.transactions = 0
        self.bytes = 0

    @property
    def between(self) -> bool:
        """Whether the last step ended where a transaction ends."""
        return self._chunks is None

    def close(self) -> None:
        """Free the cursor and shut the plugin down."""
        try:
            self._cursor.close()
        finally:
            self._plugin.shutdown()

    def step(self, batch_bytes: int, *, message_limit: int | None = None) -> Step:
        """Encode until *batch_bytes* of payload are there, *message_limit* is reached, or nothing is left.

        A large transaction is handed out in several steps. *message_limit* is looked at where a
        transaction ends, and so may be exceeded by the last one.
        """
        out = self._out
        exhausted = False
        while not self._reached_end:
            if self._chunks is None and not self._next_transaction():
                exhausted = True
                break
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
        self.bytes += len(messages.payload)
        return Step(messages, self.confirm_lsn, exhausted, self._reached_end)

    def _next_transaction(self) -> bool:
        """Begin the next transaction; False when there is none, now or ever."""
        transaction = self._cursor.next()
        upto = self._upto_lsn
        if transaction is None:
            decoded = self._cursor.decoded_lsn
            self._reached_end = upto is not None and decoded >= upto
            self._gathered_to = max(self._gathered_to, min(decoded, upto) if upto else decoded)
            return False
        if upto is not None and transaction.header.final_lsn >= upto:
            self._reached_end = True
            self._gathered_to = max(self._gathered_to, upto)
            return False
        self._transaction = transaction
        self._chunks = transaction.chunks()
        self._plugin.begin(transaction.header, self._out)
        return True

    def _encode(self, batch_bytes: int) -> None:
        """Encode the current transaction to its end, or until *batch_bytes* are there."""
        transaction, chunks = self._transaction, self._chunks
        assert transaction is not None
        assert chunks is not None
        for chunk in chunks:
            self._plugin.changes(transaction.header, chunk, transaction.relations, self._out)
            if self._out.nbytes >= batch_bytes:
                return
        self._plugin.commit(transaction.header, self._out)
        self._chunks = self._transaction = None
        self.transactions += 1
        self._gathered_to = transaction.header.end_lsn
