"""The target against its source: what is found, what is not taken for a difference, what is mended.

Nobody applies here but the test: what the slot has confirmed and what the target has is its choice.
"""

from __future__ import annotations

import secrets
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from harness.cluster import Database
from harness.postgresql_subscription import wait_until
from harness.remedies import remedy, statements
from harness.service import service_in_process
from harness.tiers import deep
from spillway.apply.options import Rename
from spillway.apply.target.own_schema import COMMITTED_SQL, PROGRESS_SQL
from spillway.apply.verify.run import verify
from spillway.apply.verify.settings import VerifySettings
from spillway.errors import NotReady

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Cluster
    from harness.service import Service

SLOT = "copied"
_SEEN = "SELECT pg_cancel_backend(pid) FROM ({}) waiting"
SCHEMA = """
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TABLE one (id int PRIMARY KEY, word text, day date, moods mood[], pair int4range, c char(4));
CREATE TABLE two (a text, b numeric, PRIMARY KEY (a, b));
CREATE TABLE keyless (a int, b text);
ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE TABLE always (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v float8);
"""
ROWS = """
INSERT INTO one SELECT n, 'word ' || n, date '2000-01-01' + n, '{sad,NULL}', int4range(0, n), 'a'
  FROM generate_series(1, 3000) n;
INSERT INTO two SELECT 'k' || n, n / 7.0 FROM generate_series(1, 500) n;
INSERT INTO keyless SELECT n / 2, 'twice' FROM generate_series(1, 100) n;
INSERT INTO always (v) SELECT n / 3.0 FROM generate_series(1, 50) n;
"""


class Standing:
    """A source, a target with the same rows, a slot, and somebody who confirms all of it."""

    def __init__(
        self, service: Service, source: Database, target: Database, slot: str = SLOT
    ) -> None:
        self.service, self.source, self.target = service, source, target
        self._slot = slot
        self.confirms = threading.Event()
        #: held from a commit of the source to that of the target
        self.applying = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._confirm, daemon=True)
        self.confirms.set()
        self._thread.start()

    def settings(self, *tables: str, **more: object) -> VerifySettings:
        return VerifySettings(
            self._slot,
            self.source.dsn,
            self.target.dsn,
            tables=tables,
            **{"timeout_s": 30.0, **more},  # type: ignore[arg-type]
            grpc=self.service.grpc_address,
        )

    def _confirm(self) -> None:
        while not self._stop.is_set():
            with self.applying:
                if self.confirms.is_set():
                    end = self.service.slot(self._slot)["decoded_lsn"]
                    self.service.http.post(
                        f"/v1/slots/{self._slot}/advance", json={"upto_lsn": end}
                    )
            time.sleep(0.05)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture(scope="module")
