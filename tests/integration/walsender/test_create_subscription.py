"""CREATE SUBSCRIPTION on real servers, from sources of each major, through the service's port: what
a subscriber has in the end equals what the publisher has.

One service has all the sources; it and the servers are killed by tests, and started again. With
``[primary-…]`` the subscription connects to the publisher itself: what holds there must hold here.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from harness.pg_port import PASSWORD
from harness.postgresql_subscription import (
    LIMIT_S,
    TABLES,
    Load,
    Publication,
    Subscription,
    publisher_cluster,
    subscriber_cluster,
    wait_until,
    write_with_an_origin,
)
from harness.serve_process import ServeProcess
from harness.tiers import deep
from spillway.demo.private_postgres import free_port
from spillway.errors import PrivatePostgresError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from harness.cluster import Cluster, Database
    from harness.service import Service

#: Source and subscriber.
PAIRS = [(18, 18), (14, 14), (14, 15), (14, 16), (14, 17), (14, 18), (18, 14)]
#: Numbered tables, where the copy of many is not what is tried.
FEW = 4
EVERYTHING = {"binary": "on", "streaming": "parallel", "two_phase": "on", "origin": "none"}


def pairs(*first_tier: tuple[int, int]) -> list[Any]:
    """Give every pair as a parameter, of which these are in the first tier."""
    return [pair if pair in first_tier else deep(pair) for pair in PAIRS]


def named(pair: object) -> str | None:
    return "{}-{}".format(*pair) if isinstance(pair, tuple) else None


class Stage:
    """The module's servers, and its service, each started when it is needed first."""

    def __init__(self, directory: Any) -> None:
        self._directory = directory
        self._clusters: dict[tuple[str, int], Cluster] = {}
        self._serve: ServeProcess | None = None
        self._port = free_port()
        self._names = 0

    @property
    def serve(self) -> ServeProcess:
        if self._serve is None:
            environment = {
                "SPILLWAY_PG_PORT": str(self._port),
                "SPILLWAY_STREAM_BYTES": "64kB",
            }
            self._serve = ServeProcess(self._directory / "data", environment=environment)
            body = {"name": "alice", "password": PASSWORD, "databases": ["*"]}
            self.service.call(
                "POST", "/users", json={**body, "manage_slots": True, "run_sql": True}
            )
        return self._serve

    @property
    def service(self) -> Service:
        return self.serve.service()

    def cluster(self, role: str, major: int) -> Cluster:
        make = {"publisher": publisher_cluster, "subscriber": subscriber_cluster}[role]
        cluster = self._clusters.setdefault((role, major), make(major))
        cluster.start()
        return cluster

    def conninfo(self, database: Database) -> str:
        """Where a subscription to *database* connects: it has become a source's."""
        name = f"pg{database.cluster.major}"
        sources = self.service.call("GET", "/sources")["sources"]
        if name not in [source["name"] for source in sources]:
            self.service.create_source(database.cluster.dsn(), name)
        return (
            f"host=127.0.0.1 port={self._port} user=alice password='{PASSWORD}'"
            f" dbname={name}/{database.name}"
        )

    def slots(self, database: Database) -> list[str]:
        """The service's slots on *database*."""
        slots = self.service.call("GET", "/slots")["slots"]
        return [slot["slot_name"] for slot in slots if slot["database"] == database.name]

    @contextmanager
    def pair(
        self,
        publisher: int,
        subscriber: int,
        options: Mapping[str, str] = EVERYTHING,
        *,
        tables: int = TABLES,
        on_primary: bool = False,
    ) -> Iterator[Subscription]:
        """Give a subscription that is not created yet, on a database of its own on either side."""
        self._names += 1
        name = f"s{self._names}"
        theirs = self.cluster("publisher", publisher).create_database(name)
        ours = self.cluster("subscriber", subscriber).create_database(name)
        publication = Publication(theirs, subscriber, tables)
        publication.fill()
        conninfo = theirs.dsn if on_primary else self.conninfo(theirs)
        subscription = Subscription(name, ours, publication, conninfo, options)
        subscription.make_tables()
        try:
            yield subscription
        finally:
            for database in (theirs, ours):
                database.cluster.start()
            for (left,) in ours.query(
                "SELECT subname FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid"
                " WHERE datname = current_database()"
            ):
                for statement in ("DISABLE", "SET (slot_name = NONE)"):
                    ours.execute(f'ALTER SUBSCRIPTION "{left}" {statement}')
                ours.execute(f'DROP SUBSCRIPTION "{left}"')
            if not on_primary:
                for slot in self.slots(theirs):
                    self.service.drop_slot(slot)
            theirs.cluster.drop_database(name)
            ours.cluster.drop_database(name)

    def end(self) -> None:
        if self._serve is not None:
            self._serve.stop()
        for cluster in self._clusters.values():
            cluster.destroy()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("stage"))
    yield stage
    stage.end()


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("workers", [2, 8])
def test_five_hundred_tables(stage: Stage, workers: int) -> None:
    """Under load, with as many workers at once as is the default, and with more."""
    options = EVERYTHING | {"two_phase": "off"}
    with stage.pair(18, 18, options, tables=500) as subscription:
        cluster = subscription.database.cluster
        setting = "max_sync_workers_per_subscription"
        cluster.execute(f"ALTER SYSTEM SET {setting} = {workers}")
        cluster.execute("SELECT pg_reload_conf()")
        log_bytes = cluster.log_file.stat().st_size
        try:
            begun = time.monotonic()
            with Load(subscription.publication, 7) as load:
                subscription.create()
                # Each has its time.
                for tables in (125, 250, 375):
                    subscription.wait_ready(tables)
                subscription.wait_ready()
                seconds = time.monotonic() - begun
                print(f"{workers} workers: {seconds:.1f} s, {load.commits} transactions meanwhile")
            subscription.wait_caught_up()
            subscription.check_equal()
            assert stage.slots(subscription.publication.database) == [subscription.name]
            subscription.drop()
            assert subscription.errors(log_bytes) == []
        finally:
            cluster.execute(f"ALTER SYSTEM RESET {setting}")
            cluster.execute("SELECT pg_reload_conf()")


