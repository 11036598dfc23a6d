"""What becomes of conflicts by the rules of a subscription, and of rows that a target refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from harness.exact_apply import Ours, Source, drop_target, masked
from harness.postgresql_subscription import wait_until
from harness.remedies import remedy
from harness.tiers import deep
from spillway.apply.conflicts.rules import ConflictRules
from spillway.apply.exact.dead_rows import DeadRows
from spillway.apply.exact.writer import ExactOptions
from spillway.apply.target.connection import connect_target
from spillway.apply.target.session import TargetSession
from spillway.errors import ApplyConflict, TargetRowRefused, UnsupportedFeature

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Cluster

    ClusterOf = Callable[[int], Cluster]

TABLES = (
    "CREATE TABLE c (id int PRIMARY KEY, u int UNIQUE, v text)",
    "CREATE TABLE m (id int PRIMARY KEY, a text, b text); ALTER TABLE m REPLICA IDENTITY FULL",
)


@pytest.fixture(scope="module", params=[14, deep(16), deep(17), deep(18)])
def source(request: pytest.FixtureRequest, timed_cluster: ClusterOf) -> Iterator[Source]:
    """One source for all tests: each has its own slot and target, and begins with empty tables."""
    made = Source.make(timed_cluster(request.param))
    made.database.execute("; ".join(TABLES))
    yield made
    made.database.cluster.drop_database(made.database.name)


@pytest.fixture
def ours(source: Source) -> Iterator[Ours]:
    source.database.execute("TRUNCATE c, m")
    made = Ours.make(source)
    made.database.execute("; ".join(TABLES))
    yield made
    source.database.query("SELECT pg_drop_replication_slot(%s)", [made.slot])
    drop_target(made.database)


def rule(ours: Ours, rules: dict[str, Any], **more: Any) -> None:
    ours.options = ExactOptions(rules=ConflictRules.parse(rules), **more)


def both(ours: Ours, rows: str) -> None:
    """Have *rows* on both sides, written by the source."""
    ours.source.database.execute(rows)
    ours.take()
    assert ours.heard.conflicts == []


EXISTS = {
    "insert_exists": (
        "INSERT INTO c VALUES (1, 1, 'local')",
        "INSERT INTO c VALUES (1, 9, 'remote')",
    ),
    "multiple_unique_conflicts": (
        "INSERT INTO c VALUES (1, 1, 'local'), (2, 2, 'local')",
        "INSERT INTO c VALUES (1, 2, 'remote')",
    ),
    "update_exists": (
        "INSERT INTO c VALUES (2, 2, 'local')",
        "INSERT INTO c VALUES (1, 1, 'remote'); UPDATE c SET u = 2",
    ),
}


@pytest.mark.parametrize("kind", EXISTS)
def test_a_row_in_the_way(ours: Ours, kind: str) -> None:
    """apply_remote has the source's row and removes those in its way; keep_local does nothing; the
    other changes of the transaction are written either way.
    """
    local, remote = EXISTS[kind]
    ours.database.execute(local)
    before = ours.rows("c")
    ours.source.database.execute(
        f"BEGIN; INSERT INTO m VALUES (1); {remote}; DELETE FROM m; COMMIT"
    )
    rule(ours, {kind: "apply_remote"}, conflicts_table=True)
    ours.take(peek=True)
    assert ours.rows("c") == ours.source.database.query("SELECT * FROM c")
    assert ours.heard.resolved == [(kind, "apply_remote")]
    ((told, table, local_rows, row),) = ours.database.query(
        "SELECT kind, table_name, local_rows, remote_row FROM spillway.conflicts"
    )
    assert (told, table, row["v"]) == (kind, "c", "remote")
    assert [one["row"]["v"] for one in local_rows] == ["local"] * len(local_rows)
    assert local_rows[0]["committed_at"]

    other = Ours.make(ours.source)
    try:
        other.database.execute("; ".join((*TABLES, local)))
        rule(other, {"tables": {"public.c": {kind: "keep_local"}}})
        other.slot = ours.slot
        other.take()
        kept = [(1, 1, "remote")] if kind == "update_exists" else []
        assert other.rows("c") == kept + before
        assert other.heard.resolved == [(kind, "keep_local")]
        assert other.rows("m") == []
    finally:
        drop_target(other.database)


@pytest.mark.parametrize("remote_is_later", [False, True])
def test_the_last_update_wins(ours: Ours, remote_is_later: bool) -> None:
    """Of rows in the way, of updates and of deletes: by the times of the commits."""
    rule(
        ours,
        {
            "insert_exists": "last_update_wins",
            "update_origin_differs": "last_update_wins",
            "delete_origin_differs": "last_update_wins",
        },
    )
    both(ours, "INSERT INTO c VALUES (1, 1, 'x'), (2, 2, 'x')")
    local = "UPDATE c SET v = 'local'; INSERT INTO c VALUES (3, 3, 'local')"
    remote = """UPDATE c SET v = 'remote' WHERE id = 1; DELETE FROM c WHERE id = 2;
        INSERT INTO c VALUES (3, 33, 'remote')"""
    first, then = (ours.database, local), (ours.source.database, remote)
    if not remote_is_later:
        first, then = then, first
    for database, statements in (first, then):
        database.execute(statements)
    ours.take()
    wins = "apply_remote" if remote_is_later else "keep_local"
    kinds = ["update_origin_differs", "delete_origin_differs", "insert_exists"]
    assert ours.heard.resolved == [(kind, wins) for kind in kinds]
    assert {one.why for one in ours.heard.conflicts} == {"last_update_wins"}
    expected = (
        [(1, 1, "remote"), (3, 33, "remote")]
        if remote_is_later
        else [(1, 1, "local"), (2, 2, "local"), (3, 3, "local")]
    )
    assert ours.rows("c") == expected


#: One statement each of the target's, whose rows then are in the way of the source's.
IN_THE_WAY = {
    "multiple_unique_conflicts": (
        ("INSERT INTO c VALUES (1, 1, 'local')", "INSERT INTO c VALUES (2, 2, 'local')"),
        "INSERT INTO c VALUES (1, 2, 'remote')",
    ),
    "update_exists": (
        ("INSERT INTO c VALUES (8, 8, 'local')", "INSERT INTO c VALUES (2, 2, 'local')"),
        "UPDATE c SET u = 2, v = 'remote' WHERE id = 9",
    ),
}


@pytest.mark.parametrize("kind", IN_THE_WAY)
@pytest.mark.parametrize("after", [0, 1, 2])
def test_the_last_update_wins_over_rows_in_the_way(ours: Ours, kind: str, after: int) -> None:
    """The source commits *after* so many of the target's: the newest of those in the way counts."""
    rule(ours, {kind: "last_update_wins"})
    both(ours, "INSERT INTO c VALUES (9, 9, 'x')")
    local, remote = IN_THE_WAY[kind]
    turns = [(ours.database, statement) for statement in local]
    turns.insert(after, (ours.source.database, remote))
    for database, statement in turns:
        database.execute(statement)
    before = ours.rows("c")
    ours.take()
    wins = "apply_remote" if after == len(local) else "keep_local"
    assert ours.heard.resolved == [(kind, wins)]
    assert [one.why for one in ours.heard.conflicts] == ["last_update_wins"]
    kept = [row for row in before if row[0] == 8]
    expected = before if wins == "keep_local" else kept + ours.source.database.query(
        "SELECT * FROM c"
    )  # fmt: skip
    assert ours.rows("c") == sorted(expected)


