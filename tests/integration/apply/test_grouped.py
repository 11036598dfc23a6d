"""The grouped writer: what its few statements leave is what the source has, and what could be a
conflict leaves nothing.
"""

from __future__ import annotations

import random
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from psycopg.errors import UniqueViolation

from harness.cluster import Cluster
from harness.exact_apply import Ours, Source, settings
from harness.postgresql_subscription import wait_until
from harness.tiers import deep, majors_by_tier
from spillway._kernels.apply.change_group import ChangeGroup
from spillway.apply.grouped.writer import GroupedWriter
from spillway.apply.tables.target_tables import TargetTables
from spillway.apply.target.session import TargetSession
from spillway.errors import TargetTableMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Database
    from spillway.apply.changes import SourceRelation

_AT_WORK = """
SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
   AND backend_type = 'client backend'
"""


@pytest.fixture(scope="module", params=majors_by_tier([14, 15, 16, 17, 18]))
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(request.param, **settings()) as server:
        yield server


@pytest.fixture
def source(cluster: Cluster) -> Iterator[Source]:
    made = Source.make(cluster)
    yield made
    cluster.drop_database(made.database.name)


@pytest.fixture
def grouped(source: Source) -> Iterator[Grouped]:
    made = Grouped(Ours.make(source))
    yield made
    made.session.close()
    # The backend has the origin until it has ended, and that is after the session is closed.
    wait_until("the session has ended", lambda: not made.database.query(_AT_WORK))
    for (name,) in made.database.query(
        "SELECT roname FROM pg_replication_origin WHERE roname LIKE %s",
        [f"spillway_{made.database.name}_%"],
    ):
        made.database.execute("SELECT pg_replication_origin_drop(%s)", [name])
    made.database.cluster.drop_database(made.database.name)


@dataclass
class Grouped:
    """A target that the grouped writer alone fills."""

    ours: Ours
    bytes_max: int = 1 << 24
    should_apply: Callable[[SourceRelation, int], bool] | None = None
    session: TargetSession = field(init=False)
    writer: GroupedWriter = field(init=False)
    why: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.session = TargetSession(self.ours.plan)
        self.restart()

    def restart(self) -> None:
        self.writer = GroupedWriter(self.session, TargetTables(), self.should_apply)

    @property
    def database(self) -> Database:
        return self.ours.database

    def on_both(self, *statements: str) -> None:
        for statement in statements:
            self.ours.source.database.execute(statement)
            self.database.execute(statement)

    def take(self, *, peek: bool = False) -> list[bool]:
        """Write what the slot has; return what came of each group."""
        messages = self.ours.messages(peek=peek)
        payload = b"".join(messages)
        lengths = b"".join(struct.pack("=I", len(one)) for one in messages)
        group = ChangeGroup(self.bytes_max)
        written = []
        first = 0
        while first < len(messages):
            first = group.feed(payload, lengths, first)
            written.append(self.writer.write(group))
            self.why += [] if written[-1] else [self.writer.why_declined]
            assert self.session.in_transaction == (written[-1] and group.is_piece)
            group.clear()
        return written

    def differing(self, *tables: str) -> list[str]:
        query = "SELECT string_agg(r::text, ';' ORDER BY r::text) FROM {} r"
        return [
            f"{table}: {theirs} {ours}"
            for table in tables
            if (theirs := self.ours.source.database.value(query.format(table)))
            != (ours := self.database.value(query.format(table)))
        ]


# -- values ---------------------------------------------------------------------------------------

