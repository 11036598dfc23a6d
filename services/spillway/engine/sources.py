"""The sources of the running service: bringing them up, keeping them up, taking them down.

A source runs under a lease in the metadata store, so that two processes on one metadata database never
stream through one physical slot. The holder is the data directory (``DataDirectory.instance``): the same
process started again takes its lease back at once, another one waits until it runs out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from spillway.decoding.capture import check_capture
from spillway.engine.model import Decoding, PrimaryCost
from spillway.engine.source import Source
from spillway.errors import (
    Conflict,
    DuplicateName,
    InvalidRequest,
    LeaseLost,
    SpillwayError,
    UnknownSource,
)
from spillway.receiver.checks import check_source
from spillway.receiver.physical_slot import (
    drop_physical_slot,
    ensure_physical_slot_is_free,
    physical_slot_name,
)
from spillway.receiver.primary import kept_by_primary
from spillway.store.rows import Fence, SourceRow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Executor

    from spillway.engine.layout import DataDirectory
    from spillway.engine.model import SourceInfo
    from spillway.engine.session import Session
    from spillway.engine.settings import EngineSettings
    from spillway.receiver.checks import SourceFacts
    from spillway.store.metadata import MetadataStore

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

_NAME: Final = re.compile(r"[a-z0-9_]{1,50}")
_RETRY_FIRST_S: Final = 1.0
_RETRY_MAX_S: Final = 30.0


class Sources:
    """Every source by name. Used on the event loop."""

    def __init__(
        self,
        data: DataDirectory,
        metadata: MetadataStore,
        settings: EngineSettings,
        workers: Executor,
    ) -> None:
        self._data = data
        self._metadata = metadata
        self._settings = settings
        self._workers = workers
        self._sources: dict[str, Source] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._tokens: dict[str, int] = {}
        self._changing = asyncio.Lock()

    # -- life ---------------------------------------------------------------------------------

    async def start(self, databases: Mapping[str, set[str]]) -> None:
        """Bring up every source that the metadata store knows; *databases* are those that have slots."""
        for row in await self._metadata.list_sources():
            source = Source(row, self._data.source(row.name), self._settings)
            self._sources[row.name] = source
            self._keep(source, databases.get(row.name, set()))

    async def stop(self) -> None:
        """Take every source down."""
        for name in tuple(self._sources):
            await self._take_down(name)

    def _keep(self, source: Source, databases: set[str]) -> None:
        task = asyncio.create_task(
            self._keep_up(source, databases), name=f"spillway-source-{source.name}"
        )
        self._tasks[source.name] = task

    async def _keep_up(self, source: Source, databases: set[str]) -> None:
        """Hold the lease, and bring the source up until that works; then only renew."""
        retry_s, up = _RETRY_FIRST_S, False
        ttl_s = self._settings.lease_ttl_s
        while True:
            try:
                if await self._hold_lease(source.name):
                    if not up:
                        await self._in_worker(source.start, databases)
                        up, retry_s = True, _RETRY_FIRST_S
                else:
                    # Somebody else streams through our physical slot: stop at once, and for good.
                    log.error('the lease on source "%s" is held by another process', source.name)
                    self._tokens.pop(source.name, None)
                    source.held_elsewhere(_held_elsewhere(source.name))
                    if up:
                        await self._in_worker(source.stop)
                        return
            except SpillwayError as error:
                log.warning('source "%s" is not up: %s', source.name, error)
                retry_s = min(retry_s * 2, _RETRY_MAX_S)
            except Exception:
                # A bug must not end the task that would bring the source up again.
                log.exception('source "%s" is not up', source.name)
                retry_s = min(retry_s * 2, _RETRY_MAX_S)
            await asyncio.sleep(ttl_s / 3 if up else min(retry_s, ttl_s / 3))

    async def _hold_lease(self, name: str) -> bool:
        resource, ttl_s = _resource(name), self._settings.lease_ttl_s
        token = self._tokens.get(name)
        if token is not None:
            return await self._metadata.renew_lease(resource, token, ttl_s)
        token = await self._metadata.acquire_lease(resource, self._data.instance, ttl_s)
        if token is None:
            return False
        self._tokens[name] = token
        return True

    async def _take_down(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._in_worker(self._sources[name].stop)
        token = self._tokens.pop(name, None)
        if token is not None:
            with contextlib.suppress(SpillwayError):
                await self._metadata.release_lease(_resource(name), token)

    # -- changes ------------------------------------------------------------------------------

    async def create(self, name: str, dsn: str, capture: Mapping[str, object]) -> SourceInfo:
        """Check the cluster at *dsn*, remember it, and bring it up with a session for the DSN's database.

        Raises:
            InvalidRequest: the name is not usable, or what *capture* says.
            DuplicateName: the name is taken.
            PhysicalSlotActive: another service streams through the physical slot of that name.
            SourceError: the cluster is not fit; all that is missing is listed.
        """
        capture = check_capture(capture)
        async with self._changing:
            facts = await self.check(name, dsn)
            slot_name = physical_slot_name(name)
            row = await self._metadata.add_source(
                SourceRow(
                    name=name,
                    dsn=dsn,
                    system_id=facts.system_id,
                    server_version_num=facts.server_version_num,
                    timeline=facts.timeline,
                    wal_segment_size=facts.wal_segment_size,
                    slot_name=slot_name,
                    capture=capture,
                )
            )
            source = Source(row, self._data.source(name), self._settings)
            # Files of a source of that name that was dropped while its service was down.
            await self._in_worker(source.remove_files)
            try:
                await self._hold_lease(name)
                await self._in_worker(source.start, {facts.database})
            except SpillwayError:
                await self._in_worker(source.stop)
                await self._in_worker(source.remove_files)
                await self._metadata.remove_source(name)
                self._tokens.pop(name, None)
                raise
            self._sources[name] = source
            self._keep(source, {facts.database})
            return source.info()

    async def alter(self, name: str, dsn: str) -> SourceInfo:
        """Reach the cluster of a source by another DSN, once that one is checked as a new source's.

        It is stored first: a process that ends in between begins with it.

        Raises:
            UnknownSource: there is none of that name.
            SystemIdMismatch: it leads to another cluster.
            SourceError: the cluster is not fit; all that is missing is listed.
        """
        async with self._changing:
            source = self.get(name)
            row = source.row
            await self._in_worker(
                check_source, dsn, expected_system_id=row.system_id, slot_name=row.slot_name
            )
            changed = await self._metadata.update_source(name, dsn=dsn)
            await self._in_worker(source.reconnect, changed)
            return source.info()

    async def check(self, name: str, dsn: str) -> SourceFacts:
        """Check the cluster at *dsn* and whether a source of that *name* can be made of it; make nothing.

        Raises:
            As :meth:`create`.
        """
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"invalid source name {name!r}",
                hint="1 to 50 of: lower case letters, numbers, and the underscore.",
            )
        if name in self._sources:
            raise DuplicateName(
                f'source "{name}" already exists', hint="Choose another name.", source=name
            )
        slot_name = physical_slot_name(name)
        facts = await self._in_worker(check_source, dsn, slot_name=slot_name)
        for other in self._sources.values():
            if other.row.system_id == facts.system_id:
                raise Conflict(
                    f'cluster {facts.system_id} is already source "{other.name}"',
                    hint="One source serves every database of a cluster: create slots on that one.",
                    source=other.name,
                )
        # The slot's name is made of the source's: another service's source of that name has the same slot.
        await self._in_worker(ensure_physical_slot_is_free, dsn, slot_name)
        return facts

    async def primary_cost(self, name: str) -> PrimaryCost:
        """Ask the primary of *name* what it keeps for the source.

        Raises:
            SourceError: it can't be asked.
        """
        row = self.get(name).row
        kept = await self._in_worker(kept_by_primary, row.dsn, row.slot_name)
        return PrimaryCost(**kept._asdict())

    async def drop(self, name: str) -> None:
        """Take a source down and remove its physical slot, its row and its files.

        The slot goes first: while it exists the primary keeps WAL for it.

        Raises:
            SourceError: the primary can't be reached to drop the slot; the source stays.
        """
        async with self._changing:
            source = self.get(name)
            await self._take_down(name)
            try:
                await self._in_worker(drop_physical_slot, source.row.dsn, source.row.slot_name)
            except SpillwayError:
                again = Source(source.row, self._data.source(name), self._settings)
                self._sources[name] = again
                self._keep(again, set())
                raise
            await self._metadata.remove_source(name)
            del self._sources[name]
            await self._in_worker(source.remove_files)

    # -- looking ------------------------------------------------------------------------------

    def get(self, name: str) -> Source:
        """Return the source *name*.

        Raises:
            UnknownSource: there is none.
        """
        try:
            return self._sources[name]
        except KeyError:
            raise UnknownSource(
                f'source "{name}" does not exist',
                hint="GET /v1/sources lists what exists; POST /v1/sources makes one.",
                source=name,
            ) from None

    def list(self) -> list[SourceInfo]:
        """Describe every source, by name."""
        return [source.info() for _, source in sorted(self._sources.items())]

    async def session(self, name: str, database: str) -> Session:
        """Return the session of *database*, begun now if there was none."""
        source = self.get(name)
        session = source.session_of(database)
        if session is None:
            session = await self._in_worker(source.open_session, database)
        return session

    def fence(self, name: str) -> Fence | None:
        """Return the proof that the lease on a source is this process's; None when it is not."""
        token = self._tokens.get(name)
        return None if token is None else Fence(_resource(name), token)

    async def end_session_of_dropped(self, name: str, database: str) -> None:
        """End the session of a database that was dropped, if it is one and no slot needs it any more."""
        session = self.find_session(name, database)
        if session is not None and session.database_is_gone:
            await self._in_worker(self.get(name).end_session_of_dropped, database)

    def find_session(self, name: str, database: str) -> Session | None:
        """Return the session of *database* if it is up."""
        source = self._sources.get(name)
        return source.session_of(database) if source is not None else None

    def unknown_decoding(self, name: str) -> Decoding:
        """Describe the decoding of a database whose source is not up: with why, if that is known."""
        info = self.get(name).info()
        return Decoding("unknown", None, info.since, info.error, info.error_code, info.hint)

    def alive(self) -> bool:
        """Whether every source's threads are alive."""
        return all(source.alive() for source in self._sources.values())

    def all(self) -> tuple[Source, ...]:
        """Give every source."""
        return tuple(self._sources.values())

    def are_settled(self) -> bool:
        """Whether every source has decoded what was stored when it was brought up, or can't."""
        return all(source.is_settled for source in self._sources.values())

    def trim(self, horizons: Mapping[tuple[str, str], int]) -> None:
        """Drop what nobody needs; blocks."""
        for name, source in tuple(self._sources.items()):
            source.trim({db: lsn for (owner, db), lsn in horizons.items() if owner == name})

    async def _in_worker(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._workers, lambda: function(*args, **kwargs))


def _held_elsewhere(name: str) -> LeaseLost:
    return LeaseLost(
        f'the lease on source "{name}" is held by another process',
        hint="Another service on the same metadata serves it; ask that one, or stop it.",
        source=name,
    )


def _resource(name: str) -> str:
    return f"source/{name}"
