"""Tables are copied as of an exact snapshot, and handed over without a row lost or twice."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from harness import remedies
from harness.postgresql_subscription import Load, Publication, wait_until
from harness.serve_process import ServeProcess
from harness.table_sync import Copied, Ends, Told, lsn_now
from harness.tiers import deep
from spillway.apply.exact.writer import ExactOptions
from spillway.apply.sync import hand_over, indexes
from spillway.apply.sync.states import SyncState
from spillway.apply.target.forget import forget_subscription
from spillway.errors import SpillwayError, TargetRowRefused
from spillway.failpoints import armed
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from harness.cluster import Cluster, Database
    from harness.service import Service
    from spillway.apply.sync.states import TableName, TableState
    from spillway.apply.sync.table_sync import Connection, TableSync

_SMALL_RANGE = 64 << 10
#: within which what is told to stop has ended
_BOUND_S = 30
_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


class Room:
    """A service, and pairs of databases."""

    def __init__(self, directory: Path, cluster: Callable[[int], Cluster]) -> None:
        self._cluster = cluster
        self._serve = ServeProcess(directory / "data")
        self.service: Service = self._serve.service()
        self._number = 0
        self._sources: dict[int, str] = {}

    def pair(
        self, source_major: int = 18, target_major: int = 18, target_on: Cluster | None = None
    ) -> tuple[Database, Database]:
        self._number += 1
        source = self._cluster(source_major).create_database(f"sync_source_{self._number}")
        there = target_on or self._cluster(target_major)
        target = there.create_database(f"sync_target_{self._number}")
        if source_major not in self._sources:
            self._sources[source_major] = f"pg{source_major}"
            self.service.create_source(source.dsn, f"pg{source_major}")
        return source, target

    def ends(self, source: Database, target: Database, *publications: str) -> Ends:
        name = f"sync_{self._number}"
        of = self._sources[source.cluster.major]
        return Ends.make(self.service, source, target, publications, name, of)

    def stop(self) -> None:
        self._serve.stop()


@pytest.fixture(scope="module")
def room(
    tmp_path_factory: pytest.TempPathFactory, session_cluster: Callable[[int], Cluster]
) -> Iterator[Room]:
    made = Room(tmp_path_factory.mktemp("sync"), session_cluster)
    yield made
    made.stop()


def _filled(
    room: Room, rows: int = 3000, tables: int = 1, target_on: Cluster | None = None
) -> tuple[Ends, Database, Database]:
    """Tables t0, … of *rows* rows, with a publication, and the same without rows."""
    source, target = room.pair(target_on=target_on)
    for number in range(tables):
        for database in (source, target):
            database.execute(
                f"CREATE TABLE t{number} (id int PRIMARY KEY, a int, s text);"
                f"CREATE INDEX t{number}_a ON t{number} (a)"
            )
        source.execute(
            f"INSERT INTO t{number} SELECT n, n % 7, repeat('x', 100)"
            f" FROM generate_series(1, {rows}) n"
        )
    source.execute("CREATE PUBLICATION p FOR ALL TABLES")
    return room.ends(source, target, "p"), source, target


def _rows(database: Database, table: str = "t0") -> list[tuple[Any, ...]]:
    return database.query(f"SELECT * FROM {table} ORDER BY 1")


def _of_nobody(database: Database) -> list[str]:
    """Rows, by their changes in WAL, that no origin marks: by a slot of the test's."""
    return [
        row[0]
        for row in database.query(
            "SELECT data FROM pg_logical_slot_get_changes('marked', NULL, NULL,"
            " 'only-local', 'on', 'include-xids', 'off')"
        )
        if row[0].startswith("table public.")
    ]


def _kept(target: Database) -> dict[str, str]:
    """The states that the target keeps."""
    if target.value("SELECT to_regclass('spillway.tables')") is None:
        return {}
    return dict(target.query("SELECT table_name, state::text FROM spillway.tables"))


def _states(sync: TableSync) -> dict[str, str]:
    return {table.table: table.state.value for table in sync.states.all().values()}


@pytest.mark.parametrize(
    ("source_major", "target_major"),
    [
        (14, 18),
        deep(15, 15),
        deep(16, 14),
        deep(17, 16),
        deep(18, 17),
        deep(18, 14),
        deep(18, 18),
    ],
)
def test_under_load_the_copies_and_the_stream_are_the_source(
    room: Room, source_major: int, target_major: int
) -> None:
    source, target = room.pair(source_major, target_major)
    publication = Publication(source, target_major, 6)
    publication.fill()
    ends = room.ends(source, target, *publication.names)
    copied = Copied("synced", target, publication, "")
    copied.make_tables()
    target.execute("SELECT pg_create_logical_replication_slot('marked', 'test_decoding')")
    told = Told()
    sync = ends.sync(told, range_bytes=_SMALL_RANGE)
    with Load(publication, 3) as load:
        load.goes_on(30)
        begin = ends.position()
        sync.first_copy(begin)
        load.goes_on(30)
    assert set(_states(sync).values()) == {"s"}, told.sentences
    # All of one snapshot, exactly where the service says it is.
    assert len({table.lsn for table in sync.states.all().values()}) == 1
    assert {table.error for table in sync.states.all().values()} == {""}
    upto = lsn_now(source)
    room.service.wait_for(ends.slot, str(Lsn(upto)))
    ends.apply_the_rest(sync, told, upto)
    assert told.conflicts == []
    copied.check_equal()
    # A subscription in the other direction would leave all of it out.
    assert _of_nobody(target) == []
    # What the stream has passed is ready, and only that.
    sync.at_boundary(begin)
    assert set(_states(sync).values()) == {"s"}
    sync.at_boundary(upto)
    assert set(_states(sync).values()) == {"r"}
    assert sync.states.are_all_ready
    sync.stop()
    target.execute("SELECT pg_drop_replication_slot('marked')")


