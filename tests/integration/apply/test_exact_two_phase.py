"""Prepared transactions on the target: exactly once, whatever ends between two statements."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from harness.cluster import Cluster
from harness.exact_apply import Ours, Source, Stock, drop_target
from harness.remedies import remedy, statements
from harness.tiers import deep
from spillway.apply.target.session import TargetSession
from spillway.errors import ApplyConflict, TargetTransactionLost, TargetTwoPhaseDisabled
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    ClusterOf = Callable[[int], Cluster]

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"
_OURS = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
GIDS = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"


@pytest.fixture(scope="module", params=[deep(15), deep(16), deep(17), 18])
def cluster(request: pytest.FixtureRequest, timed_cluster: ClusterOf) -> Cluster:
    return timed_cluster(request.param)


@pytest.fixture
def source(cluster: Cluster) -> Iterator[Source]:
    made = Source.make(cluster)
    made.database.execute(TABLE)
    yield made
    for (gid,) in made.database.query(
        "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
    ):
        made.database.execute(f"ROLLBACK PREPARED '{gid}'")
    cluster.drop_database(made.database.name)


@pytest.fixture
def ours(source: Source) -> Iterator[Ours]:
    made = Ours.make(source, two_phase=True)
    made.database.execute(TABLE)
    yield made
    drop_target(made.database)


class Killed(BaseException):
    """The program ends here."""


def killed_at(monkeypatch: pytest.MonkeyPatch, ours: Ours, count: int) -> None:
    """Take what there is, but end before the *count*-th time that a position is kept alone."""
    with killed(monkeypatch, count):
        ours.take(peek=True)


@contextmanager
def killed(monkeypatch: pytest.MonkeyPatch, count: int) -> Iterator[None]:
    """End what is in the block before the *count*-th time that it keeps a position alone."""
    record = TargetSession.record
    calls = 0

    def ending(session: TargetSession, head: object) -> None:
        nonlocal calls
        calls += 1
        if calls == count:
            session.close()
            raise Killed
        record(session, head)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(TargetSession, "record", ending)
        with pytest.raises(Killed):
            yield


def prepare(source: Source, gid: str, *statements: str) -> None:
    with source.database.connect() as connection:
        connection.execute("BEGIN")
        for statement in statements:
            connection.execute(statement.encode())
        connection.execute(f"PREPARE TRANSACTION '{gid}'".encode())


def test_a_transaction_is_prepared_and_committed_when_the_sources_is(
    source: Source, ours: Ours
) -> None:
    gid = f"g{ours.slot}"
    prepare(source, gid, "INSERT INTO t VALUES (1, 'prepared')")
    ours.take()
    assert ours.rows("t") == []
    assert ours.database.value(GIDS) == 1
    # Another one goes on beside it.
    source.database.execute("INSERT INTO t VALUES (2, 'beside')")
    ours.take()
    assert ours.rows("t") == [(2, "beside")]
    source.database.execute(f"COMMIT PREPARED '{gid}'")
    ours.take()
    assert ours.rows("t") == [(1, "prepared"), (2, "beside")]
    assert ours.database.value(GIDS) == 0
    assert ours.rows("spillway.prepared") == []
    prepare(source, gid, "DELETE FROM t")
    source.database.execute(f"ROLLBACK PREPARED '{gid}'")
    ours.take()
    assert ours.rows("t") == [(1, "prepared"), (2, "beside")]
    assert ours.database.value(GIDS) == 0


@pytest.mark.parametrize("how", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("kill", [1, 2])
def test_a_kill_between_a_statement_and_its_position(
    source: Source, ours: Ours, monkeypatch: pytest.MonkeyPatch, how: str, kill: int
) -> None:
    """Killed after PREPARE TRANSACTION, and after what finishes it: each comes again."""
    gid = f"g{ours.slot}"
    source.database.execute("INSERT INTO t VALUES (1, 'x')")
    ours.take()
    prepare(source, gid, "UPDATE t SET v = v || 'y'", "INSERT INTO t VALUES (2, 'z')")
    source.database.execute(f"{how} PREPARED '{gid}'")
    killed_at(monkeypatch, ours, kill)
    ours.take()
    assert ours.rows("t") == source.database.query("SELECT * FROM t ORDER BY 1")
    assert ours.database.value(GIDS) == 0
    assert ours.rows("spillway.prepared") == []
    assert ours.heard.conflicts == []


def test_a_rollback_of_what_never_came_is_passed_over(source: Source, ours: Ours) -> None:
    gid = f"g{ours.slot}"
    prepare(source, gid, "INSERT INTO t VALUES (1, 'x')")
    ours.messages()
    source.database.execute(f"ROLLBACK PREPARED '{gid}'")
    source.database.execute("INSERT INTO t VALUES (2, 'y')")
    ours.take()
    assert ours.rows("t") == [(2, "y")]


@pytest.mark.follows_hint("target_transaction_lost")
def test_a_commit_of_what_is_gone_stops_until_it_is_skipped(source: Source, ours: Ours) -> None:
    gid = f"g{ours.slot}"
    prepare(source, gid, "INSERT INTO t VALUES (1, 'x')")
    ours.take()
    ((there,),) = ours.database.query(
        "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
    )
    ours.database.execute(f"ROLLBACK PREPARED '{there}'")
    source.database.execute(f"COMMIT PREPARED '{gid}'")
    source.database.execute("INSERT INTO t VALUES (2, 'y')")
    with pytest.raises(TargetTransactionLost) as error:
        ours.take(peek=True)
    ours.follow(remedy(error.value, "target_transaction_lost"), "skip")
    ours.take()
    assert ours.rows("t") == [(2, "y")]


@pytest.mark.follows_hint("apply_conflict")
@pytest.mark.parametrize("how", ["COMMIT", "ROLLBACK"])
def test_a_prepared_transaction_that_is_skipped(
    source: Source, ours: Ours, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It is prepared without its rows, once, though the program is killed before its position is
    kept; what finishes it finds it.
    """
    gid = f"g{ours.slot}"
    prepare(source, gid, "INSERT INTO t VALUES (1, 'x'), (3, 'z')")
    ours.database.execute("INSERT INTO t VALUES (1, 'local')")
    with pytest.raises(ApplyConflict) as error:
        ours.take(peek=True)
    assert ours.database.value(GIDS) == 0
    hint = remedy(error.value, "apply_conflict")
    with killed(monkeypatch, 1):
        ours.follow(hint, "skip")
    assert ours.database.value(GIDS) == 1
    ours.follow(hint, "skip")
    ours.take()
    assert ours.database.value(GIDS) == 1
    source.database.execute(f"{how} PREPARED '{gid}'")
    source.database.execute("INSERT INTO t VALUES (2, 'y')")
    ours.take()
    assert ours.rows("t") == [(1, "local"), (2, "y")]
    assert ours.database.value(GIDS) == 0
    assert ours.rows("spillway.prepared") == []


