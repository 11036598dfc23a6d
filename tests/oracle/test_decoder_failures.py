"""What stops the decoder, and that nothing is lost by it."""

from __future__ import annotations

import resource

import pytest

from harness.decoding_session import DecodingSession, RenderingSink
from spillway.decoding.offline import decode_directory
from spillway.errors import DecodingError, NotReady, StorageError, WalLevelNotLogical
from spillway.wal.reader import WalDirectory


def big(session: DecodingSession) -> None:
    session.database.execute(
        "INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series(1, 5000) g"
    )


@pytest.fixture
def session(pg15, tmp_path):
    session = DecodingSession(pg15, tmp_path, work_mem_bytes=1 << 15)
    session.database.execute("CREATE TABLE t (i int, v text)")
    session.decode()
    yield session
    session.close()


def test_a_spill_file_that_can_not_grow_ends_the_attempt_and_loses_nothing(session):
    state, position = session.decoder.serialize(), session.decoder.position
    big(session)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(StorageError, match="spilled"):
            session.decode()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with pytest.raises(NotReady):
        session.decode()
    session.restart(state, position)
    session.assert_equal_to_server()


def test_a_sink_that_raises_leaves_no_spill_file(session, monkeypatch):
    state, position = session.decoder.serialize(), session.decoder.position
    big(session)

    def refuse(transaction):
        next(iter(transaction.chunks()))
        raise StorageError("no")

    with monkeypatch.context() as patch:
        patch.setattr(session.sink, "transaction", refuse)
        with pytest.raises(StorageError, match="no"):
            session.decode()
    session.decoder.close()
    assert list((session.directory / "spill").iterdir()) == []
    session.restart(state, position)
    session.assert_equal_to_server()


def test_leftovers_of_a_killed_process_are_removed(session):
    leftover = session.directory / "spill" / "xid-7-1234.spill"
    leftover.write_bytes(b"old")
    session.restart(session.decoder.serialize(), session.decoder.position)
    assert not leftover.exists()


def test_a_state_that_is_too_new_is_refused_when_it_would_lose_something(session):
    """Restoring at a state that a running transaction began before, to deliver that transaction."""
    before = session.decoder.position
    with session.database.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO t VALUES (1, 'before the state')")
        session.decode()
        state = session.decoder.serialize()
        assert session.decoder.restart_lsn < session.decoder.position
        connection.execute("INSERT INTO t VALUES (2, 'after it')")
    session.restart(state, before)
    with pytest.raises(DecodingError, match="began before the serialised state"):
        session.decode()


def test_offline_from_a_state_what_was_in_progress_is_left_out(session, tmp_path):
    with session.database.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO t VALUES (1, 'before the state')")
        session.decode()
        state = session.decoder.serialize()
        session.database.execute("INSERT INTO t VALUES (2, 'commits while that runs')")
        connection.execute("INSERT INTO t VALUES (3, 'after it')")
    session.database.execute("INSERT INTO t VALUES (4, 'whole')")
    session.database.execute("INSERT INTO t VALUES (5, 'whole')")
    expected = [line for line in session.assert_equal_to_server() if "whole" in line.data]
    sink = RenderingSink("test_decoding", {}, session.context)
    wal = WalDirectory(session.database.cluster.wal_directory)
    stats = decode_directory(wal, state, sink, spill_dir=tmp_path / "offline")
    assert [line for line in sink.lines if line.data.startswith("table")] == expected
    assert len(expected) == 2
    assert stats.total_txns == len(sink.headers)
    assert list((tmp_path / "offline").iterdir()) == []


def test_a_damaged_state_is_refused(session):
    state = session.decoder.serialize()
    for position in (0, 9, 13, 30, len(state) // 2, len(state) - 1):
        damaged = bytearray(state)
        damaged[position] ^= 0x10
        with pytest.raises(StorageError):
            session.restart(bytes(damaged), 0)
    with pytest.raises(StorageError):
        session.restart(state[:-1], 0)
    with pytest.raises(StorageError):
        session.restart(b"", 0)


def test_lowering_wal_level_is_an_error(fresh_cluster, tmp_path):
    cluster = fresh_cluster(15)
    database = cluster.create_database("ours")
    session = DecodingSession(database, tmp_path)
    database.execute("CREATE TABLE t (i int)")
    session.decode()
    session.slot.drop()
    cluster.restart(wal_level="replica")
    database.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(WalLevelNotLogical, match="below logical from"):
        session.decode()
    session.close()
