"""Subscriptions of kind ``postgres`` end to end: created by REST, rows arrive, and when they are
dropped nothing of them is left. Whoever is killed, nothing is lost and nothing is there twice; two
databases that subscribe to each other don't loop.
"""

from __future__ import annotations

import html
import json
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from harness.applied_subscription import AppliedSubscription
from harness.cluster import Cluster
from harness.postgresql_subscription import Load, Publication, wait_until
from harness.remedies import command, remedy
from harness.serve_process import ServeProcess
from harness.tiers import deep
from spillway.cli import cut_over
from spillway.cli.program import app
from spillway.errors import NotReady
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import Database
    from harness.service import Service


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    process = ServeProcess(tmp_path_factory.mktemp("apply") / "data")
    yield process
    process.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A server that is source and target: in different databases."""
    with Cluster(18) as cluster:
        yield cluster


@pytest.fixture
def two(
    cluster: Cluster, serve: ServeProcess, request: pytest.FixtureRequest
) -> Iterator[tuple[Database, Database]]:
    """Two databases of it, which the service may decode."""
    names = [f"{request.function.__name__[5:30]}_{which}" for which in ("one", "other")]
    one, other = (cluster.create_database(name) for name in names)
    if not serve.service().call("GET", "/sources")["sources"]:
        serve.service().create_source(cluster.dsn("postgres"))
    yield one, other
    service = serve.service()
    for subscription in service.call("GET", "/subscriptions")["subscriptions"]:
        service.call("DELETE", f"/subscriptions/{subscription['name']}")
    for name in names:
        cluster.drop_database(name)


def _left_on(database: Database) -> list[str]:
    """What of a subscription is on a target."""
    found = database.query(
        "SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname = 'spillway' UNION ALL"
        " SELECT 'origin ' || roname FROM pg_replication_origin WHERE roname LIKE 'spillway%'"
        " UNION ALL SELECT 'prepared ' || gid FROM pg_prepared_xacts UNION ALL"
        " SELECT 'session ' || application_name FROM pg_stat_activity"
        " WHERE application_name LIKE 'spillway subscription%'"
    )
    return [what for (what,) in found]


def test_rows_arrive_and_nothing_is_left(
    serve: ServeProcess, two: tuple[Database, Database]
) -> None:
    source, target = two
    service = serve.service()
    publication = Publication(source, 18, 4)
    publication.fill()
    subscription = AppliedSubscription(
        "filled",
        target,
        publication,
        f"{target.dsn} password=s3cret",
        service=service,
        gives_up_after=None,
    )
    subscription.make_tables()
    subscription.create()
    with Load(publication, 1) as load:
        load.goes_on(50)
        _kill_program(subscription)
        load.goes_on(50)
    subscription.wait_ready()
    subscription.wait_caught_up()
    subscription.check_equal()

    wait_until("it streams", lambda: subscription.view()["state"] == "streaming")
    # Counts are told now and then, so after what they count.
    wait_until("rows are counted", lambda: subscription.view()["rows"] > 0)
    view = subscription.view()
    assert "password=****" in view["target"]["dsn"]
    assert "s3cret" not in str(view)
    assert {table["state"] for table in view["table_states"]} == {"ready"}
    stats = view["stats"]
    assert all(stats[of] for of in ("applied_lsn", "latest_end_lsn", "last_msg_receipt_time"))
    assert service.http.get("/ui/subscriptions/filled").status_code == 200
    # As it was shown: the password stays.
    service.call("PATCH", "/subscriptions/filled", json={"target": view["target"]})
    subscription.wait_caught_up()

    subscription.drop()
    assert _left_on(target) == []
    assert service.call("GET", "/subscriptions")["subscriptions"] == []
    assert service.call("GET", "/slots")["slots"] == []
    slots = source.query("SELECT slot_name FROM pg_replication_slots WHERE slot_type = 'logical'")
    assert slots == []


def test_everything_that_is_missing_is_said_at_once(
    serve: ServeProcess, two: tuple[Database, Database]
) -> None:
    source, target = two
    for table in ("a", "b", "c"):
        source.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, x text)")
    source.execute("CREATE PUBLICATION p FOR ALL TABLES")
    target.execute("CREATE TABLE a (id int PRIMARY KEY)")
    target.execute("CREATE TABLE b (id int PRIMARY KEY, x text)")
    target.execute("CREATE ROLE filler LOGIN")
    try:
        body = {
            "name": "refused",
            "source": "main",
            "database": source.name,
            "publications": ["p"],
            "target": {"kind": "postgres", "dsn": f"{target.dsn} user=filler"},
        }
        problem = serve.service().problem("POST", "/subscriptions", json=body)
        for said in ("schema spillway", "public.b", "public.c", '"x"'):
            assert said in problem["detail"], problem
        assert serve.service().call("GET", "/subscriptions")["subscriptions"] == []
        assert serve.service().call("GET", "/slots")["slots"] == []
        assert _left_on(target) == []

        # Without origins and the triggers' role; what it says is what it needs.
        target.execute("DROP TABLE a")
        target.execute("CREATE TABLE a (id int PRIMARY KEY, x text)")
        target.execute("CREATE TABLE c (id int PRIMARY KEY, x text)")
        target.execute("GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON a, b, c TO filler")
        target.execute(f"GRANT CREATE ON DATABASE {target.name} TO filler")
        source.execute("INSERT INTO a SELECT n, 'before' FROM generate_series(1, 100) n")
        serve.service().call("POST", "/subscriptions", json=body)
        for i in range(20):
            source.execute("INSERT INTO b VALUES (%s, 'after')", [i])
        wait_until(
            "rows are there",
            lambda: target.query(
                "SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM b)"
            ) == [(100, 20)],
            lambda: str(serve.service().call("GET", "/subscriptions/refused")),
        )  # fmt: skip
        origins = target.value(
            "SELECT count(*) FROM pg_replication_origin WHERE roname LIKE 'spillway_refused%'"
        )
        assert origins == 0
        serve.service().call("DELETE", "/subscriptions/refused")
        assert _left_on(target) == []
    finally:
        target.execute("DROP OWNED BY filler")
        target.execute("DROP ROLE filler")


@pytest.mark.long
def test_dropped_while_its_target_is_out_of_reach(
    serve: ServeProcess,
    two: tuple[Database, Database],
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever drops it is told what is left there; the SQL that he is told removes that, and
    nothing of another one that has the name by then.
    """
    source, target = two
    service = serve.service()
    monkeypatch.setenv("SPILLWAY_URL", f"http://127.0.0.1:{service.http_port}")
    for database in two:
        database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.execute("INSERT INTO t VALUES (1, 'v'); CREATE PUBLICATION p FOR TABLE t")
    body: dict[str, Any] = {
        "name": "left", "source": "main", "database": source.name, "publications": ["p"],
        "target": {"kind": "postgres", "dsn": f"{target.dsn} password=s3cret"},
    }  # fmt: skip

    def create() -> None:
        service.call("POST", "/subscriptions", json=body)
        wait_until(
            "it streams", lambda: service.call("GET", "/subscriptions/left")["state"] == "streaming"
        )

    create()
    # As of a first copy that was cut off.
    again = "CREATE INDEX made_again ON public.t (v)"
    target.execute("UPDATE spillway.tables SET dropped_indexes = ARRAY[%s]", [again])
    cluster.execute(f"ALTER DATABASE {target.name} ALLOW_CONNECTIONS false")
    cluster.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
        [target.name],
    )
    dropped = CliRunner().invoke(app, ["subscription", "drop", "left", "--yes"])
    assert dropped.exit_code == 0, dropped.output
    told = dropped.stderr
    assert "left there" in told
    assert "not currently accepting connections" in told
    assert service.call("GET", "/subscriptions")["subscriptions"] == []
    assert service.call("GET", "/slots")["slots"] == []
    # The same is kept, for those who were not there.
    page = html.unescape(service.http.get("/ui/events?subscription=left").text)
    assert told.splitlines()[1] in page
    assert "s3cret" not in told + page

    cluster.execute(f"ALTER DATABASE {target.name} ALLOW_CONNECTIONS true")
    statement = told.partition("in that database: ")[2]
    target.execute(statement)
    assert _left_on(target) == ["schema spillway"]
    assert target.value("SELECT count(*) FROM spillway.progress") == 0
    assert target.value("SELECT count(*) FROM spillway.tables") == 0
    assert target.value("SELECT count(*) FROM pg_indexes WHERE indexname = 'made_again'") == 1
    # A second time is no harm, and the next one of the name is let be.
    body["copy_data"] = False
    create()
    target.execute(statement)
    assert target.value("SELECT count(*) FROM spillway.progress") == 1
    source.execute("INSERT INTO t VALUES (2, 'w')")
    wait_until("it goes on", lambda: target.value("SELECT count(*) FROM t") == 2)

    assert service.call("DELETE", "/subscriptions/left") == {"name": "left", "notes": []}
    assert _left_on(target) == []


