"""attmissingval: what SQL's send format is rebuilt to equals what the catalog's file holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.catalog_replay import CatalogReplay
from spillway.catalog.bootstrap import bootstrap_sql
from spillway.catalog.bootstrap_raw import bootstrap_raw
from spillway.catalog.layout import ATTRIBUTE_BY_RELATION, PG_ATTRIBUTE
from spillway.catalog.missing_value import UnreadableMissing
from spillway.errors import DecodingError

if TYPE_CHECKING:
    from harness.cluster import Database
    from spillway.catalog.mirror import CatalogMirror

_DEFAULTS = {
    "bool": ["true", "false"],
    "int2": ["-2"],
    "int4": ["7", "-2147483648"],
    "int8": ["1234567890123"],
    "oid": ["4000000000"],
    "float4": ["1.5", "'NaN'"],
    "float8": ["-0.1", "'Infinity'"],
    "numeric": ["0", "0.00", "-1.50", "12345678901234567890.0987654321", "'NaN'", "1e-20", "1e300"],
    "numeric(10,2)": ["12.5"],
    "money": ["'12.34'"],
    "text": ["''", "'hello'", "repeat('long', 100)", "repeat('compressible ', 500)", "'żółw ☃'"],
    "varchar(20)": ["'abc'"],
    "char(5)": ["'ab'"],
    '"char"': ["'x'"],
    "name": ["'some_name'"],
    "bytea": [r"'\x00ff10'"],
    "date": ["'2020-02-29'", "'infinity'", "'0044-03-15 BC'"],
    "time": ["'12:34:56.789'"],
    "timetz": ["'12:34:56+05:30'"],
    "timestamp": ["'2020-01-01 12:00'"],
    "timestamptz": ["'2020-01-01 12:00+02'"],
    "interval": ["'1 year -2 days 03:04:05.6'"],
    "uuid": ["'00112233-4455-6677-8899-aabbccddeeff'"],
    "json": ["""'{"a" : 1}'"""],
    "jsonb": [
        """'{"bb": [1, 2.50, null, true], "a": {"x": "y"}, "c": false}'""",
        "'7'", """'"scalar"'""", "'[]'", "'{}'", "'null'",
        "(select jsonb_agg(i || repeat('x', i)) from generate_series(1, 70) i)",
        "(select jsonb_object_agg('k' || i, i * 1.10) from generate_series(1, 70) i)",
    ],
    "inet": ["'192.168.0.1/24'", "'::1'"],
    "cidr": ["'10.0.0.0/8'"],
    "macaddr": ["'08:00:2b:01:02:03'"],
    "macaddr8": ["'08:00:2b:01:02:03:04:05'"],
    "bit(5)": ["'10101'"],
    "varbit": ["'1010101010101'"],
    "point": ["'(1,2)'"],
    "lseg": ["'((1,2),(3,4))'"],
    "box": ["'((1,2),(3,4))'"],
    "line": ["'{1,2,3}'"],
    "path": ["'((1,2),(3,4))'", "'[(1,2),(3,4)]'"],
    "polygon": ["'((1,2),(3,4),(5,0))'"],
    "circle": ["'<(1,2),3>'"],
    "int[]": ["'{}'", "'{1,2,3}'", "'{{1,2},{3,4}}'", "'{1,null,3}'", "'[5:6]={1,2}'"],
    "text[]": ["'{}'", "'{a,NULL,ccc}'"],
    "bool[]": ["'{t,f,t}'"],
    "timestamptz[]": ["'{2020-01-01}'"],
    "numeric[]": ["'{1.5,2}'"],
    "int4range": ["'[1,5)'", "'empty'", "'(,)'"],
    "numrange": ["'[1.5,2.75]'"],
    "tstzrange": ["'[2020-01-01,)'"],
    "daterange": ["'[2020-01-01,2020-02-01)'"],
    "mood": ["'ok'"],
    "mood[]": ["'{ok,sad}'"],
    "positive": ["5"],
    "pg_lsn": ["'1/2'"],
    "regclass": ["'pg_class'"],
    "tid": ["'(70000,3)'"],
    "xid8": ["'12345'"],
}  # fmt: skip


def _missing(mirror: CatalogMirror, relation_oid: int) -> dict[str, object]:
    return {
        tup.row.attname: tup.row.attmissingval
        for tup in mirror.visible_rows().tuples(PG_ATTRIBUTE, ATTRIBUTE_BY_RELATION, relation_oid)
        if tup.row.atthasmissing
    }


def test_sql_gives_the_datum_that_is_stored(pg: Database) -> None:
    pg.execute("CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN positive AS int")
    pg.execute("CREATE TABLE t (id int); INSERT INTO t VALUES (1)")
    columns: dict[str, str] = {}
    for type_, defaults in _DEFAULTS.items():
        for default in defaults:
            name = f"c{len(columns)}"
            columns[name] = f"{type_} {default}"
            constant = pg.value(f"SELECT quote_literal(({default})::{type_}::text)")
            pg.execute(f"ALTER TABLE t ADD COLUMN {name} {type_} DEFAULT {constant}")
    oid = pg.value("SELECT 't'::regclass::oid::int8")
    raw = _missing(bootstrap_raw(pg.dsn).mirror, oid)
    sql = _missing(bootstrap_sql(pg.dsn).mirror, oid)
    assert len(raw) == len(columns)
    wrong = {columns[name]: (value, sql[name]) for name, value in raw.items() if sql[name] != value}
    assert wrong == {}


def test_sql_on_another_encoding(pg15: Database) -> None:
    name = f"{pg15.name}_latin"
    pg15.execute(
        f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    try:
        with pg15.cluster.connect(name) as connection:
            connection.execute("CREATE TABLE \"größe\" (id int); CREATE TYPE e AS ENUM ('ä')")
            connection.execute(
                "ALTER TABLE \"größe\" ADD a text DEFAULT 'ö', ADD b e DEFAULT 'ä',"
                ' ADD c jsonb DEFAULT \'{"ü": "ß"}\''
            )
            row = connection.execute(
                "SELECT oid::int8 FROM pg_class WHERE relname = 'größe'"
            ).fetchone()
            assert row is not None
        dsn = pg15.cluster.dsn(name)
        raw, sql = bootstrap_raw(dsn), bootstrap_sql(dsn)
        assert _missing(raw.mirror, row[0]) == _missing(sql.mirror, row[0])
        assert b"\xf6" in bytes(_missing(sql.mirror, row[0])["a"])  # type: ignore[call-overload]
    finally:
        pg15.cluster.drop_database(name)


def test_an_unreadable_value_fails_only_its_table(pg: Database) -> None:
    pg.execute("CREATE TABLE t (id int); INSERT INTO t VALUES (1)")
    pg.execute("ALTER TABLE t ADD COLUMN words tsvector DEFAULT 'a b:3'")
    pg.execute("CREATE TABLE other (id int)")
    # Else an image of the page is in WAL, or reading it prunes it and there is one.
    pg.execute("VACUUM pg_attribute")
    pg.execute("CHECKPOINT")
    bootstrap = bootstrap_sql(pg.dsn)
    oid = pg.value("SELECT 't'::regclass::oid::int8")
    assert _missing(bootstrap.mirror, oid) == {"words": UnreadableMissing("tsvector")}
    replay = CatalogReplay(bootstrap, pg.cluster)
    replay.run()
    with pytest.raises(DecodingError, match=r"column words of public\.t") as caught:
        replay.mirror.resolve_oid(oid)
    assert "raw bootstrap" in caught.value.hint
    other = replay.mirror.resolve_oid(pg.value("SELECT 'other'::regclass::oid::int8"))
    assert other.descriptor is not None
    # The page's image brings the value itself.
    pg.execute("ALTER TABLE t ADD COLUMN again int")
    replay.run()
    descriptor = replay.mirror.resolve_oid(oid).descriptor
    assert descriptor is not None
    assert descriptor.columns[1].missing is not None
