"""How things were: what is kept of each look, on both metadata stores, and what is shown of it."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import insert

from harness.fake_engine import FakeEngine
from harness.fake_subscriptions import FakeSubscriptions
from spillway.demo.private_postgres import SUPERUSER
from spillway.errors import InvalidRequest, MetadataError
from spillway.store.database import ConstraintViolation, Database
from spillway.store.metadata import MetadataStore
from spillway.store.metrics import LEVELS, MetricPoint
from spillway.store.rows import Fence, Owner, SlotRow, SourceRow, SubscriptionRow
from spillway.store.schema import METRIC_SERIES
from spillway.watch.past import Past
from spillway.watch.recorder import PENDING_MAX, STEP_S, Recorder
from spillway.watch.sampler import Sampler, View
from spillway.watch.views import SlotView

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from sqlalchemy.engine import Connection

    from harness.cluster import Database as ServerDatabase
    from spillway.store.metrics import MetricTable

DAY = 86_400
#: the beginning of an hour
NOON = 1_795_608_000


@pytest.fixture(params=["sqlite", "postgresql"])
async def metadata(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    url = f"sqlite:///{tmp_path / 'spillway.db'}"
    if request.param == "postgresql":
        pg15 = request.getfixturevalue("pg15")
        url = f"postgresql://{SUPERUSER}@127.0.0.1:{pg15.cluster.port}/{pg15.name}"
    store = MetadataStore(url)
    await store.migrate()
    yield store
    await store.close()


async def with_things(store: MetadataStore) -> Fence:
    """Make a source, a slot and a subscription, and take the source's lease."""
    await store.add_source(
        SourceRow(
            name="shop",
            dsn="host=db",
            system_id="7432109876543210987",
            server_version_num=180004,
            timeline=1,
            wal_segment_size=1 << 24,
            slot_name="spillway_shop",
            capture={},
        )
    )
    token = await store.acquire_lease("source/shop", "here", 60)
    assert token is not None
    slot = SlotRow(
        slot_name="s1", source="shop", database="shop", datoid=5, plugin="test_decoding", options={}
    )
    await store.slots.create(slot, Owner("shop", token, 1))
    await store.add_subscription(
        SubscriptionRow(
            name="lake", source="shop", database="shop", slot="lake", target={"kind": "lake"}
        )
    )
    return Fence("source/shop", token)


def slot_at(at: int, lag: float | None, **numbers: float | None) -> MetricPoint:
    return MetricPoint("slot", "s1", "shop", at, lag_bytes=lag, **numbers)


async def lags(table: MetricTable, step: int, since: int = NOON) -> list[tuple[int, float | None]]:
    return [(row.at, row.lag_bytes) for row in await table.of("slot", "s1", step, since)]


async def test_the_largest_of_each_stretch_is_kept(metadata: MetadataStore) -> None:
    fences = {"shop": await with_things(metadata)}
    table = metadata.metrics
    await table.add([slot_at(NOON + 119, 5.0, rate=3.0), slot_at(NOON + 130, 9.0)], fences)
    await table.add([slot_at(NOON + 100, 7.0), slot_at(NOON + 700, None, rate=1.0)], fences)
    # Another write of what was written is there once.
    await table.add([slot_at(NOON + 130, 9.0)], fences)
    assert await lags(table, 120) == [(NOON, 7.0), (NOON + 120, 9.0), (NOON + 600, None)]
    assert await lags(table, 600) == [(NOON, 9.0), (NOON + 600, None)]
    assert await lags(table, 3600) == [(NOON, 9.0)]
    (hour,) = await table.of("slot", "s1", 3600, NOON)
    assert (hour.rate, hour.lag_seconds) == (3.0, None)


