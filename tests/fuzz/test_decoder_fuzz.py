"""Damaged records through the whole decoder: catalog redo, reorder kernels, TOAST, ends of
transactions.

A real server's WAL from a serialised state on; each round lays the records out anew, with a few of
them damaged under a right checksum. The decoder delivers, or raises a typed error that says where;
what it delivers goes through the plugins too. Never a crash, a hang, or a memory that grows with a
number that damage wrote.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from harness.damage import (
    damage,
    damage_record,
    lay_out,
    raw_records,
    renamed,
    rounds,
    seeded,
)
from harness.decoding_session import DecodingSession
from harness.wal_writer import WalWriter
from spillway._kernels.messages.buffer import MessageBuffer
from spillway._kernels.wal.walker import Walker
from spillway.catalog.descriptor import Memberships, PublicationOptions, RelationDescriptor
from spillway.decoding.decoder import Decoder
from spillway.decoding.sink import TransactionSink
from spillway.errors import CorruptWal, DecodingError, SpillwayError, WalError
from spillway.plugins import registry
from spillway.plugins.callback_driver import CallbackDriver
from spillway.plugins.callbacks import CallbackPlugin
from spillway.plugins.interface import OutputPlugin, PluginContext
from spillway.wal.reader import WalDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from harness.cluster import Database
    from spillway.decoding.transaction import Transaction, TransactionHeader

WORKLOAD = """
    CREATE TABLE t (id int PRIMARY KEY, v text, n numeric, j jsonb, a int[]);
    ALTER TABLE t ALTER v SET STORAGE EXTERNAL;
    INSERT INTO t SELECT g, repeat(md5(g::text), g * 20), g / 7.0, jsonb_build_object('k', g),
        ARRAY[g, NULL]
        FROM generate_series(1, 12) g;
    BEGIN; UPDATE t SET n = n + 1; SAVEPOINT a; DELETE FROM t WHERE id < 3; ROLLBACK TO a;
    DELETE FROM t WHERE id = 4; COMMIT;
    CREATE TYPE mood AS ENUM ('sad', 'ok'); ALTER TABLE t ADD m mood DEFAULT 'ok';
    INSERT INTO t (id, v) VALUES (100, 'x') ON CONFLICT (id) DO UPDATE SET v = 'y';
    INSERT INTO t (id, v) VALUES (100, 'x') ON CONFLICT (id) DO UPDATE SET v = 'y';
    ALTER TABLE t REPLICA IDENTITY FULL; UPDATE t SET id = id + 1000 WHERE id < 8;
    SELECT pg_logical_emit_message(true, 'p', 'transactional'), pg_logical_emit_message(false, 'q',
        'not');
    BEGIN; INSERT INTO t (id) VALUES (5000); PREPARE TRANSACTION 'g'; COMMIT PREPARED 'g';
    CREATE TABLE u (id int, v text); TRUNCATE t, u;
    VACUUM FULL pg_class; CLUSTER pg_attribute USING pg_attribute_relid_attnum_index; ANALYZE t;
    VACUUM pg_type; DROP TABLE u;
    CHECKPOINT; INSERT INTO t (id, v) SELECT g, 'w' || g FROM generate_series(1, 30) g;
    CREATE VIEW w AS SELECT * FROM t;
