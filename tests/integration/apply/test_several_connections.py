"""Several connections: what they leave is what the source has, in both orders of commits, whoever
is killed; groups that touch the same keys wait for each other, and no others.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from harness.exact_apply import Ours, Source
from harness.postgresql_subscription import wait_until
from harness.tiers import deep
from integration.apply.test_grouped import NAMES, TABLES, _history
from spillway._kernels.apply.change_group import ChangeGroup
from spillway.apply.exact.own_tables import OWN_TABLES
from spillway.apply.exact.writer import ExactWriter
from spillway.apply.grouped.writer import GroupedWriter
from spillway.apply.parallel.lanes import Lanes
from spillway.apply.tables.target_tables import TargetTables
from spillway.apply.target.own_schema import COMMITTED_SQL
from spillway.apply.target.session import TargetPlan, TargetSession
from spillway.errors import TargetUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Cluster, Database
    from spillway.apply.changes import SourceRelation

ORDERS = ["source", "relaxed"]


@pytest.fixture(scope="module", params=[deep(14), 18])
def cluster(request: pytest.FixtureRequest, timed_cluster: Callable[[int], Cluster]) -> Cluster:
    return timed_cluster(request.param)


@pytest.fixture(params=ORDERS)
def parallel(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Parallel]:
    source = Source.make(cluster)
    made = Parallel(Ours.make(source), in_order=request.param == "source")
    made.start()
    yield made
    made.stop()
    for name in (made.database.name, source.database.name):
        cluster.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
            [name],
        )
    for (name,) in cluster.query(
        "SELECT roname FROM pg_replication_origin WHERE roname LIKE %s",
        [f"spillway_{made.database.name}_%"],
    ):
        cluster.execute("SELECT pg_replication_origin_drop(%s)", [name])
    source.database.execute(f"SELECT pg_drop_replication_slot('{made.ours.slot}')")
    for name in (made.database.name, source.database.name):
        cluster.drop_database(name)


@dataclass
class Parallel:
    """A target that two lanes fill, as the worker has them do it: what they can't is written
    exactly.
    """

    ours: Ours
    in_order: bool
    tables: TargetTables = field(init=False)
    session: TargetSession = field(init=False)
    lanes: Lanes = field(init=False)
    exactly: int = 0
    #: what has arrived and is not submitted
    waiting: ChangeGroup = field(default_factory=lambda: ChangeGroup(1 << 24))

    def start(self) -> None:
        plan = self.ours.plan
        own = (*OWN_TABLES, COMMITTED_SQL)
        self.session = TargetSession(
            TargetPlan(plan.subscription, plan.identity, plan.dsn, own_tables=own)
        )
        self.tables = TargetTables()
        self.grouped = GroupedWriter(self.session, self.tables)
        self.exact = ExactWriter(
            self.session, self.tables, self.ours.options, self.ours.heard, self._is_wanted
        )
        self.lanes = Lanes(self.session, self.tables, 2, in_order=self.in_order)

    def stop(self) -> None:
        self.lanes.close()
        self.session.close()

    def _is_wanted(self, _: SourceRelation, commit_lsn: int) -> bool:
        return not any(a <= commit_lsn < b for a, b in self.session.committed_ahead)

    @property
    def database(self) -> Database:
        return self.ours.database

    def on_both(self, *statements: str) -> None:
        for statement in statements:
            self.ours.source.database.execute(statement)
            self.database.execute(statement)

    def groups(self, transactions: int) -> Iterator[ChangeGroup]:
        """What the slot has from the position on, so many transactions a group."""
        self.ours.source.database.execute(
            "SELECT pg_replication_slot_advance(slot_name, %s) FROM pg_replication_slots"
            " WHERE slot_name = %s AND confirmed_flush_lsn < %s",
            [str(self.session.position), self.ours.slot, str(self.session.position)],
        )
        self.waiting.forget()
        messages = self.ours.messages(peek=True)
        for message in messages:
            self.waiting.feed(message, struct.pack("=I", len(message)))
            if self.waiting.transactions == transactions and not self.waiting.is_within:
                yield self.waiting.take_out()
        if self.waiting.transactions:
            yield self.waiting.take_out()

    def submit(self, group: ChangeGroup) -> None:
        touched, head = group.touched(), group.last
        assert head is not None
        plans = None
        if not any(one.truncates for one in touched) and not self.session.committed_ahead:
            plans = self.grouped.plans(group)
        if plans is None:
            self.drain()
            self.tables.learn(one.relation for one in touched)
            self._write_exactly(group)
            return
        while not self.lanes.has_room:
            self.lanes.wait(1)
            self.lanes.settle(self._write_exactly)
        self.lanes.submit(group, plans, touched, head)

    def drain(self) -> None:
        while not self.lanes.is_idle:
            self.lanes.wait(1)
            self.lanes.settle(self._write_exactly)

    def take(self, transactions: int) -> None:
        """Write what the slot has."""
        for group in self.groups(transactions):
            self.submit(group)
        self.drain()

    def _write_exactly(self, group: ChangeGroup) -> None:
        self.exactly += 1
        self.exact.write(group)

    def check_equal(self, *tables: str) -> None:
        query = "SELECT string_agg(r::text, ';' ORDER BY r::text) FROM {} r"
        for table in tables:
            theirs = self.ours.source.database.value(query.format(table))
            assert theirs == self.database.value(query.format(table)), table


@pytest.mark.parametrize("seed", [1, deep(2), deep(3)])
def test_a_history_leaves_what_the_source_has(parallel: Parallel, seed: int) -> None:
    parallel.on_both(*TABLES, "CREATE TABLE p (id int, place int, v int, PRIMARY KEY (id, place))")
    draw = random.Random(seed)
    for transactions in (1, 4, 15):
        _history(parallel.ours.source.database, draw, 60)
        parallel.take(transactions)
        parallel.check_equal(*NAMES)
    assert parallel.lanes.submitted > 30
    # TRUNCATE alone: what went wrong as it was early was tried again.
    assert parallel.exactly < parallel.lanes.submitted
    position = parallel.session.position
    parallel.stop()
    parallel.start()
    assert parallel.session.position == position
    assert parallel.session.committed_ahead == ()


def test_what_touches_the_same_keys_waits(parallel: Parallel) -> None:
    """A key, a key that changes, a value of another unique index; not another row, nor an equal
    value of another column or table.
    """
    parallel.on_both(
        "CREATE TABLE b (id int PRIMARY KEY, u int UNIQUE, v int)",
        "CREATE TABLE other (id int PRIMARY KEY, v int)",
    )
    # 14 sends DDL, too, as transactions without a change.
    for group in parallel.groups(100):
        parallel.submit(group)
    parallel.drain()
    source = parallel.ours.source.database

    def waited(*statements: str) -> int:
        before = parallel.lanes.waited
        for statement in statements:
            source.execute(statement)
        found = list(parallel.groups(1))
        assert len(found) == 2
        for group in found:
            parallel.submit(group)
        parallel.drain()
        parallel.check_equal("b", "other")
        return parallel.lanes.waited - before

    assert waited("INSERT INTO b VALUES (1, 10, 0)", "INSERT INTO b VALUES (2, 20, 0)") == 0
    assert waited("INSERT INTO other VALUES (1, 0)", "INSERT INTO b VALUES (3, 1, 1)") == 0
    assert waited("UPDATE b SET v = 1 WHERE id = 1", "UPDATE b SET v = 2 WHERE id = 1") == 1
    assert waited("UPDATE b SET v = 3 WHERE id = 1", "UPDATE other SET v = 3 WHERE id = 1") == 0
    assert waited("UPDATE b SET id = 7 WHERE id = 1", "UPDATE b SET v = 4 WHERE id = 7") == 1
    assert waited("DELETE FROM b WHERE id = 7", "INSERT INTO b VALUES (7, 70, 0)") == 1
    assert waited("UPDATE b SET u = 71 WHERE id = 7", "UPDATE b SET u = 20 WHERE id = 2") == 0
    # What is taken shows; what is freed alone does not.
    assert waited("UPDATE b SET u = 5 WHERE id = 7", "DELETE FROM other WHERE id = 1") == 0
    before = parallel.lanes.again
    assert waited("UPDATE b SET u = 6 WHERE id = 7", "INSERT INTO b VALUES (8, 5, 0)") == 0
    assert parallel.lanes.again - before <= 1
    assert parallel.exactly == 0
    assert parallel.ours.heard.conflicts == []


def test_relaxed_keeps_the_order_of_tables_that_foreign_keys_join(parallel: Parallel) -> None:
    parallel.on_both(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent)",
    )
    parallel.lanes.look_at_foreign_keys()
    source = parallel.ours.source.database
    source.execute("INSERT INTO parent VALUES (1)")
    source.execute("INSERT INTO child VALUES (1, 1)")
    parallel.take(1)
    parallel.check_equal("parent", "child")
    # By the source's order nobody sees a child alone anyway.
    assert parallel.lanes.waited == (0 if parallel.in_order else 1)


def _held(parallel: Parallel) -> tuple[object, list[ChangeGroup]]:
    """Two groups of which the first can't go on, as somebody holds its row."""
    parallel.on_both("CREATE TABLE t (id int PRIMARY KEY, v int)")
    parallel.on_both("CREATE TABLE keyless (v int)")
    source = parallel.ours.source.database
    source.execute("INSERT INTO t VALUES (1, 0)")
    parallel.take(1)
    source.execute("UPDATE t SET v = 1 WHERE id = 1")
    source.execute("INSERT INTO keyless VALUES (1)")
    holder = parallel.database.connect(autocommit=False)
    holder.execute("SELECT FROM t WHERE id = 1 FOR UPDATE")
    groups = list(parallel.groups(1))
    for group in groups:
        parallel.submit(group)
    return holder, groups


