"""Names that change hands: a table that takes the place of another, tables that swap their names,
and columns that do. With ``on_schema_change`` the target's follow, with the rows between them;
where the target has a table that nobody on the source has renamed, its rows are not mixed with
another's.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from harness.postgresql_subscription import wait_until
from harness.remedies import remedy, statements
from harness.subscribed_pair import SubscribedPair, subscribed_pair
from harness.tiers import deep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import Cluster
    from harness.serve_process import ServeProcess


@pytest.fixture
def pair(checklist_cluster: Cluster, apply_service: ServeProcess) -> Iterator[SubscribedPair]:
    with subscribed_pair(checklist_cluster, apply_service.service()) as there:
        yield there


@pytest.mark.long
def test_a_table_that_takes_the_place_of_another(pair: SubscribedPair) -> None:
    pair.both(
        "CREATE TABLE t (id int PRIMARY KEY, v text);"
        "CREATE TABLE t_new (id bigint PRIMARY KEY, v text)"
    )
    pair.source.execute("INSERT INTO t VALUES (1, 'old')")
    pair.create(on_schema_change="apply")
    pair.transaction(
        "INSERT INTO t VALUES (2, 'old')",
        "INSERT INTO t_new SELECT * FROM t",
        "ALTER TABLE t RENAME TO t_old",
        "ALTER TABLE t_new RENAME TO t",
    )
    pair.source.execute("INSERT INTO t VALUES (5000000000, 'new')")
    pair.source.execute("INSERT INTO t_old VALUES (3, 'old')")
    pair.catch_up()
    pair.check_equal("t", "t_old")


def _swap(kind: str, row: int) -> list[str]:
    """Swap a and b; with rows of both between the steps, from *row* on, if that is the *kind*."""
    called = ["a", "b"]
    steps: list[str] = []
    for number, (old, new) in enumerate((("a", "aside"), ("b", "a"), ("aside", "b"))):
        if kind == "between rows":
            steps += [f"INSERT INTO {name} VALUES ({row + number}, '{number}')" for name in called]
        steps.append(f"ALTER TABLE {old} RENAME TO {new}")
        called = [new if name == old else name for name in called]
    return steps


@pytest.mark.parametrize("kind", ["alone", deep("between rows")])
@pytest.mark.parametrize("types", ["alike", deep("unlike")])
def test_two_tables_that_swap_their_names(pair: SubscribedPair, kind: str, types: str) -> None:
    pair.both(
        "CREATE TABLE a (id int PRIMARY KEY, x text);"
        f"CREATE TABLE b (id int PRIMARY KEY, {'x text' if types == 'alike' else 'y varchar'})"
    )
    pair.source.execute("INSERT INTO a VALUES (1, 'a'); INSERT INTO b VALUES (1, 'b')")
    pair.create(on_schema_change="apply")
    pair.transaction(*_swap(kind, 10))
    pair.source.execute("INSERT INTO a VALUES (6, 'b'); UPDATE b SET id = 7 WHERE id = 1")
    pair.catch_up()
    pair.check_equal("a", "b")
    # What each is known as goes with it: the next swap finds both.
    pair.transaction(*_swap(kind, 20))
    pair.source.execute("DELETE FROM a; INSERT INTO a VALUES (8, 'a')")
    pair.catch_up()
    pair.check_equal("a", "b")


@pytest.mark.parametrize("wished", ["apply", deep("pause")])
def test_a_table_whose_name_was_a_dropped_ones(pair: SubscribedPair, wished: str) -> None:
    """What is dropped stays on the target: the new one's rows are none of its."""
    pair.both(
        "CREATE TABLE t (id int PRIMARY KEY, v text);"
        "CREATE TABLE t_new (id int PRIMARY KEY, v text)"
    )
    pair.source.execute("INSERT INTO t VALUES (1, 'old'); INSERT INTO t_new VALUES (2, 'new')")
    pair.create(on_schema_change=wished)
    pair.transaction("DROP TABLE t", "ALTER TABLE t_new RENAME TO t")
    pair.source.execute("UPDATE t SET v = 'newer'; INSERT INTO t VALUES (3, 'newest')")
    error = pair.paused()["error"]
    if wished == "pause":
        # Who has it done meets the other table.
        assert "give the target on_schema_change apply" in error["hint"]
        _have(pair, on_schema_change="apply")
        error = pair.paused()["error"]
    assert "another table public.t" in error["message"]
    for statement in statements(remedy(error, "target_schema_change")):
        pair.target.execute(statement)
    pair.service.call("POST", f"/subscriptions/{pair.name}/enable")
    pair.catch_up()
    assert pair.target.query("SELECT * FROM t ORDER BY 1") == [(2, "newer"), (3, "newest")]
    assert pair.target.query("SELECT * FROM t_before") == [(1, "old")]
    pair.source.execute("ALTER TABLE t RENAME TO u; INSERT INTO u VALUES (4, 'last')")
    if wished == "apply":
        pair.catch_up()
        assert pair.target.value("SELECT count(*) FROM u") == 3


