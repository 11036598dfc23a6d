"""The running service below every interface: sources, their decoding sessions, and slots.

Everything here runs on one event loop. What blocks (SQL on a source, reading and encoding
transactions) runs on worker threads; decoding runs on threads of its own (``source.py``,
``session.py``). The metadata store says what exists; this object holds what lives.

Start: migrate the metadata, then bring up every source under its lease. A source that can't be
brought up does not stop the others: it is shown as failed, with its error, and tried again.

Upkeep, each :data:`UPKEEP_INTERVAL_S`: write confirmed positions, invalidate slots that hold more
than they may, drop what nobody needs from transaction logs and WAL stores, give freed memory back
to the system.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from spillway.collector import collector
from spillway.delivery.answers import Answers
from spillway.delivery.change_search import ChangeSearch, SearchCancelled
from spillway.delivery.large_batches import LargeBatches
from spillway.delivery.preview import read_preview
from spillway.delivery.reader import SlotReader, changes_of
from spillway.delivery.shared_readers import SharedReaders
from spillway.delivery.shared_steps import share_steps
from spillway.delivery.slot_rows import SlotRows
from spillway.delivery.slots import check_slot_name, oldest_positions
from spillway.delivery.stream import EngineStream
from spillway.errors import (
    AdvanceBackward,
    Conflict,
    DatabaseRenamed,
    DuplicateName,
    InvalidRequest,
    LeaseLost,
    MetadataError,
    NotFound,
    ResultTooLarge,
    SourceError,
    SpillwayError,
    UnknownSlot,
)
from spillway.failpoints import failpoint
from spillway.memory import freed_memory
from spillway.pg.lsn import Lsn
from spillway.plugins.interface import PluginContext
from spillway.plugins.registry import (
    create_plugin,
    is_built_in,
    plugin_names,
    validate_options,
    wants_streaming,
)
from spillway.receiver.primary import with_database
from spillway.receiver.table_privileges import check_readable
from spillway.receiver.table_sizes import table_sizes
from spillway.service import inventory, slot_options
from spillway.service.ddl import ddl_changes
from spillway.service.exports import SnapshotExports
from spillway.service.inventory import TABLES_MAX
from spillway.service.model import PluginInfo, SlotSpec
from spillway.service.readiness import MetadataWatch, obstacles_of, warnings_of
from spillway.service.slot_view import describe, statistics
from spillway.service.sources import Sources
from spillway.store.leases import Leases
from spillway.store.rows import SlotRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from spillway.delivery.slots import Slot
    from spillway.listener_signs import ListenerSigns
    from spillway.plugins.interface import OutputPlugin
    from spillway.receiver.checks import SourceFacts
    from spillway.receiver.table_sizes import TableSize
    from spillway.service.model import (
        Change,
        ChangePage,
        ChangeQuery,
        Consumer,
        DdlChange,
        Obstacle,
        Preview,
        PrimaryCost,
        PublicationInfo,
        SlotInfo,
        SlotSnapshot,
        SlotStats,
        SourceInfo,
        TablePage,
    )
    from spillway.service.settings import EngineSettings
    from spillway.sessions.layout import DataDirectory
    from spillway.sessions.session import Session
    from spillway.sessions.source import Source
    from spillway.store.metadata import MetadataStore
    from spillway.store.rows import Fence
    from spillway.tls import ServerCertificate

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

UPKEEP_INTERVAL_S: Final = 0.2
#: How long a client has to answer when somebody else wants its slot, of option takeover.
TAKEOVER_S: Final = 5.0
#: how often it is stored when consumers were there last
SEEN_INTERVAL_S: Final = 20.0
_SETTLE_POLL_S: Final = 0.005
#: payload that one peek or get may gather; a larger answer belongs to the stream
RESULT_BYTES_MAX: Final = 256 << 20
_STEP_BYTES: Final = 1 << 20
_WORKER_THREADS: Final = 16
#: Searches at a time: each keeps a worker, and most of a processor.
_SEARCHES_MAX: Final = 2
#: payload of one transaction as a plugin prints it
_PRINTED_BYTES_MAX: Final = 16 << 20


class Engine:
    """Implements :class:`spillway.service.interface.EngineInterface` on a data directory."""

    def __init__(
        self,
        data: DataDirectory,
        metadata: MetadataStore,
        settings: EngineSettings,
        certificate: ServerCertificate | None = None,
    ) -> None:
        """Put it together; *certificate* is that of the doors, whose troubles belong to the
        signs.
        """
        self._metadata = metadata
        self._settings = settings
        self._workers = ThreadPoolExecutor(_WORKER_THREADS, thread_name_prefix="spillway-worker")
        self._readers = SharedReaders(self._workers)
        self._large_batches = LargeBatches()
        self._answers = Answers()
        self._searches = asyncio.Semaphore(_SEARCHES_MAX)
        self._exports = SnapshotExports(settings)
        self._leases = Leases(metadata, data.instance, settings.lease_ttl_s)
        self._rows = SlotRows(metadata, self._leases)
        self._slots = self._rows.slots
        self._sources = Sources(data, metadata, settings, self._workers, self._leases, self._rows)
        self._reserve = data.reserve
        self._certificate = certificate
        self._listeners: list[ListenerSigns] = []
        self._watch = MetadataWatch(metadata, data.instance)
        self._seen_s = time.monotonic()
        self._upkeep: asyncio.Task[None] | None = None
        #: a name being created or dropped: one at a time
        self._changing = asyncio.Lock()

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Migrate the metadata store, load what exists and begin to receive and decode.

        Raises:
            MetadataError: the metadata store can't be used.
        """
        await self._metadata.migrate()
        self._watch.start()
        await self._sources.start()
        self._upkeep = asyncio.create_task(self._keep_up(), name="spillway-upkeep")

    async def stop(self) -> None:
        """Write what must be kept and stop every thread; safe to call twice."""
        if self._upkeep is not None:
            self._upkeep.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._upkeep
            self._upkeep = None
            with contextlib.suppress(SpillwayError):
                await self._rows.store()
                await self._rows.note_presence()
        await self._exports.close()
        self._watch.stop()
        await self._sources.stop()
        self._workers.shutdown(wait=False, cancel_futures=True)
        await self._metadata.close()

    async def settle(self, timeout_s: float) -> None:
        """Wait until what was stored when the service started is decoded, but not longer than
        *timeout_s*.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not self._sources.are_settled() and loop.time() < deadline:  # noqa: ASYNC110 - threads end it
            await asyncio.sleep(_SETTLE_POLL_S)

    # -- how it stands ------------------------------------------------------------------------

    def watch_listener(self, signs: ListenerSigns) -> None:
        """Have a door's listener count among what the service's work needs."""
        self._listeners.append(signs)

    def listeners(self) -> list[ListenerSigns]:
        """Give the signs of the listeners that are watched."""
        return list(self._listeners)

    def obstacles(self) -> list[Obstacle]:
        """Give what keeps the service from its work."""
        sources = self._sources.all()
        listeners = self._listeners
        return list(obstacles_of(sources, self._watch, self._reserve, self._certificate, listeners))

    def warnings(self) -> list[Obstacle]:
        """Give what will keep the service from its work if nobody does anything."""
        return list(warnings_of(self._certificate))

    def alive(self) -> bool:
        """Say whether every task and thread runs that should."""
        upkeep = self._upkeep is not None and not self._upkeep.done()
        return upkeep and self._watch.alive() and self._sources.alive()

    # -- sources ------------------------------------------------------------------------------

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

    async def table_sizes(
        self, source: str, database: str, tables: Sequence[str]
    ) -> Mapping[str, TableSize]:
        """Ask the source how large *tables* are."""
        dsn = with_database(self._sources.get(source).row.dsn, database)
        return await self._in_worker(table_sizes, dsn, tables)

    async def create_source(
        self, name: str, dsn: str, capture: Mapping[str, object] | None = None
    ) -> SourceInfo:
        """Check the cluster at *dsn*, make its physical slot and begin to receive and decode."""
        return await self._sources.create(name, dsn, capture or {})

    async def alter_source(self, name: str, dsn: str) -> SourceInfo:
        """Reach the same cluster by another DSN; slots and their consumers notice nothing."""
        return await self._sources.alter(name, dsn)

    async def drop_source(self, name: str, *, keep_slot: bool = False) -> None:
        """Drop a source without slots: its threads, its physical slot unless *keep_slot*, its
        files.
        """
        async with self._changing:
            self._sources.get(name)
            held = sorted(slot.name for slot in self._slots.values() if slot.row.source == name)
            if held:
                raise Conflict(
                    f'source "{name}" still has slots: {", ".join(held)}',
                    hint="Drop them first.",
                    source=name,
                    slots=held,
                )
            await self._sources.drop(name, keep_slot=keep_slot)

    async def restart_database(self, source: str, database: str) -> SourceInfo:
        """Give the decoding of a database a way on from what has stopped it."""
        needed = oldest_positions(self._slots.values()).get(source, {})
        return await self._sources.restart(source, database, needed)

    def fence(self, source: str) -> Fence | None:
        return self._leases.fence(source)

    def on_taken(self, listener: Callable[[str], Awaitable[None]]) -> None:
        self._sources.on_taken(listener)

    def conninfo(self, source: str, database: str) -> str:
        return with_database(self._sources.get(source).row.dsn, database)

    # -- what there is to read ----------------------------------------------------------------

    async def list_plugins(self) -> list[PluginInfo]:
        """List the output plugins that slots may have."""
        return [PluginInfo(name, is_built_in(name)) for name in plugin_names()]

    async def list_tables(
        self, source: str, database: str, after: int = 0, limit: int = TABLES_MAX
    ) -> TablePage:
        return await inventory.list_tables(self._sources, source, database, after, limit)

    async def list_publications(self, source: str, database: str) -> list[PublicationInfo]:
        return await inventory.list_publications(self._sources, source, database)

    async def publication_names(self, source: str, database: str) -> frozenset[str]:
        return await inventory.publication_names(self._sources, source, database)

    # -- slots --------------------------------------------------------------------------------

    async def create_slot(self, spec: SlotSpec) -> SlotInfo:
        """Create a slot that delivers what commits from now on, or from ``start_lsn``."""
        return await self._create_slot(spec, checks_name=True)

    async def _create_slot(self, spec: SlotSpec, *, checks_name: bool) -> SlotInfo:
        check_slot_name(spec.slot_name)
        self._check_free(spec.slot_name)
        source = self._sources.get(spec.source)
        self._leases.held(spec.source)
        # Options are checked before anything is made, with the version that will decode them.
        context = _plugin_context(spec, source)
        _, plugin_options = slot_options.split(spec.options)
        validate_options(spec.plugin, plugin_options, context)
        if not self._slots_on(spec.source, spec.database):
            await self._sources.end_session_of_dropped(spec.source, spec.database)
        if checks_name:
            await self._check_name(spec.source, spec.database, spec.start_lsn)
        # This may wait for a consistent point, and others need not wait for it.
        session = await self._sources.session(spec.source, spec.database)
        if wants_streaming(spec.plugin, plugin_options, context):
            session.want_streaming()
            await session.wait_streaming(self._settings.consistent_timeout_s)
        if not spec.exports_snapshot:
            return await self._add_slot(
                spec, session, await self._start_position(session, spec.start_lsn)
            )
        if spec.start_lsn is not None:
            raise InvalidRequest(
                "a slot begins at the LSN of its snapshot, and a start_lsn is given, too",
                hint="Leave out one of the two.",
            )
        await session.wait_consistent(self._settings.consistent_timeout_s)
        async with self._exports.taken(
            spec.slot_name,
            spec.source,
            session,
            at_least=lambda: session.log_start_lsn,
            is_kept=spec.keeps_snapshot,
        ) as snapshot:
            session.check_retained(snapshot.consistent_point)
            return await self._add_slot(spec, session, snapshot.consistent_point)

    async def _add_slot(self, spec: SlotSpec, session: Session, lsn: Lsn) -> SlotInfo:
        adding = asyncio.ensure_future(self._add_row(spec, session, lsn))
        try:
            return await asyncio.shield(adding)
        except asyncio.CancelledError:
            # Nobody is told of the slot: then there shall be none, not even one that the store has
            # and this process doesn't.
            with contextlib.suppress(SpillwayError):
                await adding
                await self.drop_slot(spec.slot_name)
            raise

    async def _add_row(self, spec: SlotSpec, session: Session, lsn: Lsn) -> SlotInfo:
        async with self._changing:
            self._check_free(spec.slot_name)
            row = SlotRow(
                slot_name=spec.slot_name,
                source=spec.source,
                database=spec.database,
                datoid=session.database_oid,
                plugin=spec.plugin,
                temporary=spec.temporary,
                two_phase=spec.two_phase,
                two_phase_at=(spec.two_phase_at or lsn) if spec.two_phase else None,
                failover=spec.failover,
                restart_lsn=lsn,
                confirmed_flush_lsn=lsn,
                inactive_since=datetime.now(UTC),
                options=dict(spec.options),
            )
            return self._info(await self._rows.add(row))

    async def _check_name(self, source: str, database: str, start_lsn: Lsn | None = None) -> None:
        """Insist that the source means by *database* what is decoded by that name; what begins at a
        *start_lsn* needs no source that is up.
        """
        needed = {s.row.database for s in self._slots.values() if s.row.source == source}
        try:
            await self._sources.check_name(source, database, needed)
        except DatabaseRenamed:
            raise
        except SourceError:
            if start_lsn is None:
                raise

    def _slots_on(self, source: str, database: str) -> list[str]:
        return sorted(
            slot.name
            for slot in self._slots.values()
            if (slot.row.source, slot.row.database) == (source, database)
        )

    def _check_free(self, slot_name: str) -> None:
        if slot_name in self._slots:
            raise DuplicateName(
                f'replication slot "{slot_name}" already exists',
                hint="Choose another name, or drop that slot first.",
                slot=slot_name,
            )

    async def _start_position(self, session: Session, start_lsn: Lsn | None) -> Lsn:
        await session.wait_consistent(self._settings.consistent_timeout_s)
        if start_lsn is None:
            # What committed before this call is not delivered, as with PostgreSQL: take the
            # primary's end of WAL, not ours, which lags behind it.
            end = await session.source_flush_lsn()
            await session.wait_decoded(end, self._settings.consistent_timeout_s)
            return Lsn(max(end, session.log_start_lsn))
        session.check_retained(start_lsn)
        return start_lsn

    async def take_snapshot(self, slot_name: str, *, fall_back: bool = True) -> SlotSnapshot:
        """Take a snapshot of the source and hold it for the slot; see the interface."""
        slot = self._slot(slot_name)
        self._leases.held(slot.row.source)
        await self._check_name(slot.row.source, slot.row.database)
        session = await self._session(slot)
        async with self._exports.taken(
            slot_name,
            slot.row.source,
            session,
            at_least=lambda: slot.confirmed_flush_lsn,
            fall_back=fall_back,
        ) as snapshot:
            return snapshot

    async def get_snapshot(self, slot_name: str) -> SlotSnapshot:
        self._slot(slot_name)
        return await self._exports.get(slot_name)

    async def release_snapshot(self, slot_name: str, snapshot_name: str | None = None) -> None:
        self._slot(slot_name)
        self._exports.release(slot_name, snapshot_name)

    async def list_slots(self) -> list[SlotInfo]:
        return [self._info(slot) for _, slot in sorted(self._slots.items())]

    async def get_slot(self, slot_name: str) -> SlotInfo:
        return self._info(self._slot(slot_name))

    async def drop_slot(self, slot_name: str) -> None:
        """Drop a slot that nobody has."""
        async with self._changing:
            slot = self._slot(slot_name)
            if slot.invalidation_reason is None and not slot.is_elsewhere:
                with slot.acquired("drop"):
                    await self._rows.remove(slot)
            else:
                await self._rows.remove(slot)
            self._exports.release(slot_name)
            source, database = slot.row.source, slot.row.database
            if not self._slots_on(source, database):
                # WAL is kept for a session; one that decodes nothing any more must not keep it for
                # nobody.
                await self._sources.end_session_of_dropped(source, database)
        failpoint("service.slot_dropped")

    async def copy_slot(
        self,
        slot_name: str,
        new_name: str,
        *,
        temporary: bool | None = None,
        plugin: str | None = None,
        keeps_properties: bool = True,
    ) -> SlotInfo:
        """Make another slot at the same position; instant, since a slot is a cursor."""
        slot = self._slot(slot_name)
        slot.check_valid()
        row = slot.row
        options = row.options
        if plugin not in (None, row.plugin):
            options = slot_options.of_service(options)
        # It reads what its original reads, whatever the source calls that now.
        return await self._create_slot(
            SlotSpec(
                slot_name=new_name,
                source=row.source,
                database=row.database,
                plugin=plugin or row.plugin,
                temporary=row.temporary if temporary is None else temporary,
                two_phase=row.two_phase and keeps_properties,
                two_phase_at=row.two_phase_at if keeps_properties else None,
                failover=row.failover and keeps_properties,
                options=options,
                start_lsn=slot.confirmed_flush_lsn,
            ),
            checks_name=False,
        )

    async def rewind(self, slot_name: str, lsn: Lsn) -> SlotInfo:
        """Set the slot to any retained position, forward or backward."""
        slot = self._slot(slot_name)
        with slot.acquired("rewind"):
            (await self._session(slot)).check_retained(lsn)
            await self._rows.rewind(slot, lsn)
        return self._info(slot)

    async def advance(self, slot_name: str, upto_lsn: Lsn) -> Lsn:
        """Move the slot to *upto_lsn*, or to the end of what is decoded when that is less."""
        slot = self._slot(slot_name)
        with slot.acquired("advance"):
            if upto_lsn == 0:
                raise InvalidRequest("invalid target WAL LSN", hint="0/0 is not a position.")
            minimum = slot.confirmed_flush_lsn
            if upto_lsn < minimum:
                raise AdvanceBackward(
                    f"cannot advance replication slot to {upto_lsn}, minimum is {minimum}",
                    hint="advance only goes forward; rewind goes back.",
                    slot=slot_name,
                    lsn=str(upto_lsn),
                    confirmed_flush_lsn=str(minimum),
                )
            session = await self._session(slot)
            await self._rows.advance(slot, Lsn(min(upto_lsn, session.decoded_lsn)))
            return slot.confirmed_flush_lsn

    async def alter_slot(
        self,
        slot_name: str,
        options: Mapping[str, str] | None = None,
        *,
        failover: bool | None = None,
        two_phase: bool | None = None,
    ) -> SlotInfo:
        """Give an idle slot other plugin options, or properties; see the interface."""
        slot = self._slot(slot_name)
        source = self._sources.get(slot.row.source)
        changes: dict[str, object] = {}
        if options is not None:
            _, plugin_options = slot_options.split(options)
            validate_options(slot.row.plugin, plugin_options, _plugin_context(slot.row, source))
            changes["options"] = dict(options)
        with slot.acquired("alter"):
            if failover is not None:
                changes["failover"] = failover
            if two_phase is not None and two_phase != slot.row.two_phase:
                # Whatever was prepared before what is confirmed was not told of: it comes whole.
                stands = slot.confirmed_flush_lsn
                changes |= {"two_phase": two_phase, "two_phase_at": stands if two_phase else None}
            if changes:
                await self._rows.alter(slot, **changes)
        return self._info(slot)

    async def make_permanent(self, slot_name: str) -> SlotInfo:
        """Have a temporary slot outlive its session; see the interface."""
        slot = self._slot(slot_name)
        if slot.row.temporary:
            await self._rows.alter(slot, temporary=False)
        return self._info(slot)

    # -- reading ------------------------------------------------------------------------------

    async def peek(
        self,
        slot_name: str,
        upto_lsn: Lsn | None,
        upto_nchanges: int | None,
        options: Mapping[str, str],
    ) -> list[Change]:
        """Return changes without consuming them; costs what it returns, not the backlog."""
        slot = self._slot(slot_name)
        with slot.acquired("peek") as active:
            reading = self._read(slot, upto_lsn, upto_nchanges, options)
            changes, _ = await active.unless_ended(reading)
        return changes

    async def get_changes(
        self,
        slot_name: str,
        upto_lsn: Lsn | None,
        upto_nchanges: int | None,
        options: Mapping[str, str],
    ) -> list[Change]:
        """Return changes and confirm them."""
        slot = self._slot(slot_name)
        with slot.acquired("get") as active:
            reading = self._read(slot, upto_lsn, upto_nchanges, options)
            changes, confirm_lsn = await active.unless_ended(reading)
            await self._rows.advance(slot, Lsn(confirm_lsn))
            self._exports.release_to_consumer(slot_name)
        return changes

    async def _read(
        self,
        slot: Slot,
        upto_lsn: Lsn | None,
        upto_nchanges: int | None,
        options: Mapping[str, str],
    ) -> tuple[list[Change], int]:
        upto_nchanges = upto_nchanges or None
        if upto_nchanges is not None and upto_nchanges < 0:
            raise InvalidRequest(
                f"upto_nchanges is {upto_nchanges}", hint="It is a count; 0 or none means no limit."
            )
        session = await self._session(slot)
        plugin = self._plugin(slot, session, options)
        start = slot.confirmed_flush_lsn
        await self._begin_two_phase(slot, plugin, start)

        answer = await self._answers.begin()

        def read() -> tuple[list[Change], int]:
            reader = SlotReader.on_log(session.log, plugin, start, upto_lsn, slot.two_phase_at)
            try:
                while True:
                    left = None if upto_nchanges is None else max(1, upto_nchanges - len(answer))
                    step = reader.step(_STEP_BYTES, message_limit=left)
                    # Bytes are shown as hexadecimal text.
                    size = len(step.messages.payload) << plugin.binary
                    changes = changes_of(step.messages, binary=plugin.binary)
                    answer.add(changes, step.messages.count, size)
                    slot_full = upto_nchanges is not None and len(answer) >= upto_nchanges
                    if step.exhausted or step.reached_end or (slot_full and reader.between):
                        slot.count(reader.counts)
                        return answer, reader.confirm_lsn
                    if reader.bytes > RESULT_BYTES_MAX:
                        raise ResultTooLarge(
                            f'the answer for slot "{slot.name}" is larger than {RESULT_BYTES_MAX} '
                            "bytes",
                            hint="Limit it with upto_nchanges or upto_lsn, or stream it over gRPC "
                            "(spillway recv).",
                            slot=slot.name,
                        )
            finally:
                reader.close()

        result = await self._in_worker(read)
        if not result[0]:
            # What is there is served whatever the decoder's state; an empty answer would hide that
            # it stopped.
            session.check_readable()
        return result

    @asynccontextmanager
    async def stream(
        self,
        slot_name: str,
        *,
        start_lsn: Lsn | None = None,
        upto_lsn: Lsn | None = None,
        options: Mapping[str, str] | None = None,
        batch_bytes: int = 512 * 1024,
        peek: bool = False,
        keep_temporary: bool = False,
    ) -> AsyncIterator[EngineStream]:
        """Open a stream; see the interface."""
        slot = self._slot(slot_name)
        slot.check_valid()
        own, merged = slot_options.split({**slot.row.options, **(options or {})})
        if own.takeover and not peek:
            await self._take_over(slot)
        async with AsyncExitStack() as held:
            active = None if peek else held.enter_context(slot.acquired("stream"))
            step_bytes = held.enter_context(self._large_batches.granted(batch_bytes))
            session = await self._session(slot)
            if active is not None:
                await held.enter_async_context(self._rows.claimed(slot, active))
                self._exports.release_to_consumer(slot_name)
                if own.start_before_confirmed and 0 < (start_lsn or 0) < slot.confirmed_flush_lsn:
                    await self._set_back(slot, session, Lsn(start_lsn or 0))
            plugin = self._plugin(slot, session, options or {})
            begin = max(start_lsn or 0, slot.confirmed_flush_lsn)
            if peek and start_lsn is not None:
                session.check_retained(start_lsn)
                begin = start_lsn
            else:
                await self._begin_two_phase(slot, plugin, begin)
            two_phase_at = slot.two_phase_at or begin
            built_in = is_built_in(slot.row.plugin)
            key = None
            if built_in:
                prepared = (slot.row.two_phase, two_phase_at if plugin.two_phase else None)
                key = (
                    session, slot.row.plugin, frozenset(merged.items()), prepared, upto_lsn,
                    step_bytes,
                )  # fmt: skip
            steps = await share_steps(
                self._readers,
                key,
                session.log,
                begin,
                plugin,
                lambda: self._plugin(slot, session, options or {}),
                lambda p, lsn: SlotReader.on_log(session.log, p, lsn, upto_lsn, two_phase_at),
                step_bytes,
                at_once=built_in,
            )
            stream = EngineStream(slot, session, steps, begin, active)
            try:
                yield stream
            finally:
                await stream.close()
                freed_memory.ask()
                served = self._slots.get(slot.name) is slot and not slot.is_lost
                if not (peek or keep_temporary) and slot.row.temporary and served:
                    await self._rows.remove(slot)

    async def _take_over(self, slot: Slot) -> None:
        """Free a slot whose client does not answer."""
        active = slot.active_consumer
        if active is not None and await active.is_silent(TAKEOVER_S):
            log.warning(
                'slot "%s" is taken over: %s has not answered for %g s',
                slot.name,
                active.consumer(),
                TAKEOVER_S,
            )
            if slot.active_consumer is active:
                await slot.end_session()

    async def _set_back(self, slot: Slot, session: Session, lsn: Lsn) -> None:
        """Have a slot stand where its consumer does."""
        session.check_retained(lsn)
        log.info(
            'slot "%s" is set back from %s to %s, as its consumer asks',
            slot.name,
            slot.confirmed_flush_lsn,
            lsn,
        )
        await self._rows.rewind(slot, lsn)

    # -- slots, looked at ---------------------------------------------------------------------

    async def end_session(self, slot_name: str) -> Consumer:
        """End the session of the slot's consumer; see the interface."""
        return await self._slot(slot_name).end_session()

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
        return statistics(slot, *spilled)

    async def preview(
        self, slot_name: str, start_lsn: Lsn | None, limit: int, skip: int = 0
    ) -> Preview:
        """Show changes as JSON, beside the consumer."""
        slot = self._slot(slot_name)
        slot.check_valid()
        start = slot.confirmed_flush_lsn if start_lsn is None else start_lsn
        session = await self._session(slot)
        return await self._in_worker(read_preview, session, slot_name, start, limit, skip)

    async def take_ddl(self) -> list[DdlChange]:
        """Take what DDL did to tables; see the interface."""
        taken = [
            (source.row.name, session, ddl)
            for source in self._sources.all()
            for session in source.sessions()
            for ddl in session.take_ddl()
        ]
        if not taken:
            return []
        return await self._in_worker(ddl_changes, taken)

    # -- changes, whoever has them ------------------------------------------------------------

    async def find_changes(self, source: str, database: str, query: ChangeQuery) -> ChangePage:
        """Look for changes in all that is retained; see the interface."""
        session = inventory.decoded(self._sources, source, database)
        async with self._searches:
            search = ChangeSearch(session, query)
            looking = asyncio.ensure_future(self._in_worker(search.page))
            try:
                return await asyncio.shield(looking)
            except asyncio.CancelledError:
                # The worker is free, and with it the place of this search, when it has ended.
                search.cancel()
                with contextlib.suppress(SpillwayError, SearchCancelled):
                    await looking
                raise

    async def print_transaction(
        self, source: str, database: str, commit_lsn: Lsn, plugin: str, options: Mapping[str, str]
    ) -> list[Change]:
        """Print a transaction as a plugin does; see the interface."""
        session = inventory.decoded(self._sources, source, database)
        context = PluginContext(
            "changes",
            database,
            session.server_version_num,
            session.encoding,
            captured_publications=self._sources.get(source).captured_publications,
        )
        made = create_plugin(plugin, options, context)

        def read() -> list[Change]:
            reader = SlotReader.on_log(session.log, made, commit_lsn, commit_lsn + 1)
            changes: list[Change] = []
            first_lsn = 0
            try:
                while True:
                    step = reader.step(_STEP_BYTES)
                    first_lsn = first_lsn or reader.first_lsn
                    changes += changes_of(step.messages, binary=made.binary)
                    if reader.bytes > _PRINTED_BYTES_MAX:
                        raise ResultTooLarge(
                            f"the transaction that commits at {commit_lsn} is more than "
                            f"{_PRINTED_BYTES_MAX} bytes as {plugin} prints it",
                            hint="Make a slot that begins there, and read it with a stream "
                            "(spillway recv).",
                            lsn=str(commit_lsn),
                        )
                    if step.exhausted or step.reached_end:
                        break
            finally:
                reader.close()
            if first_lsn != commit_lsn:
                raise NotFound(
                    f"no transaction has its commit record at {commit_lsn}",
                    hint="Give the commit_lsn of a change that was found.",
                    lsn=str(commit_lsn),
                )
            return changes

        async with self._searches:
            return await self._in_worker(read)

    # -- upkeep -------------------------------------------------------------------------------

    async def _keep_up(self) -> None:
        # A metadata store that is down fails each of them five times a second.
        failures: dict[str, str] = {}
        while True:
            await asyncio.sleep(UPKEEP_INTERVAL_S)
            # Each on its own: on a full disk what is trimmed lets metadata be written, and not the
            # other way round.
            for work in (
                self._trim,
                self._store,
                self._give_up_snapshots,
                self._invalidate_greedy_slots,
                self._store_invalidated,
            ):
                name = work.__name__
                try:
                    await work()
                except SpillwayError as error:
                    # What a store that is down says differs: it refuses, or does not answer.
                    said = error.code if isinstance(error, MetadataError) else str(error)
                    if failures.get(name) != said:
                        log.warning("upkeep: %s", error)
                    failures[name] = said
                except Exception:
                    log.exception("upkeep failed; it is tried again")
                else:
                    failures.pop(name, None)

    async def _store(self) -> None:
        await self._rows.store()
        if time.monotonic() - self._seen_s >= SEEN_INTERVAL_S:
            self._seen_s = time.monotonic()
            await self._rows.note_presence()

    async def _give_up_snapshots(self) -> None:
        def is_served(slot_name: str) -> bool:
            slot = self._slots.get(slot_name)
            return slot is not None and not slot.is_lost

        self._exports.keep_up(is_served)

    async def _invalidate_greedy_slots(self) -> None:
        limit = self._settings.max_slot_retained_bytes
        if limit is None:
            return
        for slot in tuple(self._slots.values()):
            session = self._sources.find_session(slot.row.source, slot.row.database)
            if session is None or slot.invalidation_reason is not None or slot.is_lost:
                continue
            if session.log.bytes_from(slot.confirmed_flush_lsn) > limit:
                slot.invalidate("wal_removed")
                log.warning(
                    'slot "%s" retained more than %d bytes and was invalidated', slot.name, limit
                )

    async def _store_invalidated(self) -> None:
        """Find the slots whose history is gone, and write down those that were found."""
        for slot in tuple(self._slots.values()):
            if slot.is_lost:
                continue
            session = self._sources.find_session(slot.row.source, slot.row.database)
            if session is not None:
                slot.judge(session)
            reason = slot.invalidation_reason
            if reason is not None and slot.row.invalidation_reason != reason:
                with contextlib.suppress(LeaseLost):
                    await self._rows.invalidate(slot, reason)

    async def _trim(self) -> None:
        await self._in_worker(self._trim_before, self._horizons())

    def _trim_before(self, horizons: Mapping[tuple[str, str], int]) -> None:
        self._reserve.look()
        self._sources.trim(horizons)
        collector.look(self._sources.decoded)
        # It reads a file of /proc. A process that is out of descriptors has other worries, and the
        # next look comes soon.
        with contextlib.suppress(OSError):
            freed_memory.look()

    def _horizons(self) -> dict[tuple[str, str], int]:
        """Return, for each (source, database), the oldest position that a slot may still ask
        for.
        """
        horizons = self._exports.needed()
        for slot in self._slots.values():
            if slot.invalidation_reason is None and not slot.is_elsewhere:
                key = (slot.row.source, slot.row.database)
                lsn = min(slot.confirmed_flush_lsn, slot.stored_lsn)
                horizons[key] = min(horizons.get(key, lsn), lsn)
        return horizons

    # -- small things -------------------------------------------------------------------------

    def _slot(self, slot_name: str) -> Slot:
        try:
            return self._slots[slot_name]
        except KeyError:
            raise UnknownSlot(
                f'replication slot "{slot_name}" does not exist',
                hint="GET /v1/slots lists what exists.",
                slot=slot_name,
            ) from None

    async def _begin_two_phase(self, slot: Slot, plugin: OutputPlugin, lsn: int) -> None:
        """Make a slot two-phase whose consumer asks for it by option, as CreateDecodingContext
        does.

        From then on it is, whatever consumers ask for: they were told of prepared transactions.
        """
        if plugin.two_phase and not slot.row.two_phase:
            await self._rows.alter(slot, two_phase=True, two_phase_at=Lsn(lsn))

    async def _session(self, slot: Slot) -> Session:
        session = await self._sources.session(slot.row.source, slot.row.database)
        slot.judge(session)
        slot.check_valid()
        return session

    def _plugin(self, slot: Slot, session: Session, options: Mapping[str, str]) -> OutputPlugin:
        context = PluginContext(
            slot.name,
            slot.row.database,
            session.server_version_num,
            session.encoding,
            slot.row.two_phase,
            self._sources.get(slot.row.source).captured_publications,
        )
        _, plugin_options = slot_options.split({**slot.row.options, **options})
        plugin = create_plugin(slot.row.plugin, plugin_options, context)
        if plugin.streaming:
            session.want_streaming()
        return plugin

    def _info(self, slot: Slot) -> SlotInfo:
        session = self._sources.find_session(slot.row.source, slot.row.database)
        if session is not None:
            slot.judge(session)
        limit = self._settings.max_slot_retained_bytes
        if session is None:
            decoding = self._sources.decoding_without_session(slot.row.source, slot.row.database)
            return describe(slot, decoding=decoding, retained_bytes=None, safe_bytes=None)
        retained = session.log.bytes_from(slot.confirmed_flush_lsn)
        return describe(
            slot,
            decoding=session.signs.decoding(session.decoded_lsn),
            retained_bytes=retained,
            safe_bytes=None if limit is None else max(0, limit - retained),
        )

    async def _in_worker(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._workers, lambda: function(*args, **kwargs))


def _plugin_context(slot: SlotSpec | SlotRow, source: Source) -> PluginContext:
    """Say what options are checked with before there is a session."""
    return PluginContext(
        slot.slot_name,
        slot.database,
        source.row.server_version_num,
        two_phase=slot.two_phase,
        captured_publications=source.captured_publications,
    )
