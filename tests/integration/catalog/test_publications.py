"""How descriptors say that a table is published, as of every point: against what was declared to
the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.catalog_replay import CatalogReplay, assert_equals_server
from harness.tiers import majors_by_tier
from spillway.catalog.bootstrap import bootstrap_sql
from spillway.catalog.bootstrap_raw import bootstrap_raw
from spillway.catalog.descriptor import RelationDescriptor
from spillway.catalog.serialization import deserialize, serialize

if TYPE_CHECKING:
    from harness.cluster import Database
    from spillway.catalog.descriptor import PublicationDescriptor

pytestmark = pytest.mark.parametrize(
    "pg",
    majors_by_tier([14, 15, 16, 17, 18]),
    indirect=True,
    ids=[f"pg{major}" for major in range(14, 19)],
)

#: A node tree of more bytes than a page takes, even compressed.
_LONG_FILTER = (
    "SELECT string_agg('v <> ' || quote_literal(encode(sha256(i::text::bytea), 'hex')), ' AND ') "
    "FROM generate_series(1, 60) i"
)


def _published(
    replay: CatalogReplay, database: Database, name: str, *own: int
) -> dict[str, PublicationDescriptor]:
    return {p.name: p for p in _descriptor(replay, database, name, *own).publications}


def _descriptor(
    replay: CatalogReplay, database: Database, name: str, *own: int
) -> RelationDescriptor:
    oid = database.value("SELECT %s::regclass::oid::int8", [name])
    descriptor = replay.mirror.resolve_oid(oid, frozenset(own)).descriptor
    assert descriptor is not None
    assert RelationDescriptor.from_json(descriptor.to_json()) == descriptor
    return descriptor


def _oid(database: Database, name: str) -> int:
    return int(database.value("SELECT %s::regclass::oid::int8", [name]))


def test_options_lists_and_filters(pg: Database) -> None:
    major = pg.cluster.major
    pg.execute(
        "CREATE TABLE t (a int PRIMARY KEY, b text, c int); CREATE TABLE u (a int PRIMARY KEY);"
        "CREATE PUBLICATION plain FOR TABLE t;"
        "CREATE PUBLICATION brief FOR TABLE t WITH (publish = 'insert, truncate', "
        "publish_via_partition_root);CREATE PUBLICATION every FOR ALL TABLES WITH (publish = "
        "'delete')"
    )
    if major >= 15:
        pg.execute(
            "CREATE PUBLICATION part FOR TABLE t (c, a) WHERE (a > 5);"
            "CREATE PUBLICATION whole FOR TABLES IN SCHEMA public, TABLE t WHERE (a > 5)"
        )
    if major >= 18:
        pg.execute("CREATE PUBLICATION gen FOR TABLE t WITH (publish_generated_columns = stored)")
    replay = CatalogReplay(bootstrap_sql(pg.dsn), pg.cluster)
    replay.run()
    t = _published(replay, pg, "t")
    assert (t["plain"].insert, t["plain"].update, t["plain"].delete, t["plain"].truncate) == (
        True,
        True,
        True,
        True,
    )
    assert not t["plain"].via_root
    assert t["brief"].via_root
    assert (t["brief"].insert, t["brief"].update, t["brief"].delete, t["brief"].truncate) == (
        True,
        False,
        False,
        True,
    )
    assert (t["every"].insert, t["every"].delete) == (False, True)
    assert {p.publish_as for p in t.values()} == {_oid(pg, "t")}
    assert all(p.columns is None and p.row_filter is None for n, p in t.items() if n != "part")
    assert set(_published(replay, pg, "u")) == {"every"} | ({"whole"} if major >= 15 else set())
    if major >= 15:
        assert t["part"].columns == (1, 3)
        prqual = pg.value("SELECT prqual::text FROM pg_publication_rel WHERE prattrs IS NOT NULL")
        assert t["part"].row_filter == prqual
        assert prqual.startswith("{OPEXPR")
    generated = {n: p.generated_columns for n, p in t.items()}
    assert generated == dict.fromkeys(t, "n") | ({"gen": "s"} if major >= 18 else {})
    names = tuple(p.name for p in _descriptor(replay, pg, "u").database_publications)
    assert list(names) == sorted(t)
    assert_equals_server(replay.mirror, pg)


def test_which_ancestor_is_published(pg: Database) -> None:
    pg.execute(
        "CREATE TABLE root (i int, j int) PARTITION BY LIST (i);"
        "CREATE TABLE mid (j int, i int) PARTITION BY LIST (j);"
        "ALTER TABLE root ATTACH PARTITION mid DEFAULT;"
        "CREATE TABLE leaf PARTITION OF mid DEFAULT;"
        "CREATE PUBLICATION all_leaf FOR ALL TABLES;"
        "CREATE PUBLICATION all_root FOR ALL TABLES WITH (publish_via_partition_root);"
        "CREATE PUBLICATION of_root FOR TABLE root;"
        "CREATE PUBLICATION via_mid FOR TABLE mid, leaf WITH (publish_via_partition_root);"
        "CREATE PUBLICATION via_both FOR TABLE mid, root WITH (publish_via_partition_root)"
    )
    replay = CatalogReplay(bootstrap_sql(pg.dsn), pg.cluster)
    replay.run()
    oids = {name: _oid(pg, name) for name in ("root", "mid", "leaf")}

    def as_of(name: str) -> dict[str, int]:
        return {n: p.publish_as for n, p in _published(replay, pg, name).items()}

    assert as_of("leaf") == {
        "all_leaf": oids["leaf"],
        "all_root": oids["root"],
        "of_root": oids["leaf"],
        "via_mid": oids["mid"],
        "via_both": oids["root"],
    }
    # A partitioned table as such is published only in the place of its partitions.
    assert as_of("mid") == {
        "all_root": oids["root"],
        "via_mid": oids["mid"],
        "via_both": oids["root"],
    }
    leaf = _descriptor(replay, pg, "leaf")
    assert [a.name for a in leaf.ancestors] == ["mid", "root"]
    assert [[c.name for c in a.columns] for a in leaf.ancestors] == [["j", "i"], ["i", "j"]]
    assert all(a.ancestors == () == a.publications for a in leaf.ancestors)
    if pg.cluster.major >= 15:
        pg.execute(
            "ALTER PUBLICATION via_both SET TABLE root (i) WHERE (i > 1);"
            "CREATE PUBLICATION leaves FOR TABLE leaf (i, j) WHERE (j > 1);"
            "CREATE PUBLICATION later FOR TABLE root WHERE (i > 2) WITH "
            "(publish_via_partition_root)"
        )
        replay.run()
        published = _published(replay, pg, "leaf")
        filters = {n: (p.columns, p.row_filter is not None) for n, p in published.items()}
        assert filters["via_both"] == ((1,), True)
        assert filters["leaves"] == ((1, 2), True)
        assert filters["later"] == (None, True)
        assert filters["of_root"] == filters["via_mid"] == (None, False)
    pg.execute("ALTER TABLE root DETACH PARTITION mid")
    replay.run()
    published_as = as_of("leaf")
    assert published_as["all_root"] == published_as["via_mid"] == oids["mid"]
    assert "of_root" not in published_as


def test_publications_as_of_a_point(pg: Database) -> None:
    """Changes of publications count for their transaction at once, for others from its commit
    on.
    """
    pg.execute("CREATE TABLE t (a int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    replay = CatalogReplay(bootstrap_sql(pg.dsn), pg.cluster)
    replay.run()
    with pg.connect(autocommit=False) as connection:
        for statement, expected in (
            ("ALTER PUBLICATION p SET (publish = 'insert')", {"p": (True, False)}),
            ("ALTER PUBLICATION p RENAME TO q", {"q": (True, False)}),
            ("ALTER PUBLICATION q DROP TABLE t", {}),
            ("ALTER PUBLICATION q ADD TABLE t", {"q": (True, False)}),
            ("CREATE PUBLICATION r FOR ALL TABLES", {"q": (True, False), "r": (True, True)}),
            ("SAVEPOINT s; DROP PUBLICATION q", {"r": (True, True)}),
            ("ROLLBACK TO s", {"q": (True, False), "r": (True, True)}),
            ("DROP PUBLICATION q", {"r": (True, True)}),
        ):
            connection.execute(statement)
            row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
            assert row is not None
            xid = int(row[0])
            replay.run()
            own = replay.own_xids(xid)
            seen = {n: (p.insert, p.update) for n, p in _published(replay, pg, "t", *own).items()}
            assert seen == expected, statement
            others = _descriptor(replay, pg, "t")
            assert [p.name for p in others.database_publications] == ["p"]
            assert [(p.name, p.update) for p in others.publications] == [("p", True)]
        connection.commit()
    replay.run()
    assert [p.name for p in _descriptor(replay, pg, "t").database_publications] == ["r"]
    pg.execute("BEGIN; DROP PUBLICATION r; ROLLBACK")
    replay.run()
    assert list(_published(replay, pg, "t")) == ["r"]


def test_commit_says_that_others_descriptors_changed(pg: Database) -> None:
    pg.execute("CREATE TABLE t (a int PRIMARY KEY)")
    replay = CatalogReplay(bootstrap_sql(pg.dsn), pg.cluster)
    said: list[bool] = []
    commit = replay.mirror.commit
    replay.mirror.commit = lambda xids, lsn: said.append(commit(xids, lsn)) or said[-1]  # type: ignore[method-assign]
    for statement in (
        "CREATE PUBLICATION p",
        "ALTER PUBLICATION p ADD TABLE t",
        "ALTER PUBLICATION p SET (publish = 'insert')",
        "ALTER PUBLICATION p DROP TABLE t",
        "DROP PUBLICATION p",
    ):
        replay.run()
        _descriptor(replay, pg, "t")
        said.clear()
        pg.execute(statement)
        replay.run()
        assert any(said), statement


@pytest.mark.parametrize("raw", [False, True], ids=["sql", "raw"])
def test_filters_out_of_line(pg: Database, raw: bool) -> None:
    if pg.cluster.major < 15:
        return
    condition = pg.value(_LONG_FILTER)
    pg.execute("CREATE TABLE t (a int PRIMARY KEY, v text); CREATE TABLE u (a int, v text)")
    pg.execute(f"CREATE PUBLICATION before FOR TABLE t WHERE ({condition}) WITH (publish = insert)")
    pg.execute("CHECKPOINT")
    replay = CatalogReplay((bootstrap_raw if raw else bootstrap_sql)(pg.dsn), pg.cluster)
    # A new row on the page of the old one: the page comes as an image, with a pointer to a value
    # from before.
    pg.execute(f"CREATE PUBLICATION after FOR TABLE u WHERE ({condition}) WITH (publish = insert)")

    def check(*statements: str) -> None:
        for statement in statements:
            pg.execute(statement)
        replay.run()
        filters = dict(
            pg.query(
                "SELECT pubname, prqual::text FROM pg_publication_rel r JOIN pg_publication p ON "
                "p.oid = prpubid"
            )
        )
        assert all(len(text) > 20000 for text in filters.values())
        for table, publication in (("t", "before"), ("u", "after")):
            published = _published(replay, pg, table)
            assert published[publication].row_filter == filters[publication]
        assert_equals_server(replay.mirror, pg)

    check()
    replay.mirror = deserialize(serialize(replay.mirror))
    check("VACUUM pg_publication_rel")
    check("VACUUM FULL pg_publication_rel")
    check("BEGIN; CLUSTER pg_publication_rel USING pg_publication_rel_oid_index; ROLLBACK")
    check(
        "ALTER TABLE u ADD x int",
        f"ALTER PUBLICATION after SET TABLE u WHERE ({condition} AND a > 1)",
    )
    pg.execute("DROP PUBLICATION after")
    replay.run()
    assert not _published(replay, pg, "u")
