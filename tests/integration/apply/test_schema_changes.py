"""``on_schema_change``: what DDL did to the source's tables is done on the target, at its place; or
the subscription pauses in front of it, and goes on when its hint was followed.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from harness.postgresql_subscription import wait_until
from harness.remedies import command, remedy, statements
from harness.serve_process import ServeProcess
from harness.subscribed_pair import SubscribedPair, subscribed_pair
from harness.tiers import deep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Cluster
    from harness.service import Service


@pytest.fixture
def pair(checklist_cluster: Cluster, apply_service: ServeProcess) -> Iterator[SubscribedPair]:
    with subscribed_pair(checklist_cluster, apply_service.service()) as there:
        yield there


@pytest.fixture
def pair18(
    session_cluster: Callable[[int], Cluster], apply_service: ServeProcess
) -> Iterator[SubscribedPair]:
    with subscribed_pair(session_cluster(18), apply_service.service()) as there:
        yield there


def test_what_is_safe_is_done_on_the_target(pair: SubscribedPair) -> None:
    pair.both(
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(10), n numeric(6,2), f real, x int);"
        "CREATE TABLE r (id int PRIMARY KEY, y int) PARTITION BY RANGE (id);"
        "CREATE TABLE r0 PARTITION OF r FOR VALUES FROM (0) TO (10)"
    )
    pair.source.execute("INSERT INTO t VALUES (1, 'a', 1, 1, 1), (2, 'b', 2, 2, 2)")
    pair.create(on_schema_change="apply")
    pair.transaction(
        "INSERT INTO t VALUES (3, 'c', 3, 3, 3)",
        "ALTER TABLE t ADD a int NOT NULL DEFAULT 7, ADD b timestamptz DEFAULT now(),"
        ' ADD c text COLLATE "C", ADD g int GENERATED ALWAYS AS (a * 2) STORED',
        "INSERT INTO t (id, a) VALUES (4, 8)",
        "SAVEPOINT s",
        "ALTER TABLE t ADD gone int",
        "INSERT INTO t (id, gone) VALUES (99, 1)",
        "ROLLBACK TO s",
        "UPDATE t SET c = 'z' WHERE id = 1",
        "ALTER TABLE t RENAME v TO w",
        "UPDATE t SET w = 'w' WHERE id = 2",
        "ALTER TABLE t DROP x, ALTER id TYPE bigint, ALTER w TYPE text, ALTER f TYPE float8,"
        " ALTER n TYPE numeric(8,2), ALTER a DROP NOT NULL",
        "INSERT INTO t (id, w, n, f) VALUES (5000000000, repeat('w', 20), 123456.78, 1e300)",
        "ALTER TABLE t ALTER a SET DEFAULT 11, ALTER b DROP DEFAULT",
    )
    pair.source.execute("ALTER TABLE t ALTER a SET DEFAULT 12, ALTER c SET DEFAULT upper('q')")
    pair.transaction(
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (10) TO (20)",
        "INSERT INTO r VALUES (1, 1), (11, 1)",
        "ALTER TABLE r ADD z int DEFAULT 5",
        "INSERT INTO r VALUES (2, 2, 2), (12, 2, 2)",
    )
    pair.source.execute("CREATE TEMP TABLE unwanted (id int)")
    pair.catch_up()
    wait_until(
        "the new partition is copied",
        lambda: pair.target.value("SELECT count(*) FROM r1") == 2,
        pair.told,
    )
    pair.check_equal("t", "r")
    # Killed anywhere, it is done once.
    pair.source.execute("ALTER TABLE t ADD k int DEFAULT 1; INSERT INTO t (id) VALUES (50)")
    os.kill(pair.view()["pid"], signal.SIGKILL)
    pair.source.execute("ALTER TABLE t RENAME k TO l; INSERT INTO t (id) VALUES (51)")
    pair.catch_up()
    pair.source.execute("ALTER TABLE t RENAME TO u; INSERT INTO u (id) VALUES (52)")
    pair.catch_up()
    pair.check_equal("u")
    # What was computed for each row is in no WAL: that is a pause, and nothing is half done.
    pair.transaction(
        "INSERT INTO u (id) VALUES (60)", "ALTER TABLE u ADD rnd float8 DEFAULT random()"
    )
    view = pair.paused()
    assert "computed for each row" in str(view["error"])
    assert pair.target.value("SELECT count(*) FROM u WHERE id = 60") == 0


@pytest.mark.long
def test_under_other_names_on_the_target(pair: SubscribedPair) -> None:
    """What happens to a table happens to the one that its rows go to."""
    pair.source.execute(
        "CREATE SCHEMA shop; CREATE TABLE shop.t (id int PRIMARY KEY, v varchar(3));"
        "CREATE TABLE shop.u (id int PRIMARY KEY, v int); INSERT INTO shop.t VALUES (1, 'a')"
    )
    pair.target.execute(
        "CREATE SCHEMA away; CREATE TABLE away.t (id int PRIMARY KEY, v int);"
        "CREATE TABLE away.named (id int PRIMARY KEY, v varchar(3));"
        "CREATE TABLE away.u (id int PRIMARY KEY, v int);"
        "CREATE SCHEMA shop; CREATE TABLE shop.u (id int PRIMARY KEY, v int)"
    )
    pair.create(on_schema_change="apply", rename={"shop": "away", "shop.t": "away.named"})
    pair.transaction(
        "INSERT INTO shop.t VALUES (2, 'b')",
        "ALTER TABLE shop.t ADD w int DEFAULT 5, ALTER v TYPE text",
        "INSERT INTO shop.t VALUES (3, 'longer', 6)",
        "ALTER TABLE shop.u RENAME v TO w",
        "INSERT INTO shop.u VALUES (1, 1)",
        "ALTER TABLE shop.u RENAME TO v",
        "INSERT INTO shop.v VALUES (2, 2)",
    )
    pair.catch_up()
    assert pair.target.query("SELECT * FROM away.named ORDER BY 1") == pair.source.query(
        "SELECT * FROM shop.t ORDER BY 1"
    )
    assert pair.target.query("SELECT id, w FROM away.v ORDER BY 1") == [(1, 1), (2, 2)]
    # Those that have the names which the source's tables have are somebody else's.
    columns = (
        "SELECT string_agg(attname, ',' ORDER BY attnum) FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0"
    )
    assert pair.target.value(columns, ["away.t"]) == "id,v"
    assert pair.target.value(columns, ["shop.u"]) == "id,v"


@pytest.mark.long
def test_names_and_values_that_need_quotes(pair: SubscribedPair) -> None:
    pair.both(
        """CREATE TABLE "We""ird %s ü" (id int PRIMARY KEY, "a b" varchar(3), "%" int);
        CREATE TABLE "P'art" (id int, "k""ey" text, PRIMARY KEY (id, "k""ey"))
            PARTITION BY LIST ("k""ey");
        CREATE TABLE "P'art %d" PARTITION OF "P'art" FOR VALUES IN ('it''s', '%s')"""
    )
    pair.source.execute("""INSERT INTO "We""ird %s ü" VALUES (1, 'x', 1)""")
    pair.create(on_schema_change="apply")
    pair.transaction(
        r"""ALTER TABLE "We""ird %s ü" ADD "x""y %s $1" text DEFAULT E'it''s %s "q" \\ $1'""",
        """INSERT INTO "We""ird %s ü" (id) VALUES (2)""",
        """ALTER TABLE "We""ird %s ü" RENAME "a b" TO "A'b%" """,
        """ALTER TABLE "We""ird %s ü" ALTER "A'b%" TYPE text, DROP "%" """,
        """INSERT INTO "We""ird %s ü" (id, "A'b%") VALUES (3, 'longer')""",
        """ALTER TABLE "We""ird %s ü" ALTER "x""y %s $1" SET DEFAULT '%'""",
        """ALTER TABLE "We""ird %s ü" RENAME TO "N""ew 'one'" """,
        """INSERT INTO "N""ew 'one'" (id) VALUES (4)""",
    )
    pair.transaction(
        r"""CREATE TABLE "P'art ""2" PARTITION OF "P'art" FOR VALUES IN ('"', '\', 'ü;--')""",
        """ALTER TABLE "P'art" ADD "a'd""d" text DEFAULT '"%s'""",
        r"""INSERT INTO "P'art" VALUES (1, 'it''s'), (2, 'ü;--'), (3, '\')""",
    )
    pair.catch_up()
    wait_until(
        "the new partition is copied",
        lambda: pair.target.value("""SELECT count(*) FROM "P'art" """) == 3,
        pair.told,
    )
    pair.check_equal(""" "N""ew 'one'" """, """ "P'art" """)