def followed(
    session_cluster: Callable[[int], Cluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Standing]:
    """Both sides and a service, for the whole module."""
    cluster = session_cluster(18)
    source, target = (cluster.create_database(f"verify_{secrets.token_hex(4)}") for _ in range(2))
    with service_in_process(tmp_path_factory.mktemp("service")) as service:
        service.create_source(source.dsn)
        service.create_slot(SLOT, source.name)
        there = Standing(service, source, target)
        yield there
        there.close()
        service.drop_slot(SLOT)
        service.call("DELETE", "/sources/main")
    for database in (source, target):
        cluster.drop_database(database.name)


@pytest.fixture
def standing(followed: Standing) -> Standing:
    """Both sides with the same rows."""
    for database in (followed.source, followed.target):
        database.execute("DROP SCHEMA IF EXISTS copy, public CASCADE; CREATE SCHEMA public")
        database.execute(SCHEMA)
        database.execute(ROWS)
    followed.target.execute("ALTER TABLE two ADD local int DEFAULT 7")
    return followed


def test_what_differs_is_named_and_mended(standing: Standing) -> None:
    found = verify(standing.settings())
    assert found.equal, [str(table) for table in found.tables]
    assert {t.table: t.source_rows for t in found.tables} == {
        "public.one": 3000,
        "public.two": 500,
        "public.keyless": 100,
        "public.always": 50,
    }
    standing.target.execute(
        "UPDATE one SET word = NULL, c = 'b' WHERE id = 5; DELETE FROM one WHERE id = 77;"
        "INSERT INTO one VALUES (9001); UPDATE two SET local = 8; DELETE FROM two WHERE a = 'k3';"
        "UPDATE always SET v = 'NaN' WHERE id = 2; DELETE FROM always WHERE id = 3;"
        "DELETE FROM keyless WHERE ctid = (SELECT min(ctid) FROM keyless)"
    )
    found = verify(standing.settings())
    assert not found.equal
    told = {table.table: sorted(map(str, table.differences)) for table in found.tables}
    # Rows that can't be told apart, and nobody says up to where the target is: undecided.
    (keyless,) = [t for t in found.tables if t.table == "public.keyless"]
    assert keyless.undecided == [("0", "twice")]
    assert told == {
        "public.one": [
            "(5): word, c",
            "(77) is in the source only",
            "(9001) is in the target only",
        ],
        "public.two": ["(k3, 0.42857142857142857143) is in the source only"],
        "public.keyless": [],
        "public.always": ["(2): v", "(3) is in the source only"],
    }
    keyed = ("public.one", "public.two", "public.always")
    mended = verify(standing.settings(*keyed), repair=True)
    assert mended.equal, [str(table) for table in mended.tables]
    repaired = {table.table: table.repaired for table in mended.tables}
    assert repaired == {"public.one": 3, "public.two": 1, "public.always": 2}
    assert verify(standing.settings(*keyed)).equal
    # Columns of the target's own stay.
    assert standing.target.value("SELECT count(*) FROM two WHERE local = 8") == 499


_KEYS = """
CREATE TABLE {0}.word (k {0}.citext PRIMARY KEY, v text);
CREATE TABLE {0}.number (k numeric, i interval, v text, PRIMARY KEY (k, i));
CREATE TABLE {0}.named (t int PRIMARY KEY, wanted int, _spillway_wanted_0 int, key int, v0 int)
"""
_KEYS_ROWS = """
INSERT INTO public.word SELECT 'Word ' || n, 'v' FROM generate_series(1, 9) n;
INSERT INTO public.number SELECT n + 0.50, '1 day', 'v' FROM generate_series(1, 9) n;
INSERT INTO public.named SELECT n, n, n, n, n FROM generate_series(1, 9) n
"""
_KEYS_SPOILT = """
UPDATE ext.word SET v = 'w' WHERE k = 'word 1'; UPDATE ext.word SET k = 'word 2' WHERE k = 'WORD 2';
DELETE FROM ext.word WHERE k = 'Word 3'; INSERT INTO ext.word VALUES ('Word 99');
UPDATE ext.number SET k = 1.5 WHERE k = 1.5; UPDATE ext.number SET i = '24 hours' WHERE k = 2.5;
DELETE FROM ext.number WHERE k = 3.5;
UPDATE ext.named SET key = 0 WHERE t = 1; DELETE FROM ext.named WHERE t = 2
"""


def test_keys_of_other_types_and_names(standing: Standing) -> None:
    """A key's type from an extension that lies in another schema on the target; keys that are equal
    and print otherwise; columns with names as the statements have.
    """
    standing.source.execute("CREATE EXTENSION citext SCHEMA public")
    standing.target.execute("CREATE SCHEMA ext; CREATE EXTENSION citext SCHEMA ext")
    try:
        standing.source.execute(_KEYS.format("public") + ";" + _KEYS_ROWS)
        standing.target.execute(
            _KEYS.format("ext") + ";" + _KEYS_ROWS.replace("INTO public.", "INTO ext.")
        )
        tables = ("public.word", "public.number", "public.named")
        rename = Rename({name: name.replace("public", "ext") for name in tables})
        settings = standing.settings(*tables, rename=rename)
        assert verify(settings).equal
        standing.target.execute(_KEYS_SPOILT)
        assert [str(d) for t in verify(settings).tables for d in t.differences]
        mended = verify(standing.settings(*tables, rename=rename, limit=100), repair=True)
        assert mended.equal, [str(table) for table in mended.tables]
        assert verify(settings).equal
    finally:
        standing.target.execute("DROP SCHEMA ext CASCADE")


_IN_THE_WAY = """
CREATE TABLE parent (id int PRIMARY KEY, u int UNIQUE, during int4range,
    EXCLUDE USING gist (during WITH &&));
CREATE TABLE child (id int PRIMARY KEY, p int REFERENCES parent ON DELETE CASCADE);
CREATE TABLE lone (id int PRIMARY KEY, u int UNIQUE);
INSERT INTO parent SELECT n, n, int4range(n * 10, n * 10 + 5) FROM generate_series(1, 3000) n;
INSERT INTO child SELECT n, n FROM generate_series(1, 3000) n;
INSERT INTO lone SELECT n, n FROM generate_series(1, 9) n
"""
#: Of the first and the last row they are swapped; of another one the row is gone that has it.
_TAKEN = """
UPDATE {0} SET u = -id WHERE id IN (1, {1}); UPDATE {0} SET u = {1} WHERE id = 1;
UPDATE {0} SET u = 1 WHERE id = {1}; DELETE FROM {0} WHERE id = 5; UPDATE {0} SET u = 5 WHERE id = 6
"""


@pytest.mark.long
def test_rows_in_each_others_way(standing: Standing) -> None:
    """Of rows that have what others should have in a unique index, in whatever order; and of more
    than are looked at at once.
    """
    for database in (standing.source, standing.target):
        database.execute(_IN_THE_WAY)
    standing.target.execute("ALTER TABLE parent ADD own int DEFAULT 7; UPDATE parent SET own = id")
    standing.target.execute(
        "SET session_replication_role = replica; "
        + _TAKEN.format("parent", 3000)
        + "; UPDATE parent SET during = NULL; UPDATE parent SET during = '[31,32)' WHERE id = 2"
    )
    settings = standing.settings("public.parent", limit=5000)
    (mended,) = verify(settings, repair=True).tables
    assert mended.equal, str(mended)
    assert mended.repaired == 3000
    assert verify(standing.settings("public.parent", "public.child")).equal
    # Columns of the target's own stay; the row that was gone has the default.
    assert standing.target.query("SELECT id, own FROM parent WHERE own IS DISTINCT FROM id") == [
        (5, 7)
    ]


def test_what_the_target_refuses_is_said_of_its_table(standing: Standing) -> None:
    """And the others are repaired. Where foreign keys are in force, no row is deleted that others
    refer to.
    """
    for database in (standing.source, standing.target):
        database.execute(_IN_THE_WAY)
    role = f"modest_{secrets.token_hex(4)}"
    standing.target.execute(
        f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA public TO {role};"
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role};"
        "UPDATE child SET p = NULL WHERE id = 5; DELETE FROM keyless WHERE a = 1;"
        + _TAKEN.format("parent", 9)
        + ";"
        + _TAKEN.format("lone", 9)
    )
    try:
        settings = replace(
            standing.settings("public.parent", "public.lone", "public.keyless", limit=100),
            target_dsn=standing.target.cluster.dsn(standing.target.name, role),
        )
        outcomes = {t.table: t for t in verify(settings, repair=True).tables}
        assert outcomes["public.lone"].equal, str(outcomes["public.lone"])
        refused = outcomes["public.parent"]
        assert not refused.equal
        assert "not repaired: rows of public.parent can't be repaired: duplicate key" in str(
            refused
        )
        assert "(1): u" in str(refused)
        assert "not repaired: nothing tells its rows apart" in str(outcomes["public.keyless"])
        assert standing.target.value("SELECT count(*) FROM child") == 3000
        # As the hint says.
        assert "session_replication_role" in refused.refused
        standing.target.execute(f"GRANT SET ON PARAMETER session_replication_role TO {role}")
        (mended,) = verify(replace(settings, tables=("public.parent",)), repair=True).tables
        assert mended.equal, str(mended)
    finally:
        standing.target.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_what_one_side_refuses_is_said_of_its_table(standing: Standing) -> None:
    """And the others are compared, by a role that may not read all."""
    role = f"reader_{secrets.token_hex(4)}"
    standing.source.cluster.execute(f"CREATE ROLE {role} LOGIN")
    try:
        for database, unread in ((standing.source, "one, two"), (standing.target, "one, keyless")):
            database.execute(
                f"GRANT USAGE ON SCHEMA public TO {role}; GRANT SELECT ON {unread} TO {role}"
            )
        names = [f"public.{name}" for name in ("keyless", "one", "two")]
        settings = replace(
            standing.settings(*names),
            source_dsn=f"{standing.source.dsn} user={role}",
            target_dsn=f"{standing.target.dsn} user={role}",
        )
        said = {table.table: table for table in verify(settings).tables}
        assert said["public.one"].equal, str(said["public.one"])
        for name, database in (("keyless", standing.source), ("two", standing.target)):
            one = said[f"public.{name}"]
            assert not one.equal
            (grant,) = statements(one.skipped)
            database.execute(grant)
        assert verify(settings).equal
    finally:
        for database in (standing.source, standing.target):
            database.execute(f"DROP OWNED BY {role}")
        standing.source.cluster.execute(f"DROP ROLE {role}")


