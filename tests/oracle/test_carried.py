"""A decoder that is carried over restarts, at any record, delivers what the server does: nothing is read twice."""

from __future__ import annotations

import itertools
import random

import pytest

from harness.decoding_session import DecodingSession
from harness.open_transactions import OPEN, end, leave_open
from oracle.test_decoder import Workload
from spillway.catalog import descriptors
from spillway.decoding import carried
from spillway.pg.lsn import Lsn
from spillway.wal.reader import WalDirectory


@pytest.fixture
def other_ids(monkeypatch):
    """Give what is restored from here on other ids of relations, as another process would."""

    def renumber(offset):
        registry = descriptors.DescriptorRegistry()
        for number in range(offset):
            registry._descriptors.append(number)
        monkeypatch.setattr(descriptors, "REGISTRY", registry)

    return renumber


def carry(session: DecodingSession) -> None:
    """Go on in another decoder from right where this one is."""
    decoder = session.decoder
    state = decoder.carry()
    assert decoder.restart_lsn == decoder.position
    session.restart(state, decoder.position)
    assert session.decoder.restart_lsn == session.decoder.position == decoder.position


def carried_along(session: DecodingSession, seed: int, *, gap: int, renumber) -> int:
    """Decode all that the server has written, with restarts about every *gap* records; say how many."""
    rng = random.Random(seed)
    offsets = itertools.cycle((3, 0, 11))
    count = 0
    until = int(Lsn.parse(session.database.cluster.wal_lsn()))
    session.database.execute("CREATE TABLE last (); DROP TABLE last")
    while session.decoder.position < until:
        wal = WalDirectory(session.database.cluster.wal_directory)
        for batch in wal.batches(session.decoder.position, records_max=rng.randint(1, gap * 2)):
            session.decoder.process(batch)
            renumber(next(offsets))
            carry(session)
            count += 1
    return count


@pytest.mark.parametrize("work_mem_bytes", [1 << 15, 64 << 20], ids=["spilled", "in memory"])
@pytest.mark.parametrize("major", [14, 15, 16, 17, 18])
def test_open_transactions_are_carried_at_any_record(
    session_cluster, tmp_path, monkeypatch, other_ids, major, work_mem_bytes
):
    database = session_cluster(major).create_database(f"carried_{work_mem_bytes}")
    session = DecodingSession(
        database, tmp_path, work_mem_bytes=work_mem_bytes, stream_bytes=1 << 16
    )
    if work_mem_bytes > 1 << 20:
        monkeypatch.setattr(carried, "INLINE_BYTES_MAX", 4 << 20)
    gid = f"carried {database.name}"
    connections = leave_open(database, gid)
    session.decode()
    workload = Workload(database, 7, transactions=20)
    workload.join()
    restarts = carried_along(session, major, gap=150, renumber=other_ids)
    assert len(session.decoder.transactions()) > len(OPEN)
    end(database, connections, gid)
    restarts += carried_along(session, major, gap=20, renumber=other_ids)
    session.assert_equal_to_server()
    assert restarts > 10
    session.close()
    database.cluster.drop_database(database.name)