@pytest.mark.long
def test_a_schema_that_is_renamed(pair: SubscribedPair) -> None:
    """Its tables go into a schema of that name, which is made."""
    pair.both("CREATE SCHEMA one; CREATE TABLE one.t (id int PRIMARY KEY)")
    pair.source.execute("CREATE TABLE one.source_only (id int PRIMARY KEY)")
    pair.create("TABLE one.t, marker", on_schema_change="apply")
    pair.transaction(
        "INSERT INTO one.t VALUES (1)",
        "ALTER SCHEMA one RENAME TO two",
        "INSERT INTO two.t VALUES (2)",
    )
    pair.catch_up()
    assert pair.target.query("SELECT * FROM two.t ORDER BY 1") == [(1,), (2,)]
    assert pair.target.value("SELECT to_regclass('one.t') IS NULL")
    assert pair.view()["enabled"]


@pytest.mark.parametrize("by", ["publication", deep("name")])
def test_what_is_not_the_subscriptions_is_passed_over(pair: SubscribedPair, by: str) -> None:
    """Even what it would pause at, and what it could do on the target."""
    pair.both("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int, v int)")
    if by == "publication":
        pair.create("TABLE t, marker", on_schema_change="apply")
    else:
        pair.create(tables=("public.t",), on_schema_change="apply")
    pair.transaction(
        "ALTER TABLE other ADD rnd float8 DEFAULT random()",
        "ALTER TABLE other DROP v",
        "CREATE TABLE further (id int)",
        "ALTER TABLE t ADD w int",
        "INSERT INTO t VALUES (1, 2)",
    )
    pair.catch_up()
    assert pair.view()["enabled"]
    assert pair.target.query("SELECT * FROM t") == [(1, 2)]
    assert pair.target.query(
        "SELECT attname FROM pg_attribute WHERE attnum > 0"
        " AND attrelid = 'other'::regclass ORDER BY attnum"
    ) == [("id",), ("v",)]
    assert pair.target.value("SELECT to_regclass('further') IS NULL")


