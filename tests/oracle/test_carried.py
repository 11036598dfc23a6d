"""A decoder that is carried over restarts, at any record, delivers what the server does: nothing is
read twice.
"""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import replace
from typing import Any

import pytest

from harness.decoding_session import DecodingSession
from harness.open_transactions import BIG, OPEN, end, leave_open
from harness.remedies import remedy
from harness.tiers import deep
from oracle.test_decoder import Workload
from spillway._kernels.pg.crc32c import crc32c
from spillway._kernels.reorder import buffer as reorder
from spillway.catalog import descriptor_registry
from spillway.decoding import carried, serialization
from spillway.decoding.dispatch import action_table
from spillway.decoding.transaction import TransactionKind
from spillway.errors import DecodingStateLost, SpillwayError, StorageError
from spillway.pg.lsn import Lsn
from spillway.wal.reader import WalDirectory


@pytest.fixture
def other_ids(monkeypatch):
    """Give what is restored from here on other ids of relations, as another process would."""

    def renumber(offset):
        registry = descriptor_registry.DescriptorRegistry()
        entries: Any = registry._entries
        for number in range(1, offset + 1):
            # Ids that another table has: whoever is given one next gets a larger one.
            entries[number] = (lambda: None, number)
        monkeypatch.setattr(descriptor_registry, "REGISTRY", registry)

    return renumber


def carry(session: DecodingSession) -> None:
    """Go on in another decoder from right where this one is."""
    decoder = session.decoder
    state = decoder.carry()
    assert decoder.restart_lsn == decoder.position
    session.restart(state, decoder.position)
    assert session.decoder.restart_lsn == session.decoder.position == decoder.position


def carried_along(session: DecodingSession, seed: int, *, gap: int, renumber) -> int:
    """Decode all that the server has written, with restarts about every *gap* records; say how
    many.
    """
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


def headers(session: DecodingSession):
    """Everything that was delivered since decoding was consistent, but for the running numbers of
    origins.
    """
    return [h for h in session.sink.headers if h.kind is not TransactionKind.MESSAGE]


@pytest.mark.parametrize(
    ("major", "work_mem_bytes"),
    [
        deep(14, 1 << 15),
        deep(15, 64 << 20),
        deep(16, 1 << 15),
        deep(17, 64 << 20),
        (18, 1 << 15),
    ],
    ids=lambda value: (
        "spilled" if value == 1 << 15 else "in memory" if value > 100 else f"pg{value}"
    ),
)
def test_open_transactions_are_carried_at_any_record(
    session_cluster, tmp_path, monkeypatch, other_ids, major, work_mem_bytes
):
    database = session_cluster(major).create_database(f"carried_{work_mem_bytes}")
    session = DecodingSession(
        database, tmp_path, work_mem_bytes=work_mem_bytes, stream_bytes=1 << 16
    )
    reference = DecodingSession(
        database, tmp_path / "reference", stream_bytes=1 << 16, slot=session.slot
    )
    if work_mem_bytes > 1 << 20:
        monkeypatch.setattr(carried, "INLINE_BYTES_MAX", 4 << 20)
    gid = f"carried {database.name}"
    connections = leave_open(database, gid)
    session.decode()
    workload = Workload(database, 7, transactions=10)
    workload.join()
    restarts = carried_along(session, major, gap=150, renumber=other_ids)
    assert len(session.decoder.transactions()) > len(OPEN)
    end(database, connections, gid)
    restarts += carried_along(session, major, gap=20, renumber=other_ids)
    session.assert_equal_to_server()
    assert restarts > 10
    assert {TransactionKind.STREAM, TransactionKind.STREAM_ABORT} <= {
        h.kind for h in session.sink.headers
    }
    # Of parts, and who was streamed: as by a decoder that was never restarted.
    reference.decode()
    assert headers(session) == headers(reference)[: len(headers(session))]
    session.close()
    reference.close()
    database.cluster.drop_database(database.name)


