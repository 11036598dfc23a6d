"""Checksums of both sides agree for every value, and find whatever does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from harness.cluster import Cluster
from spillway.lake.verify import checksums
from spillway.lake.verify.comparison import Difference, compare

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

VALUES = """
CREATE TYPE mood AS ENUM ('sad', 'very happy');
CREATE TABLE v (
    id int8 PRIMARY KEY, b bool, i2 int2, i4 int4, i8 int8, f4 float4, f8 float8, n numeric(30,10),
        big numeric, t text,
    c char(8), raw bytea, d date, ts timestamp, tz timestamptz, j jsonb, a int[], r int4range,
        m mood);
INSERT INTO v VALUES
    (1, true, 32767, -2147483648, 9223372036854775807, 'NaN', '-0', 0.0000000001, 1e-30, 'a:b"-',
        'x', '\\x00ff', '2026-11-21',
     '2026-11-21 12:34:56.123456', '2026-11-21 12:34:56.123456+02', '{"b": [1, null], "a": "é"}',
         '{1,NULL}', '[1,5)', 'very happy'),
    (2, false, -32768, 2147483647, -9223372036854775808, 'Infinity', '-Infinity', -1.5,
        123456789012345678901234567890123456789.5,
     E'tab\\t', '', '', '0001-01-01', '1969-12-31 23:59:59.999999', '1900-01-01 00:00:00Z', '0',
         '{}', 'empty', 'sad'),
    (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL),
    (4, true, 0, 0, 0, 1e-45, 1e308, 0, 0, '', '  y', '\\x', '9999-12-31',
        '9999-12-31 23:59:59.999999',
     '2000-02-29 00:00:00+00', '"😀"', '{{1,2},{3,4}}', '(,)', 'sad'),
    (5, true, 1, 1, 1, 0.1, 0.1, 12345678901234567890.0123456789, 'NaN', '😀 ', 'é', '\\xdeadbeef',
        '1582-10-10',
     '1582-10-10 00:00:00', '0044-03-15 12:00:00+00', '{}', NULL, '[-1,0)', 'sad');