@pytest.fixture
def short_snapshots(tmp_path: Path) -> Iterator[Service]:
    """A service with which a snapshot does not outlive its program for long."""
    process = ServeProcess(tmp_path / "data", environment={"SPILLWAY_SNAPSHOT_HOLD": "1"})
    yield process.service()
    process.stop()


#: An index that is made again behind a copy, for which whoever does that waits for the lock.
_HOLD = """
CREATE FUNCTION public.hold(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_advisory_xact_lock_shared(17); RETURN n; END $$;
CREATE INDEX held ON {} (public.hold(id))
"""


@contextmanager
def _copy_held(pair: SubscribedPair, table: str) -> Iterator[None]:
    """Keep a table's copy from ending while the block runs, when its rows are there."""
    pair.target.execute(_HOLD.format(table))
    with pair.target.connect() as session:
        session.execute("SELECT pg_advisory_lock(17)")
        yield


def _wait_copied(pair: SubscribedPair, table: str) -> None:
    query = f"SELECT FROM {table}"
    wait_until("its rows are copied", lambda: bool(pair.target.query(query)), pair.told)


@contextmanager
def _copied_later(pair: SubscribedPair, wished: str) -> Iterator[None]:
    """Subscribe, and have a table copied beside the stream, as long as the block runs."""
    pair.create(on_schema_change=wished, defer_indexes=True)
    table = "CREATE TABLE t (id int PRIMARY KEY, v varchar(3), x int)"
    pair.target.execute(table)
    with _copy_held(pair, "t"):
        pair.source.execute(f"{table}; INSERT INTO t VALUES (1, 'one', 1)")
        _wait_copied(pair, "t")
        yield


