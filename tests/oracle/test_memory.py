"""Decoding a transaction of any size takes logical_decoding_work_mem and little more; so does
delivering it, to many slots.

One range of WAL has large transactions of several kinds, one after the other. What it takes is the
most that any took.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.cluster import Cluster
from harness.decoding_session import CountingSink
from harness.memory_use import Task, memory_use
from harness.tiers import deep
from spillway.catalog.bootstrap_database import bootstrap_database
from spillway.decoding.decoder import Decoder
from spillway.decoding.snapshot_builder import SnapshotState
from spillway.pg.lsn import Lsn
from spillway.pg.versions import version_of_server
from spillway.wal.reader import WalDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.cluster import Database

MB = 1 << 20
WORK_MEM = 64 * MB
#: Beyond work_mem: the mirror's growth, a batch of records and one of messages a slot, a chunk, the
#: log's buffers.
MORE_MAX = 150 * MB

TABLES = """
CREATE TABLE plain (id int, note text);
ALTER TABLE plain REPLICA IDENTITY FULL;
CREATE TABLE toasted (id int, note text);
ALTER TABLE toasted ALTER note SET STORAGE EXTERNAL;
CREATE PUBLICATION everything FOR ALL TABLES;
"""

#: One transaction each: 600 MB of rows, 200 MB of TOAST values, 100 MB of old and new rows, 100,000
#: subtransactions.
TRANSACTIONS = (
    "INSERT INTO plain SELECT n, repeat('x', 1000) FROM generate_series(1, 550000) n",
    "INSERT INTO toasted SELECT n, repeat('abcdefgh', 25000) FROM generate_series(1, 1000) n",
    "UPDATE plain SET note = repeat('y', 1000) WHERE id <= 50000",
    """DO $$BEGIN FOR i IN 1..100000 LOOP BEGIN INSERT INTO plain VALUES (-i, repeat('z', 300));
       EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END$$""",
)
PAYLOAD_MIN = 800 * MB


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Task]:
    """A server that has written them, and a decoder's state from before; who uses it says for
    whom.
    """
    directory = tmp_path_factory.mktemp("memory")
    with Cluster(15, max_wal_size="4GB", wal_keep_size="4GB") as cluster:
        database = cluster.create_database("memory")
        database.execute(TABLES)
        state = directory / "state"
        state.write_bytes(_state(database, directory))
        for statement in TRANSACTIONS:
            database.execute(statement)
        database.execute("DROP TABLE toasted")
        yield Task(
            state=str(state),
            wal_directory=str(cluster.wal_directory),
            upto_lsn=int(Lsn.parse(cluster.wal_lsn())),
            work_directory="",
            server_version_num=int(database.value("SHOW server_version_num")),
            database=database.name,
            database_oid=database.oid,
            work_mem_bytes=WORK_MEM,
            plugin="",
            options={},
            slots=1,
            stream_bytes=None,
        )


def _state(database: Database, directory: Path) -> bytes:
    """Decode up to a consistent point and serialise."""
    begun = bootstrap_database(database.dsn)
    decoder = Decoder(
        version_of_server(begun.server_version),
        database.oid,
        begun.mirror,
        CountingSink(),
        spill_dir=directory / "spill",
        start=begun.redo_lsn,
    )
    database.execute("CHECKPOINT")
    for batch in WalDirectory(database.cluster.wal_directory).batches(decoder.position):
        decoder.process(batch)
    assert decoder.snapshot_state is SnapshotState.CONSISTENT
    state = decoder.serialize()
    decoder.close()
    return state


@pytest.mark.parametrize(
    ("plugin", "options", "slots", "stream_bytes"),
    [
        deep("test_decoding", {}, 1, None),
        deep("pgoutput", {"proto_version": "1", "publication_names": "everything"}, 8, None),
        deep(
            "pgoutput",
            {"proto_version": "2", "publication_names": "everything", "streaming": "on"},
            1,
            16 * MB,
        ),
        ("arrow", {}, 8, None),
    ],
    ids=["test_decoding", "8 slots of pgoutput", "streamed", "8 slots of arrow"],
)
def test_memory_is_bounded(
    task: Task,
    tmp_path: Path,
    plugin: str,
    options: dict[str, str],
    slots: int,
    stream_bytes: int | None,
) -> None:
    use = memory_use(
        replace(
            task,
            work_directory=str(tmp_path),
            plugin=plugin,
            options=options,
            slots=slots,
            stream_bytes=stream_bytes,
        )
    )
    print(use)
    assert use.payload_bytes > PAYLOAD_MIN
    assert (use.parts > 10) == (stream_bytes is not None)
    assert use.decoding_bytes < WORK_MEM + MORE_MAX
    assert use.delivery_bytes < MORE_MAX