def test_the_local_row_is_kept(ours: Ours) -> None:
    both(ours, "INSERT INTO c VALUES (1, 1, 'x'), (2, 2, 'x')")
    rule(ours, {"update_origin_differs": "keep_local", "delete_origin_differs": "keep_local"})
    ours.database.execute("UPDATE c SET v = 'local'")
    ours.source.database.execute(
        "UPDATE c SET v = 'remote' WHERE id = 1; DELETE FROM c WHERE id = 2"
    )
    ours.take()
    assert ours.rows("c") == [(1, 1, "local"), (2, 2, "local")]
    assert ours.heard.kinds == ["update_origin_differs", "delete_origin_differs"]


def test_a_conflict_that_is_an_error_by_rule(ours: Ours) -> None:
    """update_missing stops, and goes on when the row is there."""
    rule(ours, {"update_missing": "error"})
    both(ours, "INSERT INTO c VALUES (1, 1, 'x')")
    ours.database.execute("DELETE FROM c")
    ours.source.database.execute("UPDATE c SET v = 'remote'")
    with pytest.raises(ApplyConflict, match="conflict=update_missing"):
        ours.take(peek=True)
    assert ours.heard.resolved == [("update_missing", "error")]
    ours.database.execute("INSERT INTO c VALUES (1, 1, 'again')")
    ours.take()
    assert ours.rows("c") == [(1, 1, "remote")]