@pytest.mark.parametrize("remedy_is", ["DROP", deep("TRUNCATE")])
@pytest.mark.parametrize("stopped", [False, deep(True)], ids=["running", "disabled"])
def test_a_table_that_is_made_again(pair: SubscribedPair, remedy_is: str, stopped: bool) -> None:
    """What was dropped stays on the target: the new one is copied, and not into the former."""
    pair.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pair.source.execute("INSERT INTO t VALUES (1, 'old'), (2, 'old')")
    pair.create(on_schema_change="apply", create_tables=True)
    if stopped:
        pair.service.call("POST", f"/subscriptions/{pair.name}/disable")
    pair.source.execute("INSERT INTO t VALUES (3, 'last')")
    pair.transaction(
        "DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t VALUES (1, 'new')",
    )  # fmt: skip
    pair.source.execute("INSERT INTO t VALUES (4, 'new')")
    if stopped:
        pair.service.call("POST", f"/subscriptions/{pair.name}/enable")
    error = pair.paused()["error"]
    assert "has rows of the one of that name which the source has dropped" in error["message"]
    assert pair.target.value("SELECT count(*) FROM t") == 3
    (statement,) = statements(remedy(error, "target_schema_change"))
    assert "TRUNCATE it" in error["hint"]
    pair.target.execute(statement if remedy_is == "DROP" else "TRUNCATE t")
    pair.service.call("POST", f"/subscriptions/{pair.name}/enable")
    pair.catch_up()
    wait_until(
        "it is copied",
        lambda: (
            pair.target.query("SELECT to_regclass('t')") != [(None,)]
            and pair.target.query("SELECT * FROM t ORDER BY 1") == [(1, "new"), (4, "new")]
        ),
        pair.told,
    )
    pair.source.execute("UPDATE t SET v = 'newer'")
    pair.catch_up()
    wait_until(
        "its changes come",
        lambda: pair.target.query("SELECT * FROM t ORDER BY 1") == [(1, "newer"), (4, "newer")],
        pair.told,
    )


@pytest.mark.long
def test_names_that_were_given_on_the_target_first(pair: SubscribedPair) -> None:
    """Tables that are alike don't tell that they were: it shows by the other's name."""
    pair.both("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE t_new (id int PRIMARY KEY)")
    pair.create(on_schema_change="apply")
    swap = ["ALTER TABLE t RENAME TO t_old", "ALTER TABLE t_new RENAME TO t"]
    for statement in swap:
        pair.target.execute(statement)
    pair.transaction(*swap, "INSERT INTO t VALUES (1)", "INSERT INTO t_old VALUES (2)")
    pair.catch_up()
    pair.check_equal("t", "t_old")


@pytest.mark.long
def test_names_that_are_given_by_hand_at_each_pause(pair: SubscribedPair) -> None:
    """Each pause's hint is followed; where that can't be told afterwards, by who applies."""
    pair.both("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE t_new (id int PRIMARY KEY)")
    pair.create(on_schema_change="pause")
    pair.transaction("ALTER TABLE t RENAME TO t_old", "ALTER TABLE t_new RENAME TO t")
    pair.source.execute("INSERT INTO t VALUES (1); INSERT INTO t_old VALUES (2)")
    for _ in range(2):
        error = pair.paused()["error"]
        for statement in statements(remedy(error, "target_schema_change")):
            pair.target.execute(statement)
        pair.service.call("POST", f"/subscriptions/{pair.name}/enable")
    assert "give the target on_schema_change apply" in pair.paused()["error"]["hint"]
    _have(pair, on_schema_change="apply")
    pair.catch_up()
    pair.check_equal("t", "t_old")


@pytest.mark.parametrize("wished", ["apply", deep("pause")])
def test_columns_that_swap_their_names(pair: SubscribedPair, wished: str) -> None:
    pair.both("CREATE TABLE t (id int PRIMARY KEY, a int, b int, c int)")
    pair.source.execute("INSERT INTO t VALUES (1, 1, 2, 3)")
    pair.create(on_schema_change=wished)
    pair.transaction(
        "INSERT INTO t VALUES (2, 1, 2, 3)",
        "ALTER TABLE t RENAME a TO x",
        "ALTER TABLE t RENAME b TO a",
        "ALTER TABLE t RENAME c TO b",
        "ALTER TABLE t RENAME x TO c",
        "INSERT INTO t (id, a, b, c) VALUES (3, 1, 2, 3)",
    )
    pair.source.execute("INSERT INTO t (id, a, b, c) VALUES (4, 1, 2, 3)")
    if wished == "pause":
        error = pair.paused()["error"]
        # Columns that are alike would not tell that somebody had done it.
        assert "On the target" not in error["hint"]
        assert "give the target on_schema_change apply" in error["hint"]
        _have(pair, on_schema_change="apply")
    pair.catch_up()
    pair.check_equal("t")


