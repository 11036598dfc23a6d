"""Random workloads of certify's generator, applied: source and target are equal at the end, whoever
was killed meanwhile, and when somebody wrote to the target as well, after a repair.

The generator first makes tables of all kinds, with DDL. The target is a copy of that database. From
then on it writes rows only: no subscription brings ALTER TABLE.
"""

from __future__ import annotations

import os
import random
import secrets
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from harness.postgresql_subscription import wait_until
from harness.tiers import deep
from spillway.certify.workload.driver import SETUP, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import Cluster, Database
    from harness.serve_process import ServeProcess

_DDL_STEPS = 400
#: What a table with REPLICA IDENTITY FULL can't be found by, in PostgreSQL's worker neither: a type
#: that knows no equality. Updates of such are refused at the source then.
_WITHOUT_EQUALITY = r"""
DO $$ DECLARE t regclass; BEGIN
FOR t IN SELECT DISTINCT c.oid FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
  WHERE relkind IN ('r', 'p') AND relreplident = 'f' AND attnum > 0 AND NOT attisdropped
    AND relnamespace::regnamespace::text LIKE 'w\_%'
    AND format_type(atttypid, NULL) ~ 'json(\[|$)|xml|point|box|path|polygon|circle|line|lseg'
LOOP EXECUTE format('ALTER TABLE %s REPLICA IDENTITY NOTHING', t); END LOOP; END $$
"""
_PUBLISHED = """
SELECT format('%I.%I', schemaname, tablename),
       (SELECT coalesce(string_agg(format('r.%I', attname), ', ' ORDER BY attnum), '')
          FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped
           AND attrelid = format('%I.%I', schemaname, tablename)::regclass)
  FROM pg_publication_tables WHERE pubname = 'w_everything' ORDER BY 1
"""
_TRIGGERS_OFF = """
DO $$ DECLARE t regclass; BEGIN
FOR t IN SELECT DISTINCT tgrelid FROM pg_trigger g JOIN pg_class c ON c.oid = tgrelid
  WHERE NOT tgisinternal AND relkind IN ('r', 'p')
LOOP EXECUTE format('ALTER TABLE %s DISABLE TRIGGER USER', t); END LOOP; END $$
"""


def _rows(database: Database, table: str, columns: str) -> Counter[str]:
    """The table's own rows; of an unlogged one none, which WAL does not have."""
    query = (
        f"SELECT ROW({columns})::text FROM ONLY {table} r JOIN pg_catalog.pg_class c"
        " ON c.oid = r.tableoid WHERE c.relpersistence = 'p'"
    )
    with database.connect() as connection:
        connection.execute("SET search_path = ''; SET extra_float_digits = 1")
        return Counter(row for (row,) in connection.execute(query))


def _equal(source: Database, target: Database, seed: int) -> int:
    total = 0
    for table, columns in source.query(_PUBLISHED):
        expected, got = _rows(source, table, columns), _rows(target, table, columns)
        total += expected.total()
        missing, more = expected - got, got - expected
        assert not missing + more, (
            f"seed {seed}, {table}: {missing.total()} rows missing, such as {list(missing)[:3]};"
            f" {more.total()} more, such as {list(more)[:3]}"
        )
    return total