def test_a_missing_row_is_inserted(ours: Ours) -> None:
    """Where the source sends all of it; else it is passed over, and that is told."""
    long = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 200) n)"
    both(
        ours,
        f"""ALTER TABLE c ALTER v SET STORAGE EXTERNAL;
        ALTER TABLE m ALTER b SET STORAGE EXTERNAL;
        INSERT INTO c VALUES (1, 1, 'x'), (2, 2, {long});
        INSERT INTO m VALUES (1, 'x', {long})""",
    )
    rule(ours, {"update_missing": "apply_remote"})
    ours.database.execute("DELETE FROM c; DELETE FROM m")
    ours.source.database.execute(
        "UPDATE c SET u = 11 WHERE id = 1; UPDATE c SET u = 12 WHERE id = 2; UPDATE m SET a = 'y'"
    )
    ours.take()
    assert ours.heard.resolved == [
        ("update_missing", "apply_remote"),
        ("update_missing", "skip"),
        ("update_missing", "apply_remote"),
    ]
    assert "did not send" in ours.heard.conflicts[1].why
    assert ours.rows("c") == [(1, 11, "x")]
    # The source sends whole old rows of this one.
    assert ours.rows("m") == ours.source.database.query("SELECT * FROM m")


def test_a_row_that_somebody_else_deleted(ours: Ours) -> None:
    """It is seen by a snapshot from before, as PostgreSQL 19 sees dead rows, vacuumed or not; what
    the source itself deleted is missing, and so is what nobody held.
    """
    both(ours, "INSERT INTO c SELECT n, n, 'x' FROM generate_series(1, 9) n")
    reached = 0
    dead_rows = DeadRows(
        lambda: connect_target(ours.plan.dsn, "dead rows"),
        lambda: 1,
        lambda: reached,
        held_s=600.0,
        every_s=0.1,
    )

    def sessions() -> set[int]:
        query = (
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'dead rows'"
            " AND backend_xmin IS NOT NULL AND datname = current_database()"
        )
        return {pid for (pid,) in ours.database.query(query)}

    ours.dead_rows = dead_rows
    try:
        wait_until("as many are held as ever", lambda: dead_rows.held == 2)
        held = sessions()
        ours.database.execute(
            "DELETE FROM c WHERE id < 4; UPDATE c SET id = 40, u = 40 WHERE id = 4"
        )
        ours.source.database.execute("DELETE FROM c WHERE id = 5")
        ours.take()
        ours.database.execute("VACUUM c")
        rule(ours, {"update_deleted": "last_update_wins"}, conflicts_table=True)
        ours.source.database.execute("UPDATE c SET v = 'remote' WHERE id IN (1, 4)")
        ours.take()
        assert ours.heard.resolved == [("update_deleted", "apply_remote")] * 2
        assert ours.rows("c")[0] == (1, 1, "remote")
        told = ours.heard.conflicts[0]
        assert (told.local[0].origin, told.local[0].row["v"]) == ("", b"x")
        assert masked(told.detail()) == (
            "Could not find the row to be updated: remote row (1, 1, remote), replica identity"
            " (id)=(1).\nThe row to be updated was deleted locally in transaction N at T."
        )
        assert ours.database.query("SELECT kind, local_rows->0->'row'->>'v' FROM spillway.conflicts"
                                   " ORDER BY number") == [("update_deleted", "x")] * 2  # fmt: skip
        # Changed by the source and then deleted by somebody: that it was deleted, and no name.
        ours.heard.conflicts.clear()
        ours.source.database.execute("UPDATE c SET v = 'once' WHERE id = 6")
        ours.take()
        ours.database.execute("DELETE FROM c WHERE id = 6")
        ours.source.database.execute("UPDATE c SET v = 'twice' WHERE id = 6")
        ours.take()
        assert ours.heard.resolved == [("update_deleted", "apply_remote")]
        assert ours.heard.conflicts[0].detail().endswith("\nThe row to be updated was deleted.")
        assert ours.heard.conflicts[0].local[0].committed_at is None
        # A table can be altered and emptied, whoever looks at it.
        ours.database.execute("ALTER TABLE c ADD more int; DELETE FROM c WHERE id = 2")
        rule(ours, {"update_deleted": "error"})
        ours.source.database.execute("UPDATE c SET v = 'remote' WHERE id = 2")
        with pytest.raises(ApplyConflict) as error:
            ours.take(peek=True)
        assert error.value.details["kind"] == "update_deleted"
        ours.follow(error.value.hint, "conflicts")
        ours.take()
        ours.source.database.execute("TRUNCATE c; INSERT INTO c VALUES (7, 7, 'new')")
        ours.take()
        # The source can't be about it any more: that has applied all that it had by then.
        assert sessions() == held
        reached = 2
        wait_until("older ones are let go", lambda: not sessions() & held)
    finally:
        ours.dead_rows = None
        dead_rows.close()
    assert dead_rows.held == 0
    ours.heard.conflicts.clear()
    ours.database.execute("DELETE FROM c")
    ours.source.database.execute("UPDATE c SET v = 'again' WHERE id = 7")
    ours.take()
    assert ours.heard.kinds == ["update_missing"]


