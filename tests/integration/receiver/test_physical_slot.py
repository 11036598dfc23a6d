"""The physical slot on a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.reception import SLOT, wait_until
from harness.remedies import remedy, statements
from harness.tiers import majors_by_tier
from integration.receiver.test_checks import restart_as_told
from spillway.errors import (
    PhysicalSlotActive,
    PhysicalSlotUnusable,
    ReplicationSlotsExhausted,
    SourceError,
    WalRemoved,
)
from spillway.pg.lsn import Lsn
from spillway.receiver.physical_slot import (
    create_physical_slot,
    drop_physical_slot,
    get_physical_slot,
    renew_physical_slot,
    take_physical_slot,
)
from spillway.receiver.walreceiver import ReceiverState, WalReceiver

if TYPE_CHECKING:
    from conftest import ClusterFactory


@pytest.mark.parametrize("major", majors_by_tier([14, 18]))
def test_life(fresh_cluster: ClusterFactory, major: int) -> None:
    cluster = fresh_cluster(major)
    dsn = cluster.dsn()
    assert get_physical_slot(dsn, SLOT) is None
    assert drop_physical_slot(dsn, SLOT) is False

    slot = create_physical_slot(dsn, SLOT)
    redo = Lsn.parse(cluster.value("SELECT redo_lsn::text FROM pg_control_checkpoint()"))
    assert slot.restart_lsn == redo, "the bootstrap begins there"
    assert not slot.active
    cluster.execute("CREATE TABLE t (); CHECKPOINT")
    assert create_physical_slot(dsn, SLOT) == slot == get_physical_slot(dsn, SLOT)
    assert cluster.query(
        "SELECT slot_type, temporary, xmin, catalog_xmin FROM pg_replication_slots"
    ) == [("physical", False, None, None)]
    assert drop_physical_slot(dsn, SLOT) is True
    assert get_physical_slot(dsn, SLOT) is None


def test_slot_that_reserves_nothing_is_made_anew(fresh_cluster: ClusterFactory) -> None:
    cluster = fresh_cluster(15)
    cluster.query("SELECT pg_create_physical_replication_slot(%s)", [SLOT])
    assert create_physical_slot(cluster.dsn(), SLOT).restart_lsn > 0


@pytest.mark.follows_hint("physical_slot_unusable")
def test_name_taken_by_a_logical_slot(fresh_cluster: ClusterFactory) -> None:
    cluster = fresh_cluster(15)
    cluster.query("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [SLOT])
    for call in (create_physical_slot, get_physical_slot, drop_physical_slot):
        with pytest.raises(PhysicalSlotUnusable) as caught:
            call(cluster.dsn(), SLOT)
        assert caught.value.code == "physical_slot_unusable"
    assert cluster.query("SELECT 1 FROM pg_replication_slots"), "not ours to drop"
    hint = remedy(caught.value, "physical_slot_unusable")
    assert "Drop that slot, or give the source another name" in hint
    create_physical_slot(cluster.dsn(), "spillway_another")
    cluster.query("SELECT pg_drop_replication_slot(%s)", [SLOT])
    create_physical_slot(cluster.dsn(), SLOT)


@pytest.mark.follows_hint("max_replication_slots_exhausted")
def test_no_slot_left(fresh_cluster: ClusterFactory) -> None:
    cluster = fresh_cluster(15, max_replication_slots=1)
    create_physical_slot(cluster.dsn(), "another")
    with pytest.raises(ReplicationSlotsExhausted) as caught:
        create_physical_slot(cluster.dsn(), SLOT)
    restart_as_told(cluster, remedy(caught.value, "max_replication_slots_exhausted"))
    create_physical_slot(cluster.dsn(), SLOT)


def test_illegal_name_is_the_servers_error(fresh_cluster: ClusterFactory) -> None:
    with pytest.raises(SourceError, match="invalid character"):
        create_physical_slot(fresh_cluster(15).dsn(), "Not Legal")


def test_slot_in_use(fresh_cluster: ClusterFactory, receive: object) -> None:
    cluster = fresh_cluster(15)
    reception = receive(cluster)  # type: ignore[operator]
    reception.streaming()
    with pytest.raises(PhysicalSlotActive) as caught:
        drop_physical_slot(cluster.dsn(), SLOT, release_timeout_s=0.2)
    pid = cluster.value("SELECT pid FROM pg_stat_replication")
    assert caught.value.message == f'the physical slot "{SLOT}" is active for PID {pid}'
    slot = get_physical_slot(cluster.dsn(), SLOT)
    assert slot is not None
    assert slot.active_pid == cluster.value("SELECT pid FROM pg_stat_replication")
    # Who may have it instead ends the stream, also that of a process which can't let go.
    assert take_physical_slot(cluster.dsn(), SLOT)
    wait_until(lambda: not cluster.query("SELECT 1 FROM pg_stat_replication WHERE pid = %s", [pid]))
    reception.streaming()
    reception.receiver.stop()
    wait_until(lambda: not take_physical_slot(cluster.dsn(), SLOT))
    for _ in range(5):  # right after the receiver stops the slot may still be active for a moment
        reception.receiver.stop()
        assert drop_physical_slot(cluster.dsn(), SLOT)
        again = WalReceiver(cluster.dsn(), SLOT, reception.store)
        again.start()
        reception.receiver = again
        wait_until(lambda: reception.receiver.state == ReceiverState.STREAMING)
    reception.receiver.stop()


@pytest.mark.parametrize("major", majors_by_tier([14, 18]))
@pytest.mark.follows_hint("wal_removed")
def test_invalidated_slot(fresh_cluster: ClusterFactory, major: int) -> None:
    cluster = fresh_cluster(
        major,
        wal_segment_size_mb=1,
        max_wal_size="4MB",
        min_wal_size="2MB",
        wal_keep_size=0,
        max_slot_wal_keep_size="1MB",
    )
    create_physical_slot(cluster.dsn(), SLOT)
    for _ in range(8):
        cluster.execute("CREATE TABLE IF NOT EXISTS t (a text)")
        cluster.execute("INSERT INTO t SELECT repeat('x', 90) FROM generate_series(1, 10000)")
        cluster.execute("SELECT pg_switch_wal()")
        cluster.execute("CHECKPOINT")
    wait_until(lambda: cluster.value("SELECT wal_status FROM pg_replication_slots") == "lost")
    for call in (create_physical_slot, get_physical_slot):
        with pytest.raises(WalRemoved) as caught:
            call(cluster.dsn(), SLOT)
        assert "max_slot_wal_keep_size" in caught.value.hint
    assert renew_physical_slot(cluster.dsn(), SLOT).wal_status == "reserved"
    for sql in statements(remedy(caught.value, "wal_removed")):
        cluster.query(sql)
    assert create_physical_slot(cluster.dsn(), SLOT).wal_status == "reserved"
