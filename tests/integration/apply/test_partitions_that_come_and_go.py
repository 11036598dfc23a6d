"""Partitions of a root that is published as itself: detached, attached, attached elsewhere by now.
The target's root has what the source's has, or the subscription pauses and says why. The source is
asked later than it happened, and may know the partition otherwise.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from harness.postgresql_subscription import wait_until
from harness.remedies import remedy, statements
from harness.subscribed_pair import SubscribedPair, subscribed_pair
from harness.tiers import deep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import Cluster
    from harness.serve_process import ServeProcess

_ROOT = """
CREATE TABLE r (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (100);
CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (100) TO (200);
"""
_TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"
_ATTACH = "ALTER TABLE r ATTACH PARTITION t FOR VALUES FROM (200) TO (300)"
_VIA_ROOT = " WITH (publish_via_partition_root = true)"


@pytest.fixture
def pair(checklist_cluster: Cluster, apply_service: ServeProcess) -> Iterator[SubscribedPair]:
    with subscribed_pair(checklist_cluster, apply_service.service()) as there:
        yield there


def _stand(pair: SubscribedPair) -> None:
    pair.service.call("POST", f"/subscriptions/{pair.name}/disable")
    wait_until("it stands", lambda: pair.view()["pid"] is None, pair.told)


def _go_on(pair: SubscribedPair) -> None:
    pair.service.call("POST", f"/subscriptions/{pair.name}/enable")
    pair.catch_up()


def _follow_hint(pair: SubscribedPair, error: dict[str, Any]) -> None:
    for statement in statements(remedy(error, "target_schema_change")):
        pair.target.execute(statement)
    _go_on(pair)


@pytest.mark.parametrize(
    ("wished", "how"), [("apply", ""), deep("pause", ""), deep("apply", "CONCURRENTLY")]
)
def test_a_partition_that_is_detached(pair: SubscribedPair, wished: str, how: str) -> None:
    """Nothing is published of it any more, whenever the source is asked; its rows leave the
    target's root as they left the source's.
    """
    pair.both(_ROOT)
    pair.create("TABLE r, marker" + _VIA_ROOT, on_schema_change=wished)
    pair.source.execute("INSERT INTO r VALUES (1, 'one'), (101, 'two')")
    pair.source.execute(f"ALTER TABLE r DETACH PARTITION r1 {how}")
    if wished == "pause":
        error = pair.paused()["error"]
        assert "public.r1 (detach_partition)" in error["message"]
        _follow_hint(pair, error)
    pair.catch_up()
    pair.check_equal("r", "r1")


@pytest.mark.parametrize("is_later", [False, deep(True)], ids=["", "seen later"])
@pytest.mark.parametrize("published", ["ALL TABLES", deep("TABLE r, r1, marker")])
def test_a_partition_that_is_published_by_itself_when_it_is_detached(
    pair: SubscribedPair, published: str, is_later: bool
) -> None:
    """It goes on with the rows that it has: a copy would find them in its way, or there twice. From
    that place on its changes are its own, in the same transaction too; 14 alone would go on to send
    them as the root's.
    """
    pair.both(_ROOT)
    pair.create(published + _VIA_ROOT, on_schema_change="apply")
    pair.source.execute("INSERT INTO r VALUES (1, 'one'), (101, 'two')")
    pair.catch_up()
    if is_later:
        _stand(pair)
    pair.source.execute("INSERT INTO r VALUES (2, 'of r')")
    pair.transaction(
        "INSERT INTO r VALUES (3, 'of r')",
        "ALTER TABLE r DETACH PARTITION r1",
        "INSERT INTO r1 VALUES (4, 'its own')",
    )
    pair.source.execute("UPDATE r1 SET v = 'new' WHERE id = 1")
    if is_later:
        _go_on(pair)
    pair.catch_up()
    pair.check_equal("r", "r1")
    pair.service.call("POST", f"/subscriptions/{pair.name}/refresh")
    pair.source.execute("INSERT INTO r1 VALUES (5, 'behind a refresh')")
    pair.catch_up()
    pair.check_equal("r", "r1")
    state = "SELECT state FROM spillway.tables WHERE table_name = 'r1'"
    assert pair.target.query(state) == [("r",)]


def test_a_partition_that_is_dropped(pair: SubscribedPair) -> None:
    """It stays, as any table that is dropped, and is no pause; what is done to the target by hand
    is nobody's trouble.
    """
    pair.both(_ROOT)
    pair.create("TABLE r, marker" + _VIA_ROOT, on_schema_change="pause")
    pair.source.execute("INSERT INTO r VALUES (1, 'one'), (101, 'two')")
    pair.source.execute("DROP TABLE r1")
    pair.catch_up()
    assert pair.target.query("SELECT id FROM r ORDER BY 1") == [(1,), (101,)]
    pair.target.execute("DROP TABLE r1")
    pair.source.execute("INSERT INTO r VALUES (102, 'streamed')")
    pair.catch_up()
    pair.check_equal("r")


@pytest.mark.long
@pytest.mark.parametrize("is_later", [False, deep(True)], ids=["", "seen later"])
def test_a_partition_of_a_partition_that_is_detached(pair: SubscribedPair, is_later: bool) -> None:
    """It is known whose it was though what it was a partition of has been detached, too; under the
    name that it was given before.
    """
    below = """
    CREATE TABLE m PARTITION OF r FOR VALUES FROM (200) TO (400) PARTITION BY RANGE (id);
    CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (200) TO (300);
    CREATE TABLE m2 PARTITION OF m FOR VALUES FROM (300) TO (400);
    """
    pair.both(_ROOT + below)
    pair.create("TABLE r, marker" + _VIA_ROOT, on_schema_change="apply")
    pair.source.execute("INSERT INTO r VALUES (1, 'one'), (201, 'two'), (301, 'three')")
    if is_later:
        _stand(pair)
    pair.source.execute("ALTER TABLE m1 RENAME TO left_first")
    pair.source.execute("ALTER TABLE m DETACH PARTITION left_first")
    pair.source.execute("ALTER TABLE r DETACH PARTITION m")
    if is_later:
        _go_on(pair)
    pair.catch_up()
    pair.check_equal("r", "left_first", "m")


@pytest.mark.long
def test_a_partition_of_another_table_by_now(pair: SubscribedPair) -> None:
    """Its bounds there are none of those that it had: that is a pause, which goes on when it was
    attached by hand.
    """
    other = "CREATE TABLE q (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
    pair.both(f"{_ROOT}{other}{_TABLE}")
    pair.create("TABLE r, q, t, marker" + _VIA_ROOT, on_schema_change="apply")
    pair.catch_up()
    _stand(pair)
    pair.source.execute(_ATTACH)
    pair.source.execute("INSERT INTO r VALUES (201, 'of r')")
    pair.source.execute("ALTER TABLE r DETACH PARTITION t")
    pair.source.execute("ALTER TABLE q ATTACH PARTITION t FOR VALUES FROM (0) TO (1000)")
    pair.source.execute("INSERT INTO q VALUES (301, 'of q')")
    pair.service.call("POST", f"/subscriptions/{pair.name}/enable")
    error = pair.paused()["error"]
    assert error["code"] == "target_schema_change"
    assert "no partition of public.r on the source any more" in error["message"]
    pair.target.execute(_ATTACH)
    _go_on(pair)
    pair.check_equal("r", "q", "t")


@pytest.mark.long
@pytest.mark.parametrize("wished", ["apply", deep("pause")])
def test_a_table_is_attached_that_the_target_lacks(pair: SubscribedPair, wished: str) -> None:
    """It is made, as a partition that is new: rows of the root would have no place."""
    pair.both(_ROOT)
    pair.create("TABLE r, marker" + _VIA_ROOT, on_schema_change=wished)
    pair.source.execute(_TABLE)
    pair.source.execute(_ATTACH)
    if wished == "pause":
        _follow_hint(pair, pair.paused()["error"])
    pair.source.execute("INSERT INTO r VALUES (201, 'of r')")
    pair.catch_up()
    pair.check_equal("r", "t")


@pytest.mark.long
def test_a_partitioned_table_is_attached_that_the_target_lacks(pair: SubscribedPair) -> None:
    """Of its own partitions nothing is told, so a person has to make them."""
    pair.both(_ROOT)
    pair.create("TABLE r, marker" + _VIA_ROOT, on_schema_change="apply")
    tables = f"""
    {_TABLE} PARTITION BY RANGE (id);
    CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (200) TO (300);
    """
    pair.source.execute(tables)
    pair.source.execute(_ATTACH)
    error = pair.paused()["error"]
    assert "the target lacks it: make it there with its partitions" in error["message"]
    pair.target.execute(tables)
    _go_on(pair)
    pair.source.execute("INSERT INTO r VALUES (201, 'of r')")
    pair.catch_up()
    pair.check_equal("r", "t")


@pytest.mark.long
@pytest.mark.parametrize("has_it", [True, deep(False)], ids=["", "target lacks it"])
def test_a_table_that_is_published_by_being_attached(pair: SubscribedPair, has_it: bool) -> None:
    """It is copied by itself, as a table that is made: PostgreSQL waits for REFRESH PUBLICATION."""
    pair.both(_ROOT)
    pair.source.execute(f"{_TABLE}; INSERT INTO t VALUES (200, 'before')")
    if has_it:
        pair.target.execute(_TABLE)
    pair.create("TABLE r, marker", on_schema_change="apply")
    pair.source.execute(_ATTACH)
    pair.source.execute("INSERT INTO r VALUES (201, 'behind')")
    pair.catch_up()
    rows = "SELECT count(*) FROM r"
    wait_until("it is copied", lambda: pair.target.value(rows) == 2, pair.told)
    pair.source.execute("INSERT INTO r VALUES (202, 'streamed')")
    pair.catch_up()
    wait_until("it goes on", lambda: pair.target.value(rows) == 3, pair.told)
    pair.check_equal("r", "t")


@pytest.mark.long
@pytest.mark.parametrize("root", ["RANGE", deep("LIST")])
@pytest.mark.parametrize("is_new", [False, deep(True)], ids=["attached", "new"])
def test_the_targets_root_has_other_partitions(
    pair: SubscribedPair, root: str, is_new: bool
) -> None:
    """The target refuses: the pause has its words, and goes on when the target can do it."""
    pair.source.execute(_ROOT)
    bounds = "FOR VALUES FROM (0) TO (1000)" if root == "RANGE" else "DEFAULT"
    pair.target.execute(
        f"CREATE TABLE r (id int PRIMARY KEY, v text) PARTITION BY {root} (id);"
        f"CREATE TABLE other PARTITION OF r {bounds}"
    )
    if not is_new:
        pair.both(_TABLE)
    pair.create(
        ("TABLE r, marker" if is_new else "TABLE r, t, marker") + _VIA_ROOT,
        on_schema_change="apply",
    )
    if is_new:
        pair.source.execute("CREATE TABLE t PARTITION OF r FOR VALUES FROM (200) TO (300)")
    else:
        pair.source.execute(_ATTACH)
    error = pair.paused()["error"]
    assert error["code"] == "target_schema_change"
    refused = {
        "RANGE": 'partition "t" would overlap partition "other"',
        "LIST": "invalid bound specification for a list partition",
    }
    assert refused[root] in error["message"]
    pair.target.execute(
        f"DROP TABLE r; {_ROOT}"
        if is_new
        else f"ALTER TABLE r RENAME TO was; DROP TABLE was; {_ROOT}"
    )
    _go_on(pair)
    pair.source.execute("INSERT INTO r VALUES (201, 'of r')")
    pair.catch_up()
    pair.check_equal("r", "t")


@pytest.mark.long
def test_the_root_is_set_aside_for_its_partitions_ddl(pair: SubscribedPair) -> None:
    """What the partition's DDL can't be done on is the root: it alone waits, and the rest goes on.
    It has both, DDL and rows, when it was emptied and the DDL was done.
    """
    pair.both(f"{_ROOT}CREATE TABLE other (id int PRIMARY KEY)")
    pair.create(
        "TABLE r, other, marker" + _VIA_ROOT, on_schema_change="pause", table_errors="set_aside"
    )
    pair.source.execute("INSERT INTO r VALUES (1, 'one'), (101, 'two')")
    pair.catch_up()
    made = "CREATE TABLE r3 PARTITION OF r FOR VALUES FROM (200) TO (300)"
    detach = "ALTER TABLE r DETACH PARTITION r1"
    pair.source.execute(made)
    pair.source.execute("INSERT INTO other VALUES (1)")
    pair.source.execute(detach)
    pair.source.execute("INSERT INTO r VALUES (201, 'three')")
    pair.catch_up()
    assert pair.target.query("SELECT id FROM other") == [(1,)]

    def reason() -> str:
        states = pair.view()["table_states"]
        return next(str(one["reason"] or "") for one in states if one["table"] == "public.r")

    wait_until("it is told", lambda: bool(reason()), pair.told)
    assert "public.r3 (create_table)" in reason()
    assert 'TRUNCATE "public"."r";' in reason()
    for statement in (made, detach, "TRUNCATE r"):
        pair.target.execute(statement)
    rows = "SELECT count(*) FROM r"
    wait_until("it is copied anew", lambda: pair.target.value(rows) == 2, pair.told)
    pair.source.execute("INSERT INTO r VALUES (202, 'streamed')")
    pair.catch_up()
    wait_until("it goes on", lambda: pair.target.value(rows) == 3, pair.told)
    pair.check_equal("r")


def test_a_commit_that_nobody_sees_yet(pair: SubscribedPair) -> None:
    """Its record is in WAL, and it waits for a synchronous standby: the source, when it is asked,
    knows nothing of what it did. A partition and a table that are made so are there all the same.
    """
    pair.both(_ROOT)
    pair.target.execute("CREATE TABLE added (id int PRIMARY KEY)")
    pair.create("ALL TABLES" + _VIA_ROOT, on_schema_change="apply")
    pair.catch_up()
    cluster = pair.source.cluster
    made = (
        "CREATE TABLE r3 PARTITION OF r FOR VALUES FROM (200) TO (300);"
        "CREATE TABLE added (id int PRIMARY KEY); INSERT INTO added VALUES (1)"
    )
    cluster.execute(f"ALTER DATABASE {pair.target.name} SET synchronous_commit = local")
    before = cluster.value("SELECT pg_current_wal_flush_lsn()::text")
    cluster.execute("ALTER SYSTEM SET synchronous_standby_names = x")
    try:
        cluster.execute("SELECT pg_reload_conf()")
        with ThreadPoolExecutor(1) as thread:
            committing = thread.submit(pair.source.execute, made)
            waits = (
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
                f" AND datname = '{pair.source.name}' AND query LIKE 'CREATE TABLE r3%'"
            )
            wait_until("it waits for the standby", lambda: cluster.value(waits) == 1, pair.told)
            decoded = cluster.value("SELECT pg_current_wal_flush_lsn()::text")
            assert decoded != before
            pair.service.wait_for(pair.name, decoded)
            wait_until(
                "it is told",
                lambda: "nobody sees there yet" in str(pair.view()["error"]),
                pair.told,
            )
            assert "synchronous_standby_names" in pair.view()["error"]["hint"]
            cluster.execute("ALTER SYSTEM RESET synchronous_standby_names")
            cluster.execute("SELECT pg_reload_conf()")
            committing.result()
    finally:
        cluster.execute("ALTER SYSTEM RESET synchronous_standby_names")
        cluster.execute("SELECT pg_reload_conf()")
    pair.source.execute("INSERT INTO r VALUES (201, 'of r3')")
    pair.catch_up()
    assert pair.target.query("SELECT tableoid::regclass::text, id FROM r") == [("r3", 201)]
    wait_until(
        "the new table is copied",
        lambda: pair.target.query("SELECT id FROM added") == [(1,)],
        pair.told,
    )


@pytest.mark.long
def test_a_partition_of_a_prepared_transaction(pair: SubscribedPair) -> None:
    """Nobody sees its bounds on the source before COMMIT PREPARED, which comes later."""
    pair.both(_ROOT)
    pair.create("TABLE r, marker" + _VIA_ROOT, on_schema_change="apply", two_phase=True)
    pair.source.execute("INSERT INTO r VALUES (1, 'of r1')")
    pair.catch_up()
    wait_until(
        "it may prepare",
        lambda: all(one["sync_state"] == "r" for one in pair.view()["table_states"]),
        pair.told,
    )
    made = "CREATE TABLE r3 PARTITION OF r FOR VALUES FROM (200) TO (300)"
    pair.source.execute(
        f"BEGIN; {made}; INSERT INTO r VALUES (201, 'of r3'); PREPARE TRANSACTION '{pair.name}'"
    )
    error = pair.paused()["error"]
    assert "public.r3 (create_table)" in error["message"]
    assert "make it a partition there with the bounds" in error["message"] + error["hint"]
    pair.target.execute(made)
    pair.service.call("POST", f"/subscriptions/{pair.name}/enable")
    pair.source.execute(f"COMMIT PREPARED '{pair.name}'")
    pair.catch_up()
    pair.check_equal("r")


#: A copy into r2 waits for the lock; whoever writes there needs not.
_HOLD = """
CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_advisory_xact_lock_shared(17); RETURN new; END $$;
CREATE TRIGGER hold BEFORE INSERT ON r2 FOR EACH ROW EXECUTE FUNCTION hold();
ALTER TABLE r2 ENABLE ALWAYS TRIGGER hold
"""


@pytest.mark.long
def test_a_partition_of_a_root_that_is_being_copied(pair: SubscribedPair) -> None:
    """Who has the root's rows since its copy does it, between them: rows of before have a place."""
    pair.both(f"{_ROOT}{_TABLE}")
    pair.create("TABLE marker" + _VIA_ROOT, on_schema_change="apply")
    pair.source.execute("INSERT INTO r VALUES (1, 'one'), (101, 'two')")
    pair.target.execute(_HOLD)
    with pair.target.connect() as session:
        session.execute("SELECT pg_advisory_lock(17)")
        pair.source.execute("ALTER PUBLICATION p ADD TABLE r")
        pair.service.call("POST", f"/subscriptions/{pair.name}/refresh")
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        wait_until("it is being copied", lambda: pair.target.value(waits) > 0, pair.told)
        pair.source.execute("INSERT INTO r VALUES (2, 'of r1')")
        pair.source.execute("ALTER TABLE r DETACH PARTITION r1")
        pair.source.execute(_ATTACH)
        pair.source.execute("CREATE TABLE r3 PARTITION OF r FOR VALUES FROM (300) TO (400)")
        pair.source.execute("INSERT INTO r VALUES (102, 'of r2'), (201, 'of t'), (301, 'of r3')")
        pair.catch_up()
        waiting = "SELECT count(*) FROM spillway.deferred_ddl WHERE table_name = 'r'"
        assert pair.target.value(waiting) == 3, pair.told()
    state = "SELECT state FROM spillway.tables WHERE table_name = 'r'"
    wait_until("it is ready", lambda: pair.target.query(state) == [("r",)], pair.told)
    assert pair.target.value(waiting) == 0
    pair.source.execute("INSERT INTO r VALUES (103, 'streamed')")
    pair.catch_up()
    pair.check_equal("r", "r1", "t")