def _run(
    cluster: Cluster,
    serve: ServeProcess,
    seed: int,
    steps: int,
    kill: Callable[[random.Random], None],
    kills: int,
    locally: Callable[[random.Random, Database, Database], None] | None = None,
    to: Cluster | None = None,
    **wished: Any,
) -> Counter[str]:
    """Run a seed; return the conflicts by kind.

    Args:
        kill: what happens *kills* times in the midst.
        locally: writes to the target, given the source and it, now and then.
        to: the target's server: there the subscription makes the tables, and copies them while they
            are written to. By default the target is a copy of the source's database.
        wished: fields of the target.
    """
    name = f"random_{seed}_{secrets.token_hex(3)}"
    source = cluster.create_database(name)
    service = serve.service()
    subscription = f"s_{name}"
    workload = Workload(
        source.dsn,
        seed,
        major=cluster.major,
        superuser=True,
        cluster_prefix=name,
        log=lambda *_: None,
    )
    workload.setup()
    while workload.steps < _DDL_STEPS:
        workload.step()
    workload.finish()
    source.execute(_WITHOUT_EQUALITY)
    source.execute("CREATE TABLE public.marker (n int PRIMARY KEY)")
    source.execute("CREATE PUBLICATION w_everything FOR ALL TABLES")
    if to is None:
        cluster.execute(f'CREATE DATABASE "{name}_t" TEMPLATE "{name}"')
        target = type(source)(cluster, f"{name}_t")
        target.execute(_TRIGGERS_OFF)
    else:
        target = to.create_database(f"{name}_t")
        target.execute("CREATE TABLE public.marker (n int PRIMARY KEY)")
        for statement in SETUP:
            # Functions are what no subscription makes.
            if statement.startswith("CREATE FUNCTION"):
                target.execute(f"CREATE SCHEMA IF NOT EXISTS w_0; {statement}")
        wished = {"create_tables": True, **wished}
    service.create_source(source.dsn, name=name)
    try:
        service.call(
            "POST",
            "/subscriptions",
            json={
                "name": subscription,
                "source": name,
                "database": name,
                "publications": ["w_everything"],
                "copy_data": to is not None,
                "target": {"kind": "postgres", "dsn": target.dsn, **wished},
            },
        )
        rng = random.Random(seed)
        again = Workload(
            source.dsn,
            seed + 1_000_000,
            major=cluster.major,
            superuser=True,
            cluster_prefix=f"{name}-2",
            log=lambda *_: None,
        )
        again.changes_schema = False
        again.reconnect()
        at = set(rng.sample(range(steps), kills))
        for number in range(steps):
            again.step()
            if number in at:
                kill(rng)
            if locally is not None and number % 3 == 0:
                locally(rng, source, target)
        again.finish()
        source.execute("INSERT INTO public.marker VALUES (1)")

        def told() -> str:
            view = service.call("GET", f"/subscriptions/{subscription}")
            log = service.call("GET", f"/subscriptions/{subscription}/log")["lines"]
            return "\n".join([f"{view['state']} {view['error']}", *log[-30:]])

        wait_until(
            f"all is applied, seed {seed}",
            lambda: bool(target.query("SELECT FROM public.marker")),
            told,
        )
        if to is not None:
            _wait_copied(target, told)
            source.execute("INSERT INTO public.marker VALUES (2)")
            wait_until(
                f"the rest is applied, seed {seed}",
                lambda: len(target.query("SELECT FROM public.marker")) == 2,
                told,
            )
        if locally is not None:
            _repair(serve, subscription, source, target)
        assert _equal(source, target, seed) > 0
        stats = service.call("GET", f"/subscriptions/{subscription}")["stats"]
        return Counter({n.removeprefix("confl_"): stats[n] for n in stats if "confl_" in n})
    finally:
        service.call("DELETE", f"/subscriptions/{subscription}")
        service.call("DELETE", f"/sources/{name}")
        target.cluster.drop_database(target.name)
        cluster.drop_database(name)


def _wait_copied(target: Database, told: Callable[[], str]) -> None:
    """Wait until the stream writes all tables."""
    query = "SELECT schema_name, table_name, state, error FROM spillway.tables WHERE state <> 'r'"
    wait_until(
        "all is copied",
        lambda: not target.query(query),
        lambda: f"{target.query(query)}\n{told()}",
    )


_KEYED = """
SELECT format('%I.%I', n.nspname, c.relname),
       (SELECT string_agg(quote_ident(attname), ', ') FROM pg_attribute a WHERE attrelid = c.oid
           AND attnum > 0 AND NOT attisdropped AND attgenerated = '' AND attidentity = ''
           AND NOT attnum = ANY (i.indkey))
  FROM pg_publication_tables p JOIN pg_namespace n ON n.nspname = p.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
  JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary AND i.indimmediate
 WHERE pubname = 'w_everything' AND c.relreplident IN ('d', 'f') AND c.relname <> 'marker'
 ORDER BY 1
"""


def _written_locally(rng: random.Random, source: Database, target: Database) -> None:
    """Somebody deletes and changes rows of a table with a key, and has rows of the source before
    they come.
    """
    with suppress(psycopg.Error), source.connect() as reader, target.connect() as session:
        # The generator has transactions open, and waits for nobody.
        reader.execute("SET lock_timeout = '50ms'")
        session.execute("SET session_replication_role = replica; SET lock_timeout = '1s'")
        keyed = reader.execute(_KEYED).fetchall()
        if keyed:
            table, others = rng.choice(keyed)
            statement, values = rng.choice(_local_statements(reader, table, others))
            session.execute(statement.encode(), values)


