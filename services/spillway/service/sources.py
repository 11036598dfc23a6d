"""The sources of the running service: bringing them up, keeping them up, taking them down.

A source runs under a lease in the metadata store (:mod:`spillway.store.leases`), so that two
processes on one metadata database never stream through one physical slot, nor serve one slot. ::

    STANDING BY ── the lease is free ──▶ BRINGING UP ── started ──▶ UP
      ▲   │ looks each second                │ error: tried again    │
      │   └ shows what is stored             ▼                       ▼
      └──────────────── the lease was lost: threads end, streams end with lease_lost

Whoever takes a source over from a process that did not give it back ends that one's stream on the
primary. It has a data directory of its own: what was decoded there is not here. So slots go on from
where this directory's WAL and transaction log, and what the primary still keeps, allow.

Sources that another process makes or drops are noticed by looking, too. Nothing that was known
before a lease was taken counts after it: the rows of the source and of its slots are read again,
and whoever else keeps something of a source in memory (:meth:`Sources.on_taken`) does the same
before anything can be written. Files are of one source, not of a name: those of a source that was
dropped elsewhere, and made again, go.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from spillway.decoding.capture import check_capture
from spillway.errors import (
    Conflict,
    DuplicateName,
    InvalidRequest,
    PhysicalSlotActive,
    SpillwayError,
    UnknownSource,
)
from spillway.pg.conninfo import check_dsn, odd_parameters
from spillway.receiver.checks import check_source
from spillway.receiver.physical_slot import (
    drop_physical_slot,
    ensure_physical_slot_is_free,
    physical_slot_name,
    take_physical_slot,
)
from spillway.receiver.primary import kept_by_primary
from spillway.service.model import Decoding, PrimaryCost
from spillway.sessions.source import NOTHING_NEEDED, Source
from spillway.store.leases import held_by_another
from spillway.store.rows import SourceRow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Mapping
    from concurrent.futures import Executor

    from spillway.delivery.slot_rows import SlotRows
    from spillway.receiver.checks import SourceFacts
    from spillway.service.model import SourceInfo
    from spillway.service.settings import EngineSettings
    from spillway.sessions.layout import DataDirectory
    from spillway.sessions.session import Session
    from spillway.store.leases import Leases
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
        leases: Leases,
        slots: SlotRows,
    ) -> None:
        self._data = data
        self._metadata = metadata
        self._settings = settings
        self._workers = workers
        self._leases = leases
        self._slots = slots
        self._sources: dict[str, Source] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None
        #: those that were started, if only in part, and those of them that are up
        self._begun: set[str] = set()
        self._up: set[str] = set()
        #: those whose lease was not given back by whoever had it before
        self._taken_over: set[str] = set()
        #: those that another process was seen to serve
        self._elsewhere: set[str] = set()
        #: of each database that had slots when the lease was taken, their oldest position
        self._needed: dict[str, Mapping[str, int]] = {}
        self._changing = asyncio.Lock()
        self._listeners: list[Callable[[str], Awaitable[None]]] = []

    def on_taken(self, listener: Callable[[str], Awaitable[None]]) -> None:
        """Have *listener* called with the name of a source whose lease was taken, before it is
        begun; see the interface.
        """
        self._listeners.append(listener)

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bring up every source that the metadata store knows and whose lease is free; stand by for
        the others.
        """
        for row in await self._metadata.list_sources():
            # Who stored it might do so then; that it goes on is worth more than that it is as new
            # ones must be.
            if odd := odd_parameters(row.dsn, self._settings.dsn_files):
                log.warning(
                    'source "%s": its DSN has %s, which a new one may not; see SPILLWAY_DSN_FILES',
                    row.name, ", ".join(odd),
                )  # fmt: skip
            await self._adopt(row)
        self._looking = asyncio.create_task(self._look_around(), name="spillway-sources")

    async def stop(self) -> None:
        """Take every source down."""
        if self._looking is not None:
            await _end(self._looking)
            self._looking = None
        for name in tuple(self._sources):
            await self._take_down(name)
            await self._leases.release(name)

    async def _adopt(self, row: SourceRow) -> None:
        """Take in a source that is stored."""
        self._sources[row.name] = self._new(row)
        try:
            # Before anybody can ask: what may be written is known when the service begins to
            # answer.
            await self._hold(row.name)
        except UnknownSource:
            await self._forget_dropped(row.name, served=False)
            return
        except SpillwayError as error:
            log.warning('source "%s" is not up: %s', row.name, error)
        self._keep(row.name)

    async def _look_around(self) -> None:
        """Notice the sources that other processes make."""
        has_failed = False
        while True:
            await asyncio.sleep(self._leases.renewal_s)
            try:
                async with self._changing:
                    for row in await self._metadata.list_sources():
                        if row.name not in self._sources:
                            await self._adopt(row)
                has_failed = False
            except SpillwayError as error:
                if not has_failed:
                    log.warning("can't look for sources: %s", error)
                has_failed = True
            except Exception:
                log.exception("can't look for sources")

    def _new(self, row: SourceRow) -> Source:
        return Source(row, self._data.source(row.name), self._settings)

    def _keep(self, name: str) -> None:
        self._tasks[name] = asyncio.create_task(self._keep_up(name), name=f"spillway-source-{name}")

    async def _keep_up(self, name: str) -> None:
        """Hold the lease and bring the source up until that works, then only renew; stand by while
        another process has it.
        """
        retry_s: float | None = None
        failure = ""
        while True:
            served = self._leases.fence(name) is not None
            try:
                if await self._hold(name) and name not in self._up:
                    await self._bring_up(name)
                await self._note_upgrade(name)
                retry_s, failure = None, ""
            except UnknownSource:
                await self._forget_dropped(name, served=served)
                return
            except SpillwayError as error:
                # A lease is tried to be renewed each second.
                if str(error) != failure:
                    log.warning('source "%s" is not up: %s', name, error)
                failure = str(error)
                retry_s = _longer(retry_s)
            except Exception:
                # A bug must not end the task that would bring the source up again.
                log.exception('source "%s" is not up', name)
                retry_s = _longer(retry_s)
            await self._leases.wait(name, self._leases.next_look_s(name, retry_s))

    async def _hold(self, name: str) -> bool:
        """Renew the lease, or take it and read what is stored; False while another process has it.

        Raises:
            UnknownSource: the source is no more.
            MetadataError: it is not known who has it.
        """
        if self._leases.fence(name) is not None and await self._leases.renew(name):
            return True
        if name in self._begun:
            log.error('the lease on source "%s" is held by another process', name)
            await self._end_threads(name)
            self._sources[name] = self._new(self._sources[name].row)
        taken = await self._leases.acquire(name)
        if taken is None:
            await self._stand_by(name)
            return False
        try:
            source = self._sources[name] = self._new(await self._metadata.get_source(name))
            self._needed[name] = await self._slots.take(name, taken.fence)
            await self._in_worker(source.own_files)
            await self._tell_taken(name)
        except BaseException:
            await self._leases.release(name, taken.fence)
            raise
        if taken.from_another:
            log.warning('source "%s" is taken over from another process', name)
            self._taken_over.add(name)
        self._leases.begin(name, taken.fence)
        return True

    async def _tell_taken(self, name: str) -> None:
        for listener in self._listeners:
            await listener(name)

    async def _stand_by(self, name: str) -> None:
        """Show what the process has stored that serves the source."""
        self._elsewhere.add(name)
        row = await self._metadata.get_source(name)
        if row != self._sources[name].row:
            self._sources[name] = self._new(row)
        self._sources[name].held_elsewhere(held_by_another(name))
        await self._slots.look(name)

    async def _bring_up(self, name: str) -> None:
        source = self._sources[name]
        self._begun.add(name)
        source.taken_over = name in self._taken_over | self._elsewhere
        if name in self._taken_over:
            self._taken_over.discard(name)
            try:
                await self._in_worker(take_physical_slot, source.row.dsn, source.row.slot_name)
            except SpillwayError as error:
                log.warning('the former stream of source "%s" is not ended: %s', name, error)
        needed = self._needed.get(name, NOTHING_NEEDED)
        starting = asyncio.ensure_future(self._in_worker(source.start, needed, needed))
        # This may take longer than a lease lasts.
        while not (await asyncio.wait({starting}, timeout=self._leases.renewal_s))[0]:
            with contextlib.suppress(SpillwayError):
                await self._leases.renew(name)
        starting.result()
        self._up.add(name)

    async def _note_upgrade(self, name: str) -> None:
        """Store the release that a server was brought to, which decides some of what plugins
        print.
        """
        source = self._sources[name]
        version = source.upgraded_to
        if name not in self._up or version is None:
            return
        with self._leases.fenced(name) as fence:
            row = await self._metadata.update_source(name, fence=fence, server_version_num=version)
        log.info('the server of source "%s" is now of version %d', name, version)
        await self._in_worker(source.note_upgrade, row)

    async def _end_threads(self, name: str) -> None:
        await self._in_worker(self._sources[name].stop)
        self._begun.discard(name)
        self._up.discard(name)

    async def _take_down(self, name: str) -> None:
        """End a source's task and its threads; the lease stays."""
        task = self._tasks.pop(name, None)
        if task is not None:
            await _end(task)
        await self._end_threads(name)

    def _forget(self, name: str) -> None:
        self._slots.forget(name)
        self._sources.pop(name, None)
        self._tasks.pop(name, None)
        self._needed.pop(name, None)

    async def _forget_dropped(self, name: str, *, served: bool) -> None:
        """Forget a source that is stored no more.

        The process that served it has dropped it, and what was received and decoded of it here is
        of no use. Of one that was *served* here it stays: nobody but this process drops that, so
        the metadata are others than they were.
        """
        source = self._sources[name]
        self._forget(name)
        if served:
            log.error('source "%s" is in the metadata store no more; its files stay', name)
            return
        await self._in_worker(source.remove_files)

    # -- changes ------------------------------------------------------------------------------

    async def create(self, name: str, dsn: str, capture: Mapping[str, object]) -> SourceInfo:
        """Check the cluster at *dsn*, remember it, and bring it up with a session for the DSN's
        database.

        Raises:
            InvalidRequest: the name is not usable, or what *capture* says.
            InvalidDsn: *dsn* says what a source's may not.
            DuplicateName: the name is taken.
            LeaseLost: another process has just made it.
            PhysicalSlotActive: another service streams through the physical slot of that name.
            SourceError: the cluster is not fit; all that is missing is listed.
        """
        capture = check_capture(capture)
        async with self._changing:
            facts = await self.check(name, dsn)
            row = SourceRow(
                name=name,
                dsn=dsn,
                system_id=facts.system_id,
                server_version_num=facts.server_version_num,
                timeline=facts.timeline,
                wal_segment_size=facts.wal_segment_size,
                slot_name=physical_slot_name(name),
                capture=capture,
            )
            taken = await self._leases.acquire(name, is_new=True)
            if taken is None:
                raise held_by_another(name)
            try:
                await self._metadata.add_source(row, fence=taken.fence)
                # Of one that had the name, and was dropped by another process.
                await self._tell_taken(name)
            except SpillwayError:
                await self._leases.release(name, taken.fence)
                raise
            self._leases.begin(name, taken.fence)
            source = self._new(row)
            # Files of a source of that name that was dropped while its service was down.
            await self._in_worker(source.remove_files)
            try:
                await self._in_worker(source.own_files)
                await self._in_worker(source.start, {facts.database})
            except SpillwayError:
                await self._in_worker(source.stop)
                await self._in_worker(source.remove_files)
                await self._metadata.remove_source(name, fence=taken.fence)
                await self._leases.release(name)
                raise
            self._sources[name] = source
            self._begun.add(name)
            self._up.add(name)
            self._keep(name)
            return source.info()

    async def alter(self, name: str, dsn: str) -> SourceInfo:
        """Reach the cluster of a source by another DSN, once that one is checked as a new source's.

        It is stored first: a process that ends in between begins with it.

        Raises:
            UnknownSource: there is none of that name.
            LeaseLost: another process serves it.
            InvalidDsn: the DSN says what a source's may not.
            SystemIdMismatch: it leads to another cluster.
            WalDiverged: it leads to a copy of the cluster, which has other WAL than what was
                received.
            SourceError: the cluster is not fit; all that is missing is listed.
        """
        async with self._changing:
            source = self.get(name)
            self._leases.held(name)
            row = source.row
            check_dsn(dsn, self._settings.dsn_files)
            await self._in_worker(
                check_source, dsn, expected_system_id=row.system_id, slot_name=row.slot_name
            )
            await self._in_worker(source.check_continues, dsn)
            with self._leases.fenced(name) as fence:
                changed = await self._metadata.update_source(name, fence=fence, dsn=dsn)
            await self._in_worker(source.reconnect, changed)
            return source.info()

    async def restart(self, name: str, database: str, needed: Mapping[str, int]) -> SourceInfo:
        """Give the decoding of a database a way on; *needed* has the oldest position of a slot, by
        database.

        Raises:
            UnknownSource: there is none of that name.
            LeaseLost: another process serves it.
            SpillwayError: as :meth:`Source.restart`.
        """
        async with self._changing:
            source = self.get(name)
            # It throws decoded files away, and does so before anything else could fail for want of
            # the lease.
            self._leases.held(name)
            await self._in_worker(source.restart, database, needed)
            return source.info()

    async def check(self, name: str, dsn: str) -> SourceFacts:
        """Check the cluster at *dsn* and whether a source of that *name* can be made of it; make
        nothing.

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
        check_dsn(dsn, self._settings.dsn_files)
        slot_name = physical_slot_name(name)
        facts = await self._in_worker(check_source, dsn, slot_name=slot_name)
        for other in self._sources.values():
            if other.row.system_id == facts.system_id:
                raise Conflict(
                    f'cluster {facts.system_id} is already source "{other.name}"',
                    hint="One source serves every database of a cluster: create slots on that one.",
                    source=other.name,
                )
        # The slot's name is made of the source's: another service's source of that name has the
        # same slot.
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

    async def drop(self, name: str, *, keep_slot: bool = False) -> None:
        """Take a source down and remove its physical slot, its row and its files.

        The slot goes first: while it exists the primary keeps WAL for it. A primary that is gone
        for good has none to keep; with *keep_slot* it is not asked.

        Raises:
            SourceError: the primary can't be reached to drop the slot, or refuses; the source
                stays.
            LeaseLost: another process serves it.
        """
        async with self._changing:
            source = self.get(name)
            # The physical slot has no fence: know for sure whose it is.
            self._leases.held(name)
            if not await self._leases.renew(name):
                raise held_by_another(name)
            await self._take_down(name)
            try:
                if not keep_slot:
                    await self._in_worker(drop_physical_slot, source.row.dsn, source.row.slot_name)
            except SpillwayError as error:
                if not isinstance(error, PhysicalSlotActive):
                    error.hint = f"{error.hint} {_or_keep_slot(name, source.row.slot_name)}".strip()
                self._sources[name] = self._new(source.row)
                self._keep(name)
                raise
            with self._leases.fenced(name) as fence:
                await self._metadata.remove_source(name, fence=fence)
            await self._leases.release(name)
            self._forget(name)
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
        self._leases.held(name)
        session = source.session_of(database)
        if session is None:
            session = await self._in_worker(source.open_session, database)
        return session

    async def end_session_of_dropped(self, name: str, database: str) -> None:
        """End the session of a database that was dropped, if it is one and no slot needs it any
        more.
        """
        session = self.find_session(name, database)
        if session is not None and session.database_is_gone:
            await self._in_worker(self.get(name).end_session_of_dropped, database)

    async def check_name(self, name: str, database: str, needed: Container[str]) -> None:
        """Insist that the source means by *database* what is decoded by that name.

        Raises:
            DatabaseRenamed: it does not, and slots of it, by a name that is in *needed*, are there.
            SourceError: it can't be asked.
        """
        await self._in_worker(self.get(name).check_name, database, needed)

    def find_session(self, name: str, database: str) -> Session | None:
        """Return the session of *database* if it is up."""
        source = self._sources.get(name)
        return source.session_of(database) if source is not None else None

    def decoding_without_session(self, name: str, database: str) -> Decoding:
        """Describe the decoding of a database that has no session: it was dropped, or its source is
        not up; with why, if that is known.
        """
        source = self.get(name)
        gone = source.gone(database)
        if gone is not None:
            return Decoding("stopped", None, None, gone.message, gone.code, gone.hint)
        info = source.info()
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

    @property
    def decoded(self) -> int:
        """A number that is another one when anything was decoded."""
        return sum(source.decoded for source in self.all())

    def trim(self, horizons: Mapping[tuple[str, str], int]) -> None:
        """Drop what nobody needs; blocks."""
        for name, source in tuple(self._sources.items()):
            source.trim({db: lsn for (owner, db), lsn in horizons.items() if owner == name})

    async def _in_worker(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._workers, lambda: function(*args, **kwargs))


def _or_keep_slot(name: str, slot_name: str) -> str:
    return (
        f"If the server is gone for good, DELETE /v1/sources/{name}?keep_slot=true drops the "
        "source without asking it. Should it come back, it keeps WAL until the slot is dropped "
        f"there: SELECT pg_drop_replication_slot('{slot_name}');"
    )


def _longer(retry_s: float | None) -> float:
    return _RETRY_FIRST_S if retry_s is None else min(retry_s * 2, _RETRY_MAX_S)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