async def test_what_is_too_old_goes_and_the_rest_stays(metadata: MetadataStore) -> None:
    fences = {"shop": await with_things(metadata)}
    table = metadata.metrics
    await table.add([slot_at(NOON, 1.0)], fences)
    for level in LEVELS:
        # Just not too old, then just too old.
        await table.add([slot_at(NOON + level.kept, 2.0)], fences)
        assert (NOON, 1.0) in await lags(table, level.step)
        await table.add([slot_at(NOON + level.kept + 3600, 3.0)], fences)
        assert (NOON, 1.0) not in await lags(table, level.step)


async def test_it_goes_with_what_it_is_of(metadata: MetadataStore) -> None:
    fence = await with_things(metadata)
    table = metadata.metrics
    points = [
        slot_at(NOON, 1.0),
        MetricPoint("source", "shop", "shop", NOON, rate=1.0),
        MetricPoint("subscription", "lake", "shop", NOON, rate=1.0),
        MetricPoint("slot", "never_made", "shop", NOON, rate=1.0),
    ]
    await table.add(points, {"shop": fence})
    assert await table.of("source", "shop", 120, NOON)
    assert await table.of("subscription", "lake", 120, NOON)
    assert not await table.of("slot", "never_made", 120, NOON)
    await metadata.slots.drop("s1", Owner("shop", fence.token, 1))
    await metadata.remove_subscription("lake")
    assert not await table.of("slot", "s1", 120, NOON)
    assert not await table.of("subscription", "lake", 120, NOON)
    assert await table.of("source", "shop", 120, NOON)


async def test_only_who_has_the_lease_writes(metadata: MetadataStore) -> None:
    fence = await with_things(metadata)
    table = metadata.metrics
    await table.add([slot_at(NOON, 1.0)], {})
    await table.add([slot_at(NOON, 2.0)], {"shop": fence._replace(token=fence.token + 1)})
    assert await lags(table, 120) == []
    await table.add([slot_at(NOON, 3.0)], {"shop": fence})
    assert await lags(table, 120) == [(NOON, 3.0)]


class Looks:
    """A recorder that is shown looks of one slot."""

    def __init__(self, metadata: MetadataStore) -> None:
        self.engine = FakeEngine()
        self.engine.add_source("shop")
        self.slot = self.engine.add_slot("s1")
        sampler = Sampler(self.engine, FakeSubscriptions())
        self.recorder = Recorder(metadata.metrics, self.engine, sampler)
        self.past = Past(metadata.metrics, self.recorder)

    def look(self, at: int, lag: int, *, temporary: bool = False) -> None:
        info = replace(self.slot, temporary=temporary)
        view = View(float(at), datetime.now(UTC), slots=(SlotView(info, lag, None, 1.0, "idle"),))
        self.recorder.note(view)

    async def known(self, reach: int = 3600, step: int | None = None) -> Sequence[float]:
        found = await self.past.series("slot", "s1", range_s=reach, step_s=step)
        return [value for value in found.values["lag_bytes"] if value is not None]


async def test_what_is_seen_outlives_the_process(metadata: MetadataStore) -> None:
    fence = await with_things(metadata)
    now = int(time.time()) // STEP_S * STEP_S
    looks = Looks(metadata)
    looks.engine.tokens["shop"] = fence.token
    looks.look(now - STEP_S, 5)
    looks.look(now - STEP_S + 2, 4)
    looks.look(now, 8)
    # Shown before it is stored, and as it was after.
    assert await looks.known() == [5.0, 8.0]
    await looks.recorder.write_all()
    assert await lags(metadata.metrics, STEP_S, now - STEP_S) == [(now - STEP_S, 5.0), (now, 8.0)]
    again = Looks(metadata)
    assert await again.known() == [5.0, 8.0]

    def in_steps_of(step: int) -> list[float]:
        """The two looks are of one step, but for just behind its end."""
        return [5.0, 8.0] if now % step == 0 else [8.0]

    hours = in_steps_of(3600)
    assert await again.known(7 * DAY) == in_steps_of(600)
    assert await again.known(30 * DAY) == hours
    series = await again.past.series("slot", "s1", range_s=30 * DAY)
    assert (series.step_s, len(series.times)) == (3600, 720)
    assert series.values["lag_bytes"].count(None) == 720 - len(hours)


