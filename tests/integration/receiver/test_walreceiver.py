"""The receiver against real servers: the same bytes, confirmed only when durable, through every trouble."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spillway.receiver.walreceiver import ReceiverState

if TYPE_CHECKING:
    from conftest import ClusterFactory
    from harness.cluster import Cluster
    from integration.receiver.conftest import Receive


def write_wal(cluster: Cluster, rows: int = 20_000) -> None:
    cluster.execute("CREATE TABLE IF NOT EXISTS load (id bigserial PRIMARY KEY, filler text)")
    cluster.execute(
        f"INSERT INTO load (filler) SELECT repeat(md5(i::text), 4) FROM generate_series(1, {rows}) i"
    )


@pytest.mark.parametrize("major", [14, 15, 16, 17, 18])
def test_segments_equal_the_servers(
    fresh_cluster: ClusterFactory, receive: Receive, major: int
) -> None:
    cluster = fresh_cluster(major, wal_segment_size_mb=1, wal_keep_size="1GB")
    reception = receive(cluster)
    write_wal(cluster)

    assert reception.assert_equals_server() >= 4
    assert reception.receiver.state == ReceiverState.STREAMING
    assert reception.receiver.error is None