_MEANWHILE = (
    "INSERT INTO t VALUES (2, 'two', 2)",
    "ALTER TABLE t ADD w int NOT NULL DEFAULT 7, ALTER v TYPE text, DROP x",
    "INSERT INTO t VALUES (3, 'three', 8)",
)


@pytest.mark.long
@pytest.mark.parametrize("is_killed", [False, True], ids=["", "killed"])
def test_of_a_table_that_lacks_what_came_since_its_copy(
    session_cluster: Callable[[int], Cluster], short_snapshots: Service, is_killed: bool
) -> None:
    """It is done between that table's rows, by who has them; or before it is copied anew. The
    stream does not wait for it.
    """
    with subscribed_pair(session_cluster(18), short_snapshots) as pair:
        with _copied_later(pair, "apply"):
            pair.transaction("UPDATE t SET x = 5", *_MEANWHILE)
            pair.source.execute("ALTER TABLE t RENAME TO u; UPDATE u SET w = 9 WHERE id = 2")
            pair.source.execute("ALTER TABLE u RENAME w TO z; INSERT INTO u VALUES (4, 'four', 4)")
            pair.catch_up()
            waiting = "SELECT count(*) FROM spillway.deferred_ddl"
            assert pair.target.value(waiting) == 3, pair.told()
            if is_killed:
                os.kill(pair.view()["pid"], signal.SIGKILL)
        wait_until(
            "it is the source's",
            lambda: (
                pair.target.value("SELECT to_regclass('u') IS NOT NULL")
                and pair.target.value("SELECT count(*) FROM u") == 4
            ),
            pair.told,
        )
        pair.source.execute("INSERT INTO u VALUES (5, 'five', 5)")
        pair.catch_up()
        wait_until(
            "the stream has it",
            lambda: pair.target.value("SELECT count(*) FROM u") == 5,
            pair.told,
        )
        pair.check_equal("u")
        assert pair.target.value(waiting) == 0
        states = "SELECT table_name, state FROM spillway.tables WHERE table_name IN ('t', 'u')"
        assert pair.target.query(states) == [("u", "r")], pair.told()


@pytest.mark.parametrize("is_killed", [deep(False), deep(True)], ids=["", "killed"])
def test_of_a_partitioned_table_with_a_partition_that_lacks_what_came_since_its_copy(
    session_cluster: Callable[[int], Cluster], short_snapshots: Service, is_killed: bool
) -> None:
    """All partitions have it together, so it waits until that one has the rows from before it."""
    with subscribed_pair(session_cluster(18), short_snapshots) as pair:
        pair.both(
            "CREATE TABLE r (id int PRIMARY KEY, v varchar(3), x int) PARTITION BY RANGE (id);"
            "CREATE TABLE r0 PARTITION OF r FOR VALUES FROM (0) TO (10)"
        )
        partition = "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (10) TO (20)"
        pair.target.execute(partition)
        pair.create(on_schema_change="apply", defer_indexes=True)
        with _copy_held(pair, "r1"):
            pair.transaction(partition, "INSERT INTO r VALUES (1, 'one', 1), (11, 'one', 1)")
            _wait_copied(pair, "r1")
            pair.source.execute("INSERT INTO r VALUES (2, 'two', 2), (12, 'two', 2)")
            pair.catch_up()
            pair.transaction(
                "UPDATE r SET x = 5",
                "ALTER TABLE r ADD w int NOT NULL DEFAULT 7, ALTER v TYPE text, DROP x",
                "ALTER TABLE r ALTER w DROP DEFAULT",
                "INSERT INTO r VALUES (3, 'three', 8), (13, 'three', 8)",
            )
            pair.source.execute("ALTER TABLE r RENAME w TO z; UPDATE r SET z = 9 WHERE id > 11")
            wait_until(
                "it waits",
                lambda: pair.view()["stats"].get("waits_for_tables") == ["public.r1"],
                pair.told,
            )
            # All before it is there, and nothing of it.
            assert pair.target.query("SELECT * FROM r ORDER BY 1") == [
                (1, "one", 1), (2, "two", 2), (11, "one", 1),
            ]  # fmt: skip
            if is_killed:
                os.kill(pair.view()["pid"], signal.SIGKILL)
        pair.catch_up()
        # Whoever was killed has it copied anew, beside the stream.
        ready = "SELECT FROM spillway.tables WHERE table_name = 'r1' AND state = 'r'"
        wait_until("the partition is ready", lambda: bool(pair.target.query(ready)), pair.told)
        pair.check_equal("r")
        wait_until(
            "it is told no more", lambda: "waits_for_tables" not in pair.view()["stats"], pair.told
        )
        # A copy anew may meet the target's table before the stream has changed it: once.
        errors = pair.view()["stats"].get("sync_error_count") or 0
        assert errors <= is_killed, pair.told()


