"""The metadata store on both of its databases."""

from __future__ import annotations

import asyncio
import stat
import threading
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import select, text, update

from spillway.demo.private_postgres import SUPERUSER
from spillway.errors import (
    Conflict,
    DuplicateName,
    InvalidLsn,
    InvalidRequest,
    LeaseLost,
    MetadataError,
    SlotActive,
    UnknownSlot,
    UnknownSource,
    UnknownSubscription,
)
from spillway.pg.lsn import Lsn
from spillway.store import conflicts as conflict_store
from spillway.store import engines
from spillway.store.database import Database
from spillway.store.fencing import IS_HELD, proof
from spillway.store.metadata import MetadataStore
from spillway.store.metrics import MetricPoint
from spillway.store.migrate import migration_config
from spillway.store.rows import (
    Fence,
    MetConflict,
    Owner,
    Presence,
    SlotRow,
    SourceRow,
    SubscriptionRow,
)
from spillway.store.schema import METADATA, SLOTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from alembic.config import Config
    from sqlalchemy.engine import Connection

    from harness.cluster import Database as ServerDatabase

SOURCE = SourceRow(
    name="shop",
    dsn="host=db password=secret",
    system_id="7432109876543210987",
    server_version_num=180004,
    timeline=1,
    wal_segment_size=16 * 1024 * 1024,
    slot_name="spillway_shop",
    capture={"origin": "none", "tables": ["shop.*"], "publications": []},
)
SLOT = SlotRow(
    slot_name="s1",
    source="shop",
    database="shop",
    datoid=4294967295,
    plugin="test_decoding",
    catalog_xmin=4294967295,
    restart_lsn=Lsn.parse("16/B374D848"),
    inactive_since=datetime(2026, 11, 21, 8, 0, 0, 123456, tzinfo=UTC),
    options=MappingProxyType({"include-xids": "0", "ключ": "значение"}),
)

CONSUMER = {"kind": "stream", "address": "192.0.2.7:4711", "client": "loader/1.2", "sent_lsn": None}


async def with_source(store: MetadataStore, pid: int = 1) -> Owner:
    """Make the source, and take its lease."""
    await store.add_source(SOURCE)
    return await tenure(store, pid)


async def tenure(store: MetadataStore, pid: int = 1) -> Owner:
    """Take the source's lease as the process that had it, started again."""
    token = await store.acquire_lease("source/shop", "here", 60)
    assert token is not None
    return Owner("shop", token, pid)


@pytest.fixture
async def store(metadata_url: str) -> AsyncIterator[MetadataStore]:
    store = MetadataStore(metadata_url)
    await store.migrate()
    yield store
    await store.close()


async def test_rows_come_back_as_they_went_in(store: MetadataStore) -> None:
    owner = await with_source(store)
    await store.slots.create(SLOT, owner)
    assert await store.get_source("shop") == SOURCE
    assert await store.list_sources() == [SOURCE]
    assert await store.slots.get("s1") == SLOT
    assert await store.slots.rows() == [SLOT]
    assert await store.slots.rows(source="shop") == [SLOT]
    assert await store.slots.rows(source="other") == []
    assert isinstance((await store.slots.get("s1")).restart_lsn, Lsn)


async def test_rows_outlive_the_store(store: MetadataStore, metadata_url: str) -> None:
    await store.add_source(SOURCE)
    again = MetadataStore(metadata_url)
    await again.migrate()
    assert await again.list_sources() == [SOURCE]
    await again.close()


async def test_update(store: MetadataStore) -> None:
    owner = await with_source(store)
    await store.slots.create(SLOT, owner)
    source = await store.update_source("shop", state="failed", error="gone", error_code="x")
    assert (source.state, source.error, source.error_code) == ("failed", "gone", "x")
    slot = await store.slots.alter(
        "s1", owner, options={"a": "b"}, two_phase=True, two_phase_at=Lsn(7)
    )
    assert (slot.two_phase_at, slot.options, slot.two_phase) == (7, {"a": "b"}, True)
    assert await store.slots.get("s1") == slot
    with pytest.raises(TypeError, match="no_such"):
        await store.slots.alter("s1", owner, no_such=1)
    for name in ("slot_name", "confirmed_flush_lsn", "active_pid"):
        with pytest.raises(TypeError, match=name):
            await store.slots.alter("s1", owner, **{name: 1})


async def test_duplicates(store: MetadataStore) -> None:
    owner = await with_source(store)
    await store.slots.create(SLOT, owner)
    with pytest.raises(DuplicateName, match='source "shop" already exists'):
        await store.add_source(SOURCE)
    with pytest.raises(DuplicateName, match='replication slot "s1" already exists'):
        await store.slots.create(SLOT, owner)