def test_columns_are_merged(ours: Ours) -> None:
    """What the source changed is set, what the target changed stays."""
    both(ours, "INSERT INTO m VALUES (1, 'x', 'x'); INSERT INTO c VALUES (1, 1, 'x')")
    rule(ours, {"update_origin_differs": "merge"})
    ours.database.execute("UPDATE m SET b = 'local'")
    ours.source.database.execute("UPDATE m SET a = 'remote'")
    ours.take()
    assert ours.rows("m") == [(1, "remote", "local")]
    assert ours.heard.resolved == [("update_origin_differs", "merge")]
    # What the target changed stays when the row is the source's own again, too: by statements, and
    # by the look at each row that a conflict brings about. What both changed is the source's.
    ours.source.database.execute("UPDATE m SET a = 'again'; UPDATE m SET a = NULL")
    ours.take()
    assert ours.rows("m") == [(1, None, "local")]
    ours.source.database.execute("UPDATE m SET a = 'with'; DELETE FROM c; UPDATE m SET a = a")
    ours.database.execute("DELETE FROM c")
    ours.take()
    assert ours.rows("m") == [(1, "with", "local")]
    assert ours.heard.resolved[1:] == [("delete_missing", "skip")]
    ours.source.database.execute("UPDATE m SET b = 'both', id = 2")
    ours.take()
    assert ours.rows("m") == [(2, "with", "both")]
    ours.source.database.execute("INSERT INTO c VALUES (1, 1, 'x')")
    ours.take()
    # Without whole old rows it can't be done; the hint says what helps.
    ours.database.execute("UPDATE c SET u = 5")
    ours.source.database.execute("UPDATE c SET v = 'remote'")
    with pytest.raises(UnsupportedFeature) as error:
        ours.take(peek=True)
    statement = 'ALTER TABLE "public"."c" REPLICA IDENTITY FULL'
    assert statement in error.value.hint
    # As it says, for what is written from then on; for that row another resolution.
    rule(ours, {"update_origin_differs": "merge",
                "tables": {"public.c": {"update_origin_differs": "keep_local"}}})  # fmt: skip
    ours.take()
    ours.source.database.execute(f"{statement}; UPDATE c SET v = 'remote again'")
    rule(ours, {"update_origin_differs": "merge"})
    ours.take()
    ours.source.database.execute("ALTER TABLE c REPLICA IDENTITY DEFAULT")
    assert ours.rows("c") == [(1, 5, "remote again")]


