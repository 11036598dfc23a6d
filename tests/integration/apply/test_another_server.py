"""A server that isn't the one it seems: restored from a backup or a dump, taken over by a standby
that lacked commits, upgraded.

A target has its tables and the subscription's position as of one moment, so that the subscription
goes on from there, and everything is on it exactly once; where the service does not have what lies
between any more, it says so. With such a source nothing goes on: what was decoded need not exist
there. Everything begins anew, as the hint says.
"""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from harness.backup import back_up_whole, restore
from harness.cluster import Cluster, Database
from harness.postgresql_subscription import wait_until
from harness.remedies import remedy
from harness.serve_process import ServeProcess
from harness.servers import client
from harness.standby import Standby
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import ClusterFactory
    from harness.service import Service

#: Without a key, so that what is written twice is there twice.
_TABLES = "CREATE TABLE t (id int); ALTER TABLE t REPLICA IDENTITY FULL"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    process = ServeProcess(tmp_path_factory.mktemp("another") / "data")
    yield process.service()
    process.stop()


@pytest.fixture(scope="module")
def source_cluster(service: Service) -> Iterator[Cluster]:
    with Cluster(18) as cluster:
        service.create_source(cluster.dsn("postgres"))
        yield cluster


@dataclass
class Numbers:
    """A subscription that brings numbers of a table ``t``."""

    service: Service
    source: Database
    target: Database
    name: str
    source_name: str = "main"

    def create(self, **more: Any) -> None:
        for database in (self.source, self.target):
            database.execute(_TABLES)
        self.source.execute("CREATE PUBLICATION p FOR ALL TABLES")
        self.create_again(**more)

    def create_again(self, **more: Any) -> None:
        target = {"kind": "postgres", "dsn": self.target.dsn, **more.pop("target", {})}
        body: dict[str, Any] = {
            "name": self.name,
            "source": self.source_name,
            "database": self.source.name,
        }
        body |= {"publications": ["p"], "target": target}
        self.service.call("POST", "/subscriptions", json=body | more)

    def write(self, first: int, last: int) -> None:
        for number in range(first, last + 1):
            self.source.execute("INSERT INTO t VALUES (%s)", [number])

    def view(self) -> Any:
        return self.service.call("GET", f"/subscriptions/{self.name}")

    def there(self) -> list[int]:
        return [number for (number,) in self.target.query("SELECT id FROM t ORDER BY 1")]

    def wait_there(self, last: int) -> None:
        """Wait until all up to *last* are there, each once."""
        wait_until(
            f"1 to {last} are there",
            lambda: self.there() == list(range(1, last + 1)),
            lambda: f"{self.there()} {self.view()}",
        )

    def wait_confirmed(self) -> None:
        """Wait until the slot knows that all is there which was written by now."""
        end = Lsn.parse(str(self.source.value("SELECT pg_current_wal_lsn()::text")))
        wait_until(
            "it is confirmed",
            lambda: Lsn.parse(self.service.slot(self.name)["confirmed_flush_lsn"]) >= end,
            lambda: str(self.view()),
        )

    def wait_error(self, code: str) -> Any:
        """Wait until the subscription has an error of that code, and return it."""

        def error() -> Any:
            return self.view()["error"]

        wait_until(code, lambda: (error() or {}).get("code") == code, lambda: str(self.view()))
        return error()

    def drop(self) -> None:
        self.service.call("DELETE", f"/subscriptions/{self.name}")


@pytest.fixture
def numbers(
    service: Service, source_cluster: Cluster, fresh_cluster: ClusterFactory, major: int
) -> Iterator[Numbers]:
    """Between a database of the source and one of a fresh server."""
    there = fresh_cluster(major, fsync=True).create_database("target")
    name = f"numbers_{there.cluster.port}"
    made = Numbers(service, source_cluster.create_database(name), there, name)
    yield made
    for subscription in service.call("GET", "/subscriptions")["subscriptions"]:
        service.call("DELETE", f"/subscriptions/{subscription['name']}")
    source_cluster.drop_database(name)


@pytest.mark.long
@pytest.mark.parametrize("major", [14, 18])
def test_it_was_restored_from_a_base_backup(numbers: Numbers, tmp_path: Path) -> None:
    numbers.create()
    numbers.write(1, 3)
    numbers.wait_there(3)
    back_up_whole(numbers.target, tmp_path / "backup")
    numbers.write(4, 6)
    numbers.wait_there(6)
    numbers.wait_confirmed()
    restore(numbers.target.cluster, tmp_path / "backup")
    numbers.write(7, 9)
    numbers.wait_there(9)
    numbers.wait_confirmed()