async def test_absent_things(store: MetadataStore) -> None:
    owner = await tenure(store)
    call: Coroutine[Any, Any, object]
    for call in (
        store.get_source("x"),
        store.update_source("x", state="failed"),
        store.remove_source("x"),
        store.slots.create(SLOT, owner),
    ):
        with pytest.raises(UnknownSource):
            await call
    for call in (
        store.slots.get("x"),
        store.slots.acquire("x", CONSUMER, owner),
        store.slots.release("x", Lsn(1), owner),
        store.slots.advance("x", Lsn(1), owner, read_from=Lsn(0)),
        store.slots.rewind("x", Lsn(1), owner),
        store.slots.alter("x", owner, options={}),
        store.slots.invalidate("x", "wal_removed", owner),
        store.slots.drop("x", owner),
    ):
        with pytest.raises(UnknownSlot):
            await call
    assert await store.slots.confirm({"x": Lsn(1)}, owner) == {}


async def test_a_source_with_slots_stays(store: MetadataStore) -> None:
    owner = await with_source(store)
    await store.slots.create(SLOT, owner)
    with pytest.raises(Conflict, match="still has slots"):
        await store.remove_source("shop")
    await store.slots.drop("s1", owner)
    await store.remove_source("shop")
    assert await store.list_sources() == []


async def test_confirm_never_goes_backward(store: MetadataStore) -> None:
    owner = await with_source(store)
    await store.slots.create(SLOT, owner)
    assert await store.slots.confirm({"s1": Lsn(100)}, owner) == {"s1": 100}
    assert await store.slots.confirm({"s1": Lsn(50)}, owner) == {"s1": 100}
    # Feedback that races: whatever the order, the furthest stands.
    lsns = (300, 120, 999, 240, 998)
    await asyncio.gather(*(store.slots.confirm({"s1": Lsn(lsn)}, owner) for lsn in lsns))
    assert (await store.slots.get("s1")).confirmed_flush_lsn == 999


async def test_the_largest_lsn(store: MetadataStore) -> None:
    owner = await with_source(store)
    await store.slots.create(SLOT, owner)
    largest = Lsn((1 << 63) - 1)
    assert await store.slots.confirm({"s1": largest}, owner) == {"s1": largest}
    with pytest.raises(InvalidLsn):
        await store.slots.confirm({"s1": Lsn(1 << 63)}, owner)
    with pytest.raises(InvalidLsn):
        await store.slots.rewind("s1", Lsn((1 << 64) - 1), owner)


async def test_lease_changes_hands_only_when_it_may(store: MetadataStore) -> None:
    first = await store.acquire_lease("session/1", "a", 60)
    assert first is not None
    assert await store.acquire_lease("session/1", "b", 60) is None
    assert await store.acquire_lease("session/2", "b", 60) is not None
    assert await store.renew_lease("session/1", first, 60)
    # The same holder after a restart: at once, and its old self is fenced off.
    second = await store.acquire_lease("session/1", "a", 60)
    assert second is not None
    assert second > first
    assert not await store.renew_lease("session/1", first, 60)
    await store.release_lease("session/1", first)  # no longer its own: nothing happens
    assert await store.acquire_lease("session/1", "b", 60) is None
    await store.release_lease("session/1", second)
    assert not await store.renew_lease("session/1", second, 60)
    third = await store.acquire_lease("session/1", "b", 60)
    assert third is not None
    assert third > second


async def test_a_holder_that_lost_its_lease_while_it_ran_waits(store: MetadataStore) -> None:
    """A copy of its data directory may have taken it under the same name."""
    assert await store.lease("r") is None
    token = await store.acquire_lease("r", "a", 60)
    assert token is not None
    stands = await store.lease("r")
    assert stands is not None
    assert stands.holder == "a"
    assert await store.acquire_lease("r", "a", 60, restarted=False) is None
    assert await store.renew_lease("r", token, 60)
    await store.release_lease("r", token)
    assert await store.lease("r") is None
    assert await store.acquire_lease("r", "a", 60, restarted=False) is not None


async def test_lease_runs_out(store: MetadataStore) -> None:
    first = await store.acquire_lease("r", "a", 0.05)
    assert first is not None
    await asyncio.sleep(0.1)
    assert await store.renew_lease("r", first, 0.05), "nobody took it meanwhile"
    await asyncio.sleep(0.1)
    assert await store.acquire_lease("r", "b", 60) is not None
    assert not await store.renew_lease("r", first, 60)


