"""The sink of the decoder in process: encodes each transaction as it comes, and counts what comes
out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spillway._kernels.messages.buffer import MessageBuffer

if TYPE_CHECKING:
    from spillway._kernels.reorder.transaction_run import TransactionRun
    from spillway.decoding.transaction import Transaction
    from spillway.plugins.interface import OutputPlugin

#: a batch is taken out of the buffer when it has so many bytes, as a stream does
TAKE_BYTES: Final = 1 << 20


class EncodingSink:
    """Implements :class:`spillway.decoding.sink.TransactionSink`."""

    def __init__(self, plugin: OutputPlugin) -> None:
        self._plugin = plugin
        self._out = MessageBuffer(TAKE_BYTES)
        self.messages = 0
        self.payload_bytes = 0

    def consistent(self, lsn: int) -> None:
        """Hear that decoding is consistent."""

    def progress(self, decoded_lsn: int) -> None:
        """Hear how far decoding is."""

    def transaction(self, transaction: Transaction) -> None:
        """Encode one transaction."""
        header = transaction.header
        if not header.is_ordinary:
            return
        self._plugin.begin(header, self._out)
        for chunk in transaction.chunks():
            self._plugin.changes(header, chunk, transaction.relations, self._out)
            if self._out.nbytes >= TAKE_BYTES:
                self._take()
        self._plugin.commit(header, self._out)
        if self._out.nbytes >= TAKE_BYTES:
            self._take()

    def transactions(self, run: TransactionRun) -> None:
        """Encode a run of small transactions."""
        while not run.exhausted:
            self._plugin.transactions(run, self._out, TAKE_BYTES)
            if self._out.nbytes >= TAKE_BYTES:
                self._take()

    def finish(self) -> None:
        """Take what is left."""
        self._plugin.flush(self._out)
        self._take()

    def take(self, payload: memoryview | bytes, lengths: memoryview | bytes) -> None:
        """Do with a batch what a consumer would; a subclass looks into it."""

    def _take(self) -> None:
        batch = self._out.take()
        self.messages += batch.count
        self.payload_bytes += len(batch.payload)
        self.take(batch.payload, batch.lengths)


class RowCountingSink(EncodingSink):
    """Reads every Arrow stream and counts its rows: PostgreSQL has nothing to compare those
    messages with.
    """

    rows = 0

    def take(self, payload: memoryview | bytes, lengths: memoryview | bytes) -> None:
        """Count the rows of each message."""
        import pyarrow as pa  # noqa: PLC0415 - its memory is not the other sink's

        begin = 0
        for length in memoryview(lengths).cast("B").cast("I"):
            stream = memoryview(payload)[begin : begin + length]
            begin += length
            self.rows += pa.ipc.open_stream(stream).read_all().num_rows
