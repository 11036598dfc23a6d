"""The engine's cache of slots: what it asks of the metadata store, how often, and what it forgets
when that says otherwise.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from spillway.caller import calling
from spillway.delivery.slot_rows import SlotRows
from spillway.errors import Conflict, LeaseLost, MetadataError, SlotActive
from spillway.pg.lsn import Lsn
from spillway.service.model import Decoding
from spillway.service.slot_view import describe
from spillway.store.leases import Leases
from spillway.store.metadata import MetadataStore
from spillway.store.rows import Fence, Owner, SlotRow, SourceRow
from spillway.store.slots import SlotTable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from spillway.delivery.slots import Slot

MAIN = SourceRow(
    name="main", dsn="host=db", system_id="1", server_version_num=180000, timeline=1,
    wal_segment_size=1 << 24, slot_name="spillway_main",
)  # fmt: skip
DECODING = Decoding("unknown", None, None)


class Engine:
    """One process's slots of a source, under its lease."""

    def __init__(self, metadata: MetadataStore, instance: str) -> None:
        self.metadata = metadata
        self.leases = Leases(metadata, instance, 60)
        self.rows = SlotRows(metadata, self.leases)

    async def take(self) -> None:
        taken = await self.leases.acquire("main")
        assert taken is not None
        await self.rows.take("main", taken.fence)
        self.leases.begin("main", taken.fence)

    async def stand_by(self) -> None:
        assert await self.leases.acquire("main") is None
        await self.rows.look("main")

    def slot(self, name: str = "s0") -> Slot:
        return self.rows.slots[name]

    def another(self) -> Owner:
        """Give another process of this tenure, which there is none of today."""
        return Owner("main", self.leases.held("main").token, 1)

    async def stored(self, name: str = "s0") -> SlotRow:
        return await self.metadata.slots.get(name)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    metadata = MetadataStore(f"sqlite:///{tmp_path / 'metadata.db'}")
    await metadata.migrate()
    await metadata.add_source(MAIN)
    engine = Engine(metadata, "here")
    await engine.take()
    await engine.rows.add(row("s0"))
    yield engine
    await metadata.close()


def row(name: str, **columns: Any) -> SlotRow:
    return SlotRow(
        slot_name=name, source="main", database="d", datoid=1, plugin="p",
        confirmed_flush_lsn=Lsn(10), **columns
    )  # fmt: skip


async def test_feedback_costs_what_moved_and_not_how_often(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 20):
        await engine.rows.add(row(f"s{number}"))
    transactions = 0
    write = engine.metadata._database.write

    async def count(*arguments: Any) -> Any:
        nonlocal transactions
        transactions += 1
        return await write(*arguments)

    monkeypatch.setattr(engine.metadata._database, "write", count)
    for _ in range(3):
        await engine.rows.store()
    assert transactions == 0
    for lsn in range(11, 1011):
        for number in range(10):
            engine.slot(f"s{number}").confirm(lsn + number)
    await engine.rows.store()
    await engine.rows.store()
    assert transactions == 1
    stored = {
        slot.slot_name: slot.confirmed_flush_lsn for slot in await engine.metadata.slots.rows()
    }
    assert stored == {f"s{n}": 1010 + n if n < 10 else 10 for n in range(20)}


async def test_a_consumer_is_shown_by_who_stands_by(engine: Engine) -> None:
    beside = Engine(engine.metadata, "beside")
    unknown: dict[str, Any] = {"retained_bytes": None, "safe_bytes": None}
    slot = engine.slot()
    with calling("192.0.2.7:4711", "loader/1.2"), slot.acquired("stream") as active:
        async with engine.rows.claimed(slot, active):
            await beside.stand_by()
            info = describe(beside.slot(), decoding=DECODING, **unknown)
            assert (info.active, info.active_pid) == (True, (await engine.stored()).active_pid)
            assert (info.inactive_since, str(info.consumer)) == (None, str(active.consumer()))
            with pytest.raises(LeaseLost):
                await beside.slot().end_session()
            # How it stands is told now and then.
            active.fed_back()
            active.sent_lsn = Lsn(77)
            assert info.consumer is not None
            assert info.consumer.last_feedback_at is None
            await engine.rows.note_presence()
            await beside.stand_by()
            consumer = beside.slot().consumer
            assert consumer is not None
            assert (consumer.last_feedback_at, consumer.sent_lsn) == (active.last_feedback_at, 77)
            assert consumer.as_of is not None
            slot.confirm(30)
    await beside.stand_by()
    info = describe(beside.slot(), decoding=DECODING, **unknown)
    assert (info.active, info.active_pid, info.consumer) == (False, None, None)
    # What was confirmed last went with the release.
    assert (info.confirmed_flush_lsn, slot.stored_lsn) == (30, 30)
    # Whoever loses the lease does not go on naming its own consumers.
    with slot.acquired("stream") as active:
        async with engine.rows.claimed(slot, active):
            await engine.metadata.release_lease("source/main", engine.leases.held("main").token)
            await beside.take()
            with pytest.raises(LeaseLost):
                await engine.rows.rewind(slot, Lsn(5))
    assert slot.consumer is None
    assert beside.slot().consumer is None
    assert (await engine.stored()).consumer is None


