"""When a source is taken over: told from the lease's own times, on a clock that nothing but the
service's waits moves.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import BigInteger, literal

from spillway.delivery.slot_rows import SlotRows
from spillway.errors import MetadataError
from spillway.service import sources as sources_module
from spillway.service.settings import EngineSettings
from spillway.service.sources import Sources
from spillway.sessions.layout import DataDirectory
from spillway.sessions.source import Source
from spillway.store.leases import LOOKS, STANDBY_S, TAKEOVER_S, Leases
from spillway.store.metadata import MetadataStore
from spillway.store.rows import SourceRow
from spillway.subscriber.subscriptions import LOOK_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

TTL_S = EngineSettings().lease_ttl_s
MAIN = SourceRow(
    name="main", dsn="host=db", system_id="1", server_version_num=180000, timeline=1,
    wal_segment_size=1 << 24, slot_name="spillway_main",
)  # fmt: skip


class Service:
    """The task that keeps a source, one wait at a time, and the clock that its waits move."""

    def __init__(self, metadata: MetadataStore, data: DataDirectory) -> None:
        self.metadata, self.data = metadata, data
        self.leases = Leases(metadata, data.instance, TTL_S)
        slots = SlotRows(metadata, self.leases)
        self.workers = ThreadPoolExecutor(2)
        self.sources = Sources(data, metadata, EngineSettings(), self.workers, self.leases, slots)
        self.leases.wait = self._wait  # type: ignore[method-assign]
        self._waits, self._goes_on = asyncio.Event(), asyncio.Event()
        self.pass_by(1_000_000.0)

    def pass_by(self, seconds: float) -> None:
        self.now_s = getattr(self, "now_s", 0.0) + seconds
        self.metadata._database.clock = literal(int(self.now_s * 1000), BigInteger)  # type: ignore[assignment]

    async def _wait(self, source: str, seconds: float) -> None:
        assert source == "main"
        self.next_wait_s = seconds
        self._waits.set()
        await self._goes_on.wait()
        self._goes_on.clear()

    async def stands(self) -> None:
        """Wait until it waits."""
        await asyncio.wait_for(self._waits.wait(), 60)

    async def step(self) -> None:
        """Let its wait pass, and what it does then."""
        self.pass_by(self.next_wait_s)
        self._waits.clear()
        self._goes_on.set()
        await self.stands()

    async def until(self, reached: Callable[[], bool], at_most_s: float = 600) -> None:
        deadline_s = self.now_s + at_most_s
        while not reached():
            assert self.now_s <= deadline_s, "it takes too long"
            await self.step()

    @property
    def serves(self) -> bool:
        return self.leases.fence("main") is not None


@pytest.fixture
async def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    monkeypatch.setattr(Source, "start", lambda *_: None)
    monkeypatch.setattr(sources_module, "take_physical_slot", lambda *_: None)
    metadata = MetadataStore(f"sqlite:///{tmp_path / 'metadata.db'}")
    await metadata.migrate()
    await metadata.add_source(MAIN)
    data = DataDirectory(tmp_path / "data")
    service = Service(metadata, data)
    yield service
    await service.sources.stop()
    service.workers.shutdown()
    await metadata.close()
    data.close()


async def other_takes(service: Service) -> float:
    """Have another process take the lease, and die at once; return when it ends."""
    token = await service.metadata.acquire_lease("source/main", "other", TTL_S)
    assert token is not None
    return service.now_s + TTL_S


def test_who_stands_by_looks_more_often_than_is_promised() -> None:
    # The looks that find it run out, one that fails, and the answers themselves.
    assert (LOOKS + 1) * STANDBY_S < TAKEOVER_S
    # A source that another process makes is known before that one's first lease ends.
    assert TTL_S / 3 < TTL_S - TAKEOVER_S
    assert LOOK_S < TAKEOVER_S


async def test_a_source_is_taken_over_soon_after_the_end_of_its_lease(service: Service) -> None:
    ends_s = await other_takes(service)
    await service.sources.start()
    await service.stands()
    await service.until(lambda: service.serves)
    assert ends_s <= service.now_s <= ends_s + LOOKS * STANDBY_S

    # And back: it is paused for longer than its lease lasts, and then the other one dies.
    service.pass_by(2 * TTL_S)
    ends_s = await other_takes(service)
    await service.step()
    assert not service.serves
    await service.until(lambda: service.serves)
    assert ends_s <= service.now_s <= ends_s + LOOKS * STANDBY_S

    # And back once more: the other one gives it back before its end.
    service.pass_by(2 * TTL_S)
    await other_takes(service)
    await service.step()
    assert not service.serves
    (token,) = [token for token in range(1, 9) if await _renews(service, token)]
    await service.metadata.release_lease("source/main", token)
    given_back_s = service.now_s
    await service.until(lambda: service.serves)
    assert service.now_s <= given_back_s + STANDBY_S


async def _renews(service: Service, token: int) -> bool:
    return await service.metadata.renew_lease("source/main", token, TTL_S)


async def test_a_metadata_store_that_did_not_answer_makes_nobody_wait_longer(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_s = await other_takes(service)
    await service.sources.start()
    await service.stands()
    with monkeypatch.context() as patched:
        for name in ("lease", "acquire_lease", "renew_lease"):
            patched.setattr(service.metadata, name, no_answer)
        await service.until(lambda: service.now_s > ends_s + 100)
        assert not service.serves
    answers_s = service.now_s
    await service.until(lambda: service.serves)
    assert service.now_s <= answers_s + LOOKS * STANDBY_S


async def no_answer(*_: object, **__: object) -> None:
    raise MetadataError("it does not answer")


async def test_who_serves_keeps_a_lease_that_nobody_could_renew(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata store gave no answer for longer than a lease lasts: whoever stands by finds the
    lease run out, and whoever serves renews it.
    """
    await other_takes(service)
    (token,) = [token for token in range(1, 9) if await _renews(service, token)]
    await service.sources.start()
    await service.stands()
    for _ in range(2):
        service.pass_by(2 * TTL_S)
        await service.step()
        assert not service.serves
        await service.step()
        assert not service.serves
        assert await _renews(service, token)
    await service.step()
    assert not service.serves

    # It serves, and asks each second when it had no answer.
    await service.metadata.release_lease("source/main", token)
    await service.until(lambda: service.serves)
    with monkeypatch.context() as patched:
        patched.setattr(service.metadata, "renew_lease", no_answer)
        for _ in range(10):
            await service.step()
            assert service.next_wait_s <= STANDBY_S
    await service.step()
    assert service.serves
    assert service.next_wait_s == TTL_S / 3