def _is_there(parallel: Parallel) -> bool:
    return bool(parallel.database.query("SELECT FROM keyless"))


def test_the_order_of_commits(parallel: Parallel) -> None:
    holder, _ = _held(parallel)
    if parallel.in_order:
        # It has written its rows, and waits for its turn.
        wait_until(
            "the second has written",
            lambda: bool(
                parallel.database.query(
                    "SELECT FROM pg_locks WHERE relation = 'keyless'::regclass"
                    " AND mode = 'RowExclusiveLock'"
                )
            ),
        )
        assert not _is_there(parallel)
    else:
        wait_until("the second is committed", lambda: _is_there(parallel))
        assert parallel.database.value("SELECT count(*) FROM spillway.committed") == 1
    assert parallel.database.value("SELECT v FROM t") == 0
    holder.close()  # type: ignore[attr-defined]
    parallel.drain()
    parallel.check_equal("t", "keyless")
    assert parallel.lanes.waited == 0


def test_a_kill_between_two_commits(parallel: Parallel) -> None:
    """Nothing is lost, and nothing is there twice: of what was committed ahead neither, and a row
    without a key shows it.
    """
    holder, groups = _held(parallel)
    if not parallel.in_order:
        wait_until("the second is committed", lambda: _is_there(parallel))
    before = parallel.session.position
    parallel.database.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE %s",
        [f"%{parallel.ours.plan.subscription}"],
    )
    with pytest.raises(TargetUnavailable):
        parallel.drain()
    parallel.lanes.abandon()
    parallel.stop()
    holder.close()  # type: ignore[attr-defined]
    parallel.start()
    assert parallel.session.position == before
    assert len(parallel.session.committed_ahead) == (0 if parallel.in_order else 1)
    parallel.take(1)
    parallel.check_equal("t", "keyless")
    head = groups[-1].last
    assert head is not None
    assert parallel.session.position == head.end_lsn
    # What was ahead is passed, and forgotten.
    parallel.stop()
    parallel.start()
    assert parallel.session.committed_ahead == ()
    assert parallel.session.position == head.end_lsn


