"""Whose rows are that ``spillway subscription repair`` wrote: the subscription's, to conflicts and
to a subscription in the other direction.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from harness.postgresql_subscription import wait_until
from harness.subscribed_pair import SubscribedPair, subscribed_pair
from spillway.apply.selection import Selection
from spillway.apply.verify.run import verify
from spillway.apply.verify.settings import VerifySettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Cluster
    from harness.serve_process import ServeProcess
    from spillway.apply.verify.outcomes import TableOutcome


@pytest.fixture
def pair(
    timed_cluster: Callable[[int], Cluster], apply_service: ServeProcess
) -> Iterator[SubscribedPair]:
    with subscribed_pair(timed_cluster(18), apply_service.service()) as there:
        yield there


def _repaired(
    pair: SubscribedPair, target_dsn: str, said: list[str] | None = None
) -> list[TableOutcome]:
    settings = VerifySettings(
        slot=pair.view()["slot"],
        source_dsn=pair.source.dsn,
        target_dsn=target_dsn,
        subscription=pair.name,
        selection=Selection(("p",)),
        timeout_s=30,
        grpc=pair.service.grpc_address,
    )
    news = [] if said is None else said
    return verify(settings, repair=True, tell=news.append).tables


def test_they_are_no_local_ones(pair: SubscribedPair) -> None:
    """With keep_local, what the source writes to them later is written to them."""
    pair.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pair.source.execute("INSERT INTO t SELECT n, 'copied' FROM generate_series(1, 5) n")
    pair.create(conflicts={"update_origin_differs": "keep_local"})
    pair.target.execute("UPDATE t SET v = 'wrong' WHERE id = 1; DELETE FROM t WHERE id = 2")
    assert all(table.equal for table in _repaired(pair, pair.target.dsn))
    pair.source.execute("UPDATE t SET v = 'later'")
    pair.catch_up()
    pair.check_equal("t")


def test_they_do_not_come_back(pair: SubscribedPair) -> None:
    """From a subscription in the other direction, which would meet each as a conflict."""
    pair.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pair.source.execute("INSERT INTO t SELECT n, 'copied' FROM generate_series(1, 5) n")
    pair.create(published="TABLE t, marker")
    back = f"{pair.name}_back"
    pair.target.execute("CREATE PUBLICATION p FOR TABLE t")
    body = {
        "name": back, "source": pair.name, "database": pair.target.name, "publications": ["p"],
        "origin": "none", "copy_data": False,
        "target": {"kind": "postgres", "dsn": pair.source.dsn},
    }  # fmt: skip
    pair.service.call("POST", "/subscriptions", json=body)
    try:
        slot = pair.service.call("GET", f"/subscriptions/{back}")["slot"]
        # It is lost there, and nobody has told the other side.
        with pair.target.connect() as session:
            session.execute("SELECT pg_replication_origin_create('lost')")
            session.execute("SELECT pg_replication_origin_session_setup('lost')")
            session.execute("DELETE FROM t WHERE id = 2")
        assert all(table.equal for table in _repaired(pair, pair.target.dsn))
        pair.target.execute("INSERT INTO t VALUES (6, 'back')")
        pair.service.wait_decoded(slot, pair.target)
        wait_until(
            "it came back",
            lambda: bool(pair.source.value("SELECT count(*) FROM t WHERE id = 6")),
            lambda: str(pair.service.call("GET", f"/subscriptions/{back}")),
        )
        stats = pair.service.call("GET", f"/subscriptions/{back}")["stats"]
        assert stats.get("confl_insert_exists", 0) == 0
        pair.check_equal("t")
    finally:
        pair.service.call("DELETE", f"/subscriptions/{back}")
        pair.target.execute("SELECT pg_replication_origin_drop('lost')")


@pytest.mark.long
def test_a_role_that_may_use_no_origins_is_told(pair: SubscribedPair) -> None:
    pair.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pair.source.execute("INSERT INTO t SELECT n, 'copied' FROM generate_series(1, 5) n")
    pair.create(conflicts={"update_origin_differs": "keep_local"})
    role = f"modest_{secrets.token_hex(4)}"
    pair.target.execute(
        f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA public, spillway TO {role};"
        f"GRANT ALL ON ALL TABLES IN SCHEMA public, spillway TO {role};"
        "DELETE FROM t WHERE id IN (1, 2)"
    )
    try:
        said: list[str] = []
        dsn = pair.target.cluster.dsn(pair.target.name, role)
        _repaired(pair, dsn, said)
        (told,) = [news for news in said if "replication origin" in news]
        # As it says; then they are mended once more.
        pair.target.execute(told[told.index("GRANT ") :])
        pair.target.execute("DELETE FROM t WHERE id IN (1, 2)")
        said.clear()
        _repaired(pair, dsn, said)
        assert not [news for news in said if "replication origin" in news]
        pair.source.execute("UPDATE t SET v = 'later'")
        pair.catch_up()
        pair.check_equal("t")
    finally:
        pair.target.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
