"""Constraints that may wait, beside PostgreSQL's own apply worker: swapped keys and the like.

The worker has session_replication_role = replica whoever owns its subscription, so it looks at no
constraint that is DEFERRABLE, at the end neither. A role of ours that may set that does the same.
One that may not has them checked, and they have to wait for the end of the source's transaction,
which the source's own had to satisfy.
"""

from __future__ import annotations

import secrets
import struct
from typing import TYPE_CHECKING

import pytest

from harness.exact_apply import Ours, Source, Stock, drop_target
from harness.tiers import deep, majors_by_tier
from spillway._kernels.apply.change_group import ChangeGroup
from spillway.apply.exact.writer import ExactOptions, ExactWriter
from spillway.apply.grouped.writer import GroupedWriter
from spillway.apply.tables.target_tables import TargetTables
from spillway.apply.target.session import TargetSession
from spillway.demo.private_postgres import SUPERUSER
from spillway.errors import TargetRowRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Cluster, Database

    ClusterOf = Callable[[int], Cluster]

MAJOR_OF_MODEST_OWNERS = 16

TABLES = """
CREATE TABLE soon (id int PRIMARY KEY, u int, UNIQUE (u) DEFERRABLE);
CREATE TABLE late (id int PRIMARY KEY, u int, UNIQUE (u) DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE soon_key (id int PRIMARY KEY DEFERRABLE, v text);
ALTER TABLE soon_key REPLICA IDENTITY FULL;
CREATE TABLE late_key (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v text);
ALTER TABLE late_key REPLICA IDENTITY FULL;
CREATE TABLE apart (id int PRIMARY KEY, u int, EXCLUDE USING btree (u WITH =) DEFERRABLE);
CREATE TABLE apart_late (id int PRIMARY KEY, u int,
    EXCLUDE USING btree (u WITH =) DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE tree (id int PRIMARY KEY, up int REFERENCES tree DEFERRABLE);
CREATE TABLE parted (id int, u int, place text, PRIMARY KEY (id, place))
    PARTITION BY LIST (place);
CREATE TABLE parted_a PARTITION OF parted FOR VALUES IN ('a');
CREATE TABLE parted_b PARTITION OF parted FOR VALUES IN ('b');
ALTER TABLE parted_a ADD UNIQUE (u) DEFERRABLE;
ALTER TABLE parted_b ADD EXCLUDE USING btree (u WITH =) DEFERRABLE;
CREATE TABLE heard (id int PRIMARY KEY, u int);
CREATE TABLE heard_as_check (id int PRIMARY KEY, u int);
CREATE TABLE many (id int PRIMARY KEY, u int, UNIQUE (u) DEFERRABLE);
CREATE TABLE same_name (id int PRIMARY KEY, up int CONSTRAINT of_one_name REFERENCES tree);
CREATE TABLE same_name_too (id int PRIMARY KEY,
    up int CONSTRAINT of_one_name REFERENCES tree DEFERRABLE);
"""
NAMES = (
    "soon", "late", "soon_key", "late_key", "apart", "apart_late", "tree", "parted", "heard",
    "heard_as_check", "many",
)  # fmt: skip
#: On the source and on targets; the worker's rest.
TRIGGERS = """
CREATE FUNCTION all_differ() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE n int; BEGIN
    EXECUTE format('SELECT count(*) - count(DISTINCT u) FROM public.%I', TG_TABLE_NAME) INTO n;
    IF n > 0 AND TG_NARGS > 0 THEN RAISE check_violation USING MESSAGE = 'not all differ'; END IF;
    IF n > 0 THEN RAISE EXCEPTION 'not all differ'; END IF;
    RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER differ AFTER INSERT OR UPDATE ON heard DEFERRABLE
    FOR EACH ROW EXECUTE FUNCTION all_differ();
CREATE CONSTRAINT TRIGGER differ AFTER INSERT OR UPDATE ON heard_as_check DEFERRABLE
    FOR EACH ROW EXECUTE FUNCTION all_differ('check');
"""
#: Parted by lines of dashes: each is a transaction of its own.
_WORK = """
INSERT INTO soon VALUES (1, 1), (2, 2), (3, 3); INSERT INTO late VALUES (1, 1), (2, 2), (3, 3);
INSERT INTO apart VALUES (1, 1), (2, 2), (3, 3); INSERT INTO heard VALUES (1, 1), (2, 2), (3, 3);
INSERT INTO apart_late VALUES (1, 1), (2, 2), (3, 3);
INSERT INTO heard_as_check VALUES (1, 1), (2, 2), (3, 3);
INSERT INTO soon_key VALUES (1, 'a'), (2, 'b'), (3, 'c');
INSERT INTO late_key VALUES (1, 'a'), (2, 'b'), (3, 'c');
INSERT INTO parted VALUES (1, 1, 'a'), (2, 2, 'a'), (1, 1, 'b'), (2, 2, 'b');
INSERT INTO many SELECT n, n FROM generate_series(1, 150) n;
---
UPDATE soon SET u = 3 - u WHERE u < 3;
---
UPDATE soon_key SET id = 3 - id WHERE id < 3;
---
UPDATE late SET u = 2 WHERE id = 1; UPDATE late SET u = 1 WHERE id = 2;
---
UPDATE late_key SET id = 2 WHERE id = 1 AND v = 'a'; UPDATE late_key SET id = 1 WHERE v = 'b';
---
UPDATE apart SET u = u + 1;
---
UPDATE apart_late SET u = 3 WHERE id = 1; UPDATE apart_late SET u = 1 WHERE id = 3;
---
SET CONSTRAINTS ALL DEFERRED;
INSERT INTO soon VALUES (4, 3); UPDATE soon SET u = 4 WHERE id = 3;
INSERT INTO apart VALUES (4, 4); UPDATE apart SET u = 5 WHERE id = 3;
INSERT INTO soon_key VALUES (3, 'd'); DELETE FROM soon_key WHERE v = 'c';
---
UPDATE parted SET u = 3 - u;
---
INSERT INTO parted VALUES (3, 3, 'b');
---
SET CONSTRAINTS ALL DEFERRED;
INSERT INTO tree VALUES (2, 1), (1, NULL);
UPDATE heard SET u = 2 WHERE id = 1; UPDATE heard SET u = 1 WHERE id = 2;
---
SET CONSTRAINTS ALL DEFERRED;
UPDATE heard_as_check SET u = 2 WHERE id = 1; UPDATE heard_as_check SET u = 1 WHERE id = 2;
---
UPDATE many SET u = 151 - u;
---
UPDATE soon SET u = u - 1; DELETE FROM many WHERE id % 2 = 0;
INSERT INTO many SELECT n, n FROM generate_series(1001, 1020) n;
"""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, timed_cluster: ClusterOf) -> Cluster:
    return timed_cluster(request.param)