@pytest.mark.long
def test_a_pause_of_a_table_that_lacks_what_came_since_its_copy(
    session_cluster: Callable[[int], Cluster], short_snapshots: Service
) -> None:
    """It stops in front of the DDL by itself, and goes on by itself."""
    with subscribed_pair(session_cluster(18), short_snapshots) as pair:
        with _copied_later(pair, "pause"):
            for statement in _MEANWHILE:
                pair.source.execute(statement)
            pair.catch_up()

        def error() -> str:
            tables = pair.view()["table_states"]
            return next((str(t["reason"] or "") for t in tables if t["table"] == "public.t"), "")

        wait_until("it is told", lambda: bool(error()), pair.told)
        assert pair.view()["enabled"]
        assert pair.target.query("SELECT id, v, x FROM t ORDER BY 1") == [
            (1, "one", 1), (2, "two", 2),
        ]  # fmt: skip
        text, hint = error().split(" Hint: ")
        assert "everything before it is applied" in text
        for statement in statements(hint):
            pair.target.execute(statement)
        wait_until(
            "it goes on",
            lambda: pair.target.value("SELECT count(*) FROM t") == 3,
            pair.told,
        )
        pair.check_equal("t")
        wait_until("its error is gone", lambda: not error(), pair.told)


@pytest.mark.long
def test_a_table_that_a_refresh_adds_is_copied_beside_the_others(pair18: SubscribedPair) -> None:
    """The program is started again for it; the stream does not wait for the copy."""
    pair, states = pair18, "SELECT state FROM spillway.tables WHERE table_name = 't'"
    pair.both("CREATE TABLE t (id int PRIMARY KEY)")
    pair.create("TABLE marker", defer_indexes=True)
    pair.source.execute("INSERT INTO t VALUES (1)")
    with _copy_held(pair, "t"):
        pair.source.execute("ALTER PUBLICATION p ADD TABLE t")
        pair.service.call("POST", f"/subscriptions/{pair.name}/refresh")
        _wait_copied(pair, "t")
        pair.catch_up()
        assert pair.target.query(states) == [("d",)]
    pair.source.execute("INSERT INTO t VALUES (2)")
    wait_until("it is ready", lambda: pair.target.query(states) == [("r",)], pair.told)
    pair.catch_up()
    pair.check_equal("t")


@pytest.fixture
def extensions() -> Iterator[Path]:
    """A directory of extensions, which a server of another user may read."""
    with TemporaryDirectory(prefix="spillway-extensions-") as directory:
        path = Path(directory)
        (path / "extension").mkdir()
        path.chmod(0o755)
        yield path


@pytest.mark.long
def test_what_the_script_of_an_extension_does(pair18: SubscribedPair, extensions: Path) -> None:
    """An extension's tables are tables, and its update is DDL as any other's. 18, which is told
    where extensions are.
    """
    pair, scripts = pair18, extensions / "extension"
    (scripts / "counted.control").write_text("default_version = '1.0'\nrelocatable = true\n")
    (scripts / "counted--1.0.sql").write_text(
        "CREATE TABLE counted (id int PRIMARY KEY, v varchar(3));"
        "INSERT INTO counted VALUES (1, 'one')"
    )
    (scripts / "counted--1.0--2.0.sql").write_text(
        "INSERT INTO counted VALUES (2, 'two');"
        "ALTER TABLE counted ADD w int NOT NULL DEFAULT 7, ALTER v TYPE text;"
        "INSERT INTO counted VALUES (3, 'three', 8)"
    )
    pair.create(on_schema_change="apply")
    pair.target.execute("CREATE TABLE counted (id int PRIMARY KEY, v varchar(3))")
    with pair.source.connect() as connection:
        connection.execute(f"SET extension_control_path = '$system:{extensions}'")
        connection.execute("CREATE EXTENSION counted")
        wait_until(
            "it is copied",
            lambda: pair.target.value("SELECT count(*) FROM counted") == 1,
            pair.told,
        )
        connection.execute("ALTER EXTENSION counted UPDATE TO '2.0'")
    pair.catch_up()
    # They come by the stream, or by what reads what the table lacks since its copy.
    wait_until(
        "its rows are there",
        lambda: pair.target.value("SELECT count(*) FROM counted") == 3,
        pair.told,
    )
    pair.check_equal("counted")