async def test_what_clients_make_for_a_connection_is_not_kept(metadata: MetadataStore) -> None:
    looks = Looks(metadata)
    looks.look(int(time.time()), 5, temporary=True)
    assert await looks.known() == []


async def test_a_store_that_is_away(metadata: MetadataStore) -> None:
    fence = await with_things(metadata)
    looks = Looks(metadata)
    looks.engine.tokens["shop"] = fence.token
    now = int(time.time()) // STEP_S * STEP_S
    add = metadata.metrics.add

    async def away(*_: object) -> None:
        raise MetadataError("gone", hint="Wait.")

    metadata.metrics.add = away  # type: ignore[method-assign,assignment]
    begin = now - (PENDING_MAX + 4) * STEP_S
    for number in range(PENDING_MAX + 5):
        looks.look(begin + number * STEP_S, 100 + number)
        await looks.recorder.write_all()
    # It is bounded, and the newest is kept.
    waiting = list(looks.recorder.not_written("slot", "s1"))
    assert len(waiting) == PENDING_MAX
    assert waiting[-1] == (now, (float(100 + PENDING_MAX + 4), None, 0.0, 1.0))
    metadata.metrics.add = add  # type: ignore[method-assign]
    await looks.recorder.write_all()
    assert not list(looks.recorder.not_written("slot", "s1"))
    assert len(await lags(metadata.metrics, STEP_S, 0)) == PENDING_MAX


async def test_two_writes_that_make_the_same_series(pg15: ServerDatabase) -> None:
    """As when what runs is given up at a stop, and all is written once more beside it."""
    url = f"postgresql://{SUPERUSER}@127.0.0.1:{pg15.cluster.port}/{pg15.name}"
    store = MetadataStore(url)
    await store.migrate()
    fence = await with_things(store)
    writing, goes_on = threading.Event(), threading.Event()

    def write(connection: Connection) -> None:
        connection.execute(insert(METRIC_SERIES), {"slot": "s1"})
        writing.set()
        assert goes_on.wait(60)

    database = Database(url)
    first = asyncio.create_task(database.write(write))
    await asyncio.to_thread(writing.wait)
    second = asyncio.create_task(store.metrics.add([slot_at(NOON, 3.0)], {"shop": fence}))
    blocked = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = "
        "current_database()"
    )
    while not second.done() and not pg15.value(blocked):  # noqa: ASYNC110 - the server knows
        await asyncio.sleep(0.01)
    goes_on.set()
    await first
    await second
    assert await lags(store.metrics, 120) == [(NOON, 3.0)]
    await database.close()
    await store.close()


async def test_what_can_not_be_written_holds_up_no_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = MetadataStore(f"sqlite:///{tmp_path / 'spillway.db'}")
    looks = Looks(store)

    async def odd(*_: object) -> None:
        raise ConstraintViolation(foreign_key=False)

    store.metrics.add = odd  # type: ignore[method-assign,assignment]
    looks.recorder.start()
    looks.look(NOON, 5)
    await looks.recorder.stop()
    assert "what was seen last is not kept" in caplog.text
    await store.close()


async def test_ranges_and_steps(metadata: MetadataStore) -> None:
    looks = Looks(metadata)
    found = await looks.past.series("slot", "s1", range_s=DAY, step_s=3600)
    assert (found.step_s, len(found.times)) == (3600, 24)
    # As fine as is kept so far back, and a multiple of it.
    assert (await looks.past.series("slot", "s1", range_s=DAY, step_s=1)).step_s == 120
    assert (await looks.past.series("slot", "s1", range_s=7 * DAY, step_s=60)).step_s == 600
    assert (await looks.past.series("slot", "s1", range_s=7 * DAY, step_s=700)).step_s == 1200
    for reach, step in ((31 * DAY, None), (60, None), (DAY, 0)):
        with pytest.raises(InvalidRequest):
            await looks.past.series("slot", "s1", range_s=reach, step_s=step)
