"""The half of the engine that only tells: nothing here makes, moves or drops anything (a session is ended, at most).

:class:`spillway.engine.engine.Engine` is made of this and of what changes things; the two share the sources and slots that
live, and the threads on which what blocks is run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from spillway.engine import inventory
from spillway.engine.inventory import TABLES_MAX
from spillway.engine.model import PluginInfo
from spillway.engine.preview import read_preview
from spillway.engine.readiness import obstacles_of, warnings_of
from spillway.plugins.registry import is_built_in, plugin_names
from spillway.receiver.primary import with_database
from spillway.receiver.table_privileges import check_readable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from spillway.engine.model import (
        Consumer,
        Obstacle,
        Preview,
        PrimaryCost,
        PublicationInfo,
        SlotStats,
        SourceInfo,
        TablePage,
    )
    from spillway.engine.readiness import MetadataWatch
    from spillway.engine.session import Session
    from spillway.engine.slots import Slot
    from spillway.engine.sources import Sources
    from spillway.pg.lsn import Lsn
    from spillway.receiver.checks import SourceFacts
    from spillway.storage.disk_reserve import DiskReserve
    from spillway.tls import ServerCertificate

P = ParamSpec("P")
T = TypeVar("T")


class Looking(ABC):
    """What is there, and how it stands; see :class:`spillway.engine.interface.EngineInterface`."""

    _sources: Sources
    _watch: MetadataWatch
    _reserve: DiskReserve
    _certificate: ServerCertificate | None
    _upkeep: asyncio.Task[None] | None

    @abstractmethod
    def _slot(self, slot_name: str) -> Slot: ...

    @abstractmethod
    async def _session(self, slot: Slot) -> Session: ...

    @abstractmethod
    async def _in_worker(
        self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    def obstacles(self) -> list[Obstacle]:
        """Give what keeps the service from its work."""
        sources = self._sources.all()
        return list(obstacles_of(sources, self._watch, self._reserve, self._certificate))

    def warnings(self) -> list[Obstacle]:
        """Give what will keep the service from its work if nobody does anything."""
        return list(warnings_of(self._certificate))

    def alive(self) -> bool:
        """Say whether every task and thread runs that should."""
        upkeep = self._upkeep is not None and not self._upkeep.done()
        return upkeep and self._watch.alive() and self._sources.alive()

    async def end_session(self, slot_name: str) -> Consumer:
        """End the session of the slot's consumer; see the interface."""
        return await self._slot(slot_name).end_session()

    async def list_sources(self) -> list[SourceInfo]:
        return self._sources.list()

    async def get_source(self, name: str) -> SourceInfo:
        return self._sources.get(name).info()

    async def check_source(self, name: str, dsn: str) -> SourceFacts:
        """Check what create_source would, and make nothing."""
        return await self._sources.check(name, dsn)

    async def primary_cost(self, name: str) -> PrimaryCost:
        """Ask the primary what it keeps for the source."""
        return await self._sources.primary_cost(name)

    async def check_readable(
        self, source: str, database: str, tables: Sequence[str] | None
    ) -> None:
        """Ask the source whether its role may read *tables*."""
        dsn = with_database(self._sources.get(source).row.dsn, database)
        await self._in_worker(check_readable, dsn, tables)

    async def list_plugins(self) -> list[PluginInfo]:
        """List the output plugins that slots may have."""
        return [PluginInfo(name, is_built_in(name)) for name in plugin_names()]

    async def list_tables(
        self, source: str, database: str, after: int = 0, limit: int = TABLES_MAX
    ) -> TablePage:
        return await inventory.list_tables(self._sources, source, database, after, limit)

    async def list_publications(self, source: str, database: str) -> list[PublicationInfo]:
        return await inventory.list_publications(self._sources, source, database)

    async def lag_seconds(self, slot_name: str) -> float | None:
        """Return how long ago the first transaction was committed that is not confirmed."""
        slot = self._slot(slot_name)
        session = self._sources.find_session(slot.row.source, slot.row.database)
        if session is None:
            return None
        current = self._sources.get(slot.row.source).is_current(slot.row.database)
        return await self._in_worker(slot.lag_seconds, session.log, current=current)

    async def slot_stats(self, slot_name: str) -> SlotStats:
        slot = self._slot(slot_name)
        session = self._sources.find_session(slot.row.source, slot.row.database)
        spilled = session.spill_stats() if session else (0, 0, 0)
        return slot.stats(*spilled)

    async def preview(
        self, slot_name: str, start_lsn: Lsn | None, limit: int, skip: int = 0
    ) -> Preview:
        """Show changes as JSON, beside the consumer."""
        slot = self._slot(slot_name)
        slot.check_valid()
        start = slot.confirmed_flush_lsn if start_lsn is None else start_lsn
        session = await self._session(slot)
        return await self._in_worker(read_preview, session, slot_name, start, limit, skip)
