"""Keys of the target whose index has a collation or an operator class for itself, by which other
values are equal than by the column's. Beside PostgreSQL's own subscription.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

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
