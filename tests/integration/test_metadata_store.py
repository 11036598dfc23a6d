"""The metadata store on both of its databases."""

from __future__ import annotations

import asyncio
import stat
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from spillway.demo.private_postgres import SUPERUSER
from spillway.errors import (
    Conflict,
    DuplicateName,
    InvalidLsn,
    InvalidRequest,
    LeaseLost,
    MetadataError,
    UnknownSlot,
    UnknownSource,
    UnknownSubscription,
)
from spillway.pg.lsn import Lsn
from spillway.store.database import Database
from spillway.store.metadata import MetadataStore
from spillway.store.rows import Fence, SlotRow, SourceRow, SubscriptionRow
from spillway.store.schema import METADATA

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sqlalchemy.engine import Connection

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


@pytest.fixture
async def store(metadata_url: str) -> AsyncIterator[MetadataStore]:
    store = MetadataStore(metadata_url)
    await store.migrate()
    yield store
    await store.close()


async def test_rows_come_back_as_they_went_in(store: MetadataStore) -> None:
    await store.add_source(SOURCE)
    await store.add_slot(SLOT)
    assert await store.get_source("shop") == SOURCE
    assert await store.list_sources() == [SOURCE]
    assert await store.get_slot("s1") == SLOT
    assert await store.list_slots() == [SLOT]
    assert await store.list_slots(source="shop") == [SLOT]
    assert await store.list_slots(source="other") == []
    assert isinstance((await store.get_slot("s1")).restart_lsn, Lsn)


async def test_rows_outlive_the_store(store: MetadataStore, metadata_url: str) -> None:
    await store.add_source(SOURCE)
    again = MetadataStore(metadata_url)
    await again.migrate()
    assert await again.list_sources() == [SOURCE]
    await again.close()


async def test_update(store: MetadataStore) -> None:
    await store.add_source(SOURCE)
    await store.add_slot(SLOT)
    source = await store.update_source("shop", state="failed", error="gone", error_code="x")
    assert (source.state, source.error, source.error_code) == ("failed", "gone", "x")
    slot = await store.update_slot(
        "s1", confirmed_flush_lsn=Lsn(7), options={"a": "b"}, synced=True
    )
    assert (slot.confirmed_flush_lsn, slot.options, slot.synced) == (7, {"a": "b"}, True)
    assert await store.get_slot("s1") == slot
    with pytest.raises(TypeError, match="no_such"):
        await store.update_slot("s1", no_such=1)
    with pytest.raises(TypeError, match="slot_name"):
        await store.update_slot("s1", slot_name="s2")


async def test_duplicates(store: MetadataStore) -> None:
    await store.add_source(SOURCE)
    await store.add_slot(SLOT)
    with pytest.raises(DuplicateName, match='source "shop" already exists'):
        await store.add_source(SOURCE)
    with pytest.raises(DuplicateName, match='replication slot "s1" already exists'):
        await store.add_slot(SLOT)


async def test_absent_things(store: MetadataStore) -> None:
    for call in (
        store.get_source("x"),
        store.update_source("x", state="failed"),
        store.remove_source("x"),
        store.add_slot(SLOT),
    ):
        with pytest.raises(UnknownSource):
            await call
    for call in (
        store.get_slot("x"),
        store.update_slot("x", synced=True),
        store.confirm_slot("x", Lsn(1)),
        store.remove_slot("x"),
    ):
        with pytest.raises(UnknownSlot):
            await call


async def test_a_source_with_slots_stays(store: MetadataStore) -> None:
    await store.add_source(SOURCE)
    await store.add_slot(SLOT)
    with pytest.raises(Conflict, match="still has slots"):
        await store.remove_source("shop")
    await store.remove_slot("s1")
    await store.remove_source("shop")
    assert await store.list_sources() == []


async def test_confirm_never_goes_backward(store: MetadataStore) -> None:
    await store.add_source(SOURCE)
    await store.add_slot(SLOT)
    assert await store.confirm_slot("s1", Lsn(100)) == 100
    assert await store.confirm_slot("s1", Lsn(50)) == 100
    # Feedback that races: whatever the order, the furthest stands.
    await asyncio.gather(*(store.confirm_slot("s1", Lsn(lsn)) for lsn in (300, 120, 999, 240, 998)))
    assert (await store.get_slot("s1")).confirmed_flush_lsn == 999


