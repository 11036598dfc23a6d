"""A table that is attached to a published one while nobody applies: what was written to it before
is in the stream under its own name, and what is published by now is its root.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.postgresql_subscription import wait_until
from harness.subscribed_pair import subscribed_pair
from harness.tiers import deep

if TYPE_CHECKING:
    from harness.cluster import Cluster
    from harness.serve_process import ServeProcess

_ROOT = """
CREATE TABLE r (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (100);
CREATE TABLE t (id int PRIMARY KEY, v text);
"""


@pytest.mark.parametrize("on_schema_change", ["apply", deep("ignore")])
def test_its_rows_of_before_are_applied(
    checklist_cluster: Cluster, apply_service: ServeProcess, on_schema_change: str
) -> None:
    service = apply_service.service()
    with subscribed_pair(checklist_cluster, service) as there:
        there.both(_ROOT)
        published = "TABLE r, t, marker WITH (publish_via_partition_root = true)"
        there.create(published, on_schema_change=on_schema_change)
        there.source.execute("INSERT INTO t VALUES (100, 'followed'), (101, 'followed')")
        there.catch_up()
        service.call("POST", f"/subscriptions/{there.name}/disable")
        wait_until("it stands", lambda: there.view()["pid"] is None, there.told)
        there.source.execute("INSERT INTO t VALUES (102, 'while nobody applies')")
        there.source.execute("UPDATE t SET v = 'changed' WHERE id = 100")
        attach = "ALTER TABLE r ATTACH PARTITION t FOR VALUES FROM (100) TO (200)"
        there.source.execute(attach)
        if on_schema_change == "ignore":
            there.target.execute(attach)
        there.source.execute("INSERT INTO r VALUES (103, 'attached')")
        service.call("POST", f"/subscriptions/{there.name}/enable")
        there.catch_up()
        there.check_equal("r", "t")
        there.source.execute("INSERT INTO t VALUES (104, 'of the root')")
        there.catch_up()
        there.check_equal("r", "t")
        # On its own again: nothing is copied, for nothing is missing.
        detach = "ALTER TABLE r DETACH PARTITION t"
        there.source.execute(detach)
        if on_schema_change == "ignore":
            there.target.execute(detach)
        there.catch_up()
        service.call("POST", f"/subscriptions/{there.name}/refresh")
        there.source.execute("INSERT INTO t VALUES (105, 'on its own')")
        there.catch_up()
        there.check_equal("r", "t")
