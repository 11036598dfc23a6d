"""The checklist of PostgreSQL's src/test/subscription: encodings, changed publications, binary,
generated columns, several subscriptions of one table, the role that writes, errors that disable and
are skipped, keys WITHOUT OVERLAPS; beside PostgreSQL's own subscription.

The numbers are those of its tests; docs/reference/apply-checklist.md says what covers which.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from psycopg.errors import ObjectNotInPrerequisiteState

from harness.cluster import Database
from harness.postgresql_subscription import wait_until
from harness.remedies import command
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.side_by_side import SideBySide

_MAJOR_OF_DISABLING = 15
_MAJOR_OF_OWNERS = 16
_MAJOR_OF_GENERATED = 18
_MAJOR_OF_CONFLICTS = 18
_MAJOR_OF_TEMPORAL_KEYS = 18
_TABLES = """
CREATE TABLE c007_first (a int PRIMARY KEY);
CREATE TABLE c007_second (a int PRIMARY KEY);
CREATE TABLE c010_twice (a int);
CREATE TABLE c014_binary (a int PRIMARY KEY, b bytea, c float8[], d numeric, e timestamptz,
    f jsonb, g uuid, h interval, i text COLLATE "C", j int4range, k inet);
CREATE TABLE c033_owned (a int PRIMARY KEY);
"""
_WHO = """
CREATE TABLE who (by name);
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO public.who VALUES (current_user); RETURN NEW; END $$;
CREATE TRIGGER tell BEFORE INSERT ON c033_owned FOR EACH ROW EXECUTE FUNCTION tell();
ALTER TABLE c033_owned ENABLE ALWAYS TRIGGER tell;
"""
_TEMPORAL = "id int4range, valid_at daterange, a text"
_TEMPORAL_KEY = "(id, valid_at WITHOUT OVERLAPS)"
#: By replica identity, and by what the table has: none of them can be had of USING INDEX.
_TEMPORAL_TABLES = [
    f"c034_{identity}_{key}"
    for identity in ("default", "full", "index", "nothing")
    for key in ("none", "pk", "unique")
    if (identity, key) != ("index", "none")
]


@pytest.fixture(scope="module")
def more(sides: SideBySide) -> Iterator[SideBySide]:
    """Both subscribed: PostgreSQL's in binary, where it can find the types' functions."""
    sides.everywhere(_TABLES)
    sides.both(_WHO)
    stock = ["binary = true"]
    if sides.major >= _MAJOR_OF_OWNERS:
        stock.append("run_as_owner = true")
    source = sides.source
    source.execute(
        "CREATE TABLE c011_generated (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a * 2) STORED)"
    )
    sides.both("CREATE TABLE c011_generated (a int PRIMARY KEY, b int)")
    source.execute(
        "CREATE PUBLICATION first FOR TABLE c007_first, c014_binary, c033_owned, marker;"
        "CREATE PUBLICATION second FOR TABLE c007_second;"
        "CREATE PUBLICATION twice FOR TABLE c010_twice;"
        "CREATE PUBLICATION generated FOR TABLE c011_generated"
        + (
            " WITH (publish_generated_columns = stored)"
            if sides.major >= _MAJOR_OF_GENERATED
            else ""
        )
    )
    sides.subscribe("more", "first", "generated", stock=stock)
    yield sides
    for name in list(sides.names):
        sides.unsubscribe(name)


def test_011_generated_columns_are_published_where_they_can_be(more: SideBySide) -> None:
    more.source.execute("INSERT INTO c011_generated VALUES (1), (2)")
    more.source.execute("UPDATE c011_generated SET a = 3 WHERE a = 2")
    ((*rows,),) = more.same("c011_generated")
    assert ("(3,6)" in rows) == (more.major >= _MAJOR_OF_GENERATED)


def test_014_the_same_as_by_binary(more: SideBySide) -> None:
    more.source.execute(
        r"INSERT INTO c014_binary VALUES (1, '\x00ff', '{1.5,NULL,-Infinity}', 12345678901234.50,"
        " '2026-11-23 19:00:00.123456+02', '{\"a\": [1, null]}',"
        " 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '1 mon -2 days 00:00:01', 'é', '[1,5)',"
        " '10.0.0.1/8'), (2)".replace(
            ", (2)", ", (2, NULL, '{}', 'NaN', 'infinity', 'null', NULL, NULL, '', 'empty', '::1')"
        )
    )
    more.source.execute("UPDATE c014_binary SET d = d + 1, i = i || repeat('ü', 3000) WHERE a = 1")
    more.source.execute("UPDATE c014_binary SET d = 0 WHERE a = 1")
    more.as_source("c014_binary")


def test_033_the_role_of_the_connection_writes(more: SideBySide) -> None:
    more.source.execute("INSERT INTO c033_owned VALUES (1), (2)")
    assert more.same("c033_owned", "who") == [["(1)", "(2)"], ["(postgres)", "(postgres)"]]


def test_007_other_publications(more: SideBySide) -> None:
    source = more.source
    source.execute("INSERT INTO c007_first VALUES (1); INSERT INTO c007_second VALUES (1)")
    more.caught_up()
    more.stock.execute("ALTER SUBSCRIPTION more ADD PUBLICATION second WITH (copy_data = false)")
    more.service.call(
        "PATCH", "/subscriptions/more", json={"publications": ["first", "generated", "second"]}
    )
    wait_until(
        "ours has begun with them", lambda: more.view("more")["state"] == "streaming", more.told
    )
    source.execute("INSERT INTO c007_first VALUES (2); INSERT INTO c007_second VALUES (2)")
    assert more.same("c007_first", "c007_second") == [["(1)", "(2)"], ["(2)"]]


def _temporal_tables() -> str:
    statements = [
        # A key of what has no GiST of its own, and of several ranges; partitions.
        "CREATE EXTENSION btree_gist",
        (
            "CREATE TABLE c034_many (id int, name text, valid_at tstzmultirange, a text,"
            " PRIMARY KEY (name, id, valid_at WITHOUT OVERLAPS))"
        ),
        (
            f"CREATE TABLE c034_parted ({_TEMPORAL}, PRIMARY KEY {_TEMPORAL_KEY})"
            " PARTITION BY LIST (id)"
        ),
        "CREATE TABLE c034_parted_1 PARTITION OF c034_parted FOR VALUES IN ('[1,2)', '[2,3)')",
        "CREATE TABLE c034_parted_2 PARTITION OF c034_parted DEFAULT",
    ]
    for table in _TEMPORAL_TABLES:
        _, identity, key = table.split("_")
        kind = {"none": "", "pk": f", PRIMARY KEY {_TEMPORAL_KEY}"}
        unique = f", CONSTRAINT {table}_key UNIQUE {_TEMPORAL_KEY}"
        statements.append(f"CREATE TABLE {table} ({_TEMPORAL}{kind.get(key, unique)})")
        if identity == "index":
            index = table + ("_pkey" if key == "pk" else "_key")
            statements.append(
                f"ALTER TABLE {table} ALTER id SET NOT NULL, ALTER valid_at SET NOT NULL,"
                f" REPLICA IDENTITY USING INDEX {index}"
            )
        elif identity != "default":
            statements.append(f"ALTER TABLE {table} REPLICA IDENTITY {identity}")
    return ";".join(statements)


def test_034_keys_without_overlaps(more: SideBySide) -> None:
    """Of each replica identity, copied and followed; what one row overlaps is in its way."""
    if more.major < _MAJOR_OF_TEMPORAL_KEYS:
        return
    more.everywhere(_temporal_tables())
    source = more.source
    tables = [*_TEMPORAL_TABLES, "c034_parted"]
    fill = (
        "INSERT INTO {} SELECT int4range(n, n + 1), daterange(DATE '2020-01-01' + d * 10,"
        " DATE '2020-01-01' + d * 10 + 5), 'v' || n FROM generate_series(1, 9) n,"
        " generate_series({}, {}) d"
    )
    for table in tables:
        source.execute(fill.format(table, 1, 3))
    source.execute("INSERT INTO c034_many VALUES (1, 'x', '{[2000-01-01,2001-01-01)}', 'a')")
    source.execute(f"CREATE PUBLICATION temporal FOR TABLE {', '.join(tables)}, c034_many")
    more.subscribe("temporal", "temporal", copy_data=True)
    more.as_source(*tables, "c034_many")
    found_by = ("full", "index", "default_pk", "parted")
    for table in tables:
        source.execute(fill.format(table, 4, 6))
        if not any(one in table for one in found_by):
            for refused in (f"UPDATE {table} SET a = ''", f"DELETE FROM {table}"):
                with pytest.raises(ObjectNotInPrerequisiteState):
                    source.execute(refused)
            continue
        with source.connect() as session, session.transaction():
            session.execute(f"UPDATE {table} SET a = 'new' WHERE id = '[2,3)'")
            # One takes what another one frees.
            session.execute(
                f"UPDATE {table} SET valid_at = daterange(lower(valid_at), lower(valid_at) + 1)"
                " WHERE id = '[3,4)' AND valid_at @> DATE '2020-01-12'"
            )
            session.execute(
                f"UPDATE {table} SET valid_at = '[2020-01-12,2020-01-26)'"
                " WHERE id = '[3,4)' AND valid_at @> DATE '2020-01-22'"
            )
            session.execute(
                f"DELETE FROM {table} WHERE id = '[4,5)' AND valid_at @> DATE '2020-01-15'"
            )
            session.execute(
                f"INSERT INTO {table} VALUES ('[4,5)', '[2020-01-10,2020-01-12)', 'in')"
            )
        source.execute(f"UPDATE {table} SET id = '[1,3)' WHERE id = '[1,2)' AND a = 'v1'")
        source.execute(f"DELETE FROM {table} WHERE id = '[5,6)'")
    source.execute(
        "INSERT INTO c034_many VALUES (1, 'y', '{[2000-01-01,2001-01-01)}', 'a'),"
        " (2, 'x', '{[2000-01-01,2001-01-01),[2002-01-01,)}', 'a');"
        "UPDATE c034_many SET a = 'b' WHERE name = 'y'; DELETE FROM c034_many WHERE id = 2;"
        "UPDATE c034_many SET valid_at = '{[1999-01-01,2000-01-01)}' WHERE name = 'x'"
    )
    # The marker goes by another subscription than these tables.
    more.both_have("SELECT FROM c034_many WHERE valid_at @> DATE '1999-06-01'::timestamptz")
    more.as_source(*tables, "c034_many")
    # What one row overlaps of the target's own is told as PostgreSQL tells it.
    since = more.log_size()
    more.both(
        "INSERT INTO c034_default_pk VALUES ('[50,60)', '[2020-01-01,2020-02-01)', 'mine'),"
        " ('[50,60)', '[2020-02-01,2020-03-01)', 'also mine')"
    )
    source.execute(
        "INSERT INTO c034_default_pk VALUES ('[50,60)', '[2020-01-10,2020-02-10)', 'theirs')"
    )
    detail = r"conflict=insert_exists[^K]*(Key already[^,]*),[^K]*(Key [^\n]*)"
    (ours,) = re.findall(detail, more.wait_error("temporal")["message"])
    assert ours == more.wait_logged(detail, since)
    # All that it overlaps makes room for it.
    more.service.call(
        "PATCH",
        "/subscriptions/temporal",
        json={
            "target": {
                "kind": "postgres",
                "dsn": more.ours.dsn,
                "conflicts": {"insert_exists": "apply_remote"},
            }
        },
    )
    wait_until(
        "the source's row is there",
        lambda: (
            more.ours.query("SELECT a FROM c034_default_pk WHERE id = '[50,60)'") == [("theirs",)]
        ),
        more.told,
    )
    more.unsubscribe("temporal")


@pytest.mark.long
def test_035_a_row_that_somebody_else_deleted(more: SideBySide) -> None:
    """PostgreSQL 19 tells it, with retain_dead_tuples; so does ours, of every target."""
    more.everywhere("CREATE TABLE c035_gone (a int PRIMARY KEY, b text)")
    more.source.execute("CREATE PUBLICATION gone FOR TABLE c035_gone")
    with more.subscribed("gone", "gone", target={"retain_dead_tuples": 600}):
        more.source.execute("INSERT INTO c035_gone VALUES (1, 'x'), (2, 'x')")
        more.both_have("SELECT FROM c035_gone WHERE a = 2")
        since = more.ours.value("SELECT clock_timestamp()")
        wait_until(
            "a snapshot with these rows is held",
            lambda: bool(
                more.ours.query(
                    "SELECT FROM pg_stat_activity WHERE application_name LIKE '%% dead rows'"
                    " AND datname = current_database() AND backend_xmin IS NOT NULL"
                    " AND xact_start > %s",
                    [since],
                )
            ),
            more.told,
        )
        more.both("DELETE FROM c035_gone WHERE a = 1")
        more.ours.execute("VACUUM c035_gone")
        more.source.execute("UPDATE c035_gone SET b = 'y' WHERE a = 1")
        more.source.execute("INSERT INTO c035_gone VALUES (3, 'x')")
        more.both_have("SELECT FROM c035_gone WHERE a = 3")
        assert more.rows("SELECT * FROM c035_gone") == ["(2,x)", "(3,x)"]
        wait_until("it is told", lambda: bool(_conflicts(more, "gone")), more.told)
        (met,) = _conflicts(more, "gone")
        assert (met["kind"], met["resolution"]) == ("update_deleted", "skip")
        assert met["local"][0]["row"] == {"a": "1", "b": "x"}
        assert met["local"][0]["origin"] == ""
        assert more.view("gone")["stats"]["confl_update_deleted"] == 1


def _conflicts(more: SideBySide, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]]
    found = more.service.call("GET", f"/subscriptions/{name}/conflicts")["conflicts"]
    return found


@pytest.mark.long
def test_010_two_subscriptions_of_one_table(more: SideBySide) -> None:
    """Without a key each row comes twice; both truncate the same table."""
    for name in ("one", "two"):
        more.subscribe(name, "twice")
    for _ in range(3):
        more.source.execute("INSERT INTO c010_twice SELECT generate_series(1, 100)")
        more.source.execute("TRUNCATE c010_twice")
    more.source.execute("INSERT INTO c010_twice VALUES (7)")
    for database in more.targets:
        wait_until(
            f"both have written the last row in {database.name}",
            lambda d=database: (  # type: ignore[misc]
                {row[0] for row in d.query("SELECT a FROM c010_twice")} == {7}
            ),
            more.told,
        )
    for name in ("one", "two"):
        more.unsubscribe(name)


@pytest.mark.long
def test_026_029_an_error_disables_counts_and_is_skipped(more: SideBySide) -> None:
    if more.major < _MAJOR_OF_DISABLING:
        # Neither disable_on_error nor SKIP is there.
        return
    more.everywhere("CREATE TABLE c029_faulty (a int PRIMARY KEY)")
    more.source.execute("CREATE PUBLICATION faulty FOR TABLE c029_faulty")
    more.subscribe(
        "faulty",
        "faulty",
        stock=["disable_on_error = true"],
        target={"disable_on_error": True},
    )
    more.both("INSERT INTO c029_faulty VALUES (2)")
    since = more.log_size()
    for numbers in ("(1)", "(2), (3)", "(4)"):
        more.source.execute(f"INSERT INTO c029_faulty VALUES {numbers}")
    error = more.wait_error("faulty")
    wait_until("ours is disabled", lambda: not more.view("faulty")["enabled"], more.told)
    wait_until(
        "the stock one is disabled",
        lambda: (
            not more.stock.value("SELECT subenabled FROM pg_subscription WHERE subname = 'faulty'")
        ),
        more.told,
    )
    counted = more.stock.value(
        "SELECT apply_error_count FROM pg_stat_subscription_stats WHERE subname = 'faulty'"
    )
    assert counted >= 1
    assert more.view("faulty")["stats"]["apply_error_count"] >= 1
    assert more.rows("SELECT * FROM c029_faulty") == ["(1)", "(2)"]

    finished = re.findall(r"finished at ([0-9A-F]+/[0-9A-F]+)", more.logged(since))[-1]
    more.stock.execute(f"ALTER SUBSCRIPTION faulty SKIP (lsn = '{finished}')")
    more.stock.execute("ALTER SUBSCRIPTION faulty ENABLE")
    told = command(error["hint"], "subscription skip", NAME="faulty")
    more.service.call("POST", "/subscriptions/faulty/skip", json={"lsn": told[3]})
    more.service.call("POST", "/subscriptions/faulty/enable")
    for database in more.targets:
        wait_until(
            f"what comes after it is in {database.name}",
            lambda d=database: bool(d.query("SELECT FROM c029_faulty WHERE a = 4")),  # type: ignore[misc]
            more.told,
        )
    assert more.rows("SELECT * FROM c029_faulty") == ["(1)", "(2)", "(4)"]
    more.unsubscribe("faulty")


@pytest.mark.long
@pytest.mark.parametrize("streaming", ["off", "on", "parallel"])
def test_029_what_is_skipped_in_pieces_and_with_truncate(more: SideBySide, streaming: str) -> None:
    """All of the transaction is left out, TRUNCATE too, whether it came whole or in pieces; what
    comes behind it is written, in the shape that the table got in it.
    """
    if more.major < _MAJOR_OF_DISABLING:
        return
    more.everywhere("DROP TABLE IF EXISTS c029_large, c029_emptied")
    more.everywhere("CREATE TABLE c029_large (a int PRIMARY KEY, b text, c int)")
    more.everywhere("CREATE TABLE c029_emptied (a int PRIMARY KEY)")
    more.source.execute("CREATE PUBLICATION pieces FOR TABLE c029_large, c029_emptied")
    more.subscribe(
        "pieces",
        "pieces",
        # A parallel worker of PostgreSQL's does not tell where the transaction ends.
        stock=["disable_on_error = true", f"streaming = {str(streaming != 'off').lower()}"],
        target={"disable_on_error": True},
        streaming=streaming,
    )
    for row in ("c029_large VALUES (1, 'x')", "c029_emptied VALUES (1)"):
        more.source.execute(f"INSERT INTO {row}")
    more.both_have("SELECT FROM c029_emptied WHERE a = 1")
    more.both("INSERT INTO c029_large VALUES (3000, 'in the way')")
    since = more.log_size()
    with more.source.connect() as connection, connection.transaction():
        connection.execute("UPDATE c029_large SET b = 'skipped'")
        connection.execute("TRUNCATE c029_emptied")
        connection.execute(
            "INSERT INTO c029_large SELECT n, repeat('x', 100) FROM generate_series(2, 3000) n"
        )
        # The target's has it after the last: a column that is dropped is none that is missing.
        connection.execute("ALTER TABLE c029_large DROP COLUMN c")
        connection.execute("INSERT INTO c029_emptied VALUES (2)")
    for row in ("c029_large VALUES (3001)", "c029_emptied VALUES (3)"):
        more.source.execute(f"INSERT INTO {row}")
    error = more.wait_error("pieces")
    for what, is_enabled in (
        ("ours", lambda: more.view("pieces")["enabled"]),
        (
            "the stock one",
            lambda: more.stock.value(
                "SELECT subenabled FROM pg_subscription WHERE subname = 'pieces'"
            ),
        ),
    ):
        wait_until(f"{what} is disabled", lambda: not is_enabled(), more.told)  # noqa: B023
    finished = re.findall(r"finished at ([0-9A-F]+/[0-9A-F]+)", more.logged(since))[-1]
    more.stock.execute(f"ALTER SUBSCRIPTION pieces SKIP (lsn = '{finished}')")
    more.stock.execute("ALTER SUBSCRIPTION pieces ENABLE")
    told = command(error["hint"], "subscription skip", NAME="pieces")
    more.service.call("POST", "/subscriptions/pieces/skip", json={"lsn": told[3]})
    more.service.call("POST", "/subscriptions/pieces/enable")
    more.both_have("SELECT FROM c029_emptied WHERE a = 3")
    assert more.rows("SELECT a, b FROM c029_large") == ["(1,x)", '(3000,"in the way")', "(3001,)"]
    assert more.rows("SELECT * FROM c029_emptied") == ["(1)", "(3)"]
    more.unsubscribe("pieces")
    more.source.execute("DROP PUBLICATION pieces")


@pytest.mark.long
def test_029_a_prepare_that_is_skipped(more: SideBySide) -> None:
    """Its rows are left out, and both have it prepared until the source finishes it."""
    if more.major < _MAJOR_OF_DISABLING:
        return
    more.everywhere("CREATE TABLE c029_prepared (a int PRIMARY KEY)")
    more.source.execute("CREATE PUBLICATION of_prepared FOR TABLE c029_prepared")
    more.subscribe(
        "prepared",
        "of_prepared",
        stock=["disable_on_error = true"],
        target={"disable_on_error": True},
        two_phase=True,
    )
    more.source.execute("INSERT INTO c029_prepared VALUES (1)")
    more.both_have("SELECT FROM c029_prepared WHERE a = 1")
    more.both("INSERT INTO c029_prepared VALUES (2), (12)")
    gids = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
    for number, how in ((2, "COMMIT"), (12, "ROLLBACK")):
        since = more.log_size()
        with more.source.connect() as session:
            session.execute(
                f"BEGIN; INSERT INTO c029_prepared VALUES ({number}), ({number + 1});"
                f" PREPARE TRANSACTION 'c029_{number}'".encode()
            )
        more.source.execute(f"INSERT INTO c029_prepared VALUES ({number + 2})")
        error = more.wait_error("prepared")
        disabled = "SELECT FROM pg_subscription WHERE subname = 'prepared' AND NOT subenabled"
        for is_disabled in (
            lambda: bool(more.stock.query(disabled)),  # noqa: B023
            lambda: not more.view("prepared")["enabled"],
        ):
            wait_until("it is disabled", is_disabled, more.told)
        finished = re.findall(r"finished at ([0-9A-F]+/[0-9A-F]+)", more.logged(since))[-1]
        more.stock.execute(f"ALTER SUBSCRIPTION prepared SKIP (lsn = '{finished}')")
        more.stock.execute("ALTER SUBSCRIPTION prepared ENABLE")
        told = command(error["hint"], "subscription skip", NAME="prepared")
        more.service.call("POST", "/subscriptions/prepared/skip", json={"lsn": told[3]})
        more.service.call("POST", "/subscriptions/prepared/enable")
        more.both_have(f"SELECT FROM c029_prepared WHERE a = {number + 2}")
        assert [len(database.query(gids)) for database in more.targets] == [1, 1], more.told()
        more.source.execute(f"{how} PREPARED 'c029_{number}'")
        more.source.execute(f"INSERT INTO c029_prepared VALUES ({number + 3})")
        more.both_have(f"SELECT FROM c029_prepared WHERE a = {number + 3}")
        assert [database.query(gids) for database in more.targets] == [[], []]
    left = more.rows("SELECT * FROM c029_prepared")
    assert left == sorted(f"({a})" for a in (1, 2, 4, 5, 12, 14, 15))
    more.unsubscribe("prepared")
    more.source.execute("DROP PUBLICATION of_prepared")


@pytest.mark.long
def test_030_origins_are_left_out_on_every_major(more: SideBySide) -> None:
    """PostgreSQL can't before 16."""
    more.everywhere("CREATE TABLE c030_local (a int PRIMARY KEY, b text)")
    more.source.execute("CREATE PUBLICATION local FOR TABLE c030_local")
    body = {
        "name": "local",
        "source": more.source_name,
        "database": more.source.name,
        "publications": ["local"],
        "copy_data": False,
        "origin": "none",
        "target": {"kind": "postgres", "dsn": more.ours.dsn},
    }
    more.service.call("POST", "/subscriptions", json=body)
    try:
        with more.source.connect() as session:
            session.execute("SELECT pg_replication_origin_create('c030_local')")
            session.execute("INSERT INTO c030_local VALUES (1, 'from here')")
            session.execute("SELECT pg_replication_origin_session_setup('c030_local')")
            session.execute("INSERT INTO c030_local VALUES (2, 'from elsewhere')")
            session.execute("SELECT pg_replication_origin_session_reset()")
            session.execute("SELECT pg_replication_origin_drop('c030_local')")
            session.execute("INSERT INTO c030_local VALUES (3, 'from here')")
        wait_until(
            "the last one is there",
            lambda: bool(more.ours.query("SELECT FROM c030_local WHERE a = 3")),
            lambda: str(more.view("local")),
        )
        assert more.ours.query("SELECT a FROM c030_local ORDER BY 1") == [(1,), (3,)]
    finally:
        more.service.call("DELETE", "/subscriptions/local")


