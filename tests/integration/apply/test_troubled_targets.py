"""A subscription whose target has one trouble after the other: each is a state with a code and a
hint, and when it is over the subscription goes on, with nothing lost and nothing there twice.

What the errors are called, one by one and without a service, test_target_remedies has.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from harness.cluster import Cluster, Database
from harness.postgresql_subscription import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.serve_process import ServeProcess
    from harness.service import Service

pytestmark = pytest.mark.long

_TABLES = """
CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY, v text)
"""


class Room:
    """A source, a target in a server of its own, and a subscription by a role that is no
    superuser.
    """

    def __init__(self, source: Database, server: Cluster, service: Service) -> None:
        self.source = source
        self.server = server
        self.service = service
        self.name = f"troubled_{secrets.token_hex(3)}"
        self.target = server.create_database("target")
        self.rows = 0
        for database in (source, self.target):
            database.execute(_TABLES)
        source.execute("CREATE PUBLICATION p FOR ALL TABLES")
        self.target.execute(
            "CREATE ROLE filler LOGIN; GRANT CREATE ON DATABASE target TO filler;"
            "GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON t, u TO filler"
        )
        service.create_source(source.dsn, name=self.name)
        service.call(
            "POST",
            "/subscriptions",
            json={
                "name": self.name,
                "source": self.name,
                "database": source.name,
                "publications": ["p"],
                "copy_data": False,
                "target": {"kind": "postgres", "dsn": f"{self.target.dsn} user=filler"},
            },
        )

    def view(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.service.call("GET", f"/subscriptions/{self.name}")
        return answer

    def told(self) -> str:
        log = self.service.call("GET", f"/subscriptions/{self.name}/log")["lines"]
        return "\n".join([str(self.view()), *log[-30:]])

    def insert(self, value: str = "x") -> None:
        self.rows += 1
        self.source.execute("INSERT INTO t VALUES (%s, %s)", [self.rows, value])

    def arrived(self) -> None:
        """Wait until target and source are equal, and the error is gone."""
        expected = self.source.query("SELECT * FROM t ORDER BY 1")
        wait_until(
            f"all {self.rows} rows are there",
            lambda: self.target.query("SELECT * FROM t ORDER BY 1") == expected,
            self.told,
        )
        wait_until("the error is gone", lambda: self.view()["error"] is None, self.told)

    def failed(self, code: str) -> str:
        """Wait until it has the error; return its hint."""
        wait_until(
            f"it has failed with {code}",
            lambda: (self.view()["error"] or {}).get("code") == code,
            self.told,
        )
        hint = str(self.view()["error"]["hint"])
        assert hint
        return hint

    def at_once(self) -> None:
        """Have it tried again now; by itself it is after a while."""
        for what in ("disable", "enable"):
            self.service.call("POST", f"/subscriptions/{self.name}/{what}")

    @contextmanager
    def trouble(self, code: str) -> Iterator[list[str]]:
        """A row is written that does not arrive; the block ends what is the matter."""
        self.insert()
        yield [self.failed(code)]
        self.at_once()
        self.arrived()

    def end_sessions(self) -> None:
        self.server.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'filler'"
        )


@pytest.fixture(scope="module")
def room(checklist_cluster: Cluster, apply_service: ServeProcess) -> Iterator[Room]:
    name = f"troubled_{secrets.token_hex(3)}"
    source = checklist_cluster.create_database(name)
    with Cluster(checklist_cluster.major) as server:
        made = Room(source, server, apply_service.service())
        made.insert()
        made.arrived()
        yield made
        made.service.call("DELETE", f"/subscriptions/{made.name}")
        made.service.call("DELETE", f"/sources/{made.name}")
    checklist_cluster.drop_database(name)


def test_out_of_reach(room: Room) -> None:
    """By itself it goes on."""
    room.server.stop("immediate")
    room.insert()
    room.failed("target_unavailable")
    room.server.start()
    room.arrived()


def test_read_only(room: Room) -> None:
    room.target.execute("ALTER ROLE filler SET default_transaction_read_only = on")
    room.end_sessions()
    with room.trouble("target_read_only") as (hint,):
        assert "RESET default_transaction_read_only" in hint
        room.target.execute("ALTER ROLE filler RESET default_transaction_read_only")


def test_a_standby_that_is_promoted(room: Room) -> None:
    room.server.stop()
    (room.server.data_directory / "standby.signal").touch()
    room.server.start()
    with room.trouble("target_read_only") as (hint,):
        assert "promote this server" in hint
        assert room.server.value("SELECT pg_promote()")


def test_a_right_that_is_taken_away(room: Room) -> None:
    room.target.execute("REVOKE INSERT ON t FROM filler")
    with room.trouble("target_not_permitted") as (hint,):
        assert "Grant" in hint
        room.target.execute("GRANT INSERT ON t TO filler")


def test_a_table_that_is_missing(room: Room) -> None:
    room.target.execute("ALTER TABLE t RENAME TO away")
    room.end_sessions()
    with room.trouble("target_table_missing"):
        room.target.execute("ALTER TABLE away RENAME TO t")


def test_a_column_that_is_missing(room: Room) -> None:
    room.target.execute("ALTER TABLE t RENAME v TO away")
    room.end_sessions()
    with room.trouble("target_columns_missing"):
        room.target.execute("ALTER TABLE t RENAME away TO v")


def test_a_type_that_does_not_take_a_value(room: Room) -> None:
    room.target.execute("ALTER TABLE t RENAME v TO away; ALTER TABLE t ADD v int")
    room.end_sessions()
    with room.trouble("target_row_refused"):
        room.target.execute("ALTER TABLE t DROP v; ALTER TABLE t RENAME away TO v")


def test_a_row_in_the_way(room: Room) -> None:
    room.target.execute("INSERT INTO t VALUES (%s, 'mine')", [room.rows + 1])
    with room.trouble("apply_conflict"):
        room.target.execute("DELETE FROM t WHERE v = 'mine'")


def test_a_full_disk(room: Room) -> None:
    """A table's file is /dev/full, so that the kernel says to the server that there is no room."""
    room.source.execute("TRUNCATE u")
    room.insert()
    room.arrived()
    assert room.target.value("SELECT pg_relation_size('u')") == 0
    file = room.server.data_directory / str(room.target.value("SELECT pg_relation_filepath('u')"))
    away = file.with_name("away")
    room.server.stop()
    file.rename(away)
    file.symlink_to("/dev/full")
    room.server.start()
    room.source.execute("INSERT INTO u VALUES (1, 'x'), (2, 'y')")
    assert "room" in room.failed("target_disk_full")
    assert "No space left on device" in room.view()["error"]["message"]
    room.server.stop()
    away.replace(file)
    room.server.start()
    room.at_once()
    room.insert()
    room.arrived()
    assert room.target.query("SELECT * FROM u ORDER BY 1") == [(1, "x"), (2, "y")]