def test_dropped_while_a_transaction_is_prepared(
    serve: ServeProcess, two: tuple[Database, Database]
) -> None:
    """It stays prepared, as with PostgreSQL's own, and whoever drops the subscription is told at
    once; neither waits for its locks, nor has another subscription wait.
    """
    source, target = two
    service = serve.service()
    for database in two:
        database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY)"
        )
    names = ("prepared_t", "prepared_u")
    for name in names:
        service.call("POST", "/subscriptions", json={
            "name": name, "source": "main", "database": source.name,
            "tables": [f"public.{name[-1]}"], "two_phase": True,
            "target": {"kind": "postgres", "dsn": target.dsn},
        })  # fmt: skip
    # Before that nothing is prepared there.
    wait_until(
        "the tables are the streams'",
        lambda: target.value("SELECT count(*) FROM spillway.tables WHERE state = 'r'") == 2,
    )

    def prepared(which: str) -> list[str]:
        rows = target.query(
            "SELECT gid FROM pg_prepared_xacts WHERE starts_with(gid, %s)", [f"spillway_{which}_"]
        )
        return [gid for (gid,) in rows]

    def left(which: str) -> list[str]:
        # Where it waits for the locks it gives up, and tells of everything that it kept.
        answer = service.call("DELETE", f"/subscriptions/{which}")
        notes: list[str] = answer["notes"]
        return notes

    source.execute(
        f"BEGIN; INSERT INTO t VALUES (1); INSERT INTO u VALUES (1);"
        f" PREPARE TRANSACTION '{source.name}'"
    )
    for name in names:
        wait_until("it is prepared", lambda n=name: prepared(n) != [])  # type: ignore[misc]
    try:
        (note,) = left("prepared_t")
        (gid,) = prepared("prepared_t")
        assert f"COMMIT PREPARED '{gid}'; or ROLLBACK PREPARED '{gid}';" in note
        page = html.unescape(service.http.get("/ui/events?subscription=prepared_t").text)
        assert note in page
    finally:
        source.execute(f"COMMIT PREPARED '{source.name}'")
        for gid in prepared("prepared_t"):
            target.execute(f"COMMIT PREPARED '{gid}'")
    # The other one was not in the way, and goes on.
    wait_until("it is committed", lambda: prepared("prepared_u") == [])
    assert target.query("SELECT id FROM t UNION ALL SELECT id FROM u") == [(1,), (1,)]
    # What that left is nobody's.
    assert left("prepared_u") == []
    assert _left_on(target) == []