async def test_the_largest_lsn(store: MetadataStore) -> None:
    await store.add_source(SOURCE)
    await store.add_slot(SLOT)
    assert await store.confirm_slot("s1", Lsn((1 << 63) - 1)) == (1 << 63) - 1
    with pytest.raises(InvalidLsn):
        await store.confirm_slot("s1", Lsn(1 << 63))
    with pytest.raises(InvalidLsn):
        await store.update_slot("s1", restart_lsn=Lsn((1 << 64) - 1))


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
    assert await store.lease_holder("r") is None
    token = await store.acquire_lease("r", "a", 60)
    assert token is not None
    assert await store.lease_holder("r") == "a"
    assert await store.acquire_lease("r", "a", 60, restarted=False) is None
    assert await store.renew_lease("r", token, 60)
    await store.release_lease("r", token)
    assert await store.lease_holder("r") is None
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
    await store.add_source(SOURCE)
    await store.add_slot(SLOT)
    old = await store.acquire_lease("slot/s1", "a", 0)
    new = await store.acquire_lease("slot/s1", "b", 60)
    assert old is not None
    assert new is not None
    assert await store.confirm_slot("s1", Lsn(10), fence=Fence("slot/s1", new)) == 10
    with pytest.raises(LeaseLost):
        await store.confirm_slot("s1", Lsn(20), fence=Fence("slot/s1", old))
    with pytest.raises(LeaseLost):
        await store.update_slot("s1", fence=Fence("slot/s1", old), synced=True)
    slot = await store.get_slot("s1")
    assert (slot.confirmed_flush_lsn, slot.synced) == (10, False)
    temporary = replace(SLOT, slot_name="s2", temporary=True)
    await store.add_slot(temporary, fence=Fence("slot/s1", new))
    before = await store.list_slots(), await store.list_sources()
    fence = Fence("slot/s1", old)
    for write in (
        store.add_source(replace(SOURCE, name="other"), fence=fence),
        store.update_source("shop", fence=fence, dsn="host=elsewhere"),
        store.remove_source("shop", fence=fence),
        store.add_slot(replace(SLOT, slot_name="s3"), fence=fence),
        store.remove_slot("s1", fence=fence),
        store.remove_temporary_slots("shop", fence=fence),
    ):
        with pytest.raises(LeaseLost):
            await write
    assert (await store.list_slots(), await store.list_sources()) == before
    await store.remove_temporary_slots("other", fence=Fence("slot/s1", new))
    assert await store.list_slots() == before[0]
    await store.remove_temporary_slots("shop", fence=Fence("slot/s1", new))
    assert [slot.slot_name for slot in await store.list_slots()] == ["s1"]


async def test_many_may_migrate_at_once(metadata_url: str) -> None:
    stores = [MetadataStore(metadata_url) for _ in range(4)]
    await asyncio.gather(*(store.migrate() for store in stores))
    await stores[0].add_source(SOURCE)
    assert await stores[3].list_sources() == [SOURCE]
    for store in stores:
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
    pragmas = {
        name: await database.read(
            lambda c, name=name: c.exec_driver_sql(f"PRAGMA {name}").scalar_one()
        )
        for name in ("journal_mode", "synchronous", "foreign_keys")
    }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
    await database.close()
    await store.close()


async def test_a_probe_writes_and_signs_of_life_are_kept(store: MetadataStore) -> None:
    for _ in range(2):
        await store.probe("one")
    await store.add_source(SOURCE)
    await store.add_slot(SLOT)
    moment = datetime(2026, 11, 22, 8, 0, tzinfo=UTC)
    await store.note_inactive_since({"s1": moment, "gone": moment})
    before = await store.get_slot("s1")
    assert (before.inactive_since, before.confirmed_at) == (moment, None)
    await store.confirm_slot("s1", Lsn(1))
    first = (await store.get_slot("s1")).confirmed_at
    assert first is not None
    # What moves nothing is no sign of life.
    await store.confirm_slot("s1", Lsn(1))
    assert (await store.get_slot("s1")).confirmed_at == first


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