def _update(session: psycopg.Connection[Any], n: int) -> None:
    """As the program does, which takes a transaction again that met repair in a deadlock."""
    while True:
        try:
            session.execute("UPDATE one SET word = 'now ' || %s WHERE id <= 200", [n])
        except psycopg.errors.DeadlockDetected:
            continue
        return


@pytest.mark.long
def test_as_of_one_lsn_while_rows_are_written(standing: Standing) -> None:
    """The target is ahead of the snapshot, and differs by what was written since: that is none."""
    stop = threading.Event()
    written: list[int] = []

    def write() -> None:
        with standing.source.connect() as source, standing.target.connect() as target:
            n = 0
            while not stop.is_set():
                n += 1
                with standing.applying:
                    for session in (source, target):
                        _update(session, n)
                written.append(n)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        standing.target.execute("UPDATE one SET word = 'wrong' WHERE id IN (1000, 1001)")
        (found,) = verify(standing.settings("public.one", limit=500)).tables
        told = sorted(map(str, found.differences))
        (mended,) = verify(standing.settings("public.one", limit=500), repair=True).tables
    finally:
        stop.set()
        writer.join()
    assert len(written) > 3
    assert told == ["(1000): word", "(1001): word"]
    # What is written to all the time is said to be so, and nothing else.
    assert {int(str(key[0])) for key in (*found.undecided, *mended.undecided)} <= set(range(1, 201))
    assert not mended.differences
    # The writer here writes to both by itself, and so over what repair wrote.
    assert verify(standing.settings("public.one", limit=500), repair=True).equal