@pytest.mark.long
@pytest.mark.parametrize("major", [14, 18])
def test_a_standby_took_over_that_lacked_commits(numbers: Numbers) -> None:
    numbers.create()
    with Standby(numbers.target) as standby:
        numbers.write(1, 3)
        numbers.wait_there(3)
        numbers.wait_confirmed()
        standby.wait_streams()
        standby.stop()
        numbers.write(4, 6)
        numbers.wait_there(6)
        numbers.wait_confirmed()
        numbers.target.cluster.stop("immediate")
        standby.start()
        standby.promote()
        numbers.target = Database(standby, "target")
        assert numbers.there() == [1, 2, 3]
        target = {"kind": "postgres", "dsn": numbers.target.dsn}
        numbers.service.call("PATCH", f"/subscriptions/{numbers.name}", json={"target": target})
        numbers.write(7, 9)
        numbers.wait_there(9)
        numbers.drop()


@pytest.mark.long
@pytest.mark.parametrize("major", [14, 18])
def test_it_lost_its_origins(numbers: Numbers) -> None:
    """As pg_upgrade leaves a target before 17: with the position, without replication origins."""
    numbers.create()
    numbers.write(1, 3)
    numbers.wait_there(3)
    numbers.service.call("POST", f"/subscriptions/{numbers.name}/disable")
    numbers.target.execute("SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin")
    numbers.service.call("POST", f"/subscriptions/{numbers.name}/enable")
    numbers.write(4, 6)
    numbers.wait_there(6)
    origin = "SELECT roname FROM pg_replication_origin WHERE roname NOT LIKE '%copy%'"
    assert numbers.target.query(origin) == numbers.target.query(
        "SELECT origin FROM spillway.progress"
    )