@pytest.mark.follows_hint("target_schema_change")
def test_a_pause_goes_on_when_its_hint_was_followed(pair: SubscribedPair) -> None:
    pair.both("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE untouched (id int)")
    pair.create(on_schema_change="pause")
    pair.source.execute("INSERT INTO t VALUES (1, 'before')")
    pair.source.execute("CREATE INDEX ON t (v); ALTER TABLE t REPLICA IDENTITY FULL")
    pair.transaction(
        "ALTER TABLE t ADD w int NOT NULL DEFAULT 3, DROP v", "INSERT INTO t VALUES (3, 4)"
    )
    view = pair.paused()
    # What is before is applied, and nothing of the transaction.
    assert pair.target.query("SELECT id FROM t") == [(1,)]
    event = view["stats"]["schema_change"]
    assert (event["kind"], event["table"]) == ("alter_table", "t")
    assert json.dumps(event["changes"]).count("change") == len(event["changes"]) == 2
    for statement in statements(remedy(view["error"], "target_schema_change")):
        pair.target.execute(statement)
    pair.service.call("POST", f"/subscriptions/{pair.name}/enable")
    pair.catch_up()
    pair.check_equal("t")
    wait_until("it is told no more", lambda: "schema_change" not in pair.view()["stats"])
    # A column that rows before it have can't be dropped ahead: the program does it in between.
    pair.transaction(
        "INSERT INTO t VALUES (5, 5)", "ALTER TABLE t DROP w, ADD z text",
        "INSERT INTO t VALUES (6, 'six')",
    )  # fmt: skip
    view = pair.paused()
    assert "give the target on_schema_change apply" in view["error"]["hint"]
    wished = {**view["target"], "on_schema_change": "apply"}
    pair.service.call("PATCH", f"/subscriptions/{pair.name}", json={"target": wished})
    pair.service.call("POST", f"/subscriptions/{pair.name}/enable")
    pair.catch_up()
    pair.check_equal("t")


@pytest.mark.long
def test_a_table_that_was_renamed_while_nobody_applied(pair: SubscribedPair) -> None:
    """The publication is looked up before the stream has come to the new name: it is the same
    table, and not copied again.
    """
    pair.both("CREATE TABLE t (id int); ALTER TABLE t REPLICA IDENTITY FULL")
    pair.source.execute("INSERT INTO t VALUES (1), (2)")
    pair.create(on_schema_change="apply")
    pair.service.call("POST", f"/subscriptions/{pair.name}/disable")
    pair.transaction("INSERT INTO t VALUES (3)", "ALTER TABLE t RENAME TO u")
    pair.source.execute("INSERT INTO u VALUES (4)")
    pair.service.call("POST", f"/subscriptions/{pair.name}/enable")
    pair.catch_up()
    wait_until(
        "it is known by its new name",
        lambda: (
            pair.target.query("SELECT table_name, state FROM spillway.tables ORDER BY 1")
            == [("marker", "r"), ("u", "r")]
        ),
        pair.told,
    )
    pair.source.execute("INSERT INTO u VALUES (5)")
    pair.catch_up()
    pair.check_equal("u")


