"""DDL in streamed transactions: test_decoding's lines beside PostgreSQL's.

Change by change where the server can be told to (16 to 18); from 14 on in blocks of 64 kB, which
both sides cut at places of their own: then the changes of each transaction and their order are
compared.
"""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import psycopg
import pytest

from harness.decoding_session import DecodingSession
from harness.logical_stream import LogicalStream, StreamedLine
from harness.tiers import majors_by_tier
from oracle.test_streaming import IMMEDIATELY, LONG

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from conftest import ClusterFactory
    from harness.cluster import Database
    from harness.oracle import OracleChange

WORK_MEM_BYTES = 64 << 10
OPTIONS = {"stream-changes": "on"}
PGOUTPUT = {"proto_version": "2", "publication_names": "p", "streaming": "on"}
BLOCKS = ("opening a streamed", "closing a streamed")

TABLES = """
CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text, big text)
CREATE TABLE u (id int PRIMARY KEY, v text)
CREATE TABLE parts (id int, v text) PARTITION BY RANGE (id)
CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (100)
ALTER TABLE t ALTER big SET STORAGE EXTERNAL
"""

#: One command a line; {rows} are what makes a block of it, or a few.
FILL = "INSERT INTO t (v) SELECT repeat('x', 200) FROM generate_series(1, {rows})"

#: Nothing in them is rolled back.
KINDS = {
    "add and drop columns": f"""
{FILL}
ALTER TABLE t ADD COLUMN n int DEFAULT 5
INSERT INTO t (v) VALUES ('with n')
{FILL}
ALTER TABLE t ADD COLUMN m text
UPDATE t SET m = 'set' WHERE id < 3
ALTER TABLE t DROP COLUMN n
{FILL}
ALTER TABLE t RENAME COLUMN m TO w
DELETE FROM t WHERE id = 1
ALTER TABLE t RENAME TO renamed
INSERT INTO renamed (v) VALUES ('elsewhere')
{FILL.replace("INTO t", "INTO renamed")}
""",
    "rewrites": f"""
INSERT INTO t (v, big) VALUES ('large', {LONG.format("1")})
{FILL}
INSERT INTO t (v, big) VALUES ('large', {LONG.format("2")})
ALTER TABLE t ALTER id TYPE bigint
INSERT INTO t (v, big) VALUES ('rewritten', {LONG.format("3")})
ALTER TABLE t ADD COLUMN r float8 DEFAULT random()
UPDATE t SET v = 'kept', r = 1 WHERE big IS NOT NULL
SAVEPOINT a
ALTER TABLE t ALTER r TYPE text USING 'now text'
{FILL}
RELEASE a
CLUSTER t USING t_pkey
UPDATE t SET big = {LONG.format("4")} WHERE v = 'kept'
ALTER TABLE t SET UNLOGGED
INSERT INTO t (v) VALUES ('not logged')
ALTER TABLE t SET LOGGED
INSERT INTO t (v) VALUES ('logged')
ALTER TABLE u ALTER v TYPE int USING 1, ADD COLUMN w text
INSERT INTO u VALUES (1, 2, 'other table')
{FILL}
""",
    "truncate": f"""
INSERT INTO u VALUES (1, 'gone')
{FILL}
TRUNCATE u
INSERT INTO u VALUES (1, 'new')
SAVEPOINT a
TRUNCATE t, u RESTART IDENTITY
{FILL}
RELEASE a
TRUNCATE parts
{FILL}
""",
    "made here": f"""
CREATE TABLE made (id int PRIMARY KEY, v text)
INSERT INTO made VALUES (1, 'one')
{FILL}
SAVEPOINT a
CREATE TABLE another AS SELECT g AS i, repeat('y', 100) AS v FROM generate_series(1, {{rows}}) g
ALTER TABLE another ADD PRIMARY KEY (i)
UPDATE another SET v = 'changed' WHERE i = 1
RELEASE a
{FILL}
CREATE MATERIALIZED VIEW seen AS SELECT * FROM made
REFRESH MATERIALIZED VIEW seen
CREATE TEMP TABLE gone (i int)
INSERT INTO gone VALUES (1)
CREATE TYPE mood AS ENUM ('fine')
ALTER TABLE made ADD COLUMN m mood DEFAULT 'fine'
INSERT INTO made VALUES (2, {LONG.format("5")})
CREATE TABLE part2 PARTITION OF parts FOR VALUES FROM (100) TO (200)
INSERT INTO parts VALUES (1, 'in one'), (101, 'in the other')
ALTER TABLE parts DETACH PARTITION part
INSERT INTO part VALUES (2, 'alone')
{FILL}
DROP TABLE another
{FILL}
""",
    "indexes and settings": f"""
{FILL}
CREATE INDEX ON t (v)
{FILL}
ALTER TABLE u REPLICA IDENTITY FULL
INSERT INTO u VALUES (1, 'before')
UPDATE u SET v = 'after'
SAVEPOINT a
CREATE UNIQUE INDEX u_v ON u (v)
ALTER TABLE u ALTER v SET NOT NULL
ALTER TABLE u REPLICA IDENTITY USING INDEX u_v
DELETE FROM u
RELEASE a
REINDEX TABLE t
ALTER TABLE t ALTER v SET STATISTICS 10
COMMENT ON TABLE t IS 'told'
ANALYZE t
{FILL}
CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql \
AS 'BEGIN NEW.v := ''by trigger''; RETURN NEW; END'
CREATE TRIGGER g BEFORE INSERT ON u FOR EACH ROW EXECUTE FUNCTION f()
INSERT INTO u VALUES (2, 'by hand') ON CONFLICT (id) DO NOTHING
{FILL}
""",
}