"""
SEGMENT_SIZE = 1 << 24
#: records between two states
EVERY = 50
#: records that are decoded after the first damaged one
AFTER = 200
CHUNK_BYTES_MAX = 8 << 20
OUTPUT_BYTES_MAX = 64 << 20


class ReadAll(CallbackPlugin):
    """Looks at everything that callbacks are given."""

    def change(self, txn, relation, change) -> None:  # type: ignore[no-untyped-def]
        self.write(str((dict(change.new or {}), dict(change.old or {}))))

    def truncate(self, txn, relations, truncation) -> None:  # type: ignore[no-untyped-def]
        self.write(str([relation.name for relation in relations]))

    def message(self, txn, message) -> None:  # type: ignore[no-untyped-def]
        self.write(message.content)


OPTIONS: dict[str, dict[str, str]] = {
    "arrow": {"numeric_as": "text", "temporal_as": "text"},
    "pgoutput": {"proto_version": "2", "publication_names": "p", "messages": "on"},
}


def plugins(version: int) -> list[OutputPlugin]:
    """One of each plugin, pgoutput with text and with binary values."""
    context = PluginContext("s", "d", version)
    made = [
        registry.create_plugin(name, OPTIONS.get(name, {}), context)
        for name in registry.plugin_names()
    ]
    made.append(
        registry.create_plugin("pgoutput", {**OPTIONS["pgoutput"], "binary": "on"}, context)
    )
    made.append(CallbackDriver({}, context, plugin_name="all", plugin_class=ReadAll))
    return made


def published(relation: RelationDescriptor) -> RelationDescriptor:
    every = (PublicationOptions(16500, "p", all_tables=True),)
    return replace(
        relation, database_publications=every, memberships=(Memberships(relation.oid, 2200),)
    )


class EncodingSink(TransactionSink):
    """Encodes each transaction by every plugin; a plugin may refuse it, with a DecodingError."""

    def __init__(self, version: int) -> None:
        self.plugins = plugins(version)
        self.taken = self.refused = 0
        self.chunks: list[tuple[TransactionHeader, bytes, Mapping[int, RelationDescriptor]]] | None
        self.chunks = None

    def consistent(self, lsn: int) -> None: ...

    def progress(self, decoded_lsn: int) -> None: ...

    def transaction(self, transaction: Transaction) -> None:
        self.taken += 1
        relations = {number: published(r) for number, r in transaction.relations.items()}
        for chunk in transaction.chunks():
            assert len(chunk) < CHUNK_BYTES_MAX
            if self.chunks is not None:
                self.chunks.append((transaction.header, bytes(chunk), relations))
            else:
                self.refused += encode(self.plugins, transaction.header, chunk, relations)


def encode(
    made: list[OutputPlugin],
    header: TransactionHeader,
    chunk: memoryview,
    relations: Mapping[int, RelationDescriptor],
) -> int:
    """Encode a chunk by each plugin; return how many refused it."""
    refused = 0
    for plugin in made:
        out = MessageBuffer()
        try:
            plugin.begin(header, out)
            plugin.changes(header, chunk, relations, out)
            plugin.commit(header, out)
            plugin.flush(out)
        except DecodingError as error:
            refused += 1
            assert_typed(error)
        assert out.nbytes < OUTPUT_BYTES_MAX
    return refused


def assert_typed(error: SpillwayError) -> None:
    """Damage is said to be damage, and where."""
    assert isinstance(error, (WalError, DecodingError)), repr(error)
    assert re.fullmatch(r"[0-9A-F]+/[0-9A-F]+", str(error.details.get("lsn"))), repr(error)


@dataclass(frozen=True)
class Beginning:
    """A decoder's state before record *index*, no transaction in progress."""

    index: int
    lsn: int
    state: bytes
    writer: WalWriter


