"""What a publication has changes, and nobody refreshes: the tables stay those of the last refresh,
as PostgreSQL's subscription has them, whoever was stopped or killed meanwhile. And tables that get
other names, of which somebody has to hear.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from harness.postgresql_subscription import wait_until
from harness.tiers import deep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.side_by_side import SideBySide

_TABLES = """
CREATE TABLE kept (id int PRIMARY KEY, v text);
CREATE TABLE r (id int, v text) PARTITION BY RANGE (id);
CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (100);
CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (100) TO (200)
"""


@pytest.fixture
def published(sides: SideBySide) -> Iterator[SideBySide]:
    """Tables everywhere; publication ``p`` has the marker."""
    # The marker is copied, too.
    sides.everywhere(f"TRUNCATE marker; {_TABLES}")
    sides.source.execute("CREATE PUBLICATION p FOR TABLE marker")
    yield sides
    sides.source.execute("DROP PUBLICATION p")
    sides.everywhere("DROP TABLE IF EXISTS kept, r CASCADE")


def _stop(sides: SideBySide) -> None:
    sides.stock.execute("ALTER SUBSCRIPTION x DISABLE")
    sides.service.call("POST", "/subscriptions/x/disable")
    wait_until("it stands", lambda: sides.view("x")["pid"] is None, sides.told)


def _go_on(sides: SideBySide) -> None:
    sides.stock.execute("ALTER SUBSCRIPTION x ENABLE")
    sides.service.call("POST", "/subscriptions/x/enable")


def _kill(sides: SideBySide) -> None:
    killed = sides.view("x")["pid"]
    os.kill(killed, signal.SIGKILL)
    wait_until(
        "another program follows",
        lambda: sides.view("x")["pid"] not in (None, killed) and not sides.view("x")["error"],
        sides.told,
    )


def _refresh(sides: SideBySide) -> None:
    sides.stock.execute("ALTER SUBSCRIPTION x REFRESH PUBLICATION")
    before = sides.view("x")["pid"]
    sides.service.call("POST", "/subscriptions/x/refresh")
    wait_until(
        "it has refreshed",
        lambda: (
            sides.view("x")["pid"] not in (None, before) and sides.view("x")["state"] == "streaming"
        ),
        sides.told,
    )


def test_a_table_stays_until_a_refresh(published: SideBySide) -> None:
    sides = published
    sides.source.execute("ALTER PUBLICATION p ADD TABLE kept")
    with sides.subscribed("x", "p", copy_data=True):
        sides.source.execute("INSERT INTO kept VALUES (1, 'followed')")
        assert sides.same("kept") == [["(1,followed)"]]
        _stop(sides)
        sides.source.execute("INSERT INTO kept VALUES (2, 'while nobody applies')")
        sides.source.execute("ALTER PUBLICATION p DROP TABLE kept")
        sides.source.execute("INSERT INTO kept VALUES (3, 'not published')")
        _go_on(sides)
        assert sides.same("kept") == [["(1,followed)", '(2,"while nobody applies")']]
        _kill(sides)
        sides.source.execute("ALTER PUBLICATION p ADD TABLE kept")
        sides.source.execute("INSERT INTO kept VALUES (4, 'published again')")
        found = sides.same("kept")
        assert found == [["(1,followed)", '(2,"while nobody applies")', '(4,"published again")']]
        # A refresh forgets it, and nothing else does.
        sides.source.execute("ALTER PUBLICATION p DROP TABLE kept")
        _refresh(sides)
        sides.source.execute("ALTER PUBLICATION p ADD TABLE kept")
        sides.source.execute("INSERT INTO kept VALUES (5, 'not subscribed to')")
        assert sides.same("kept") == found


@pytest.mark.long
def test_a_refresh_forgets_though_the_program_is_killed(published: SideBySide) -> None:
    sides = published
    sides.source.execute("ALTER PUBLICATION p ADD TABLE kept")
    with sides.subscribed("x", "p", copy_data=True):
        sides.source.execute("ALTER PUBLICATION p DROP TABLE kept")
        sides.caught_up()
        _stop(sides)
        sides.service.call("POST", "/subscriptions/x/refresh")
        _go_on(sides)
        sides.stock.execute("ALTER SUBSCRIPTION x REFRESH PUBLICATION")
        sides.caught_up()
        wait_until(
            "it is forgotten",
            lambda: sides.ours.query("SELECT FROM spillway.tables WHERE table_name = 'kept'") == [],
            sides.told,
        )
        _kill(sides)
        sides.source.execute("ALTER PUBLICATION p ADD TABLE kept")
        sides.source.execute("INSERT INTO kept VALUES (5, 'not subscribed to')")
        assert sides.same("kept") == [[]]


@pytest.mark.parametrize("meanwhile", ["it is disabled", deep("a table is copied")])
def test_a_table_that_is_back_before_it_was_forgotten(
    published: SideBySide, meanwhile: str
) -> None:
    """Two refreshes, of which the first finds the table gone and the second finds it again: it is
    copied, whether a program was started between the two or not.
    """
    sides = published
    sides.source.execute(
        "INSERT INTO kept VALUES (1, 'before'); INSERT INTO r VALUES (1, 'copied');"
        "ALTER PUBLICATION p ADD TABLE kept"
    )
    with sides.subscribed("x", "p", copy_data=True), sides.ours.connect(autocommit=False) as lock:
        sides.caught_up()
        if meanwhile == "it is disabled":
            sides.service.call("POST", "/subscriptions/x/disable")
        else:
            lock.execute("LOCK TABLE r1")
            sides.source.execute("ALTER PUBLICATION p ADD TABLE r")
            _refresh_both(sides)
            wait_until(
                "it is copied",
                lambda: bool(sides.ours.query("SELECT FROM spillway.tables WHERE state = 'i'")),
                sides.told,
            )
        sides.source.execute("ALTER PUBLICATION p DROP TABLE kept")
        _refresh_both(sides)
        sides.source.execute("INSERT INTO kept VALUES (2, 'not published')")
        sides.both("TRUNCATE kept")
        sides.source.execute("ALTER PUBLICATION p ADD TABLE kept")
        _refresh_both(sides)
        lock.rollback()
        sides.service.call("POST", "/subscriptions/x/enable")
        wait_until(
            "both have copied it",
            lambda: (
                all(one.value("SELECT count(*) FROM kept") == 2 for one in sides.targets)
                and sides.stock.query("SELECT FROM pg_subscription_rel WHERE srsubstate <> 'r'")
                == sides.ours.query("SELECT FROM spillway.tables WHERE state <> 'r'")
                == []
            ),
            sides.told,
        )
        sides.source.execute("INSERT INTO kept VALUES (3, 'published again')")
        sides.as_source("kept")


def _refresh_both(sides: SideBySide) -> None:
    sides.service.wait_decoded("x", sides.source)
    sides.stock.execute("ALTER SUBSCRIPTION x REFRESH PUBLICATION")
    sides.service.call("POST", "/subscriptions/x/refresh")


@pytest.mark.long
def test_what_was_dropped_on_the_source_has_its_last_rows(published: SideBySide) -> None:
    sides = published
    sides.source.execute("ALTER PUBLICATION p ADD TABLE kept")
    with sides.subscribed("x", "p", copy_data=True):
        _stop(sides)
        sides.source.execute("INSERT INTO kept VALUES (1, 'the last')")
        sides.source.execute("DROP TABLE kept")
        _go_on(sides)
        assert sides.same("kept") == [['(1,"the last")']]


@pytest.mark.long
@pytest.mark.parametrize("via_root", [False, deep(True)], ids=["to_the_root", "to_the_partitions"])
def test_publishing_by_another_way_copies_nothing(published: SideBySide, *, via_root: bool) -> None:
    sides = published
    sides.source.execute("INSERT INTO r VALUES (1, 'there'), (101, 'there')")
    sides.source.execute("ALTER PUBLICATION p ADD TABLE r")
    switch = "ALTER PUBLICATION p SET (publish_via_partition_root = {})"
    sides.source.execute(switch.format(via_root))
    with sides.subscribed("x", "p", copy_data=True):
        there = ["(1,there)", "(101,there)"]
        assert sides.same("r") == [there]
        _stop(sides)
        sides.source.execute("INSERT INTO r VALUES (2, 'before')")
        sides.source.execute(switch.format(not via_root))
        sides.source.execute("INSERT INTO r VALUES (3, 'behind')")
        _go_on(sides)
        # What is published under another name is not subscribed to before a refresh.
        there = ["(1,there)", "(101,there)", "(2,before)"]
        assert sides.same("r") == [there]
        sides.source.execute(switch.format(via_root))
        sides.source.execute("INSERT INTO r VALUES (4, 'as ever')")
        assert sides.same("r") == [[*there, '(4,"as ever")']]


@pytest.mark.long
@pytest.mark.parametrize("restarts", [False, deep(True)])
def test_a_table_that_is_renamed_on_both_sides_goes_on(
    published: SideBySide, *, restarts: bool
) -> None:
    """Nobody follows DDL. Until the target has the new name, it is missing there."""
    sides = published
    sides.source.execute("ALTER PUBLICATION p ADD TABLE kept")
    try:
        with sides.subscribed("x", "p", copy_data=True):
            sides.source.execute("INSERT INTO kept VALUES (1, 'followed')")
            sides.caught_up()
            since = sides.log_size()
            sides.source.execute("ALTER TABLE kept RENAME TO renamed")
            sides.source.execute("INSERT INTO renamed VALUES (2, 'renamed')")
            sides.wait_logged('(relation "public.renamed" does not exist)', since)
            assert sides.wait_error("x")["code"] == "target_table_missing"
            sides.both("ALTER TABLE kept RENAME TO renamed")
            assert sides.same("renamed") == [["(1,followed)", "(2,renamed)"]]
            if restarts:
                _kill(sides)
            _refresh(sides)
            sides.source.execute("INSERT INTO renamed VALUES (3, 'refreshed')")
            assert sides.same("renamed") == [["(1,followed)", "(2,renamed)", "(3,refreshed)"]]
    finally:
        sides.everywhere("DROP TABLE IF EXISTS renamed")
