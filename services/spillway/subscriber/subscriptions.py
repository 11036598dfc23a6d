"""Subscriptions: what is declared, changed and asked; the programs are the supervisors'.

A change goes: check everything that can be checked, stop the program, make it durable, start the
program. What is durable says what is to be done next (``phase``), so that a death in between is
finished at the next start: a subscription that is being created gets its slot, one that is being
dropped goes. One change of a subscription at a time, and others meanwhile.

A subscription has a name of its own and a slot of its own: two on one slot would each confirm what
the other has not got. Which tables publications and partitioned tables stand for is looked up in
the mirrored catalog when it is created, altered or refreshed, as PostgreSQL's subscriptions do it,
and then stays.

Several services may have one metadata store. Subscriptions of a source are changed by the one that
serves it, whose lease each write proves. What is in memory is the truth only while the lease is
held: when it was taken the rows are read again before anything else, and until then they are shown
as they are stored, looked at each :data:`LOOK_S`. ::

                     lease taken: rows read again, programs start
    STANDING BY ────────────────────────────────────────────────▶ SERVING
         ▲  └ looks: made, altered and dropped elsewhere is seen     │
         └───────────── lease lost: programs are ended ◀─────────────┘
"""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import asynccontextmanager, suppress
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from spillway.errors import (
    AdvanceBackward,
    Conflict,
    DuplicateName,
    InvalidRequest,
    LsnNotRetained,
    SlotInvalidated,
    SpillwayError,
    UnknownConflict,
    UnknownSlot,
    UnknownSubscription,
    UnsupportedFeature,
)
from spillway.service.model import SlotSpec
from spillway.store.leases import held_by_another
from spillway.store.rows import ConflictTotals, EventRow, SubscriptionRow
from spillway.subscriber.model import Failure, SubscriptionInfo, SubscriptionSpec
from spillway.subscriber.selection import check_selection, resolve
from spillway.subscriber.stats import CONFLICT_KINDS
from spillway.subscriber.supervisor import Service, Supervisor
from spillway.subscriber.targets import LEFT, TableAction, TargetKind, target_kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from spillway.pg.lsn import Lsn
    from spillway.service.interface import EngineInterface
    from spillway.service.model import SlotInfo
    from spillway.store.metadata import MetadataStore
    from spillway.store.rows import Fence
    from spillway.subscriber.model import TableState

log = logging.getLogger(__name__)

_NAME: Final = re.compile(r"[a-z0-9_]{1,63}")
_CHANGEABLE: Final = frozenset({"tables", "publications", "options", "enabled", "target"})
_LOG_LINES_MAX: Final = 10_000
_CONFLICTS_MAX: Final = 10_000
#: how often a process looks at the subscriptions of sources that another one serves
LOOK_S: Final = 1.0