async def test_one_of_many_gets_the_lease(store: MetadataStore) -> None:
    tokens = await asyncio.gather(*(store.acquire_lease("r", f"h{i}", 60) for i in range(8)))
    assert len([token for token in tokens if token is not None]) == 1


async def test_fence_stops_the_former_holder(store: MetadataStore) -> None:
    old = await with_source(store)
    await store.slots.create(SLOT, old)
    await store.slots.create(replace(SLOT, slot_name="s2", temporary=True), old)
    await store.slots.acquire("s1", CONSUMER, old)
    new = await tenure(store, pid=2)
    await store.slots.create(replace(SLOT, slot_name="s3", temporary=True), new)
    assert await store.slots.confirm({"s1": Lsn(10)}, new) == {"s1": 10}
    before = await store.slots.rows(), await store.list_sources()
    for write in (
        store.add_source(replace(SOURCE, name="other"), fence=old.fence),
        store.update_source("shop", fence=old.fence, dsn="host=elsewhere"),
        store.remove_source("shop", fence=old.fence),
        store.slots.create(replace(SLOT, slot_name="s4"), old),
        store.slots.drop("s1", old),
        store.slots.begin_tenure(old),
        store.slots.acquire("s1", CONSUMER, old),
        store.slots.release("s1", Lsn(20), old),
        store.slots.note_presence({"s1": Presence(datetime.now(UTC), CONSUMER)}, old),
        store.slots.confirm({"s1": Lsn(20), "s3": Lsn(20)}, old),
        store.slots.advance("s1", Lsn(20), old, read_from=Lsn(10)),
        store.slots.rewind("s1", Lsn(5), old),
        store.slots.alter("s1", old, options={}),
        store.slots.invalidate("s1", "wal_removed", old),
    ):
        with pytest.raises(LeaseLost):
            await write
    assert (await store.slots.rows(), await store.list_sources()) == before
    # A lease on one source proves nothing of another one's slots.
    other = Owner("other", new.token, new.pid)
    await store.acquire_lease("source/other", "here", 60)
    await store.acquire_lease("source/other", "here", 60)
    await store.slots.begin_tenure(other)
    assert await store.slots.rows() == before[0]
    # Its own temporary slot stays, however often the tenure begins; the former one's goes, whoever
    # made it.
    for _ in range(2):
        await store.slots.begin_tenure(new)
        assert [slot.slot_name for slot in await store.slots.rows()] == ["s1", "s3"]


async def test_one_process_has_a_slot(store: MetadataStore, metadata_url: str) -> None:
    first = await with_source(store)
    await store.slots.create(SLOT, first)
    row = await store.slots.acquire("s1", CONSUMER, first)
    assert (row.active_token, row.active_pid, row.consumer) == (first.token, 1, CONSUMER)
    assert row.inactive_since is not None
    second = first._replace(pid=2)
    beside = MetadataStore(metadata_url)
    shown = await beside.slots.get("s1")
    assert (shown.active_pid, shown.consumer) == (1, CONSUMER)
    # Another process of the same tenure: nothing that needs the slot is done, and all of it says
    # who has it.
    for call in (
        beside.slots.acquire("s1", CONSUMER, second),
        beside.slots.advance("s1", Lsn(20), second, read_from=Lsn(0)),
        beside.slots.rewind("s1", Lsn(5), second),
        beside.slots.alter("s1", second, options={}),
        beside.slots.drop("s1", second),
    ):
        with pytest.raises(SlotActive, match="PID 1") as caught:
            await call
        assert "Wait until that process has released it" in caught.value.hint
    assert await beside.slots.confirm({"s1": Lsn(20)}, second) == {}
    moment = datetime.now(UTC)
    await beside.slots.note_presence({"s1": Presence(moment, {"kind": "forged"})}, second)
    assert await beside.slots.release("s1", Lsn(20), second) == 0
    assert await store.slots.get("s1") == replace(shown, inactive_since=moment)
    # Its own process may; what its consumer says of itself is brought up to date.
    assert await store.slots.confirm({"s1": Lsn(20)}, first) == {"s1": 20}
    await store.slots.note_presence(
        {"s1": Presence(moment, {**CONSUMER, "sent_lsn": "0/2"})}, first
    )
    assert ((await store.slots.get("s1")).consumer or {})["sent_lsn"] == "0/2"
    # What was confirmed last is stored with the release; then the slot is anybody's, as the hint
    # says.
    assert await store.slots.release("s1", Lsn(30), first) == 30
    assert (await beside.slots.get("s1")).consumer is None
    row = await beside.slots.acquire("s1", CONSUMER, second)
    assert (row.active_pid, row.confirmed_flush_lsn) == (2, 30)
    # A tenure that is over has nothing, written off or not: its successor need not wait, and is not
    # told of it.
    third = await tenure(store, pid=1)
    shown = await beside.slots.get("s1")
    assert (shown.active_token, shown.active_pid, shown.consumer) == (None, None, None)
    assert (await store.slots.acquire("s1", CONSUMER, third)).active_token == third.token
    # And a lease that is given back takes its consumers' names along.
    await store.release_lease("source/shop", third.token)
    assert (await beside.slots.get("s1")).consumer is None
    await beside.close()