@pytest.mark.parametrize("how", ["COMMIT", "ROLLBACK"])
def test_what_finishes_it_is_within_what_is_skipped(
    source: Source, ours: Ours, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The target has the rows of one since its PREPARE, and does what the source did; one that is
    prepared and finished there leaves nothing, nor one that is lost.
    """
    prepare(source, f"there{ours.slot}", "INSERT INTO t VALUES (1, 'there')")
    ours.take()
    ((there,),) = ours.database.query(_OURS)
    prepare(source, f"lost{ours.slot}", "INSERT INTO t VALUES (2, 'lost')")
    ours.take()
    (lost,) = [gid for (gid,) in ours.database.query(_OURS) if gid != there]
    ours.database.execute(f"ROLLBACK PREPARED '{lost}'")
    source.database.execute(f"{how} PREPARED 'there{ours.slot}'")
    prepare(source, f"within{ours.slot}", "INSERT INTO t VALUES (3, 'within')")
    source.database.execute("INSERT INTO t VALUES (4, 'skipped')")
    source.database.execute(f"{how} PREPARED 'within{ours.slot}'")
    source.database.execute(f"{how} PREPARED 'lost{ours.slot}'")
    upto = Lsn.parse(source.database.value("SELECT pg_current_wal_lsn()::text"))
    source.database.execute("INSERT INTO t VALUES (5, 'behind')")
    for count in range(1, 4):
        with killed(monkeypatch, count):
            ours.skip(upto)
    ours.skip(upto)
    assert ours.database.value(GIDS) == 0
    ours.take()
    kept = [(1, "there")] if how == "COMMIT" else []
    assert ours.rows("t") == [*kept, (5, "behind")]
    assert ours.rows("spillway.prepared") == []


def test_a_prepare_is_skipped_beside_postgresqls_worker(source: Source, ours: Ours) -> None:
    """Both have an empty prepared transaction then, until the source finishes its."""
    stock = Stock.make(source)
    stock.database.execute(TABLE)
    stock.subscribe(two_phase="true", disable_on_error="true")
    ours.database.execute("CREATE TABLE mark (n int PRIMARY KEY)")
    try:
        stock.catch_up()
        for database in (stock.database, ours.database):
            database.execute("INSERT INTO t VALUES (1, 'local'), (11, 'local')")
        for number, how in ((1, "COMMIT"), (11, "ROLLBACK")):
            since = stock.log_size()
            gid = f"g{number}{ours.slot}"
            prepare(source, gid, f"INSERT INTO t VALUES ({number}, 'x'), ({number + 1}, 'x')")
            stock.wait_disabled()
            stock.skip(stock.finished_at(since))
            with pytest.raises(ApplyConflict) as error:
                ours.take(peek=True)
            ours.follow(error.value.hint, "skip")
            stock.catch_up()
            ours.take()
            assert ours.database.value(GIDS) == stock.database.value(GIDS) == 1
            source.database.execute(f"{how} PREPARED '{gid}'")
            stock.catch_up()
            ours.take()
            assert ours.database.value(GIDS) == stock.database.value(GIDS) == 0
        left = "SELECT * FROM t ORDER BY 1"
        assert ours.database.query(left) == stock.database.query(left)
        assert ours.rows("t") == [(1, "local"), (11, "local")]
    finally:
        stock.drop()


@pytest.mark.follows_hint("target_two_phase_disabled")
def test_a_target_without_prepared_transactions(source: Source) -> None:
    with Cluster(source.database.cluster.major, max_prepared_transactions=0) as target:
        ours = Ours(source, target.create_database("bare"), source.slot(two_phase=True), True)
        ours.database.execute(TABLE)
        gid = f"g{ours.slot}"
        prepare(source, gid, "INSERT INTO t VALUES (1, 'x')")
        with pytest.raises(TargetTwoPhaseDisabled) as error:
            ours.take(peek=True)
        for statement in statements(remedy(error.value, "target_two_phase_disabled")):
            ours.database.execute(statement)
        target.restart()
        ours.take()
        source.database.execute(f"COMMIT PREPARED '{gid}'")
        ours.take()
        assert ours.rows("t") == [(1, "x")]