@pytest.mark.long
@pytest.mark.parametrize("pair", PAIRS, ids=named)
def test_moved_from_the_primary(stage: Stage, pair: tuple[int, int]) -> None:
    """A subscription that runs already changes where it connects, and nothing is lost or twice."""
    with stage.pair(*pair, tables=FEW) as subscription:
        theirs = subscription.publication.database
        through_service = subscription.conninfo
        subscription.conninfo = theirs.dsn
        with Load(subscription.publication, 1) as load:
            subscription.create()
            subscription.wait_ready()
            # Before the subscription is past it.
            stage.service.create_slot(
                f"{subscription.name}_moved",
                theirs.name,
                "pgoutput",
                source=f"pg{pair[0]}",
                two_phase="two_phase" in subscription.options,
            )
            subscription.wait_caught_up()
            subscription.stop()
            subscription.connect_to(through_service)
            subscription.alter(f"SET (slot_name = {subscription.name}_moved)")
            subscription.alter("ENABLE")
            load.goes_on()
        subscription.wait_caught_up()
        subscription.check_equal()
        subscription.drop()
        assert stage.slots(theirs) == []


@pytest.mark.parametrize("on_primary", [False, deep(True)], ids=["service", "primary"])
@pytest.mark.parametrize("pair", pairs((18, 18)), ids=named)
def test_from_creation_to_drop(stage: Stage, pair: tuple[int, int], *, on_primary: bool) -> None:
    """Under load: the copy of fifty tables, all that a subscription can be told, and its end."""
    # With two_phase, REFRESH copies nothing.
    options = EVERYTHING | {"two_phase": "off"}
    with stage.pair(*pair, options, on_primary=on_primary) as subscription:
        publication = subscription.publication
        theirs, ours = publication.database, subscription.database
        log_bytes = ours.cluster.log_file.stat().st_size
        with Load(subscription.publication, 2) as load:
            load.goes_on()
            subscription.create()
            subscription.wait_ready()
            load.goes_on()
            publication.add("later", ours)
            publication.remove("t07")
            subscription.alter("REFRESH PUBLICATION")
            subscription.wait_ready()
            subscription.stop()
            if pair == (18, 18):
                subscription.alter("SET (two_phase = on)")
            load.goes_on()
            subscription.alter("ENABLE")
        if pair == (18, 18):
            check_prepared(subscription)
        write_with_an_origin(theirs, 1)
        subscription.wait_caught_up()
        only_local = "origin" in subscription.options and pair[0] >= 16
        subscription.check_equal(elsewhere="is_local" if only_local else "true")
        if not on_primary:
            assert stage.slots(theirs) == [subscription.name]
            # The publisher has no slot for it.
            assert slots_of(theirs) == []
        subscription.drop()
        assert stage.slots(theirs) == slots_of(theirs) == []
        assert subscription.errors(log_bytes) == []