@pytest.mark.long
@pytest.mark.parametrize("wished", ["pause", "apply"])
def test_a_rename_in_a_transaction_that_is_skipped_and_gone(
    pair: SubscribedPair, wished: str
) -> None:
    """The service has nothing of it any more. The table is known again by its OID with the next of
    its rows: none is taken for a stranger's and passed over. It gets its name then, or that is a
    pause, whose remedy mends it.
    """
    pair.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pair.create(on_schema_change="pause")
    pair.source.execute("INSERT INTO t VALUES (1, 'before')")
    pair.transaction("INSERT INTO t VALUES (2, 'skipped')", "ALTER TABLE t RENAME TO u")
    view = pair.paused()
    # As of a backup from before the service was there.
    pair.target.execute("UPDATE spillway.progress SET remote_lsn = '0/10'")
    pair.skip(pair.service.wait_decoded(pair.name, pair.source), view, on_schema_change=wished)
    pair.source.execute("INSERT INTO u VALUES (3, 'behind'); UPDATE u SET v = 'new' WHERE id = 1")
    if wished == "pause":
        error = pair.paused()["error"]
        assert "was public.t: it was renamed in a transaction that was skipped" in error["message"]
        for statement in statements(remedy(error, "target_schema_change")):
            pair.target.execute(statement)
        pair.service.call("POST", f"/subscriptions/{pair.name}/enable")
    pair.catch_up()
    assert pair.target.query("SELECT * FROM u ORDER BY 1") == [(1, "new"), (3, "behind")]
    assert ("u", "r") in pair.target.query("SELECT table_name, state FROM spillway.tables")


def _goes_on(pair: SubscribedPair) -> bool:
    return not pair.view()["enabled"] or bool(pair.target.query("SELECT FROM t WHERE id = 4"))


@pytest.mark.long
@pytest.mark.parametrize("wished", ["apply", deep("pause")])
def test_ddl_between_the_rows_of_what_is_skipped(pair: SubscribedPair, wished: str) -> None:
    """The rows are given up, TRUNCATE with them, as PostgreSQL's SKIP does; the shape is not. A
    column with a default, one that is renamed, and one that is made again by its name would
    otherwise have other values than the source's, unseen.
    """
    pair.both("CREATE TABLE t (id int PRIMARY KEY, v text, w int DEFAULT 1 NOT NULL)")
    pair.both("CREATE TABLE emptied (id int PRIMARY KEY)")
    pair.create(on_schema_change=wished)
    pair.source.execute("INSERT INTO t VALUES (1, 'before'); INSERT INTO emptied VALUES (1)")
    pair.catch_up()
    pair.target.execute("INSERT INTO t VALUES (2, 'in the way')")
    pair.transaction(
        "INSERT INTO t VALUES (2, 'skipped')",
        "ALTER TABLE t ADD COLUMN c int DEFAULT 7",
        "INSERT INTO t VALUES (3, 'skipped')",
        "TRUNCATE emptied",
        "ALTER TABLE t RENAME COLUMN v TO x",
        "UPDATE t SET x = 'skipped' WHERE id = 1",
        "ALTER TABLE t DROP COLUMN w, ADD COLUMN w int DEFAULT 5",
        "DELETE FROM t WHERE id = 3",
        "ALTER TABLE t ALTER COLUMN id TYPE bigint",
        "ALTER TABLE emptied RENAME TO other",
    )
    pair.source.execute("INSERT INTO t VALUES (4, 'behind', 8)")
    wait_until("it fails", lambda: pair.view()["error"], pair.told)
    view = pair.view()
    told = command(remedy(view["error"], "apply_conflict"), "subscription skip", NAME=pair.name)
    pair.skip(told[3], view)
    while wished == "pause":
        # Each event is a pause, and those before it are passed.
        wait_until("it pauses, or goes on", lambda: _goes_on(pair), pair.told)
        if pair.view()["enabled"]:
            break
        for statement in statements(remedy(pair.view()["error"], "target_schema_change")):
            pair.target.execute(statement)
        pair.service.call("POST", f"/subscriptions/{pair.name}/enable")
    pair.catch_up()
    pair.check_equal()
    assert pair.target.query("SELECT id, x, c, w FROM t ORDER BY 1") == [
        (1, "before", 7, 5),
        (2, "in the way", 7, 5),
        (4, "behind", 8, 5),
    ]
    assert pair.target.query("SELECT id FROM other") == [(1,)]
    assert ("other", "r") in pair.target.query("SELECT table_name, state FROM spillway.tables")