"""
#: as the plugin gives them
SCHEMA = pa.schema(
    {
        "id": pa.int64(), "b": pa.bool_(), "i2": pa.int16(), "i4": pa.int32(), "i8": pa.int64(),
        "f4": pa.float32(),
        "f8": pa.float64(), "n": pa.decimal128(30, 10), "big": pa.string(), "t": pa.string(),
        "c": pa.string(),
        "raw": pa.binary(), "d": pa.date32(), "ts": pa.timestamp("us"),
        "tz": pa.timestamp("us", tz="UTC"),
        "j": pa.string(), "a": pa.string(), "r": pa.string(), "m": pa.string(),
    }
)  # fmt: skip


def _same(names: Sequence[str]) -> dict[str, str]:
    return {name: name for name in names}


@pytest.fixture(scope="module")
def source() -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with Cluster(18) as cluster, cluster.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(VALUES.encode())
        yield connection


def lake_rows(spark: SparkSession, connection: psycopg.Connection[tuple[Any, ...]]) -> DataFrame:
    """Read the source's rows with psycopg, and put them where Spark reads them."""
    names = SCHEMA.names
    shown = [f"{c}::text" if SCHEMA.field(c).type == pa.string() and c != "c" else c for c in names]
    cursor = connection.execute(f"SELECT {', '.join(shown)} FROM v ORDER BY id".encode())
    columns = list(zip(*cursor.fetchall(), strict=True))
    batch = pa.table(
        [pa.array(list(c), f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )
    return spark.createDataFrame(batch, from_arrow_schema(SCHEMA, prefer_timestamp_ntz=True))


def test_every_type(spark: SparkSession, source: psycopg.Connection[tuple[Any, ...]]) -> None:
    frame = lake_rows(spark, source)
    assert checksums.unsupported(frame.schema) == []
    for key in (("id",), ("t", "f8"), ()):
        outcome = compare(source, frame, ("public", "v"), _same(SCHEMA.names), key, limit=10)
        assert [str(d) for d in outcome.differences] == []
        assert outcome.equal
        assert (outcome.source_rows, outcome.lake_rows) == (5, 5)


@pytest.mark.parametrize("column", [name for name in SCHEMA.names if name != "id"])
def test_a_change_of_any_column_is_found(
    source: psycopg.Connection[tuple[Any, ...]], column: str
) -> None:
    """PostgreSQL against itself: each column alone decides about a row's hash."""
    spark_types = dict(
        zip(SCHEMA.names, from_arrow_schema(SCHEMA, prefer_timestamp_ntz=True), strict=True)
    )
    texts = checksums.SourceTexts(
        "public", "v", _same(SCHEMA.names), [f.dataType for f in spark_types.values()], ("id",)
    )
    before = texts.buckets(source)
    with source.transaction(force_rollback=True):
        source.execute(f"UPDATE v SET {column} = NULL WHERE id = 2".encode())
        changed = texts.buckets(source)
    assert sum(before[b] != changed[b] for b in before) == 1


def test_what_differs_is_told_by_key(
    spark: SparkSession, source: psycopg.Connection[tuple[Any, ...]]
) -> None:
    frame = lake_rows(spark, source)
    with source.transaction(force_rollback=True):
        source.execute("UPDATE v SET t = 'other', f8 = 1 WHERE id = 1")
        source.execute("DELETE FROM v WHERE id = 2")
        source.execute("INSERT INTO v (id) VALUES (7)")
        outcome = compare(source, frame, ("public", "v"), _same(SCHEMA.names), ("id",), limit=10)
        assert sorted(outcome.differences, key=lambda d: d.key) == [
            Difference(("1",), columns=("f8", "t")),
            Difference(("2",), only="lake"),
            Difference(("7",), only="source"),
        ]
        assert (outcome.equal, outcome.more) == (False, False)
        few = compare(source, frame, ("public", "v"), _same(SCHEMA.names), ("id",), limit=1)
        assert (len(few.differences), few.more) == (1, True)


def test_copies_are_counted(spark: SparkSession) -> None:
    with Cluster(15) as cluster, cluster.connect() as connection:
        connection.execute("CREATE TABLE log (line text, n int)")
        connection.execute("INSERT INTO log SELECT 'a', 1 FROM generate_series(1, 3)")
        connection.execute("INSERT INTO log VALUES ('b', NULL)")
        frame = spark.createDataFrame(
            [("a", 1), ("a", 1), ("b", None), ("b", None)], "line string, n int"
        )
        with connection.transaction():
            outcome = compare(
                connection, frame, ("public", "log"), _same(["line", "n"]), (), limit=10
            )
        assert sorted(outcome.differences, key=lambda d: d.only) == [
            Difference(("b", None), only="lake"),
            Difference(("a", "1"), only="source"),
        ]


@pytest.mark.long
def test_a_source_without_an_encoding(spark: SparkSession) -> None:
    """Lengths in SQL_ASCII are of bytes, in a lake of characters."""
    with Cluster(15) as cluster:
        cluster.execute(
            "CREATE DATABASE bare ENCODING 'SQL_ASCII' TEMPLATE template0"
            " LC_COLLATE 'C' LC_CTYPE 'C'"
        )
        with psycopg.connect(cluster.dsn("bare"), client_encoding="UTF8") as connection:
            connection.execute("CREATE TABLE t (k text, v text)")
            connection.execute("INSERT INTO t VALUES ('ü', 'Grüße'), ('é', 'x')")
            frame = spark.createDataFrame([("ü", "Grüße"), ("é", "y")], "k string, v string")
            outcome = compare(
                connection, frame, ("public", "t"), _same(["k", "v"]), ("k",), limit=10
            )
        assert outcome.differences == [Difference(("é",), columns=("v",))]