# -- rows that the target refuses -----------------------------------------------------------------


@pytest.mark.follows_hint("target_row_refused")
def test_a_poison_row(ours: Ours) -> None:
    """It stops with its table, key and LSN; as a dead letter it stops nothing; it can be skipped;
    and it goes on when the target takes it.
    """
    check = "ALTER TABLE c ADD CONSTRAINT small CHECK (u < 10)"
    ours.database.execute(f"{check}; ALTER TABLE m ALTER a TYPE int USING a::int")
    ours.source.database.execute("""BEGIN;
        INSERT INTO c SELECT n, n, 'x' FROM generate_series(1, 12) n;
        INSERT INTO m VALUES (1, 'no number', 'x'); COMMIT;
        INSERT INTO m VALUES (2, '2', 'x')""")
    with pytest.raises(TargetRowRefused) as error:
        ours.take(peek=True)
    details = error.value.details
    assert (details["table"], details["key"], details["sqlstate"]) == (
        "public.c",
        "id = 10",
        "23514",
    )
    lsn = str(details["lsn"])
    assert lsn in error.value.message
    assert ours.rows("c") == []

    hint = remedy(error.value, "target_row_refused")
    ours.follow(hint, "--target-option dead_letter")
    assert ours.take(peek=True).dead_letters == 4
    assert [row[0] for row in ours.rows("c")] == list(range(1, 10))
    assert ours.rows("m") == [(2, 2, "x")]
    letters = ours.database.query(
        "SELECT table_name, action, sqlstate, lsn::text, new_row, number FROM spillway.dead_letter"
        " ORDER BY number"
    )
    assert [letter[:4] for letter in letters] == [("c", "insert", "23514", lsn)] * 3 + [
        ("m", "insert", "22P02", lsn)
    ]
    assert letters[0][4] == {"id": "10", "u": "10", "v": "x"}
    assert letters[3][4] == {"id": "1", "a": "no number", "b": "x"}

    other = Ours.make(ours.source)
    try:
        other.slot = ours.slot
        other.database.execute("; ".join((*TABLES, check)))
        other.database.execute("ALTER TABLE m ALTER a TYPE int USING a::int")
        other.follow(hint.replace(ours.plan.subscription, other.plan.subscription), "skip")
        other.take()
        assert (other.rows("c"), other.rows("m")) == ([], [(2, 2, "x")])
    finally:
        drop_target(other.database)


def test_a_poison_row_is_mended_on_the_target(ours: Ours) -> None:
    ours.database.execute("ALTER TABLE c ADD CONSTRAINT small CHECK (u < 10)")
    ours.source.database.execute("INSERT INTO c VALUES (1, 11, 'x')")
    with pytest.raises(TargetRowRefused, match="small"):
        ours.take(peek=True)
    ours.database.execute("ALTER TABLE c DROP CONSTRAINT small")
    ours.take()
    assert ours.rows("c") == [(1, 11, "x")]


# -- large transactions ---------------------------------------------------------------------------


def test_a_transaction_larger_than_a_group(ours: Ours) -> None:
    """It comes in pieces and is one on the target; a conflict in the middle is resolved there, and
    one that is an error takes back all of it.
    """
    ours.bytes_max = 4096
    ours.database.execute("INSERT INTO c VALUES (500, 5000, 'local'), (900, 9000, 'local')")
    ours.source.database.execute(
        "INSERT INTO c SELECT n, n, repeat('x', 50) FROM generate_series(1, 1000) n"
    )
    with pytest.raises(ApplyConflict):
        ours.take(peek=True)
    assert ours.database.value("SELECT count(*) FROM c") == 2
    rule(ours, {"insert_exists": "apply_remote"})
    with TargetSession(ours.plan) as session:
        ours.take(session=session)
    assert ours.heard.resolved[1:] == [("insert_exists", "apply_remote")] * 2
    query = "SELECT count(*), min(length(v)), max(u) FROM c"
    assert ours.database.query(query) == [(1000, 50, 1000)]