@pytest.mark.long
@pytest.mark.follows_hint("target_behind_slot")
def test_a_target_that_lost_commits_is_not_gone_on_with(
    serve: ServeProcess, two: tuple[Database, Database]
) -> None:
    source, target = two
    service = serve.service()
    for database in two:
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.execute("CREATE PUBLICATION p FOR TABLE t")
    body = {"name": "behind", "source": "main", "database": source.name, "publications": ["p"]}
    service.call(
        "POST", "/subscriptions", json={**body, "target": {"kind": "postgres", "dsn": target.dsn}}
    )
    begun = service.slot("behind")["confirmed_flush_lsn"]
    source.execute("INSERT INTO t VALUES (1)")

    def error() -> Any:
        return service.call("GET", "/subscriptions/behind")["error"]

    def confirmed() -> Lsn:
        return Lsn.parse(service.slot("behind")["confirmed_flush_lsn"])

    def ids() -> list[tuple[Any, ...]]:
        return target.query("SELECT id FROM t ORDER BY 1")

    wait_until("the row is there", lambda: ids() == [(1,)], lambda: str(error()))
    service.call("POST", "/subscriptions/behind/disable")
    # As of a backup from before the service was there.
    target.execute("UPDATE spillway.progress SET remote_lsn = '0/10'")
    service.call("POST", "/subscriptions/behind/enable")
    wait_until("it fails", lambda: error() is not None)
    hint = remedy(error(), "target_behind_slot")
    told = command(hint, "subscription skip", NAME="behind")
    assert told[:3] == ["subscription", "skip", "behind"]
    assert Lsn.parse(told[3]) == confirmed()
    service.call("POST", "/subscriptions/behind/skip", json={"lsn": told[3]})
    source.execute("INSERT INTO t VALUES (2)")
    wait_until("it goes on", lambda: ids() == [(1,), (2,)], lambda: str(error()))

    # As of a backup from before, and none of what came after. The slot has that yet, also what was
    # skipped.
    wait_until("that is confirmed", lambda: confirmed() > Lsn.parse(told[3]))
    service.call("POST", "/subscriptions/behind/disable")
    target.execute("DELETE FROM t; UPDATE spillway.tables SET state = 'r'")
    target.execute("UPDATE spillway.progress SET remote_lsn = %s", [begun])
    service.call("POST", "/subscriptions/behind/enable")
    wait_until("it is there again", lambda: ids() == [(1,), (2,)], lambda: str(error()))
    assert error() is None


