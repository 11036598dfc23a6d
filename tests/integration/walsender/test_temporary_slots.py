"""Temporary slots are somebody's: they go when that one does, and nothing else goes with them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from harness.pg_port import serving
from harness.replication_client import ReplicationClient

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.cluster import Database
    from harness.service import Service

CREATE = "CREATE_REPLICATION_SLOT {} {} LOGICAL test_decoding NOEXPORT_SNAPSHOT"


def _slots(service: Service) -> dict[str, bool]:
    """The names of the service's slots, and whether each is temporary."""
    return {one["slot_name"]: one["temporary"] for one in service.call("GET", "/slots")["slots"]}


def _wait(holds: Callable[[], bool], told: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, told()
        time.sleep(0.05)


def _create(client: ReplicationClient, slot: str, kind: str = "TEMPORARY") -> None:
    assert client.run(CREATE.format(slot, kind)).failure is None


def test_one_that_another_connection_reads(pg18: Database, tmp_path: Path) -> None:
    """It would be nobody's, and keep WAL until the service ends."""
    with serving(pg18, tmp_path) as (service, dsn), ReplicationClient(dsn) as reader:
        with ReplicationClient(dsn) as owner:
            _create(owner, "passing")
            reader.start("passing")
        _wait(lambda: not _slots(service), lambda: _slots(service))


def test_one_that_has_its_name_later(pg18: Database, tmp_path: Path) -> None:
    """A slot that was made under a temporary one's name outlives the connection of that one."""
    with serving(pg18, tmp_path) as (service, dsn), ReplicationClient(dsn) as other:
        for kind in ("", "TEMPORARY"):
            with ReplicationClient(dsn) as owner:
                _create(owner, "named")
                assert other.run("DROP_REPLICATION_SLOT named").failure is None
                _create(other, "named", kind)
                _create(owner, "last")
            _wait(lambda: "last" not in _slots(service), lambda: _slots(service))
            assert _slots(service) == {"named": bool(kind)}
            assert other.run("DROP_REPLICATION_SLOT named").failure is None


def test_one_that_was_made_elsewhere(pg18: Database, tmp_path: Path) -> None:
    """REST's goes when its consumer does, of whatever protocol; a connection's with that."""
    with serving(pg18, tmp_path) as (service, dsn), ReplicationClient(dsn) as owner:
        service.create_slot("of_rest", pg18.name, temporary=True)
        _create(owner, "of_port")
        for slot in ("of_rest", "of_port"):
            with ReplicationClient(dsn) as reader:
                reader.start(slot)
        _wait(lambda: "of_rest" not in _slots(service), lambda: _slots(service))
        assert _slots(service) == {"of_port": True}