@pytest.fixture
def source(cluster: Cluster) -> Iterator[Source]:
    made = Source.make(cluster)
    yield made
    cluster.drop_database(made.database.name)


@pytest.fixture
def role(cluster: Cluster) -> Iterator[str]:
    """Who may do nothing but own databases."""
    name = f"modest_{secrets.token_hex(4)}"
    cluster.execute(f"CREATE ROLE {name} LOGIN")
    yield name
    cluster.execute(f"DROP ROLE {name}")


@pytest.fixture
def modest(source: Source, role: str) -> Iterator[Ours]:
    """A target of a role's that may not have triggers and constraints rest."""
    made = Ours.make(source, user=role)
    _give(made.database, role)
    yield made
    drop_target(made.database)


@pytest.fixture
def ours(source: Source) -> Iterator[Ours]:
    """A superuser's."""
    made = Ours.make(source)
    yield made
    drop_target(made.database)


@pytest.fixture
def stock(source: Source, role: str) -> Iterator[Stock]:
    """PostgreSQL's own, of a role without rights where it can be that."""
    made = Stock.make(source)
    _give(made.database, role)
    yield made
    made.drop()
    drop_target(made.database)


def _give(database: Database, role: str) -> None:
    database.execute(
        f"ALTER DATABASE {database.name} OWNER TO {role}; ALTER SCHEMA public OWNER TO {role}"
    )


