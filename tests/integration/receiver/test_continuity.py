"""Copies of a primary, with its system identifier and its timeline: told from it by their WAL."""

from __future__ import annotations

import re
import subprocess
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.cluster import Cluster
from harness.reception import SLOT, switch_wal, wait_until
from harness.remedies import command, remedy
from harness.service import service_in_process
from harness.tiers import majors_by_tier
from integration.receiver.test_walreceiver import SMALL, state_is, write_wal
from spillway.cli.program import main
from spillway.demo.private_postgres import make_directory
from spillway.errors import TimelineDiverged, WalDiverged
from spillway.pg.lsn import Lsn
from spillway.receiver.continuity import check_continues
from spillway.receiver.physical_slot import get_physical_slot
from spillway.receiver.store_state import STATE_NAME, StateFile
from spillway.receiver.wal_writer import WalWriter
from spillway.receiver.walreceiver import ReceiverState, WalReceiver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import ClusterFactory
    from integration.receiver.conftest import Receive


@contextmanager
def copy_of(cluster: Cluster) -> Iterator[Cluster]:
    """A server on a copy of the stopped *cluster*'s files; not started."""
    directory = make_directory("spillway-pg-")
    subprocess.run(["cp", "-a", cluster.data_directory, directory], check=True)
    copy = Cluster(cluster.major, directory=directory, **cluster.settings)  # type: ignore[arg-type]
    copy.wal_segment_size = cluster.wal_segment_size
    try:
        yield copy
    finally:
        copy.destroy()


@pytest.mark.parametrize("major", majors_by_tier([15, 18]))
@pytest.mark.follows_hint("wal_diverged")
def test_a_copy_is_not_taken_for_the_primary(
    fresh_cluster: ClusterFactory, tmp_path: Path, major: int
) -> None:
    original = fresh_cluster(major)
    original.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with service_in_process(tmp_path / "data") as service:
        service.create_source(original.dsn())
        service.create_slot("s", "postgres")
        database = _Database(original)
        original.execute("INSERT INTO t SELECT generate_series(1, 5)")
        service.wait_decoded("s", database)  # type: ignore[arg-type]
        original.stop()
        with copy_of(original) as copy:
            original.start()
            original.execute("INSERT INTO t SELECT generate_series(6, 10)")
            service.wait_decoded("s", database)  # type: ignore[arg-type]
            copy.start()
            for first in range(101, 200, 5):  # it goes past where the original is
                copy.execute("INSERT INTO t SELECT generate_series(%s, %s + 4)", [first, first])

            # By another address: refused, and nothing changes.
            problem = service.problem("PATCH", "/sources/main", json={"dsn": copy.dsn()})
            assert problem["code"] == "wal_diverged"
            assert service.call("GET", "/sources/main")["state"] == "streaming"
            original.execute("INSERT INTO t VALUES (11)")
            service.wait_decoded("s", database)  # type: ignore[arg-type]

            # By the same address.
            before = service.call("GET", "/sources/main")["received_lsn"]
            original.stop()
            copy.stop()
            at = copy.port
            copy.port = original.port
            copy.start()

            def confirmed() -> Lsn:
                # Whether the receiver has it just then is another matter: it tries again and again.
                slot = get_physical_slot(copy.dsn(), "spillway_main")
                assert slot is not None
                return slot.restart_lsn

            kept = confirmed()

            def source() -> dict[str, str]:
                found: dict[str, str] = service.call("GET", "/sources/main")
                return found

            wait_until(lambda: source()["error_code"] == "wal_diverged", what=str(source()))
            assert source()["state"] == "failed"
            differs = re.search(r"differs from (\S+) on", source()["error"])
            assert differs is not None
            stopped_at = Lsn.parse(source()["received_lsn"])
            assert Lsn.parse(differs[1]) < stopped_at
            # It confirmed nothing to the copy. The original sent its last record, of its shutdown,
            # before.
            assert stopped_at >= Lsn.parse(before)
            assert confirmed() == kept

            # What the hint says.
            words = command(
                remedy(source(), "wal_diverged"), "source alter", NAME="main", DSN=original.dsn()
            )
            copy.stop()
            copy.port = at
            original.start()
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("SPILLWAY_URL", f"http://127.0.0.1:{service.http_port}")
                assert main(words) == 0
            original.execute("INSERT INTO t VALUES (12)")
            service.wait_decoded("s", database)  # type: ignore[arg-type]
            assert source()["state"] == "streaming"
            assert source()["error_code"] is None
        inserted = [
            int(n) for n in re.findall(r"INSERT: id\[integer\]:(\d+)", str(service.peek("s")))
        ]
        assert inserted == list(range(1, 13))


class _Database:
    """What ``wait_decoded`` asks."""

    def __init__(self, cluster: Cluster) -> None:
        self.value = cluster.value