@pytest.fixture
def spilled(pg15, tmp_path):
    """A session with a transaction in progress that was spilled, and what carries it."""
    session = DecodingSession(pg15, tmp_path, work_mem_bytes=1 << 15)
    session.database.execute("CREATE TABLE big (id int, v text)")
    session.decode()
    with session.database.connect(autocommit=False) as connection:
        connection.execute(BIG.format(1))
        session.decode()
        state = session.decoder.carry()
        (name,) = session.decoder.carried_files
        connection.commit()
    file = tmp_path / "spill" / name
    yield session, state, session.decoder.position, file
    session.decoder.close()
    for left in file.parent.iterdir():
        left.unlink()
    session.close()


def test_files_stay_until_nobody_needs_them(spilled):
    session, state, _, file = spilled
    session.decode()
    assert session.decoder.transactions() == []
    assert file.exists(), "the transaction has ended, but the state is still there"
    session.restart(state, session.decoder.position)
    assert session.decoder.transactions()
    session.assert_equal_to_server()
    assert file.exists()
    session.restart(session.decoder.serialize(), session.decoder.position)
    assert not file.exists(), "no state names it"


@pytest.mark.parametrize("size", [None, 0, 100])
@pytest.mark.follows_hint("decoding_state_lost")
def test_a_file_that_is_gone_or_cut_is_an_error(spilled, size):
    session, state, position, file = spilled
    session.decoder.close()
    kept = file.read_bytes()
    if size is None:
        file.unlink()
    else:
        os.truncate(file, size)
    beside = file.with_name("xid-9-9.spill")
    beside.write_bytes(b"another state's")
    with pytest.raises(DecodingStateLost, match=file.name) as caught:
        session.restart(state, position)
    assert beside.exists(), "an older state may need it"
    assert "Restore the file from a backup" in remedy(caught.value, "decoding_state_lost")
    file.write_bytes(kept)
    session.restart(state, position)
    session.assert_equal_to_server()


def test_a_damaged_file_is_an_error_when_its_changes_are_read(spilled):
    session, state, position, file = spilled
    session.decoder.close()
    rng = random.Random(1)
    data = bytearray(file.read_bytes())
    for _ in range(20):
        at = rng.randrange(len(data))
        data[at] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    session.restart(state, position)
    with pytest.raises(DecodingStateLost, match="is damaged, and the WAL"):
        session.decode()


def test_a_damaged_state_is_an_error(spilled):
    session, state, position, _ = spilled
    rng = random.Random(2)
    for _ in range(100):
        damaged = bytearray(state[: rng.choice((len(state), rng.randrange(len(state))))])
        if damaged:
            damaged[rng.randrange(min(len(damaged), 3000))] ^= 1 << rng.randrange(8)
        with pytest.raises(StorageError):
            session.restart(bytes(damaged), position)


def test_what_contradicts_itself_under_a_right_checksum_is_an_error(spilled):
    """Of the bytes of the reorder buffer: sizes and counts are believed as far as they fit."""
    session, state, _, file = spilled
    found = serialization.load(state).carried
    kept = file.read_bytes()
    assert found is not None
    rng = random.Random(3)
    refused = 0
    for _ in range(150):
        data = bytearray(found.transactions[: rng.choice((1 << 30, rng.randrange(1, 200)))])
        data[rng.randrange(min(len(data), 48))] ^= 1 << rng.randrange(8)
        buffer = reorder.ReorderBuffer(
            action_table(session.version), 1, 1 << 20, bytes(file.parent)
        )
        file.write_bytes(kept)
        damaged = replace(found, transactions=bytes(data))
        try:
            damaged.restore(buffer, descriptor_registry.DescriptorRegistry(), file.parent)
        except SpillwayError:
            refused += 1
        buffer.close()
    assert refused > 25


def test_a_state_of_the_format_before_is_read(spilled):
    session, _, _, _ = spilled
    session.decode()
    state, position = session.decoder.serialize(), session.decoder.position
    # As it was: without the size of what is carried, which is 0 here.
    head, rest = state[:24], state[24:]
    at = serialization._STATE.size
    assert rest[at : at + 8] == bytes(8)
    rest = rest[:at] + rest[at + 8 :]
    assert head[:8] == serialization.MAGIC
    before = serialization._HEAD.pack(serialization.MAGIC, 3, crc32c(rest), len(rest)) + rest
    session.restart(before, position)
    session.assert_equal_to_server()