#: The server is given time (+) to stream what is rolled back: of what it knows to be, it leaves
#: changes out. The table that is rewritten is not the one that was altered and rolled back before:
#: of such a one PostgreSQL takes the commands that the first had for the second's, and fails
#: ("could not map filenumber").
ABORTS = f"""
BEGIN
{FILL}
SAVEPOINT a
ALTER TABLE u ADD COLUMN n int DEFAULT 5
INSERT INTO u VALUES (1, 'lost')
{FILL}
+
ROLLBACK TO a
INSERT INTO t (v) VALUES ('kept')
SAVEPOINT b
CREATE TABLE made (id int PRIMARY KEY)
SAVEPOINT c
INSERT INTO made SELECT g FROM generate_series(1, {{rows}}) g
{FILL}
+
ROLLBACK TO c
INSERT INTO made VALUES (1)
RELEASE b
{FILL}
SAVEPOINT d
ALTER TABLE t ALTER id TYPE bigint
TRUNCATE u
INSERT INTO t (v, big) VALUES ('lost', {LONG.format("6")})
{FILL}
+
ROLLBACK TO d
INSERT INTO t (v, big) VALUES ('kept', {LONG.format("7")})
{FILL}
COMMIT
BEGIN
{FILL}
ALTER TABLE t ADD COLUMN lost int
{FILL}
+
ROLLBACK
INSERT INTO t (v) VALUES ('after')
"""


@pytest.fixture
def database(request: pytest.FixtureRequest, session_cluster: ClusterFactory) -> Iterator[Database]:
    cluster = session_cluster(request.param)
    database = cluster.create_database(f"streamed_ddl_{random.getrandbits(32):08x}")
    for statement in TABLES.strip().splitlines():
        database.execute(statement)
    yield database
    cluster.drop_database(database.name)


def on_majors(*majors: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "database", majors_by_tier(majors), ids=[f"pg{major}" for major in majors], indirect=True
    )


def statements(script: str, rows: int) -> list[str]:
    return [line.replace("{rows}", str(rows)) for line in script.strip().splitlines()]


def immediate(database: Database, directory: Path) -> DecodingSession:
    return DecodingSession(
        database, directory, stream_bytes=0, options=OPTIONS, settings=IMMEDIATELY
    )


def in_blocks(
    database: Database,
    directory: Path,
    plugin: str = "test_decoding",
    options: Mapping[str, str] = OPTIONS,
) -> DecodingSession:
    return DecodingSession(
        database, directory, work_mem_bytes=WORK_MEM_BYTES // 2, stream_bytes=WORK_MEM_BYTES,
        options=options, settings={"logical_decoding_work_mem": f"{WORK_MEM_BYTES >> 10}kB"},
        plugin=plugin,
    )  # fmt: skip


def changes_of(lines: Iterable[OracleChange]) -> dict[int, list[str]]:
    """Say what there is of each transaction, wherever its blocks begin and end."""
    kept: dict[int, list[str]] = {}
    for line in lines:
        if not line.data.startswith(BLOCKS):
            kept.setdefault(line.xid, []).append(line.data)
    return kept


def assert_same_changes(ours: list[OracleChange], theirs: Iterable[OracleChange]) -> None:
    """Compare what there is of each transaction that was streamed here."""
    streamed = {line.xid for line in ours if line.data.startswith(BLOCKS)}
    assert streamed
    mine, expected = changes_of(ours), changes_of(theirs)
    for xid in streamed:
        for i, pair in enumerate(itertools.zip_longest(mine[xid], expected[xid])):
            assert pair[0] == pair[1], f"change {i} of {len(expected[xid])} in {xid}"


@on_majors(16, 17, 18)
@pytest.mark.parametrize("kind", KINDS)
def test_change_by_change(database: Database, tmp_path: Path, kind: str) -> None:
    session = immediate(database, tmp_path)
    with database.connect() as connection:
        for statement in ("BEGIN", *statements(KINDS[kind], 3), "COMMIT"):
            connection.execute(statement)
    lines = session.assert_equal_to_server()
    assert sum(line.data.startswith("opening a streamed") for line in lines) > 10
    session.close()


