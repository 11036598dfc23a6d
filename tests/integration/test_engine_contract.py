"""What every engine promises to the interfaces above it: the real one on a real server, and the one
in memory that stands in for it.

Tests of REST, gRPC, the commands and the UI run on :class:`harness.fake_engine.FakeEngine`; what
they show is worth as much as that is like the real one. So each promise here is asked of both.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from harness.fake_engine import FakeEngine
from harness.remedies import remedy
from spillway.errors import (
    AdvanceBackward,
    Conflict,
    DuplicateName,
    InvalidOption,
    InvalidRequest,
    InvalidSlotName,
    LsnNotRetained,
    NoConsumer,
    SessionEnded,
    SlotActive,
    UnknownDatabase,
    UnknownPlugin,
    UnknownSlot,
    UnknownSnapshot,
    UnknownSource,
)
from spillway.pg.lsn import Lsn
from spillway.service.engine import Engine
from spillway.service.model import Change, SlotSpec
from spillway.service.settings import EngineSettings
from spillway.sessions.layout import DataDirectory
from spillway.store.metadata import MetadataStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from harness.cluster import Cluster, Database
    from spillway.service.interface import EngineInterface

pytestmark = pytest.mark.asyncio(loop_scope="module")

SOURCE = "shop"
FAR = Lsn.parse("FFFF/0")


@dataclass
class Stage:
    """An engine with one source, and a way to commit there."""

    engine: EngineInterface
    database: str
    dsn: str
    server: Database | None

    async def commit(self, *ids: int) -> Lsn:
        """Commit a transaction of one row each; return a position behind it, when all up to there
        is decoded.
        """
        if self.server is None:
            assert isinstance(self.engine, FakeEngine)
            rows = [f"table public.t: INSERT: id[integer]:{i}" for i in ids]
            self.engine.commit(SOURCE, "BEGIN", *rows, "COMMIT")
            return self.engine.decoded_lsn
        self.server.execute("INSERT INTO t SELECT unnest(%s::int[])", [list(ids)])
        end = Lsn.parse(self.server.value("SELECT pg_current_wal_flush_lsn()::text"))
        async with asyncio.timeout(120):
            while await self._decoded() < end:  # noqa: ASYNC110 - another process writes
                await asyncio.sleep(0.02)
        return end

    async def _decoded(self) -> Lsn:
        slots = await self.engine.list_slots()
        return min(slot.decoded_lsn or Lsn(0) for slot in slots)

    async def slot(self, name: str, **more: Any) -> str:
        await self.engine.create_slot(SlotSpec(name, SOURCE, self.database, **more))
        return name

    async def position(self, name: str) -> Lsn:
        confirmed = (await self.engine.get_slot(name)).confirmed_flush_lsn
        assert confirmed is not None
        return confirmed


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["in memory", "real"])
async def made(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    session_cluster: Callable[[int], Cluster],
) -> AsyncIterator[Stage]:
    if request.param == "in memory":
        fake = FakeEngine()
        fake.add_source(SOURCE)
        yield Stage(fake, "shop", "host=db dbname=shop", None)
        return
    server = session_cluster(18).create_database("engine_contract")
    server.execute("CREATE TABLE t (id int)")
    data = DataDirectory(tmp_path_factory.mktemp("engine") / "data")
    metadata = MetadataStore(f"sqlite:///{data.root / 'spillway.db'}", data.reserve.release)
    engine = Engine(data, metadata, EngineSettings())
    try:
        await engine.start()
        await engine.create_source(SOURCE, server.dsn)
        yield Stage(engine, server.name, server.dsn, server)
        await engine.drop_source(SOURCE)
    finally:
        await engine.stop()
        data.close()
        server.cluster.drop_database(server.name)


@pytest_asyncio.fixture(loop_scope="module")
async def stage(made: Stage) -> AsyncIterator[Stage]:
    """Every test begins without slots."""
    yield made
    for slot in await made.engine.list_slots():
        await made.engine.drop_slot(slot.slot_name)


def ids(changes: Sequence[Change]) -> list[int]:
    """Return the rows of whole transactions; each change is where it should be."""
    assert [c.lsn for c in changes] == sorted(c.lsn for c in changes)
    found: list[int] = []
    inside = False
    for change in changes:
        if change.data.startswith(("BEGIN", "COMMIT")):
            assert inside == change.data.startswith("COMMIT")
            inside = not inside
        else:
            assert inside
            (number,) = re.findall(r"id\[integer\]:(\d+)", change.data)
            found.append(int(number))
    assert not inside
    return found


async def test_what_is_not_there(stage: Stage) -> None:
    engine = stage.engine
    for call in (
        engine.get_slot("none"),
        engine.drop_slot("none"),
        engine.peek("none", None, None, {}),
        engine.get_changes("none", None, None, {}),
        engine.advance("none", FAR),
        engine.rewind("none", FAR),
        engine.copy_slot("none", "other"),
        engine.slot_stats("none"),
        engine.alter_slot("none", {}),
        engine.lag_seconds("none"),
        engine.preview("none", None, 10),
        engine.end_session("none"),
        engine.take_snapshot("none"),
        engine.get_snapshot("none"),
        engine.release_snapshot("none"),
    ):
        with pytest.raises(UnknownSlot, match='"none"'):
            await call
    with pytest.raises(UnknownSlot, match='"none"'):
        async with engine.stream("none"):
            pass
    for of_source in (
        engine.get_source("none"),
        engine.alter_source("none", stage.dsn),
        engine.drop_source("none"),
        engine.restart_database("none", stage.database),
        engine.primary_cost("none"),
        engine.check_readable("none", stage.database, None),
        engine.list_tables("none", stage.database),
        engine.list_publications("none", stage.database),
        engine.publication_names("none", stage.database),
        engine.create_slot(SlotSpec("s", "none", stage.database)),
    ):
        with pytest.raises(UnknownSource, match='"none"'):
            await of_source
    assert engine.fence("none") is None
    await stage.slot("s")
    with pytest.raises(UnknownDatabase):
        await engine.restart_database(SOURCE, "nothing_of_that_name")


async def test_what_a_slot_may_be(stage: Stage) -> None:
    engine = stage.engine
    await stage.slot("s")
    for spec, error in (
        (SlotSpec("s", SOURCE, stage.database), DuplicateName),
        (SlotSpec("Bad name", SOURCE, stage.database), InvalidSlotName),
        (SlotSpec("p", SOURCE, stage.database, plugin="nothing"), UnknownPlugin),
        (SlotSpec("o", SOURCE, stage.database, options={"bogus": "1"}), InvalidOption),
    ):
        with pytest.raises(error):
            await engine.create_slot(spec)
    assert [slot.slot_name for slot in await engine.list_slots()] == ["s"]
    for call in (
        engine.peek("s", None, None, {"bogus": "1"}),
        engine.get_changes("s", None, None, {"bogus": "1"}),
        engine.alter_slot("s", {"bogus": "1"}),
    ):
        with pytest.raises(InvalidOption, match="bogus"):
            await call
    with pytest.raises(InvalidOption, match="bogus"):
        async with engine.stream("s", options={"bogus": "1"}):
            pass
    assert (await engine.alter_slot("s", {"include-xids": "off"})).options == {
        "include-xids": "off"
    }
    assert not (await engine.get_slot("s")).active


async def test_a_source(stage: Stage) -> None:
    engine = stage.engine
    assert [source.name for source in await engine.list_sources()] == [SOURCE]
    for again in (engine.create_source(SOURCE, stage.dsn), engine.check_source(SOURCE, stage.dsn)):
        with pytest.raises(DuplicateName, match=SOURCE):
            await again
    await stage.slot("s")
    await stage.commit(1)
    with pytest.raises(Conflict):
        await engine.drop_source(SOURCE)
    with pytest.raises(Conflict):
        await engine.restart_database(SOURCE, stage.database)
    assert (await engine.get_source(SOURCE)).name == SOURCE
    fence = engine.fence(SOURCE)
    assert fence is not None
    assert SOURCE in fence.resource
    assert stage.database in engine.conninfo(SOURCE, stage.database)
    assert "test_decoding" in {plugin.name for plugin in await engine.list_plugins()}
    assert engine.alive()
    assert engine.obstacles() == []


async def test_peek_leaves_and_get_takes(stage: Stage) -> None:
    engine = stage.engine
    await stage.slot("s")
    begin = await stage.position("s")
    between = await stage.commit(1, 2)
    await stage.commit(3)
    for _ in range(2):
        assert ids(await engine.peek("s", None, None, {})) == [1, 2, 3]
    assert await stage.position("s") == begin
    # Whole transactions: the one that reaches the number is the last, the one that commits there is
    # not in it.
    assert ids(await engine.peek("s", None, 1, {})) == [1, 2]
    assert ids(await engine.peek("s", between, None, {})) == [1, 2]
    assert ids(await engine.peek("s", begin, None, {})) == []
    assert ids(await engine.get_changes("s", between, None, {})) == [1, 2]
    assert begin < await stage.position("s") <= between
    assert ids(await engine.get_changes("s", None, None, {})) == [3]
    assert ids(await engine.get_changes("s", None, None, {})) == []
    assert await engine.lag_seconds("s") == 0.0


async def test_positions(stage: Stage) -> None:
    engine = stage.engine
    await stage.slot("s")
    begin = await stage.position("s")
    between = await stage.commit(1)
    end = await stage.commit(2)
    copied = await engine.copy_slot("s", "c")
    assert copied.confirmed_flush_lsn == begin
    with pytest.raises(DuplicateName):
        await engine.copy_slot("s", "c")
    other = await engine.copy_slot(
        "s", "d", temporary=True, plugin="pgoutput", keeps_properties=False
    )
    assert (other.temporary, other.plugin, other.two_phase) == (True, "pgoutput", False)
    await engine.drop_slot("d")
    assert await engine.advance("s", between) == between == await stage.position("s")
    assert ids(await engine.peek("s", None, None, {})) == [2]
    with pytest.raises(AdvanceBackward, match=f"minimum is {between}"):
        await engine.advance("s", begin)
    # No further than what is decoded.
    assert end <= await engine.advance("s", FAR) < FAR
    assert ids(await engine.get_changes("c", None, None, {})) == [1, 2]
    assert (await engine.rewind("s", begin)).confirmed_flush_lsn == begin
    assert ids(await engine.peek("s", None, None, {})) == [1, 2]
    for never in (Lsn(1), FAR):
        with pytest.raises(LsnNotRetained):
            await engine.rewind("s", never)
    assert await stage.position("s") == begin


async def test_a_temporary_slot_becomes_permanent_while_it_is_read(stage: Stage) -> None:
    engine = stage.engine
    await stage.slot("kept", temporary=True)
    async with engine.stream("kept"):
        assert not (await engine.make_permanent("kept")).temporary
        # As one that is already does.
        assert not (await engine.make_permanent("kept")).temporary
    assert not (await engine.get_slot("kept")).temporary
    with pytest.raises(UnknownSlot):
        await engine.make_permanent("none")


async def test_one_consumer_at_a_time(stage: Stage) -> None:
    engine = stage.engine
    await stage.slot("s")
    begin = await stage.position("s")
    with pytest.raises(NoConsumer):
        await engine.end_session("s")
    async with engine.stream("s"):
        assert (await engine.get_slot("s")).active
        for call in (
            engine.get_changes("s", None, None, {}),
            engine.advance("s", FAR),
            engine.rewind("s", begin),
            engine.alter_slot("s", {}),
            engine.drop_slot("s"),
        ):
            with pytest.raises(SlotActive, match='"s" is active'):
                await call
        with pytest.raises(SlotActive, match='"s" is active'):
            async with engine.stream("s"):
                pass
        async with engine.stream("s", peek=True) as beside:
            with pytest.raises(InvalidRequest):
                await beside.confirm(begin, begin, begin)
    assert not (await engine.get_slot("s")).active


@pytest.mark.follows_hint("unknown_snapshot")
async def test_a_snapshot_is_held_for_a_slot(stage: Stage) -> None:
    engine = stage.engine
    await stage.slot("s", exports_snapshot=True)
    held = await engine.get_snapshot("s")
    assert (held.method, held.reason) == ("paired", None)
    assert held.consistent_point == await stage.position("s")
    end = await stage.commit(1)
    with pytest.raises(InvalidRequest, match="start_lsn"):
        await stage.slot("both", exports_snapshot=True, start_lsn=end)
    later = await engine.take_snapshot("s")
    assert later.consistent_point >= end
    assert later.snapshot_name != held.snapshot_name
    assert await engine.get_snapshot("s") == later
    assert await stage.position("s") == held.consistent_point
    await engine.release_snapshot("s")
    await engine.release_snapshot("s")
    with pytest.raises(UnknownSnapshot, match='"s"') as none_held:
        await engine.get_snapshot("s")
    assert "POST /v1/slots/s/snapshot" in remedy(none_held.value, "unknown_snapshot")
    assert await engine.take_snapshot("s") == await engine.get_snapshot("s")
    # Who looks leaves it, who takes the slot has come to an end with it.
    assert ids(await engine.peek("s", None, None, {})) == [1]
    async with engine.stream("s", peek=True):
        await engine.get_snapshot("s")
    async with engine.stream("s"):
        with pytest.raises(UnknownSnapshot):
            await engine.get_snapshot("s")
        await engine.take_snapshot("s")
    await engine.get_changes("s", None, None, {})
    with pytest.raises(UnknownSnapshot):
        await engine.get_snapshot("s")
    await engine.take_snapshot("s")
    await engine.drop_slot("s")
    await stage.slot("s")
    with pytest.raises(UnknownSnapshot):
        await engine.get_snapshot("s")


async def test_a_stream(stage: Stage) -> None:
    engine = stage.engine
    await stage.slot("s")
    begin = await stage.position("s")
    between = await stage.commit(1, 2)
    end = await stage.commit(3)
    async with engine.stream("s", upto_lsn=between) as stream:
        count, final, confirm = 0, False, begin
        while not final:
            batch = await stream.next_batch(30)
            assert batch.confirm_lsn >= confirm
            count, final, confirm = count + batch.messages.count, batch.final, batch.confirm_lsn
        assert count == 4, "BEGIN, two rows, COMMIT"
        assert confirm <= between
        await stream.confirm(confirm, confirm, confirm)
        await stream.confirm(begin, begin, begin)
        assert await stage.position("s") == confirm, "never backward"
    async with engine.stream("s") as stream:
        batch = await stream.next_batch(30)
        assert (batch.messages.count, batch.final) == (3, False)
        await stream.confirm(batch.confirm_lsn, batch.confirm_lsn, batch.confirm_lsn)
        # A keepalive, and then what is committed meanwhile.
        while (idle := await stream.next_batch(0.01)).confirm_lsn < end:
            assert idle.messages.count == 0
        assert idle.messages.count == 0
        await stage.commit(4)
        while not (batch := await stream.next_batch(30)).messages.count:
            pass
        assert batch.messages.count == 3
    assert ids(await engine.peek("s", None, None, {})) == [4]


async def test_a_session_that_somebody_ends(stage: Stage) -> None:
    engine = stage.engine
    await stage.slot("s")
    async with asyncio.timeout(60):
        opened = asyncio.Event()

        async def follow() -> None:
            async with engine.stream("s") as stream:
                opened.set()
                await stream.ended()

        following = asyncio.create_task(follow())
        await opened.wait()
        assert (await engine.end_session("s")).kind == "stream"
        with pytest.raises(SessionEnded):
            await following
    assert not (await engine.get_slot("s")).active
    await engine.drop_slot("s")
