"""Row filters against PostgreSQL's own evaluation of the same expressions over the same rows."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from harness import changes
from harness.announcements import AnnouncingSession
from harness.tiers import majors_by_tier
from spillway.decoding import change_format
from spillway.decoding.sink import TransactionSink
from spillway.errors import DecodingError, UnsupportedFeature
from spillway.plugins.row_filter import compile_row_filter

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database
    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.decoding.transaction import Transaction
    from spillway.plugins.row_filter import RowFilter

COLUMNS = """
id int PRIMARY KEY, i2 int2, i4 int4, i8 int8, o oid, b boolean, f4 real, f8 double precision,
n numeric, m numeric, n2 numeric(10, 2), t text, v varchar(20), c char(8), nm name, by bytea,
    u uuid,
d date, tm time, ts timestamp, tz timestamptz, iv interval, k text COLLATE "C",
    kc char(4) COLLATE "C"
"""

#: Values of each column that are likely to meet each other and the constants below.
VALUES = {
    "i2": ["0", "1", "-1", "5", "32767", "-32768"],
    "i4": ["0", "1", "-1", "5", "7", "100", "2147483647", "-2147483648"],
    "i8": ["0", "1", "-1", "5", "9223372036854775807", "-9223372036854775808", "3000000000"],
    "o": ["0", "1", "4294967295", "16384"],
    "b": ["true", "false"],
    "f4": ["0", "-0", "1.5", "0.1", "NaN", "Infinity", "-Infinity", "1e-40"],
    "f8": ["0", "-0", "1.5", "0.1", "NaN", "Infinity", "-Infinity", "5", "1e300"],
    "n": ["0", "5", "5.0", "-5", "0.1", "0.10000", "1e30", "-1e30", "NaN", "Infinity", "-Infinity"],
    "m": [
        "0.00001",
        "-0.00001",
        "10000",
        "9999",
        "-10000",
        "99990000",
        "2147483647",
        "12345678901234567890.123456789",
    ],
    "n2": ["0", "1.50", "-1.5", "99999999.99", "5"],
    "t": ["", "a", "A", "abc", "aäb", "a%b", "a_b", "a\\b", "%", "line\nbreak", "z", "ß", "日本"],
    "v": ["", "a", "abc", "abc ", "b"],
    "c": ["", "a", "a b", "abc", "abcdefgh"],
    "nm": ["", "a", "pg_class"],
    "by": ["\\x", "\\x00", "\\x00ff", "\\xff"],
    "u": ["00000000-0000-0000-0000-000000000000", "f0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "d": [
        "2000-01-01",
        "1999-12-31",
        "infinity",
        "-infinity",
        "4713-01-01 BC",
        "2024-02-29",
        "5874897-12-31",
    ],
    "tm": ["00:00", "24:00", "12:34:56.789"],
    "ts": ["2000-01-01", "infinity", "-infinity", "1969-07-20 20:17:40", "2024-02-29 12:00"],
    "tz": ["2000-01-01 00:00+00", "infinity", "-infinity", "2024-02-29 12:00+02"],
    "iv": [
        "0",
        "1 month",
        "30 days",
        "720 hours",
        "-1 day",
        "1 day -24 hours",
        "29 days 24:00:00.000001",
    ],
    "k": ["", "a", "A", "b", "ä", "Z", "abc"],
    "kc": ["", "a", "ab", "B"],
}

FILTERS = """
i4 > 5
i4 = 5 AND b
i4 >= i2
i8 < i4
i2 <> i8
i4 > 5 OR t IS NULL
NOT (i4 > 5 AND b)
i4 BETWEEN -1 AND 7
i4 NOT BETWEEN SYMMETRIC 7 AND 0
i4 IN (1, 5, 7)
i4 NOT IN (1, 5, NULL)
i8 IN (1, 3000000000)
i4 = ANY ('{1,NULL,7}')
i4 <> ALL ('{}')
i2 = ANY ('{1,5}'::int2[])
t IN ('a', 'abc', 'ß')
t = ANY ('{a,"a_b",NULL}')
v = 'abc'
t <> v
c = 'abc'
c <> 'a'
c IN ('a', 'a b')
nm = 'pg_class'
nm = t
t LIKE 'a%'
t LIKE '%\\%%'
t LIKE 'a_b'
t LIKE '_'
t NOT LIKE '%b'
t LIKE 'line%break'
v LIKE 'abc_'
length(t) > 1
char_length(v) = 3
length(c) = 3
octet_length(t) > length(t)
b
NOT b
b IS TRUE
b IS NOT TRUE
b IS FALSE
b IS NOT FALSE
b IS UNKNOWN
b IS NOT UNKNOWN
b = true
b < true
(i4 > 5) IS NOT TRUE
(i4 > 5) = b
i4 IS NULL
i4 IS NOT NULL AND i8 IS NULL
i4 IS DISTINCT FROM i2
i4 IS NOT DISTINCT FROM 5
f8 IS DISTINCT FROM f4
t IS DISTINCT FROM v
f8 > 1
f8 = 'NaN'
f8 <= f4
f4 = 0.1
f4 < 'Infinity'
f8 >= 0.1
f8 <> 0
f8 = i4
f8 > i8
n = 5
n > 0.1
n = 0.1
n <> 'NaN'
n < 'Infinity'
n >= -5
n <= -0.00001
n = i4
n > i8
n IN (5, 0.1, 10000)
n2 = 1.5
n2 > n
n2 BETWEEN -1.5 AND 5
m = 12345678901234567890.123456789
m > n
m >= 9999.5
m < i8
m > -10000.00
d = '2000-01-01'
d > '1999-12-31'
d < 'infinity'
d >= '4713-01-01 BC'
d < ts
d = ts
ts >= d
ts <> '2024-02-29'::date
d <= '2024-02-29 00:00:01'::timestamp
tm >= '12:34:56.789'
tm = '24:00'
ts > '2000-01-01'
ts = 'infinity'
ts <= '2024-02-29 12:00:00'
tz > '2000-01-01 00:00+00'
tz = '-infinity'
iv = '30 days'
iv > '1 month'
iv < '0'
iv = '24 hours -1 day'
u = 'f0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'
u > '80000000-0000-0000-0000-000000000000'
by = '\\x00ff'
by > '\\x00'
length(by) = 1
o = 1
o > 16384
k < 'a'
k >= 'Z'
k BETWEEN 'A' AND 'b'
lower(k) = 'a'
upper(k) = 'ABC'
kc > 'a'
kc <= 'B'
t COLLATE "C" > 'a'
lower(t COLLATE "C") = 'abc'
coalesce(i4, 7) = 7
coalesce(i4, i2, 0) > 0
coalesce(t, v, 'none') = 'none'
nullif(i4, 5) IS NULL
nullif(t, 'a') = 'abc'
greatest(i4, i2) = 5
least(i4, i2, 0) < 0
greatest(n, n2) > 5
greatest(f8, f4) = 'NaN'
CASE WHEN i4 > 5 THEN b ELSE i2 = 1 END
CASE i4 WHEN 5 THEN true WHEN 1 THEN false END
CASE WHEN i4 <> 0 THEN 100 / i4 > 10 ELSE false END
i4 <> 0 AND 100 / i4 > 10
i4 = 0 OR 100 % i4 = 1
i2::int4 + i2 = 10
i4 / 2 = 3
i8 % 7 = 5
mod(i4, 3) = -2
i8 % -1 = 0
i2::int4 * 3 > 2
i2::int8 + i4 > 0
abs(i2::int4) = 32768
-(i2::int4) > 5
+i4 = 5
i4::int8 * 2 > 4294967290
b::int4 = 1
i4::boolean
o::int8 = 4294967295
t IS NULL OR v IS NULL OR c IS NULL
(i4 > 5 OR (NULL::boolean)) AND b
true
false
NULL::boolean
i4 = 5 AND (t = 'a' OR (v = 'b' AND NOT b)) OR n = 5
id % 2 = 0
""".strip().splitlines()
#: As long as programs write them.
FILTERS.append(f"i4 IN ({', '.join(map(str, range(3, 1500)))})")

#: What is refused, and a word that the refusal has.
REFUSED = {
    "t > 'a'": "ordering text",
    "c < 'b'": "ordering text",
    "lower(t) = 'a'": "upper and lower",
    "n + 1 > 5": "pg_proc",
    "f8 * 2 > 5": "pg_proc",
    "c = v::char(8)": "a cast",
    "t ILIKE 'a%'": "pg_proc",
    "t ~ 'a'": "pg_proc",
    "t LIKE v": "not a constant",
    "left(t, 1) = 'a'": "pg_proc",
    "i4 = ANY (ARRAY[i2::int4, NULL]) AND iv + iv > '1 day'": "pg_proc",
}

#: Fails on the server for some row that passes what is before it.
FAILING = {
    "100 / i4 > 10": "division by zero",
    "i4 + 1 > 0": "out of range",
    "i2 * i2 > 0": "out of range",
    "i8::int4 > 0": "out of range",
    "abs(i4) > 0": "out of range",
}


class _Capture(TransactionSink):
    def __init__(self) -> None:
        self.chunks: list[tuple[bytes, dict[int, RelationDescriptor]]] = []
        self.consistent_at: int | None = None

    def consistent(self, lsn: int) -> None:
        self.consistent_at = lsn

    def transaction(self, transaction: Transaction) -> None:
        for chunk in transaction.chunks():
            if transaction.relations:
                self.chunks.append((bytes(chunk), dict(transaction.relations)))

    def progress(self, decoded_lsn: int) -> None:
        pass


def _rows(rng: random.Random, first: int, count: int) -> list[str]:
    rows = []
    for i in range(first, first + count):
        cells = [str(i)]
        for values in VALUES.values():
            if rng.random() < 0.12:
                cells.append("NULL")
            else:
                cells.append("'" + rng.choice(values).replace("'", "''") + "'")
        rows.append("(" + ", ".join(cells) + ")")
    return rows


@pytest.mark.parametrize("pg", majors_by_tier([15, 18]), indirect=True, ids=["pg15", "pg18"])
def test_filters_equal_the_server(pg: Database, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    pg.execute(f"CREATE TABLE t ({COLUMNS}); CREATE PUBLICATION p FOR TABLE t")
    sink = _Capture()
    session = AnnouncingSession(pg, tmp_path, sink=sink)
    for first in (0, 150, 300):
        pg.execute(f"INSERT INTO t VALUES {', '.join(_rows(rng, first, 150))}")
    session.decode()
    ((relation, descriptor),) = sink.chunks[0][1].items()
    order = [i for chunk, _ in sink.chunks for i in _ids(chunk, relation)]
    assert len(order) == 450
    with pg.connect() as connection:
        for number, condition in enumerate([*FILTERS, *REFUSED, *FAILING]):
            connection.execute(
                f"CREATE PUBLICATION f{number} FOR TABLE t WHERE ({condition}) WITH (publish = "
                "'insert')"
            )
            row = connection.execute(
                "SELECT prqual::text FROM pg_publication_rel r JOIN pg_publication p ON p.oid = "
                f"prpubid WHERE pubname = 'f{number}'"
            ).fetchone()
            assert row is not None
            (tree,) = row
            if condition in REFUSED:
                with pytest.raises(UnsupportedFeature, match=REFUSED[condition]):
                    compile_row_filter(descriptor, descriptor, [tree])
                continue
            row_filter = compile_row_filter(descriptor, descriptor, [tree])

            if condition in FAILING:
                with pytest.raises(DecodingError, match=FAILING[condition]):
                    _passing(row_filter, sink, relation)
                continue
            theirs = connection.execute(
                f"SELECT id FROM t WHERE {condition} ORDER BY id"
            ).fetchall()
            ours = [
                i
                for i, verdict in zip(order, _passing(row_filter, sink, relation), strict=True)
                if verdict
            ]
            assert ours == [i for (i,) in theirs], (condition, seed)
    session.close()


def _passing(row_filter: RowFilter, sink: _Capture, relation: int) -> bytes:
    return b"".join(
        row_filter.verdicts(chunk, relation, change_format.INSERT, only_local=False)
        for chunk, _ in sink.chunks
    )


def _ids(chunk: bytes, relation: int) -> list[int]:
    ids = []
    for change in changes.parse([memoryview(chunk)]):
        if change.action == change_format.INSERT and change.relation == relation:
            assert isinstance(change.new, tuple)
            _, _, hoff, data = change.new
            ids.append(int.from_bytes(data[hoff - 23 : hoff - 19], "little"))
    return ids
