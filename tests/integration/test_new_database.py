"""A database whose decoding begins when others of its source are decoded already, and have given up
WAL.

Its catalog is read from the running server, and WAL from the redo point of the server's last
checkpoint on. Segments are of 1 MB here, and there are no checkpoints but those that a test makes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from harness.remedies import remedy, statements
from harness.tiers import majors_by_tier
from spillway.catalog.source_queries import checkpoint_at_hand, connected, silent
from spillway.errors import CheckpointNotStored
from spillway.pg.lsn import Lsn
from spillway.receiver.checks import check_source
from spillway.receiver.physical_slot import drop_physical_slot, physical_slot_name
from spillway.receiver.wal_writer import WalWriter
from spillway.service.settings import EngineSettings
from spillway.sessions import session as session_module
from spillway.sessions import source as source_module
from spillway.sessions.layout import SourceLayout
from spillway.sessions.session import Session
from spillway.sessions.source import Source
from spillway.storage.disk_reserve import DiskReserve
from spillway.store.rows import SourceRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any

    from conftest import ClusterFactory
    from harness.cluster import Cluster

_SEGMENT = 1 << 20


def _cluster(fresh_cluster: ClusterFactory, major: int) -> Cluster:
    cluster = fresh_cluster(
        major, wal_segment_size_mb=1, checkpoint_timeout="1d", max_wal_size="8GB"
    )
    for name in ("old", "new"):
        cluster.create_database(name)
    return cluster


@contextmanager
def _source(cluster: Cluster, directory: Path, **settings: Any) -> Iterator[Source]:
    """The source of *cluster*, not started; without the service's upkeep, so that the test
    trims.
    """
    dsn = cluster.dsn("old")
    facts = check_source(dsn, slot_name=physical_slot_name("main"))
    row = SourceRow(
        name="main",
        dsn=dsn,
        system_id=facts.system_id,
        server_version_num=facts.server_version_num,
        timeline=facts.timeline,
        wal_segment_size=facts.wal_segment_size,
        slot_name=physical_slot_name("main"),
    )
    source = Source(
        row,
        SourceLayout(directory, DiskReserve(directory / "reserve")),
        EngineSettings(checkpoint_interval_s=0.0, **settings),
    )
    try:
        yield source
    finally:
        source.stop()


def _redo_lsn(cluster: Cluster) -> Lsn:
    return Lsn.parse(cluster.value("SELECT redo_lsn::text FROM pg_control_checkpoint()"))


def _store(source: Source) -> WalWriter:
    store = source._store
    assert store is not None
    return store


def _consistent(session: Session) -> None:
    asyncio.run(session.wait_consistent(60))


def _wait_until(reached: Callable[[], bool], session: Session) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        session.check_readable()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _leave_behind(cluster: Cluster, source: Source, segments: int) -> None:
    """Write *segments* of WAL, and trim until the old database's session needs none of them."""
    session = source.session_of("old")
    assert session is not None
    _consistent(session)
    cluster.execute("CREATE TABLE IF NOT EXISTS t (id int)", dbname="old")
    for _ in range(segments):
        cluster.execute("INSERT INTO t VALUES (1); SELECT pg_switch_wal()", dbname="old")
    cluster.execute("INSERT INTO t VALUES (2)", dbname="old")
    end = Lsn.parse(cluster.value("SELECT pg_current_wal_flush_lsn()::text"))

    def left() -> bool:
        done = session.required_lsn >= end
        source.trim({})
        return done

    _wait_until(left, session)


@pytest.mark.parametrize("major", majors_by_tier([15, 18]))
def test_wal_from_the_last_checkpoint_on_is_kept(
    fresh_cluster: ClusterFactory, tmp_path: Path, major: int
) -> None:
    """The decoding of several databases failed when the first had left the last checkpoint's
    segment behind.
    """
    cluster = _cluster(fresh_cluster, major)
    with _source(cluster, tmp_path) as source:
        source.start(["old"])
        old = source.open_session("old")
        _leave_behind(cluster, source, 4)
        redo_lsn = _redo_lsn(cluster)
        assert old.required_lsn >= redo_lsn + 3 * _SEGMENT
        assert redo_lsn - _SEGMENT < _store(source).first_lsn <= redo_lsn
        began: list[Lsn] = []
        bootstrap = session_module.bootstrap_database

        def note(*args: Any, **kwargs: Any) -> Any:
            made = bootstrap(*args, **kwargs)
            began.append(made.redo_lsn)
            return made

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session_module, "bootstrap_database", note)
            _consistent(source.open_session("new"))
        assert began == [redo_lsn], "no other checkpoint was needed"