def _make(sql: str, database: Database, role: str = SUPERUSER) -> None:
    with database.connect(user=role) as session:
        session.execute(sql.encode())


def _subscribe(stock: Stock, role: str) -> None:
    stock.subscribe()
    stock.database.execute(f"ALTER TABLE mark OWNER TO {role}")
    if stock.database.cluster.major >= MAJOR_OF_MODEST_OWNERS:
        stock.database.execute(
            f"ALTER SUBSCRIPTION {stock.name} SET (password_required = false, run_as_owner = true);"
            f"ALTER SUBSCRIPTION {stock.name} OWNER TO {role}"
        )


def _work(source: Source, *, together: bool) -> None:
    with source.database.connect() as session:
        if together:
            session.execute("BEGIN; SET CONSTRAINTS ALL DEFERRED")
        for one in _WORK.split("---\n"):
            if not together:
                session.execute("BEGIN")
            session.execute(one.encode())
            if not together:
                session.execute("COMMIT")
        if together:
            session.execute("COMMIT")


def _take_in_groups(ours: Ours) -> int:
    """Write what the slot has as the worker does: in groups where that can be; return how many
    had to be written change by change.
    """
    with TargetSession(ours.plan) as session:
        tables = TargetTables()
        grouped = GroupedWriter(session, tables)
        exact = ExactWriter(session, tables, ours.options, ours.heard)
        messages = ours.messages()
        payload = b"".join(messages)
        lengths = b"".join(struct.pack("=I", len(one)) for one in messages)
        group = ChangeGroup(ours.bytes_max)
        first = 0
        while first < len(messages):
            first = group.feed(payload, lengths, first)
            if not grouped.write(group):
                exact.write(group)
            group.clear()
        return grouped.declined


def _differing(one: Database, other: Database) -> list[str]:
    found = []
    for table in NAMES:
        query = f"SELECT r::text FROM {table} r ORDER BY 1"
        left, right = one.query(query), other.query(query)
        if left != right:
            found.append(f"{table}: {left} {right}"[:400])
    return found


@pytest.mark.parametrize("cluster", [14, deep(15), deep(16), deep(17), 18], indirect=True)
@pytest.mark.parametrize("together", [False, deep(True)], ids=["many", "one"])
def test_what_is_true_at_the_end_passes(
    source: Source, modest: Ours, ours: Ours, stock: Stock, role: str, together: bool
) -> None:
    """One by one and in groups, by a superuser and by a role that may let nothing rest."""
    in_groups, modest_in_groups = Ours.make(source), Ours.make(source, user=role)
    _give(modest_in_groups.database, role)
    try:
        _make(TABLES + TRIGGERS, source.database)
        everywhere: list[Ours | Stock] = [modest, modest_in_groups, ours, in_groups, stock]
        for one in everywhere:
            owner = SUPERUSER if one in (ours, in_groups) else role
            _make(TABLES + TRIGGERS, one.database, owner)
            if isinstance(one, Ours):
                one.database.execute("CREATE TABLE mark (n int PRIMARY KEY)")
                one.database.execute(f"ALTER TABLE mark OWNER TO {role}")
        _subscribe(stock, role)
        _work(source, together=together)
        stock.catch_up()
        assert _differing(source.database, stock.database) == []
        for target in (ours, modest):
            target.take()
            assert _differing(stock.database, target.database) == [], target.user
            assert target.heard.conflicts == []
        for target in (in_groups, modest_in_groups):
            _take_in_groups(target)
            assert _differing(stock.database, target.database) == [], target.user
            assert target.heard.conflicts == []
    finally:
        drop_target(in_groups.database)
        drop_target(modest_in_groups.database)