def slots_of(database: Database) -> list[str]:
    """The server's own slots on *database*."""
    found = database.query(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    )
    return [name for (name,) in found]


def check_prepared(subscription: Subscription) -> None:
    """A prepared transaction is prepared at the subscriber too, and ends there as here."""
    theirs, ours = subscription.publication.database, subscription.database
    for end in ("COMMIT", "ROLLBACK"):
        with theirs.connect() as connection:
            connection.execute("BEGIN")
            connection.execute("INSERT INTO prepared VALUES (-%s, 'seen')", [len(end)])
            connection.execute("PREPARE TRANSACTION 'seen'")
            wait_until("it is prepared", lambda: prepared(ours) == 1)
            connection.execute(f"{end} PREPARED 'seen'")
            wait_until("it has ended", lambda: prepared(ours) == 0)


def prepared(database: Database) -> int:
    return int(
        database.value("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()")
    )


OPTIONS = [
    {"copy_data": "off", "streaming": "off", "binary": "off"},
    {"streaming": "off", "binary": "on"},
    {"streaming": "on", "binary": "off", "origin": "any"},
    {"streaming": "parallel", "two_phase": "on"},
    {"streaming": "on", "two_phase": "on", "copy_data": "off", "binary": "on"},
]


@pytest.mark.long
@pytest.mark.parametrize("pair", list(itertools.product(range(14, 19), repeat=2)), ids=named)
@pytest.mark.parametrize(
    "options", OPTIONS, ids=[" ".join(f"{k}={v}" for k, v in one.items()) for one in OPTIONS]
)
def test_options(stage: Stage, pair: tuple[int, int], options: dict[str, str]) -> None:
    """Every major's subscriber with every major's source."""
    if pair[0] == 14 and options.get("copy_data") == "off":
        # A subscriber asks for TWO_PHASE as the slot is made, which 14's grammar has not.
        options = {name: value for name, value in options.items() if name != "two_phase"}
    with stage.pair(*pair, options, tables=FEW) as subscription:
        theirs = subscription.publication.database
        copied = options.get("copy_data") != "off"
        if not copied:
            for table in subscription.publication.compared:
                theirs.execute(f"TRUNCATE {table}")
        log_bytes = subscription.database.cluster.log_file.stat().st_size
        with contextlib.ExitStack() as stack:
            if copied:
                load = stack.enter_context(Load(subscription.publication, 3))
                load.goes_on()
                subscription.create()
            else:
                subscription.create()
                load = stack.enter_context(Load(subscription.publication, 3))
            load.goes_on()
            subscription.wait_ready()
            load.goes_on(100)
        if "two_phase" in subscription.options and pair[0] >= 15:
            wait_until("two_phase is on", lambda: two_phase_state(subscription) == "e")
            subscription.wait_caught_up()
            check_prepared(subscription)
        write_with_an_origin(theirs, 1)
        subscription.wait_caught_up()
        subscription.check_equal()
        subscription.drop()
        assert stage.slots(theirs) == []
        assert subscription.errors(log_bytes) == []


def two_phase_state(subscription: Subscription) -> str:
    """d (disabled), p (pending) or e (enabled)."""
    return str(
        subscription.database.value(
            "SELECT subtwophasestate::text FROM pg_subscription WHERE subname = %s",
            [subscription.name],
        )
    )