class _Steps:
    """Told what is waited for, it does the next step, and has the subscription move on then."""

    def __init__(self, standing: Standing, *steps: Callable[[], object]) -> None:
        self._standing, self._steps = standing, list(steps)
        self._stop()

    def __call__(self, told: str) -> None:
        if "waiting for the subscription" not in told:
            return
        if self._steps:
            self._steps.pop(0)()
        self._standing.confirms.set()
        if self._steps:
            # What was waited for is confirmed; what is waited for next is not.
            time.sleep(0.3)
            self._stop()

    def _stop(self) -> None:
        with self._standing.applying:
            self._standing.confirms.clear()


@pytest.mark.parametrize("command", ["verify", deep("repair")])
def test_a_commit_that_nobody_sees_yet(standing: Standing, command: str) -> None:
    """It is on the target, and waits for a standby on the source: that is no difference."""
    source, target = standing.source, standing.target
    cluster = source.cluster
    waits = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

    def write(word: str, mode: str) -> None:
        with source.connect() as session:
            session.execute(f"SET synchronous_commit = {mode}")
            session.execute("UPDATE one SET word = %s WHERE id = 5", [word])

    def first() -> None:
        write("first", "local")
        target.execute("UPDATE one SET word = 'first' WHERE id = 5")

    def unseen() -> None:
        unseen_writer.start()
        wait_until("it is committed, and waits", lambda: bool(cluster.query(waits)), str)
        target.execute("UPDATE one SET word = 'unseen' WHERE id = 5")
        seen_later.start()

    unseen_writer = threading.Thread(target=write, args=("unseen", "on"))
    seen_later = threading.Timer(3, cluster.execute, [_SEEN.format(waits)])
    cluster.execute("ALTER SYSTEM SET synchronous_commit = local")
    cluster.execute("ALTER SYSTEM SET synchronous_standby_names = nobody")
    cluster.execute("SELECT pg_reload_conf()")
    wait_until(
        "it counts", lambda: cluster.value("SHOW synchronous_standby_names") == "nobody", str
    )
    try:
        steps = _Steps(standing, first, unseen)
        settings = standing.settings("public.one")
        (found,) = verify(settings, repair=command == "repair", tell=steps).tables
        assert unseen_writer.ident is not None, "it was not looked at a second time"
    finally:
        for setting in ("synchronous_commit", "synchronous_standby_names"):
            cluster.execute(f"ALTER SYSTEM RESET {setting}")
        cluster.execute("SELECT pg_reload_conf()")
        standing.confirms.set()
    seen_later.join()
    unseen_writer.join()
    assert found.equal, str(found)
    assert found.repaired == 0
    assert target.value("SELECT word FROM one WHERE id = 5") == "unseen"