#: Of a table n: its columns, what the target has of it beside, and two rows that can't be there
#: together: the second may come when the first is gone.
_SAME_IN_OTHER_BYTES = {
    "key": ("k numeric PRIMARY KEY, v text", "", "(1.0, 'a')", "(1.00, 'b')"),
    "unique": ("id int PRIMARY KEY, u numeric", "UNIQUE (u)", "(1, 1.0)", "(2, 1.00)"),
    "expression": (
        "id int PRIMARY KEY, u text",
        "EXCLUDE USING btree (lower(u) WITH =)",
        "(1, 'a')",
        "(2, 'A')",
    ),
    "range": (
        "id int PRIMARY KEY, u int4range",
        "EXCLUDE USING gist (u WITH &&)",
        "(1, '[1,3)')",
        "(2, '[2,4)')",
    ),
    "null": (
        "id int PRIMARY KEY, u int",
        "UNIQUE NULLS NOT DISTINCT (u)",
        "(1, NULL)",
        "(2, NULL)",
    ),
}


@pytest.mark.parametrize("gone", ["never there", "in between"])
@pytest.mark.parametrize(
    "what", ["key", deep("unique"), deep("expression"), deep("range"), deep("null")]
)
def test_what_is_equal_in_other_bytes_keeps_its_order(
    parallel: Parallel, what: str, gone: str
) -> None:
    """Relaxed, too: a row was committed ahead, and was taken for the one whose DELETE came before
    it, or was in the way of that one's INSERT.
    """
    columns, more, first, second = _SAME_IN_OTHER_BYTES[what]
    if what == "null" and parallel.database.cluster.major < 15:
        pytest.skip("15 and later have NULLS NOT DISTINCT")
    parallel.on_both("CREATE TABLE t (id int PRIMARY KEY, v int)", f"CREATE TABLE n ({columns})")
    if more:
        parallel.database.execute(f"ALTER TABLE n ADD {more}")
    source = parallel.ours.source.database
    source.execute("INSERT INTO t VALUES (1, 0)")
    if gone == "never there":
        source.execute(f"INSERT INTO n VALUES {first}")
    parallel.take(1)
    if gone == "never there":
        parallel.database.execute("DELETE FROM n")
    with source.connect() as session, session.transaction():
        # Two, so that the first is written before all else.
        session.execute("UPDATE t SET v = 1")
        session.execute("UPDATE t SET id = 2")
        if gone == "in between":
            session.execute(f"INSERT INTO n VALUES {first}".encode())
        session.execute("DELETE FROM n")
    source.execute(f"INSERT INTO n VALUES {second}")
    with parallel.database.connect(autocommit=False) as holder:
        holder.execute("SELECT FROM t FOR UPDATE")
        for group in parallel.groups(1):
            parallel.submit(group)
        wait_until(
            "the second is written",
            lambda: bool(
                parallel.database.query(
                    "SELECT FROM pg_locks WHERE relation = 'n'::regclass"
                    " AND mode = 'RowExclusiveLock' UNION ALL SELECT FROM n"
                )
            ),
        )
    parallel.drain()
    parallel.check_equal("t", "n")
    met = ["delete_missing"] if gone == "never there" else []
    assert parallel.ours.heard.kinds == met


def test_what_is_told_by_its_bytes_is_committed_ahead(parallel: Parallel) -> None:
    """Keys and unique values of such types, in other tables and beside what waits for its turn."""
    parallel.on_both(
        "CREATE TYPE mood AS ENUM ('low', 'high')",
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "CREATE TABLE a (id uuid PRIMARY KEY, e text UNIQUE, d date, m mood, UNIQUE (d, m))",
    )
    source = parallel.ours.source.database
    source.execute("INSERT INTO t VALUES (1, 0)")
    parallel.take(1)
    source.execute("UPDATE t SET v = 1")
    source.execute("INSERT INTO a VALUES (gen_random_uuid(), 'x', '2026-01-01', 'low')")
    with parallel.database.connect(autocommit=False) as holder:
        holder.execute("SELECT FROM t FOR UPDATE")
        for group in parallel.groups(1):
            parallel.submit(group)
        if not parallel.in_order:
            wait_until(
                "the second is committed",
                lambda: bool(parallel.database.query("SELECT FROM a")),
            )
    parallel.drain()
    parallel.check_equal("t", "a")