def test_a_table_that_is_added_later_catches_up_with_the_stream(room: Room) -> None:
    ends, source, target = _filled(room)
    told = Told()
    sync = ends.sync(told, range_bytes=_SMALL_RANGE)
    sync.first_copy(ends.position())
    sync.start()
    for database in (source, target):
        database.execute("CREATE TABLE late (id int PRIMARY KEY, s text)")
    source.execute("INSERT INTO late SELECT n, 'before' FROM generate_series(1, 2000) n")
    stop = threading.Event()

    def write() -> None:
        number = 0
        with source.connect() as connection:
            while not stop.is_set():
                number += 1
                connection.execute("INSERT INTO late VALUES (%s, 'new')", [10_000 + number])
                connection.execute("UPDATE late SET s = s || '.' WHERE id = %s", [number % 2000])
                connection.execute("DELETE FROM late WHERE id = %s", [9_990 + number])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        sync.look_again()

        # The worker is at what is decoded: it is ahead of the table's copy.
        def is_handed_over() -> bool:
            sync.at_boundary(ends.decoded())
            return _states(sync).get("late") in ("s", "r")

        wait_until("the table is handed over", is_handed_over, lambda: str(told.sentences))
    finally:
        stop.set()
        writer.join()
    table = sync.states.all()["public", "late"]
    upto = lsn_now(source)
    room.service.wait_for(ends.slot, str(Lsn(upto)))
    ends.catch_up(told)(frozenset({table.key}), table.lsn, upto, lambda _connection, _names: None)
    assert _rows(target, "late") == _rows(source, "late")
    assert told.conflicts == []
    assert _rows(target) == _rows(source)
    sync.stop()


def test_a_table_catches_up_in_groups_and_a_conflict_is_told(
    room: Room, timed_cluster: Callable[[int], Cluster]
) -> None:
    ends, source, target = _filled(room, rows=100, target_on=timed_cluster(18))
    told = Told()
    sync = ends.sync(told)
    sync.first_copy(ends.position())
    sync.stop()
    (copied,) = sync.states.all().values()
    written: list[int] = []

    def before_commit(connection: Connection, _names: object) -> None:
        row = connection.execute(
            "SELECT n_tup_upd FROM pg_stat_xact_user_tables WHERE relname = 't0'"
        ).fetchone()
        assert row is not None
        written.append(row[0])

    def catch_up(start: int) -> int:
        upto = lsn_now(source)
        room.service.wait_for(ends.slot, str(Lsn(upto)))
        ends.catch_up(told)(frozenset({copied.key}), start, upto, before_commit)
        return upto

    # More than one group, each of which writes a row once.
    for _ in range(60):
        source.execute("UPDATE t0 SET a = a + 1, s = repeat(md5(a::text), 32)")
    reached = catch_up(copied.lsn)
    assert _rows(target) == _rows(source)
    assert told.conflicts == []
    assert 100 <= written[0] <= 300

    # In a group of many: a row of somebody else's, and one that is gone.
    target.execute("UPDATE t0 SET s = 'ours' WHERE id = 20; DELETE FROM t0 WHERE id = 30")
    source.execute("UPDATE t0 SET a = -a WHERE id IN (20, 30, 40); DELETE FROM t0 WHERE id = 50")
    source.execute("INSERT INTO t0 SELECT n, n, 'new' FROM generate_series(101, 400) n")
    catch_up(reached)
    assert [(c.kind.value, c.resolution.value) for c in told.conflicts] == [
        ("update_origin_differs", "apply_remote"),
        ("update_missing", "skip"),
    ]
    assert _rows(target) == [row for row in _rows(source) if row[0] != 30]


def test_ddl_does_not_wait_for_the_copy_of_a_partitioned_table(room: Room) -> None:
    """Looking what there is to copy locks a root and all of its partitions; the copy needs one lock
    at a time.
    """
    source, target = room.pair()
    for database in (source, target):
        database.execute(
            "CREATE TABLE r (id int) PARTITION BY RANGE (id);"
            "CREATE TABLE r_1 PARTITION OF r FOR VALUES FROM (0) TO (10);"
            "CREATE TABLE r_2 PARTITION OF r FOR VALUES FROM (10) TO (20)"
        )
    source.execute(
        "INSERT INTO r VALUES (1), (11);"
        "CREATE PUBLICATION p FOR TABLE r WITH (publish_via_partition_root)"
    )
    ends = room.ends(source, target, "p")
    told = Told()
    sync = ends.sync(told, connections=1)
    copying = threading.Thread(target=sync.first_copy, args=[ends.position()])
    with target.connect() as somebody, somebody.transaction():
        somebody.execute("LOCK TABLE r IN SHARE MODE")
        copying.start()
        wait_until(
            "the copy waits",
            lambda: bool(target.value("SELECT count(*) FROM pg_locks WHERE NOT granted")),
        )
        locked = source.query(
            "SELECT DISTINCT relation::regclass::text FROM pg_locks"
            " WHERE relation::regclass::text IN ('r', 'r_1', 'r_2')"
        )
        assert len(locked) == 1, locked
    copying.join()
    sync.stop()
    assert target.query("SELECT id FROM r ORDER BY 1") == [(1,), (11,)], told.sentences