@pytest.mark.follows_hint("timeline_diverged")
def test_copies_behind_beside_and_ahead(fresh_cluster: ClusterFactory, receive: Receive) -> None:
    original = fresh_cluster(17, **SMALL)
    reception = receive(original)
    write_wal(original, 1000)
    reception.caught_up()
    original.stop()
    wait_until(lambda: not reception.store.received_lsn % 8)
    reception.receiver.stop()
    store = reception.store
    with copy_of(original) as copy:
        # A copy that has not parted yet can't be told from it, and is none the worse.
        copy.start()
        check_continues(copy.dsn(), store.reader)
        original.start()
        receiver = WalReceiver(original.dsn(), SLOT, store)
        receiver.start()
        original.execute("INSERT INTO load (filler) VALUES ('of the original')")
        end = Lsn.parse(original.value("SELECT pg_current_wal_flush_lsn()::text"))
        wait_until(lambda: store.received_lsn >= end)
        with pytest.raises(TimelineDiverged) as behind:
            check_continues(copy.dsn(), store.reader)
        assert "Point the source at the original" in remedy(behind.value, "timeline_diverged")
        check_continues(original.dsn(), store.reader)
        # The same statement with the same effect: only its time and what it wrote differ.
        copy.execute("INSERT INTO load (filler) VALUES ('of a mere copy.')")
        ends = int(store.received_lsn)
        while Lsn.parse(copy.value("SELECT pg_current_wal_flush_lsn()::text")) < ends:
            copy.execute("INSERT INTO load (filler) VALUES ('one more')")
        with pytest.raises(WalDiverged) as beside:
            check_continues(copy.dsn(), store.reader)
        write_wal(copy, 20_000)
        with pytest.raises(WalDiverged) as ahead:
            check_continues(copy.dsn(), store.reader)
        # All that was received before is compared and equal, so where they part is known exactly.
        assert ahead.value.details["lsn"] == beside.value.details["lsn"]
        original.execute("SELECT 1")
        assert receiver.state == ReceiverState.STREAMING
        receiver.stop()


@pytest.mark.parametrize("major", majors_by_tier([14, 18]))
def test_nothing_to_compare_with_is_no_difference(
    fresh_cluster: ClusterFactory, receive: Receive, major: int
) -> None:
    """The store ends with a segment, which the server has removed."""
    cluster = fresh_cluster(
        major, wal_segment_size_mb=1, max_wal_size="4MB", min_wal_size="2MB", wal_keep_size=0
    )
    reception = receive(cluster)
    write_wal(cluster, 100)
    end = switch_wal(cluster)
    wait_until(lambda: reception.store.flushed_lsn >= end)
    reception.receiver.stop()
    # What came behind the end is forgotten, as by a crash of ours.
    directory = reception.store.directory
    reception.store.close()
    _cut(directory, end)
    for _ in range(3):
        cluster.execute(
            "SELECT pg_logical_emit_message(false, 'p', repeat('x', 1000)), pg_switch_wal()"
        )
        cluster.execute("CHECKPOINT")
    assert not any(
        path.name[16:] < f"{end // (1 << 20):08X}"
        for path in cluster.wal_directory.glob("0000000100000000*")
    )
    with WalWriter(directory) as store:
        receiver = WalReceiver(cluster.dsn(), SLOT, store)
        receiver.start()
        flushed = Lsn.parse(cluster.value("SELECT pg_current_wal_flush_lsn()::text"))
        wait_until(lambda: store.received_lsn >= flushed, what=str(receiver.error))
        check_continues(cluster.dsn(), store.reader)
        receiver.stop()


def _cut(directory: Path, end: Lsn) -> None:
    file = StateFile.open(directory / STATE_NAME)
    if file.state.flushed_lsn > end:
        file.write(replace(file.state, flushed_lsn=end))
    file.close()


def test_damage_of_ours_is_not_blamed_on_the_server(
    fresh_cluster: ClusterFactory, receive: Receive
) -> None:
    cluster = fresh_cluster(18, **SMALL)
    reception = receive(cluster)
    write_wal(cluster, 500)
    end = reception.caught_up()
    reception.receiver.stop()
    directory = reception.store.directory
    reception.store.close()
    (last,) = sorted(directory.glob("0000000100000000*"))[-1:]
    with last.open("r+b") as file:
        file.seek(end % cluster.wal_segment_size - 100)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 0x40]))
    with WalWriter(directory) as store:
        receiver = WalReceiver(cluster.dsn(), SLOT, store)
        receiver.start()
        wait_until(state_is(receiver, ReceiverState.STREAMING), what=str(receiver.error))
        write_wal(cluster, 10)
        wait_until(lambda: store.received_lsn > end)
        assert receiver.error is None
        receiver.stop()
