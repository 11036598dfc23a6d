"""An engine in memory, for tests of the interfaces above it.

Its WAL is a list of transactions that the test commits; positions, one-consumer-at-a-time,
peek/get/advance semantics and errors are those of
:class:`spillway.service.interface.EngineInterface`, which
``tests/integration/test_engine_contract.py`` asks of this one and of the real one. No plugin runs:
a change is the text that the test gave. ::

    engine = FakeEngine()
    engine.add_source("shop")
    engine.add_slot("s1", "shop")
    engine.commit("shop", "BEGIN 7", "table public.t: INSERT: id[integer]:1", "COMMIT 7")
"""

from __future__ import annotations

import array
import asyncio
import dataclasses
import itertools
import os
import re
from collections import defaultdict
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from spillway.delivery.active_consumer import ActiveConsumer
from spillway.errors import (
    AdvanceBackward,
    Conflict,
    DuplicateName,
    InvalidOption,
    InvalidRequest,
    InvalidSlotName,
    LsnNotRetained,
    NoConsumer,
    NotFound,
    NotReady,
    SlotActive,
    SpillwayError,
    UnknownDatabase,
    UnknownPlugin,
    UnknownSlot,
    UnknownSnapshot,
    UnknownSource,
)
from spillway.pg.lsn import Lsn
from spillway.plugins.messages import EncodedBatch
from spillway.receiver.checks import SourceFacts
from spillway.receiver.table_privileges import Lack, not_readable
from spillway.service.inventory import TABLES_MAX
from spillway.service.model import (
    Change,
    ChangePage,
    ChangeQuery,
    Consumer,
    DatabaseSession,
    DdlChange,
    Decoding,
    FoundChange,
    Obstacle,
    PluginInfo,
    Preview,
    PrimaryCost,
    PublicationInfo,
    SlotInfo,
    SlotSnapshot,
    SlotSpec,
    SlotStats,
    SourceInfo,
    StreamBatch,
    TableInfo,
    TablePage,
)
from spillway.store.rows import Fence

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from spillway.listener_signs import ListenerSigns
    from spillway.receiver.table_sizes import TableSize

CREATED_AT = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
FIRST_LSN = Lsn.parse("0/1000000")
#: the distance between two records, so that positions in tests are easy to read
STEP = 0x100
KNOWN_OPTIONS = frozenset({"include-xids", "skip-empty-xacts"})


@dataclass(frozen=True)
class FakeTransaction:
    """Whole and committed; the commit record is at ``final_lsn``."""

    xid: int
    final_lsn: Lsn
    end_lsn: Lsn
    changes: tuple[Change, ...]