#: Behind these the target's constraints are violated, if somebody looks: of the table, by SQL.
_REFUSED = {
    "soon": "INSERT INTO soon VALUES (3, 7)",
    "late": "INSERT INTO late VALUES (3, 7)",
    "apart": "UPDATE apart SET u = 7 WHERE id = 2",
    "tree": "INSERT INTO tree VALUES (3, 100)",
    "heard_as_check": "INSERT INTO heard_as_check VALUES (3, 7)",
}
_PAIRS = """
INSERT INTO soon VALUES (1, 1), (2, 2); INSERT INTO late VALUES (1, 1), (2, 2);
INSERT INTO apart VALUES (1, 1), (2, 2); INSERT INTO heard_as_check VALUES (1, 1), (2, 2);
INSERT INTO tree VALUES (1, NULL);
INSERT INTO soon_key VALUES (1, 'a'), (2, 'b'); INSERT INTO many VALUES (1, 1), (2, 2);
"""
_LOCAL = """
INSERT INTO soon VALUES (9, 7); INSERT INTO late VALUES (9, 7); INSERT INTO apart VALUES (9, 7);
INSERT INTO heard_as_check VALUES (9, 7);
"""


@pytest.mark.parametrize("cluster", majors_by_tier([14, 15, 16, 17, 18]), indirect=True)
def test_what_is_violated_at_the_end(
    source: Source, modest: Ours, ours: Ours, stock: Stock, role: str
) -> None:
    """PostgreSQL's worker and a superuser's write it all the same. A role that may let nothing rest
    is told which constraint, and what to do: it helps.
    """
    _make(TABLES + TRIGGERS, source.database)
    source.database.execute("INSERT INTO tree VALUES (100, NULL)")
    everywhere: list[Ours | Stock] = [modest, ours, stock]
    for one in everywhere:
        _make(TABLES + TRIGGERS, one.database, SUPERUSER if one is ours else role)
        if isinstance(one, Ours):
            one.database.execute("CREATE TABLE mark (n int PRIMARY KEY)")
            one.database.execute(f"ALTER TABLE mark OWNER TO {role}")
            one.messages()
    _subscribe(stock, role)
    source.database.execute(_PAIRS)
    for target in (modest, ours):
        target.take()
    stock.catch_up()
    for one in everywhere:
        one.database.execute(_LOCAL)
    for table, statement in _REFUSED.items():
        # The swap passes, whatever becomes of the other.
        source.database.execute(
            f"BEGIN; UPDATE many SET u = 3 - u; {statement};"
            " UPDATE soon_key SET id = 3 - id; COMMIT"
        )
        modest.options = ExactOptions()
        swapped = source.database.query("SELECT * FROM many ORDER BY id")
        assert modest.rows("many") != swapped
        with pytest.raises(TargetRowRefused) as error:
            modest.take(peek=True)
        assert modest.rows("many") != swapped
        told = error.value
        # A trigger's function names no table.
        named = "" if table == "heard_as_check" else f"public.{table}"
        assert told.details["table"] == named
        assert "Mend what refuses it on the target" in told.hint
        modest.follow(told.hint, "--target-option dead_letter")
        assert modest.take().dead_letters == 1, table
        assert modest.rows("many") == swapped
        assert modest.rows("soon_key") == source.database.query("SELECT * FROM soon_key ORDER BY 1")
    ours.take()
    stock.catch_up()
    for table in NAMES:
        assert sorted(ours.rows(table)) == sorted(stock.database.query(f"SELECT * FROM {table}")), (
            table
        )
    assert stock.database.query("SELECT count(*) FROM late WHERE u = 7") == [(2,)]
    assert modest.database.query("SELECT count(*) FROM late WHERE u = 7") == [(1,)]
    assert modest.database.query(
        "SELECT table_name, sqlstate FROM spillway.dead_letter ORDER BY lsn"
    ) == [
        ("soon", "23505"), ("late", "23505"), ("apart", "23P01"), ("tree", "23503"),
        ("heard_as_check", "23514"),
    ]  # fmt: skip


