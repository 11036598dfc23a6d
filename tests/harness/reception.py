"""A WAL store and a receiver on a test's cluster."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spillway.pg.lsn import Lsn
from spillway.pg.wal_segment import segment_name, segment_number
from spillway.receiver.walreceiver import ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import Cluster
    from spillway.receiver.wal_writer import WalWriter
    from spillway.receiver.walreceiver import WalReceiver


SLOT = "spillway_test"


def wait_until(condition: Callable[[], object], timeout_s: float = 120.0, what: str = "") -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"timed out: {what or condition}"
        time.sleep(0.01)


def insert_lsn(cluster: Cluster) -> Lsn:
    return Lsn.parse(cluster.wal_lsn())


def flush_lsn(cluster: Cluster) -> Lsn:
    return Lsn.parse(cluster.value("SELECT pg_current_wal_flush_lsn()::text"))


def switch_wal(cluster: Cluster) -> Lsn:
    """End the current segment and return where it ends."""
    cluster.execute("SELECT pg_switch_wal()")
    lsn = insert_lsn(cluster)
    size = cluster.wal_segment_size
    return Lsn(lsn // size * size)


@dataclass
class Reception:
    """A store and its receiver on a cluster."""

    cluster: Cluster
    store: WalWriter
    receiver: WalReceiver

    def caught_up(self, timeout_s: float = 120.0) -> Lsn:
        """Wait until all that the server has flushed is durable in the store."""
        lsn = flush_lsn(self.cluster)
        wait_until(lambda: self.store.flushed_lsn >= lsn, timeout_s, f"{self.receiver.error}")
        return lsn

    def streaming(self) -> None:
        wait_until(
            lambda: self.receiver.state == ReceiverState.STREAMING, what=f"{self.receiver.error}"
        )

    def assert_equals_server(self) -> int:
        """Compare every whole segment with the server's own file; return how many there were."""
        store, compared = self.store, 0
        end = switch_wal(self.cluster)
        self.cluster.execute("CREATE TABLE IF NOT EXISTS after_switch ()")
        wait_until(lambda: store.flushed_lsn >= end, what=f"{self.receiver.error}")
        size = store.segment_size
        for number in range(segment_number(store.first_lsn, size), segment_number(end, size)):
            name = segment_name(store.timeline, number, size)
            server_file = self.cluster.wal_directory / name
            if server_file.exists():
                assert (store.directory / name).read_bytes() == server_file.read_bytes(), name
                compared += 1
        return compared
