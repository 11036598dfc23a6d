"""Ours beside PostgreSQL's: a decoder on a real server's pg_wal, and the server's own slot, on the
same WAL.

:class:`DecodingSession` bootstraps a catalog mirror over SQL, creates a logical slot for
comparison, reads the segment files as the server writes them and renders what comes out with the
test_decoding plugin.
"""

from __future__ import annotations

import itertools
import secrets
import struct
import time
from typing import TYPE_CHECKING

from harness import changes
from harness.oracle import LogicalSlot, OracleChange, create_slot
from spillway._kernels.reorder.transaction_run import TransactionRun
from spillway.catalog.bootstrap import bootstrap_sql
from spillway.decoding.capture import EVERYTHING
from spillway.decoding.decoder import Decoder
from spillway.delivery.reader import SlotReader
from spillway.pg.lsn import Lsn
from spillway.pg.versions import version_of_server
from spillway.plugins.interface import PluginContext
from spillway.plugins.registry import create_plugin
from spillway.wal.reader import WalDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from harness.cluster import Database
    from spillway.catalog.bootstrap import Bootstrap
    from spillway.decoding.capture import CaptureFilter
    from spillway.decoding.transaction import Transaction, TransactionHeader


#: What the last line of a transaction begins with, or a line that stands alone.
_ENDS = (
    "COMMIT",
    "PREPARE TRANSACTION",
    "ROLLBACK PREPARED",
    "message: transactional: 0",
    "closing a streamed block",
    "aborting streamed",
    "preparing streamed",
    "committing streamed",
)


class _Waiting:
    """A cursor over the one transaction that the decoder hands over just now."""

    def __init__(self) -> None:
        self.decoded_lsn = 0
        self.transaction: Transaction | TransactionRun | None = None

    @property
    def place(self) -> int:
        return 0

    def next_run(self) -> Transaction | TransactionRun | None:
        transaction, self.transaction = self.transaction, None
        return transaction

    def close(self) -> None: ...


class _Measured:
    """A transaction whose largest chunk is remembered."""

    def __init__(self, transaction: Transaction, sink: RenderingSink) -> None:
        self.header = transaction.header
        self.relations = transaction.relations
        self._transaction = transaction
        self._sink = sink

    def chunks(self) -> Iterator[memoryview]:
        for chunk in self._transaction.chunks():
            self._sink.chunk_bytes_max = max(self._sink.chunk_bytes_max, len(chunk))
            yield chunk

    def close(self) -> None: ...


class RenderingSink:
    """A transaction sink that keeps what a slot's reader and test_decoding make of each
    transaction.
    """

    def __init__(
        self,
        plugin: str,
        options: Mapping[str, str],
        context: PluginContext,
        two_phase_at: int = 0,
    ) -> None:
        self._cursor = _Waiting()
        made = create_plugin(plugin, options, context)
        self._binary = made.binary
        self._reader = SlotReader(self._cursor, made, 0, None, two_phase_at)
        self.headers: list[TransactionHeader] = []
        self.lines: list[OracleChange] = []
        self.consistent_at: int | None = None
        self.decoded_lsn = 0
        self.chunk_bytes_max = 0

    def consistent(self, lsn: int) -> None:
        if self.consistent_at is None:
            self.consistent_at = lsn

    def transaction(self, transaction: Transaction) -> None:
        header = transaction.header
        assert not self.headers or header.final_lsn > self.headers[-1].final_lsn
        self.headers.append(header)
        self._render(_Measured(transaction, self))

    def transactions(self, run: TransactionRun) -> None:
        headers = [transaction.header for transaction in TransactionRun(run.data, run.relations)]
        lsns = [header.final_lsn for header in (*self.headers[-1:], *headers)]
        assert lsns == sorted(set(lsns))
        self.headers += headers
        self._render(run)

    def _render(self, transaction: Transaction | TransactionRun) -> None:
        self._cursor.transaction = transaction
        batch = self._reader.step(1 << 30).messages
        lengths = struct.unpack(f"<{batch.count}I", batch.lengths)
        lsns = struct.unpack(f"<{batch.count}Q", batch.lsns)
        xids = struct.unpack(f"<{batch.count}I", batch.xids)
        ends = itertools.accumulate(lengths)
        for length, end, lsn, xid in zip(lengths, ends, lsns, xids, strict=True):
            payload = batch.payload[end - length : end]
            data = rf"\x{payload.hex()}" if self._binary else bytes(payload).decode()
            self.lines.append(OracleChange(str(Lsn(lsn)), xid, data))

    def progress(self, decoded_lsn: int) -> None:
        assert decoded_lsn >= self.decoded_lsn
        self.decoded_lsn = decoded_lsn


class CountingSink(RenderingSink):
    """Parses chunks, which checks them, instead of rendering them."""

    def __init__(self) -> None:
        self.headers = []
        self.rows = 0
        self.consistent_at = None
        self.decoded_lsn = 0

    def transaction(self, transaction: Transaction) -> None:
        self.headers.append(transaction.header)
        self.rows += len(changes.parse(transaction.chunks()))

    def transactions(self, run: TransactionRun) -> None:
        for transaction in run:
            self.transaction(transaction)