@pytest.mark.long
@pytest.mark.parametrize(
    "ddl",
    [
        ["DROP b", "RENAME a TO b"],
        deep(["RENAME b TO c_", "RENAME a TO b"]),
        deep(["RENAME a TO z", "ADD a text DEFAULT 'new'"]),
        deep(["DROP c", "RENAME b TO c", "RENAME a TO b"]),
        deep(["DROP c", "RENAME b TO c", "RENAME a TO b", "ADD a int"]),
        deep(["RENAME a TO x", "RENAME b TO a", "RENAME x TO b", "ADD x int", "DROP c"]),
        deep(["RENAME a TO z", "ALTER z TYPE bigint", "ALTER z SET NOT NULL", "RENAME b TO a"]),
    ],
    ids=lambda ddl: "-".join(ddl).replace(" ", "_"),
)
@pytest.mark.parametrize("first", [False, deep(True)], ids=["here", "there_first"])
def test_columns_that_get_the_names_of_others(
    pair: SubscribedPair, ddl: list[str], first: bool
) -> None:
    """Also where the target has it already: a column that got the name of one that was dropped is
    not dropped itself.
    """
    pair.both("CREATE TABLE t (id int PRIMARY KEY, a int, b varchar(5), c numeric)")
    pair.source.execute("INSERT INTO t VALUES (1, 1, 'b', 3.5)")
    pair.create(on_schema_change="apply")
    if first:
        for command in ddl:
            pair.target.execute(f"ALTER TABLE t {command}")
    pair.transaction(*(f"ALTER TABLE t {command}" for command in ddl), "UPDATE t SET id = 2")
    pair.source.execute("UPDATE t SET id = 3")
    pair.catch_up()
    pair.check_equal("t")


@pytest.mark.long
def test_a_column_that_the_target_has_besides(pair: SubscribedPair) -> None:
    """Its values are somebody else's: it is not taken for the one that was renamed."""
    pair.source.execute("CREATE TABLE t (id int PRIMARY KEY, a int); INSERT INTO t VALUES (1, 1)")
    pair.target.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b int DEFAULT 7)")
    pair.create(on_schema_change="apply")
    pair.source.execute("ALTER TABLE t RENAME a TO b; UPDATE t SET b = b + 1")
    error = pair.paused()["error"]
    assert "a column b besides a, which is called so now: drop" in error["message"]
    pair.target.execute("ALTER TABLE t DROP b")
    pair.service.call("POST", f"/subscriptions/{pair.name}/enable")
    pair.catch_up()
    pair.check_equal("t")


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, *(deep(seed) for seed in range(2, 6))])
def test_names_at_random(pair: SubscribedPair, seed: int) -> None:
    """Three tables and their columns, whose names go round within transactions, with rows."""
    rng = random.Random(seed)
    names = [f"t{n}" for n in range(5)]
    tables = {name: ["a", "b", "c"] for name in names[:3]}
    for number, name in enumerate(tables):
        kind = ("int", "bigint", "text")[number]
        pair.both(f"CREATE TABLE {name} (id int PRIMARY KEY, a {kind}, b {kind}, c text)")
    pair.create(on_schema_change="apply")
    row = 0
    for _ in range(12):
        done = []
        for _ in range(rng.randint(2, 9)):
            name = rng.choice(sorted(tables))
            columns = tables[name]
            what = rng.choice(["table", "table", "column", "insert", "update"])
            if what == "table":
                free = rng.choice([one for one in names if one not in tables])
                done.append(f"ALTER TABLE {name} RENAME TO {free}")
                tables[free] = tables.pop(name)
            elif what == "column":
                place = rng.randrange(3)
                new = rng.choice([one for one in "abcde" if one not in columns])
                done.append(f"ALTER TABLE {name} RENAME {columns[place]} TO {new}")
                columns[place] = new
            elif what == "insert":
                row += 1
                done.append(f"INSERT INTO {name} VALUES ({row}, {row}, {-row}, '{name}')")
            else:
                done.append(f"UPDATE {name} SET {columns[2]} = {columns[2]} || '{row}'")
        pair.transaction(*done)
        if rng.random() < 0.3:
            pair.catch_up()
    pair.catch_up()
    pair.check_equal(*sorted(tables))


def _have(pair: SubscribedPair, **wished: str) -> None:
    """Give the target other options, and enable the subscription."""
    target = {**pair.view()["target"], **wished}
    pair.service.call("PATCH", f"/subscriptions/{pair.name}", json={"target": target})
    pair.service.call("POST", f"/subscriptions/{pair.name}/enable")
