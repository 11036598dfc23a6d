"""How large tables are, as real servers say it; behind a lock, and when nobody answers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from harness.tiers import deep
from spillway.errors import SourceError
from spillway.receiver.table_sizes import table_sizes

if TYPE_CHECKING:
    from harness.cluster import Database

NAMES = ["public.t", "public.parts", "public.fresh", "public.gone", 'odd."name']


def test_a_lock_is_not_waited_for(pg18: Database) -> None:
    pg18.execute("CREATE TABLE t (id int, big text)")
    pg18.execute("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    pg18.execute("INSERT INTO t SELECT g, repeat('x', 5000) FROM generate_series(1, 1000) g")
    (size,) = table_sizes(pg18.dsn, ["public.t"]).values()
    with pg18.connect() as connection, connection.transaction():
        connection.execute("LOCK TABLE t")
        began = time.monotonic()
        # Nobody has reckoned its pages yet.
        assert table_sizes(pg18.dsn, ["public.t"])["public.t"] == (0, None)
        assert time.monotonic() - began < 20
    pg18.execute("VACUUM ANALYZE t")
    with pg18.connect() as connection, connection.transaction():
        connection.execute("LOCK TABLE t")
        by_pages = table_sizes(pg18.dsn, ["public.t"])["public.t"]
    assert by_pages.rows == 1000
    assert 0.9 * size.bytes < by_pages.bytes <= size.bytes


@pytest.mark.parametrize("server", ["pg18", deep("pg15")])
def test_what_servers_say(request: pytest.FixtureRequest, server: str) -> None:
    pg: Database = request.getfixturevalue(server)
    pg.execute("CREATE SCHEMA odd")
    pg.execute('CREATE TABLE odd."""name" (id int)')
    pg.execute("CREATE TABLE fresh (id int)")
    pg.execute("CREATE TABLE t (id int)")
    pg.execute("INSERT INTO t SELECT generate_series(1, 10000)")
    pg.execute("CREATE TABLE parts (id int) PARTITION BY RANGE (id)")
    pg.execute("CREATE TABLE part_1 PARTITION OF parts FOR VALUES FROM (0) TO (5000)")
    pg.execute("CREATE TABLE part_2 PARTITION OF parts FOR VALUES FROM (5000) TO (20000)")
    pg.execute("INSERT INTO parts SELECT generate_series(1, 10000)")
    pg.execute("ANALYZE t")
    pg.execute("ANALYZE parts")
    sizes = table_sizes(pg.dsn, NAMES)
    assert {*sizes} == {*NAMES} - {"public.gone"}
    for name in ("public.t", "public.parts"):
        relations = [name] if name == "public.t" else ["part_1", "part_2"]
        asked = " + ".join(f"pg_table_size('{each}')" for each in relations)
        assert sizes[name] == (pg.value(f"SELECT {asked}"), 10000)
    assert sizes["public.fresh"] == (0, None)
    assert table_sizes(pg.dsn, []) == {}


def test_nobody_answers() -> None:
    with pytest.raises(SourceError):
        table_sizes("host=127.0.0.1 port=1 dbname=x user=x", ["public.t"])
