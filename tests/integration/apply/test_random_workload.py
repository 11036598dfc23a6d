"""Random workloads of certify's generator, applied: source and target are equal at the end, whoever
was killed meanwhile.

The generator first makes tables of all kinds, with DDL. The target is a copy of that database. From
then on it writes rows only: no subscription brings ALTER TABLE.
"""

from __future__ import annotations

import random
import secrets
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from harness.postgresql_subscription import wait_until
from spillway.certify.workload.driver import Workload

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
SELECT format('%I.%I', schemaname, tablename) FROM pg_publication_tables
 WHERE pubname = 'w_everything' ORDER BY 1
"""
_TRIGGERS_OFF = """
DO $$ DECLARE t regclass; BEGIN
FOR t IN SELECT DISTINCT tgrelid FROM pg_trigger g JOIN pg_class c ON c.oid = tgrelid
  WHERE NOT tgisinternal AND relkind IN ('r', 'p')
LOOP EXECUTE format('ALTER TABLE %s DISABLE TRIGGER USER', t); END LOOP; END $$
"""


def _rows(database: Database, table: str) -> Counter[str]:
    """The table's rows, and those of its heirs; not of unlogged ones, which WAL doesn't have."""
    query = (
        f"SELECT r::text FROM {table} r JOIN pg_catalog.pg_class c ON c.oid = r.tableoid"
        " WHERE c.relpersistence = 'p'"
    )
    with database.connect() as connection:
        connection.execute("SET search_path = ''; SET extra_float_digits = 1")
        return Counter(row for (row,) in connection.execute(query))


def _equal(source: Database, target: Database, seed: int) -> int:
    total = 0
    for (table,) in source.query(_PUBLISHED):
        expected, got = _rows(source, table), _rows(target, table)
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
    **wished: Any,
) -> None:
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
    cluster.execute(f'CREATE DATABASE "{name}_t" TEMPLATE "{name}"')
    target = type(source)(cluster, f"{name}_t")
    target.execute(_TRIGGERS_OFF)
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
                "copy_data": False,
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
        assert _equal(source, target, seed) > 0
    finally:
        service.call("DELETE", f"/subscriptions/{subscription}")
        service.call("DELETE", f"/sources/{name}")
        cluster.drop_database(target.name)
        cluster.drop_database(name)


def _backends_ended(cluster: Cluster) -> Callable[[random.Random], None]:
    """What ends the sessions on the target in the middle of whatever they do."""

    def kill(_: random.Random) -> None:
        cluster.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'spillway subscription%'"
        )

    return kill


#: Groups so small that a few transactions are enough for several connections.
_SMALL: dict[str, Any] = {"connections": 3, "group_bytes": 65536}


@pytest.mark.parametrize(
    ("seed", "commit_order"), [(1, "source"), (2, "relaxed")], ids=["1, source", "2, relaxed"]
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
