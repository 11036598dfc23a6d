"""Prepared transactions of the source while a table is copied: what was prepared when the table was
not the stream's yet has its rows, whenever that is committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.postgresql_subscription import wait_until
from harness.subscribed_pair import SubscribedPair, subscribed_pair
from harness.tiers import majors_by_tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import Cluster
    from harness.serve_process import ServeProcess

# 14's pgoutput knows no two_phase: there they come when they commit.
pytestmark = pytest.mark.parametrize(
    "checklist_cluster", majors_by_tier([15, 16, 17, 18]), indirect=True, ids="pg{}".format
)

_PREPARED = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"


@pytest.fixture
def pair(checklist_cluster: Cluster, apply_service: ServeProcess) -> Iterator[SubscribedPair]:
    with subscribed_pair(checklist_cluster, apply_service.service()) as there:
        there.both("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
        there.create(tables=("public.t",), two_phase=True)
        # Prepared ones come as such from here on.
        there.source.execute("INSERT INTO t VALUES (1); INSERT INTO u VALUES (1)")
        there.catch_up()
        yield there
        there.source.execute("DROP TABLE t, u")


def _prepare(pair: SubscribedPair, name: str, key: int) -> None:
    with pair.source.connect() as session:
        session.execute(f"BEGIN; INSERT INTO t VALUES ({key}); INSERT INTO u VALUES ({key})")
        session.execute(f"PREPARE TRANSACTION '{name}'")


def _add(pair: SubscribedPair) -> None:
    """Have the table be one of the subscription's, too."""
    tables = ["public.t", "public.u", "public.marker"]
    pair.service.call("PATCH", f"/subscriptions/{pair.name}", json={"tables": tables})


def _state(pair: SubscribedPair) -> tuple[str | None, str]:
    states = {one["table"]: one for one in pair.view()["table_states"]}
    one = states.get("public.u", {})
    return one.get("sync_state"), one.get("reason") or ""


def _is_whole(pair: SubscribedPair) -> None:
    wait_until("the table is the stream's", lambda: _state(pair)[0] in ("s", "r"), pair.told)
    pair.catch_up()
    for table in ("t", "u"):
        rows = f"SELECT id FROM {table} ORDER BY 1"
        assert pair.target.query(rows) == pair.source.query(rows), table
    assert pair.target.value(_PREPARED) == 0


def test_prepared_before_the_table_is_added(pair: SubscribedPair) -> None:
    """The target has it prepared without the table's rows: the table waits for its end."""
    _prepare(pair, "before", 2)
    wait_until("it is prepared there", lambda: pair.target.value(_PREPARED) == 1, pair.told)
    _add(pair)
    wait_until("it is told", lambda: "is prepared" in _state(pair)[1], pair.told)
    pair.source.execute("INSERT INTO t VALUES (3)")
    pair.catch_up()
    pair.source.execute("COMMIT PREPARED 'before'")
    pair.source.execute("INSERT INTO u VALUES (3)")
    _is_whole(pair)


@pytest.mark.long
def test_prepared_before_and_rolled_back(pair: SubscribedPair) -> None:
    _prepare(pair, "before", 2)
    wait_until("it is prepared there", lambda: pair.target.value(_PREPARED) == 1, pair.told)
    _add(pair)
    wait_until("it is told", lambda: "is prepared" in _state(pair)[1], pair.told)
    pair.source.execute("ROLLBACK PREPARED 'before'")
    _is_whole(pair)


@pytest.mark.long
def test_prepared_meanwhile(pair: SubscribedPair) -> None:
    """What is committed while the table waits is read behind its copy, and what is committed later
    comes with the stream; a program that is killed in between changes nothing.
    """
    _prepare(pair, "before", 2)
    wait_until("it is prepared there", lambda: pair.target.value(_PREPARED) == 1, pair.told)
    _add(pair)
    wait_until("it is told", lambda: "is prepared" in _state(pair)[1], pair.told)
    for name, key in (("meanwhile", 3), ("gone", 4), ("later", 5), ("never", 6)):
        _prepare(pair, name, key)
    pair.source.execute("COMMIT PREPARED 'meanwhile'")
    pair.source.execute("ROLLBACK PREPARED 'gone'")
    pair.catch_up()
    assert pair.target.query("SELECT id FROM t WHERE id = 3") == [(3,)]
    pair.service.call("POST", f"/subscriptions/{pair.name}/disable")
    pair.service.call("POST", f"/subscriptions/{pair.name}/enable")
    pair.source.execute("COMMIT PREPARED 'before'")
    _is_whole(pair)
    pair.source.execute("COMMIT PREPARED 'later'")
    pair.source.execute("ROLLBACK PREPARED 'never'")
    _is_whole(pair)
    # And so it goes on as ever.
    _prepare(pair, "as ever", 7)
    wait_until("it is prepared there", lambda: pair.target.value(_PREPARED) == 1, pair.told)
    pair.source.execute("COMMIT PREPARED 'as ever'")
    _is_whole(pair)
    assert pair.target.query("SELECT gid FROM spillway.prepared WHERE gid LIKE 'passed%'") == []