class DecodingSession:
    """A decoder that reads *database*'s WAL from the server's directory."""

    def __init__(
        self,
        database: Database,
        directory: Path,
        *,
        work_mem_bytes: int = 64 << 20,
        options: Mapping[str, str] | None = None,
        slot: LogicalSlot | None = None,
        bootstrap: Callable[[str], Bootstrap] = bootstrap_sql,
        two_phase: bool = False,
        stream_bytes: int | None = None,
        settings: Mapping[str, str] | None = None,
        plugin: str = "test_decoding",
        capture: CaptureFilter = EVERYTHING,
    ) -> None:
        """Begin to decode.

        Args:
            database: what to decode.
            directory: for spill files.
            work_mem_bytes: the decoder's.
            options: of the plugin, on both sides.
            slot: the server's slot to compare with; made here by default. Pass one that was made
                while the server was idle when it is not now: made under load, a slot's first
                transactions may be decoded with an older catalog, or fail ("could not map
                filenode").
            bootstrap: how the catalog is read, from the database's DSN.
            two_phase: of both slots. The server's must begin after ours for their two_phase_at to
                mean the same: give no slot then.
            stream_bytes: with it transactions are streamed, in parts of about that.
            settings: of the sessions that read the server's slot.
            plugin: what renders, on both sides; :meth:`assert_equal_to_server` is for
                test_decoding's lines.
            capture: our decoder's filter.
        """
        self.database = database
        self.directory = directory
        self.work_mem_bytes = work_mem_bytes
        self.options = dict(options or {})
        self.capture = capture
        # Keeps the segments that the decoder still has to read, as the product's does.
        self._physical_slot = f"wal_{secrets.token_hex(4)}"
        database.query(
            "SELECT pg_create_physical_replication_slot(%s, true)", [self._physical_slot]
        )
        begun = bootstrap(database.dsn)
        self.version = version_of_server(begun.server_version)
        self.context = PluginContext(
            "ours", database.name, begun.server_version, two_phase=two_phase
        )
        self.sink = RenderingSink(plugin, self.options, self.context)
        self.decoder = Decoder(
            self.version,
            database.oid,
            begun.mirror,
            self.sink,
            work_mem_bytes=work_mem_bytes,
            spill_dir=directory / "spill",
            start=int(begun.redo_lsn),
            capture=capture,
        )
        self._stream_from = self.decoder.position
        self._stream_bytes = stream_bytes
        self._stream()
        self._collected: list[OracleChange] = []
        # Creating it logs a running-xacts record: with nothing running, both begin there.
        self.slot = slot or create_slot(
            database,
            f"oracle_{secrets.token_hex(4)}",
            plugin,
            two_phase=two_phase,
            settings=settings,
        )

    def decode(
        self, *, batch_hook: Callable[[DecodingSession], object] | None = None
    ) -> list[OracleChange]:
        """Decode all that the server has written by now; return every line so far."""
        with self.database.connect() as connection:
            connection.execute("SET synchronous_commit = on")
            row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
            assert row is not None
            until = int(Lsn.parse(row[0]))
            # A commit that wrote something flushes what is before it.
            connection.execute("CREATE TABLE flushed (); DROP TABLE flushed")
        deadline = time.monotonic() + 30
        while (before := self.decoder.position) < until:
            wal = WalDirectory(self.database.cluster.wal_directory)
            for batch in wal.batches(self.decoder.position):
                self.decoder.process(batch)
                if batch_hook:
                    batch_hook(self)
            assert time.monotonic() < deadline or self.decoder.position > before, (
                f"WAL ends at {Lsn(self.decoder.position)}, before {Lsn(until)}"
            )
            if self.decoder.position < until:
                time.sleep(0.02)
        return self.sink.lines

    def collect(self) -> None:
        """Take what the server's slot has by now. The server does not decode to the end what it can
        look up to have been rolled back: whoever compares such transactions collects before.
        """
        self._collected += self.slot.get(self.options)

    def restart(self, state: bytes, start_decoding_at: int) -> None:
        """Go on from a serialised state, as after a crash; the sink keeps what it has."""
        self.decoder.close()
        self.sink.decoded_lsn = 0
        self.decoder = Decoder.restore(
            state,
            self.version,
            self.sink,
            work_mem_bytes=self.work_mem_bytes,
            spill_dir=self.directory / "spill",
            start_decoding_at=start_decoding_at,
            capture=self.capture,
        )
        self._stream()

    def _stream(self) -> None:
        if self._stream_bytes is not None:
            self.decoder.stream_from(self._stream_from, self._stream_bytes)

    def assert_equal_to_server(self) -> list[OracleChange]:
        """Compare every line with the server's slot; return them.

        Only transactions that both can have are compared: the server's slot may be older than our
        consistent point, and sees what commits between the two readings.
        """
        ours = list(self.decode())
        assert self.sink.consistent_at is not None
        # The record that made us consistent may be a commit: not ours any more.
        wal = WalDirectory(self.database.cluster.wal_directory)
        first = next(iter(wal.records(self.sink.consistent_at - 1))).end_lsn
        last = self.decoder.position
        theirs: list[OracleChange] = []
        transaction: list[OracleChange] = []
        for line in (*self._collected, *self.slot.peek(self.options)):
            transaction.append(line)
            if line.data.startswith(_ENDS):
                if first < int(Lsn.parse(line.lsn)) <= last:
                    theirs += transaction
                transaction = []
        # With skip-empty-xacts a message stands alone, without BEGIN and COMMIT.
        theirs += [line for line in transaction if first < int(Lsn.parse(line.lsn)) <= last]
        for i, (our, their) in enumerate(zip(ours, theirs, strict=False)):
            assert our == their, f"line {i} of {len(ours)} and {len(theirs)}: {our} != {their}"
        assert len(ours) == len(theirs)
        return ours

    def close(self) -> None:
        self.decoder.close()
        self.database.query("SELECT pg_drop_replication_slot(%s)", [self._physical_slot])
        assert list((self.directory / "spill").iterdir()) == []