@pytest.mark.long
def test_a_target_that_was_made_anew(
    serve: ServeProcess, two: tuple[Database, Database], cluster: Cluster
) -> None:
    """Its database was dropped and created again: what has copies is copied again; what has none
    says that rows are gone, and does not go on as if it were new. The origin is the server's and
    outlived the database.
    """
    source, target = two
    service = serve.service()
    tables = "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)"
    for database in two:
        database.execute(tables)
    source.execute("CREATE PUBLICATION t FOR TABLE t; CREATE PUBLICATION u FOR TABLE u")
    names = {"t": "anew_copied", "u": "anew_without"}
    for table, name in names.items():
        service.call("POST", "/subscriptions", json={
            "name": name, "source": "main", "database": source.name, "publications": [table],
            "copy_data": table == "t", "target": {"kind": "postgres", "dsn": target.dsn},
        })  # fmt: skip

    def view(table: str) -> Any:
        return service.call("GET", f"/subscriptions/{names[table]}")

    def ids(table: str) -> list[int]:
        return [number for (number,) in target.query(f"SELECT id FROM {table} ORDER BY 1")]

    def wait_ids(table: str, *wanted: int) -> None:
        wait_until(
            f"{table} has {wanted}", lambda: ids(table) == [*wanted], lambda: str(view(table))
        )

    for table in names:
        source.execute(f"INSERT INTO {table} VALUES (1)")
        wait_ids(table, 1)
        wait_until(f"{table} streams", lambda t=table: view(t)["state"] == "streaming")  # type: ignore[misc]
    for name in names.values():
        service.call("POST", f"/subscriptions/{name}/disable")
    cluster.drop_database(target.name)
    source.execute("INSERT INTO t VALUES (2); INSERT INTO u VALUES (2)")
    cluster.create_database(target.name)
    target.execute(tables)
    for name in names.values():
        service.call("POST", f"/subscriptions/{name}/enable")

    wait_ids("t", 1, 2)
    wait_until("it fails", lambda: view("u")["error"] is not None)
    hint = remedy(view("u")["error"], "target_behind_slot")
    assert ids("u") == []
    told = command(hint, "subscription skip", NAME=names["u"])
    service.call("POST", f"/subscriptions/{told[2]}/skip", json={"lsn": told[3]})
    wait_ids("u", 2)


