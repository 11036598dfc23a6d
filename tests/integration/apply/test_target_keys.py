"""Keys of the target whose index has a collation or an operator class for itself, by which other
values are equal than by the column's. Beside PostgreSQL's own subscription.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from harness.remedies import remedy, statements
from harness.tiers import deep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.side_by_side import SideBySide

_COLLATION = """
CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
"""


@pytest.fixture(scope="module")
def keys(sides: SideBySide) -> Iterator[SideBySide]:
    sides.everywhere(_COLLATION)
    yield sides
    for name in list(sides.names):
        sides.unsubscribe(name)


def _run(sides: SideBySide, work: list[str], *, together: bool) -> None:
    """Each statement is a transaction, or all are one."""
    with (
        sides.source.connect() as session,
        session.transaction() if together else nullcontext(),
    ):
        for statement in work:
            session.execute(statement.encode())


_COLLATED_SOURCE = """
CREATE TABLE finer (k text COLLATE "C" NOT NULL, v text);
CREATE UNIQUE INDEX finer_key ON finer (k);
ALTER TABLE finer REPLICA IDENTITY USING INDEX finer_key;
CREATE TABLE coarser (k text COLLATE "C" NOT NULL, v text);
CREATE UNIQUE INDEX coarser_key ON coarser (k);
ALTER TABLE coarser REPLICA IDENTITY USING INDEX coarser_key;
CREATE TABLE coarser_whole (k text COLLATE "C", v text);
ALTER TABLE coarser_whole REPLICA IDENTITY FULL;
"""
_COLLATED_TARGET = """
CREATE TABLE finer (k text COLLATE ci NOT NULL, v text);
CREATE UNIQUE INDEX finer_key ON finer (k COLLATE "C");
ALTER TABLE finer REPLICA IDENTITY USING INDEX finer_key;
CREATE TABLE coarser (k text COLLATE "C" NOT NULL, v text);
CREATE UNIQUE INDEX coarser_key ON coarser (k COLLATE ci);
ALTER TABLE coarser REPLICA IDENTITY USING INDEX coarser_key;
CREATE TABLE coarser_whole (k text COLLATE "C", v text);
CREATE INDEX ON coarser_whole (k COLLATE ci);
INSERT INTO coarser VALUES ('B', 'mine'), ('C', 'mine');
"""


@pytest.mark.parametrize("together", [False, deep(True)], ids=["many", "one"])
def test_an_index_with_a_collation_of_its_own(keys: SideBySide, together: bool) -> None:
    """Rows are found by what the index takes for equal: by the column's collation an update met
    rows beside its own.
    """
    keys.source.execute(_COLLATED_SOURCE)
    keys.both(_COLLATED_TARGET)
    keys.source.execute(
        "CREATE PUBLICATION collated FOR TABLE marker, finer, coarser, coarser_whole"
    )
    keys.source.execute("INSERT INTO coarser VALUES ('b', 'x'), ('c', 'x')")
    keys.subscribe("collated", "collated")
    work = [
        "INSERT INTO finer VALUES ('a', '1'), ('A', '2'), ('b', '3'), ('B', '4'), ('c', '5')",
        "INSERT INTO coarser_whole VALUES ('a', '1'), ('A', '1'), ('b', '3')",
        "UPDATE finer SET v = 'changed' WHERE k = 'A'",
        "DELETE FROM finer WHERE k = 'b'",
        "UPDATE finer SET k = 'C' WHERE k = 'c'",
        "UPDATE coarser SET v = 'changed' WHERE k = 'b'",
        "DELETE FROM coarser WHERE k = 'c'",
        "UPDATE coarser_whole SET v = 'changed' WHERE k = 'A'",
        "DELETE FROM coarser_whole WHERE k = 'a'",
    ]
    _run(keys, work, together=together)
    keys.caught_up()
    keys.as_source("finer", "coarser_whole")
    assert keys.same("coarser") == [["(b,changed)"]]
    keys.unsubscribe("collated")
    keys.everywhere("DROP TABLE finer, coarser, coarser_whole")
    keys.source.execute("DROP PUBLICATION collated")


_WITHOUT_EQUALITY = """
CREATE TABLE own_class (place int NOT NULL, k int NOT NULL, v text);
CREATE OPERATOR CLASS silent FOR TYPE int USING btree AS FUNCTION 1 btint4cmp(int, int);
CREATE UNIQUE INDEX own_class_key ON own_class (place, k silent);
ALTER TABLE own_class REPLICA IDENTITY USING INDEX own_class_key;
"""


@pytest.mark.long
def test_an_operator_class_without_equality(keys: SideBySide) -> None:
    """PostgreSQL's worker stops. By the other columns alone all rows of a place were written to;
    what is to be done is done, and it goes on.
    """
    keys.source.execute("CREATE TABLE own_class (place int, k int, v text, PRIMARY KEY (place, k))")
    keys.both(_WITHOUT_EQUALITY)
    keys.source.execute("CREATE PUBLICATION own_class FOR TABLE marker, own_class")
    keys.subscribe("own_class", "own_class")
    keys.source.execute("INSERT INTO own_class VALUES (1, 1, 'a'), (1, 2, 'b')")
    keys.caught_up()
    since = keys.log_size()
    keys.source.execute("UPDATE own_class SET v = 'new' WHERE k = 2")
    error = keys.wait_error("own_class")
    assert "without equality, of k" in error["message"]
    assert "ALTER OPERATOR FAMILY" in error["hint"]
    keys.wait_logged(r"missing operator|could not find .*operator", since)
    keys.both("ALTER OPERATOR FAMILY silent USING btree ADD OPERATOR 3 = (int, int)")
    keys.as_source("own_class")
    keys.unsubscribe("own_class")


_TWO_KEYS = """
CREATE TABLE two_keys (a int NOT NULL, "B b" int, v text);
CREATE UNIQUE INDEX by_a ON two_keys (a);
ALTER TABLE two_keys REPLICA IDENTITY USING INDEX by_a;
"""


@pytest.mark.long
def test_a_replica_identity_that_is_another_since(keys: SideBySide) -> None:
    """PostgreSQL's worker stops, too. What waits in the slot has the new key alone: only the target
    can be given that, as the hint says.
    """
    keys.everywhere(_TWO_KEYS)
    keys.source.execute("CREATE PUBLICATION two_keys FOR TABLE marker, two_keys")
    keys.subscribe("two_keys", "two_keys")
    keys.source.execute("INSERT INTO two_keys VALUES (1, -1, 'a'), (2, -2, 'b'), (3, -3, 'c')")
    keys.caught_up()
    keys.source.execute(
        'ALTER TABLE two_keys ALTER "B b" SET NOT NULL; CREATE UNIQUE INDEX by_b ON two_keys'
        ' ("B b"); ALTER TABLE two_keys REPLICA IDENTITY USING INDEX by_b'
    )
    keys.source.execute("UPDATE two_keys SET v = 'new' WHERE a = 2")
    keys.source.execute("DELETE FROM two_keys WHERE a = 3")
    error = keys.wait_error("two_keys")
    assert error["code"] == "target_table_unusable"
    keys.both(error["hint"].partition("on the target: ")[2].partition(" With ")[0])
    keys.as_source("two_keys")
    keys.unsubscribe("two_keys")
    keys.everywhere("DROP TABLE two_keys")
    keys.source.execute("DROP PUBLICATION two_keys")


@pytest.mark.long
@pytest.mark.follows_hint("target_refused")
@pytest.mark.parametrize(
    ("together", "to"),
    [(False, "referred"), (True, "referred"), (False, "leaf")],
    ids=["many", "one", "a partition"],
)
def test_a_table_that_is_truncated_and_referred_to(
    keys: SideBySide, together: bool, to: str
) -> None:
    """By a table that only the target has. PostgreSQL's worker stops, too; the foreign key alone is
    in the way, with rows or without, and the hint drops it.
    """
    keys.source.execute("CREATE TABLE referred (a int PRIMARY KEY, v text)")
    keys.both(
        "CREATE TABLE referred (a int PRIMARY KEY, v text) PARTITION BY RANGE (a);"
        "CREATE TABLE leaf PARTITION OF referred DEFAULT;"
        f'CREATE TABLE "Of mine" (a int PRIMARY KEY, b int CONSTRAINT "to" REFERENCES {to})'
    )
    keys.source.execute("CREATE PUBLICATION referred FOR TABLE marker, referred")
    keys.subscribe("referred", "referred")
    _run(
        keys,
        [
            "INSERT INTO referred VALUES (1, 'a'), (2, 'b')",
            "TRUNCATE referred",
            "INSERT INTO referred VALUES (3, 'c')",
        ],
        together=together,
    )
    error = keys.wait_error("referred")
    assert "refuses to truncate public.referred: " in error["message"]
    hint = remedy(error, "target_refused")
    assert " Or pass over the whole transaction: spillway subscription skip" in hint
    for dropped in statements(hint):
        keys.both(dropped)
    keys.as_source("referred")
    keys.unsubscribe("referred")
    keys.everywhere("DROP TABLE referred")
    keys.both('DROP TABLE "Of mine"')
    keys.source.execute("DROP PUBLICATION referred")