def test_a_checkpoint_lets_wal_go(fresh_cluster: ClusterFactory, tmp_path: Path) -> None:
    cluster = _cluster(fresh_cluster, 18)
    with _source(cluster, tmp_path) as source:
        source.start(["old"])
        old = source.open_session("old")
        _leave_behind(cluster, source, 3)
        cluster.execute("CHECKPOINT")
        _leave_behind(cluster, source, 1)
        redo_lsn = _redo_lsn(cluster)
        assert redo_lsn - _SEGMENT < _store(source).first_lsn <= redo_lsn
        kept = _store(source).first_lsn
    with _source(cluster, tmp_path) as source:
        # Where the last checkpoint was is not known yet.
        source.start(["old"])
        old = source.open_session("old")
        _leave_behind(cluster, source, 3)
        assert _store(source).first_lsn == kept
        _consistent(source.open_session("new"))
        cluster.execute("CHECKPOINT")
        end = Lsn.parse(cluster.value("SELECT pg_current_wal_flush_lsn()::text"))
        for session in (old, source.open_session("new")):
            _wait_until(lambda session=session: session.required_lsn >= end, session)  # type: ignore[misc]
        source.trim({})
        assert kept < _store(source).first_lsn <= _redo_lsn(cluster)


def test_a_bounded_store_gives_it_up_for_a_new_checkpoint(
    fresh_cluster: ClusterFactory, tmp_path: Path
) -> None:
    cluster = _cluster(fresh_cluster, 18)
    with _source(cluster, tmp_path, wal_store_max_bytes=16 * _SEGMENT) as source:
        source.start(["old"])
        _leave_behind(cluster, source, 12)
        redo_lsn = _redo_lsn(cluster)
        store = _store(source)
        assert redo_lsn < store.first_lsn
        assert store.received_lsn - store.first_lsn <= 9 * _SEGMENT
        _consistent(source.open_session("new"))
        assert _redo_lsn(cluster) >= store.first_lsn


@pytest.mark.follows_hint("checkpoint_not_stored")
def test_the_next_checkpoint_is_awaited(fresh_cluster: ClusterFactory) -> None:
    cluster = _cluster(fresh_cluster, 15)
    cluster.execute("CREATE ROLE watcher LOGIN REPLICATION")
    before = _redo_lsn(cluster)
    cluster.execute("SELECT pg_switch_wal()")
    first_lsn = Lsn(before + 1)
    never = threading.Event()
    with connected(cluster.dsn("new", "watcher")) as connection:
        with pytest.raises(CheckpointNotStored, match=str(before)) as caught:
            checkpoint_at_hand(connection, first_lsn, silent, never, wait_max_s=0)
        assert caught.value.details == {"lsn": str(before), "first_lsn": str(first_lsn)}
        assert _redo_lsn(cluster) == before, "the role may not make one"
        said: list[str] = []

        def make_one(what: str) -> None:
            said.append(what)
            (sql,) = statements(remedy(caught.value, "checkpoint_not_stored"))
            cluster.execute(sql)

        checkpoint = checkpoint_at_hand(connection, first_lsn, make_one, never, wait_max_s=60)
    assert checkpoint.redo_lsn == _redo_lsn(cluster) > before
    assert len(said) == 1
    assert "waiting for a checkpoint" in said[0]


def test_nothing_goes_while_a_session_asks_the_server(
    fresh_cluster: ClusterFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = _cluster(fresh_cluster, 18)
    with _source(cluster, tmp_path) as source:
        source.start(["old"])
        _leave_behind(cluster, source, 3)
        first_lsn = _store(source).first_lsn
        bootstrap = session_module.bootstrap_database
        seen: list[Lsn] = []

        def meanwhile(*args: Any, **kwargs: Any) -> Any:
            """After the server's answer a checkpoint lets all of it go, as far as the old database
            is concerned.
            """
            made = bootstrap(*args, **kwargs)
            cluster.execute("CHECKPOINT")
            _leave_behind(cluster, source, 1)
            seen.append(_store(source).first_lsn)
            return made

        monkeypatch.setattr(session_module, "bootstrap_database", meanwhile)
        _consistent(source.open_session("new"))
        assert seen == [first_lsn]


def test_nothing_goes_before_every_session_is_there(
    fresh_cluster: ClusterFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start opens one session after another; one that has not been opened yet may need the oldest
    WAL.
    """
    cluster = _cluster(fresh_cluster, 18)
    with _source(cluster, tmp_path) as source:
        source.start(["new", "old"])
        for database in ("new", "old"):
            _consistent(source.open_session(database))
    removed: list[int] = []
    remove_before = WalWriter.remove_before

    def note(store: WalWriter, lsn: int) -> None:
        removed.append(lsn)
        remove_before(store, lsn)

    class Late(Session):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if self.database == "old":
                first = source.session_of("new")
                assert first is not None
                _wait_until(lambda: first.required_lsn > 0, first)
                source.trim({})
                assert removed == []

    monkeypatch.setattr(WalWriter, "remove_before", note)
    monkeypatch.setattr(source_module, "Session", Late)
    with _source(cluster, tmp_path) as source:
        source.start([])
        source.trim({})
        assert len(removed) == 1
    drop_physical_slot(cluster.dsn(), physical_slot_name("main"))