async def test_files_are_of_a_source_and_not_of_its_name(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process dropped the source, and made one of its name, while this one stood by or was
    down.
    """
    root = service.data.source("main").root
    segment = root / "wal" / "000000010000000000000001"
    await service.sources.start()
    await service.stands()
    assert service.serves
    segment.parent.mkdir(parents=True)
    segment.write_bytes(b"of the first")
    # The same source, taken again, keeps them; so does one whose files an earlier release made.
    for mark in (True, False):
        service.pass_by(2 * TTL_S)
        await other_takes(service)
        await service.step()
        if not mark:
            (root / "source.json").unlink()
        await service.until(lambda: service.serves)
        assert segment.read_bytes() == b"of the first"

    service.pass_by(2 * TTL_S)
    await other_takes(service)
    await service.step()
    await service.metadata.remove_source("main")
    row = replace(MAIN, created_at=MAIN.created_at + timedelta(seconds=1))
    await service.metadata.add_source(row)
    told: list[str] = []

    async def listener(source: str) -> None:
        # It is told before anything can be written, and knows whose the files are.
        assert not service.serves
        assert not segment.exists()
        told.append(source)

    service.sources.on_taken(listener)
    await service.until(lambda: service.serves)
    assert told == ["main"]
    assert service.sources.get("main").row == row

    # One that another process drops goes with its files.
    segment.parent.mkdir(parents=True, exist_ok=True)
    service.pass_by(2 * TTL_S)
    await other_takes(service)
    await service.step()
    await service.metadata.remove_source("main")
    tasks = tuple(service.sources._tasks.values())
    service._goes_on.set()
    await asyncio.wait(tasks, timeout=60)
    assert service.sources.list() == []
    assert not root.exists()
