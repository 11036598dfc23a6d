"""Large transactions, applied while they are in progress, beside PostgreSQL's own subscription with
streaming = parallel.
"""

from __future__ import annotations

import os
import random
import signal
from typing import TYPE_CHECKING, Any

import pytest

from harness.postgresql_subscription import wait_until
from harness.tiers import deep

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from harness.side_by_side import SideBySide

_MAJOR_OF_PARALLEL = 16
_MAJOR_OF_TWO_PHASE = 15
_NAME = "in_progress"
#: some 150 kB: more than a part
_FILL = "INSERT INTO {} SELECT n, repeat('x', 100) FROM generate_series({}, {}) n"
#: transactions that are open on the target, of sessions of the subscription
_OPEN = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
   AND application_name = 'spillway subscription in_progress' AND backend_xid IS NOT NULL
"""


@pytest.fixture(scope="module")
def streamed(sides: SideBySide) -> Iterator[SideBySide]:
    """Both subscribed to tables that begin alike."""
    sides.everywhere(
        "CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY, v text);"
        "CREATE TABLE unique_there (id int PRIMARY KEY, v text);"
        "CREATE TABLE keyless (id int, v text)"
    )
    sides.both("CREATE UNIQUE INDEX ON unique_there (v) WHERE v LIKE 'u%'")
    sides.source.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    two_phase = sides.major >= _MAJOR_OF_TWO_PHASE
    declared: dict[str, Any] = {"two_phase": True} if two_phase else {}
    sides.subscribe(
        _NAME,
        "everything",
        stock=["streaming = " + ("parallel" if sides.major >= _MAJOR_OF_PARALLEL else "on")],
        target={"conflicts": {"insert_exists": "apply_remote"}},
        streaming="parallel",
        **declared,
    )
    sides.caught_up()
    yield sides
    sides.unsubscribe(_NAME)


#: which keep the next program from looking for the position while they may commit
_JOINED = """
SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
 WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted AND backend_xid IS NOT NULL
   AND datname = current_database()