@pytest.mark.parametrize("back", ["spillway", deep("stock")])
def test_two_databases_that_subscribe_to_each_other_do_not_loop(
    serve: ServeProcess, two: tuple[Database, Database], back: str
) -> None:
    service = serve.service()
    for database, first in zip(two, (1, 1001), strict=True):
        database.execute("CREATE TABLE t (id int PRIMARY KEY, writer text, n int DEFAULT 0)")
        database.execute("CREATE PUBLICATION p FOR TABLE t")
        database.execute(
            "INSERT INTO t SELECT n, current_database() FROM generate_series(%s::int, %s::int) n",
            [first, first + 9],
        )
    one, other = two
    body = {"source": "main", "publications": ["p"], "copy_data": False, "origin": "none"}
    there = {"kind": "postgres", "dsn": other.dsn}
    service.call(
        "POST",
        "/subscriptions",
        json={**body, "name": "there", "database": one.name, "target": there},
    )
    if back == "spillway":
        here = {"kind": "postgres", "dsn": one.dsn}
        service.call(
            "POST",
            "/subscriptions",
            json={**body, "name": "here", "database": other.name, "target": here},
        )
    else:
        other.execute("SELECT pg_create_logical_replication_slot('back', 'pgoutput')")
        one.execute(
            f"CREATE SUBSCRIPTION here CONNECTION '{other.dsn}' PUBLICATION p WITH (origin = none,"
            " copy_data = false, create_slot = false, slot_name = 'back')"
        )
    try:
        for database, first in zip(two, (21, 1021), strict=True):
            for n in range(first, first + 10):
                database.execute("INSERT INTO t VALUES (%s, current_database())", [n])
            database.execute("UPDATE t SET n = n + 1 WHERE writer = current_database()")
        _wait_equal(one, other, 20)
        # Ten rows came over, twenty were changed: what goes round would be counted again.
        _wait_rows(service, "there", 30)
        for database in two:
            database.execute("INSERT INTO t VALUES (%s, 'last')", [database.oid])
        _wait_equal(one, other, 22)
        _wait_rows(service, "there", 31)
    finally:
        if back == "stock":
            one.execute("DROP SUBSCRIPTION here")


def _wait_equal(one: Database, other: Database, rows: int) -> None:
    """Wait until what was written since both subscribe is on both sides."""
    query = (
        "SELECT id, writer, n FROM t"
        " WHERE id NOT BETWEEN 1 AND 10 AND id NOT BETWEEN 1001 AND 1010 ORDER BY 1"
    )
    wait_until(
        f"{rows} rows on both sides",
        lambda: one.query(query) == other.query(query) and len(one.query(query)) == rows,
        lambda: f"{one.query(query)}\n{other.query(query)}",
    )


def _wait_rows(service: Service, name: str, rows: int) -> None:
    """Wait until a subscription has written so many changes; more would never be so many."""

    def written() -> int:
        return int(service.call("GET", f"/subscriptions/{name}")["rows"])

    wait_until(
        f"{name} has written {rows} changes", lambda: written() == rows, lambda: str(written())
    )


def _kill_program(subscription: AppliedSubscription) -> None:
    pid = subscription.view()["pid"]
    if pid is not None:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize("rounds", [1, 6])