async def test_a_release_that_could_not_be_stored_is_stored_later(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_answer(*_: object, **__: object) -> None:
        raise MetadataError("the metadata store does not answer", hint="Try again.")

    async def consume(slot: Slot) -> None:
        with slot.acquired("stream") as active:
            async with engine.rows.claimed(slot, active):
                slot.confirm(20)

    slot = engine.slot()
    for failing in ("release", "acquire"):
        with monkeypatch.context() as patch:
            patch.setattr(SlotTable, failing, no_answer)
            with pytest.raises(MetadataError):
                await consume(slot)
        assert slot.is_claimed
        assert slot.active_consumer is None
        await engine.rows.store()
        assert not slot.is_claimed
        stored = await engine.stored()
        assert (stored.active_pid, stored.confirmed_flush_lsn) == (None, 20)


async def test_a_slot_of_a_former_tenure_is_not_acquired_in_the_next(engine: Engine) -> None:
    former = engine.slot()
    with former.acquired("stream") as active:
        token = engine.leases.held("main").token
        engine.leases.lose("main")
        await engine.metadata.release_lease("source/main", token)
        await engine.take()
        with pytest.raises(LeaseLost):
            await engine.rows.claimed(former, active).__aenter__()
    assert (await engine.stored()).active_pid is None


async def test_a_slot_that_another_process_has_is_read_again(engine: Engine) -> None:
    """Nothing of it is written, who has it here is told, and what was cached goes."""
    for act in (
        lambda slot: engine.rows.advance(slot, Lsn(50)),
        lambda slot: engine.rows.rewind(slot, Lsn(5)),
        lambda slot: engine.rows.alter(slot, options={"a": "b"}),
        engine.rows.remove,
    ):
        await engine.metadata.slots.acquire("s0", {"kind": "stream"}, engine.another())
        before, slot = await engine.stored(), engine.slot()
        with pytest.raises(SlotActive, match="PID 1"):
            await act(slot)
        assert await engine.stored() == before
        assert slot.is_lost
        assert engine.slot() is not slot
        await engine.metadata.slots.release("s0", Lsn(10), engine.another())
    # Feedback, too, which nobody waits for.
    slot = engine.slot()
    slot.confirm(50)
    await engine.metadata.slots.acquire("s0", {"kind": "stream"}, engine.another())
    await engine.rows.store()
    assert slot.is_lost
    assert (await engine.stored()).confirmed_flush_lsn == 10
    await engine.metadata.slots.drop("s0", engine.another())
    slot = engine.slot()
    slot.confirm(60)
    await engine.rows.store()
    assert engine.rows.slots == {}


async def test_a_slot_that_was_rewound_meanwhile_goes_on_from_there(engine: Engine) -> None:
    slot = engine.slot()
    await engine.metadata.slots.rewind("s0", Lsn(5), engine.another())
    with pytest.raises(Conflict, match="was rewound to 0/5"):
        await engine.rows.advance(slot, Lsn(20))
    assert engine.slot().confirmed_flush_lsn == 5
    await engine.rows.advance(engine.slot(), Lsn(20))
    assert (await engine.stored()).confirmed_flush_lsn == 20
    # A stream begins where the slot stands, too, but at nothing that was stored and never answered
    # for: nobody was given that.
    for stands, begins in ((Lsn(7), 7), (Lsn(90), 7)):
        await engine.metadata.slots.rewind("s0", stands, engine.another())
        slot = engine.slot()
        with slot.acquired("stream") as active:
            async with engine.rows.claimed(slot, active):
                assert slot.confirmed_flush_lsn == begins


async def test_a_temporary_slot_is_its_tenures(engine: Engine) -> None:
    await engine.rows.add(row("temporary", temporary=True))
    # Whoever stands by starts, and starts again.
    for _ in range(2):
        await Engine(engine.metadata, "beside").stand_by()
    token = engine.leases.held("main").token
    assert (await engine.stored("temporary")).owner_token == token
    await engine.rows.take("main", engine.leases.held("main"))
    assert set(engine.rows.slots) == {"s0", "temporary"}
    await engine.metadata.release_lease("source/main", token)
    beside = Engine(engine.metadata, "beside")
    await beside.take()
    await beside.rows.add(row("theirs", temporary=True))
    for act in (
        engine.rows.add(row("mine", temporary=True)),
        engine.rows.remove(engine.slot("temporary")),
    ):
        with pytest.raises(LeaseLost):
            await act
    with pytest.raises(LeaseLost):
        await engine.rows.take("main", Fence("source/main", token))
    assert [slot.slot_name for slot in await engine.metadata.slots.rows()] == ["s0", "theirs"]


async def test_many_streams_of_a_process_do_not_wait_for_each_other(engine: Engine) -> None:
    """Feedback is stored while streams come and go, and each position ends where its consumer
    confirmed it.
    """
    for number in range(1, 10):
        await engine.rows.add(row(f"s{number}"))

    async def consume(number: int) -> None:
        slot = engine.slot(f"s{number}")
        for turn in range(5):
            with slot.acquired("stream") as active:
                async with engine.rows.claimed(slot, active):
                    slot.confirm(100 * (turn + 1) + number)
                    await asyncio.sleep(0)

    async def keep_up(consuming: asyncio.Future[Any]) -> None:
        while not consuming.done():
            await engine.rows.store()
            await asyncio.sleep(0)

    consuming = asyncio.gather(*(consume(number) for number in range(10)))
    await asyncio.gather(consuming, keep_up(consuming))
    stored = await engine.metadata.slots.rows()
    assert [slot.confirmed_flush_lsn for slot in stored] == [500 + number for number in range(10)]
    assert not any(slot.active_pid for slot in stored)