class Recorded:
    """A server's WAL after a serialised state, record by record."""

    def __init__(self, database: Database, directory: Path) -> None:
        session = DecodingSession(database, directory)
        try:
            session.decode()
            self.version = session.version
            self.version_num = session.context.server_version_num
            state, begin = session.decoder.serialize(), session.decoder.position
            with database.connect() as connection:
                for method in ("on", "off"):
                    connection.execute(f"SET wal_compression = {method}")
                    connection.execute(
                        "CHECKPOINT; DROP VIEW IF EXISTS w; DROP TABLE IF EXISTS t; DROP TYPE IF "
                        "EXISTS mood"
                    )
                    for statement in WORKLOAD.split(";"):
                        if statement.strip():
                            connection.execute(statement)
            lines = session.decode()
            assert len(lines) > 100
            end = session.decoder.position
            wal = WalDirectory(database.cluster.wal_directory)
            first = begin // wal.segment_size * wal.segment_size
            # The server goes on writing: what is behind the end may be half there.
            data = b"".join(data for _, data in wal._read(first))[: end - first]
            self.records = [
                record
                for lsn, record in raw_records(self.version, data, first, wal.segment_size)
                if lsn >= begin
            ]
            self._beginnings = [
                Beginning(0, (end // SEGMENT_SIZE + 1) * SEGMENT_SIZE, state, self.writer(end))
            ]
            self._find_beginnings(directory / "spill")
        finally:
            session.slot.drop()
            session.close()

    def writer(self, end: int) -> WalWriter:
        """Begins behind what the server wrote."""
        return WalWriter(self.version, (end // SEGMENT_SIZE + 1) * SEGMENT_SIZE, SEGMENT_SIZE)

    def _find_beginnings(self, directory: Path) -> None:
        """Keep states along the way, so that a round need not decode what comes long before its
        damage.
        """
        first = self._beginnings[0]
        writer, done = replace(first.writer, data=bytearray()), 0
        with self._decoder(first, EncodingSink(self.version_num), directory) as decoder:
            while done < len(self.records):
                begin = writer.lsn
                for record in self.records[done : done + EVERY]:
                    lay_out(writer, record)
                done += EVERY
                walker = Walker(self.version, begin, SEGMENT_SIZE, end_is_error=False)
                walker.feed(writer.start_lsn, bytes(writer.data))
                while (batch := walker.next_batch()) is not None:
                    decoder.process(batch)
                if decoder.restart_lsn == decoder.position:
                    kept = replace(writer, data=bytearray(writer.data))
                    self._beginnings.append(
                        Beginning(done, decoder.position, decoder.serialize(), kept)
                    )

    @contextmanager
    def _decoder(
        self, beginning: Beginning, sink: EncodingSink, directory: Path
    ) -> Iterator[Decoder]:
        decoder = Decoder.restore(
            beginning.state, self.version, sink, spill_dir=directory, start_decoding_at=0,
            work_mem_bytes=1 << 16
        )  # fmt: skip
        try:
            yield decoder
        finally:
            decoder.close()

    def decode(
        self, records: list[bytes], sink: EncodingSink, directory: Path, first: int = 0
    ) -> None:
        """Decode *records*; before *first* they are the server's own."""
        beginning = max((b for b in self._beginnings if b.index <= first), key=lambda b: b.index)
        writer = replace(beginning.writer, data=bytearray(beginning.writer.data))
        for record in records[beginning.index :]:
            lay_out(writer, record)
        walker = Walker(self.version, beginning.lsn, SEGMENT_SIZE, end_is_error=False)
        walker.feed(writer.start_lsn, bytes(writer.data))
        with self._decoder(beginning, sink, directory) as decoder:
            while (batch := walker.next_batch()) is not None:
                decoder.process(batch)


@pytest.fixture
def recorded(pg: Database, tmp_path: Path) -> Recorded:
    return Recorded(pg, tmp_path / "session")


def test_damaged_records(recorded: Recorded, tmp_path: Path) -> None:
    rng = seeded()
    # Records of catalogs are most; those of tables and ends of transactions are what is of
    # interest.
    sound = EncodingSink(recorded.version_num)
    recorded.decode(recorded.records, sound, tmp_path / "spill")
    assert sound.taken > 30
    assert sound.refused == 0
    delivered = refused = 0
    for _ in rounds(8):
        first = rng.randrange(len(recorded.records))
        records = recorded.records[: first + AFTER]
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = min(len(records) - 1, first + rng.randrange(40))
            records[at] = damage_record(records[at], rng)
        sink = EncodingSink(recorded.version_num)
        sink.plugins = sound.plugins
        try:
            recorded.decode(records, sink, tmp_path / "spill", first)
        except SpillwayError as error:
            refused += 1
            assert_typed(error)
        delivered += sink.taken
    assert refused
    assert delivered


def test_a_catalog_row_that_is_read_later(recorded: Recorded, tmp_path: Path) -> None:
    """A name that is no text is found by the record that asks for it; the error says where that
    is.
    """
    name = b"v".ljust(64, b"\0")
    records = [renamed(record, name, b"\xff" + name[1:]) for record in recorded.records]
    assert records != recorded.records
    with pytest.raises(CorruptWal, match="of pg_attribute contradicts itself") as caught:
        recorded.decode(records, EncodingSink(recorded.version_num), tmp_path / "spill")
    assert_typed(caught.value)


def test_damaged_chunks(recorded: Recorded, tmp_path: Path) -> None:
    rng = seeded()
    sink = EncodingSink(recorded.version_num)
    sink.chunks = []
    recorded.decode(recorded.records, sink, tmp_path / "spill")
    assert sink.chunks
    refused = 0
    for _ in rounds(5):
        header, chunk, relations = rng.choice(sink.chunks)
        refused += encode(sink.plugins, header, memoryview(damage(chunk, rng)), relations)
    assert refused