def _local_statements(
    source: psycopg.Connection[Any], table: str, others: str | None
) -> list[tuple[str, list[Any] | None]]:
    some = f"(tableoid, ctid) IN (SELECT tableoid, ctid FROM {table} ORDER BY random() LIMIT 3)"
    early = source.execute(
        f"SELECT r::text FROM ONLY {table} r ORDER BY ctid DESC LIMIT 3".encode()
    ).fetchall()
    statements: list[tuple[str, list[Any] | None]] = [
        *(
            (f"INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT (%s::{table}).*", [row])
            for (row,) in early
        ),
        (f"DELETE FROM {table} WHERE {some}", None),
    ]
    if others:
        changed = f"UPDATE {table} SET ({others}) = ROW({others}) WHERE {some}"
        swapped = (
            f"UPDATE {table} SET ({others}) = (SELECT {others} FROM {table} ORDER BY random()"
            f" LIMIT 1) WHERE {some}"
        )
        statements += [(changed, None), (swapped, None)]
    return statements


def _repair(serve: ServeProcess, subscription: str, source: Database, target: Database) -> None:
    """Have what was written to the target mended, by the command."""
    tables = [f"--table={t.replace(chr(34), '')}" for t, _ in source.query(_KEYED)]
    environment = {
        "SPILLWAY_URL": f"http://127.0.0.1:{serve.http_port}",
        "SPILLWAY_GRPC": f"127.0.0.1:{serve.grpc_port}",
        "SPILLWAY_APPLY_SOURCE_DSN": source.dsn,
        "SPILLWAY_APPLY_TARGET_DSN": target.dsn,
    }
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-m", "spillway.cli", "subscription", "repair", subscription, *tables],
            env=os.environ | environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return
    pytest.fail(f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}")


def _backends_ended(cluster: Cluster) -> Callable[[random.Random], None]:
    """What ends the sessions on the target in the middle of whatever they do."""

    def kill(_: random.Random) -> None:
        cluster.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'spillway subscription%'"
        )

    return kill


_NAMES = """
SELECT c.oid::regclass::text FROM pg_class c
 WHERE relkind IN ('r', 'p', 'm', 'v', 'S') AND relpersistence <> 't'
   AND relnamespace::regnamespace::text LIKE 'w\\_%'
"""


def test_rows_alone_leave_tables_as_they_are(checklist_cluster: Cluster) -> None:
    """Seed 32 made one for COPY … FREEZE after the target was copied, which it then lacked."""
    name = f"rows_alone_{secrets.token_hex(3)}"
    source = checklist_cluster.create_database(name)

    def workload(seed: int) -> Workload:
        return Workload(
            source.dsn,
            seed,
            major=checklist_cluster.major,
            superuser=True,
            cluster_prefix=f"{name}-{seed}",
            log=lambda *_: None,
        )

    made = workload(32)
    made.setup()
    while made.steps < 100:
        made.step()
    made.finish()
    before = sorted(source.query(_NAMES))
    rows = workload(1_000_032)
    rows.changes_schema = False
    rows.reconnect()
    while rows.steps < 1200:
        rows.step()
    rows.finish()
    assert sorted(source.query(_NAMES)) == before
    checklist_cluster.drop_database(name)


#: Groups so small that a few transactions are enough for several connections.
_SMALL: dict[str, Any] = {"connections": 3, "group_bytes": 65536}


@pytest.mark.parametrize(
    ("seed", "commit_order"), [(1, "source"), deep(2, "relaxed")], ids=["1, source", "2, relaxed"]
)
def test_equal_at_the_end(
    checklist_cluster: Cluster, apply_service: ServeProcess, seed: int, commit_order: str
) -> None:
    kill = _backends_ended(checklist_cluster)
    wished = {**_SMALL, "commit_order": commit_order}
    _run(checklist_cluster, apply_service, seed, 300, kill, 1, **wished)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(11, 15))
def test_equal_at_the_end_of_many(
    checklist_cluster: Cluster, apply_service: ServeProcess, seed: int
) -> None:
    def kill(rng: random.Random) -> None:
        if rng.random() < 0.5:
            _backends_ended(checklist_cluster)(rng)
        else:
            apply_service.kill()
            apply_service.start()

    relaxed = {**_SMALL, "commit_order": "relaxed"}
    wished: dict[str, Any] = ({}, relaxed, _SMALL, {"connections": 1})[seed % 4]
    _run(checklist_cluster, apply_service, seed, 3000, kill, 4, **wished)