@pytest.mark.parametrize("command", ["repair", deep("verify")])
def test_a_table_that_is_altered_meanwhile(standing: Standing, command: str) -> None:
    """A row that is missing is made with the columns that both sides have by then; and who alters
    the source's table waits for nobody who waits for him.
    """
    source, target = standing.source, standing.target

    def alter(second: str, row: int) -> threading.Thread:
        """Begin to alter the source's table, which waits for who reads it."""

        def run() -> None:
            statements = (
                f"ALTER TABLE one ADD {second} int DEFAULT 7",
                f"UPDATE one SET {second} = 8 WHERE id = {row}",
            )
            with source.connect(autocommit=False) as session:
                session.execute("SET LOCAL lock_timeout = '20s'")
                for statement in statements:
                    session.execute(statement)
                with standing.applying:
                    session.commit()
                    target.execute("; ".join(statements))

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    writers: list[threading.Thread] = []

    def step(second: str, row: int) -> Callable[[], None]:
        return lambda: writers.append(alter(second, row))

    target.execute("DELETE FROM one WHERE id IN (5, 6)")
    steps = _Steps(standing, step("second", 5), step("third", 6))
    settings = standing.settings("public.one")
    (found,) = verify(settings, repair=command == "repair", tell=steps).tables
    for writer in writers:
        writer.join()
    assert len(writers) == 2
    if command == "verify":
        assert sorted(map(str, found.differences)) == [
            "(5) is in the source only",
            "(6) is in the source only",
        ]
        (found,) = verify(settings, repair=True).tables
    assert found.equal, str(found)
    rows = "SELECT * FROM one WHERE id IN (5, 6, 7) ORDER BY id"
    assert target.query(rows) == source.query(rows)


