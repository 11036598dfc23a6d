"""The target's tables as servers of each major describe them, matched with Relation messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from harness.remedies import remedy
from harness.tiers import majors_by_tier
from spillway.apply.changes import SourceColumn, SourceRelation
from spillway.apply.tables.matching import match, match_all
from spillway.apply.tables.target_tables import TargetTables
from spillway.errors import (
    SpillwayError,
    TargetColumnsMissing,
    TargetTableMissing,
    TargetTableUnusable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import psycopg

    from harness.cluster import Database

pytestmark = pytest.mark.parametrize(
    "pg",
    majors_by_tier([14, 15, 16, 17, 18]),
    indirect=True,
    ids=[f"pg{major}" for major in range(14, 19)],
)

_INT4, _TEXT, _NUMERIC = 23, 25, 1700


@pytest.fixture
def session(pg: Database) -> Iterator[psycopg.Connection[Any]]:
    """A session as the writers have it."""
    with pg.connect() as connection:
        connection.execute("SET search_path = ''")
        connection.execute("SET session_replication_role = replica")
        yield connection


def _relation(
    name: str,
    *columns: str,
    key: tuple[str, ...] = (),
    identity: str = "d",
    relation_id: int = 1,
    schema: str = "public",
) -> SourceRelation:
    return SourceRelation(
        relation_id,
        schema,
        name,
        identity,
        tuple(SourceColumn(c, _INT4, -1, c in key or identity == "f") for c in columns),
    )


def _raised(session: psycopg.Connection[Any], relation: SourceRelation) -> SpillwayError:
    with pytest.raises(SpillwayError) as raised:
        match(session, relation)
    return raised.value


def test_columns_are_matched_by_name(pg: Database, session: psycopg.Connection[Any]) -> None:
    pg.execute(
        "CREATE TYPE mood AS ENUM ('sad'); CREATE TABLE \"T a\" (gone int, c mood[] NOT NULL,"
        ' "B" mood, d int DEFAULT 7, a int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,'
        " e int GENERATED ALWAYS AS (d + 1) STORED, v int2vector, p char(3));"
        'ALTER TABLE "T a" DROP COLUMN gone'
    )
    table = match(session, _relation("T a", "a", "B", "c", "v", "p", key=("a",)))
    assert (table.quoted, table.only) == ('public."T a"', 'ONLY public."T a"')
    assert [(c.name, c.quoted, c.type_name, c.is_array) for c in table.columns] == [
        ("a", "a", "integer", False),
        ("B", '"B"', "public.mood", False),
        ("c", "c", "public.mood[]", True),
        ("v", "v", "int2vector", False),
        ("p", "p", "bpchar", False),
    ]
    assert [c.identity for c in table.columns] == ["a", "", "", "", ""]
    assert [c.not_null for c in table.columns] == [True, False, True, False, False]
    # Neither what was dropped, nor what is generated.
    assert [c.name for c in table.unsent] == ["d"]
    assert (table.find, table.key_positions) == ("key", (0,))
    assert [k.equals for k in table.key] == ["OPERATOR(pg_catalog.=)"]
    assert table.groupable, table.not_groupable


def test_what_finds_a_row(pg: Database, session: psycopg.Connection[Any]) -> None:
    pg.execute(
        "CREATE TABLE pk (a int PRIMARY KEY, b int NOT NULL UNIQUE, c int);"
        "CREATE TABLE ri (a int PRIMARY KEY, b int NOT NULL UNIQUE, c int);"
        "ALTER TABLE ri REPLICA IDENTITY USING INDEX ri_b_key;"
        "CREATE TABLE fu (a int PRIMARY KEY, b int NOT NULL UNIQUE, c int);"
        "ALTER TABLE fu REPLICA IDENTITY FULL;"
        "CREATE TABLE deferred (a int PRIMARY KEY DEFERRABLE, b int, c int);"
        "CREATE TABLE plain (a int, b int, c int, x int);"
        "CREATE TABLE wide (a int, b int, c int, PRIMARY KEY (b, a));"
    )
    how: dict[tuple[str, str], tuple[str, tuple[int, ...]]] = {}
    for name in ("pk", "ri", "fu", "deferred", "plain", "wide"):
        for said, keys, identity in (
            ("a", ("a",), "d"),
            ("ab", ("a", "b"), "d"),
            ("full", (), "f"),
            ("nothing", (), "n"),
        ):
            table = match(session, _relation(name, "c", "a", "b", key=keys, identity=identity))
            how[name, said] = (table.find, table.key_positions)
    assert how == {
        ("pk", "a"): ("key", (1,)),
        ("pk", "ab"): ("key", (1,)),
        ("pk", "full"): ("key", (1,)),
        ("pk", "nothing"): ("", ()),
        ("ri", "a"): ("", ()),
        ("ri", "ab"): ("key", (2,)),
        ("ri", "full"): ("key", (2,)),
        ("ri", "nothing"): ("", ()),
        ("fu", "a"): ("key", (1,)),
        ("fu", "ab"): ("key", (1,)),
        ("fu", "full"): ("key", (1,)),
        ("fu", "nothing"): ("", ()),
        ("deferred", "a"): ("", ()),
        ("deferred", "ab"): ("", ()),
        ("deferred", "full"): ("index", (1,)),
        ("deferred", "nothing"): ("", ()),
        ("plain", "a"): ("", ()),
        ("plain", "ab"): ("", ()),
        ("plain", "full"): ("full", ()),
        ("plain", "nothing"): ("", ()),
        ("wide", "a"): ("", ()),
        ("wide", "ab"): ("key", (2, 1)),
        ("wide", "full"): ("key", (2, 1)),
        ("wide", "nothing"): ("", ()),
    }


def test_which_index_serves_whole_rows(pg: Database, session: psycopg.Connection[Any]) -> None:
    pg.execute("CREATE TABLE t (a int, b int, c point, local int)")
    relation = _relation("t", "a", "b", "c", identity="f")

    def found() -> tuple[str, tuple[int, ...]]:
        table = match(session, relation)
        assert not table.groupable
        assert table.groupable_inserts
        return table.find, table.key_positions

    for unusable in (
        "(a) WHERE a > 0",
        "((a + 1))",
        "(local, a)",
        "USING brin (a)",
        "USING gist (c)",
    ):
        pg.execute(f"CREATE INDEX ON t {unusable}")
    assert found() == ("full", ())
    pg.execute("CREATE INDEX h ON t USING hash (b)")
    assert found() == ("index", (1,))
    pg.execute("DROP INDEX h; CREATE INDEX ON t (a, local, b)")
    assert found() == ("index", (0,))


def test_which_columns_other_indexes_watch(pg: Database, session: psycopg.Connection[Any]) -> None:
    pg.execute("CREATE TABLE t (a int PRIMARY KEY, b int, c int, d int, local int)")
    relation = _relation("t", "d", "c", "b", "a", key=("a",))

    def watched() -> tuple[int, tuple[int, ...]]:
        table = match(session, relation)
        return table.other_unique, table.watched

    pg.execute("CREATE INDEX ON t (d)")
    assert watched() == (0, ())
    pg.execute("CREATE UNIQUE INDEX ON t (c, local) INCLUDE (d)")
    assert watched() == (1, (1,))
    pg.execute("ALTER TABLE t ADD EXCLUDE USING btree (b WITH =)")
    assert watched() == (2, (1, 2))
    pg.execute("CREATE UNIQUE INDEX partial ON t (d) WHERE c > 0")
    assert watched() == (3, (0, 1, 2, 3))
    pg.execute("DROP INDEX partial; CREATE UNIQUE INDEX ON t ((d + 1))")
    assert watched() == (3, (0, 1, 2, 3))
    pg.execute(
        "CREATE TABLE p (a int PRIMARY KEY, b int) PARTITION BY RANGE (a);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9);"
        "CREATE UNIQUE INDEX ON p1 (b)"
    )
    table = match(session, _relation("p", "a", "b", key=("a",)))
    assert (table.other_unique, table.watched) == (1, (1,))


def test_equality_is_the_indexes_own(pg: Database, session: psycopg.Connection[Any]) -> None:
    pg.execute(
        "CREATE SCHEMA own; CREATE DOMAIN own.word AS varchar(9);"
        "CREATE FUNCTION own.same(own.word, own.word) RETURNS bool IMMUTABLE LANGUAGE sql AS"
        " 'SELECT lower($1) = lower($2)';"
        "CREATE TYPE own.pair AS (a int, b int);"
        "CREATE TABLE t (a own.word, b own.pair, c text[], PRIMARY KEY (a, b, c))"
    )
    table = match(session, _relation("t", "a", "b", "c", key=("a", "b", "c")))
    assert [k.equals for k in table.key] == ["OPERATOR(pg_catalog.=)"] * 3
    assert [k.column.type_name for k in table.key] == ["own.word", "own.pair", "text[]"]
    assert [k.column.is_array for k in table.key] == [False, True, True]
    # The statement that these are for.
    session.execute(
        f"DELETE FROM {table.only} t"
        " USING unnest(%s::own.word[], %s::text[], %s::text[]) u(a, b, c) WHERE "
        + " AND ".join(
            f"t.{k.column.quoted} {k.equals} u.{k.column.quoted}"
            + (f"::{k.column.type_name}" if k.column.is_array else "")
            for k in table.key
        ),
        ["{x}", '{"(1,2)"}', '{"{q}"}'],
    )


@pytest.mark.follows_hint("target_columns_missing", "target_table_unusable")
def test_missing_and_generated_columns(pg: Database, session: psycopg.Connection[Any]) -> None:
    pg.execute(
        "CREATE TABLE few (a int PRIMARY KEY);"
        "CREATE TABLE gen (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a) STORED)"
    )
    error = _raised(session, _relation("few", "a", "b", "C", key=("a",)))
    assert isinstance(error, TargetColumnsMissing)
    assert error.message == (
        'logical replication target relation "public.few" is missing replicated columns: "b", "C"'
    )
    assert error.hint.endswith(
        'ALTER TABLE public.few ADD COLUMN "b" integer, ADD COLUMN "C" integer;'
    )
    pg.execute(remedy(error, "target_columns_missing").partition(": ")[2])
    assert len(match(session, _relation("few", "a", "b", "C", key=("a",))).columns) == 3

    error = _raised(session, _relation("gen", "a", "b", key=("a",)))
    assert isinstance(error, TargetTableUnusable)
    assert error.message == (
        'logical replication target relation "public.gen" has incompatible generated column: "b"'
    )
    pg.execute(remedy(error, "target_table_unusable").partition(": ")[2])
    assert match(session, _relation("gen", "a", "b", key=("a",)))
    if pg.cluster.major >= 18:
        pg.execute("CREATE TABLE virt (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a) VIRTUAL)")
        error = _raised(session, _relation("virt", "a", "b", key=("a",)))
        pg.execute(error.hint.partition(": ")[2])
        assert match(session, _relation("virt", "a", "b", key=("a",)))


@pytest.mark.follows_hint("target_table_missing")
def test_one_tables_trouble_is_its_own(pg: Database, session: psycopg.Connection[Any]) -> None:
    pg.execute(
        "CREATE TABLE good (a int PRIMARY KEY); CREATE VIEW seen AS SELECT * FROM good;"
        "CREATE MATERIALIZED VIEW kept AS SELECT * FROM good;"
    )
    names = ["good", "nowhere", "seen", "kept"]
    found = match_all(
        session, [_relation(name, "a", key=("a",), relation_id=i) for i, name in enumerate(names)]
    )
    texts = [one.message if isinstance(one, SpillwayError) else "matched" for one in found.values()]
    refused = (
        'cannot use relation "public.{}" as logical replication target: this operation is not '
        "supported for {}"
    )
    assert texts == [
        "matched",
        'logical replication target relation "public.nowhere" does not exist',
        refused.format("seen", "views"),
        refused.format("kept", "materialized views"),
    ]
    missing = found[1]
    assert isinstance(missing, TargetTableMissing)
    assert "Create it on the target" in remedy(missing, "target_table_missing")
    pg.execute("CREATE TABLE nowhere (a int PRIMARY KEY)")
    assert match(session, _relation("nowhere", "a", key=("a",))).quoted == "public.nowhere"


def test_renamed(pg: Database, session: psycopg.Connection[Any]) -> None:
    pg.execute("CREATE SCHEMA copy; CREATE TABLE copy.t_copy (a int PRIMARY KEY)")
    table = match(
        session, _relation("t", "a", key=("a",)), lambda _, name: ("copy", f"{name}_copy")
    )
    assert table.quoted == "copy.t_copy"


def test_updates_that_find_no_row(pg: Database, session: psycopg.Connection[Any]) -> None:
    pg.execute("CREATE TABLE t (a int NOT NULL, b int); CREATE TABLE k (a int, b int PRIMARY KEY)")
    relation = _relation("t", "a", "b", key=("a",))
    with pytest.raises(TargetTableUnusable) as raised:
        match(session, relation).updatable_or_raise()
    assert raised.value.message == (
        'logical replication target relation "public.t" has neither REPLICA IDENTITY index nor '
        "PRIMARY KEY and published relation does not have REPLICA IDENTITY FULL"
    )
    pg.execute(raised.value.hint.partition(": ")[2])
    match(session, relation).updatable_or_raise()

    sent = _relation("k", "a", "b", key=("a",))
    with pytest.raises(TargetTableUnusable) as raised:
        match(session, sent).updatable_or_raise()
    assert raised.value.message == (
        "publisher did not send replica identity column expected by the logical replication "
        'target relation "public.k"'
    )
    pg.execute(raised.value.hint.partition("on the target: ")[2].partition(" With ")[0])
    match(session, sent).updatable_or_raise()
    pg.execute("ALTER TABLE k REPLICA IDENTITY DEFAULT")
    # What the source sends when the hint was followed there.
    assert 'ALTER TABLE "public"."k" REPLICA IDENTITY FULL' in raised.value.hint
    match(session, _relation("k", "a", "b", identity="f")).updatable_or_raise()


def test_what_fires(pg: Database, session: psycopg.Connection[Any]) -> None:
    pg.execute(
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
        "CREATE TABLE p (a int PRIMARY KEY) PARTITION BY RANGE (a);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE c (a int PRIMARY KEY REFERENCES p);"
        "CREATE TRIGGER later BEFORE INSERT ON p1 FOR EACH ROW EXECUTE FUNCTION f();"
    )
    p, c = _relation("p", "a", key=("a",)), _relation("c", "a", key=("a",), relation_id=2)

    def reasons() -> list[str]:
        found = match_all(session, [p, c])
        return [one.not_groupable for one in found.values() if not isinstance(one, SpillwayError)]

    assert reasons() == ["", ""]
    pg.execute("ALTER TABLE p1 ENABLE REPLICA TRIGGER later")
    assert reasons() == ["triggers of rows fire: later", ""]
    session.execute("SET session_replication_role = origin")
    foreign = "foreign keys are enforced, since session_replication_role can't be replica"
    assert reasons() == [foreign, foreign]
    pg.execute("ALTER TABLE p1 ENABLE ALWAYS TRIGGER later")
    assert reasons() == ["triggers of rows fire: later", foreign]


def test_partitioned(pg: Database, session: psycopg.Connection[Any]) -> None:
    pg.execute(
        "CREATE TABLE p (a int, b int) PARTITION BY RANGE (a);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20) PARTITION BY LIST (b);"
        "CREATE TABLE p21 PARTITION OF p2 FOR VALUES IN (1);"
        "ALTER TABLE p1 ADD PRIMARY KEY (a);"
    )

    def found(identity: str = "d") -> tuple[str, tuple[int, ...]]:
        table = match(session, _relation("p", "b", "a", key=("a",), identity=identity))
        assert table.only == "public.p"
        assert table.index_oid == 0
        return table.find, table.key_positions

    assert found() == ("", ())
    assert found("f") == ("full", ())
    pg.execute("ALTER TABLE p21 ADD PRIMARY KEY (a)")
    assert found() == ("key", (1,))
    pg.execute("CREATE TABLE empty (a int PRIMARY KEY) PARTITION BY RANGE (a)")
    assert match(session, _relation("empty", "a", key=("a",))).find == "key"


def test_row_level_security(pg: Database) -> None:
    role = f"applies_{pg.oid}"
    pg.execute(
        f"CREATE ROLE {role} LOGIN; CREATE TABLE t (a int PRIMARY KEY);"
        f"ALTER TABLE t ENABLE ROW LEVEL SECURITY; GRANT SELECT, INSERT ON t TO {role}"
    )
    try:
        relation = _relation("t", "a", key=("a",))
        with pg.cluster.connect(pg.name, user=role) as session:
            error = _raised(session, relation)
            assert error.message == (
                f'user "{role}" cannot replicate into relation with row-level security enabled: "t"'
            )
            pg.execute(error.hint.partition(": ")[2])
            assert match(session, relation).lacks == ("UPDATE", "DELETE", "TRUNCATE")
    finally:
        pg.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_five_hundred_tables_in_one_round_trip(
    pg: Database, session: psycopg.Connection[Any], tmp_path: Path
) -> None:
    pg.execute(
        "DO $$ BEGIN FOR i IN 1..500 LOOP"
        " EXECUTE format('CREATE TABLE t%s (a int PRIMARY KEY, b text)', i); END LOOP; END $$"
    )
    tables = TargetTables()
    tables.learn(_relation(f"t{i}", "a", "b", key=("a",), relation_id=i) for i in range(1, 501))
    with (tmp_path / "trace").open("w+") as trace:
        session.pgconn.trace(trace.fileno())
        tables.match_learned(session)
        session.pgconn.untrace()
        trace.seek(0)
        messages = trace.read()
    assert messages.count("ReadyForQuery") == messages.count("Sync") == 1
    assert len(tables.matched()) == 500
    assert session.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)


def test_what_is_known_is_looked_at_again(pg: Database, session: psycopg.Connection[Any]) -> None:
    pg.execute("CREATE TABLE t (a int PRIMARY KEY); CREATE TABLE u (a int PRIMARY KEY)")
    tables = TargetTables()
    t, u = (_relation(n, "a", key=("a",), relation_id=i) for i, n in enumerate("tu", 1))
    tables.learn([t, u])
    before = tables.table(session, 1)
    tables.match_learned(session)
    assert tables.look_again(session) == set()
    pg.execute("ALTER TABLE t ADD COLUMN b int; DROP TABLE u")
    # Until somebody looks, what was known stands.
    assert tables.table(session, 1) is before
    assert tables.look_again(session) == {1, 2}
    assert [c.name for c in tables.table(session, 1).unsent] == ["b"]
    assert list(tables.failed()) == [2]
    pg.execute("CREATE TABLE u (a int PRIMARY KEY)")
    assert tables.look_again(session) == {2}
    assert tables.table(session, 2).relation == u
    # The same message again changes nothing, another one does.
    tables.learn([t])
    assert 1 in tables.matched()
    tables.learn([_relation("t", "a", "b", key=("a",), relation_id=1)])
    assert 1 not in tables.matched()
    assert len(tables.table(session, 1).columns) == 2