def test_a_deadlock_is_tried_again(room: Room) -> None:
    """With a user's transaction, which never gives way."""
    room.source.execute("INSERT INTO u VALUES (1, 'x') ON CONFLICT DO NOTHING")
    room.insert()
    room.arrived()
    # In one of both orders it is: which table the subscription writes first is its own choice.
    for n, (held, other) in enumerate((("u", "t"), ("t", "u"))):
        with psycopg.connect(room.target.dsn) as user:
            user.execute("SET deadlock_timeout = '1h'")
            user.execute(f"UPDATE {held} SET v = 'user' WHERE id = 1")
            with room.source.connect() as session, session.transaction():
                session.execute("UPDATE t SET v = %s WHERE id = 1", [f"source {n}"])
                session.execute("UPDATE u SET v = %s WHERE id = 1", [f"source {n}"])
            wait_until(
                "the subscription waits for the user",
                lambda: bool(
                    room.server.query(
                        "SELECT FROM pg_stat_activity WHERE usename = 'filler'"
                        " AND wait_event_type = 'Lock'"
                    )
                ),
                room.told,
            )
            user.execute(f"UPDATE {other} SET v = 'user' WHERE id = 1")
            user.commit()
        room.arrived()
        for table in ("t", "u"):
            query = f"SELECT v = 'source {n}' FROM {table} WHERE id = 1"
            wait_until("the source's is there", partial(room.target.value, query), room.told)
    counted = "SELECT deadlocks > 0 FROM pg_stat_database WHERE datname = current_database()"
    wait_until("there was a deadlock", partial(room.target.value, counted), room.told)


def test_a_serialization_failure_is_tried_again(room: Room) -> None:
    """Sessions are READ COMMITTED, so it comes of what a trigger does. A few are passed by without
    a sign of an error; while it goes on, it is told.
    """
    room.insert()
    room.arrived()

    def errors() -> int:
        told = room.service.call("GET", f"/subscriptions/{room.name}/stats")
        return int(told["apply_error_count"])

    counted = errors()
    room.target.execute(
        """CREATE SEQUENCE attempts; GRANT ALL ON attempts TO filler;
        CREATE TABLE failing (times int); INSERT INTO failing VALUES (4);
        GRANT SELECT ON failing TO filler;
        CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('public.attempts') <= (SELECT times FROM public.failing) THEN
                RAISE EXCEPTION 'could not serialize access' USING ERRCODE = '40001';
            END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER fails BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION fails();
        ALTER TABLE t ENABLE ALWAYS TRIGGER fails"""
    )
    pid = room.view()["pid"]
    room.insert()
    room.arrived()
    assert room.target.value("SELECT last_value FROM attempts") == 5
    assert room.view()["pid"] == pid
    # An attempt writes a group, its transactions, then row by row: the second one came through.
    wait_until("an attempt is counted", lambda: errors() == counted + 1, room.told)

    room.target.execute("UPDATE failing SET times = 1000000")
    room.insert()
    hint = room.failed("target_serialization")
    assert "tried again" in hint
    assert len(room.target.query("SELECT FROM t")) == room.rows - 1
    room.target.execute("DROP TRIGGER fails ON t")
    room.at_once()
    room.arrived()