async def test_what_was_read_before_a_rewind_is_not_confirmed(store: MetadataStore) -> None:
    owner = await with_source(store)
    await store.slots.create(SLOT, owner)
    assert await store.slots.advance("s1", Lsn(10), owner, read_from=Lsn(0)) == 10
    await store.slots.rewind("s1", Lsn(5), owner)
    with pytest.raises(Conflict, match="was rewound to 0/5") as caught:
        await store.slots.advance("s1", Lsn(20), owner, read_from=Lsn(10))
    assert caught.value.hint.endswith("Repeat the call: it begins where the slot stands now.")
    assert await store.slots.advance("s1", Lsn(20), owner, read_from=Lsn(5)) == 20
    # Who read from further back than it stands has read all that lies between.
    assert await store.slots.advance("s1", Lsn(30), owner, read_from=Lsn(5)) == 30
    assert await store.slots.advance("s1", Lsn(25), owner, read_from=Lsn(20)) == 30


async def test_a_lease_that_a_statement_relies_on_stays_until_it_has_committed(
    pg15: ServerDatabase,
) -> None:
    """Whoever takes the lease over reads the slots after every write of the former tenure, or that
    one was refused.
    """
    url = f"postgresql://{SUPERUSER}@127.0.0.1:{pg15.cluster.port}/{pg15.name}"
    store = MetadataStore(url)
    await store.migrate()
    owner = await with_source(store)
    await store.slots.create(SLOT, owner)
    writing, waits = threading.Event(), threading.Event()

    def write(connection: Connection) -> None:
        changed = connection.execute(
            update(SLOTS).where(IS_HELD).values(confirmed_flush_lsn=Lsn(9)), proof(owner.fence)
        )
        assert changed.rowcount == 1
        writing.set()
        assert waits.wait(60)

    database = Database(url)
    former = asyncio.create_task(database.write(write))
    await asyncio.to_thread(writing.wait)
    taking = asyncio.create_task(tenure(store))
    blocked = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = "
        "current_database()"
    )
    while not taking.done() and not pg15.value(blocked):  # noqa: ASYNC110 - the server knows
        await asyncio.sleep(0.01)
    assert not taking.done(), "the lease went while a write relied on it"
    waits.set()
    await former
    await taking
    assert (await store.slots.get("s1")).confirmed_flush_lsn == 9
    await database.close()
    await store.close()