def test_kills_under_load(
    serve: ServeProcess, two: tuple[Database, Database], cluster: Cluster, rounds: int
) -> None:
    source, target = two
    publication = Publication(source, 18, 3)
    publication.fill()
    subscription = AppliedSubscription(
        "killed",
        target,
        publication,
        target.dsn,
        service=serve.service(),
        gives_up_after=None,
    )
    subscription.make_tables()
    subscription.create()
    with Load(publication, rounds) as load:
        for _ in range(rounds):
            load.goes_on(15)
            _kill_program(subscription)
            load.goes_on(15)
            # Source and target at once: it is one server.
            cluster.kill()
            cluster.start()
            load.goes_on(15)
            serve.kill()
            load.goes_on(5)
            serve.start()
    subscription.wait_ready()
    subscription.wait_caught_up()
    subscription.check_equal()


@pytest.mark.long
@pytest.mark.parametrize("conflicts", [False, True])
def test_a_transaction_larger_than_a_group(
    serve: ServeProcess, two: tuple[Database, Database], conflicts: bool
) -> None:
    """It is written in pieces; where one of them does not fit, it comes again and is written
    exactly, and what follows goes on in groups.
    """
    source, target = two
    for database in two:
        database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.execute("CREATE PUBLICATION p FOR TABLE t")
    subscription = {
        "name": "large",
        "source": "main",
        "database": source.name,
        "publications": ["p"],
        "target": {
            "kind": "postgres",
            "dsn": target.dsn,
            "group_bytes": 1 << 20,
            "conflicts": {"insert_exists": "apply_remote"},
        },
    }
    serve.service().call("POST", "/subscriptions", json=subscription)
    wait_until(
        "it is ready",
        lambda: (
            target.value("SELECT to_regclass('spillway.tables')") is not None
            and target.value("SELECT count(*) FROM spillway.tables WHERE state = 'r'") == 1
        ),
    )
    if conflicts:
        target.execute("INSERT INTO t VALUES (29000, 'local')")
    source.execute("INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, 30000) n")
    source.execute("INSERT INTO t VALUES (0, 'last')")
    wait_until("it is there", lambda: bool(target.query("SELECT FROM t WHERE id = 0")))
    query = "SELECT md5(string_agg(t::text, ';' ORDER BY id)) FROM t"
    assert target.value(query) == source.value(query)
    # The program opens the stream again by itself.
    assert serve.service().call("GET", "/subscriptions/large")["restarts"] == 0