def kill_service(stage: Stage, _: Subscription) -> None:
    stage.serve.kill()
    stage.serve.start()


def kill_publisher(_: Stage, subscription: Subscription) -> None:
    kill_server(subscription.publication.database.cluster)


def kill_subscriber(_: Stage, subscription: Subscription) -> None:
    kill_server(subscription.database.cluster)


def kill_server(cluster: Cluster) -> None:
    """End it, and have it again once the last of its processes has let go of the shared memory."""
    cluster.kill()
    wait_until("the server is up again", lambda: is_started(cluster), cluster.log_tail)


def is_started(cluster: Cluster) -> bool:
    try:
        cluster.start()
    except PrivatePostgresError:
        return False
    return True


KILLS = {"service": kill_service, "publisher": kill_publisher, "subscriber": kill_subscriber}


@pytest.mark.long
@pytest.mark.parametrize(
    ("pair", "who", "seed"),
    [
        *((pair, [*KILLS], 2) for pair in PAIRS),
        *(((18, 18), [one] * 4, 4) for one in KILLS),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else named(value),
)
def test_killed(stage: Stage, pair: tuple[int, int], who: list[str], seed: int) -> None:
    """kill -9 while fifty tables are copied, and while changes stream."""
    rng = random.Random(seed)
    with stage.pair(*pair) as subscription:
        theirs = subscription.publication.database
        with Load(subscription.publication, seed) as load:
            subscription.create()
            for name in who:
                subscription.wait_ready(rng.randrange(55))
                KILLS[name](stage, subscription)
            subscription.wait_ready()
            for name in who if len(who) > 1 else ():
                load.goes_on(rng.randrange(40))
                KILLS[name](stage, subscription)
            load.goes_on()
        subscription.wait_caught_up()
        subscription.check_equal()
        subscription.drop()
        assert stage.slots(theirs) == []


HELD = """
CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NEW; END';
CREATE TRIGGER held BEFORE INSERT ON t00 FOR EACH ROW EXECUTE FUNCTION held();
ALTER TABLE t00 ENABLE ALWAYS TRIGGER held"""


@pytest.mark.long
def test_while_a_table_is_copied(stage: Stage) -> None:
    """The service is killed, the table leaves the publication, the subscription is dropped: what
    was begun is done again, or gone with its slot.
    """
    with stage.pair(18, 18, EVERYTHING | {"two_phase": "off"}, tables=FEW) as subscription:
        publication, ours = subscription.publication, subscription.database
        theirs = publication.database
        ours.execute(HELD)
        with ours.connect() as holder:
            holder.execute("SELECT pg_advisory_lock(7)")
            subscription.create()
            wait_until("t00 is being copied", lambda: is_held(ours))
            assert len(stage.slots(theirs)) >= 2
            kill_service(stage, subscription)
            holder.execute("SELECT pg_advisory_unlock(7)")
            subscription.wait_ready()
            subscription.wait_caught_up()
            subscription.check_equal()
            assert stage.slots(theirs) == [subscription.name]
            holder.execute("SELECT pg_advisory_lock(7)")
            for end in (lambda: leave(subscription), subscription.drop):
                leave(subscription)
                ours.execute("TRUNCATE t00")
                theirs.execute("ALTER PUBLICATION whole ADD TABLE t00")
                subscription.alter("REFRESH PUBLICATION")
                wait_until("t00 is being copied", lambda: is_held(ours))
                assert len(stage.slots(theirs)) == 2
                end()
                assert len(stage.slots(theirs)) == (0 if end == subscription.drop else 1)


@pytest.mark.long
def test_killed_before_a_drop_is_answered(stage: Stage) -> None:
    """A worker that has copied a table drops its slot in the transaction that says so. The service
    dies when the slot is gone and the worker was not told: it comes again for it.
    """
    serve = stage.serve
    with stage.pair(18, 18, EVERYTHING | {"two_phase": "off"}, tables=FEW) as subscription:
        publication = subscription.publication
        with Load(publication, 6) as load:
            serve.kill()
            serve.start("service.slot_dropped=kill")
            subscription.create()
            assert serve.process is not None
            serve.process.wait(LIMIT_S)
            load.goes_on()
            serve.start()
            subscription.wait_ready()
        subscription.wait_caught_up()
        subscription.check_equal()
        assert stage.slots(publication.database) == [subscription.name]
        subscription.drop()


@pytest.mark.long
def test_a_slot_that_can_not_be_made_anew(stage: Stage) -> None:
    """The table is copied again, as the error's hint says."""
    serve = stage.serve
    with stage.pair(18, 18, EVERYTHING | {"two_phase": "off"}, tables=FEW) as subscription:
        publication, ours = subscription.publication, subscription.database
        theirs = publication.database
        serve.kill()
        serve.start("service.slot_dropped=kill")
        subscription.create()
        assert serve.process is not None
        serve.process.wait(LIMIT_S)
        subscription.stop()
        serve.start()
        stage.service.call("PATCH", "/users/alice", json={"manage_slots": False})
        log_bytes = ours.cluster.log_file.stat().st_size
        subscription.alter("ENABLE")
        gone = re.compile(r'replication slot "pg_\d+_sync_(\d+)_\d+" does not exist')
        wait_until(
            "the worker finds no slot",
            lambda: any(map(gone.search, subscription.errors(log_bytes))),
        )
        (number,) = {m[1] for m in map(gone.search, subscription.errors(log_bytes)) if m}
        table = str(ours.value(f"SELECT {number}::regclass::text"))
        name = theirs.value(
            "SELECT pubname FROM pg_publication_tables WHERE tablename = %s", [table]
        )
        theirs.execute(f'ALTER PUBLICATION "{name}" DROP TABLE {table}')
        subscription.alter("REFRESH PUBLICATION")
        ours.execute(f"TRUNCATE {table}")
        stage.service.call("PATCH", "/users/alice", json={"manage_slots": True})
        theirs.execute(f'ALTER PUBLICATION "{name}" ADD TABLE {publication.chosen(table)}')
        subscription.alter("REFRESH PUBLICATION")
        subscription.wait_ready()
        subscription.wait_caught_up()
        subscription.check_equal()
        subscription.drop()
        assert stage.slots(theirs) == []


def is_held(database: Database) -> bool:
    return bool(database.query("SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))


def leave(subscription: Subscription) -> None:
    """Take t00 out of the publication, and out of the subscription, if it is there."""
    theirs = subscription.publication.database
    if theirs.query("SELECT FROM pg_publication_tables WHERE tablename = 't00'"):
        theirs.execute("ALTER PUBLICATION whole DROP TABLE t00")
    subscription.alter("REFRESH PUBLICATION")


@pytest.mark.long
def test_while_the_source_is_down(stage: Stage) -> None:
    """A subscriber that comes back gets what the service has; one that is new is told."""
    with stage.pair(18, 18, tables=FEW) as subscription:
        publication, ours = subscription.publication, subscription.database
        theirs = publication.database
        subscription.create()
        subscription.wait_ready()
        subscription.wait_caught_up()
        subscription.stop()
        with Load(publication, 5) as load:
            load.goes_on(50)
        theirs.execute("INSERT INTO marker VALUES (-1)")
        stage.service.wait_decoded(subscription.name, theirs)
        theirs.cluster.stop()
        try:
            subscription.alter("ENABLE")
            wait_until(
                "it has caught up with the service",
                lambda: bool(ours.query("SELECT FROM marker WHERE n = -1")),
                lambda: ours.cluster.log_tail(60),
            )
            with pytest.raises(psycopg.Error, match="could not connect to the source"):
                Subscription("new", ours, publication, subscription.conninfo).create()
        finally:
            theirs.cluster.start()
        subscription.wait_caught_up()
        subscription.check_equal()
        subscription.drop()


def test_two_on_one_slot(stage: Stage) -> None:
    """The second one is told that the slot is active, and has it when the first one has gone."""
    with stage.pair(18, 18, tables=FEW) as subscription:
        publication, ours = subscription.publication, subscription.database
        subscription.create(two_phase="off")
        subscription.wait_ready()
        second = ours.cluster.create_database(f"{subscription.name}_second")
        try:
            other = Subscription("second", second, publication, subscription.conninfo)
            other.make_tables()
            log_bytes = ours.cluster.log_file.stat().st_size
            other.create(
                create_slot="off", copy_data="off", slot_name=subscription.name, streaming="off"
            )
            wait_until(
                "the second one is refused",
                lambda: any("is active for PID" in line for line in other.errors(log_bytes)),
            )
            subscription.wait_caught_up()
            subscription.stop()
            subscription.alter("SET (slot_name = NONE)")
            other.markers = subscription.markers
            other.wait_caught_up()
            other.drop()
            assert stage.slots(publication.database) == []
        finally:
            ours.cluster.drop_database(second.name)


def test_a_publication_that_comes_later(stage: Stage) -> None:
    """The stream of 18 goes on without it, and with it once it is there."""
    with stage.pair(18, 18, tables=FEW) as subscription:
        publication, ours = subscription.publication, subscription.database
        theirs = publication.database
        subscription.create(two_phase="off")
        subscription.wait_ready()
        for database in (theirs, ours):
            database.execute("CREATE TABLE late (id int PRIMARY KEY)")
        names = ", ".join(f'"{name}"' for name in (*publication.names, "late"))
        subscription.alter(f"SET PUBLICATION {names} WITH (refresh = false)")
        subscription.wait_caught_up()
        theirs.execute("INSERT INTO late VALUES (1)")
        subscription.wait_caught_up()
        assert ours.query("SELECT FROM late") == []
        theirs.execute("CREATE PUBLICATION late FOR TABLE late")
        subscription.alter("REFRESH PUBLICATION")
        publication.compared["late"] = ("*", "true")
        subscription.wait_ready()
        theirs.execute("INSERT INTO late VALUES (2)")
        subscription.wait_caught_up()
        subscription.check_equal()
        subscription.drop()


@pytest.mark.parametrize("pair", [(18, 18), deep((17, 17))], ids=named)
def test_failover_is_switched(stage: Stage, pair: tuple[int, int]) -> None:
    """ALTER SUBSCRIPTION sends ALTER_REPLICATION_SLOT, which changes the service's slot alone."""
    with stage.pair(*pair, {}, tables=FEW) as subscription:
        theirs = subscription.publication.database
        subscription.create()
        subscription.wait_ready()
        assert not stage.service.slot(subscription.name)["failover"]
        for failover in (True, False):
            # PostgreSQL asks for that.
            subscription.stop()
            subscription.alter(f"SET (failover = {failover})")
            assert stage.service.slot(subscription.name)["failover"] == failover
            shown = subscription.database.value(
                "SELECT subfailover FROM pg_subscription WHERE subname = %s", [subscription.name]
            )
            assert shown == failover
            subscription.alter("ENABLE")
            theirs.execute(f"INSERT INTO prepared VALUES ({-8 - failover}, 'with it')")
            subscription.wait_caught_up()
        subscription.check_equal()
        assert slots_of(theirs) == []
        subscription.drop()


def test_an_owner_who_is_no_superuser(stage: Stage) -> None:
    """The server insists on a password that is asked for, and SCRAM asks."""
    with stage.pair(18, 18, tables=FEW) as subscription:
        ours = subscription.database
        owner = f"{subscription.name}_owner"
        ours.execute(f"CREATE ROLE {owner} LOGIN")
        try:
            ours.execute(f"GRANT pg_create_subscription TO {owner}")
            ours.execute(f"GRANT CREATE ON DATABASE {ours.name} TO {owner}")
            ours.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {owner}")
            subscription.create(enabled="off", two_phase="off", run_as_owner="on")
            ours.execute(f"ALTER SUBSCRIPTION {subscription.name} OWNER TO {owner}")
            subscription.alter("ENABLE")
            subscription.wait_ready()
            subscription.wait_caught_up()
            subscription.check_equal()
            subscription.drop()
        finally:
            ours.execute(f"DROP OWNED BY {owner}")
            ours.execute(f"DROP ROLE {owner}")