@pytest.mark.long
@pytest.mark.parametrize("major", [16, 18])
@pytest.mark.parametrize(
    "schema",
    ["with", pytest.param("without", marks=pytest.mark.follows_hint("target_behind_slot"))],
)
def test_it_was_restored_from_a_dump(
    numbers: Numbers, fresh_cluster: ClusterFactory, major: int, schema: str
) -> None:
    """Into another server. With the schema spillway it is gone on with from where the dump is;
    without it nobody knows where that is.
    """
    numbers.create()
    numbers.write(1, 3)
    numbers.wait_there(3)
    without = [] if schema == "with" else ["--exclude-schema=spillway"]
    dumped = subprocess.run(
        [client("pg_dump", major), *without, numbers.target.dsn],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    numbers.write(4, 6)
    numbers.wait_there(6)
    numbers.wait_confirmed()
    restored = fresh_cluster(major).create_database("restored")
    subprocess.run(
        [client("psql"), "-q", "-v", "ON_ERROR_STOP=1", "-d", restored.dsn],
        check=True,
        input=dumped,
        text=True,
    )
    numbers.target = restored
    assert numbers.there() == [1, 2, 3]
    target = {"kind": "postgres", "dsn": restored.dsn}
    numbers.service.call("PATCH", f"/subscriptions/{numbers.name}", json={"target": target})
    numbers.write(7, 9)
    if schema == "without":
        hint = remedy(numbers.wait_error("target_behind_slot"), "target_behind_slot")
        assert numbers.there() == [1, 2, 3]
        assert "(TRUNCATE): they are copied again" in hint
        restored.execute("TRUNCATE t")
    numbers.wait_there(9)
    numbers.wait_confirmed()


@pytest.mark.long
@pytest.mark.follows_hint("target_behind_slot")
@pytest.mark.parametrize("major", [18])
def test_what_lies_between_is_gone(numbers: Numbers) -> None:
    """The service keeps nothing from so long ago; the tables are copied anew, as the hint says."""
    numbers.create()
    numbers.write(1, 3)
    numbers.wait_there(3)
    numbers.service.call("POST", f"/subscriptions/{numbers.name}/disable")
    # As of a backup from before the service was there.
    numbers.target.execute("UPDATE spillway.progress SET remote_lsn = '0/10'")
    numbers.target.execute("DELETE FROM t WHERE id > 1")
    numbers.service.call("POST", f"/subscriptions/{numbers.name}/enable")
    hint = remedy(numbers.wait_error("target_behind_slot"), "target_behind_slot")
    assert numbers.there() == [1]
    assert "drop the subscription, empty its tables on the target, and create it again" in hint
    numbers.drop()
    numbers.target.execute("TRUNCATE t")
    numbers.create_again()
    numbers.write(4, 6)
    numbers.wait_there(6)


@pytest.mark.long
@pytest.mark.parametrize("major", [14, 18])
@pytest.mark.parametrize("state", ["d", "f"])
def test_it_was_restored_to_the_midst_of_a_copy(
    numbers: Numbers, tmp_path: Path, state: str
) -> None:
    """Of a table that is copied, or that is to catch up with the stream: its place may be before
    the position.
    """
    numbers.create()
    numbers.write(1, 3)
    numbers.wait_there(3)
    source, target = numbers.source, numbers.target
    for database in (source, target):
        database.execute("CREATE TABLE u (id int); ALTER TABLE u REPLICA IDENTITY FULL")
    # Copied rows wait for the first lock, what came since for the second.
    target.execute(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN"
        " PERFORM pg_advisory_xact_lock_shared(CASE WHEN NEW.id <= 2 THEN 1 ELSE 2 END);"
        " RETURN NEW; END$$;"
        "CREATE TRIGGER wait BEFORE INSERT ON u FOR EACH ROW EXECUTE FUNCTION wait();"
        "ALTER TABLE u ENABLE ALWAYS TRIGGER wait"
    )
    source.execute("INSERT INTO u VALUES (1), (2)")

    def rows() -> list[tuple[int]]:
        return target.query("SELECT id FROM u ORDER BY 1")  # type: ignore[return-value]

    def state_of_u() -> Any:
        return target.query("SELECT state::text FROM spillway.tables WHERE table_name = 'u'")

    def wait_state(wanted: str) -> None:
        wait_until(
            f"u is {wanted}", lambda: state_of_u() == [(wanted,)], lambda: str(numbers.view())
        )

    with target.connect() as holder:
        holder.execute("SELECT pg_advisory_lock(1), pg_advisory_lock(2)")
        numbers.service.call("POST", f"/subscriptions/{numbers.name}/refresh")
        wait_state("d")
        source.execute("INSERT INTO u VALUES (3)")
        numbers.write(4, 5)
        numbers.wait_there(5)
        if state == "f":
            holder.execute("SELECT pg_advisory_unlock(1)")
            wait_state("f")
            source.execute("INSERT INTO u VALUES (4)")
        back_up_whole(target, tmp_path / "backup")
    wait_state("r")
    numbers.write(6, 7)
    numbers.wait_there(7)
    numbers.wait_confirmed()
    written = rows()
    restore(target.cluster, tmp_path / "backup")
    assert state_of_u() == [(state,)]
    numbers.write(8, 9)
    numbers.wait_there(9)
    wait_state("r")
    assert rows() == written == [(n,) for n in range(1, 4 if state == "d" else 5)]
    numbers.wait_confirmed()


@pytest.mark.long
@pytest.mark.parametrize("major", [14, 18])
@pytest.mark.parametrize(
    ("way", "code"),
    [
        pytest.param(
            "set back", "timeline_diverged", marks=pytest.mark.follows_hint("timeline_diverged")
        ),
        pytest.param(
            "promoted", "timeline_diverged", marks=pytest.mark.follows_hint("timeline_diverged")
        ),
        pytest.param(
            "upgraded", "system_id_mismatch", marks=pytest.mark.follows_hint("system_id_mismatch")
        ),
    ],
)
def test_the_source_is_another(
    service: Service,
    fresh_cluster: ClusterFactory,
    tmp_path: Path,
    major: int,
    way: str,
    code: str,
) -> None:
    cluster = fresh_cluster(major, fsync=True)
    source, target = (
        cluster.create_database("source"),
        fresh_cluster(18).create_database("target"),
    )
    name = f"of_{cluster.port}"
    service.create_source(cluster.dsn(), name=name)
    numbers = Numbers(service, source, target, name, name)
    numbers.create()
    numbers.write(1, 3)
    numbers.wait_there(3)
    with ExitStack() as stack:
        standby = None
        if way == "set back":
            back_up_whole(source, tmp_path / "backup")
        elif way == "promoted":
            standby = stack.enter_context(Standby(source))
            standby.wait_streams()
            standby.stop()
        numbers.write(4, 6)
        numbers.wait_there(6)
        if way == "set back":
            restore(cluster, tmp_path / "backup")
        else:
            cluster.stop("immediate")
            other = standby or stack.enter_context(Cluster(major))
            other.stop()
            other.port = cluster.port
            other.start()
            numbers.source = Database(other, "source")
            if standby is None:
                other.create_database("source")
                numbers.source.execute(f"{_TABLES}; INSERT INTO t SELECT generate_series(1, 3)")
                numbers.source.execute("CREATE PUBLICATION p FOR ALL TABLES")
            else:
                standby.promote()

        def view() -> Any:
            return service.call("GET", f"/sources/{name}")

        wait_until(code, lambda: view()["error_code"] == code, lambda: str(view()))
        assert view()["state"] == "failed"
        hint = remedy(view(), code)
        # What was decoded of the other one is not taken back, and nothing of this one is there.
        numbers.source.execute("INSERT INTO t VALUES (4)")
        assert numbers.there() == [1, 2, 3, 4, 5, 6]
        for said in ("drop its subscriptions and slots", "empty", "create it again"):
            assert said in hint, hint
        numbers.drop()
        service.call("DELETE", f"/sources/{name}")
        target.execute("TRUNCATE t")
        service.create_source(numbers.source.cluster.dsn(), name=name)
        numbers.create_again()
        numbers.wait_there(4)
        numbers.write(5, 7)
        numbers.wait_there(7)
        numbers.drop()
        service.call("DELETE", f"/sources/{name}")
