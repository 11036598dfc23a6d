"""What a source's role may not read is said table by table, and the SQL that is printed mends
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from harness.remedies import remedy, statements
from spillway.errors import TableNotReadable
from spillway.receiver.table_privileges import check_readable

if TYPE_CHECKING:
    from harness.cluster import Database

TABLES = """
CREATE SCHEMA "Odd ""schema"; CREATE TABLE "Odd ""schema"."select" (id int);
CREATE TABLE plain (id int); INSERT INTO plain VALUES (1), (2);
CREATE TABLE hidden (id int); INSERT INTO hidden VALUES (1), (2);
ALTER TABLE hidden ENABLE ROW LEVEL SECURITY; CREATE POLICY one ON hidden USING (id = 1);
CREATE TABLE root (id int) PARTITION BY RANGE (id);
CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (9);
CREATE UNLOGGED TABLE unlogged (id int); CREATE VIEW v AS SELECT 1;
"""
ALL = ['Odd "schema.select', "public.hidden", "public.leaf", "public.plain"]


@pytest.mark.follows_hint("table_not_readable")
def test_the_printed_sql_mends_it(pg: Database) -> None:
    pg.execute(TABLES)
    role = f"Reader {pg.name}"
    pg.execute(f'CREATE ROLE "{role}" LOGIN')
    dsn = pg.cluster.dsn(pg.name, role)
    try:
        with pytest.raises(TableNotReadable) as all_of_them:
            check_readable(dsn, None)
        assert all_of_them.value.details["relations"] == ALL
        with pytest.raises(TableNotReadable, match=r"public\.plain") as one:
            check_readable(dsn, ["public.plain", "public.nothing"])
        assert one.value.hint == f'GRANT SELECT ON public.plain TO "{role}";'
        for sql in statements(remedy(one.value, "table_not_readable")):
            pg.execute(sql)
        check_readable(dsn, ["public.plain"])
        # A hint at a time, until nothing is left to say: policies count where SELECT is granted.
        for _ in range(2):
            with pytest.raises(TableNotReadable) as left:
                check_readable(dsn, None)
            pg.execute(left.value.hint)
        assert left.value.details["relations"] == ["public.hidden"]
        check_readable(dsn, None)
        with psycopg.connect(dsn) as connection:
            connection.execute("SET row_security = off")
            counted = connection.execute(
                'SELECT count(*), (SELECT count(*) FROM "Odd ""schema"."select") FROM hidden'
            ).fetchone()
        assert counted == (2, 0)
    finally:
        pg.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')


def test_owners_and_superusers_lack_nothing(pg: Database) -> None:
    pg.execute(TABLES)
    check_readable(pg.dsn, None)
    check_readable(pg.dsn, [])