@pytest.mark.long
def test_005_encodings(more: SideBySide) -> None:
    """From a database in LATIN1 into one in LATIN1, and into one in UTF8."""
    cluster = more.cluster
    name = f"{more.source.name}_latin"
    make = "CREATE DATABASE {} ENCODING '{}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    targets = {f"{name}_latin1": "LATIN1", f"{name}_utf8": "UTF8"}
    for database, encoding in {name: "LATIN1", **targets}.items():
        cluster.execute(make.format(database, encoding))
        Database(cluster, database).execute(
            'CREATE TABLE "é" (a int PRIMARY KEY, "ü" text, n numeric)'
        )
    source = Database(cluster, name)
    source.execute('CREATE PUBLICATION p FOR TABLE "é"')
    try:
        for database in targets:
            more.service.call(
                "POST",
                "/subscriptions",
                json={
                    "name": database,
                    "source": more.source_name,
                    "database": name,
                    "publications": ["p"],
                    "target": {"kind": "postgres", "dsn": cluster.dsn(database)},
                },
            )
        source.execute("""INSERT INTO "é" VALUES (1, 'Grüße, ©', 1.5), (2, 'ÿ', NULL)""")
        source.execute("""UPDATE "é" SET "ü" = 'à' WHERE a = 2""")
        expected = source.query('SELECT * FROM "é" ORDER BY 1')
        for database in targets:
            wait_until(
                f"{database} has the rows",
                lambda d=database: (
                    Database(cluster, d).query('SELECT * FROM "é" ORDER BY 1')  # type: ignore[misc]
                    == expected
                ),
                lambda d=database: str(more.view(d)),  # type: ignore[misc]
            )
    finally:
        for database in targets:
            more.service.call("DELETE", f"/subscriptions/{database}")
            cluster.drop_database(database)
        cluster.drop_database(name)