#: So that nobody has to look into it: what is in the way gives way, what is refused is set aside.
_RESOLVED: dict[str, Any] = {
    "conflicts": {
        "insert_exists": "apply_remote",
        "update_exists": "apply_remote",
        "multiple_unique_conflicts": "apply_remote",
        "update_missing": "apply_remote",
        "update_deleted": "apply_remote",
    },
    "dead_letter": True,
    "retain_dead_tuples": 600,
}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(31, 35))
def test_conflicts_and_kills(
    checklist_cluster: Cluster, apply_service: ServeProcess, seed: int
) -> None:
    kill = _backends_ended(checklist_cluster)
    wished: dict[str, Any] = ({}, _SMALL)[seed % 2] | _RESOLVED
    met = _run(checklist_cluster, apply_service, seed, 1500, kill, 2, _written_locally, **wished)
    assert met.total() > 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "there", "here"), [(3100, 15, 18), (3101, 17, 14), (3102, 18, 15)]
)
def test_between_majors(
    timed_cluster: Callable[[int], Cluster],
    apply_service: ServeProcess,
    seed: int,
    there: int,
    here: int,
) -> None:
    target = timed_cluster(here)
    ended = _backends_ended(target)

    def kill(rng: random.Random) -> None:
        if rng.random() < 0.6:
            ended(rng)
        else:
            apply_service.kill()
            apply_service.start()

    _run(timed_cluster(there), apply_service, seed, 700, kill, 3, to=target, **_SMALL)


_LATEST: dict[str, Any] = {
    "conflicts": dict.fromkeys(
        (
            "insert_exists", "update_exists", "multiple_unique_conflicts", "update_origin_differs",
            "delete_origin_differs", "update_deleted",
        ),
        "last_update_wins",
    ),
    "retain_dead_tuples": 600,
}  # fmt: skip
_HELD = """
SELECT FROM pg_stat_activity WHERE application_name LIKE '% dead rows' AND backend_xmin IS NOT NULL
   AND datname = current_database()
"""


@pytest.mark.long
@pytest.mark.parametrize("seed", [41, 42])
def test_both_sides_write_and_agree(
    checklist_cluster: Cluster, apply_service: ServeProcess, seed: int
) -> None:
    """Two databases that subscribe to each other, and the same rows changed and deleted on both at
    the same time: whichever came last is on both.
    """
    name, rng = f"agree_{seed}_{secrets.token_hex(3)}", random.Random(seed)
    service = apply_service.service()
    sides = [checklist_cluster.create_database(f"{name}_{which}") for which in ("one", "other")]
    for database in sides:
        database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v text);"
            "CREATE TABLE marker (n int PRIMARY KEY);"
            "INSERT INTO t SELECT n, 'same' FROM generate_series(1, 300) n;"
            "CREATE PUBLICATION p FOR TABLE t, marker"
        )
    service.create_source(sides[0].dsn, name=name)
    names = [f"{name}_{way}" for way in ("there", "back")]
    try:
        for subscription, source, target in zip(names, sides, reversed(sides), strict=True):
            body = {
                "name": subscription, "source": name, "database": source.name,
                "publications": ["p"], "copy_data": False, "origin": "none",
                "target": {"kind": "postgres", "dsn": target.dsn, **_LATEST},
            }  # fmt: skip
            service.call("POST", "/subscriptions", json=body)
        for database in sides:
            wait_until("rows are held", lambda d=database: bool(d.query(_HELD)))  # type: ignore[misc]
        for first in range(1, 301, 30):
            sessions = [database.connect(autocommit=False) for database in sides]
            for which, session in enumerate(sessions):
                for key in range(first, first + 30):
                    chosen = rng.random()
                    if chosen < 0.4:
                        session.execute("DELETE FROM t WHERE id = %s", [key])
                    elif chosen < 0.8:
                        values = [f"by {which}", key]
                        session.execute("UPDATE t SET v = %s WHERE id = %s", values)
            for session in rng.sample(sessions, 2):
                session.commit()
                session.close()
        for n, database in enumerate(sides):
            database.execute("INSERT INTO marker VALUES (%s)", [n])
        for database in sides:
            wait_until(
                "all is there",
                lambda d=database: d.value("SELECT count(*) FROM marker") == 2,  # type: ignore[misc]
                lambda: str([service.call("GET", f"/subscriptions/{one}") for one in names]),
            )
        one, other = (database.query("SELECT * FROM t ORDER BY 1") for database in sides)
        assert one == other
        assert {"by 0", "by 1"} <= {v for _, v in one}
        met = [service.call("GET", f"/subscriptions/{one}")["stats"] for one in names]
        assert sum(stats.get("confl_update_deleted", 0) for stats in met) > 0
        assert sum(stats.get("confl_update_missing", 0) for stats in met) == 0
    finally:
        for subscription in names:
            service.http.delete(f"/v1/subscriptions/{subscription}")
        service.call("DELETE", f"/sources/{name}")
        for database in sides:
            checklist_cluster.drop_database(database.name)