class FakeEngine:
    """Implements EngineInterface."""

    def __init__(self) -> None:
        self.sources: dict[str, SourceInfo] = {}
        self.slots: dict[str, SlotInfo] = {}
        self.transactions: dict[str, list[FakeTransaction]] = defaultdict(list)
        #: what find_changes finds, and what it was asked
        self.found: list[FoundChange] = []
        self.asked: list[ChangeQuery] = []
        #: what take_ddl gives
        self.ddl: list[DdlChange] = []
        #: by source and database
        self.tables: dict[tuple[str, str], list[TableInfo]] = {}
        self.publications: dict[tuple[str, str], list[PublicationInfo]] = {}
        #: schema.table that the source's role may not read
        self.unreadable: list[str] = []
        self.sizes: dict[str, TableSize] = {}
        self.sizes_error: SpillwayError | None = None
        #: what keeps it from its work
        self.in_the_way: list[Obstacle] = []
        self.watched_listeners: list[ListenerSigns] = []
        self.warned_of: list[Obstacle] = []
        self.is_alive = True
        #: of every slot
        self.lag_s: float | None = 0.0
        #: how the decoding of each source's database stands
        self.decodings: dict[str, Decoding] = {}
        self.active_consumers: dict[str, ActiveConsumer] = {}
        #: raised by the next call, whatever it is
        self.next_error: Exception | None = None
        #: (slot_name, write, flush, apply) of every confirm, in order
        self.feedback: list[tuple[str, Lsn, Lsn, Lsn]] = []
        #: options of every peek, get and stream, in order
        self.options_seen: list[dict[str, str]] = []
        self.streams_open = 0
        #: by slot, held on the source
        self.snapshots: dict[str, SlotSnapshot] = {}
        self.taken_listeners: list[Callable[[str], Awaitable[None]]] = []
        #: what proves that this process serves each source; 1 for all
        self.tokens: dict[str, int | None] = {}
        self._xids = itertools.count(700)
        self._end = FIRST_LSN

    # What tests call

    def add_source(self, name: str = "shop") -> SourceInfo:
        self.sources[name] = SourceInfo(
            name=name,
            dsn=f"host=db dbname={name}",
            system_id="7432109876543210987",
            server_version_num=180004,
            timeline=1,
            wal_segment_size=16 * 1024 * 1024,
            slot_name=f"spillway_{name}",
            capture={"origin": "any", "tables": [], "publications": []},
            state="streaming",
            received_lsn=self._end,
            flushed_lsn=self._end,
            sessions=(
                DatabaseSession(
                    "shop",
                    16384,
                    "consistent",
                    self._end,
                    self._end,
                    state="running",
                    since=CREATED_AT,
                    current=True,
                ),
            ),
            created_at=CREATED_AT,
            since=CREATED_AT,
            heard_at=datetime.now(UTC),
        )
        return self.sources[name]

    def add_slot(self, slot_name: str = "s1", source: str = "shop") -> SlotInfo:
        return self._add(SlotSpec(slot_name, source, "shop"))

    def commit(self, source: str, *data: str, xid: int | None = None) -> FakeTransaction:
        """Commit a transaction with one change per text."""
        xid = next(self._xids) if xid is None else xid
        changes = []
        for text in data:
            changes.append(Change(self._end, xid, text))
            self._end = Lsn(self._end + STEP)
        transaction = FakeTransaction(xid, self._end, Lsn(self._end + STEP), tuple(changes))
        self._end = transaction.end_lsn
        self.transactions[source].append(transaction)
        return transaction

    @property
    def decoded_lsn(self) -> Lsn:
        return self._end

    def move_wal(self, nbytes: int) -> Lsn:
        """Let WAL go on without a transaction."""
        self._end = Lsn(self._end + nbytes)
        return self._end

    def change_slot(self, slot_name: str, **columns: Any) -> None:
        self.slots[slot_name] = dataclasses.replace(self.slots[slot_name], **columns)

    # Sources

    async def create_source(
        self, name: str, dsn: str, capture: Mapping[str, object] | None = None
    ) -> SourceInfo:
        self._raise_next()
        if name in self.sources:
            raise DuplicateName(f'source "{name}" already exists', source=name)
        self.add_source(name)
        shown = re.sub(r"password=\S+", "password=****", dsn)
        self.sources[name] = dataclasses.replace(
            self.sources[name], dsn=shown, capture=capture or self.sources[name].capture
        )
        return self.sources[name]

    async def list_sources(self) -> list[SourceInfo]:
        self._raise_next()
        return list(self.sources.values())

    async def get_source(self, name: str) -> SourceInfo:
        self._raise_next()
        if name not in self.sources:
            raise UnknownSource(f'source "{name}" does not exist', source=name)
        return self.sources[name]

    async def alter_source(self, name: str, dsn: str) -> SourceInfo:
        source = await self.get_source(name)
        shown = re.sub(r"password=\S+", "password=****", dsn)
        self.sources[name] = dataclasses.replace(source, dsn=shown)
        return self.sources[name]

    async def check_readable(
        self, source: str, database: str, tables: Sequence[str] | None
    ) -> None:
        await self.get_source(source)
        denied = [n for n in self.unreadable if tables is None or n in tables]
        if denied:
            split = [name.split(".") for name in denied]
            lacks = [Lack(schema, table, False, True, False) for schema, table in split]
            raise not_readable("spillway", lacks, 180000)

    async def table_sizes(
        self, source: str, database: str, tables: Sequence[str]
    ) -> dict[str, TableSize]:
        await self.get_source(source)
        if self.sizes_error is not None:
            raise self.sizes_error
        return {name: size for name, size in self.sizes.items() if name in tables}

    async def list_tables(
        self, source: str, database: str, after: int = 0, limit: int = TABLES_MAX
    ) -> TablePage:
        """Number the tables from 1 on, where the engine has oids."""
        await self.get_source(source)
        self._check_decoded(source, database)
        known = self.tables.get((source, database), [])
        page = known[after : after + limit]
        end = after + len(page)
        return TablePage(list(page), end if end < len(known) else None)

    async def list_publications(self, source: str, database: str) -> list[PublicationInfo]:
        await self.get_source(source)
        self._check_decoded(source, database)
        return self.publications.get((source, database), [])

    async def publication_names(self, source: str, database: str) -> frozenset[str]:
        return frozenset(one.name for one in await self.list_publications(source, database))

    def _check_decoded(self, source: str, database: str) -> None:
        if database not in {session.database for session in self.sources[source].sessions}:
            raise NotReady(f'database "{database}" of source "{source}" is not decoded yet')

    async def alter_slot(
        self,
        slot_name: str,
        options: Mapping[str, str] | None = None,
        *,
        failover: bool | None = None,
        two_phase: bool | None = None,
    ) -> SlotInfo:
        self._idle_slot(slot_name)
        if options is not None:
            self._check_options(options)
            self.change_slot(slot_name, options=dict(options))
        if failover is not None:
            self.change_slot(slot_name, failover=failover)
        if two_phase is not None and two_phase != self.slots[slot_name].two_phase:
            stands = self.slots[slot_name].confirmed_flush_lsn
            self.change_slot(
                slot_name, two_phase=two_phase, two_phase_at=stands if two_phase else None
            )
        return self.slots[slot_name]

    async def make_permanent(self, slot_name: str) -> SlotInfo:
        self._slot(slot_name)
        self.change_slot(slot_name, temporary=False)
        return self.slots[slot_name]

    async def lag_seconds(self, slot_name: str) -> float | None:
        self._slot(slot_name)
        return self.lag_s

    def fence(self, source: str) -> Fence | None:
        token = self.tokens.get(source, 1) if source in self.sources else None
        return None if token is None else Fence(f"source/{source}", token)

    def on_taken(self, listener: Callable[[str], Awaitable[None]]) -> None:
        self.taken_listeners.append(listener)

    def conninfo(self, source: str, database: str) -> str:
        return f"{self.sources[source].dsn} dbname={database}"

    async def list_plugins(self) -> list[PluginInfo]:
        self._raise_next()
        return [PluginInfo("test_decoding", built_in=True)]

    async def check_source(self, name: str, dsn: str) -> SourceFacts:
        self._raise_next()
        if name in self.sources:
            raise DuplicateName(f'source "{name}" already exists', source=name)
        return SourceFacts(
            system_id="7432109876543210987",
            server_version_num=180004,
            timeline=1,
            wal_segment_size=16 * 1024 * 1024,
            database="shop",
            datoid=16384,
            server_encoding="UTF8",
            user_name="spillway",
            wal_level="logical",
            full_page_writes=True,
            is_superuser=False,
            has_replication=True,
            dsn=dsn,
        )

    async def primary_cost(self, name: str) -> PrimaryCost:
        await self.get_source(name)
        return PrimaryCost(0, None, None, 0)

    async def restart_database(self, source: str, database: str) -> SourceInfo:
        self._raise_next()
        info = await self.get_source(source)
        stopped = {s.database: s for s in info.sessions if s.error is not None}
        if database not in {s.database for s in info.sessions}:
            raise UnknownDatabase(f'database "{database}" is not decoded', database=database)
        if database not in stopped:
            raise Conflict(f'database "{database}" is being decoded', hint="Leave it alone.")
        again = dataclasses.replace(
            stopped[database], error=None, error_code=None, snapshot_state="start"
        )
        sessions = tuple(again if s.database == database else s for s in info.sessions)
        self.sources[source] = dataclasses.replace(info, sessions=sessions)
        return self.sources[source]

    async def drop_source(self, name: str, *, keep_slot: bool = False) -> None:
        await self.get_source(name)
        if any(slot.source == name for slot in self.slots.values()):
            raise Conflict(f'source "{name}" still has slots', hint="Drop its slots first.")
        del self.sources[name]

    # Slots

    async def create_slot(self, spec: SlotSpec) -> SlotInfo:
        self._raise_next()
        if not re.fullmatch("[a-z0-9_]+", spec.slot_name):
            raise InvalidSlotName(
                f'replication slot name "{spec.slot_name}" contains invalid character',
                hint="Replication slot names may only contain lower case letters, numbers, and the "
                "underscore character.",
                slot=spec.slot_name,
            )
        if spec.source not in self.sources:
            raise UnknownSource(f'source "{spec.source}" does not exist', source=spec.source)
        if spec.slot_name in self.slots:
            raise DuplicateName(f'replication slot "{spec.slot_name}" already exists')
        if spec.plugin not in ("test_decoding", "arrow"):
            raise UnknownPlugin(f'output plugin "{spec.plugin}" is not known')
        self._check_options(spec.options)
        if spec.exports_snapshot and spec.start_lsn is not None:
            raise InvalidRequest("a start_lsn is given, too", hint="Leave out one of the two.")
        slot = self._now(self._add(spec))
        if spec.exports_snapshot:
            await self.take_snapshot(spec.slot_name)
        return slot

    async def take_snapshot(self, slot_name: str, *, fall_back: bool = True) -> SlotSnapshot:
        self._slot(slot_name)
        now = datetime.now(UTC)
        self.snapshots[slot_name] = SlotSnapshot(
            slot_name=slot_name,
            snapshot_name=f"00000003-0000001B-{len(self.snapshots) + 1}",
            consistent_point=self.decoded_lsn,
            contents="740:740:",
            method="paired",
            attempts=1,
            reason=None,
            taken_at=now,
            held_until=now + timedelta(minutes=15),
        )
        return self.snapshots[slot_name]

    async def get_snapshot(self, slot_name: str) -> SlotSnapshot:
        self._slot(slot_name)
        if slot_name not in self.snapshots:
            raise UnknownSnapshot(
                f'no snapshot is held for replication slot "{slot_name}"',
                hint=f"Take one: POST /v1/slots/{slot_name}/snapshot.",
                slot=slot_name,
            )
        return self.snapshots[slot_name]

    async def release_snapshot(self, slot_name: str, snapshot_name: str | None = None) -> None:
        self._slot(slot_name)
        held = self.snapshots.get(slot_name)
        if held is not None and snapshot_name in (None, held.snapshot_name):
            del self.snapshots[slot_name]

    async def list_slots(self) -> list[SlotInfo]:
        self._raise_next()
        return [self._now(slot) for slot in self.slots.values()]

    async def get_slot(self, slot_name: str) -> SlotInfo:
        self._raise_next()
        return self._now(self._slot(slot_name))

    async def drop_slot(self, slot_name: str) -> None:
        self._raise_next()
        self._idle_slot(slot_name)
        del self.slots[slot_name]
        self.snapshots.pop(slot_name, None)

    async def copy_slot(
        self,
        slot_name: str,
        new_name: str,
        *,
        temporary: bool | None = None,
        plugin: str | None = None,
        keeps_properties: bool = True,
    ) -> SlotInfo:
        slot = self._slot(slot_name)
        if new_name in self.slots:
            raise DuplicateName(f'replication slot "{new_name}" already exists')
        self.slots[new_name] = dataclasses.replace(
            slot,
            slot_name=new_name,
            active=False,
            temporary=slot.temporary if temporary is None else temporary,
            plugin=plugin or slot.plugin,
            options=slot.options if plugin in (None, slot.plugin) else {},
            two_phase=slot.two_phase and keeps_properties,
            failover=slot.failover and keeps_properties,
        )
        return self.slots[new_name]

    async def rewind(self, slot_name: str, lsn: Lsn) -> SlotInfo:
        self._idle_slot(slot_name)
        if not FIRST_LSN <= lsn <= self._end:
            raise LsnNotRetained(f"{lsn} is not retained", slot=slot_name, lsn=str(lsn))
        self.change_slot(slot_name, confirmed_flush_lsn=lsn)
        return self.slots[slot_name]

    async def advance(self, slot_name: str, upto_lsn: Lsn) -> Lsn:
        slot = self._idle_slot(slot_name)
        assert slot.confirmed_flush_lsn is not None
        if upto_lsn < slot.confirmed_flush_lsn:
            raise AdvanceBackward(
                f"cannot advance replication slot to {upto_lsn}, minimum is "
                f"{slot.confirmed_flush_lsn}",
                hint="advance only goes forward; rewind goes back.",
                slot=slot_name,
            )
        end_lsn = min(upto_lsn, self._end)
        self.change_slot(slot_name, confirmed_flush_lsn=end_lsn)
        return end_lsn

    async def slot_stats(self, slot_name: str) -> SlotStats:
        slot = self._slot(slot_name)
        transactions = self.transactions[slot.source]
        return SlotStats(slot_name, 0, 0, 0, 0, 0, 0, len(transactions), 0, None)

    async def peek(
        self,
        slot_name: str,
        upto_lsn: Lsn | None,
        upto_nchanges: int | None,
        options: Mapping[str, str],
    ) -> list[Change]:
        self._raise_next()
        return self._read(slot_name, upto_lsn, upto_nchanges, options)[0]

    async def get_changes(
        self,
        slot_name: str,
        upto_lsn: Lsn | None,
        upto_nchanges: int | None,
        options: Mapping[str, str],
    ) -> list[Change]:
        self._raise_next()
        changes, confirm_lsn = self._read(slot_name, upto_lsn, upto_nchanges, options)
        self.snapshots.pop(slot_name, None)
        self.change_slot(slot_name, confirmed_flush_lsn=confirm_lsn)
        return changes

    async def preview(
        self, slot_name: str, start_lsn: Lsn | None, limit: int, skip: int = 0
    ) -> Preview:
        self._raise_next()
        slot = self._slot(slot_name)
        begin = slot.confirmed_flush_lsn if start_lsn is None else start_lsn
        changes = [
            change
            for transaction in self.transactions[slot.source]
            if transaction.final_lsn >= (begin or 0)
            for change in transaction.changes
        ]
        shown = changes[skip : skip + limit]
        if len(changes) - skip > limit:
            rest = (begin or Lsn(0), skip + limit)
            return Preview(tuple(shown), self._end, rest, more=True, cut=True)
        return Preview(tuple(shown), self._end, None, more=False)

    async def take_ddl(self) -> list[DdlChange]:
        taken, self.ddl = self.ddl, []
        return taken

    async def find_changes(self, source: str, database: str, query: ChangeQuery) -> ChangePage:
        """Return :attr:`found` as they are, *limit* of them: looking is the real one's."""
        self._raise_next()
        await self.get_source(source)
        self.asked.append(query)
        after = query.after
        rest = [c for c in self.found if after is None or c.position > after]
        shown = rest[: query.limit]
        return ChangePage(
            tuple(shown),
            shown[-1].position if len(rest) > len(shown) else None,
            tuple(sorted({f"{c.schema}.{c.table}" for c in self.found})),
            Lsn(0),
            self._end,
            Lsn(0),
            None,
            self._end,
            began_earlier=query.since is not None,
        )

    async def print_transaction(
        self, source: str, database: str, commit_lsn: Lsn, plugin: str, options: Mapping[str, str]
    ) -> list[Change]:
        self._raise_next()
        await self.get_source(source)
        for transaction in self.transactions[source]:
            if transaction.final_lsn == commit_lsn:
                return list(transaction.changes)
        raise NotFound(f"no transaction has its commit record at {commit_lsn}")

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
    ) -> AsyncIterator[FakeStream]:
        self._raise_next()
        slot = self._slot(slot_name) if peek else self._idle_slot(slot_name)
        self._check_options(options or {})
        assert slot.confirmed_flush_lsn is not None
        begin = max(start_lsn or Lsn(0), slot.confirmed_flush_lsn)
        active = ActiveConsumer(slot_name, "stream")
        if not peek:
            self.change_slot(slot_name, active=True, active_pid=os.getpid())
            self.active_consumers[slot_name] = active
            self.snapshots.pop(slot_name, None)
        self.streams_open += 1
        try:
            yield FakeStream(self, slot_name, begin, upto_lsn, batch_bytes, active, peek=peek)
        finally:
            self.streams_open -= 1
            if not peek:
                self.active_consumers.pop(slot_name, None)
            if not peek and slot_name in self.slots:
                self.change_slot(slot_name, active=False, active_pid=None)

    def watch_listener(self, signs: ListenerSigns) -> None:
        self.watched_listeners.append(signs)

    def listeners(self) -> list[ListenerSigns]:
        return self.watched_listeners

    def obstacles(self) -> list[Obstacle]:
        return self.in_the_way

    def warnings(self) -> list[Obstacle]:
        return self.warned_of

    def alive(self) -> bool:
        return self.is_alive

    async def end_session(self, slot_name: str) -> Consumer:
        self._slot(slot_name)
        active = self.active_consumers.get(slot_name)
        if active is None:
            raise NoConsumer(f'nobody has replication slot "{slot_name}"', slot=slot_name)
        consumer = active.consumer()
        active.end()
        while self.active_consumers.get(slot_name) is active:  # noqa: ASYNC110 - as the engine does
            await asyncio.sleep(0.001)
        return consumer

    def stop_decoding(self, source: str, code: str = "corrupt_wal") -> None:
        """Let the decoding of a source's database stop where it is."""
        self.decodings[source] = Decoding(
            "stopped", self._end, CREATED_AT, "a checksum is wrong", code, "Look at the file."
        )
        info = self.sources[source]
        session = dataclasses.replace(
            info.sessions[0],
            snapshot_state="failed",
            state="stopped",
            since=CREATED_AT,
            error="a checksum is wrong",
            error_code=code,
            hint="Look at the file.",
            current=False,
        )
        self.sources[source] = dataclasses.replace(info, sessions=(session,))

    # Inside

    def _raise_next(self) -> None:
        error, self.next_error = self.next_error, None
        if error is not None:
            raise error

    def _add(self, spec: SlotSpec) -> SlotInfo:
        start = self._end if spec.start_lsn is None else spec.start_lsn
        self.slots[spec.slot_name] = SlotInfo(
            slot_name=spec.slot_name,
            plugin=spec.plugin,
            slot_type="logical",
            datoid=16384,
            database=spec.database,
            temporary=spec.temporary,
            active=False,
            active_pid=None,
            xmin=None,
            catalog_xmin=700,
            restart_lsn=start,
            confirmed_flush_lsn=start,
            wal_status="reserved",
            safe_wal_size=None,
            two_phase=spec.two_phase,
            two_phase_at=None,
            inactive_since=CREATED_AT,
            conflicting=False,
            invalidation_reason=None,
            failover=spec.failover,
            synced=False,
            source=spec.source,
            options=dict(spec.options),
            decoded_lsn=self._end,
            retained_bytes=0,
            created_at=CREATED_AT,
        )
        return self.slots[spec.slot_name]

    def _slot(self, slot_name: str) -> SlotInfo:
        if slot_name not in self.slots:
            raise UnknownSlot(
                f'replication slot "{slot_name}" does not exist',
                hint="GET /v1/slots lists what exists.",
                slot=slot_name,
            )
        return self.slots[slot_name]

    def _idle_slot(self, slot_name: str) -> SlotInfo:
        slot = self._slot(slot_name)
        if slot.active:
            raise SlotActive(
                f'replication slot "{slot_name}" is active for {self._now(slot).consumer}',
                hint="End its session first.",
                slot=slot_name,
            )
        return slot

    def _now(self, slot: SlotInfo) -> SlotInfo:
        running = Decoding("running", self._end, CREATED_AT)
        active = self.active_consumers.get(slot.slot_name)
        decoding = self.decodings.get(slot.source, running)
        return dataclasses.replace(
            slot,
            decoded_lsn=decoding.decoded_lsn,
            decoding=decoding,
            consumer=slot.consumer if active is None else active.consumer(),
        )

    def _check_options(self, options: Mapping[str, str]) -> None:
        for name in options:
            if name not in KNOWN_OPTIONS:
                raise InvalidOption(f'option "{name}" = "{options[name]}" is unknown')
        self.options_seen.append(dict(options))

    def _read(
        self,
        slot_name: str,
        upto_lsn: Lsn | None,
        upto_nchanges: int | None,
        options: Mapping[str, str],
    ) -> tuple[list[Change], Lsn]:
        slot = self._idle_slot(slot_name)
        self._check_options(options)
        assert slot.confirmed_flush_lsn is not None
        changes: list[Change] = []
        confirm_lsn = slot.confirmed_flush_lsn
        for transaction in self.transactions[slot.source]:
            if transaction.final_lsn < slot.confirmed_flush_lsn:
                continue
            if upto_lsn is not None and transaction.final_lsn >= upto_lsn:
                break
            changes.extend(transaction.changes)
            confirm_lsn = transaction.end_lsn
            if upto_nchanges is not None and len(changes) >= upto_nchanges:
                break
        return changes, confirm_lsn