async def test_a_process_that_stands_still_in_a_write_keeps_no_lease(
    pg15: ServerDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is suspended within a transaction, or whose network is gone: its connection
    stays, and would lock the lease for as long. PostgreSQL ends the transaction.
    """
    monkeypatch.setattr("spillway.store.engines.IDLE_S", 1)
    url = f"postgresql://{SUPERUSER}@127.0.0.1:{pg15.cluster.port}/{pg15.name}"
    store = MetadataStore(url)
    await store.migrate()
    owner = await with_source(store)
    await store.slots.create(SLOT, owner)
    writing, goes_on = threading.Event(), threading.Event()

    def write(connection: Connection) -> None:
        changed = connection.execute(
            update(SLOTS).where(IS_HELD).values(confirmed_flush_lsn=Lsn(9)), proof(owner.fence)
        )
        assert changed.rowcount == 1
        writing.set()
        assert goes_on.wait(60)

    database = Database(url)
    former = asyncio.create_task(database.write(write))
    await asyncio.to_thread(writing.wait)
    assert (await tenure(store)).fence.token > owner.fence.token
    goes_on.set()
    with pytest.raises(MetadataError, match="idle-in-transaction timeout"):
        await former
    # It goes on by another connection, and what it had written is not there.
    await database.read(lambda connection: connection.execute(select(SLOTS)).all())
    assert (await store.slots.get("s1")).confirmed_flush_lsn is None
    await database.close()
    await store.close()


async def test_who_waits_for_a_locked_table_of_notes_keeps_nobody_else_waiting(
    pg15: ServerDatabase,
) -> None:
    """A lease is renewed and a position stored while everybody asks for alerts and events, which
    another session has locked; so are they while a write that has proved the lease waits there.
    """
    store = MetadataStore(f"postgresql://{SUPERUSER}@127.0.0.1:{pg15.cluster.port}/{pg15.name}")
    await store.migrate()
    owner = await with_source(store)
    await store.slots.create(SLOT, owner)
    point = MetricPoint("slot", "s1", "shop", 0, 1.0, 1.0, 1.0, 1.0)
    with pg15.connect(autocommit=False) as other:
        other.execute("LOCK TABLE alerts, events, metrics IN ACCESS EXCLUSIVE MODE")
        asking = [
            asyncio.create_task(one)
            for one in (
                store.metrics.add([point], {"shop": owner.fence}),
                *(store.events.last(limit=10) for _ in range(8)),
            )
        ]
        await asyncio.sleep(0.5)
        async with asyncio.timeout(8):
            assert await store.renew_lease(owner.fence.resource, owner.fence.token, 60)
            assert await store.slots.confirm({"s1": Lsn(9)}, owner) == {"s1": Lsn(9)}
        assert not all(one.done() for one in asking)
        with pytest.raises(MetadataError, match="lock timeout") as found:
            await asking[0]
        assert "pg_locks" in (found.value.hint or "")
    # Those that waited for a thread meanwhile are answered.
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert answers[-1] == []
    await store.metrics.add([point], {"shop": owner.fence})
    await store.close()


@pytest.mark.parametrize("seed", [1, 2])
async def test_racing_processes(store: MetadataStore, metadata_url: str, seed: int) -> None:
    """Processes acquire, confirm, advance and release as they come, and the lease changes hands
    among them.

    Each has a metadata store of its own, so that they race in the database. What the database
    answered must fit one order: nothing went backward, and nobody had the slot while another one
    had it.
    """
    first = await with_source(store)
    await store.slots.create(replace(SLOT, confirmed_flush_lsn=Lsn(1)), first)
    stores = [MetadataStore(metadata_url) for _ in range(4)]
    tenures = [first]
    #: who has the slot, as far as those know that have it, in this epoch
    having: set[Owner] = set()
    reached = refused = fenced = 0

    def newest() -> int:
        return max(owner.token for owner in tenures)

    async def look(beside: MetadataStore) -> None:
        nonlocal reached
        before = reached
        stands = (await beside.slots.get("s1")).confirmed_flush_lsn or 0
        assert stands >= before, "what somebody was told is confirmed went backward"
        reached = max(reached, stands)

    async def process(pid: int) -> None:
        nonlocal reached, refused, fenced
        beside, random = stores[pid], Random(100 * seed + pid)
        owner = Owner("shop", first.token, pid)
        for _ in range(40):
            lsn = Lsn(random.randrange(1, 2000))
            step = random.choice(
                ("acquire", "acquire", "confirm", "confirm", "advance", "look", "lease")
            )
            outdated = owner.token < newest()
            try:
                if step == "acquire":
                    await beside.slots.acquire("s1", CONSUMER, owner)
                    others = {o for o in having if o.token == owner.token and o.pid != pid}
                    assert not others, f"{owner} and {others} have it"
                    having.add(owner)
                    await asyncio.sleep(random.random() / 200)
                    having.discard(owner)
                    reached = max(reached, await beside.slots.release("s1", lsn, owner))
                elif step == "confirm":
                    reached = max(
                        reached, *(await beside.slots.confirm({"s1": lsn}, owner)).values(), 0
                    )
                elif step == "advance":
                    stands = await beside.slots.advance("s1", lsn, owner, read_from=Lsn(0))
                    reached = max(reached, stands)
                elif step == "look":
                    await look(beside)
                elif random.random() < 0.3:
                    # A takeover: whoever acts in the former tenure is refused from here on.
                    tenures.append(await tenure(beside, pid))
                    continue
                assert not outdated or step in ("look", "lease"), f"{step} in a tenure that is over"
            except SlotActive:
                refused += 1
            except LeaseLost:
                fenced += 1
                having.discard(owner)
                owner = Owner("shop", newest(), pid)

    await asyncio.gather(*(process(pid) for pid in range(4)))
    await look(store)
    # It was a race.
    assert min(refused, fenced, len(tenures) - 1) > 0
    for beside in stores:
        await beside.close()


async def test_many_may_migrate_at_once(metadata_url: str) -> None:
    stores = [MetadataStore(metadata_url) for _ in range(4)]
    await asyncio.gather(*(store.migrate() for store in stores))
    await stores[0].add_source(SOURCE)
    assert await stores[3].list_sources() == [SOURCE]
    for store in stores:
        await store.close()


async def test_a_migration_on_a_busy_machine(
    metadata_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading its scripts takes longer than another transaction may say nothing."""
    upgrade = command.upgrade

    def slowly(config: Config, revision: str) -> None:
        time.sleep(2)
        upgrade(config, revision)

    monkeypatch.setattr(engines, "IDLE_S", 1)
    monkeypatch.setattr(command, "upgrade", slowly)
    store = MetadataStore(metadata_url)
    await store.migrate()
    assert await store.list_sources() == []
    await store.close()


async def test_migrations_give_the_schema_of_the_tables(
    store: MetadataStore, metadata_url: str
) -> None:
    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, METADATA))

    database = Database(metadata_url)
    assert await database.read(differences) == []
    await database.close()