def test_the_slot_is_held_for_a_table_that_has_to_catch_up(room: Room) -> None:
    ends, source, target = _filled(room)
    sync = ends.sync(Told())
    assert sync.states.hold_lsn() is None
    sync.first_copy(ends.position())
    assert sync.states.hold_lsn() is None
    for database in (source, target):
        database.execute("CREATE TABLE late (id int PRIMARY KEY)")
    position = lsn_now(source)
    sync.at_boundary(position)
    sync.look_again()
    sync.start()
    wait_until("it is copied", lambda: _states(sync).get("late") == "f")
    lsn = sync.states.all()["public", "late"].lsn
    assert sync.states.hold_lsn() == lsn > position
    assert not sync.states.should_apply("public", "late", lsn)
    # Another process knows it, too.
    assert ends.sync(Told()).states.hold_lsn() == lsn
    sync.at_boundary(position)
    assert sync.states.hold_lsn() is None
    assert sync.states.should_apply("public", "late", lsn)
    assert not sync.states.should_apply("public", "late", lsn - 1)
    sync.stop()


@pytest.mark.parametrize(
    "failpoint",
    [
        deep("table_sync.before_range=kill@4"),
        "table_sync.after_range=kill@4",
        deep("table_sync.before_finish=kill"),
        "table_sync.after_finish=kill",
    ],
)
def test_killed_in_the_midst_it_copies_only_what_is_not_durable(room: Room, failpoint: str) -> None:
    ends, source, target = _filled(room)
    settings = {"range_bytes": _SMALL_RANGE, "connections": 1, "defer_indexes": True}
    ends.killed_at(failpoint, **settings)
    told = Told()
    sync = ends.sync(told, **settings)
    (begun,) = sync.states.all().values()
    assert begun.state == ("f" if "after_finish" in failpoint else "d")
    before = {row[0]: row[1] for row in target.query("SELECT id, xmin::text FROM t0")}
    assert before
    # What was written since is not in the snapshot that is gone on with.
    source.execute("UPDATE t0 SET a = -1 WHERE id = 5")
    sync.first_copy(ends.position())
    (table,) = sync.states.all().values()
    assert (table.state, table.lsn) == ("s", begun.lsn), told.sentences
    assert table.rows == 3000
    after = {row[0]: row[1] for row in target.query("SELECT id, xmin::text FROM t0")}
    assert {key: after[key] for key in before} == before
    assert len(after) == 3000
    assert target.query("SELECT indexname::text FROM pg_indexes WHERE tablename = 't0'") == [
        ("t0_pkey",),
        ("t0_a",),
    ]
    upto = lsn_now(source)
    room.service.wait_for(ends.slot, str(Lsn(upto)))
    ends.apply_the_rest(sync, told, upto)
    assert _rows(target) == _rows(source)
    sync.stop()


@pytest.mark.parametrize("failpoint", [deep("after_range=kill@4"), "after_finish=kill"])
def test_what_the_slot_does_not_reach_back_to_is_copied_anew(room: Room, failpoint: str) -> None:
    """As on a target that was restored to the midst of a copy."""
    ends, source, target = _filled(room)
    settings = {"range_bytes": _SMALL_RANGE, "connections": 1, "defer_indexes": True}
    ends.killed_at(f"table_sync.{failpoint}", **settings)
    source.execute("DELETE FROM t0 WHERE id % 2 = 0")
    sync = ends.sync(Told(), **settings)
    (begun,) = sync.states.all().values()
    assert sync.tables_with_rows() == ("public.t0",)
    sync.copy_anew(begun.lsn)
    assert sync.states.all()["public", "t0"] == begun
    sync.copy_anew(begun.lsn + 1)
    assert sync.states.all()["public", "t0"].state == "i"
    assert sync.tables_with_rows() == ()
    sync.first_copy(ends.position())
    (table,) = sync.states.all().values()
    assert table.lsn > begun.lsn
    assert _rows(target) == _rows(source)
    sync.stop()


def test_a_table_is_not_ready_before_the_target_keeps_that_it_was_passed(room: Room) -> None:
    """A program that begins again where the target is meets transactions that are in the copy."""
    ends, _, _ = _filled(room, rows=3)
    sync = ends.sync(Told())
    begun = ends.position()
    sync.first_copy(begun)
    (table,) = sync.states.all().values()
    assert (table.state, begun < table.lsn) == ("s", True)
    sync.at_boundary(table.lsn + 8, begun)
    assert _states(sync) == {"t0": "s"}
    assert not sync.states.should_apply("public", "t0", begun)
    sync.at_boundary(table.lsn + 8, table.lsn + 8)
    assert _states(sync) == {"t0": "r"}
    sync.stop()


