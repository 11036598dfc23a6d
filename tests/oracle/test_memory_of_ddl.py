"""What tables leave behind that were made, changed and dropped: nothing, however many; of the
present ones what they need.

Counted and measured after N rounds and after 2N, in everything from the mirror to slots' encoders.
"""

from __future__ import annotations

import gc
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from spillway.catalog.bootstrap import bootstrap_sql
from spillway.catalog.descriptor_registry import DescriptorRegistry
from spillway.decoding import decoder as decoder_module
from spillway.decoding.decoder import Decoder
from spillway.delivery.reader import SlotReader
from spillway.pg.versions import version_of_server
from spillway.plugins.interface import PluginContext
from spillway.plugins.registry import create_plugin
from spillway.txlog import LogWriter, cursor
from spillway.txlog.segment import SegmentReader
from spillway.wal.reader import WalDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.cluster import Database
    from spillway._kernels.reorder.transaction_run import TransactionRun
    from spillway.decoding.transaction import Transaction

ROUNDS = 30
#: Descriptors that a round makes: two tables, one with and one without a row in its own
#: transaction, two of an altered one.
KINDS = 4
HELD_MIN = 16
#: What is kept for a while comes and goes by some 300 kB; four descriptors of a round that stay
#: take more than twice this.
GROWTH_A_ROUND_MAX = 5000

ROUND = """
CREATE PROCEDURE rounds(n int) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1..n LOOP
        CREATE TABLE brief (id int PRIMARY KEY, v text); INSERT INTO brief VALUES (i, 'x');
        DROP TABLE brief; COMMIT;
        CREATE TABLE brief (id int, v text); COMMIT; INSERT INTO brief VALUES (i, 'x'); COMMIT;
        DROP TABLE brief; COMMIT;
        ALTER TABLE altered ADD c int; INSERT INTO altered VALUES (i, 'x', i);
        ALTER TABLE altered DROP c; COMMIT;
        INSERT INTO altered VALUES (i, 'x'); COMMIT;
        CREATE TEMP TABLE temporary (id int, v text) ON COMMIT DROP;
        INSERT INTO temporary VALUES (i, 'x'); COMMIT;
        -- Columns that were dropped stay.
        IF i % 5 = 0 THEN DROP TABLE altered; CREATE TABLE altered (id int, v text); COMMIT; END IF;
    END LOOP;
END $$
"""


class _Sink:
    def __init__(self, log: LogWriter) -> None:
        self._log = log

    def consistent(self, lsn: int) -> None:
        self._log.start(lsn)

    def transaction(self, transaction: Transaction) -> None:
        self._log.transaction(transaction)

    def transactions(self, run: TransactionRun) -> None:
        self._log.transactions(run)

    def progress(self, decoded_lsn: int) -> None:
        self._log.progress(decoded_lsn)


class Following:
    """Decodes what the server writes, and reads it for three slots."""

    def __init__(self, database: Database, directory: Path) -> None:
        self.database = database
        self.registry = DescriptorRegistry()
        begun = bootstrap_sql(database.dsn, registry=self.registry)
        self.log = LogWriter(directory / "log", system_id=1, database_oid=database.oid)
        self.decoder = Decoder(
            version_of_server(begun.server_version),
            database.oid,
            begun.mirror,
            _Sink(self.log),
            spill_dir=directory / "spill",
            start=begun.redo_lsn,
        )
        database.execute("CHECKPOINT")
        self.decode()
        context = PluginContext("slot", database.name, begun.server_version)
        published = {"proto_version": "1", "publication_names": "all_tables"}
        self.readers = [
            SlotReader.on_log(
                self.log.reader,
                create_plugin(plugin, published if plugin == "pgoutput" else {}, context),
                self.decoder.start_decoding_at,
                None,
            )
            # Arrow keeps what it has made of a thousand tables, more than a test can make.
            for plugin in ("pgoutput", "test_decoding", "wal2json")
        ]
        self.messages = [0] * len(self.readers)

    def decode(self) -> None:
        # What VACUUM logs last is flushed by a commit.
        self.database.execute("CREATE TABLE flushed (); DROP TABLE flushed")
        for batch in WalDirectory(self.database.cluster.wal_directory).batches(
            self.decoder.position
        ):
            self.decoder.process(batch)
            self.log.publish()

    def rounds(self, number: int) -> int:
        """Let the server do *number* rounds and follow them; return the bytes that are in use
        then.
        """
        self.database.execute(f"CALL rounds({number})")
        self.database.execute("VACUUM")
        self.decode()
        for i, reader in enumerate(self.readers):
            while count := reader.step(1 << 20).messages.count:
                self.messages[i] += count
        self.log.checkpoint(self.decoder.restart_lsn)
        self.decoder.serialize()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    def close(self) -> None:
        for reader in self.readers:
            reader.close()
        self.decoder.close()
        self.log.close()


@pytest.fixture
def following(
    pg15: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Following]:
    # The bounds are for larger catalogs than a test can make.
    monkeypatch.setattr(decoder_module, "HELD_RELATIONS_MIN", HELD_MIN)
    monkeypatch.setattr(cursor, "_PARSED_MAX", HELD_MIN)
    monkeypatch.setattr(SegmentReader, "WINDOW_BYTES", 1 << 16)
    pg15.execute(
        "CREATE TABLE altered (id int, v text); CREATE PUBLICATION all_tables FOR ALL TABLES"
    )
    pg15.execute(ROUND)
    pg15.query("SELECT pg_create_physical_replication_slot('memory_of_ddl', true)")
    following = Following(pg15, tmp_path)
    yield following
    following.close()
    pg15.query("SELECT pg_drop_replication_slot('memory_of_ddl')")


@pytest.mark.long
def test_tables_that_come_and_go_leave_nothing(following: Following) -> None:
    tracemalloc.start()
    try:
        # What is kept for a while is then as much as it gets.
        following.rounds(2 * ROUNDS)
        before = following.rounds(ROUNDS)
        messages = following.messages.copy()
        after = following.rounds(2 * ROUNDS)
    finally:
        tracemalloc.stop()
    # Every slot had the rows of all of them.
    assert all(
        now - was >= 2 * ROUNDS * KINDS
        for now, was in zip(following.messages, messages, strict=True)
    )
    assert len(following.registry) <= 2 * HELD_MIN + KINDS
    print(before, after)
    assert after - before < 2 * ROUNDS * GROWTH_A_ROUND_MAX