class Subscriptions:
    """Implements :class:`spillway.subscriber.interface.SubscriptionInterface`.

    Args:
        engine: where slots and publications are.
        metadata: where subscriptions are remembered.
        root: the directory of subscriptions' own files.
    """

    def __init__(self, engine: EngineInterface, metadata: MetadataStore, root: Path) -> None:
        self._engine = engine
        self._metadata = metadata
        self._root = root
        self._supervisors: dict[str, Supervisor] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._service: Service | None = None
        #: those that are stored no more, whose programs and files are still to go
        self._gone: list[Supervisor] = []
        self._taken_over = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        #: how often a lease was taken
        self._takings = 0
        engine.on_taken(self._taken)

    # -- life ---------------------------------------------------------------------------------

    async def load(self) -> None:
        """Learn what exists; no program is started yet. Call when the metadata store is
        migrated.
        """
        while not await self._read(lambda _: True):
            pass

    async def start(
        self, grpc: str, token: str | None, umask: int | None = None, own_socket: str = ""
    ) -> None:
        """Start the programs, which find the service's gRPC at *grpc* and its socket for own
        programs at *own_socket*, and finish what was begun before.

        Their files are made with *umask*; None: this process's.
        """
        self._service = Service(self._engine, self._metadata, grpc, token, umask, own_socket)
        for name, supervisor in tuple(self._supervisors.items()):
            if not supervisor.row.enabled:
                await supervisor.clear()
            # What was met last, should an earlier process have died before it took that in.
            await self._take_conflicts(supervisor)
            await self._settle(name)
        self._keeping = asyncio.create_task(self._keep_up(), name="spillway-subscriptions")

    async def stop(self) -> None:
        """End every program; safe to call twice."""
        self._service = None
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
            self._keeping = None
        await asyncio.gather(*(s.halt() for s in (*self._supervisors.values(), *self._gone)))

    # -- what other processes do --------------------------------------------------------------

    async def _taken(self, source: str) -> None:
        """Read what is stored of *source*, whose lease was taken: another process may have served
        it until now.
        """
        self._takings += 1
        await self._read(lambda one: one == source, taken=True)
        self._taken_over.set()

    async def _keep_up(self) -> None:
        """Look at what another process serves, and have programs run, or not, as the rows say."""
        while True:
            # Not wait_for, which may swallow the cancellation that ends this.
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._taken_over.wait()
            self._taken_over.clear()
            try:
                await self._look()
                names = {*self._supervisors, *(s.row.name for s in self._gone)}
                await asyncio.gather(*(self._settle(name) for name in names))
            except SpillwayError as error:
                log.warning("can't look for subscriptions: %s", error)
            except Exception:
                log.exception("can't look for subscriptions")

    async def _look(self) -> None:
        sources = {s.name for s in await self._engine.list_sources()}
        sources |= {s.row.source for s in self._supervisors.values()}
        if any(self._engine.fence(source) is None for source in sources):
            await self._read(lambda source: self._engine.fence(source) is None)

    async def _read(self, wanted: Callable[[str], bool], *, taken: bool = False) -> bool:
        """Make those of the *wanted* sources as they are stored, but for their programs.

        Return whether that was done: what was read before a lease was *taken* is old, and is left.
        """
        takings, known = self._takings, dict(self._supervisors)
        stored = {r.name: r for r in await self._metadata.list_subscriptions() if wanted(r.source)}
        totals = await self._metadata.conflicts.totals()
        new: dict[str, Supervisor] = {}
        for name, row in stored.items():
            before = known.get(name)
            if before is None or before.row.created_at != row.created_at:
                new[name] = self._new(row)
                new[name].conflicts = totals.get(name, ConflictTotals())
                if before is None:
                    await new[name].load()
        # From here on nothing waits: whoever took the lease may write next.
        if not taken and takings != self._takings:
            return False
        for name in {*known, *stored}:
            supervisor = known.get(name)
            if self._supervisors.get(name) is not supervisor:
                # It was made or dropped here meanwhile.
                continue
            if supervisor is not None and name in stored and name not in new:
                supervisor.row = stored[name]
                supervisor.conflicts = totals.get(name, ConflictTotals())
                continue
            if supervisor is not None and (name in new or wanted(supervisor.row.source)):
                del self._supervisors[name]
                self._gone.append(supervisor)
            if name in new:
                self._supervisors[name] = new[name]
        return True

    async def _settle(self, name: str) -> None:
        """Have the program of one that was changed elsewhere, or by an earlier process, run or not
        as its row says.
        """
        lock = self._lock(name)
        if lock.locked():
            # Whoever has it leaves it as it is to be.
            return
        async with lock:
            try:
                await self._clear_gone(name)
                supervisor = self._supervisors.get(name)
                if supervisor is None:
                    return
                if supervisor.is_being_dropped:
                    if self._engine.fence(supervisor.row.source) is not None:
                        await supervisor.halt()
                        await self._finish_drop(supervisor)
                elif supervisor.row.enabled:
                    self._start(supervisor)
                else:
                    await supervisor.halt()
            except SpillwayError as error:
                log.warning('subscription "%s" is not as it is to be yet: %s', name, error)

    async def _clear_gone(self, name: str) -> None:
        """End what is left of those that had *name* and were dropped by another process."""
        for supervisor in [s for s in self._gone if s.row.name == name]:
            await supervisor.halt()
            await supervisor.clear(files=True)
            self._gone.remove(supervisor)

    # -- changes ------------------------------------------------------------------------------

    async def create(self, spec: SubscriptionSpec) -> SubscriptionInfo:
        """Create a subscription and its slot, and start its program.

        Raises:
            InvalidRequest, UnsupportedFeature: with the field.
            DuplicateName: the name is taken.
            Conflict: the slot or the target is another subscription's.
            SpillwayError: whatever creating the slot, and looking tables up, raises; then nothing
                is left of it.
        """
        spec, kind = await self._checked(spec)
        async with self._lock(spec.name):
            fence = self._fence(spec.source)
            self._check_free(spec, kind)
            await self._clear_gone(spec.name)
            row = await self._metadata.add_subscription(_row(spec), fence=fence)
            supervisor = self._supervise(row)
            made = False
            try:
                # Of one that had the name before, should its drop have been cut off.
                await supervisor.clear(files=True)
                made = await self._make_slot(supervisor)
                await self._resolve(supervisor)
                await self._check_readable(supervisor.row)
                looks = spec.enabled or kind.checks_disabled
                notes = await self._check_target(supervisor) if looks else []
            except BaseException:
                await self._undo_create(supervisor, drop_slot=made)
                raise
            self._start(supervisor)
            return replace(await self._info(supervisor), notes=tuple(notes))

    async def check(self, spec: SubscriptionSpec) -> list[str]:
        """Look whether it could be created, with its target; nothing is made, no slot either."""
        spec, kind = await self._checked(spec)
        self._fence(spec.source)
        self._check_free(spec, kind)
        row = _row(spec)
        row = replace(row, resolved_tables=await resolve(self._engine, row, kind))
        await self._check_readable(row)
        # It is in no list: nobody finds it, and it writes no file.
        return await self._check_target(self._new(row))

    async def _checked(self, spec: SubscriptionSpec) -> tuple[SubscriptionSpec, TargetKind]:
        """Check what can be said without making anything; return what is meant, and its kind."""
        if not _NAME.fullmatch(spec.name):
            raise InvalidRequest(
                f"invalid subscription name {spec.name!r}",
                hint="1 to 63 of: lower case letters, numbers, and the underscore.",
                field="name",
            )
        kind = target_kind(spec.target.get("kind"))
        spec = replace(spec, target=kind.check(spec.target), slot=spec.slot or spec.name)
        check_selection(spec.tables, spec.publications)
        source = await self._engine.get_source(spec.source)
        if not spec.copy_data:
            kind.check_without_copy(spec.target)
        kind.check_subscription(spec, only_local=source.capture.get("origin") == "none")
        return spec, kind

    async def alter(self, name: str, changes: Mapping[str, object]) -> SubscriptionInfo:
        """Change what can change in place; see the interface."""
        async with self._lock(name):
            supervisor = self._served(name)
            row = supervisor.row
            wanted = _wanted(row, changes)
            if not wanted:
                return await self._info(supervisor)
            kind = target_kind(row.target.get("kind"))
            if "target" in wanted:
                wanted["target"] = self._changed_target(supervisor, kind, wanted["target"])
            altered = replace(row, **wanted, error=None, error_code=None, hint=None)
            check_selection(altered.tables, altered.publications)
            if {"tables", "publications"} & wanted.keys():
                resolved = await resolve(self._engine, altered, kind)
                altered = replace(altered, resolved_tables=resolved)
                await self._check_readable(altered, {*(row.resolved_tables or ())})
            async with self._stopped(supervisor):
                if "options" in wanted:
                    await self._engine.alter_slot(row.slot, altered.options)
                if "target" in wanted:
                    # It may have begun until it had ended.
                    self._changed_target(supervisor, kind, wanted["target"])
                columns = (*wanted, "resolved_tables", "error", "error_code", "hint")
                values = {c: getattr(altered, c) for c in columns}
                if supervisor.row.has_begun and {"tables", "publications"} & wanted.keys():
                    values["phase"] = "refreshed"
                await self._update(supervisor, **values)
            return await self._info(supervisor)

    async def enable(self, name: str) -> SubscriptionInfo:
        return await self.alter(name, {"enabled": True})

    async def disable(self, name: str) -> SubscriptionInfo:
        return await self.alter(name, {"enabled": False})

    async def refresh(self, name: str) -> SubscriptionInfo:
        """Look tables up again; if they are others than before, the supervisor starts the program
        anew in its time.
        """
        async with self._lock(name):
            supervisor = self._served(name)
            row = supervisor.row
            kind = target_kind(row.target.get("kind"))
            resolved = await resolve(self._engine, row, kind)
            is_same = resolved == _tuple(row.resolved_tables)
            if is_same and kind.refreshes_more and not supervisor.status.has_copies_under_way:
                # It looks again when it begins. One that copies will, when that is done.
                async with self._stopped(supervisor):
                    if supervisor.row.has_begun:
                        await self._update(supervisor, phase="refreshed")
            if not is_same:
                found = replace(row, resolved_tables=resolved)
                await self._check_readable(found, {*(row.resolved_tables or ())})
                phase = "refreshed" if supervisor.row.has_begun else supervisor.row.phase
                await self._update(supervisor, resolved_tables=resolved, phase=phase)
                if not supervisor.is_started:
                    self._start(supervisor)
            return await self._info(supervisor)

    async def skip(self, name: str, lsn: Lsn) -> SubscriptionInfo:
        """Move the slot to *lsn*; the target gives up what it has not got of what commits
        before.
        """
        async with self._lock(name):
            supervisor = self._served(name)
            slot = await self._engine.get_slot(supervisor.row.slot)
            _check_skip(slot, lsn)
            async with self._stopped(supervisor):
                # It may have confirmed more until it had ended.
                _check_skip(await self._engine.get_slot(supervisor.row.slot), lsn)
                # In this order: a target that is told to skip does no harm while the slot is not
                # there yet.
                changes = {"skip_lsn": lsn, "error": None, "error_code": None, "hint": None}
                await self._update(supervisor, **changes)
                await self._engine.advance(supervisor.row.slot, lsn)
            return await self._info(supervisor)

    async def pause_table(self, name: str, table: str) -> SubscriptionInfo:
        return await self._of_table(name, table, TableAction.PAUSE)

    async def resume_table(self, name: str, table: str) -> SubscriptionInfo:
        return await self._of_table(name, table, TableAction.RESUME)

    async def resync_table(self, name: str, table: str) -> SubscriptionInfo:
        return await self._of_table(name, table, TableAction.RESYNC)

    async def cancel_resync(self, name: str, table: str) -> SubscriptionInfo:
        return await self._of_table(name, table, TableAction.CANCEL_RESYNC)

    async def verify(self, name: str, tables: Sequence[str] = ()) -> SubscriptionInfo:
        """Begin to compare its target with the source; see the interface."""
        async with self._lock(name):
            supervisor = self._served(name)
            known = {each.table for each in supervisor.status.tables}
            if unknown := [table for table in tables if table not in known]:
                raise _no_table(name, unknown[0])
            program = None
            if self._service is not None:
                kind = target_kind(supervisor.row.target.get("kind"))
                plan = supervisor.plan(self._service)
                program = kind.verify_program(plan, tables, supervisor.verifier.outcome_file)
            if program is None or self._service is None:
                raise UnsupportedFeature(
                    "the service compares no target of this kind with its source",
                    hint=f"A PostgreSQL is compared by: spillway subscription verify {name}",
                )
            if not supervisor.follows:
                raise Conflict(
                    f'no program of subscription "{name}" follows its slot, and it is compared as '
                    "of an LSN that one reaches",
                    hint=f"See why none does, and enable it: spillway subscription show {name}",
                    subscription=name,
                )
            await supervisor.verify(self._service, program)
            return await self._info(supervisor)

    async def _of_table(self, name: str, table: str, action: TableAction) -> SubscriptionInfo:
        """Do something with one table beside the program, which goes on."""
        async with self._lock(name):
            supervisor = self._served(name)
            row = supervisor.row
            kind = str(row.target.get("kind"))
            known = {each.table: each for each in supervisor.status.tables}
            if table not in known:
                raise _no_table(name, table)
            program = None
            if self._service is not None:
                plan = supervisor.plan(self._service)
                program = target_kind(kind).table_program(plan, table, action)
            if action is TableAction.RESYNC:
                if program is None:
                    raise _not_anew(name, kind, table)
                _check_resync(row, known[table])
                await self._engine.check_readable(row.source, row.database, [table])
            elif action is TableAction.CANCEL_RESYNC and program is None:
                raise _not_anew(name, kind, table)
            elif action is TableAction.PAUSE and known[table].state in ("waiting", "copying"):
                raise Conflict(
                    f"{table} is still being copied",
                    hint="Pause it when it is ready, or disable the subscription.",
                    relation=table,
                )
            if program is None or self._service is None:
                raise UnsupportedFeature(
                    f'one table of a subscription of kind "{kind}" can\'t be paused or resumed',
                    hint="Disable the subscription, whose slot keeps what comes, or alter its "
                    "tables: one that is left out is copied anew when it is named again.",
                    relation=table,
                )
            await supervisor.run_briefly(self._service, program)
            if action is TableAction.RESYNC:
                supervisor.resync_asked(table, known[table].resync)
            elif action is TableAction.CANCEL_RESYNC:
                await supervisor.resync_cancelled(table)
            return await self._info(supervisor)

    async def drop(self, name: str, *, keep_slot: bool = False) -> list[str]:
        """Drop a subscription, and its slot unless that is to be kept; see the interface."""
        async with self._lock(name):
            supervisor = self._served(name)
            before = supervisor.row.phase
            await supervisor.halt()
            phase = "dropping" if keep_slot else "dropping_all"
            await self._update(supervisor, phase=phase)
            try:
                return await self._finish_drop(supervisor)
            except SpillwayError:
                # As if nothing had been: the slot is in use, for one.
                await self._update(supervisor, phase=before)
                self._start(supervisor)
                raise

    # -- looking ------------------------------------------------------------------------------

    async def list_all(self) -> list[SubscriptionInfo]:
        return [await self._info(s) for _, s in sorted(self._supervisors.items())]

    async def get(self, name: str) -> SubscriptionInfo:
        return await self._info(self._supervisor(name))

    async def check_unused(self, source: str) -> None:
        """Check that no subscription is of *source*; see the interface."""
        check_unused(
            source, [s.row.name for s in self._supervisors.values() if s.row.source == source]
        )

    async def log(self, name: str, lines: int) -> list[str]:
        """Return the last lines of its programs' output."""
        if not 0 <= lines <= _LOG_LINES_MAX:
            raise InvalidRequest(
                f"lines is {lines}", hint=f"Ask for 0 to {_LOG_LINES_MAX} lines.", field="lines"
            )
        return await asyncio.to_thread(self._supervisor(name).log.tail, lines)

    async def conflicts(
        self, name: str, limit: int, *, kind: str | None = None, table: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the last conflicts that its programs met, the newest first.

        Raises:
            InvalidRequest: *limit* is out of its bounds, or there are no conflicts of that *kind*.
        """
        if kind is not None and kind not in CONFLICT_KINDS:
            raise InvalidRequest(
                f'there is no kind of conflict "{kind}"',
                hint=f"There are {', '.join(CONFLICT_KINDS)}.",
                field="kind",
            )
        if not 0 <= limit <= _CONFLICTS_MAX:
            raise InvalidRequest(
                f"limit is {limit}", hint=f"Ask for 0 to {_CONFLICTS_MAX}.", field="limit"
            )
        await self._take_conflicts(self._supervisor(name))
        return await self._metadata.conflicts.last(name, limit, kind=kind, table=table)

    async def conflict(self, name: str, conflict_id: str) -> dict[str, Any]:
        """Return one conflict."""
        await self._take_conflicts(self._supervisor(name))
        found = await self._metadata.conflicts.get(name, conflict_id)
        if found is None:
            raise unknown_conflict(name, conflict_id)
        return found

    async def _take_conflicts(self, supervisor: Supervisor) -> None:
        """Store what its program wrote down and nobody took in: it may not run any more."""
        fence = self._engine.fence(supervisor.row.source)
        if fence is not None:
            await supervisor.take_conflicts(self._metadata, fence)

    async def _info(self, supervisor: Supervisor) -> SubscriptionInfo:
        row, status = supervisor.row, supervisor.status
        slot: SlotInfo | None = None
        lag_seconds = None
        try:
            slot = await self._engine.get_slot(row.slot)
            lag_seconds = await self._engine.lag_seconds(row.slot)
        except SpillwayError as error:
            # It has a state and a reason all the same.
            log.debug('slot "%s": %s', row.slot, error)
        counts = {f"confl_{kind}": n for kind, n in supervisor.conflicts.by_kind.items()}
        return SubscriptionInfo(
            name=row.name,
            source=row.source,
            database=row.database,
            slot=row.slot,
            tables=_tuple(row.tables),
            publications=_tuple(row.publications),
            missing_publications=supervisor.missing_publications,
            target=_shown(row.target),
            enabled=row.enabled,
            copy_data=row.copy_data,
            origin=row.origin,
            streaming=row.streaming,
            two_phase=row.two_phase,
            options=row.options,
            state=supervisor.state,
            error=supervisor.failure or self._elsewhere(row),
            confirmed_flush_lsn=None if slot is None else slot.confirmed_flush_lsn,
            lag_bytes=None if slot is None else slot.lag_bytes,
            lag_seconds=lag_seconds,
            rows=status.changes,
            restarts=row.restarts,
            pid=supervisor.pid,
            table_states=status.tables,
            stats={**status.stats, **counts},
            conflicts=supervisor.conflicts,
            last_batch=status.last_batch,
            told_at=status.told_at,
            verification=supervisor.verifier.last,
            created_at=row.created_at,
        )

    # -- slots and tables ---------------------------------------------------------------------

    async def _prepare(self, name: str) -> None:
        """See to it that a program finds what it needs; before each run."""
        supervisor = self._supervisor(name)
        if supervisor.row.phase == "creating":
            await self._make_slot(supervisor)
            await self._resolve(supervisor)
        row = supervisor.row
        try:
            slot = await self._engine.get_slot(row.slot)
        except UnknownSlot as error:
            raise UnknownSlot(
                f'its slot "{row.slot}" is gone',
                hint="Somebody dropped it, and what it had not delivered with it. Drop the "
                "subscription, and create it again with another target, or load this one's tables "
                "again.",
                slot=row.slot,
            ) from error
        if slot.invalidation_reason is not None:
            raise SlotInvalidated(
                f'its slot "{row.slot}" was invalidated: {slot.invalidation_reason}',
                hint="What it had not delivered is given up. Drop the subscription, and create it "
                "again with another target, or load this one's tables again.",
                slot=row.slot,
            )
        if dict(slot.options) != dict(row.options):
            await self._engine.alter_slot(row.slot, row.options)
        if row.phase != "copied":
            await self._check_readable(row)

    async def _check_readable(self, row: SubscriptionRow, had: Collection[str] = ()) -> None:
        """Check that what is to be copied can be, before a program is started for it; *had* is what
        was copied, or is.

        Raises:
            TableNotReadable: with the SQL that mends it.
        """
        if not row.copy_data:
            return
        tables = row.resolved_tables
        wanted = None if tables is None else [name for name in tables if name not in had]
        await self._engine.check_readable(row.source, row.database, wanted)

    async def _check_target(self, supervisor: Supervisor) -> list[str]:
        """Have its target looked at before a program fills it; return what that says.

        Raises:
            SpillwayError: what is missing there.
        """
        if self._service is None:
            return []
        plan = supervisor.plan(self._service)
        program = target_kind(supervisor.row.target.get("kind")).check_program(plan)
        return [] if program is None else await supervisor.run_briefly(self._service, program)

    async def _clear_target(self, supervisor: Supervisor) -> list[str]:
        """Have what it keeps on its target removed; a target that is gone keeps nobody from being
        dropped. Return what is left there then, and how to remove it.
        """
        if self._service is None:
            return []
        plan = supervisor.plan(self._service)
        kind = target_kind(supervisor.row.target.get("kind"))
        program = kind.drop_program(plan)
        if program is None:
            return []
        try:
            told = await supervisor.run_briefly(self._service, program)
        except SpillwayError as error:
            notes = [f"What it kept on its target is left there: {error.message}"]
            if (by_hand := kind.left_program(plan)) is not None:
                with suppress(SpillwayError):
                    lines = await supervisor.run_briefly(self._service, by_hand)
                    notes.append(f"Remove it, in that database: {' '.join(lines)}")
            return notes
        return [line.removeprefix(LEFT) for line in told if line.startswith(LEFT)]

    async def _tell_left(self, row: SubscriptionRow, notes: Sequence[str]) -> None:
        """Write down what is left on a target: whoever dropped it may not be here any more."""
        log.warning('subscription "%s" is dropped. %s', row.name, " ".join(notes))
        event = EventRow(
            kind="action",
            severity="warn",
            title=f"Something of subscription {row.name} is left on its target",
            detail=" ".join(notes),
            source=row.source,
            subscription=row.name,
        )
        try:
            await self._metadata.events.add([event])
        except SpillwayError as error:
            log.warning("an event is not stored (%s): %s", event.title, error)

    async def _make_slot(self, supervisor: Supervisor) -> bool:
        """Make its slot, or take the one that is there; return whether it was made."""
        row = supervisor.row
        kind = target_kind(row.target.get("kind"))
        plugin = kind.plugin
        try:
            slot = await self._engine.get_slot(row.slot)
        except UnknownSlot:
            await self._engine.create_slot(
                SlotSpec(
                    slot_name=row.slot,
                    source=row.source,
                    database=row.database,
                    plugin=plugin,
                    two_phase=row.two_phase and not kind.turns_two_phase_on,
                    options=row.options,
                )
            )
            return True
        for what, there, wanted in (
            ("plugin", slot.plugin, plugin),
            ("source", slot.source, row.source),
            ("database", slot.database, row.database),
            ("temporary", slot.temporary, False),
        ):
            if there != wanted:
                raise Conflict(
                    f'slot "{row.slot}" has {what} {there!r}, and the subscription needs '
                    f"{wanted!r}",
                    hint="Name another slot; one that does not exist is made.",
                    slot=row.slot,
                )
        if not row.options and slot.options:
            await self._update(supervisor, options=dict(slot.options))
        return False

    async def _resolve(self, supervisor: Supervisor) -> None:
        """Look up which tables it has, and count it as created."""
        row = supervisor.row
        resolved = await resolve(self._engine, row, target_kind(row.target.get("kind")))
        await self._update(supervisor, resolved_tables=resolved, phase="created")

    def _changed_target(
        self, supervisor: Supervisor, kind: TargetKind, target: Any
    ) -> dict[str, Any]:
        """Return the target to be, if it is the same one or nothing is in the old one yet."""
        row = supervisor.row
        if not isinstance(target, dict) or target.get("kind") != row.target["kind"]:
            raise _fixed(row.name, "target.kind")
        checked = kind.check(kind.with_secrets(target, row.target))
        if not row.copy_data:
            kind.check_without_copy(checked)
        if kind.place(checked) != kind.place(row.target):
            if row.has_begun:
                raise Conflict(
                    f'subscription "{row.name}" has filled its target; another one would lack what '
                    "is there",
                    hint="Drop the subscription and create it with the other target.",
                    field="target",
                )
            self._check_place(row.name, kind, checked)
        elif row.has_begun:
            before = kind.fixed(row.target)
            for name, value in kind.fixed(checked).items():
                if value != before[name]:
                    raise Conflict(
                        f'subscription "{row.name}" has filled its target, and {name} is of how '
                        "that was made",
                        hint="Leave it as it was, or drop the subscription and create it with a "
                        "target elsewhere.",
                        field=f"target.{name}",
                    )
        return checked

    # -- small things -------------------------------------------------------------------------

    def _new(self, row: SubscriptionRow) -> Supervisor:
        return Supervisor(row, self._root / row.name, partial(self._prepare, row.name))

    def _supervise(self, row: SubscriptionRow) -> Supervisor:
        supervisor = self._supervisors[row.name] = self._new(row)
        return supervisor

    def _supervisor(self, name: str) -> Supervisor:
        try:
            return self._supervisors[name]
        except KeyError:
            raise UnknownSubscription(name) from None

    def _fence(self, source: str) -> Fence:
        """Return the proof that this process serves *source*.

        Raises:
            LeaseLost: it does not.
        """
        fence = self._engine.fence(source)
        if fence is None:
            raise held_by_another(source)
        return fence

    def _served(self, name: str) -> Supervisor:
        """Return the one of *name*, which this process may change.

        Raises:
            UnknownSubscription, LeaseLost: it may not.
        """
        supervisor = self._supervisor(name)
        self._fence(supervisor.row.source)
        return supervisor

    def _elsewhere(self, row: SubscriptionRow) -> Failure | None:
        """Say why no program runs here."""
        if not row.enabled or self._engine.fence(row.source) is not None:
            return None
        error = held_by_another(row.source)
        return Failure(error.code, error.message, error.hint)

    def _start(self, supervisor: Supervisor) -> None:
        if self._service is not None and supervisor.row.enabled:
            supervisor.start(self._service)

    @asynccontextmanager
    async def _stopped(self, supervisor: Supervisor) -> AsyncIterator[None]:
        """End its program for the block, and start it after that if it is to run."""
        await supervisor.halt()
        try:
            yield
        finally:
            self._start(supervisor)

    async def _update(self, supervisor: Supervisor, **changes: object) -> None:
        row = supervisor.row
        if "resolved_tables" in changes:
            changes["forgotten_tables"] = _forgotten(row, changes["resolved_tables"])
        fence = self._fence(row.source)
        supervisor.row = await self._metadata.update_subscription(row.name, fence=fence, **changes)

    def _lock(self, name: str) -> asyncio.Lock:
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock

    def _check_free(self, spec: SubscriptionSpec, kind: TargetKind) -> None:
        if spec.name in self._supervisors:
            raise DuplicateName(
                f'subscription "{spec.name}" already exists',
                hint="Choose another name, or drop that one first.",
                subscription=spec.name,
            )
        for name, other in self._supervisors.items():
            if other.row.slot == spec.slot:
                raise Conflict(
                    f'slot "{spec.slot}" is subscription "{name}"\'s',
                    hint="Each subscription has a slot of its own; one that does not exist is "
                    "made.",
                    slot=spec.slot,
                    subscription=name,
                )
        self._check_place(spec.name, kind, spec.target)

    def _check_place(self, own: str, kind: TargetKind, target: Mapping[str, Any]) -> None:
        if kind.shares_places:
            return
        for name, other in self._supervisors.items():
            theirs = other.row.target
            if (
                name != own
                and theirs["kind"] == target["kind"]
                and kind.place(theirs) == kind.place(target)
            ):
                raise Conflict(
                    f'the target is subscription "{name}"\'s',
                    hint="Give each subscription a target of its own.",
                    subscription=name,
                )

    async def _undo_create(self, supervisor: Supervisor, *, drop_slot: bool) -> None:
        row = supervisor.row
        try:
            if drop_slot:
                await self._engine.drop_slot(row.slot)
            await self._metadata.remove_subscription(row.name, fence=self._fence(row.source))
        except SpillwayError as error:
            log.warning(
                'subscription "%s" is not undone, and is created later: %s', row.name, error
            )
            return
        self._forget(supervisor)

    async def _finish_drop(self, supervisor: Supervisor) -> list[str]:
        row = supervisor.row
        await supervisor.clear(files=True)
        notes = await self._clear_target(supervisor)
        if row.phase == "dropping_all":
            try:
                await self._engine.drop_slot(row.slot)
            except UnknownSlot:
                log.info('slot "%s" was gone already', row.slot)
        await self._metadata.remove_subscription(row.name, fence=self._fence(row.source))
        self._forget(supervisor)
        if notes:
            await self._tell_left(row, notes)
        return notes

    def _forget(self, supervisor: Supervisor) -> None:
        if self._supervisors.get(supervisor.row.name) is supervisor:
            del self._supervisors[supervisor.row.name]


def check_unused(source: str, held: Sequence[str]) -> None:
    """Refuse to drop *source* while subscriptions, *held*, are of it."""
    if held:
        raise Conflict(
            f'source "{source}" still has subscriptions: {", ".join(sorted(held))}',
            hint="Drop them first.",
            source=source,
            subscriptions=sorted(held),
        )


def _check_resync(row: SubscriptionRow, table: TableState) -> None:
    """Refuse a wish that nobody would fulfil, or that is being fulfilled."""
    if not row.enabled:
        raise Conflict(
            f'subscription "{row.name}" is disabled: no program of it runs that could load '
            f"{table.table}",
            hint=f"Enable it first: spillway subscription enable {row.name}",
            relation=table.table,
        )
    if table.state == "copying" or (table.state == "waiting" and not table.reason):
        raise Conflict(
            f"{table.table} is being copied at this time",
            hint="Ask for it when it is ready, if it is still to be loaded anew then.",
            relation=table.table,
        )


def _no_table(name: str, table: str) -> InvalidRequest:
    return InvalidRequest(
        f'subscription "{name}" has told of no table {table}',
        hint=f"Name one that it has, as schema.table: spillway subscription tables {name}",
        relation=table,
    )


def _not_anew(name: str, kind: str, table: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        f'tables of a subscription of kind "{kind}" can\'t be loaded anew one by one',
        hint="Have what differs mended in place, as a PostgreSQL's rows can be: spillway "
        f"subscription repair {name}",
        relation=table,
    )


def _row(spec: SubscriptionSpec) -> SubscriptionRow:
    values = {field.name: getattr(spec, field.name) for field in fields(SubscriptionSpec)}
    return SubscriptionRow(**values)


def unknown_conflict(name: str, conflict_id: str) -> UnknownConflict:
    """Make the error for a conflict that subscription *name* does not keep."""
    return UnknownConflict(
        f'subscription "{name}" keeps no conflict {conflict_id!r}',
        hint=f"The last ones are kept: spillway subscription conflicts {name}",
        subscription=name,
        conflict=conflict_id,
    )


def _shown(target: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a target as it may be shown; of a kind that is gone nobody knows what is secret."""
    try:
        return target_kind(target.get("kind")).shown(target)
    except SpillwayError:
        return {"kind": target.get("kind")}


def _wanted(row: SubscriptionRow, changes: Mapping[str, object]) -> dict[str, Any]:
    """Return what of *changes* is another value than there is.

    Raises:
        Conflict: one that can't change in place.
    """
    wanted = {}
    for name, value in changes.items():
        there = getattr(row, name)
        if isinstance(there, list | tuple):
            there = tuple(there)
        if isinstance(value, list):
            value = tuple(value)  # noqa: PLW2901 - rows have lists, callers may have tuples
        if value != there:
            if name not in _CHANGEABLE:
                raise _fixed(row.name, name)
            wanted[name] = value
    # Naming tables gives up publications, and the other way round, unless both are named.
    for name, other in (("tables", "publications"), ("publications", "tables")):
        if wanted.get(name) is not None and other not in changes:
            wanted[other] = None
    return wanted


def _fixed(name: str, field: str) -> Conflict:
    return Conflict(
        f'{field} of subscription "{name}" can\'t be changed in place',
        hint="tables, publications, options, enabled and how the target's program runs can. For "
        "the rest, drop the subscription and create it again.",
        field=field,
        subscription=name,
    )


def _check_skip(slot: SlotInfo, lsn: Lsn) -> None:
    confirmed, decoded = slot.confirmed_flush_lsn, slot.decoded_lsn
    if confirmed is not None and lsn < confirmed:
        raise AdvanceBackward(
            f"cannot skip to {lsn}: slot {slot.slot_name} is confirmed up to {confirmed}",
            hint="Skipping only goes forward.",
            slot=slot.slot_name,
            lsn=str(lsn),
            confirmed_flush_lsn=str(confirmed),
        )
    if decoded is None or lsn > decoded:
        raise LsnNotRetained(
            f"cannot skip to {lsn}: WAL is decoded up to {decoded}",
            hint="Skip to a position that is decoded, the end of the transaction that is in the "
            "way for one.",
            slot=slot.slot_name,
            lsn=str(lsn),
        )


def _forgotten(row: SubscriptionRow, resolved: object) -> dict[str, int] | None:
    """Return which tables a program has to hear of as gone when *row* gets *resolved*."""
    forgotten = dict(row.forgotten_tables or {})
    if target_kind(row.target.get("kind")).forgets and isinstance(resolved, list | tuple):
        for name in {*(row.resolved_tables or ())} - {*resolved}:
            forgotten[name] = forgotten.get(name, 0) + 1
    return forgotten or None


def _tuple(names: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)