@pytest.mark.follows_hint("target_behind_slot")
def test_beside_rows_that_were_there_it_is_not_copied_anew(room: Room) -> None:
    ends, source, target = _filled(room)
    target.execute("INSERT INTO t0 VALUES (-1, 0, 'mine')")
    ends.killed_at("table_sync.after_finish=kill")
    target.execute("UPDATE spillway.tables SET lsn = '0/10'")
    told = Told()
    sync = ends.sync(told)
    sync.copy_anew(ends.position())
    assert sync.states.all()["public", "t0"].state == "f"
    source.execute("DELETE FROM t0 WHERE id % 2 = 0")
    sync.start()

    def look() -> Mapping[TableName, TableState]:
        sync.at_boundary(ends.decoded())
        return sync.states.all()

    wait_until("it fails", lambda: bool(look()["public", "t0"].error))
    assert "what came since is gone" in look()["public", "t0"].error
    hint = remedies.remedy(sync.errors["public", "t0"], "target_behind_slot")
    assert "Empty the table there, take it out of the publications" in hint
    assert len(_rows(target)) == 3001
    target.execute("TRUNCATE t0")
    source.execute("DROP PUBLICATION p; CREATE PUBLICATION p")
    sync.stop()
    # A refresh is a program's first look.
    sync = ends.sync(told)
    sync.start()
    sync.look_again()
    wait_until("it is left out", lambda: not look())
    source.execute("ALTER PUBLICATION p ADD TABLE t0")
    sync.look_again()
    wait_until("it is copied", lambda: _states(sync) == {"t0": "f"}, lambda: str(told.sentences))
    assert _rows(target) == _rows(source)
    sync.stop()


def test_dropped_in_the_midst_indexes_are_there_again(room: Room) -> None:
    """Of a first copy that nobody ends any more."""
    ends, _, target = _filled(room)
    target.execute("CREATE INDEX t0_other ON t0 (s, a)")
    query = "SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = 't0'::regclass"
    there = set(target.query(query))
    settings = {"range_bytes": _SMALL_RANGE, "connections": 1, "defer_indexes": True}
    ends.killed_at("table_sync.after_range=kill@2", **settings)
    assert len(target.query(query)) == 1
    # Somebody has made it meanwhile.
    target.execute("CREATE INDEX t0_other ON t0 (s, a)")
    (left,) = forget_subscription(ends.plan)
    assert set(target.query(query)) == there
    assert "can't be made again" in left
    assert "CREATE INDEX t0_other ON" in left
    assert target.value("SELECT to_regclass('spillway.tables') IS NULL")


@pytest.mark.parametrize(("asked", "large"), [(None, True), deep(None, False), deep(False, True)])
def test_unasked_a_large_tables_indexes_are_made_after_its_copy(
    room: Room, monkeypatch: pytest.MonkeyPatch, asked: bool | None, large: bool
) -> None:
    ends, source, target = _filled(room)
    if large:
        monkeypatch.setattr(indexes, "WORTH_BYTES", 300_000)
    query = (
        "SELECT indexrelid::regclass::text, indexrelid FROM pg_index"
        " WHERE indrelid = 't0'::regclass"
    )
    before = dict(target.query(query))
    sync = ends.sync(Told(), defer_indexes=asked)
    sync.first_copy(ends.position())
    after = dict(target.query(query))
    assert after.keys() == before.keys()
    assert after["t0_pkey"] == before["t0_pkey"]
    assert (after["t0_a"] != before["t0_a"]) is (asked is None and large)
    assert _rows(target) == _rows(source)
    sync.stop()


@pytest.mark.parametrize("lacks", ["SELECT", deep("INSERT"), deep("DELETE, TRUNCATE")])
def test_a_table_that_the_role_has_too_few_rights_in_stops_no_other(room: Room, lacks: str) -> None:
    """Not those to look whether it has rows, nor those to take away what was copied before a range
    failed; it is copied when they are granted.
    """
    made, source, target = _filled(room, tables=2)
    role = f"modest_{target.name}"
    target.execute(
        f"CREATE ROLE {role} LOGIN; GRANT ALL ON DATABASE {target.name} TO {role};"
        f"GRANT SET ON PARAMETER session_replication_role TO {role};"
        f"GRANT ALL ON SCHEMA spillway TO {role};"
        f"GRANT ALL ON ALL TABLES IN SCHEMA spillway TO {role};"
        f"GRANT ALL ON t0, t1 TO {role}; REVOKE {lacks} ON t0 FROM {role};"
        "ALTER TABLE t0 ADD CONSTRAINT late CHECK (id < 2900)"
    )
    ends = replace(made, target_dsn=target.cluster.dsn(target.name, role))
    told = Told()
    sync = ends.sync(told, range_bytes=_SMALL_RANGE, connections=1)
    position = ends.position()
    try:
        sync.first_copy(position)
        states = {table.table: table for table in sync.states.all().values()}
        assert states["t1"].state == "s"
        assert _rows(target, "t1") == _rows(source, "t1")
        assert "permission denied for table t0" in states["t0"].error, told.sentences
        if "TRUNCATE" in lacks:
            # What may not be taken away stays, and is known to be ours.
            assert "can't be taken away" in states["t0"].error
            assert 0 < target.value("SELECT count(*) FROM t0") < 2900
            assert _kept(target)["t0"] == "d"
        target.execute(f"GRANT ALL ON t0 TO {role}; ALTER TABLE t0 DROP CONSTRAINT late")
        sync.start()

        def is_copied() -> bool:
            sync.at_boundary(position)
            return _kept(target)["t0"] in "sr"

        wait_until("it is copied", is_copied)
        assert _rows(target) == _rows(source)
    finally:
        sync.stop()
        target.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def test_only_indexes_that_come_back_as_they_were_are_dropped(room: Room) -> None:
    _, target = room.pair()
    role = f"index_maker_{target.name}"
    target.execute(f"CREATE ROLE {role}")
    with target.connect() as connection:
        connection.execute("SET allow_in_place_tablespaces = on")
        connection.execute(f"CREATE TABLESPACE {target.name} LOCATION ''")
    target.execute(
        "CREATE SCHEMA shut; CREATE TABLE shut.t (id int PRIMARY KEY, a int, s text);"
        "CREATE UNIQUE INDEX u ON shut.t (a, id); CREATE INDEX plain ON shut.t (a);"
        "CREATE INDEX partial ON shut.t (s DESC) WHERE a > 3;"
        "CREATE INDEX told ON shut.t (a); COMMENT ON INDEX shut.told IS 'why';"
        "CREATE INDEX counted ON shut.t ((a + 1));"
        "ALTER INDEX shut.counted ALTER COLUMN 1 SET STATISTICS 500;"
        f"CREATE INDEX elsewhere ON shut.t (a) TABLESPACE {target.name};"
        f"ALTER TABLE shut.t OWNER TO {role}; GRANT USAGE ON SCHEMA shut TO {role}"
    )
    query = (
        "SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = 'shut.t'::regclass"
        " ORDER BY 1"
    )
    before = target.query(query)
    oid = int(target.value("SELECT 'shut.t'::regclass::oid::int8"))
    try:
        with target.connect() as connection, connection.transaction():
            # It may drop them there, and not make them.
            connection.execute(f"SET LOCAL ROLE {role}")
            assert indexes.drop(connection, oid) == []
        target.execute(f"GRANT CREATE ON SCHEMA shut TO {role}")
        with target.connect() as connection, connection.transaction():
            connection.execute(f"SET LOCAL ROLE {role}")
            dropped = indexes.drop(connection, oid)
            assert [one.split()[2] for one in dropped] == ["partial", "plain"]
            indexes.make(connection, dropped)
        assert target.query(query) == before
    finally:
        target.execute("DROP SCHEMA shut CASCADE")
        target.execute(f"DROP TABLESPACE {target.name}")
        target.execute(f"DROP ROLE {role}")