@pytest.mark.parametrize("cluster", majors_by_tier([14, 15, 16, 17, 18]), indirect=True)
def test_one_that_comes_in_pieces(source: Source, modest: Ours, role: str) -> None:
    """No row is looked for, as it is not there any more; mended, or passed over, it goes on."""
    table = "CREATE TABLE soon (id int PRIMARY KEY, u int, UNIQUE (u) DEFERRABLE)"
    _make(table, source.database)
    _make(table, modest.database, role)
    modest.bytes_max = 4096
    modest.options = ExactOptions(dead_letter=True)
    _make("INSERT INTO soon VALUES (9001, 7)", modest.database)
    for first, mends in ((1, True), (1001, False)):
        source.database.execute(
            "BEGIN; SET CONSTRAINTS ALL DEFERRED;"
            f" INSERT INTO soon SELECT n, n FROM generate_series({first}, {first + 300}) n;"
            f" UPDATE soon SET u = {2 * first + 1} - u WHERE id < {first + 2} AND id >= {first};"
            " COMMIT"
        )
        if not mends:
            modest.database.execute("INSERT INTO soon VALUES (9002, 1007)")
        with pytest.raises(TargetRowRefused, match="the end of transaction") as error:
            modest.take(peek=True)
        told = error.value
        assert "dead_letter" not in told.hint
        assert told.details["constraint"] == "soon_u_key"
        if mends:
            modest.database.execute("DELETE FROM soon WHERE id = 9001")
        else:
            modest.follow(told.hint, "skip")
        modest.take()
    assert modest.database.query("SELECT count(*) FROM soon") == [(302,)]
    assert modest.database.query("SELECT u FROM soon WHERE id < 3 ORDER BY id") == [(2,), (1,)]


@pytest.mark.parametrize("cluster", [deep(15), deep(16), deep(17), 18], indirect=True)
def test_a_prepare_that_is_refused_at_its_end(source: Source, role: str) -> None:
    """PREPARE TRANSACTION checks what waited, as COMMIT does. Nothing stays prepared; mended, set
    aside or passed over, which leaves it prepared without its rows, it goes on, and what is set
    aside is there when that is committed.
    """
    table = "CREATE TABLE late (id int PRIMARY KEY, u int UNIQUE DEFERRABLE INITIALLY DEFERRED)"
    _make(table, source.database)
    ours = Ours.make(source, two_phase=True, user=role)
    _give(ours.database, role)
    try:
        _make(table, ours.database, role)
        _make("INSERT INTO late VALUES (101, 7), (102, 8), (103, 9)", ours.database)
        prepared = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
        for n, remedy in enumerate(("mend", "--target-option dead_letter", "skip")):
            gid = f"{ours.slot}_{n}"
            with source.database.connect() as session:
                session.execute(
                    f"BEGIN; INSERT INTO late VALUES ({2 * n}, {n + 70}), ({2 * n + 1}, {n + 7});"
                    f" PREPARE TRANSACTION '{gid}'".encode()
                )
            ours.options = ExactOptions()
            with pytest.raises(TargetRowRefused, match="the end of transaction") as error:
                ours.take(peek=True)
            assert error.value.details["constraint"] == "late_u_key"
            assert ours.database.value(prepared) == 0
            if remedy == "mend":
                _make("DELETE FROM late WHERE id = 101", ours.database)
            else:
                ours.follow(error.value.hint, remedy)
            ours.take()
            assert ours.database.value(prepared) == 1
            source.database.execute(f"COMMIT PREPARED '{gid}'")
            ours.take()
        assert ours.rows("late") == [(0, 70), (1, 7), (2, 71), (102, 8), (103, 9)]
        assert ours.database.query("SELECT new_row->>'id' FROM spillway.dead_letter") == [("3",)]
        assert ours.database.value(prepared) == 0
    finally:
        drop_target(ours.database)