TYPES = (
    "CREATE EXTENSION hstore SCHEMA public; CREATE EXTENSION citext SCHEMA public",
    (
        "CREATE TYPE mood AS ENUM ('sad', 'so, so \"quoted\"');"
        " CREATE TYPE pair AS (a int, b text);"
        " CREATE DOMAIN short AS text CHECK (length(VALUE) < 50); CREATE DOMAIN ints AS int[]"
    ),
    (
        "CREATE TABLE v (id int PRIMARY KEY, i2 int2, i8 int8, o bool, f4 float4, f8 float8,"
        ' n numeric(12, 3), nn numeric, t text, vc varchar(20), c char(5), c1 "char", nm name,'
        " b bytea, bit3 bit(3), vb varbit, u uuid, j json, jb jsonb, x xml, d date, tm time,"
        " tz timetz, ts timestamp, tstz timestamptz(3), iv interval, net inet, mac macaddr,"
        " p point, bx box, r int4range, ia int[], ta text[], iaa int[][], box_a box[], m mood,"
        " pr pair, pa pair[], s short, di ints, h hstore, ci citext, ov oidvector, mo money,"
        " tsv tsvector, xid8 xid, mr mood[])"
    ),
)
VALUES = (
    (
        "1, 32767, 9223372036854775807, true, 'NaN', '-Infinity', 1.5, 'NaN', 'a', 'b', 'c', 'd',"
        " 'e', '\\x00ff', '101', '', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{\"a\": [1, null]}',"
        " '{\"a\": \"\\\\\\\\ \\\"\"}', '<a b=\"c\">x</a>', '2026-02-28', '23:59:59.999999',"
        " '01:02+03:30', '1999-12-31 23:59:59.5', '2026-07-01 00:00+02', '1 mon -2 days 03:04',"
        " '10.0.0.0/8', '08:00:2b:01:02:03', '(1,2)', '(1,2),(3,4)', '[1,5)', '{1,NULL,3}',"
        ' \'{"a\\"","\\\\\\\\",NULL,"NULL",""}\', \'{{1,2},{3,4}}\','
        " '{(1,2),(0,0);(3,3),(1,1)}', 'sad', '(1,\"a \\\"b\\\"\")', '{\"(1,x)\",NULL}', 'ok',"
        " '{1,2}', 'a=>1,\"b c\"=>NULL', 'CiText', '1 2 3', '12.34', 'fat:2 cat', '77',"
        " '{sad,NULL}'"
    ),
    (
        "2, -32768, -9223372036854775808, false, '1e-40', '1e308', -0.0005, '1e100',"
        " E'\\\\ \" '' \\t\\n\\r ü {}', '', '', '', '', '', '000', '1',"
        " '00000000-0000-0000-0000-000000000000', ' 1 ', 'null', '', '0044-03-15 BC', '24:00:00',"
        " '00:00-15:59:59', 'infinity', '-infinity', '-1 years', '::1/128', '00:00:00:00:00:00',"
        " '(NaN,0)', '(0,0),(0,0)', 'empty', '{}', '{}', '{}', '{}', 'so, so \"quoted\"', '(,)',"
        " '{}', '', '{}', '', '', '', '-1', '', '0', '{}'"
    ),
    (
        "3, 0, 0, NULL, '-0', '0', 0, '-12345678901234567890.000', '\\N', 'NULL', E'\\\\',"
        " E'\\\\', '\"', '\\x5c', '111', '0101', NULL, '\"\\u00e9\"', '[]', 'a<b/>c', 'infinity',"
        " '00:00', NULL, '0001-01-01 00:00:00', '0099-06-06 12:00:00+00', '00:00:00.000001', NULL,"
        " NULL, NULL, NULL, '(,)', '[0:1]={7,8}', '{{a,b}}', NULL, NULL, NULL, '(5,)', NULL, NULL,"
        " '{NULL}', NULL, 'é', NULL, NULL, NULL, NULL, NULL"
    ),
)


def test_values_of_all_types(grouped: Grouped) -> None:
    """By INSERT, by UPDATE and by COPY, in text and in binary forms."""
    grouped.on_both(*TYPES)
    source = grouped.ours.source.database
    for one in VALUES:
        source.execute(f"INSERT INTO v VALUES ({one})")
    source.execute("INSERT INTO v (id) VALUES (4)")
    assert grouped.take() == [True], grouped.why
    assert grouped.differing("v") == []
    columns = source.value(
        "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute"
        " WHERE attrelid = 'v'::regclass AND attnum > 1"
    )
    source.execute(
        f"UPDATE v SET ({columns}) = (SELECT {columns} FROM v o WHERE o.id = v.id % 4 + 1)"
    )
    assert grouped.take() == [True], grouped.why
    assert grouped.differing("v") == []
    source.execute(
        f"INSERT INTO v SELECT nth * 10 + id, {columns} FROM v, generate_series(1, 60) nth"
    )
    assert grouped.take() == [True], grouped.why
    assert grouped.differing("v") == []
    source.execute("DELETE FROM v WHERE id % 3 = 0")
    assert grouped.take() == [True], grouped.why
    assert grouped.differing("v") == []