async def test_slots_of_the_former_release_are_kept(metadata_url: str) -> None:
    """Nobody has them, and their temporary ones go with the first tenure, since nobody knows whose
    they are.
    """
    database = Database(metadata_url)
    await database.prepare()

    def former(connection: Connection) -> None:
        config = migration_config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0004_confirmed_at")
        source = {**asdict(SOURCE), "capture": "{}", "created_at": "2026-11-22 08:00:00"}
        slot = {
            "slot_name": "kept", "source": "shop", "database": "shop", "datoid": 1,
            "plugin": "wal2json", "slot_type": "logical",
            "confirmed_flush_lsn": 77, "options": '{"a": "b"}', "created_at": "2026-11-22 08:00:00",
            "temporary": False,
        }  # fmt: skip
        temporary = {**slot, "slot_name": "temporary", "temporary": True}
        for table, row in (("sources", source), ("slots", slot), ("slots", temporary)):
            names = ", ".join(row)
            places = ", ".join(f":{name}" for name in row)
            connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({places})"), row)

    await database.write(former)
    await database.close()
    store = MetadataStore(metadata_url)
    await store.migrate()
    assert [slot.slot_name for slot in await store.slots.rows()] == ["kept", "temporary"]
    owner = await tenure(store)
    await store.slots.begin_tenure(owner)
    (slot,) = await store.slots.rows()
    assert (slot.slot_name, slot.confirmed_flush_lsn, slot.options) == ("kept", 77, {"a": "b"})
    assert (slot.owner_token, slot.active_token, slot.consumer) == (None, None, None)
    assert (await store.slots.acquire("kept", CONSUMER, owner)).consumer == CONSUMER
    await store.close()


async def test_a_schema_of_a_newer_release_is_refused(metadata_url: str) -> None:
    store = MetadataStore(metadata_url)
    await store.migrate()
    database = Database(metadata_url)
    await database.write(
        lambda c: c.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    )
    await database.close()
    with pytest.raises(MetadataError, match="9999") as caught:
        await store.migrate()
    assert "newer" in caught.value.hint
    await store.close()