class FakeStream:
    """Implements SlotStream; a batch is a whole transaction, or several up to *batch_bytes*."""

    def __init__(
        self,
        engine: FakeEngine,
        slot_name: str,
        begin: Lsn,
        upto_lsn: Lsn | None,
        batch_bytes: int,
        active: ActiveConsumer,
        *,
        peek: bool,
    ) -> None:
        self.active_consumer = active
        self.engine = engine
        self.slot_name = slot_name
        self._next = begin
        self._upto_lsn = upto_lsn
        self._batch_bytes = batch_bytes
        self._peek = peek

    async def next_batch(self, timeout_s: float, live: object = None) -> StreamBatch:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not (transactions := self._ready()):
            final = self._upto_lsn is not None and self.engine.decoded_lsn >= self._upto_lsn
            if final or asyncio.get_running_loop().time() >= deadline:
                # Never past what was asked for: what commits there was not handed out.
                self._next = max(
                    self._next, min(self.engine.decoded_lsn, self._upto_lsn or Lsn(2**64 - 1))
                )
                return self._batch([], final=final)
            self.engine._raise_next()
            await asyncio.sleep(0.005)
        self._next = transactions[-1].end_lsn
        return self._batch([change for t in transactions for change in t.changes])

    async def confirm(
        self,
        write_lsn: Lsn,
        flush_lsn: Lsn,
        apply_lsn: Lsn,
        *,
        beyond: bool = False,
    ) -> None:
        if self._peek:
            raise InvalidRequest("a peek does not confirm")
        self.active_consumer.fed_back()
        self.engine.feedback.append((self.slot_name, write_lsn, flush_lsn, apply_lsn))
        slot = self.engine.slots[self.slot_name]
        assert slot.confirmed_flush_lsn is not None
        self.engine.change_slot(
            self.slot_name, confirmed_flush_lsn=max(slot.confirmed_flush_lsn, flush_lsn)
        )

    async def ended(self) -> None:
        await self.active_consumer.ended()

    async def wanted(self) -> None:
        await self.active_consumer.wanted()

    def heard(self) -> None:
        self.active_consumer.heard()

    def _ready(self) -> list[FakeTransaction]:
        source = self.engine.slots[self.slot_name].source
        found: list[FakeTransaction] = []
        size = 0
        for transaction in self.engine.transactions[source]:
            if transaction.final_lsn < self._next:
                continue
            if self._upto_lsn is not None and transaction.final_lsn >= self._upto_lsn:
                break
            found.append(transaction)
            size += sum(len(change.data) for change in transaction.changes)
            if size >= self._batch_bytes:
                break
        return found

    def _batch(self, changes: list[Change], *, final: bool = False) -> StreamBatch:
        payloads = [change.data.encode() for change in changes]
        return StreamBatch(
            messages=EncodedBatch(
                payload=b"".join(payloads),
                lengths=array.array("I", map(len, payloads)).tobytes(),
                lsns=array.array("Q", [change.lsn for change in changes]).tobytes(),
                xids=array.array("I", [change.xid for change in changes]).tobytes(),
                count=len(changes),
            ),
            wal_start=changes[0].lsn if changes else self._next,
            wal_end=self.engine.decoded_lsn,
            confirm_lsn=self._next,
            final=final,
        )


def internal_error() -> SpillwayError:
    """An error that is nobody's request's fault."""
    return SpillwayError("the engine broke", hint="Read the log.")
