"""Fixtures of the receiver's tests."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from harness.reception import SLOT, Reception
from spillway.receiver.checks import check_source
from spillway.receiver.physical_slot import create_physical_slot
from spillway.receiver.wal_writer import WalWriter
from spillway.receiver.walreceiver import WalReceiver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.cluster import Cluster


class Receive(Protocol):
    def __call__(self, cluster: Cluster, **options: Any) -> Reception: ...


@pytest.fixture
def receive(tmp_path: Path) -> Iterator[Receive]:
    """A factory: check the source, create the slot, open the store, start the receiver."""
    with contextlib.ExitStack() as stack:

        def start(cluster: Cluster, *, max_bytes: int | None = None, **options: Any) -> Reception:
            facts = check_source(cluster.dsn(), slot_name=SLOT)
            slot = create_physical_slot(cluster.dsn(), SLOT)
            store = WalWriter(
                tmp_path / "wal",
                system_id=facts.system_id,
                segment_size=facts.wal_segment_size,
                timeline=facts.timeline,
                start_lsn=slot.restart_lsn,
                max_bytes=max_bytes,
            )
            stack.callback(store.close)
            receiver = WalReceiver(cluster.dsn(), SLOT, store, **options)
            stack.callback(receiver.stop)
            receiver.start()
            return Reception(cluster, store, receiver)

        yield start
