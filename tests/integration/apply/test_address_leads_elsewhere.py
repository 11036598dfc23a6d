"""The target's address leads to another server while a program is at work, whose connections stay
where they are: a proxy, a name, an address that moves when a standby takes over, and the former
primary still takes what comes.

What a program writes is on one server, or else nothing fits there: a table would be copied into the
one while the stream goes into the other.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.cluster import Database
from harness.postgresql_subscription import wait_until
from harness.refusing_relay import RefusingRelay
from harness.remedies import remedy
from harness.serve_process import ServeProcess
from harness.standby import Standby
from harness.tiers import deep, majors_by_tier
from integration.apply.test_another_server import Numbers
from spillway.apply.target.session import TargetPlan, TargetSession, connect_beside
from spillway.apply.target.whereabouts import Whereabouts
from spillway.errors import TargetMoved

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import ClusterFactory


@pytest.fixture
def numbers(tmp_path: Path, fresh_cluster: ClusterFactory, major: int) -> Iterator[Numbers]:
    process = ServeProcess(tmp_path / "data")
    service = process.service()
    source = fresh_cluster(18).create_database("source")
    target = fresh_cluster(major, fsync=True).create_database("target")
    service.create_source(source.cluster.dsn())
    yield Numbers(service, source, target, "numbers")
    process.stop()


@pytest.mark.follows_hint("target_moved")
def test_sessions_are_together(fresh_cluster: ClusterFactory) -> None:
    one, other = fresh_cluster(14), fresh_cluster(18)
    with RefusingRelay(one.port) as relay:
        dsn = one.dsn().replace(f"port={one.port}", f"port={relay.port}")
        plan = TargetPlan("s", "0123456789", dsn)
        with TargetSession(plan):
            TargetSession(plan, is_beside=True).close()
            connect_beside(plan, "beside").close()
            plan.whereabouts.ensure_together()
            relay.lead_to(other.port)
            for connect in (
                lambda: TargetSession(plan, is_beside=True),
                lambda: connect_beside(plan, "beside"),
                plan.whereabouts.ensure_together,
            ):
                with pytest.raises(TargetMoved) as moved:
                    connect()
            hint = remedy(moved.value, "target_moved")
        assert "It begins anew by itself" in hint
        with TargetSession(again := replace(plan, whereabouts=Whereabouts())) as session:
            assert session.major == 18
            TargetSession(again, is_beside=True).close()
    # By turns: what the hint has for that.
    standby_first = f"host=127.0.0.1,127.0.0.1 port={one.port},{other.port}"
    one.execute("ALTER SYSTEM SET default_transaction_read_only = on")
    one.execute("SELECT pg_reload_conf()")
    wait_until("it is read-only", lambda: one.value("SHOW default_transaction_read_only") == "on")
    named = re.search(r"target_session_attrs=\S+", hint)
    assert named is not None
    rest = re.sub(r"\b(host|port)=\S+", "", one.dsn())
    with TargetSession(TargetPlan("s", "0123456789", f"{rest} {standby_first} {named[0]}")) as it:
        assert it.major == 18


@pytest.mark.parametrize("major", majors_by_tier([14, 18]))
@pytest.mark.parametrize("way", ["lanes", deep("in progress")])
def test_a_standby_took_over(numbers: Numbers, way: str) -> None:
    """Much comes, and the first connections beside the one at work are opened, to the successor."""
    former = numbers.target
    with Standby(former) as standby, RefusingRelay(former.cluster.port) as relay:
        dsn = former.dsn.replace(f"port={former.cluster.port}", f"port={relay.port}")
        assert dsn != former.dsn
        numbers.create(target={"dsn": dsn}, streaming="parallel")
        numbers.write(1, 3)
        numbers.wait_there(3)
        numbers.wait_confirmed()
        standby.wait_streams()
        # The former primary goes on, and so does the program's connection to it.
        standby.stop()
        standby.start()
        standby.promote()
        relay.lead_to(standby.port)
        numbers.write(4, 6)
        numbers.wait_there(6)

        load = "INSERT INTO t SELECT generate_series({}, {})"
        numbers.target = Database(standby, "target")
        if way == "lanes":
            for first in range(7, 200_007, 40_000):
                numbers.source.execute(load.format(first, first + 39_999))
        else:
            with numbers.source.connect(autocommit=False) as writing:
                writing.execute(load.format(7, 200_006))
                time.sleep(3)
        last = 200_006

        def there() -> tuple[int, ...]:
            (found,) = numbers.target.query("SELECT count(*), count(DISTINCT id), max(id) FROM t")
            return found

        wait_until(
            "each is there once",
            lambda: there() == (last, last, last),
            lambda: f"{there()} {former.query('SELECT count(*) FROM t')} {numbers.view()}",
        )
        numbers.wait_confirmed()
        assert numbers.view()["error"] is None