def test_after_a_failure_of_a_connection_it_goes_on_with_the_same_snapshot(room: Room) -> None:
    ends, source, target = _filled(room)
    told = Told()
    sync = ends.sync(told, range_bytes=_SMALL_RANGE, connections=1)
    with armed("table_sync.before_range=error:EIO@4"):
        sync.first_copy(ends.position())
    assert any("it is tried again" in one for one in told.sentences)
    (table,) = sync.states.all().values()
    # Nothing was taken away in between: a row for each range, and one for the one that failed.
    assert (table.state, table.rows) == ("s", 3000)
    assert target.value("SELECT n_tup_del FROM pg_stat_user_tables WHERE relname = 't0'") == 0
    assert target.value("SELECT count(DISTINCT xmin::text) FROM t0") == -(-3000 * 144 // 65536)
    assert _rows(target) == _rows(source)
    sync.stop()


def test_killed_while_it_hands_over_it_catches_up_again(room: Room) -> None:
    ends, source, target = _filled(room)
    told = Told()
    sync = ends.sync(told)
    # Copied while the worker was further: it has to catch up.
    source.execute("UPDATE t0 SET a = a + 100 WHERE id <= 10")
    sync.first_copy(ends.position())
    (copied,) = sync.states.all().values()
    with target.connect() as connection:
        connection.execute("UPDATE spillway.tables SET state = 'f'")
    sync.stop()
    source.execute("UPDATE t0 SET a = a + 1000 WHERE id <= 10; INSERT INTO t0 VALUES (0, 0, '')")
    position = lsn_now(source)
    room.service.wait_for(ends.slot, str(Lsn(position)))
    again = ends.sync(told)
    again.at_boundary(position)
    again.start()

    def waits() -> bool:
        return again.has_waiting

    wait_until("it waits for a boundary", waits)
    with armed("table_sync.before_handover=error:EIO"), pytest.raises(OSError, match="handover"):
        again.at_boundary(position)
    assert target.value("SELECT state::text FROM spillway.tables") == "f"
    again.stop()
    last = ends.sync(told)
    assert last.states.hold_lsn() == copied.lsn
    last.at_boundary(position)
    last.start()

    def is_done() -> bool:
        last.at_boundary(position)
        return last.states.are_all_ready

    wait_until("it is ready", is_done, lambda: str(told.sentences))
    assert _rows(target) == _rows(source)
    last.stop()


def test_what_a_table_cannot_catch_up_with_is_told_of_it(room: Room) -> None:
    ends, source, target = _filled(room, tables=2)
    told = Told()
    sync = ends.sync(told)
    sync.first_copy(ends.position())
    sync.stop()
    with target.connect() as connection:
        connection.execute("UPDATE spillway.tables SET state = 'f' WHERE table_name = 't0'")
    source.execute("INSERT INTO t0 VALUES (5000, 0, '')")
    target.execute("INSERT INTO t0 VALUES (5000, 1, 'in the way')")
    position = lsn_now(source)
    room.service.wait_for(ends.slot, str(Lsn(position)))
    again = ends.sync(told)
    again.start()

    def is_told() -> bool:
        again.at_boundary(position)
        return bool(again.states.all()["public", "t0"].error)

    wait_until("it is told", is_told)
    assert _states(again) == {"t0": "f", "t1": "r"}
    assert "5000" in again.states.all()["public", "t0"].error
    again.stop()


def test_what_refuses_the_end_of_a_tables_catching_up(room: Room) -> None:
    """For a role whose constraints don't rest: which one it is, and what to do; it helps. Of two
    transactions one swaps two keys, which is no row's fault.
    """
    source, target = room.pair()
    role = f"modest_{target.name}"
    for database in (source, target):
        database.execute(
            "CREATE TABLE late (id int PRIMARY KEY, u int UNIQUE DEFERRABLE INITIALLY DEFERRED)"
        )
    source.execute("CREATE PUBLICATION p FOR ALL TABLES")
    made = room.ends(source, target, "p")
    target.execute(
        f"CREATE ROLE {role} LOGIN; GRANT ALL ON DATABASE {target.name} TO {role};"
        f" ALTER TABLE late OWNER TO {role}; GRANT ALL ON SCHEMA spillway TO {role};"
        f" GRANT ALL ON ALL TABLES IN SCHEMA spillway TO {role};"
        " INSERT INTO late VALUES (9, 7), (10, 8)"
    )
    ends = replace(made, target_dsn=target.cluster.dsn(target.name, role))
    told = Told()

    def catch_up(wishes: ExactOptions, start: int, upto: int) -> None:
        call = ends.catch_up(told, wishes)
        call(frozenset({("public", "late")}), start, upto, lambda _connection, _names: None)

    def reached() -> int:
        upto = lsn_now(source)
        room.service.wait_for(ends.slot, str(Lsn(upto)))
        return upto

    start = ends.position()
    source.execute("INSERT INTO late VALUES (1, 1), (2, 2)")
    source.execute("UPDATE late SET u = 3 - u; INSERT INTO late VALUES (4, 4)")
    source.execute("INSERT INTO late VALUES (3, 7), (5, 5)")
    upto = reached()
    with pytest.raises(TargetRowRefused, match=r"what public\.late lacked, at the end") as error:
        catch_up(ExactOptions(), start, upto)
    assert error.value.details["constraint"] == "late_u_key"
    assert error.value.hint.endswith(f"alter {ends.name} --target-option dead_letter=true.")
    assert _rows(target, "late") == [(9, 7), (10, 8)]
    catch_up(ExactOptions(dead_letter=True), start, upto)
    assert _rows(target, "late") == [(1, 2), (2, 1), (4, 4), (5, 5), (9, 7), (10, 8)]
    assert target.query("SELECT new_row->>'id' FROM spillway.dead_letter") == [("3",)]

    source.execute("INSERT INTO late VALUES (6, 8)")
    last = reached()
    with pytest.raises(TargetRowRefused, match="Mend what refuses it on the target"):
        catch_up(ExactOptions(), upto, last)
    target.execute("DELETE FROM late WHERE id = 10")
    catch_up(ExactOptions(), upto, last)
    assert (6, 8) in _rows(target, "late")

    # A row by itself: its slot was moved over the transaction long ago, so that none is named.
    target.execute("ALTER TABLE late ADD CHECK (id <> 11)")
    source.execute("INSERT INTO late VALUES (11, 11), (12, 12)")
    end = reached()
    with pytest.raises(TargetRowRefused, match="late_id_check") as error:
        catch_up(ExactOptions(), last, end)
    assert error.value.hint.endswith(f"alter {ends.name} --target-option dead_letter=true.")
    catch_up(ExactOptions(dead_letter=True), last, end)
    assert {(11, 11), (12, 12)}.intersection(_rows(target, "late")) == {(12, 12)}
    assert told.conflicts == []
    target.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_sequences_go_forward_only(room: Room) -> None:
    source, target = room.pair()
    for database in (source, target):
        database.execute(
            "CREATE TABLE t0 (id serial PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY);"
            "CREATE SEQUENCE down INCREMENT BY -1; CREATE SEQUENCE free;"
            "CREATE TABLE t1 (id int PRIMARY KEY DEFAULT nextval('down'))"
        )
    source.execute("CREATE SEQUENCE other CYCLE MAXVALUE 9; CREATE SEQUENCE missing")
    source.execute("ALTER TABLE t1 ADD a int DEFAULT nextval('other')")
    source.execute("ALTER TABLE t1 ADD b int DEFAULT nextval('missing')")
    target.execute("CREATE SEQUENCE other; ALTER TABLE t1 ADD a int, ADD b int")
    source.execute("INSERT INTO t0 SELECT FROM generate_series(1, 50)")
    source.execute("SELECT nextval('down') FROM generate_series(1, 20); SELECT nextval('free')")
    source.execute("CREATE PUBLICATION p FOR ALL TABLES")
    ends = room.ends(source, target, "p")
    sync = ends.sync(Told())
    sync.first_copy(ends.position())
    found = sync.sequences
    assert found is not None
    assert found.changed == ("public.down", "public.t0_id_seq", "public.t0_n_seq")
    assert set(found.failed) == {"public.other", "public.missing"}
    assert "maximum is 9" in found.failed["public.other"]
    assert "does not exist" in found.failed["public.missing"]
    # As the source's next value, each.
    both = "SELECT nextval('t0_id_seq'), nextval('down'), nextval('t0_n_seq')"
    assert target.query(both) == source.query(both) == [(51, -21, 51)]
    # One that is not the tables' is left alone.
    assert target.value("SELECT nextval('free')") == 1
    target.execute("SELECT setval('t0_id_seq', 900); SELECT setval('down', -900)")
    source.execute("SELECT setval('t0_n_seq', 70, false)")
    assert sync.synchronize_sequences().changed == ("public.t0_n_seq",)
    assert target.query(both) == [(901, -901, 70)]
    assert sync.synchronize_sequences(may_go_back=True).changed[0] == "public.down"
    assert target.query(both) == source.query(both)
    sync.stop()


def test_without_its_snapshot_a_table_begins_anew(room: Room) -> None:
    ends, source, target = _filled(room)
    target.execute("CREATE TABLE child (id int REFERENCES t0)")
    settings = {"range_bytes": _SMALL_RANGE, "connections": 1}
    ends.killed_at("table_sync.after_range=kill@4", **settings)
    assert 0 < len(_rows(target)) < 3000
    source.execute("DELETE FROM t0 WHERE id % 3 = 0")
    room.service.call("DELETE", f"/slots/{ends.slot}/snapshot")
    sync = ends.sync(Told(), **settings)
    (begun,) = sync.states.all().values()
    sync.first_copy(ends.position())
    (table,) = sync.states.all().values()
    assert table.lsn > begun.lsn
    assert _rows(target) == _rows(source)
    sync.stop()


def test_rows_that_are_there_stay_and_one_in_the_way_is_told(room: Room) -> None:
    ends, source, target = _filled(room, tables=2)
    target.execute("INSERT INTO t0 VALUES (-1, 0, 'mine'); INSERT INTO t1 VALUES (2999, 0, 'mine')")
    told = Told()
    sync = ends.sync(told, range_bytes=_SMALL_RANGE)
    sync.first_copy(ends.position())
    # As PostgreSQL: beside them.
    assert _rows(target) == [(-1, 0, "mine"), *_rows(source)]
    failed = sync.states.all()["public", "t1"]
    assert failed.state == SyncState.INIT
    assert _rows(target, "t1") == [(2999, 0, "mine")]
    assert "duplicate key value violates unique constraint" in failed.error
    remedy = "TRUNCATE public.t1;"
    assert remedy in failed.error
    target.execute(remedy)
    sync.start()
    wait_until("it is copied", lambda: _states(sync)["t1"] == "f", lambda: str(told.sentences))
    assert _rows(target, "t1") == _rows(source, "t1")
    sync.stop()


def test_a_table_that_fails_leaves_the_others_alone(room: Room) -> None:
    ends, source, target = _filled(room, tables=5)
    target.execute(
        "ALTER TABLE t0 ADD CHECK (id < 2500); ALTER TABLE t1 DROP COLUMN s;"
        "DROP TABLE t2; ALTER TABLE t3 RENAME TO other; CREATE VIEW t3 AS SELECT * FROM other"
    )
    told = Told()
    sync = ends.sync(told, range_bytes=_SMALL_RANGE)
    sync.first_copy(ends.position())
    assert _states(sync) == {"t0": "i", "t1": "i", "t2": "i", "t3": "i", "t4": "s"}
    errors = {table.table: table.error for table in sync.states.all().values()}
    assert "violates check constraint" in errors["t0"]
    assert 'is missing replicated column: "s"' in errors["t1"]
    assert 'relation "public.t2" does not exist' in errors["t2"]
    assert "not supported for views" in errors["t3"]
    # Of the first what was copied is away again.
    assert _rows(target) == []
    assert _rows(target, "t4") == _rows(source, "t4")
    # Nothing is held for them.
    assert sync.states.hold_lsn() is None
    sync.stop()


@pytest.mark.follows_hint("source_table_altered")
def test_what_is_altered_while_it_is_copied_is_copied_anew(room: Room) -> None:
    ends, source, target = _filled(room, tables=4)
    told = Told()
    sync = ends.sync(told, connections=1)
    copying = threading.Thread(target=sync.first_copy, args=[ends.position()])
    with target.connect() as blocker:
        # The snapshot is there, and the first of four is waited for.
        blocker.execute("BEGIN; LOCK TABLE t0 IN ACCESS EXCLUSIVE MODE")
        blocker.execute("LOCK TABLE t1, t2, t3 IN SHARE MODE")
        copying.start()
        wait_until(
            "a copy waits",
            lambda: bool(
                target.value(
                    "SELECT count(*) FROM pg_stat_activity"
                    " WHERE wait_event_type = 'Lock' AND datname = current_database()"
                )
            ),
        )
        waits_for_first = sync.states.all()["public", "t0"]
        assert waits_for_first.state in ("i", "d")
        # To a snapshot from before a heap that was written anew is empty.
        source.execute("ALTER TABLE t1 ALTER a TYPE bigint")
        source.execute("TRUNCATE t2; INSERT INTO t2 VALUES (1, 1, 'after')")
        source.execute("DROP TABLE t3")
        blocker.execute("ROLLBACK")
    copying.join()
    assert _states(sync) == {"t0": "s", "t1": "s", "t2": "s", "t3": "i"}, told.sentences
    hint = remedies.remedy(sync.errors["public", "t1"], "source_table_altered")
    assert hint == "The table is copied anew, as it is then."
    for table in ("t0", "t1", "t2"):
        assert _rows(target, table) == _rows(source, table)
    dropped = sync.states.all()["public", "t3"]
    assert "is not published on the source any more" in dropped.error
    # Its remedy.
    assert "A refresh forgets it" in dropped.error
    sync.stop()
    # A refresh is a program's first look.
    sync = ends.sync(Told())
    sync.start()
    sync.look_again()
    wait_until("it is forgotten", lambda: "t3" not in _states(sync))
    sync.stop()


@pytest.mark.parametrize("way", ["no reading", deep("no writing"), deep("a trigger waits")])
def test_a_copy_is_stopped_while_the_target_takes_nothing(room: Room, way: str) -> None:
    """Before its COPY, when that begins, or in the middle, when both sides' buffers are full. It
    ends while that is so, nothing of it is there, and the next program copies all.
    """
    ends, source, target = _filled(room, rows=0)
    source.execute("INSERT INTO t0 SELECT n, n, repeat('x', 1000) FROM generate_series(1, 20000) n")
    sync = ends.sync(Told())

    def copy() -> None:
        with suppress(SpillwayError):
            sync.first_copy(ends.position())

    copying = threading.Thread(target=copy)
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND {}"
    with target.connect() as blocker:
        if way == "no reading":
            blocker.execute("BEGIN; LOCK TABLE t0 IN ACCESS EXCLUSIVE MODE")
        elif way == "no writing":
            blocker.execute("BEGIN; LOCK TABLE t0 IN SHARE MODE")
        else:
            blocker.execute(
                "CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS"
                " 'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END';"
                "CREATE TRIGGER t BEFORE INSERT ON t0 FOR EACH ROW EXECUTE FUNCTION waits();"
                "ALTER TABLE t0 ENABLE ALWAYS TRIGGER t; SELECT pg_advisory_lock(1)"
            )
        copying.start()
        wait_until(
            "the target waits",
            lambda: bool(target.value(waits.format("wait_event_type = 'Lock'"))),
        )
        if way == "a trigger waits":
            wait_until(
                "nobody takes what the source has",
                lambda: bool(source.value(waits.format("wait_event = 'ClientWrite'"))),
            )
        sync.stop()
        copying.join(_BOUND_S)
        assert not copying.is_alive()
    assert _rows(target) == []
    if way == "a trigger waits":
        target.execute("DROP TRIGGER t ON t0")
    again = ends.sync(Told())
    again.first_copy(ends.position())
    assert _rows(target) == _rows(source)
    again.stop()


def test_catching_up_beside_the_stream_is_stopped_while_it_waits_for_a_lock(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is there, no error is told of the table, and the next program goes on."""
    monkeypatch.setattr(hand_over, "_NEAR_BYTES", -1)
    ends, source, target = _filled(room, rows=10)
    sync = ends.sync(Told())
    sync.first_copy(ends.position())
    for database in (source, target):
        database.execute("CREATE TABLE late (id int PRIMARY KEY)")
    sync.start()
    sync.look_again()
    wait_until("it is copied", lambda: _states(sync).get("late") == "f")
    source.execute("INSERT INTO late VALUES (1)")
    upto = lsn_now(source)
    room.service.wait_for(ends.slot, str(Lsn(upto)))
    with target.connect() as blocker:
        blocker.execute("BEGIN; LOCK TABLE late IN SHARE MODE")
        sync.at_boundary(upto)
        wait_until("it waits", lambda: bool(target.value(_WAITING)))
        stopping = threading.Thread(target=sync.stop)
        stopping.start()
        stopping.join(_BOUND_S)
        assert not stopping.is_alive()
        assert not target.value(_WAITING)
    again = ends.sync(Told())
    late = again.states.all()["public", "late"]
    assert (late.state, late.error) == (SyncState.FINISHED_COPY, "")
    assert _rows(target, "late") == []
    # The worker has passed what the table lacks.
    again.first_copy(upto)
    again.start()

    def is_handed_over() -> bool:
        again.at_boundary(upto)
        return _states(again)["late"] in ("s", "r")

    wait_until("it is handed over", is_handed_over)
    again.stop()
    assert _rows(target, "late") == [(1,)]


@pytest.mark.long
def test_a_program_ends_by_sigterm_while_its_own_thread_catches_up_and_waits(room: Room) -> None:
    """What a table lacks last is written by the worker's thread, which hears of no signal while it
    waits: it ends by itself, before anybody would kill it.
    """
    ends, source, target = _filled(room, rows=10)
    with ends.program() as program:
        program.begin()
        wait_until("t0 is copied", lambda: _kept(target) == {"t0": "r"}, program.told)
    for database in (source, target):
        database.execute("CREATE TABLE late (id int PRIMARY KEY)")
    source.execute("INSERT INTO late VALUES (1)")
    target.execute(
        "CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_advisory_xact_lock_shared(NEW.id); RETURN NEW; END';"
        "CREATE TRIGGER t BEFORE INSERT ON late FOR EACH ROW EXECUTE FUNCTION waits();"
        "ALTER TABLE late ENABLE ALWAYS TRIGGER t"
    )
    with ends.program() as program:
        with target.connect() as blocker:
            blocker.execute("SELECT pg_advisory_lock(1), pg_advisory_lock(2)")
            program.begin()
            wait_until("its copy waits", lambda: bool(target.value(_WAITING)), program.told)
            source.execute("INSERT INTO late VALUES (2); INSERT INTO t0 VALUES (11, 11, '')")
            wait_until("the stream is ahead", lambda: len(_rows(target)) == 11, program.told)
            blocker.execute("SELECT pg_advisory_unlock(1)")
            wait_until(
                "the rest waits",
                lambda: _kept(target)["late"] == "f" and bool(target.value(_WAITING)),
                program.told,
            )
            program.end()
            assert not target.value(_WAITING)
        assert target.value("SELECT count(*) FROM spillway.tables WHERE error <> ''") == 0
        assert _rows(target, "late") == [(1,)]
        program.begin()
        wait_until("it is the stream's", lambda: _kept(target)["late"] == "r", program.told)
    assert _rows(target, "late") == [(1,), (2,)]