#: Columns of the views that tell one of PostgreSQL's workers from the others; ours is one program,
#: which has no number in a catalog and whose counts nobody resets.
_OF_WORKERS = {"subid", "relid", "leader_pid", "worker_type", "stats_reset"}
#: A change of each kind of conflict that stops nobody, with what the targets did before it.
_CONFLICTS = """
INSERT INTO c026_met SELECT n, 'v' FROM generate_series(1, 9) n
""", """
DELETE FROM c026_met WHERE a <= 3; UPDATE c026_met SET b = 'mine' WHERE a BETWEEN 4 AND 6
""", """
UPDATE c026_met SET b = 'w' WHERE a IN (1, 2, 4); DELETE FROM c026_met WHERE a IN (3, 5, 6)
"""  # fmt: skip


def test_026_each_column_of_the_views(more: SideBySide) -> None:
    """Of pg_stat_subscription and pg_stat_subscription_stats: by name, and what they say."""
    more.everywhere("CREATE TABLE c026_met (a int PRIMARY KEY, b text)")
    more.source.execute("CREATE PUBLICATION met FOR TABLE c026_met, marker")
    more.both("TRUNCATE marker")
    # By one subscription alone: markers of two would be in each other's way.
    more.unsubscribe("more")
    more.subscribe("met", "met")
    before, on_targets, after = _CONFLICTS
    more.source.execute(before)
    more.caught_up()
    more.both(on_targets)
    for change in after.split(";"):
        more.source.execute(change)
    end = Lsn.parse(more.source.value("SELECT pg_current_wal_lsn()::text"))
    more.caught_up()
    more.rows("SELECT * FROM c026_met")

    columns = {
        name
        for (name,) in more.stock.query(
            # The second one is there from 15 on.
            "SELECT attname FROM pg_attribute WHERE attnum > 0 AND attrelid IN"
            " (to_regclass('pg_stat_subscription'), to_regclass('pg_stat_subscription_stats'))"
        )
    }
    compared = columns - _OF_WORKERS

    def stock() -> dict[str, Any]:
        """What the server says of its leader."""
        row = more.stock.value(
            "SELECT to_jsonb(s) || to_jsonb(n) FROM pg_stat_subscription s"
            " JOIN pg_stat_subscription_stats n USING (subid)"
            " WHERE s.subname = 'met' AND s.relid IS NULL"
            if "apply_error_count" in columns
            else "SELECT to_jsonb(s) FROM pg_stat_subscription s"
            " WHERE s.subname = 'met' AND s.relid IS NULL"
        )
        assert set(row) == columns
        return {name: row[name] for name in compared}

    def ours() -> dict[str, Any]:
        told = more.service.call("GET", "/subscriptions/met/stats")
        assert compared <= set(told)
        return {name: told[name] for name in compared}

    counts = [name for name in sorted(compared) if name.endswith("_count") or "confl_" in name]

    met = {}
    if more.major >= _MAJOR_OF_CONFLICTS:
        met = {
            "confl_update_missing": 2, "confl_update_origin_differs": 1,
            "confl_delete_missing": 1, "confl_delete_origin_differs": 2,
        }  # fmt: skip

    def counted() -> bool:
        # Both tell their counts some time after the rows: that they are equal may be two noughts.
        told = {name: number for name, number in ours().items() if "confl_" in name and number}
        return told == met and [stock()[n] for n in counts] == [ours()[n] for n in counts]

    wait_until("both count the same", counted, lambda: f"{stock()}\n{ours()}\n{more.told()}")
    for told in (stock, ours):
        for name in ("received_lsn", "latest_end_lsn"):
            wait_until(
                f"{told.__name__}: {name}",
                # Until a program's first status, which comes each second, nothing is known.
                lambda t=told, n=name: Lsn.parse(t()[n] or "0/0") >= end,  # type: ignore[misc]
                more.told,
            )
        found = told()
        assert found["subname"] == "met"
        assert Path(f"/proc/{found['pid']}").exists()
        sent, received, latest = (
            datetime.fromisoformat(found[name])
            for name in ("last_msg_send_time", "last_msg_receipt_time", "latest_end_time")
        )
        now = datetime.now(UTC)
        assert now - timedelta(minutes=1) < sent <= received <= now
        assert now - timedelta(minutes=1) < latest <= now
    more.unsubscribe("met")