KEYS = {
    "k_text": ("text", "md5({n}::text) || ' \"\\ '"),
    "k_citext": ("citext", "'A' || {n}"),
    "k_numeric": ("numeric", "{n} + 0.50"),
    "k_uuid": ("uuid", "md5({n}::text)::uuid"),
    "k_bytea": ("bytea", "decode(md5({n}::text), 'hex')"),
    "k_char": ("char(8)", "'c' || {n}"),
    "k_time": ("timestamptz", "to_timestamp({n}::float8 * 86413.5)"),
    "k_bool_int": ("int", "{n}"),
    "k_float": ("float8", "{n} / 3.0::float8"),
    "k_array": ("int[]", "ARRAY[{n}, NULL, 1]"),
    "k_date": ("date", "'2000-01-01'::date + {n}"),
    "k_interval": ("interval", "make_interval(days => {n})"),
}


def test_keys_of_many_types(grouped: Grouped) -> None:
    grouped.on_both("CREATE EXTENSION citext SCHEMA public")
    source = grouped.ours.source.database
    for table, (kind, key) in KEYS.items():
        grouped.on_both(f"CREATE TABLE {table} (k {kind}, o bool, v text, PRIMARY KEY (o, k))")
        grouped.on_both(f"CREATE INDEX ON {table} (v)")
        source.execute(
            f"INSERT INTO {table} SELECT {key.format(n='n')}, true, 'x'"
            " FROM generate_series(1, 9) n"
        )
    assert grouped.take() == [True], grouped.why
    for table, (_, key) in KEYS.items():
        source.execute(
            f"UPDATE {table} SET v = 'y' WHERE k IN ({key.format(n=2)}, {key.format(n=3)})"
        )
        source.execute(f"DELETE FROM {table} WHERE k = {key.format(n=4)}")
        source.execute(f"UPDATE {table} SET k = {key.format(n=77)} WHERE k = {key.format(n=5)}")
    assert grouped.take() == [True], grouped.why
    assert grouped.differing(*KEYS) == []


# -- histories ------------------------------------------------------------------------------------

TABLES = (
    "CREATE TABLE a (id int PRIMARY KEY, v int, t text)",
    "CREATE TABLE b (id int PRIMARY KEY, u int UNIQUE, v int)",
    "CREATE TABLE c (x int, y text, v text, PRIMARY KEY (y, x))",
    (
        "CREATE TABLE d (id int PRIMARY KEY, v int, toasted text, other text);"
        " ALTER TABLE d ALTER toasted SET STORAGE EXTERNAL, ALTER other SET STORAGE EXTERNAL"
    ),
    "CREATE TABLE e (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v int)",
    "CREATE TABLE f (id int PRIMARY KEY, v int, t text); ALTER TABLE f REPLICA IDENTITY FULL",
    "CREATE TABLE only_inserted (v int, t text)",
    'CREATE TABLE "Odd, one%s" ("a b" int PRIMARY KEY, v int, "sel""ect" int[])',
)
_PARTED = (
    "CREATE TABLE p (id int, place int, v int, PRIMARY KEY (id, place)) PARTITION BY LIST (place)"
)
NAMES = ("(SELECT id, v, t FROM a)", "b", "c", "d", "e", "f", "p", "only_inserted", '"Odd, one%s"')
_BIG = "repeat(md5({}::text), 100)"