@pytest.mark.long
def test_ddl_of_what_is_skipped_that_is_not_done(pair: SubscribedPair) -> None:
    """It is the pause that it would have been, as often as the program begins, until the target is
    as the source; with `ignore` it is passed over.
    """
    pair.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pair.create(on_schema_change="apply")
    pair.source.execute("INSERT INTO t VALUES (1, 'before')")
    pair.catch_up()
    pair.target.execute("INSERT INTO t VALUES (2, 'in the way')")
    pair.transaction(
        "INSERT INTO t VALUES (2, 'skipped')",
        "ALTER TABLE t ADD COLUMN n int GENERATED ALWAYS AS IDENTITY",
    )
    pair.source.execute("INSERT INTO t (id, v) VALUES (4, 'behind')")
    wait_until("it fails", lambda: pair.view()["error"], pair.told)
    view = pair.view()
    told = command(remedy(view["error"], "apply_conflict"), "subscription skip", NAME=pair.name)
    pair.skip(told[3], view)
    for _ in range(2):
        error = pair.paused()["error"]
        assert error["code"] == "target_schema_change"
        assert "column n is an identity column: its older rows were numbered" in error["message"]
        pair.service.call("POST", f"/subscriptions/{pair.name}/enable")
    pair.paused()
    pair.target.execute("ALTER TABLE t ADD COLUMN n int GENERATED ALWAYS AS IDENTITY")
    pair.service.call("POST", f"/subscriptions/{pair.name}/enable")
    pair.catch_up()
    assert [row[0] for row in pair.target.query("SELECT id FROM t ORDER BY 1")] == [1, 2, 4]


@pytest.mark.long
def test_a_table_that_takes_anothers_name_is_copied(pair: SubscribedPair) -> None:
    """As tools that rebuild a table do it: a new one, filled, and both renamed at once."""
    there = pair
    there.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    there.create(on_schema_change="apply", create_tables=True)
    there.source.execute("INSERT INTO t VALUES (1, 'first')")
    there.catch_up()
    there.transaction(
        "CREATE TABLE t_new (id bigint PRIMARY KEY, v text, w int DEFAULT 3)",
        "INSERT INTO t_new SELECT id, v FROM t",
        "ALTER TABLE t RENAME TO t_old",
        "ALTER TABLE t_new RENAME TO t",
    )
    there.source.execute("INSERT INTO t VALUES (2, 'new', 9)")
    there.source.execute("INSERT INTO t_old VALUES (3, 'old')")
    there.catch_up()
    wait_until(
        "the new one is the stream's",
        lambda: (
            there.target.query(
                "SELECT FROM spillway.tables WHERE table_name = 't' AND state IN ('s', 'r')"
            )
            != []
        ),
        there.told,
    )
    there.source.execute("UPDATE t SET v = v || '!'")
    there.catch_up()
    for table in ("t", "t_old"):
        rows = f"SELECT to_jsonb(r)::text FROM {table} r ORDER BY 1"
        assert there.target.query(rows) == there.source.query(rows), table


@pytest.mark.parametrize("table", ["t", "r"])
def test_what_a_domains_default_gave_to_older_rows_is_a_pause(
    pair: SubscribedPair, table: str
) -> None:
    """The target's domain would give them other values."""
    pair.both(
        "CREATE DOMAIN computed AS float8 DEFAULT random();"
        "CREATE TABLE t (id int PRIMARY KEY, v int);"
        "CREATE TABLE r (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);"
        "CREATE TABLE r0 PARTITION OF r FOR VALUES FROM (0) TO (10)"
    )
    pair.source.execute("INSERT INTO t VALUES (1, 1), (2, 2); INSERT INTO r VALUES (1, 1)")
    pair.create(on_schema_change="apply")
    pair.source.execute(f"ALTER TABLE {table} ADD a computed")
    pair.source.execute("INSERT INTO marker VALUES (1000)")
    assert "computed for each row" in str(pair.paused()["error"])
    assert pair.target.query("SELECT FROM marker") == []