async def test_sqlite_file_is_private_and_durable(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = MetadataStore(f"sqlite:///{path}")
    await store.migrate()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, "it holds passwords"
    database = Database(f"sqlite:///{path}")

    def pragma(name: str) -> Callable[[Connection], object]:
        return lambda connection: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()

    pragmas = {
        name: await database.read(pragma(name))
        for name in ("journal_mode", "synchronous", "foreign_keys")
    }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
    await database.close()
    await store.close()


async def test_a_probe_writes_and_signs_of_life_are_kept(store: MetadataStore) -> None:
    for _ in range(2):
        await store.probe("one")
    owner = await with_source(store)
    await store.slots.create(SLOT, owner)
    moment = datetime(2026, 11, 22, 8, 0, tzinfo=UTC)
    sign = Presence(moment, None)
    await store.slots.note_presence({"s1": sign, "gone": sign}, owner)
    before = await store.slots.get("s1")
    assert (before.inactive_since, before.confirmed_at) == (moment, None)
    await store.slots.confirm({"s1": Lsn(1)}, owner)
    first = (await store.slots.get("s1")).confirmed_at
    assert first is not None
    # What moves nothing is no sign of life.
    await store.slots.confirm({"s1": Lsn(1)}, owner)
    assert (await store.slots.get("s1")).confirmed_at == first


async def test_a_full_disk_costs_the_reserve_and_not_the_write(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    made: list[bool] = []
    database = Database(f"sqlite:///{path}", lambda: made.append(True) or room)
    await database.prepare()
    pages = 3

    def write(connection: Connection) -> None:
        # As a disk that has room for so many pages and, once something was given up, for more.
        limit = 1000 if made and room else pages
        connection.exec_driver_sql(f"PRAGMA max_page_count = {limit}")
        connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS t (v)")
        connection.exec_driver_sql("INSERT INTO t VALUES (zeroblob(100000))")

    room = False
    with pytest.raises(MetadataError, match="full"):
        await database.write(write)
    assert made == [True]
    room = True
    await database.write(write)
    count = await database.read(lambda c: c.exec_driver_sql("SELECT count(*) FROM t").scalar_one())
    assert count == 1
    await database.close()


async def test_unreachable_databases(tmp_path: Path, unused_tcp_port: int) -> None:
    (tmp_path / "text").write_text(
        "this is no database at all, but it is long enough to be read" * 9
    )
    for url in (
        f"sqlite:///{tmp_path}/absent/metadata.db",
        f"sqlite:///{tmp_path}/text",
        f"postgresql://nobody:secret@127.0.0.1:{unused_tcp_port}/x",
    ):
        store = MetadataStore(url)
        with pytest.raises(MetadataError) as caught:
            await store.migrate()
        assert caught.value.hint
        assert "secret" not in str(caught.value)
        await store.close()


async def test_a_restarted_postgresql_is_found_again(fresh_cluster) -> None:
    cluster = fresh_cluster(15)
    store = MetadataStore(f"postgresql://{SUPERUSER}@127.0.0.1:{cluster.port}/postgres")
    await store.migrate()
    cluster.stop()
    with pytest.raises(MetadataError):
        await store.list_sources()
    cluster.start()
    assert await store.list_sources() == []
    await store.close()


@pytest.mark.parametrize(
    "url",
    ["", "nonsense", "mysql://h/d", "sqlite://", "sqlite:///:memory:", "postgresql://h/d?x=1"],
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        MetadataStore(url)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ("sqlite:///d/m.db", "sqlite:///d/m.db"),
        ("sqlite+aiosqlite:////a%20b/m.db", "sqlite:////a b/m.db"),
        ("postgres://u@h/d", "postgresql://h/d"),
        ("postgresql://u:secret@h:5433/d?sslmode=require", "postgresql://h:5433/d"),
        ("postgresql+asyncpg://u@h/d?ssl=require", "postgresql://h/d"),
        ("postgresql://h/d?user=u&password=secret&connect_timeout=3", "postgresql://h/d"),
    ],
)
def test_urls_that_are_accepted(given: str, where: str) -> None:
    assert Database(given).where == where


SUBSCRIPTION = SubscriptionRow(
    name="a",
    source="shop",
    database="shop",
    slot="s1",
    tables=["public.t", 'public."é'],
    target=MappingProxyType({"kind": "lake", "path": "/lake", "interval_s": 1.5}),
    options={"numeric_as": "text"},
    skip_lsn=Lsn.parse("16/B374D848"),
)


async def test_subscriptions(store: MetadataStore) -> None:
    await store.add_subscription(SUBSCRIPTION)
    assert await store.list_subscriptions() == [SUBSCRIPTION]
    for name, slot in (("a", "s2"), ("b", "s1")):
        with pytest.raises(DuplicateName, match="already exists"):
            await store.add_subscription(replace(SUBSCRIPTION, name=name, slot=slot))
    changed = await store.update_subscription("a", tables=None, enabled=False, error_code="x")
    assert (changed.tables, changed.enabled, changed.error_code) == (None, False, "x")
    assert await store.list_subscriptions() == [changed]
    with pytest.raises(TypeError, match="slot"):
        await store.update_subscription("a", slot="s2")
    with pytest.raises(UnknownSubscription):
        await store.update_subscription("b", enabled=True)
    for _ in range(2):
        await store.remove_subscription("a")
    assert await store.list_subscriptions() == []


async def test_a_subscription_is_fenced(store: MetadataStore) -> None:
    await store.add_subscription(SUBSCRIPTION)
    old = await store.acquire_lease("source/shop", "here", 60)
    assert old is not None
    await store.update_subscription("a", fence=Fence("source/shop", old), restarts=1)
    new = await store.acquire_lease("source/shop", "here", 60)
    assert new is not None
    with pytest.raises(LeaseLost):
        await store.update_subscription("a", fence=Fence("source/shop", old), restarts=2)
    assert [s.restarts for s in await store.list_subscriptions()] == [1]


def met(position: int, **changed: Any) -> MetConflict:
    document = {"id": f"0/1/{position}/k", "kind": "k", "schema": "public", "table": "t", "x": "é"}
    return MetConflict("log", position, document | changed)


async def test_conflicts_count_once(store: MetadataStore) -> None:
    await store.add_subscription(SUBSCRIPTION)
    await store.add_subscription(replace(SUBSCRIPTION, name="b", slot="s2"))
    conflicts = store.conflicts
    totals = await conflicts.add("a", [met(1), met(2, kind="other"), met(3, table="u")])
    assert totals.counts == {("public.t", "k"): 1, ("public.t", "other"): 1, ("public.u", "k"): 1}
    assert (totals.total, totals.kept, totals.dropped, totals.missed) == (3, 3, 0, 0)
    # A log that is read again from its beginning, with a transaction that was tried again.
    again = met(4, id="0/1/1/k", resolution="apply_remote")
    assert await conflicts.add("a", [met(1), met(2), met(3), again]) == totals
    assert await store.conflicts.totals() == {"a": totals}
    assert [one["id"] for one in await conflicts.last("a", 10)] == [
        "0/1/1/k",
        "0/1/3/k",
        "0/1/2/k",
    ]
    assert (await conflicts.get("a", "0/1/1/k")) == again.document
    assert await conflicts.get("a", "0/9/9/k") is None
    assert [one["table"] for one in await conflicts.last("a", 1, kind="k")] == ["t"]
    assert [one["id"] for one in await conflicts.last("a", 9, table="public.u")] == ["0/1/3/k"]
    # What was overwritten in the log is told.
    assert (await conflicts.add("a", [met(8)])).missed == 3
    # Another log (another machine's directory) begins at 1; one of an earlier release has no
    # numbers, and is read once.
    other = MetConflict("other", 1, {**met(9).document})
    old = MetConflict("", 0, {**met(10).document})
    assert (await conflicts.add("a", [old, other])).total == 6
    assert (await conflicts.add("a", [replace(old, document=met(11).document)])).total == 6
    assert await conflicts.last("b", 9) == []
    await store.remove_subscription("a")
    await store.add_subscription(SUBSCRIPTION)
    assert await conflicts.totals() == {}
    assert await conflicts.last("a", 9) == []


async def test_conflicts_are_bounded(store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflict_store, "KEPT_MAX", 5)
    monkeypatch.setattr(conflict_store, "TABLES_MAX", 2)
    await store.add_subscription(SUBSCRIPTION)
    totals = await store.conflicts.add("a", [met(n, table=f"t{n}") for n in range(1, 9)])
    assert (totals.kept, totals.dropped) == (5, 3)
    assert totals.counts == {("public.t1", "k"): 1, ("public.t2", "k"): 1, ("", "k"): 6}
    assert [one["table"] for one in await store.conflicts.last("a", 9)] == [
        f"t{n}" for n in (8, 7, 6, 5, 4)
    ]
    monkeypatch.setattr(conflict_store, "SIZE_MAX", 1000)
    totals = await store.conflicts.add("a", [met(9, x="x" * 800)])
    assert (totals.kept, totals.dropped) == (2, 7)


async def test_conflicts_are_fenced(store: MetadataStore) -> None:
    await store.add_subscription(SUBSCRIPTION)
    old = await store.acquire_lease("source/shop", "here", 60)
    assert old is not None
    assert await store.acquire_lease("source/shop", "here", 60) is not None
    with pytest.raises(LeaseLost):
        await store.conflicts.add("a", [met(1)], fence=Fence("source/shop", old))
    assert await store.conflicts.totals() == {}


async def test_settings_of_sessions_go_with_their_source(store: MetadataStore) -> None:
    settings = store.session_settings
    await settings.keep(SOURCE.name, "d", {"TimeZone": "UTC"})
    assert await settings.of(SOURCE.name, "d") is None, "there is no such source"
    await store.add_source(SOURCE)
    for value in ({"TimeZone": "UTC"}, {"TimeZone": "Asia/Tokyo"}, {}):
        for _ in range(2):
            await settings.keep(SOURCE.name, "d", value)
            assert await settings.of(SOURCE.name, "d") == value
    assert await settings.of(SOURCE.name, "other") is None
    await store.remove_source(SOURCE.name)
    assert await settings.of(SOURCE.name, "d") is None