@pytest.mark.long
def test_more_rows_than_are_looked_at(standing: Standing) -> None:
    """They were written meanwhile: that is no difference."""
    rows = "INSERT INTO one SELECT n FROM generate_series(10001, 22000) n"
    for database in (standing.source, standing.target):
        database.execute(rows)

    def write() -> None:
        for database in (standing.source, standing.target):
            database.execute("UPDATE one SET word = 'written'")

    settings = standing.settings("public.one")
    (found,) = verify(settings, tell=_Steps(standing, write)).tables
    assert found.equal, str(found)
    standing.target.execute("UPDATE one SET word = 'wrong' WHERE id = 22000")
    (found,) = verify(settings, tell=_Steps(standing, write)).tables
    assert found.equal, str(found)


def test_what_is_committed_ahead_of_the_position(standing: Standing) -> None:
    """By ``commit_order: relaxed``: the target is further than its position says."""
    target = standing.target
    target.execute(f"CREATE SCHEMA spillway; {PROGRESS_SQL}; {COMMITTED_SQL}")
    target.execute("INSERT INTO spillway.progress VALUES ('relaxed', 'it')")

    def write() -> None:
        for database in (standing.source, target):
            database.execute("UPDATE one SET word = 'written' WHERE id = 5")
        target.execute("INSERT INTO spillway.committed VALUES ('relaxed', '0/2', '0/1')")

    try:
        settings = standing.settings("public.one", subscription="relaxed")
        (found,) = verify(settings, tell=_Steps(standing, write)).tables
        assert found.equal, str(found)
    finally:
        target.execute("DROP SCHEMA spillway CASCADE")


def test_a_column_that_no_update_sets(standing: Standing) -> None:
    """A row is made again, where nothing takes effect by that."""
    table = (
        "CREATE TABLE numbered (id int PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY, v text);"
        "INSERT INTO numbered (id, v) SELECT i, 'v' FROM generate_series(1, 9) i;"
        "CREATE TABLE refers (id int PRIMARY KEY REFERENCES numbered ON DELETE CASCADE);"
        "INSERT INTO refers VALUES (5)"
    )
    for database in (standing.source, standing.target):
        database.execute(table)
    role = f"modest_{secrets.token_hex(4)}"
    standing.target.execute(
        "ALTER TABLE numbered ADD own int DEFAULT 7; UPDATE numbered SET own = id;"
        "UPDATE numbered SET n = DEFAULT WHERE id = 5; UPDATE numbered SET v = 'w' WHERE id = 6;"
        f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA public TO {role};"
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}"
    )
    try:
        settings = replace(
            standing.settings("public.numbered"),
            target_dsn=standing.target.cluster.dsn(standing.target.name, role),
        )
        (found,) = verify(settings, repair=True).tables
        assert not found.equal
        assert "GENERATED ALWAYS AS IDENTITY" in found.refused
        assert not found.undecided
        # As the hint says.
        assert "session_replication_role" in found.refused
        standing.target.execute(f"GRANT SET ON PARAMETER session_replication_role TO {role}")
        (found,) = verify(settings, repair=True).tables
        assert found.equal, str(found)
        assert found.repaired == 2
    finally:
        standing.target.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    rows = "SELECT id, n, v FROM numbered ORDER BY id"
    assert standing.target.query(rows) == standing.source.query(rows)
    assert standing.target.value("SELECT count(*) FROM numbered WHERE own = id") == 9
    assert standing.target.value("SELECT count(*) FROM refers") == 1


@contextmanager
def _held(standing: Standing) -> Iterator[None]:
    standing.confirms.clear()
    yield
    standing.confirms.set()


@pytest.mark.follows_hint("not_ready")
def test_a_subscription_that_does_not_move(standing: Standing) -> None:
    with _held(standing):
        time.sleep(0.2)
        with pytest.raises(NotReady) as raised:
            verify(standing.settings("public.one", timeout_s=0.3))
    assert "resume it" in remedy(raised.value, "not_ready")
    assert verify(standing.settings("public.one")).equal