def test_tables_as_they_are_and_sequences(
    serve: ServeProcess,
    two: tuple[Database, Database],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a copy tables have states, too; what could not be made is told; sequences follow by
    command, refresh and schedule.
    """
    source, target = two
    service = serve.service()
    for name, value in {
        "SPILLWAY_URL": f"http://127.0.0.1:{service.http_port}",
        "SPILLWAY_APPLY_SOURCE_DSN": source.dsn,
        "SPILLWAY_APPLY_TARGET_DSN": target.dsn,
    }.items():
        monkeypatch.setenv(name, value)
    source.execute(
        "CREATE TABLE t (id bigserial PRIMARY KEY, v text); INSERT INTO t (v) VALUES ('before');"
        "CREATE FUNCTION own() RETURNS int LANGUAGE sql AS 'SELECT 1';"
        "CREATE TABLE unmade (id int PRIMARY KEY DEFAULT own());"
        # What a subscription in the other direction keeps is nobody's table.
        "CREATE SCHEMA spillway; CREATE TABLE spillway.progress (subscription text PRIMARY KEY);"
        "CREATE PUBLICATION p FOR ALL TABLES"
    )
    body = {
        "name": "bare",
        "source": "main",
        "database": source.name,
        "publications": ["p"],
        "copy_data": False,
        "origin": "none",
        "target": {"kind": "postgres", "dsn": target.dsn, "create_tables": True},
    }
    service.call("POST", "/subscriptions", json=body)
    source.execute("INSERT INTO t (v) VALUES ('after'); INSERT INTO spillway.progress VALUES ('x')")
    cut_over.wait("bare")
    assert "bare has everything before" in capsys.readouterr().out
    assert target.query("SELECT id, v FROM t") == [(2, "after")]
    view = service.call("GET", "/subscriptions/bare")
    states = {table["table"]: table["state"] for table in view["table_states"]}
    assert states == {"public.t": "ready", "public.unmade": "ready"}
    assert view["stats"]["tables_made_by"]
    assert "own" in view["stats"]["not_made"]["table public.unmade"]

    after = "SELECT last_value, is_called FROM t_id_seq"
    cut_over.sequences("bare")
    assert "1 sequences: 1 set" in capsys.readouterr().out
    assert target.query(after) == source.query(after) == [(2, True)]
    source.execute("SELECT setval('t_id_seq', 40)")
    service.call("POST", "/subscriptions/bare/refresh")
    wait_until("a refresh sets it", lambda: target.query(after) == [(40, True)])
    wish = {**view["target"], "sync_sequences": 1}
    service.call("PATCH", "/subscriptions/bare", json={"target": wish})
    for number in (50, 60):
        source.execute("SELECT setval('t_id_seq', %s)", [number])
        wait_until(f"it is {number}", lambda v=number: target.query(after) == [(v, True)])  # type: ignore[misc]

    service.call("POST", "/subscriptions/bare/disable")
    source.execute("INSERT INTO t (v) VALUES ('later')")
    with pytest.raises(NotReady, match="is disabled") as refused:
        cut_over.wait("bare")
    assert "spillway subscription enable bare" in str(refused.value.hint)
    service.call("POST", "/subscriptions/bare/enable")
    cut_over.wait("bare")
    assert target.value("SELECT count(*) FROM t") == 2


def test_commands_show_how_it_is(
    serve: ServeProcess, two: tuple[Database, Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = two
    service = serve.service()
    monkeypatch.setenv("SPILLWAY_URL", f"http://127.0.0.1:{service.http_port}")
    for database in two:
        database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY)"
        )
    source.execute(
        "INSERT INTO t SELECT n, 'v' FROM generate_series(1, 9) n; INSERT INTO u VALUES (1);"
        "CREATE PUBLICATION p FOR ALL TABLES"
    )
    body = {
        "name": "shown", "source": "main", "database": source.name, "publications": ["p"],
        "target": {"kind": "postgres", "dsn": target.dsn},
    }  # fmt: skip
    service.call("POST", "/subscriptions", json=body)
    view = "/subscriptions/shown"
    wait_until("it streams", lambda: service.call("GET", view)["state"] == "streaming")
    target.execute("DELETE FROM t WHERE id <= 3; DELETE FROM u")
    source.execute("UPDATE t SET v = 'w' WHERE id <= 2; DELETE FROM u")
    source.execute("INSERT INTO u VALUES (2)")

    def run(*words: str) -> str:
        done = CliRunner().invoke(app, ["subscription", *words])
        assert done.exit_code == 0, done.output
        return done.output

    def shown(*words: str) -> Any:
        return json.loads(run(*words, "--json"))

    wait_until("all are counted", lambda: shown("stats", "shown")["confl_delete_missing"] == 1)
    stats = shown("stats", "shown")
    assert stats["subname"] == "shown"
    assert stats["confl_update_missing"] == 2
    assert stats["confl_insert_exists"] == stats["apply_error_count"] == 0
    assert stats["table_conflicts"] == [
        {"table": "public.t", "kind": "update_missing", "count": 2},
        {"table": "public.u", "kind": "delete_missing", "count": 1},
    ]
    text = run("stats", "shown")
    for word in ("confl_update_missing", "received_lsn", "public.t", "update_missing"):
        assert word in text, text

    tables = shown("tables", "shown")
    assert [(one["table"], one["state"]) for one in tables] == [
        ("public.t", "ready"),
        ("public.u", "ready"),
    ]
    text = run("tables", "shown")
    assert "public.t" in text
    assert "ready" in text

    found = shown("conflicts", "shown", "--kind", "update_missing")
    assert sorted(one["identity"]["id"] for one in found) == ["1", "2"]
    assert {one["kind"] for one in found} == {"update_missing"}
    assert len(shown("conflicts", "shown")) == 3
    assert shown("conflicts", "shown", "--kind", "insert_exists") == []
    assert "delete_missing" in run("conflicts", "shown", "--kind", "delete_missing")
    refused = CliRunner().invoke(app, ["subscription", "conflicts", "shown", "--kind", "nonsense"])
    assert refused.exit_code != 0


@pytest.mark.long
def test_five_hundred_tables(serve: ServeProcess, two: tuple[Database, Database]) -> None:
    """They are made, copied and followed by one subscription, and a row that the target refuses
    stops none of them.
    """
    source, target = two
    number = 500
    names = [f"t{n:03}" for n in range(number)]
    with source.connect() as connection:
        for name in names:
            connection.execute(
                f"CREATE TABLE {name} (id int PRIMARY KEY, v text);"
                f"INSERT INTO {name} SELECT n, md5(n::text) FROM generate_series(1, 50) n"
            )
        connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
    service = serve.service()
    body = {
        "name": "many", "source": "main", "database": source.name, "publications": ["p"],
        "target": {
            "kind": "postgres", "dsn": target.dsn, "create_tables": True, "dead_letter": True,
        },
    }  # fmt: skip
    service.call("POST", "/subscriptions", json=body)
    stop = threading.Event()
    rounds = [0]

    def write() -> None:
        # While they are copied, too.
        with source.connect() as connection:
            while not stop.is_set():
                rounds[0] += 1
                with connection.transaction():
                    for name in names[rounds[0] % 7 :: 7]:
                        connection.execute(f"UPDATE {name} SET v = v || '.' WHERE id % 5 = 0")
                        connection.execute(f"INSERT INTO {name} VALUES ({1000 + rounds[0]}, 'new')")

    def ready() -> int:
        states = service.call("GET", "/subscriptions/many")["table_states"]
        return sum(one["state"] == "ready" for one in states)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_until("all are ready", lambda: ready() == number, lambda: str(ready()))
        reached = rounds[0]
        wait_until("more is written", lambda: rounds[0] >= reached + 14)
    finally:
        stop.set()
        writer.join()

    def contents(database: Database) -> list[tuple[Any, ...]]:
        with database.connect() as connection:
            return [
                connection.execute(
                    f"SELECT count(*), md5(string_agg(id || v, ',' ORDER BY id)) FROM {name}"
                ).fetchone()
                or ()
                for name in names
            ]

    expected = contents(source)
    wait_until("it caught up", lambda: contents(target) == expected)
    target.execute("ALTER TABLE t123 ADD CHECK (v <> 'poison')")
    with source.connect() as connection:
        with connection.transaction():
            for name in names:
                v = "poison" if name == "t123" else "wholesome"
                connection.execute(f"INSERT INTO {name} VALUES (5000, '{v}'), (5001, 'y')")
        for name in names:
            connection.execute(f"UPDATE {name} SET v = 'z' WHERE id = 5001")
    expected = contents(source)

    def has_all_but_one() -> bool:
        found = contents(target)
        (count, _), (lacks_one, _) = expected[123], found[123]
        return found[:123] + found[124:] == expected[:123] + expected[124:] and (
            lacks_one == count - 1
        )

    wait_until("all but the row is there", has_all_but_one)
    assert target.query("SELECT table_name, new_row->>'v' FROM spillway.dead_letter") == [
        ("t123", "poison")
    ]
    assert service.call("GET", "/subscriptions/many")["restarts"] == 0
