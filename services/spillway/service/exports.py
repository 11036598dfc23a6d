"""Snapshots of sources that are held for consumers, each paired with a position of a slot: one a
slot.

A consumer that begins copies tables as of a snapshot, and takes changes from a slot then. For both
to fit, the slot begins at the LSN that belongs to the snapshot. Two ways lead there, and
:attr:`SlotSnapshot.method` says which it was:

``paired``          an ordinary snapshot, and the log says which LSN it is
                    (:mod:`spillway.source_snapshots.pairing`): nobody is waited for, and the
                    primary has no logical slot. Tried for ``snapshot_pairing_timeout_s``
``temporary_slot``  the primary makes a logical slot for a moment, and waits for the transactions
                    that run. When pairing did not come off; :attr:`SlotSnapshot.reason` says why

A held snapshot is a session on the primary, in a transaction: VACUUM keeps the rows that it sees.
So it is held until it is told that it is not needed any more, until a consumer takes the slot, or
the slot is dropped, and for ``snapshot_hold_s`` at most; and no more than :data:`HELD_MAX` are held
at once. One that is kept, for a connection of PostgreSQL's protocol, is held until that
connection's next command or its end, as PostgreSQL has it.

Who has imported it has a snapshot of his own, and needs this one no more. It dies with the service,
with its session, and with the lease on the source. The slot stays where it is: whoever had not
imported it takes another one.

While a pair is looked for, the log is kept from where the slot may come to stand.

A session whose snapshot was given up is kept for SPARE_S, without a transaction: a subscriber that
synchronises many tables asks for one after the other, and to connect is a good part of what each
costs the primary.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from spillway.errors import Conflict, LsnNotRetained, NotReady, UnknownSnapshot
from spillway.pg.connecting import CANCEL_S
from spillway.pg.lsn import Lsn
from spillway.service.model import SlotSnapshot
from spillway.source_snapshots.holding import SnapshotSession, pass_on
from spillway.source_snapshots.pairing import OutOfOrder, Paired, Undecided, pair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from spillway.service.settings import EngineSettings
    from spillway.sessions.session import Session
    from spillway.source_snapshots.pairing import Taken

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: snapshots that one service holds, or looks for, at once; each is a session on a source
HELD_MAX: Final = 32
PAIRED: Final = "paired"
TEMPORARY_SLOT: Final = "temporary_slot"
#: WAL that is not flushed for so long is helped on.
_UNFLUSHED_S: Final = 0.02
_THREADS: Final = 8
#: How long sessions without a snapshot are kept, and how many.
SPARE_S: Final = 1.0
_SPARE_MAX: Final = 4
_PAUSE_MAX_S: Final = 0.05


@dataclass(slots=True)
class _Held:
    """A snapshot, and the session that holds it."""

    session: SnapshotSession
    snapshot: SlotSnapshot
    until_s: float
    #: until it is released, however long that takes
    is_kept: bool = False


class SnapshotExports:
    """The snapshots that this process holds. Used on the event loop."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        #: Their own: a primary may take its time, and readers of slots must not wait for it.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="spillway-snapshot")
        self._is_closing = False
        #: all that may be open, also those that threads are about to close
        self._sessions: set[SnapshotSession] = set()
        self._held: dict[str, _Held] = {}
        #: sessions that wait for another snapshot, and until when, the oldest first
        self._spare: list[tuple[SnapshotSession, float]] = []
        self._sparing = threading.Lock()
        self._counter = itertools.count()
        #: (source, database, LSN) of those that are looked for
        self._looking: dict[int, tuple[str, str, int]] = {}

    # -- what is held ---------------------------------------------------------------------------

    async def get(self, slot_name: str) -> SlotSnapshot:
        """Return the snapshot that is held for a slot, having seen that it lives.

        Raises:
            UnknownSnapshot: there is none.
        """
        held = self._held.get(slot_name)
        if held is not None and not await self._in_worker(held.session.alive):
            log.warning(
                'the source ended the session that held the snapshot of slot "%s"', slot_name
            )
            self._give_up(slot_name, held)
            held = None
        if held is None:
            raise UnknownSnapshot(
                f'no snapshot is held for replication slot "{slot_name}"',
                hint=f"Take one: POST /v1/slots/{slot_name}/snapshot. Its consistent_point is "
                "later: go on from there.",
                slot=slot_name,
            )
        return held.snapshot

    def release(self, slot_name: str, snapshot_name: str | None = None) -> None:
        """Give up the snapshot of a slot, if there is one, and it is *snapshot_name* where that is
        given; its session ends in a moment.
        """
        held = self._held.get(slot_name)
        if held is not None and snapshot_name in (None, held.snapshot.snapshot_name):
            self._give_up(slot_name, held)

    def release_to_consumer(self, slot_name: str) -> None:
        """Give up the snapshot of a slot that a consumer takes, unless it is kept."""
        held = self._held.get(slot_name)
        if held is not None and not held.is_kept:
            self._give_up(slot_name, held)

    def keep_up(self, is_served: Callable[[str], bool]) -> None:
        """Give up what was held for long enough, and what belongs to slots that are not *is_served*
        any more.
        """
        for slot_name, held in tuple(self._held.items()):
            if held.is_kept:
                self._prolong(held)
            late = time.monotonic() >= held.until_s
            if late:
                log.warning(
                    'the snapshot of slot "%s" was held for %g s, and is given up',
                    slot_name,
                    self._settings.snapshot_hold_s,
                )
            if late or not is_served(slot_name):
                self._give_up(slot_name, held)
        self._dismiss_spare(time.monotonic())

    def _prolong(self, held: _Held) -> None:
        held_s = self._settings.snapshot_hold_s
        until = datetime.now(UTC) + timedelta(seconds=held_s)
        held.until_s = time.monotonic() + held_s
        held.snapshot = replace(held.snapshot, held_until=until)

    async def close(self) -> None:
        """Give up all; safe to repeat."""
        if not self._is_closing:
            self._is_closing = True
            self._held.clear()
            with self._sparing:
                self._spare.clear()
            # Whoever waits for a server that stands still is cut off: the process ends with its
            # threads.
            await asyncio.to_thread(_close_all, tuple(self._sessions))
            self._threads.shutdown(wait=False)

    def needed(self) -> dict[tuple[str, str], int]:
        """Return, for each (source, database), from where its log is needed by those who look for a
        pair.
        """
        needed: dict[tuple[str, str], int] = {}
        for source, database, lsn in self._looking.values():
            needed[source, database] = min(lsn, needed.get((source, database), lsn))
        return needed

    def _give_up(self, slot_name: str, held: _Held) -> None:
        if self._held.get(slot_name) is held:
            del self._held[slot_name]
        # Not waited for: a primary may take its time.
        self._threads.submit(self._put_by, held.session)

    def _put_by(self, session: SnapshotSession) -> None:
        """Keep a session whose snapshot is given up for the next one, or close it. On a thread."""
        is_kept = session.rest()
        with self._sparing:
            is_kept = is_kept and not self._is_closing and len(self._spare) < _SPARE_MAX
            if is_kept:
                self._spare.append((session, time.monotonic() + SPARE_S))
        if not is_kept:
            self._close(session)

    def _close(self, session: SnapshotSession) -> None:
        session.close()
        self._sessions.discard(session)

    def _dismiss_spare(self, now_s: float) -> None:
        """Close the sessions that were kept for long enough by *now_s*."""
        with self._sparing:
            over = [session for session, until_s in self._spare if until_s <= now_s]
            self._spare = [entry for entry in self._spare if entry[0] not in over]
        for session in over:
            self._threads.submit(self._close, session)

    async def _session(self, dsn: str) -> SnapshotSession:
        """Return a session that is not used: one that was kept, if there is one that lives."""
        while True:
            with self._sparing:
                entry = next((entry for entry in self._spare if entry[0].dsn == dsn), None)
                if entry is None:
                    made = SnapshotSession(dsn)
                    self._sessions.add(made)
                    return made
                self._spare.remove(entry)
            session, _ = entry
            if await self._in_worker(session.alive):
                return session
            self._threads.submit(self._close, session)

    # -- taking one -----------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def taken(
        self,
        slot_name: str,
        source: str,
        session: Session,
        *,
        at_least: Callable[[], int],
        fall_back: bool = True,
        is_kept: bool = False,
    ) -> AsyncIterator[SlotSnapshot]:
        """Take a snapshot, and hold it for a slot once the block is left; an error there gives it
        up.

        Args:
            slot_name: the slot's; it need not be there yet.
            source: its source's.
            session: what decodes its database.
            at_least: where the slot stands: what is before is not asked for any more.
            fall_back: by a temporary slot on the primary if need be.
            is_kept: hold it until it is released.

        Raises:
            Conflict: too many are held.
            NotReady: there is none to be had in time.
            SourceError: the source refuses.
        """
        if len(self._held) + len(self._looking) >= HELD_MAX:
            raise Conflict(
                f"{HELD_MAX} snapshots of sources are held, which is as many as there may be",
                hint="Release those that are not needed any more: DELETE /v1/slots/SLOT/snapshot. "
                "A consumer that takes its slot releases it, too.",
                slots=sorted(self._held),
            )
        number = next(self._counter)
        self._looking[number] = (source, session.database, session.decoded_lsn)
        holder: SnapshotSession | None = None
        try:
            holder = await self._session(session.conninfo)
            snapshot = await self._take(holder, slot_name, session, at_least, fall_back=fall_back)
            yield snapshot
        except BaseException:
            # Not waited for: whoever asked may be gone, and a thread may have its turn with it. Who
            # stops has no threads any more.
            if holder is not None:
                with contextlib.suppress(RuntimeError):
                    self._threads.submit(self._close, holder)
            raise
        finally:
            del self._looking[number]
        self.release(slot_name)
        held_s = (snapshot.held_until - datetime.now(UTC)).total_seconds()
        self._held[slot_name] = _Held(holder, snapshot, time.monotonic() + held_s, is_kept)

    async def _take(
        self,
        holder: SnapshotSession,
        slot_name: str,
        session: Session,
        at_least: Callable[[], int],
        *,
        fall_back: bool,
    ) -> SlotSnapshot:
        deadline = time.monotonic() + self._settings.snapshot_pairing_timeout_s
        outcome: Paired | OutOfOrder | Undecided | None = None
        for attempt in itertools.count(1):
            taken, outcome = await self._attempt(holder, session)
            if isinstance(outcome, Paired) and outcome.lsn >= at_least():
                return await self._exported(
                    holder, slot_name, taken, outcome.lsn, PAIRED, attempt, None
                )
            if time.monotonic() >= deadline:
                break
            # Not in step with who commits at regular intervals.
            await asyncio.sleep(random.random() * _PAUSE_MAX_S)  # noqa: S311 - no secret
        reason = f"{attempt} snapshots could not be paired with an LSN: {outcome}"
        if not fall_back:
            raise NotReady(
                reason, hint="Try again, or take it by a temporary slot.", slot=slot_name
            )
        log.warning('slot "%s": %s; taking one by a temporary logical slot', slot_name, reason)
        give_up_s = time.monotonic() + self._settings.consistent_timeout_s
        cancelled = False

        def over() -> NotReady | None:
            if not (cancelled or self._is_closing) and time.monotonic() < give_up_s:
                return None
            return NotReady(
                f"no exact snapshot could be had: {reason}; and the primary, which was asked for "
                "one, waits for transactions that run",
                hint="Try again when they have ended: SELECT pid, state, xact_start FROM "
                "pg_stat_activity WHERE backend_xid IS NOT NULL, and pg_prepared_xacts, show them.",
                slot=slot_name,
            )

        name = f"spillway_snapshot_{time.time_ns():x}"
        try:
            taken, lsn = await self._in_worker(holder.take_by_slot, name, over)
        except asyncio.CancelledError:
            cancelled = True
            raise
        await session.wait_decoded(lsn, self._settings.consistent_timeout_s)
        return await self._exported(holder, slot_name, taken, lsn, TEMPORARY_SLOT, attempt, reason)

    async def _attempt(
        self, holder: SnapshotSession, session: Session
    ) -> tuple[Taken, Paired | OutOfOrder | Undecided]:
        decoded_before = session.decoded_lsn
        taken = await self._in_worker(holder.take)
        await self._reach(session, taken.insert_lsn)
        moment = await session.moment()
        try:
            outcome = await self._in_worker(
                pair, session.log, taken, moment, session.database_oid, decoded_before
            )
        except LsnNotRetained:
            # It was looked for far back, and is trimmed since.
            outcome = Undecided(tuple(running.xid for running in taken.running))
        return taken, outcome

    async def _reach(self, session: Session, lsn: int) -> None:
        """Wait until WAL is decoded up to *lsn*, which is not flushed yet."""
        try:
            await session.wait_decoded(lsn, _UNFLUSHED_S)
        except NotReady:
            session.check_readable()
            await self._in_worker(pass_on, session.conninfo)
            await session.wait_decoded(lsn, self._settings.consistent_timeout_s)

    async def _exported(
        self,
        holder: SnapshotSession,
        slot_name: str,
        taken: Taken,
        lsn: int,
        method: str,
        attempts: int,
        reason: str | None,
    ) -> SlotSnapshot:
        name = await self._in_worker(holder.export)
        now = datetime.now(UTC)
        return SlotSnapshot(
            slot_name=slot_name,
            snapshot_name=name,
            consistent_point=Lsn(lsn),
            contents=taken.contents,
            method=method,
            attempts=attempts,
            reason=reason,
            taken_at=datetime.fromtimestamp(taken.taken_at_us / 1e6, UTC),
            held_until=now + timedelta(seconds=self._settings.snapshot_hold_s),
        )

    async def _in_worker(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))


def _close_all(sessions: tuple[SnapshotSession, ...]) -> None:
    until_s = time.monotonic() + CANCEL_S
    for session in sessions:
        session.close(until_s - time.monotonic())