def _statement(draw: random.Random) -> str:
    n, m = draw.randrange(12), draw.randrange(12)
    return draw.choice(
        [
            f"INSERT INTO a VALUES ({n}, {m}, 'x') ON CONFLICT (id) DO UPDATE SET v = {m}",
            f"UPDATE a SET t = 'y{m}' WHERE id = {n}",
            f"DELETE FROM a WHERE id = {n}",
            f"UPDATE a SET id = {m + 20} WHERE id = {n}",
            (
                f"UPDATE a SET id = {n} WHERE id = {m + 20}"
                f" AND NOT EXISTS (SELECT FROM a WHERE id = {n})"
            ),
            f"INSERT INTO b VALUES ({n}, {m}, 0) ON CONFLICT DO NOTHING",
            f"UPDATE b SET u = {m} WHERE id = {n} AND NOT EXISTS (SELECT FROM b WHERE u = {m})",
            f"UPDATE b SET v = v + 1 WHERE id >= {n}",
            f"DELETE FROM b WHERE u = {m}",
            f"INSERT INTO c VALUES ({n}, 'k{m % 3}', 'v') ON CONFLICT DO NOTHING",
            f"UPDATE c SET v = 'w{m}' WHERE x = {n}",
            f"UPDATE c SET x = x + 100 WHERE x = {n}",
            f"DELETE FROM c WHERE x = {n} AND y = 'k{m % 3}'",
            (
                f"INSERT INTO d VALUES ({n}, 0, {_BIG.format(n)}, {_BIG.format(m)})"
                " ON CONFLICT DO NOTHING"
            ),
            f"UPDATE d SET v = {m} WHERE id = {n}",
            f"UPDATE d SET v = {m}, toasted = {_BIG.format(m)} WHERE id = {n}",
            f"UPDATE d SET other = {_BIG.format(m)} WHERE id <= {n}",
            (
                f"UPDATE d SET id = {m + 30} WHERE id = {n}"
                f" AND NOT EXISTS (SELECT FROM d WHERE id = {m + 30})"
            ),
            f"DELETE FROM d WHERE id = {n}",
            "INSERT INTO e (v) VALUES (1), (2)",
            f"UPDATE e SET v = {m} WHERE id % 12 = {n}",
            f"DELETE FROM e WHERE id % 12 = {n}",
            f"INSERT INTO f VALUES ({n}, {m}, NULL) ON CONFLICT (id) DO UPDATE SET v = {m}",
            f"UPDATE f SET t = 't{m}' WHERE id = {n}",
            f"DELETE FROM f WHERE id = {n}",
            f"INSERT INTO p VALUES ({n}, {m % 3}, 0) ON CONFLICT DO NOTHING",
            f"UPDATE p SET v = v + 1 WHERE id = {n}",
            (
                f"UPDATE p SET place = {m % 3} WHERE id = {n} AND place < 3 AND NOT EXISTS"
                f" (SELECT FROM p o WHERE o.id = {n} AND o.place = {m % 3})"
            ),
            f"DELETE FROM p WHERE id = {n}",
            f"INSERT INTO only_inserted SELECT n, 'x' FROM generate_series(1, {m}) n",
            f'INSERT INTO "Odd, one%s" VALUES ({n}, 0, ARRAY[{m}]) ON CONFLICT DO NOTHING',
            f'UPDATE "Odd, one%s" SET v = {m} WHERE "a b" = {n}',
            f'DELETE FROM "Odd, one%s" WHERE "a b" = {n}',
            draw.choice(["TRUNCATE a", "TRUNCATE c, e RESTART IDENTITY", "SELECT 1", "SELECT 1"]),
        ]
    )


def _history(database: Database, draw: random.Random, transactions: int) -> None:
    with database.connect() as connection:
        for _ in range(transactions):
            with connection.transaction():
                for _ in range(draw.randrange(1, 9)):
                    with suppress(UniqueViolation), connection.transaction():
                        connection.execute(_statement(draw))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [1, deep(2), deep(3), deep(4), deep(5), deep(6)])