"""


def _fill(session: psycopg.Connection[Any], table: str, first: int, last: int) -> None:
    session.execute(_FILL.format(table, first, last).encode())


def _wait_open(sides: SideBySide, count: int) -> None:
    wait_until(
        f"{count} transactions are open on the target",
        lambda: sides.ours.value(_OPEN) == count,
        sides.told,
    )


def _lines(sides: SideBySide) -> str:
    return "\n".join(sides.service.call("GET", f"/subscriptions/{_NAME}/log")["lines"])


def test_subtransactions_are_taken_back_when_they_are(streamed: SideBySide) -> None:
    with streamed.source.connect() as session:
        session.execute("BEGIN")
        _fill(session, "a", 1, 2000)
        _wait_open(streamed, 1)
        assert streamed.ours.value(_JOINED) == 1
        session.execute("SAVEPOINT one")
        _fill(session, "a", 2001, 4000)
        session.execute("SAVEPOINT two")
        session.execute("DELETE FROM a WHERE id % 3 = 0")
        session.execute("RELEASE two")
        session.execute("UPDATE a SET v = 'gone' WHERE id % 2 = 0")
        session.execute("ROLLBACK TO one")
        session.execute("UPDATE a SET v = 'kept' || id WHERE id % 5 = 0")
        session.execute("SAVEPOINT three")
        _fill(session, "b", 1, 2000)
        session.execute("RELEASE three")
        session.execute("SAVEPOINT four")
        session.execute("TRUNCATE b")
        session.execute("ROLLBACK TO four")
        # Small ones go on beside it.
        streamed.caught_up()
        assert streamed.rows("SELECT * FROM a") == []
        _wait_open(streamed, 1)
        session.execute("COMMIT")
    streamed.as_source("a", "b")
    assert "is not applied while it is in progress" not in _lines(streamed)


def test_what_is_rolled_back_leaves_nothing(streamed: SideBySide) -> None:
    with streamed.source.connect() as session:
        session.execute("BEGIN")
        _fill(session, "a", 10_001, 12_000)
        _wait_open(streamed, 1)
        session.execute("ROLLBACK")
    _wait_open(streamed, 0)
    streamed.as_source("a")


def test_as_many_as_there_is_room_for_and_the_others_at_their_end(streamed: SideBySide) -> None:
    sessions = [streamed.source.connect() for _ in range(6)]
    try:
        for number, session in enumerate(sessions):
            session.execute("BEGIN")
            _fill(session, "a", 20_001 + 2000 * number, 22_000 + 2000 * number)
        _wait_open(streamed, 4)
        for number, session in enumerate(sessions):
            session.execute("SAVEPOINT s")
            _fill(session, "b", 20_001 + 2000 * number, 22_000 + 2000 * number)
            if number % 2:
                session.execute("ROLLBACK TO s")
        for session in reversed(sessions):
            session.execute("COMMIT")
    finally:
        for session in sessions:
            session.close()
    streamed.as_source("a", "b")


def test_prepared(streamed: SideBySide) -> None:
    if streamed.major < _MAJOR_OF_TWO_PHASE:
        # A prepared transaction comes when it is committed there.
        return
    with streamed.source.connect() as session:
        for gid, first in (("g1", 40_001), ("g2", 43_001)):
            session.execute("BEGIN")
            _fill(session, "a", first, first + 1999)
            session.execute("SAVEPOINT s")
            session.execute("DELETE FROM b")
            session.execute("ROLLBACK TO s")
            session.execute(
                f"UPDATE a SET v = 'p' WHERE id BETWEEN {first} AND {first + 99}".encode()
            )
            session.execute(f"PREPARE TRANSACTION '{gid}_{streamed.source.name}'".encode())
        streamed.caught_up()
        gids = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
        assert streamed.ours.value(gids) == 2
        session.execute(f"COMMIT PREPARED 'g1_{streamed.source.name}'".encode())
        session.execute(f"ROLLBACK PREPARED 'g2_{streamed.source.name}'".encode())
    streamed.as_source("a", "b")
    assert streamed.ours.value(gids) == 0


@pytest.mark.long
def test_prepared_already_when_it_comes_again(streamed: SideBySide) -> None:
    """As when the program ends between PREPARE TRANSACTION and its position. The table has no key,
    so nothing is in the way of the rows.
    """
    if streamed.major < _MAJOR_OF_TWO_PHASE:
        return
    streamed.caught_up()
    position = "SELECT remote_lsn::text FROM spillway.progress WHERE subscription = 'in_progress'"
    before = streamed.ours.value(position)
    gid = f"again_{streamed.source.name}"
    with streamed.source.connect() as session:
        session.execute("BEGIN")
        _fill(session, "keyless", 1, 2000)
        session.execute(f"PREPARE TRANSACTION '{gid}'".encode())
        wait_until(
            "it is prepared there",
            lambda: streamed.ours.value(position) != before,
            streamed.told,
        )
        streamed.service.call("POST", f"/subscriptions/{_NAME}/disable")
        streamed.ours.execute(f"UPDATE spillway.progress SET remote_lsn = '{before}'")
        streamed.service.call("POST", f"/slots/{_NAME}/rewind", json={"lsn": before})
        streamed.service.call("POST", f"/subscriptions/{_NAME}/enable")
        session.execute(f"COMMIT PREPARED '{gid}'".encode())
    streamed.as_source("keyless")


@pytest.mark.long
@pytest.mark.parametrize("whom", ["program", "backends"])
def test_killed_in_the_middle(streamed: SideBySide, whom: str) -> None:
    first = 70_001 if whom == "program" else 80_001
    with streamed.source.connect() as session:
        for table in ("a", "b"):
            _fill(session, table, first, first + 1999)
    streamed.caught_up()
    with streamed.source.connect() as session:
        session.execute("BEGIN")
        session.execute("UPDATE a SET v = v || '!'")
        _wait_open(streamed, 1)
        if whom == "program":
            os.kill(streamed.view(_NAME)["pid"], signal.SIGKILL)
        else:
            streamed.ours.query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'spillway subscription in_progress'"
            )
        _wait_open(streamed, 0)
        session.execute("UPDATE b SET v = v || '!'")
        session.execute("COMMIT")
    streamed.as_source("a", "b")


def test_a_row_in_the_way_is_resolved_when_it_has_ended(streamed: SideBySide) -> None:
    streamed.ours.execute("INSERT INTO a VALUES (51000, 'local')")
    with streamed.source.connect() as session:
        session.execute("BEGIN")
        _fill(session, "a", 50_001, 52_000)
        session.execute("COMMIT")
    streamed.as_source("a")


def test_one_that_another_waits_for_is_left(streamed: SideBySide) -> None:
    """The target alone has a unique index, in which the row of the one in progress is in the way of
    a row that commits before it is taken back.
    """
    with streamed.source.connect() as session:
        session.execute("BEGIN")
        session.execute("SAVEPOINT s")
        session.execute("INSERT INTO unique_there VALUES (1, 'u')")
        _fill(session, "unique_there", 2, 2000)
        _wait_open(streamed, 1)
        streamed.source.execute("INSERT INTO unique_there VALUES (5000, 'u')")
        wait_until(
            "the other one is there",
            lambda: streamed.ours.value("SELECT count(*) FROM unique_there") == 1,
            streamed.told,
        )
        session.execute("ROLLBACK TO s")
        _fill(session, "unique_there", 6001, 8000)
        session.execute("COMMIT")
    streamed.caught_up()
    there = streamed.source.query("SELECT * FROM unique_there ORDER BY 1")
    assert streamed.ours.query("SELECT * FROM unique_there ORDER BY 1") == there


@pytest.mark.parametrize("seed", [1, *map(deep, range(2, 7))])
def test_a_history(streamed: SideBySide, seed: int) -> None:
    """Three sessions, each with its own rows, nested subtransactions, ends of each kind; from the
    second seed on the target's sessions are ended now and then.
    """
    rng = random.Random(seed)
    sessions = [streamed.source.connect() for _ in range(3)]
    depth: list[int | None] = [None] * 3
    ended = 0
    try:
        while ended < 6:
            which = rng.randrange(3)
            session, own = sessions[which], f"id % 3 = {which}"
            levels = depth[which]
            if levels is None:
                session.execute("BEGIN")
                depth[which] = 0
                continue
            at = rng.random()
            if at < 0.35:
                table, base = rng.choice("ab"), rng.randrange(100_000, 200_000)
                session.execute(
                    f"INSERT INTO {table} SELECT n, repeat(md5(n::text), 4) FROM"
                    f" generate_series({base}, {base + 900}) n WHERE n % 3 = {which}"
                    " ON CONFLICT (id) DO UPDATE SET v = a.v || '+'".replace(
                        "a.v", f"{table}.v"
                    ).encode()
                )
            elif at < 0.5:
                table, digit = rng.choice("ab"), rng.randrange(10)
                these = f"{own} AND id % 10 = {digit}"
                session.execute(f"UPDATE {table} SET v = v || {digit} WHERE {these}".encode())
            elif at < 0.58:
                digit = rng.randrange(20)
                session.execute(f"DELETE FROM a WHERE {own} AND id % 20 = {digit}".encode())
            elif at < 0.74:
                session.execute(f"SAVEPOINT s{levels}".encode())
                depth[which] = levels + 1
            elif at < 0.9 and levels:
                back = rng.randrange(levels)
                if rng.random() < 0.5:
                    session.execute(f"ROLLBACK TO s{back}".encode())
                    depth[which] = back + 1
                else:
                    session.execute(f"RELEASE s{back}".encode())
                    depth[which] = back
            elif at > 0.93:
                how = rng.choice(["COMMIT", "COMMIT", "ROLLBACK", "PREPARE TRANSACTION"])
                if how.startswith("PREPARE"):
                    gid = f"h{seed}_{ended}_{streamed.source.name}"
                    session.execute(f"{how} '{gid}'".encode())
                    end = rng.choice(["COMMIT", "ROLLBACK"])
                    session.execute(f"{end} PREPARED '{gid}'".encode())
                else:
                    session.execute(how.encode())
                depth[which] = None
                ended += 1
                if seed > 1 and rng.random() < 0.2:
                    streamed.ours.query(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE application_name = 'spillway subscription in_progress'"
                    )
    finally:
        for session in sessions:
            session.close()
    streamed.as_source("a", "b")
