"""The server whose WAL is decoded: positions, and the decoder's state that ours begins with."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bench.results import BenchFailed
from bench.sink import EncodingSink
from bench.wal_files import decode, wal_bytes
from spillway.catalog.bootstrap import bootstrap_sql
from spillway.decoding.capture import EVERYTHING
from spillway.decoding.decoder import Decoder
from spillway.decoding.snapshot_builder import SnapshotState
from spillway.pg.lsn import Lsn
from spillway.pg.versions import version_of_server
from spillway.plugins.interface import PluginContext
from spillway.plugins.registry import create_plugin

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.cluster import Cluster, Database
    from spillway.decoding.capture import CaptureFilter


def flushed_lsn(database: Database) -> Lsn:
    """Return where WAL ends, everything before it being in the files."""
    with database.connect() as connection:
        row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        end = Lsn.parse(row[0])
        # A commit record behind that: nobody waits for it, but WAL is written up to it soon.
        connection.execute("SELECT txid_current()")
        while True:
            row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
            assert row is not None
            if (flushed := Lsn.parse(row[0])) >= end:
                return flushed
            time.sleep(0.01)


def decoding_state(
    cluster: Cluster, database: Database, spill_dir: Path, capture: CaptureFilter = EVERYTHING
) -> bytes:
    """Bootstrap the catalog, decode up to a consistent point of now, and serialise."""
    bootstrap = bootstrap_sql(database.dsn)
    version_num = int(database.value("SHOW server_version_num"))
    version = version_of_server(version_num)
    context = PluginContext("bench", database.name, version_num)
    decoder = Decoder(
        version,
        database.oid,
        bootstrap.mirror,
        EncodingSink(create_plugin("test_decoding", {}, context)),
        spill_dir=spill_dir,
        start=bootstrap.redo_lsn,
        capture=capture,
    )
    try:
        cluster.execute("CHECKPOINT")
        size, directory = cluster.wal_segment_size, cluster.wal_directory
        end = flushed_lsn(database)
        decode(decoder, version, size, wal_bytes(directory, size, decoder.position, end))
        if decoder.snapshot_state != SnapshotState.CONSISTENT:
            raise BenchFailed("decoding is not consistent on an idle server")
        return decoder.serialize()
    finally:
        decoder.close()


def wait_until(
    reached: Callable[[], bool], what: str, timeout_s: float = 120.0, *, every_s: float = 0.02
) -> None:
    """Look every few milliseconds, or *every_s*.

    Raises:
        BenchFailed: it was not reached in time.
    """
    deadline = time.monotonic() + timeout_s
    while not reached():
        if time.monotonic() > deadline:
            raise BenchFailed(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(every_s)