def test_a_history_leaves_what_the_source_has(grouped: Grouped, seed: int) -> None:
    """Whole groups and single transactions, by COPY and without; nothing has to be written change
    by change, as nobody else writes there.
    """
    source = grouped.ours.source.database
    grouped.on_both(*TABLES, _PARTED)
    grouped.database.execute("ALTER TABLE a ADD more int DEFAULT 7")
    source.execute("CREATE TABLE p0 PARTITION OF p FOR VALUES IN (0, 1, 2)")
    source.execute("ALTER PUBLICATION everything SET (publish_via_partition_root = true)")
    grouped.database.execute(
        "CREATE TABLE p0 PARTITION OF p FOR VALUES IN (0);"
        "CREATE TABLE p1 PARTITION OF p DEFAULT PARTITION BY HASH (id);"
        "CREATE TABLE p10 PARTITION OF p1 FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
        "CREATE TABLE p11 PARTITION OF p1 FOR VALUES WITH (MODULUS 2, REMAINDER 1)"
    )
    draw = random.Random(seed)
    for grouped.bytes_max, grouped.writer.copy_from in (
        (1 << 24, 0),
        (1 << 24, 1),
        (1, 3),
        (8192, 2),
    ):
        _history(source, draw, 40)
        with source.connect() as connection:
            connection.execute("SELECT pg_logical_emit_message(true, 'p', 'passed over')")
        written = grouped.take()
        assert all(written), grouped.why
        assert grouped.differing(*NAMES) == []
        assert grouped.database.value("SELECT count(*) FROM a WHERE more IS DISTINCT FROM 7") == 0
    assert grouped.writer.declined == 0


def test_few_statements_are_enough(grouped: Grouped) -> None:
    """A thousand transactions, twelve rows: two statements for a table, and what is prepared is
    prepared once.
    """
    source = grouped.ours.source.database
    grouped.on_both(TABLES[0])
    source.execute("INSERT INTO a SELECT n, 0, '' FROM generate_series(1, 12) n")
    assert grouped.take() == [True], grouped.why
    assert grouped.writer.statements == 1
    with source.connect() as connection:
        for n in range(1000):
            connection.execute("UPDATE a SET v = v + 1 WHERE id = %s", [n % 12 + 1])
        connection.execute("DELETE FROM a WHERE id = 5")
    assert grouped.take() == [True], grouped.why
    assert grouped.writer.statements == 3
    assert grouped.differing("a") == []


# -- what may be a conflict -----------------------------------------------------------------------