def test_names_on_the_target(standing: Standing) -> None:
    standing.target.execute("CREATE SCHEMA copy; ALTER TABLE one SET SCHEMA copy; DROP TABLE two")
    rename = Rename({"public.one": "copy.one"})
    found = verify(standing.settings(rename=rename))
    said = {table.table: str(table).partition(": ")[2] for table in found.tables}
    assert said["public.one"] == "equal, 3000 rows at the source, 3000 at the target"
    assert said["public.two"].startswith(
        'not compared, logical replication target relation "public.two" does not exist. Create it '
    )
    assert not found.equal


_CODECS = {"UTF8": "utf-8", "LATIN1": "latin-1", "SQL_ASCII": "utf-8"}


@pytest.mark.parametrize(
    ("of", "into"),
    [
        ("SQL_ASCII", "SQL_ASCII"),
        deep("SQL_ASCII", "UTF8"),
        deep("UTF8", "SQL_ASCII"),
        deep("LATIN1", "UTF8"),
    ],
    ids=lambda one: one,
)
def test_encodings(followed: Standing, of: str, into: str) -> None:
    """Names and values that are not ASCII; between two databases in SQL_ASCII, values that are no
    text in any encoding, in keys, too.
    """
    cluster, service = followed.source.cluster, followed.service
    name = f"said_{secrets.token_hex(4)}"
    source, target = (Database(cluster, f"{name}_{which}") for which in ("one", "other"))
    odd = b"\xff'\x81\\" if (of, into) == ("SQL_ASCII", "SQL_ASCII") else b"odd"

    def run(database: Database, encoding: str, text: str) -> None:
        with database.connect() as connection:
            connection.pgconn.exec_(b"SET client_encoding = SQL_ASCII")
            said = text.encode(_CODECS[encoding]).replace(b"ODD", b"E'" + _quoted(odd) + b"'")
            result = connection.pgconn.exec_(said)
            assert not result.error_message, result.error_message

    def differing() -> list[tuple[str, str, tuple[str, ...]]]:
        outcome = verify(there.settings())
        return [(str(d), d.only, d.columns) for t in outcome.tables for d in t.differences]

    for database, encoding in ((source, of), (target, into)):
        cluster.execute(
            f"CREATE DATABASE {database.name} ENCODING '{encoding}' TEMPLATE template0"
            " LC_COLLATE 'C' LC_CTYPE 'C'"
        )
        run(database, encoding, 'CREATE TABLE "Tü" (k text PRIMARY KEY, "vü" text, ar text[])')
        run(
            database,
            encoding,
            """INSERT INTO "Tü" VALUES ('ü', 'Grüße', '{ü}'), ('é', 'é', '{}'),"""
            " (ODD, ODD, ARRAY[ODD])",
        )
    service.create_slot(name, source.name)
    there = Standing(service, source, target, name)
    try:
        assert differing() == []
        run(target, into, """UPDATE "Tü" SET "vü" = 'other' WHERE k IN ('ü', ODD)""")
        run(target, into, """DELETE FROM "Tü" WHERE k = 'é'""")
        run(target, into, """INSERT INTO "Tü" VALUES ('ä', ODD)""")
        shown = odd.decode(errors="backslashreplace")
        assert sorted(differing()) == sorted([
            ("(ü): vü", "", ("vü",)), (f"({shown}): vü", "", ("vü",)),
            ("(é) is in the source only", "source", ()),
            ("(ä) is in the target only", "target", ()),
        ])  # fmt: skip
        assert verify(there.settings(), repair=True).equal
        assert differing() == []
        for database, encoding in ((source, of), (target, into)):
            run(database, encoding, 'ALTER TABLE "Tü" RENAME TO plain')
        rows = "SELECT md5(string_agg(t::text, ',' ORDER BY k)) FROM plain t"
        assert of != into or target.value(rows) == source.value(rows)
    finally:
        there.close()
        service.drop_slot(name)
        for database in (source, target):
            cluster.drop_database(database.name)


def _quoted(data: bytes) -> bytes:
    """The inside of a literal in the escape syntax."""
    return data.replace(b"\\", b"\\\\").replace(b"'", b"''")
