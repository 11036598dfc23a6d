"""The receiver against real servers: the same bytes, confirmed only when durable, through every
trouble.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import psycopg
import pytest

from harness.reception import SLOT, Reception, flush_lsn, switch_wal, wait_until
from harness.servers import client
from harness.tiers import majors_by_tier
from spillway import failpoints
from spillway.demo.private_postgres import make_directory
from spillway.errors import (
    DiskFull,
    PhysicalSlotActive,
    PhysicalSlotUnusable,
    ReplicationFailed,
    SourceAuthFailed,
    SourceUnreachable,
    SystemIdMismatch,
    TimelineDiverged,
    WalRemoved,
    WalStoreFull,
)
from spillway.pg.lsn import Lsn
from spillway.receiver import walreceiver
from spillway.receiver.archive import WalArchive
from spillway.receiver.checks import check_source
from spillway.receiver.physical_slot import create_physical_slot, get_physical_slot
from spillway.receiver.store_state import STATE_NAME, StateFile
from spillway.receiver.wal_writer import WalWriter
from spillway.receiver.walreceiver import ReceiverState, WalReceiver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import ClusterFactory
    from harness.cluster import Cluster
    from integration.receiver.conftest import Receive


class Settings(TypedDict):
    """What a small server is started with."""

    wal_segment_size_mb: int
    wal_keep_size: str
    max_wal_size: str


SMALL: Settings = {
    "wal_segment_size_mb": 1,
    "wal_keep_size": "1GB",
    "max_wal_size": "4GB",
}


def write_wal(cluster: Cluster, rows: int = 20_000) -> None:
    """Write some 200 bytes of WAL a row, in one transaction."""
    cluster.execute("CREATE TABLE IF NOT EXISTS load (id bigserial PRIMARY KEY, filler text)")
    cluster.execute(
        "INSERT INTO load (filler) SELECT repeat(md5(i::text), 4) FROM generate_series(1, %s) i",
        [rows],
    )


def state_is(receiver: WalReceiver, state: ReceiverState) -> Callable[[], bool]:
    return lambda: receiver.state == state


# -- the ordinary course ----------------------------------------------------------------------


@pytest.mark.parametrize("major", majors_by_tier([14, 15, 16, 17, 18]))
def test_segments_equal_the_servers(
    fresh_cluster: ClusterFactory, receive: Receive, major: int
) -> None:
    cluster = fresh_cluster(major, **SMALL)
    reception = receive(cluster)
    write_wal(cluster)

    assert reception.assert_equals_server() >= 4
    assert reception.receiver.state == ReceiverState.STREAMING
    assert reception.receiver.error is None
    assert reception.receiver.server_wal_end >= reception.store.received_lsn


def test_pg_waldump_reads_the_store(fresh_cluster: ClusterFactory, receive: Receive) -> None:
    cluster = fresh_cluster(18, **SMALL)
    reception = receive(cluster)
    write_wal(cluster, 5000)
    end = reception.caught_up()
    reception.receiver.stop()
    dumped = subprocess.run(
        [
            client("pg_waldump"),
            "--quiet",
            "-p",
            reception.store.directory,
            "-s",
            str(reception.store.first_lsn),
            "-e",
            str(end),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert dumped.returncode == 0, dumped.stderr


def test_sits_in_the_servers_views(fresh_cluster: ClusterFactory, receive: Receive) -> None:
    cluster = fresh_cluster(15)
    reception = receive(cluster)
    write_wal(cluster, 1000)
    end = reception.caught_up()
    view = "SELECT application_name, state, flush_lsn::text FROM pg_stat_replication"
    wait_until(lambda: Lsn.parse(cluster.query(view)[0][2]) >= end)
    assert cluster.query(view)[0][:2] == ("spillway", "streaming")
    slot = get_physical_slot(cluster.dsn(), SLOT)
    assert slot is not None
    assert slot.active
    assert slot.restart_lsn >= end
    assert cluster.query("SELECT xmin, catalog_xmin FROM pg_replication_slots") == [(None, None)]


def test_serves_as_synchronous_standby(fresh_cluster: ClusterFactory, receive: Receive) -> None:
    cluster = fresh_cluster(15, synchronous_standby_names="spillway")
    reception = receive(cluster)
    reception.streaming()
    began = time.monotonic()
    cluster.execute("CREATE TABLE t ()")  # returns when we have confirmed its commit as flushed
    assert reception.store.flushed_lsn > reception.store.first_lsn
    assert time.monotonic() - began < 5


def test_stop_is_instant_and_confirms(fresh_cluster: ClusterFactory, receive: Receive) -> None:
    cluster = fresh_cluster(15)
    reception = receive(cluster, sync_delay_s=60)
    reception.streaming()
    write_wal(cluster, 5000)
    end = flush_lsn(cluster)
    wait_until(lambda: reception.store.received_lsn >= end)
    began = time.monotonic()
    assert reception.receiver.stop()
    assert time.monotonic() - began < 1
    assert reception.receiver.state == ReceiverState.STOPPED
    assert reception.store.flushed_lsn >= end
    wait_until(lambda: not cluster.query("SELECT 1 FROM pg_stat_replication"))
    slot = get_physical_slot(cluster.dsn(), SLOT)
    assert slot is not None
    assert slot.restart_lsn >= end
    assert reception.receiver.stop()


def test_stop_before_start_and_while_connecting(tmp_path: Path) -> None:
    with WalWriter(tmp_path, system_id="1", segment_size=1 << 20, start_lsn=0) as store:
        assert WalReceiver("host=127.0.0.1 port=1", SLOT, store).stop()
        # 192.0.2.0/24 answers nobody (RFC 5737); where it is unreachable at once, the back-off is
        # interrupted.
        receiver = WalReceiver("host=192.0.2.1 user=u", SLOT, store)
        receiver.start()
        time.sleep(0.2)
        began = time.monotonic()
        assert receiver.stop()
        assert time.monotonic() - began < 1
        assert receiver.state == ReceiverState.STOPPED


# -- what is confirmed is durable -------------------------------------------------------------


def durable_lsn(store: WalWriter, scratch: Path) -> Lsn:
    """What the state file says on disk."""
    copy = scratch / STATE_NAME
    shutil.copyfile(store.directory / STATE_NAME, copy)
    file = StateFile.open(copy)
    file.close()
    return file.state.flushed_lsn


def test_never_confirms_what_is_not_durable(
    fresh_cluster: ClusterFactory, receive: Receive, tmp_path: Path
) -> None:
    """Slow syncs: whatever the server has been told at any instant was in the state file before."""
    cluster = fresh_cluster(15, **SMALL)
    samples = behind = 0
    deadline = time.monotonic() + 60
    with failpoints.armed("walstore.before_fsync=sleep:80; walstore.before_state_fsync=sleep:80"):
        reception = receive(cluster)
        # Until our first word the slot's restart_lsn is what its creation reserved, no
        # confirmation.
        wait_until(
            lambda: cluster.query("SELECT 1 FROM pg_stat_replication WHERE flush_lsn IS NOT NULL")
        )
        with cluster.connect() as writer, cluster.connect() as watcher:
            writer.execute("CREATE TABLE t (a text)")
            while (samples < 40 or behind < 5) and time.monotonic() < deadline:
                writer.execute("INSERT INTO t SELECT md5(i::text) FROM generate_series(1, 500) i")
                row = watcher.execute(
                    "SELECT s.restart_lsn::text, r.flush_lsn::text"
                    " FROM pg_replication_slots s LEFT JOIN pg_stat_replication r ON r.pid = "
                    "s.active_pid"
                ).fetchone()
                assert row is not None
                received = reception.store.received_lsn
                durable = durable_lsn(reception.store, tmp_path)
                for confirmed in filter(None, row):
                    assert Lsn.parse(confirmed) <= durable, "confirmed, but not durable"
                samples += 1
                behind += received > durable
        reception.caught_up()
    assert behind >= 5, "hardly a moment with WAL received and not durable: it proves nothing"
    reception.assert_equals_server()


ACTIVE = "SELECT 1 FROM pg_replication_slots WHERE active"
KILL_POINTS = [
    "walstore.create_segment",
    "walstore.write",
    "walstore.after_write",
    "walstore.before_fsync",
    "walstore.after_fsync",
    "walstore.before_state_fsync",
    "walstore.after_state_fsync",
    "walreceiver.before_status",
]


@pytest.mark.long
def test_killed_again_and_again(fresh_cluster: ClusterFactory, tmp_path: Path) -> None:
    """kill -9 at every failpoint and at random moments under load: the segments are the server's,
    nothing is missing.
    """
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    numbers = random.Random(seed)
    cluster = fresh_cluster(15, **SMALL)
    directory = tmp_path / "wal"
    reserved = create_physical_slot(cluster.dsn(), SLOT).restart_lsn
    program = [
        sys.executable,
        str(Path(__file__).with_name("receive_forever.py")),
        cluster.dsn(),
        SLOT,
        str(directory),
    ]
    points = KILL_POINTS + [None] * 3
    numbers.shuffle(points)
    confirmed = Lsn(0)
    for point in points:
        environment = dict(os.environ)
        if point is not None:
            environment[failpoints.ENVIRONMENT_VARIABLE] = f"{point}=kill@{numbers.randrange(1, 6)}"
        process = subprocess.Popen(program, env=environment)
        try:
            deadline = time.monotonic() + 30
            kill_at = float("inf") if point else None
            while process.poll() is None and time.monotonic() < deadline:
                write_wal(cluster, 1500)
                if kill_at is None and cluster.query(ACTIVE):
                    kill_at = time.monotonic() + numbers.uniform(0, 1)
                if kill_at is not None and time.monotonic() > kill_at:
                    process.kill()
            assert process.wait(1) == -signal.SIGKILL, point
        finally:
            process.kill()
            process.wait()
        ((restart,),) = cluster.query("SELECT restart_lsn::text FROM pg_replication_slots")
        with WalWriter(directory) as store:
            # Killed before its first word, nothing is confirmed: the slot stands where its creation
            # put it.
            restart_lsn = Lsn.parse(restart)
            assert store.flushed_lsn >= restart_lsn or restart_lsn == reserved, point
            assert store.flushed_lsn >= confirmed
            confirmed = store.flushed_lsn
        wait_until(lambda: not cluster.query(ACTIVE))

    with WalWriter(directory) as store:
        receiver = WalReceiver(cluster.dsn(), SLOT, store)
        receiver.start()
        try:
            compared = Reception(cluster, store, receiver).assert_equals_server()
        finally:
            receiver.stop()
    assert compared > 3


# -- the server comes and goes ----------------------------------------------------------------


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_server_restarts(fresh_cluster: ClusterFactory, receive: Receive, mode: str) -> None:
    cluster = fresh_cluster(17, **SMALL)
    reception = receive(cluster)
    write_wal(cluster)
    reception.streaming()
    began = time.monotonic()
    cluster.stop(mode)  # type: ignore[arg-type]
    assert time.monotonic() - began < 10, (
        "the server waits at shutdown until we have confirmed everything"
    )
    wait_until(state_is(reception.receiver, ReceiverState.WAITING))
    assert reception.receiver.error is not None
    cluster.start()
    write_wal(cluster)
    assert reception.assert_equals_server() >= 4
    assert reception.receiver.error is None


@pytest.mark.parametrize("major", majors_by_tier([14, 15, 18]))
def test_server_crashes_while_it_writes(
    fresh_cluster: ClusterFactory, receive: Receive, major: int
) -> None:
    """Recovery may end in the middle of what was sent, with a continuation that never comes (since
    14 marked as such).
    """
    cluster = fresh_cluster(major, **SMALL, synchronous_commit=False)
    reception = receive(cluster)
    for _ in range(4):
        reception.streaming()
        writer = threading.Thread(target=write_until_it_breaks, args=(cluster,))
        writer.start()
        time.sleep(random.uniform(0.1, 0.4))
        cluster.kill()
        writer.join()
        cluster.start()
        assert reception.receiver.is_alive(), reception.receiver.error
    assert reception.assert_equals_server() >= 1
    assert reception.receiver.error is None


def write_until_it_breaks(cluster: Cluster) -> None:
    with contextlib.suppress(psycopg.OperationalError):
        while True:
            write_wal(cluster, 2000)


def test_unreachable_then_there(fresh_cluster: ClusterFactory, receive: Receive) -> None:
    cluster = fresh_cluster(15)
    reception = receive(cluster)
    reception.caught_up()
    cluster.kill()
    wait_until(lambda: isinstance(reception.receiver.error, SourceUnreachable))
    assert reception.receiver.is_alive()
    cluster.start()
    write_wal(cluster, 100)
    reception.caught_up()


def test_several_hosts(fresh_cluster: ClusterFactory, tmp_path: Path) -> None:
    """Of several hosts the first that answers is taken, for SQL and for streaming."""
    cluster = fresh_cluster(15)
    dsn = (
        f"host=127.0.0.1,localhost,127.0.0.1 port=1,1,{cluster.port} user=postgres "
        "target_session_attrs=read-write"
    )
    facts = check_source(dsn)
    with WalWriter(
        tmp_path / "wal",
        system_id=facts.system_id,
        segment_size=facts.wal_segment_size,
        start_lsn=create_physical_slot(dsn, SLOT).restart_lsn,
    ) as store:
        receiver = WalReceiver(dsn, SLOT, store)
        receiver.start()
        try:
            wait_until(state_is(receiver, ReceiverState.STREAMING))
        finally:
            receiver.stop()


def another_walsender(cluster: Cluster, pid: int) -> bool:
    return cluster.value("SELECT max(pid) FROM pg_stat_replication") not in (pid, None)


def test_walsender_terminated(fresh_cluster: ClusterFactory, receive: Receive) -> None:
    cluster = fresh_cluster(15, **SMALL)
    reception = receive(cluster)
    for _ in range(3):
        reception.streaming()
        write_wal(cluster, 3000)
        pid = cluster.value("SELECT pid FROM pg_stat_replication")
        cluster.execute(f"SELECT pg_terminate_backend({pid})")
        # The receiver is without a connection too shortly to be seen so: there is a new walsender.
        wait_until(partial(another_walsender, cluster, pid))
    reception.assert_equals_server()


def test_silent_server(fresh_cluster: ClusterFactory, receive: Receive) -> None:
    """A walsender that hangs: given up after the timeout; the next one streams once the slot is
    free.
    """
    cluster = fresh_cluster(15)
    reception = receive(cluster, receiver_timeout_s=1.0, status_interval_s=0.2)
    reception.streaming()
    pid = cluster.value("SELECT pid FROM pg_stat_replication")
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: isinstance(reception.receiver.error, ReplicationFailed))
        assert "silent" in str(reception.receiver.error)
        wait_until(lambda: isinstance(reception.receiver.error, PhysicalSlotUnusable))
    finally:
        os.kill(pid, signal.SIGCONT)
    write_wal(cluster, 100)
    reception.caught_up()


def test_idle_connection_lives(fresh_cluster: ClusterFactory, receive: Receive) -> None:
    # Long enough for an answer from a busy machine.
    cluster = fresh_cluster(15, wal_sender_timeout="1500ms")
    reception = receive(cluster, receiver_timeout_s=3.0)
    reception.streaming()
    pid = cluster.value("SELECT pid FROM pg_stat_replication")
    time.sleep(4)
    assert cluster.value("SELECT pid FROM pg_stat_replication") == pid


def test_password_changes(fresh_cluster: ClusterFactory, tmp_path: Path) -> None:
    cluster = fresh_cluster(15)
    cluster.execute("CREATE ROLE r LOGIN REPLICATION PASSWORD 'one'")
    hba = cluster.data_directory / "pg_hba.conf"
    hba.write_text(
        "host all postgres 127.0.0.1/32 trust\nhost all,replication r 127.0.0.1/32 scram-sha-256\n"
    )
    cluster.execute("SELECT pg_reload_conf()")
    dsn = f"host=127.0.0.1 port={cluster.port} user=r password=two dbname=postgres"
    system_id = str(cluster.value("SELECT system_identifier FROM pg_control_system()"))
    with WalWriter(
        tmp_path, system_id=system_id, segment_size=16 << 20, start_lsn=flush_lsn(cluster)
    ) as store:
        receiver = WalReceiver(dsn, SLOT, store)
        receiver.start()
        try:
            wait_until(lambda: isinstance(receiver.error, SourceAuthFailed))
            assert receiver.state == ReceiverState.WAITING
            cluster.execute("ALTER ROLE r PASSWORD 'two'")
            wait_until(state_is(receiver, ReceiverState.STREAMING))
            assert receiver.error is None
        finally:
            receiver.stop()


# -- slots and removed WAL --------------------------------------------------------------------


def test_missing_slot_is_created_again(fresh_cluster: ClusterFactory, receive: Receive) -> None:
    cluster = fresh_cluster(15, **SMALL)
    reception = receive(cluster)
    reception.streaming()
    cluster.stop()
    for path in (cluster.data_directory / "pg_replslot").iterdir():
        shutil.rmtree(path)
    cluster.start()
    write_wal(cluster)
    reception.assert_equals_server()
    assert get_physical_slot(cluster.dsn(), SLOT) is not None


def test_slot_in_use(fresh_cluster: ClusterFactory, receive: Receive, tmp_path: Path) -> None:
    cluster = fresh_cluster(15)
    first = receive(cluster)
    first.streaming()
    with WalWriter(
        tmp_path / "second",
        system_id=first.store.system_id,
        segment_size=first.store.segment_size,
        start_lsn=first.store.first_lsn,
    ) as store:
        second = WalReceiver(cluster.dsn(), SLOT, store)
        second.start()
        try:
            wait_until(lambda: isinstance(second.error, PhysicalSlotActive))
            assert second.error is not None
            pid = cluster.value("SELECT pid FROM pg_stat_replication WHERE state = 'streaming'")
            assert second.error.details["active_pid"] == pid
            assert second.state == ReceiverState.WAITING
            first.receiver.stop()
            wait_until(state_is(second, ReceiverState.STREAMING))
        finally:
            second.stop()


@pytest.fixture
def archive_directory() -> Iterator[Path]:
    directory = make_directory("spillway-archive-")
    yield directory
    shutil.rmtree(directory)


def lose_wal(cluster: Cluster, reception: Reception) -> None:
    """Stop receiving and have the server remove what was not received."""
    reception.caught_up()
    reception.receiver.stop()
    for _ in range(4):
        write_wal(cluster, 10_000)
        switch_wal(cluster)
        cluster.execute("CHECKPOINT")
    wait_until(lambda: cluster.value("SELECT wal_status FROM pg_replication_slots") == "lost")


@pytest.mark.parametrize("major", majors_by_tier([14, 15, 16, 17, 18]))
def test_removed_wal(fresh_cluster: ClusterFactory, receive: Receive, major: int) -> None:
    cluster = fresh_cluster(
        major,
        wal_segment_size_mb=1,
        max_wal_size="4MB",
        min_wal_size="2MB",
        wal_keep_size=0,
        max_slot_wal_keep_size="1MB",
    )
    reception = receive(cluster)
    lose_wal(cluster, reception)
    receiver = WalReceiver(cluster.dsn(), SLOT, reception.store)
    receiver.start()
    wait_until(state_is(receiver, ReceiverState.FAILED))
    assert isinstance(receiver.error, WalRemoved)
    assert receiver.error.code == "wal_removed"
    assert receiver.error.details["lsn"] == str(reception.store.received_lsn)
    assert "archive" in receiver.error.hint
    wait_until(lambda: not receiver.is_alive())


@pytest.mark.parametrize("major", majors_by_tier([14, 18]))
def test_removed_wal_comes_from_the_archive(
    fresh_cluster: ClusterFactory, receive: Receive, archive_directory: Path, major: int
) -> None:
    cluster = fresh_cluster(
        major,
        wal_segment_size_mb=1,
        max_wal_size="4MB",
        min_wal_size="2MB",
        wal_keep_size=0,
        max_slot_wal_keep_size="1MB",
        archive_mode="on",
        archive_command=f"cp %p {archive_directory}/%f",
    )
    reception = receive(cluster)
    lose_wal(cluster, reception)
    store = reception.store
    before = store.flushed_lsn
    archived = WalArchive(
        archive_directory, segment_size=store.segment_size, system_id=store.system_id
    )
    receiver = WalReceiver(cluster.dsn(), SLOT, store, archive=archived)
    receiver.start()
    try:
        resumed = Reception(cluster, store, receiver)
        resumed.streaming()
        write_wal(cluster, 1000)
        resumed.caught_up()
        resumed.assert_equals_server()
        assert cluster.value("SELECT wal_status FROM pg_replication_slots") == "reserved"
    finally:
        receiver.stop()
    position = store.first_lsn
    while position + store.segment_size <= before:
        assert archived.read(position, store.segment_size) == store.reader.read(
            position, store.segment_size
        )
        position = Lsn(position + store.segment_size)


# -- no space, broken disk --------------------------------------------------------------------


def test_full_store_pauses_and_resumes(fresh_cluster: ClusterFactory, receive: Receive) -> None:
    cluster = fresh_cluster(15, **SMALL, wal_sender_timeout="1s")
    reception = receive(cluster, max_bytes=4 << 20, status_interval_s=0.2)
    reception.streaming()
    pid = cluster.value("SELECT pid FROM pg_stat_replication")
    write_wal(cluster, 60_000)
    wait_until(lambda: isinstance(reception.receiver.error, WalStoreFull))
    assert reception.receiver.state == ReceiverState.WAITING
    full_at = reception.store.received_lsn
    time.sleep(2)
    assert reception.store.received_lsn == reception.store.flushed_lsn == full_at
    assert cluster.value("SELECT pid FROM pg_stat_replication") == pid, (
        "the connection is kept alive meanwhile"
    )

    while reception.store.flushed_lsn < flush_lsn(cluster):
        reception.store.remove_before(reception.store.flushed_lsn)
        time.sleep(0.05)
    reception.streaming()
    assert reception.receiver.error is None
    assert cluster.value("SELECT pid FROM pg_stat_replication") == pid


def test_who_waits_for_space_for_long_disconnects(
    fresh_cluster: ClusterFactory, receive: Receive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walreceiver, "_UNREAD_MAX_S", 1.0)
    cluster = fresh_cluster(18, **SMALL)
    reception = receive(cluster, max_bytes=4 << 20)
    reception.streaming()
    write_wal(cluster, 60_000)
    wait_until(lambda: isinstance(reception.receiver.error, WalStoreFull))
    wait_until(lambda: not cluster.query("SELECT FROM pg_stat_replication"), 20)
    assert reception.receiver.state == ReceiverState.WAITING
    assert isinstance(reception.receiver.error, WalStoreFull)
    full_at = reception.store.received_lsn
    while reception.store.flushed_lsn < flush_lsn(cluster):
        reception.store.remove_before(reception.store.flushed_lsn)
        time.sleep(0.05)
    reception.streaming()
    assert reception.receiver.error is None
    assert reception.store.received_lsn > full_at


@pytest.mark.parametrize("major", majors_by_tier([14, 18]))
def test_a_full_store_does_not_keep_the_server_from_its_checkpoints(
    fresh_cluster: ClusterFactory,
    receive: Receive,
    monkeypatch: pytest.MonkeyPatch,
    major: int,
) -> None:
    """The server gives the slot up, and ends its walsender first, which tells that to its client:
    one that is connected and reads nothing would have it, and the checkpoint, wait for ever.
    """
    monkeypatch.setattr(walreceiver, "_UNREAD_MAX_S", 3.0)
    cluster = fresh_cluster(
        major, wal_segment_size_mb=1, wal_keep_size=0, max_slot_wal_keep_size="20MB"
    )
    reception = receive(cluster, max_bytes=4 << 20)
    reception.streaming()
    write_wal(cluster, 150_000)
    wait_until(lambda: isinstance(reception.receiver.error, WalStoreFull))
    switch_wal(cluster)
    with cluster.connect() as connection:
        connection.execute("SET statement_timeout = '40s'")
        connection.execute("CHECKPOINT")
    assert cluster.value("SELECT wal_status FROM pg_replication_slots") == "lost"
    # And that is told, once there is space.
    while not isinstance(reception.receiver.error, WalRemoved):
        reception.store.remove_before(reception.store.flushed_lsn)
        time.sleep(0.05)
    assert reception.receiver.state == ReceiverState.FAILED


def test_full_disk_pauses_and_resumes(fresh_cluster: ClusterFactory, receive: Receive) -> None:
    cluster = fresh_cluster(15, **SMALL)
    reception = receive(cluster)
    reception.streaming()
    with failpoints.armed("walstore.create_segment=error:ENOSPC"):
        write_wal(cluster)
        wait_until(lambda: isinstance(reception.receiver.error, DiskFull))
        slot = get_physical_slot(cluster.dsn(), SLOT)
        assert slot is not None
        assert slot.restart_lsn <= reception.store.flushed_lsn
    assert reception.assert_equals_server() >= 4
    assert reception.receiver.error is None


@pytest.mark.parametrize(
    "spec",
    [
        "walstore.before_fsync=error:EIO@2-4",
        "walstore.before_fsync=error:ENOSPC@2-3",
        "walstore.before_state_fsync=error:EIO@3-4",
        "walstore.write=error:EIO@4-5",
    ],
)
def test_failing_disk_is_survived(
    fresh_cluster: ClusterFactory, receive: Receive, spec: str
) -> None:
    cluster = fresh_cluster(15, **SMALL)
    with failpoints.armed(spec):
        reception = receive(cluster)
        for _ in range(5):
            write_wal(cluster, 4000)
        reception.caught_up()
    assert reception.assert_equals_server() >= 4
    assert reception.receiver.error is None


# -- another cluster, other timelines ---------------------------------------------------------


def test_another_cluster(fresh_cluster: ClusterFactory, tmp_path: Path) -> None:
    cluster = fresh_cluster(15)
    with WalWriter(tmp_path, system_id="4711", segment_size=16 << 20, start_lsn=0) as store:
        receiver = WalReceiver(cluster.dsn(), SLOT, store)
        receiver.start()
        wait_until(state_is(receiver, ReceiverState.FAILED))
        assert isinstance(receiver.error, SystemIdMismatch)
        assert receiver.error.details["expected_system_id"] == "4711"
        assert not cluster.query("SELECT 1 FROM pg_replication_slots")


def promote(cluster: Cluster) -> None:
    """Put the stopped cluster on a new timeline, as a standby that takes over."""
    signal_file = cluster.data_directory / "standby.signal"
    signal_file.touch()
    shutil.chown(signal_file, cluster.data_directory.owner(), cluster.data_directory.group())
    cluster.start()
    cluster.execute("SELECT pg_promote()")
    cluster.execute("CHECKPOINT")


@pytest.mark.parametrize("major", majors_by_tier([14, 15, 18]))
def test_follows_a_promotion(fresh_cluster: ClusterFactory, receive: Receive, major: int) -> None:
    cluster = fresh_cluster(major, **SMALL)
    reception = receive(cluster)
    write_wal(cluster, 3000)
    for timeline in (2, 3):
        reception.caught_up()
        cluster.stop()
        promote(cluster)
        write_wal(cluster, 3000)
        reception.caught_up()
        assert reception.store.timeline == timeline
        assert reception.receiver.error is None
    assert (reception.store.directory / "00000003.history").read_bytes() == (
        cluster.wal_directory / "00000003.history"
    ).read_bytes()
    assert reception.assert_equals_server() >= 1
    directory = reception.store.directory
    reception.receiver.stop()
    reception.store.close()
    with WalWriter(directory) as store:
        assert store.timeline == 3


def test_wal_that_a_failover_lost_is_not_followed(
    fresh_cluster: ClusterFactory, receive: Receive, tmp_path: Path
) -> None:
    """We are ahead of the promoted server: what it lacks never existed, and mixing would be silent
    corruption.
    """
    cluster = fresh_cluster(15, **SMALL)
    reception = receive(cluster)
    write_wal(cluster, 1000)
    reception.caught_up()
    cluster.stop()
    behind = tmp_path / "behind"
    shutil.copytree(cluster.data_directory, behind)
    cluster.start()
    write_wal(cluster, 1000)
    reception.caught_up()
    cluster.stop()
    owner, group = cluster.data_directory.owner(), cluster.data_directory.group()
    shutil.rmtree(cluster.data_directory)
    shutil.copytree(behind, cluster.data_directory)
    for path in [cluster.data_directory, *cluster.data_directory.rglob("*")]:
        shutil.chown(path, owner, group)
    promote(cluster)
    wait_until(state_is(reception.receiver, ReceiverState.FAILED))
    error = reception.receiver.error
    assert isinstance(error, TimelineDiverged)
    assert Lsn.parse(str(error.details["lsn"])) < reception.store.received_lsn
    assert reception.store.timeline == 1