@on_majors(14, 15, 16, 17, 18)
@pytest.mark.parametrize("kind", KINDS)
def test_in_blocks(database: Database, tmp_path: Path, kind: str) -> None:
    session = in_blocks(database, tmp_path)
    with database.connect() as connection:
        for statement in ("BEGIN", *statements(KINDS[kind], 600), "COMMIT"):
            connection.execute(statement)
    ours = session.decode()
    assert sum(line.data.startswith("opening a streamed") for line in ours) > 2
    assert_same_changes(ours, session.slot.peek(OPTIONS))
    session.close()


def follow(
    session: DecodingSession, script: list[str]
) -> tuple[list[StreamedLine], list[StreamedLine]]:
    """Run *script* with the server's decoding beside it; return our lines and the server's, from
    our first.
    """
    database = session.database
    with LogicalStream(session.slot, OPTIONS) as stream, database.connect() as connection:
        for line in script:
            if line == "+":
                database.execute("SELECT pg_logical_emit_message(false, 'flush', '')")
                database.execute("CHECKPOINT")
                stream.read_to(database.value("SELECT pg_current_wal_flush_lsn()::text"))
            elif line.startswith("!"):
                with pytest.raises(psycopg.errors.ProgramLimitExceeded):
                    connection.execute(line[1:])
            else:
                connection.execute(line)
        ours = [StreamedLine(line.lsn, line.data) for line in session.decode()]
        stream.read_to(database.value("SELECT pg_current_wal_flush_lsn()::text"))
        first = next(i for i, line in enumerate(stream.lines) if line in ours)
        return ours, stream.lines[first:]


@on_majors(16, 17, 18)
def test_aborts_change_by_change(database: Database, tmp_path: Path) -> None:
    session = immediate(database, tmp_path)
    ours, theirs = follow(session, statements(ABORTS, 3))
    assert sum(line.data.startswith("aborting streamed") for line in ours) > 3
    for i, (mine, expected) in enumerate(zip(ours, theirs, strict=False)):
        assert mine == expected, f"line {i} of {len(ours)}"
    session.close()


def applied(messages: Iterable[OracleChange]) -> dict[int, list[tuple[bytes, bytes]]]:
    """Do what a consumer of pgoutput does with streamed transactions; return what is left of each
    at its commit.

    A change comes with the definition of its table that was announced last; what was rolled back is
    gone.
    """
    received: dict[int, list[tuple[int, bytes, bytes]]] = {}
    committed: dict[int, list[tuple[bytes, bytes]]] = {}
    announced: dict[bytes, bytes] = {}
    top_xid = 0
    for message in messages:
        data = bytes.fromhex(message.data.removeprefix("\\x"))
        kind, xid, body = data[:1], int.from_bytes(data[1:5], "big"), data[5:]
        if kind == b"S":
            top_xid = xid
            received.setdefault(xid, [])
        elif kind == b"E":
            top_xid = 0
        elif kind == b"A":
            subxid = int.from_bytes(body[:4], "big")
            if subxid == xid:
                received.pop(xid, None)
            elif xid in received:
                received[xid] = [change for change in received[xid] if change[0] != subxid]
        elif kind == b"c":
            committed[xid] = [change[1:] for change in received.pop(xid)]
        elif top_xid and kind == b"R":
            announced[body[:4]] = body
        elif top_xid and kind in b"IUDT":
            definition = b"" if kind == b"T" else announced[body[:4]]
            received[top_xid].append((xid, definition, kind + body))
    return committed


def assert_same_applied(session: DecodingSession) -> None:
    messages = session.decode()
    ours, theirs = applied(messages), applied(session.slot.peek_binary(session.options))
    assert ours
    for xid, changes in ours.items():
        assert len(changes) > 1000
        for i, pair in enumerate(itertools.zip_longest(changes, theirs[xid])):
            assert pair[0] == pair[1], f"change {i} of {len(changes)} in {xid}"


#: A row that is too wide even without its large value (!) leaves TOAST chunks that no row follows.
WITHOUT_ROW = f"""
BEGIN
{FILL}
SAVEPOINT a
!INSERT INTO wide (big) VALUES ({LONG.format("1")})
+
ROLLBACK TO a
ALTER TABLE u ALTER v SET STATISTICS 5
{FILL}
COMMIT
"""