CONFLICTS = {
    "update_missing": ("DELETE FROM b WHERE id = 1", "UPDATE b SET v = 5 WHERE id = 1"),
    "delete_missing": ("DELETE FROM b WHERE id = 1", "DELETE FROM b WHERE id = 1"),
    "insert_exists": ("INSERT INTO b VALUES (9, 9, 9)", "INSERT INTO b VALUES (9, 90, 0)"),
    "insert_exists, and is deleted": (
        "INSERT INTO a VALUES (9, 9, '')",
        "INSERT INTO a VALUES (9, 0, ''); DELETE FROM a WHERE id = 9",
    ),
    "another unique index": ("INSERT INTO b VALUES (9, 90, 9)", "INSERT INTO b VALUES (7, 90, 0)"),
    "another unique index, and is deleted": (
        "INSERT INTO b VALUES (9, 90, 9)",
        "INSERT INTO b VALUES (7, 90, 0); DELETE FROM b WHERE id = 7",
    ),
    "another unique index, and is changed": (
        "INSERT INTO b VALUES (9, 90, 9)",
        "UPDATE b SET u = 90 WHERE id = 1; UPDATE b SET u = 91 WHERE id = 1",
    ),
    "update_exists": ("INSERT INTO b VALUES (9, 90, 9)", "UPDATE b SET id = 9 WHERE id = 1"),
    "update_origin_differs": ("UPDATE b SET v = 7 WHERE id = 1", "UPDATE b SET v = 5 WHERE id = 1"),
    "delete_origin_differs": ("UPDATE b SET v = 7 WHERE id = 1", "DELETE FROM b WHERE id = 1"),
    "a constraint": ("ALTER TABLE b ADD CHECK (v < 5)", "UPDATE b SET v = 5 WHERE id = 1"),
    "a value that its type refuses": (
        "ALTER TABLE b ALTER v TYPE int2",
        "UPDATE b SET v = 99999 WHERE id = 1",
    ),
    "a trigger": (
        (
            "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
            " CREATE TRIGGER t BEFORE UPDATE ON b FOR EACH ROW EXECUTE FUNCTION f();"
            " ALTER TABLE b ENABLE ALWAYS TRIGGER t"
        ),
        "UPDATE b SET v = 5 WHERE id = 1",
    ),
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_what_may_be_a_conflict_leaves_nothing(grouped: Grouped, name: str) -> None:
    locally, remotely = CONFLICTS[name]
    grouped.on_both(*TABLES[:2])
    source = grouped.ours.source.database
    source.execute("INSERT INTO b VALUES (1, 1, 1), (2, 2, 2); INSERT INTO a VALUES (1, 1, '')")
    assert grouped.take() == [True], grouped.why
    position = grouped.session.position
    grouped.database.execute(locally)
    before = grouped.database.query("SELECT * FROM b ORDER BY id")
    source.execute("UPDATE b SET v = 3 WHERE id = 2; INSERT INTO b VALUES (3, 3, 3)")
    for statement in remotely.split("; "):
        source.execute(statement)
    assert grouped.take(peek=True) == [False]
    assert grouped.writer.declined == 1
    assert not grouped.session.in_transaction
    assert grouped.session.position == position
    assert grouped.database.query("SELECT * FROM b ORDER BY id") == before
    # … and it goes on.
    source.execute("INSERT INTO a VALUES (2, 2, '')")
    grouped.ours.messages()
    source.execute("INSERT INTO a VALUES (3, 3, '')")
    assert grouped.take() == [True], grouped.why


def test_what_only_the_commit_refuses_leaves_nothing(grouped: Grouped) -> None:
    grouped.on_both("CREATE TABLE late (id int PRIMARY KEY, u int)")
    grouped.database.execute(
        "ALTER TABLE late ADD UNIQUE (u) DEFERRABLE INITIALLY DEFERRED;"
        " INSERT INTO late VALUES (0, 7)"
    )
    # As for a role that may not set it: what is deferred is checked.
    grouped.session.connection.execute("SET session_replication_role = origin")
    source = grouped.ours.source.database
    source.execute("INSERT INTO late VALUES (1, 1)")
    assert grouped.take() == [True]
    before = grouped.session.position
    source.execute("INSERT INTO late VALUES (2, 7)")
    assert grouped.take() == [False]
    assert "late_u_key" in grouped.why[-1]
    assert grouped.session.position == before
    # What was sent at one go with it is not there either, and the next has what it needs.
    source.execute("INSERT INTO late VALUES (3, 3)")
    assert grouped.take() == [True]
    assert grouped.session.position > before
    assert grouped.database.query("SELECT * FROM late ORDER BY id") == [(0, 7), (1, 1), (3, 3)]
    assert grouped.database.value("SELECT remote_lsn::text FROM spillway.progress") == str(
        grouped.session.position
    )


def test_a_statement_behind_one_that_failed_is_prepared_again(grouped: Grouped) -> None:
    grouped.on_both(
        "CREATE TABLE first (id int PRIMARY KEY)", "CREATE TABLE second (id int PRIMARY KEY)"
    )
    grouped.database.execute("INSERT INTO first VALUES (1); INSERT INTO second VALUES (1)")
    source = grouped.ours.source.database
    for expected, number in ((False, 1), (True, 2)):
        source.execute(
            f"BEGIN; INSERT INTO first VALUES ({number}); INSERT INTO second VALUES ({number});"
            " COMMIT"
        )
        assert grouped.take() == [expected]
    assert grouped.database.query("TABLE first") == grouped.database.query("TABLE second")
    assert grouped.database.query("TABLE first") == [(1,), (2,)]


def test_values_that_swap_within_a_group(grouped: Grouped) -> None:
    """A value of another unique index goes from row to row: each history is either written in an
    order that is right, or declined.
    """
    grouped.on_both(TABLES[1])
    source = grouped.ours.source.database
    source.execute("INSERT INTO b VALUES (1, 1, 0), (2, 2, 0), (3, 3, 0)")
    assert grouped.take() == [True], grouped.why
    for statements in (
        ["DELETE FROM b WHERE id = 1", "INSERT INTO b VALUES (4, 1, 0)"],
        ["UPDATE b SET u = 9 WHERE id = 2", "INSERT INTO b VALUES (5, 2, 0)"],
        ["UPDATE b SET v = 1 WHERE id = 3", "UPDATE b SET u = 8 WHERE id = 4",
         "UPDATE b SET u = 1 WHERE id = 3"],
        ["UPDATE b SET u = -1 WHERE id = 3", "UPDATE b SET u = 1 WHERE id = 4",
         "UPDATE b SET u = 8 WHERE id = 3"],
    ):  # fmt: skip
        for statement in statements:
            source.execute(statement)
        assert grouped.take() == [True], grouped.why
        assert grouped.differing("b") == []


# -- pieces, tables that wait ---------------------------------------------------------------------


def test_a_large_transaction_comes_in_pieces(grouped: Grouped) -> None:
    grouped.on_both(TABLES[0])
    source = grouped.ours.source.database
    source.execute(
        "BEGIN; INSERT INTO a SELECT n, 0, repeat('x', 50) FROM generate_series(1, 3000) n;"
        " UPDATE a SET v = id WHERE id % 3 = 0; DELETE FROM a WHERE id % 7 = 0; COMMIT"
    )
    source.execute("INSERT INTO a VALUES (0, 0, '')")
    grouped.bytes_max = 40_000
    written = grouped.take()
    assert len(written) > 5
    assert all(written), grouped.why
    assert grouped.differing("a") == []


def test_a_piece_that_does_not_fit_takes_back_those_before(grouped: Grouped) -> None:
    grouped.on_both(TABLES[0])
    grouped.database.execute("INSERT INTO a VALUES (2999, 0, 'local')")
    source = grouped.ours.source.database
    source.execute("INSERT INTO a SELECT n, 0, repeat('x', 50) FROM generate_series(1, 3000) n")
    grouped.bytes_max = 40_000
    messages = grouped.ours.messages(peek=True)
    group = ChangeGroup(grouped.bytes_max)
    payload = b"".join(messages)
    lengths = b"".join(struct.pack("=I", len(one)) for one in messages)
    first, written = 0, [True]
    while written[-1] and first < len(messages):
        first = group.feed(payload, lengths, first)
        written.append(grouped.writer.write(group))
        group.clear()
    assert len(written) > 3
    assert not written[-1]
    assert grouped.database.query("SELECT * FROM a") == [(2999, 0, "local")]


def test_tables_that_wait_are_left_out_until_they_count(grouped: Grouped) -> None:
    source = grouped.ours.source.database
    grouped.on_both(*TABLES[:2])
    for n in range(6):
        source.execute(f"INSERT INTO a VALUES ({n}, 0, ''); INSERT INTO b VALUES ({n}, {n}, 0)")
    messages = grouped.ours.messages(peek=True)
    commits = [int.from_bytes(one[2:10], "big") for one in messages if one[:1] == b"C"]
    grouped.should_apply = lambda relation, lsn: relation.name == "a" or lsn >= commits[-2]
    grouped.restart()
    assert grouped.take() == [True], grouped.why
    assert grouped.differing("a") == []
    assert grouped.database.query("SELECT id FROM b ORDER BY id") == [(4,), (5,)]


def test_a_table_that_the_target_does_not_have(grouped: Grouped) -> None:
    grouped.ours.source.database.execute(
        "CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1)"
    )
    with pytest.raises(TargetTableMissing, match=r'"public\.a" does not exist'):
        grouped.take(peek=True)
    grouped.database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    grouped.restart()
    assert grouped.take() == [True], grouped.why
    assert grouped.differing("a") == []