@on_majors(16, 17, 18)
def test_chunks_without_their_row(database: Database, tmp_path: Path) -> None:
    """The next row to change ends what they have begun, one of a catalog as well."""
    columns = ", ".join(f"c{i} bigint NOT NULL DEFAULT 1" for i in range(1100))
    database.execute(f"CREATE TABLE wide (big text, {columns})")
    database.execute("ALTER TABLE wide ALTER big SET STORAGE EXTERNAL")
    session = immediate(database, tmp_path)
    ours, theirs = follow(session, statements(WITHOUT_ROW, 3))
    for i, (mine, expected) in enumerate(zip(ours, theirs, strict=False)):
        assert mine == expected, f"line {i} of {len(ours)}"
    session.close()


@on_majors(14, 15, 16, 17, 18)
@pytest.mark.parametrize("kind", KINDS)
def test_announced_in_blocks(database: Database, tmp_path: Path, kind: str) -> None:
    """Where a table is announced again depends on where blocks end; what is known at a change does
    not.
    """
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    session = in_blocks(database, tmp_path, "pgoutput", PGOUTPUT)
    with database.connect() as connection:
        for statement in ("BEGIN", *statements(KINDS[kind], 600), "COMMIT"):
            connection.execute(statement)
    assert_same_applied(session)
    session.close()


@on_majors(14, 15, 16, 17, 18)
def test_aborts_in_blocks(database: Database, tmp_path: Path) -> None:
    """How much of what is rolled back was streamed before depends on where blocks end; what is kept
    does not.
    """
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    session = in_blocks(database, tmp_path, "pgoutput", PGOUTPUT)
    with database.connect() as connection:
        for statement in statements(ABORTS, 600):
            if statement != "+":
                connection.execute(statement)
    aborts = sum(message.data.startswith(r"\x41") for message in session.decode())
    assert aborts > 3
    assert_same_applied(session)
    session.close()


#: With another session (2>) whose catalog changes commit meanwhile, of another table and of the
#: same one.
BESIDE = f"""
BEGIN
{FILL}
2> ALTER TABLE u ADD COLUMN n int DEFAULT 3
{FILL}
INSERT INTO u VALUES (1, 'with n')
2> ALTER TABLE t ALTER v SET STATISTICS 9
2> CREATE TABLE made AS SELECT 1 AS i
{FILL}
2> ALTER TABLE made ALTER i TYPE text
INSERT INTO made VALUES ('two')
SAVEPOINT a
2> ALTER TABLE made ALTER i SET STATISTICS 9
INSERT INTO made VALUES ('three')
{FILL}
RELEASE a
2> CREATE INDEX ON parts (id)
{FILL}
ALTER TABLE t ADD COLUMN n int
{FILL}
2> DROP TABLE IF EXISTS nothing; CREATE TABLE more (i int); INSERT INTO more VALUES (1)
{FILL}
COMMIT
"""


def play_beside(database: Database, rows: int) -> None:
    with database.connect() as connection, database.connect() as other:
        other.execute("SET lock_timeout = '20s'")
        for statement in statements(BESIDE, rows):
            session = other if statement.startswith("2> ") else connection
            session.execute(statement.removeprefix("2> "))


def without_empty_blocks(lines: Iterable[OracleChange]) -> list[OracleChange]:
    """Leave out blocks with nothing in them."""
    kept: list[OracleChange] = []
    for line in lines:
        if line.data.startswith(BLOCKS[1]) and kept[-1].data.startswith(BLOCKS[0]):
            kept.pop()
        else:
            kept.append(line)
    return kept


@on_majors(16, 17, 18)
def test_beside_others_change_by_change(database: Database, tmp_path: Path) -> None:
    """PostgreSQL streams two empty blocks at each commit that changed the catalog; we do not."""
    session = immediate(database, tmp_path)
    play_beside(database, 3)
    ours, theirs = session.decode(), session.slot.peek(OPTIONS)
    streamed = {line.xid for line in ours if line.data.startswith(BLOCKS)}
    mine, expected = (
        [line for line in without_empty_blocks(lines) if line.xid in streamed]
        for lines in (ours, theirs)
    )
    for i, pair in enumerate(itertools.zip_longest(mine, expected)):
        assert pair[0] == pair[1], f"line {i} of {len(expected)}"
    commits = BESIDE.count("\n2> ")
    all_theirs = sum(line.xid in streamed for line in theirs)
    assert all_theirs - sum(line.xid in streamed for line in ours) == commits * 2 * len(BLOCKS)
    session.close()


@on_majors(14, 15, 16, 17, 18)
def test_beside_others_in_blocks(database: Database, tmp_path: Path) -> None:
    session = in_blocks(database, tmp_path)
    play_beside(database, 600)
    assert_same_changes(session.decode(), session.slot.peek(OPTIONS))
    session.close()


@on_majors(14, 15, 16, 17, 18)
def test_announced_beside_others_in_blocks(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    session = in_blocks(database, tmp_path, "pgoutput", PGOUTPUT)
    play_beside(database, 600)
    assert_same_applied(session)
    session.close()
