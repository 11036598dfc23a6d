"""A slot while the service runs: who has it, how far it is confirmed, and whether it can still be
read.

The metadata store owns the slot; :class:`Slot` is what this process has cached of it, and knows
beside that: which of its own clients has it, and what that one confirmed a moment ago. As in
PostgreSQL a confirmation moves the position in memory at once; it reaches the store within
the engine's upkeep interval, and before an answer is given for get, advance and rewind. After a
crash a consumer may therefore be sent again what it confirmed in that last instant: at least once.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from spillway.decoding.transaction import TransactionKind
from spillway.delivery.active_consumer import ActiveConsumer
from spillway.delivery.model import Consumer
from spillway.delivery.reader import Counts
from spillway.errors import (
    InvalidSlotName,
    LsnNotRetained,
    NoConsumer,
    SlotActive,
    SlotInvalidated,
    SpillwayError,
)
from spillway.pg.lsn import Lsn
from spillway.pg.timestamps import now_us
from spillway.store.leases import held_by_another
from spillway.txlog.cursor import TransactionCursor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from spillway.decoding.transaction import TransactionHeader
    from spillway.delivery.decoded_database import DecodedDatabase
    from spillway.store.rows import SlotRow
    from spillway.txlog.reader import LogReader

log = logging.getLogger(__name__)

_NAME_MAX: Final = 63
_END_POLL_S: Final = 0.005
#: A reason of invalidation that PostgreSQL has no word for: there, a database with slots can't be
#: dropped.
_DATABASE_DROPPED: Final = "database_dropped"
_NAME_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")


def check_slot_name(name: str) -> str:
    """Return *name* if PostgreSQL would take it for a slot.

    Raises:
        InvalidSlotName: with PostgreSQL's message and hint.

    Source: ReplicationSlotValidateName, src/backend/replication/slot.c
    """
    hint = (
        "Replication slot names may only contain lower case letters, numbers, and the underscore "
        "character."
    )
    if not name:
        raise InvalidSlotName(f'replication slot name "{name}" is too short', hint=hint, slot=name)
    if len(name.encode()) > _NAME_MAX:
        raise InvalidSlotName(f'replication slot name "{name}" is too long', hint=hint, slot=name)
    if not _NAME_CHARACTERS.issuperset(name):
        raise InvalidSlotName(
            f'replication slot name "{name}" contains invalid character', hint=hint, slot=name
        )
    return name


def _latest(*moments: datetime | None) -> datetime | None:
    return max((moment for moment in moments if moment is not None), default=None)


def _held(slot_name: str, consumer: Consumer) -> SlotActive:
    return SlotActive(
        f'replication slot "{slot_name}" is active for {consumer}',
        hint="Wait until its consumer is done, or end its session: POST "
        f"/v1/slots/{slot_name}/end-session. To look beside it, stream with peek.",
        slot=slot_name,
        consumer=stored_form(consumer),
    )


def stored_form(consumer: Consumer) -> dict[str, str | None]:
    """Give a consumer as an error's details, and the metadata store, have it: JSON's types."""
    return {
        name: None
        if value is None
        else value.isoformat()
        if isinstance(value, datetime)
        else str(value)
        for name, value in asdict(consumer).items()
        if name != "as_of"
    }


def consumer_of(stored: Mapping[str, str | None]) -> Consumer:
    """Read what :func:`stored_form` gave, and when."""
    feedback, sent = stored.get("last_feedback_at"), stored.get("sent_lsn")
    return Consumer(
        kind=stored.get("kind") or "stream",
        address=stored.get("address"),
        client=stored.get("client"),
        subscription=stored.get("subscription"),
        since=datetime.fromisoformat(str(stored["since"])),
        last_feedback_at=None if feedback is None else datetime.fromisoformat(feedback),
        sent_lsn=None if sent is None else Lsn.parse(sent),
        as_of=datetime.fromisoformat(str(stored["as_of"])),
        protocol=stored.get("protocol"),
        user=stored.get("user"),
    )


class Slot:
    """A slot of the running service; used on the event loop only."""

    def __init__(self, row: SlotRow) -> None:
        self.row = row
        self.confirmed_flush_lsn = row.confirmed_flush_lsn or Lsn(0)
        #: confirmed_flush_lsn as the metadata store has it
        self.stored_lsn = self.confirmed_flush_lsn
        #: held while the row's position is written, so that a rewind is not undone by an older
        #: confirmation
        self.storing = asyncio.Lock()
        #: whether the metadata store may have it that this process has the slot
        self.is_claimed = False
        #: which of this process's clients has it
        self.active_consumer: ActiveConsumer | None = None
        #: As of a restart what was stored counts: no later than the consumer was there last.
        self.inactive_since: datetime | None = _latest(row.inactive_since, row.confirmed_at)
        #: inactive_since as the metadata store has it
        self.stored_inactive_since = row.inactive_since
        #: when a confirmation last moved it
        self.confirmed_at = row.confirmed_at
        self.invalidation_reason: str | None = row.invalidation_reason
        #: whether another process serves it
        self.is_lost = False
        #: whether what that process has stored is all that is shown of it
        self.is_shown_as_stored = False
        self._listeners: set[Callable[[], None]] = set()
        #: what it missed ends before this, as far as that is known
        self._lost_to: int | None = None
        #: what it needs before this is in another service's directory
        self._elsewhere_to: int | None = None
        #: what its readers handed out since the service began
        self.counts = Counts()
        #: what :meth:`lag_seconds` found: behind which confirmed LSN, before which there is nothing
        #: else, and the commit time, None without one
        self._first_unconfirmed: tuple[int, int, int | None] = (-1, 0, None)

    @property
    def name(self) -> str:
        return self.row.slot_name

    @property
    def two_phase_at(self) -> int:
        """Transactions prepared before this are delivered whole at COMMIT PREPARED."""
        return self.row.two_phase_at or 0

    @contextmanager
    def acquired(self, kind: str) -> Iterator[ActiveConsumer]:
        """Hold the slot; one consumer at a time. *kind* is what it does, as in
        :class:`~spillway.delivery.model.Consumer`.

        Raises:
            SlotActive: somebody has it; the error names him.
            SlotInvalidated: its history was given up.
            LeaseLost: another process serves it.
        """
        self.check_valid()
        if self.active_consumer is not None:
            raise _held(self.name, self.active_consumer.consumer())
        active = self.active_consumer = ActiveConsumer(self.name, kind)
        self.inactive_since = None
        try:
            yield active
        finally:
            self.active_consumer = None
            self.inactive_since = datetime.now(UTC)

    @property
    def is_unsaved(self) -> bool:
        """Whether it is confirmed further than is stored."""
        return self.confirmed_flush_lsn > self.stored_lsn and not self.is_lost

    def note_stored(self, row: SlotRow) -> None:
        """Take in how it is stored, when nobody reads it."""
        stands = row.confirmed_flush_lsn or Lsn(0)
        # Never forward: what was stored and not answered for has reached nobody. What was confirmed
        # and is not stored yet stays.
        if not self.is_unsaved:
            self.confirmed_flush_lsn = min(self.confirmed_flush_lsn, stands)
        self.row, self.stored_lsn = row, stands

    @property
    def consumer(self) -> Consumer | None:
        """Who has it: a client of this process, or of the one that serves it, as that one has
        stored it; None: nobody.
        """
        if self.active_consumer is not None:
            return self.active_consumer.consumer()
        elsewhere = self.row.consumer if self.is_shown_as_stored else None
        return None if elsewhere is None else consumer_of(elsewhere)

    def show_as_stored(self) -> None:
        """Know of it only what the process that serves it has stored."""
        self.lose()
        self.is_shown_as_stored = True

    def lose(self) -> None:
        """End whoever has the slot, or waits for its changes: another process serves its source."""
        self.is_lost = True
        # What was not stored was never confirmed.
        self.confirmed_flush_lsn = self.stored_lsn
        for listener in tuple(self._listeners):
            listener()

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Have *listener* called on the event loop when the slot is lost."""
        self._listeners.add(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        """Have it called no more."""
        self._listeners.discard(listener)

    async def end_session(self) -> Consumer:
        """End its consumer's session, and return who that was; the slot is free then.

        Raises:
            NoConsumer: nobody has it.
            LeaseLost: another process serves it.
        """
        if self.is_lost:
            raise held_by_another(self.row.source)
        active = self.active_consumer
        if active is None:
            raise NoConsumer(
                f'nobody has replication slot "{self.name}"',
                hint="A new consumer may take it.",
                slot=self.name,
            )
        consumer = active.consumer()
        active.end()
        while self.active_consumer is active:  # noqa: ASYNC110 - a task of its own ends it
            await asyncio.sleep(_END_POLL_S)
        return consumer

    @property
    def is_elsewhere(self) -> bool:
        """Whether it needs what only another service's directory has."""
        return self._elsewhere_to is not None and self.confirmed_flush_lsn < self._elsewhere_to

    def check_valid(self) -> None:
        """Raise SlotInvalidated when the slot can no longer be read, LeaseLost when this process
        may not serve it.
        """
        if self.is_lost:
            raise held_by_another(self.row.source)
        if self._elsewhere_to is not None and self.is_elsewhere:
            raise LsnNotRetained(
                f'replication slot "{self.name}" stands at {self.confirmed_flush_lsn}, and what '
                "was decoded here begins at "
                f"{Lsn(self._elsewhere_to)}: this service took the source over from another one, "
                "whose directory has the rest",
                hint="Start that service again and stop this one: it takes the source back, and "
                "the slot goes on. If it is gone for good, drop the slot (DELETE "
                f"/v1/slots/{self.name}), create it again, and load its consumer anew.",
                slot=self.name,
                lsn=str(self.confirmed_flush_lsn),
                first_lsn=str(Lsn(self._elsewhere_to)),
            )
        if self.invalidation_reason is not None:
            missed = ""
            if self._lost_to is not None:
                missed = (
                    f"; what was committed from {self.confirmed_flush_lsn} to {Lsn(self._lost_to)} "
                    "is not known"
                )
            raise SlotInvalidated(
                f'replication slot "{self.name}" was invalidated: '
                f"{self.invalidation_reason}{missed}",
                hint="Drop it and create it again; what lies between must be copied from the "
                "source.",
                slot=self.name,
                invalidation_reason=self.invalidation_reason,
            )

    def judge(self, decoded: DecodedDatabase) -> None:
        """Invalidate the slot if its history is gone: the log that it reads begins behind it, or is
        another database's.

        Whoever finds it so writes it down (the engine's upkeep); it is so again after a crash.
        """
        if self.invalidation_reason is not None:
            return
        begins = decoded.log_start_lsn
        if self.row.datoid != decoded.database_oid:
            self.invalidate(_DATABASE_DROPPED)
            log.warning(
                'slot "%s" was of a database "%s" that was dropped: it is invalidated',
                self.name,
                self.row.database,
            )
        elif self.confirmed_flush_lsn < begins and decoded.began_in_takeover:
            # Not lost: whoever served the source before has it, and may serve it again.
            # PostgreSQL's word for that, in wal_status, is unreserved.
            self._elsewhere_to = begins
        elif self.confirmed_flush_lsn < begins:
            self.invalidate(decoded.lost_reason)
            self._lost_to = begins
            log.warning(
                'slot "%s" is invalidated (%s): what was committed in database "%s" from %s to %s '
                "is not known",
                self.name,
                self.invalidation_reason,
                self.row.database,
                self.confirmed_flush_lsn,
                Lsn(begins),
            )

    def invalidate(self, reason: str) -> None:
        """Have nobody read the slot any more."""
        self.invalidation_reason = reason

    def lag_seconds(self, transactions: LogReader, *, current: bool) -> float | None:
        """Return how long ago the first transaction was committed that is not confirmed; 0.0
        without one. Reads the log.

        By the source's clock and this machine's. None: the log can't be read there, or has no such
        transaction while there may be one that is not decoded yet, that is while it is not
        *current*.
        """
        if self.invalidation_reason is not None:
            return None
        confirmed, decoded = self.confirmed_flush_lsn, transactions.decoded_lsn
        behind, searched, commit_time = self._first_unconfirmed
        if behind != confirmed or (commit_time is None and decoded < searched):
            searched, commit_time = int(confirmed), None
        if commit_time is None and searched < decoded:
            try:
                cursor = TransactionCursor(transactions, searched)
                try:
                    while (found := cursor.next()) is not None and not self._awaits(found.header):
                        pass
                    # What comes later in the log is committed later.
                    searched = max(cursor.place, cursor.decoded_lsn)
                finally:
                    cursor.close()
            except SpillwayError:
                return None
            commit_time = None if found is None else found.header.commit_time
            self._first_unconfirmed = (int(confirmed), searched, commit_time)
        if commit_time is None:
            return 0.0 if current else None
        return max(0.0, (now_us() - commit_time) / 1e6)

    def _awaits(self, header: TransactionHeader) -> bool:
        """Whether *header* is of a commit that the slot delivers. Not all that is in the log has a
        time: messages and invalidations outside of transactions, and parts of those in progress,
        have none.
        """
        match header.kind:
            case TransactionKind.COMMIT:
                return True
            case TransactionKind.COMMIT_PREPARED:
                return self.row.two_phase or header.is_ordinary
            case TransactionKind.PREPARE:
                return self.row.two_phase and header.final_lsn >= self.two_phase_at
        return False

    def confirm(self, lsn: int) -> None:
        """Advance confirmed_flush_lsn; never backward, as PostgreSQL's
        LogicalConfirmReceivedLocation.
        """
        if lsn > self.confirmed_flush_lsn:
            self.confirmed_flush_lsn = Lsn(lsn)
            self.confirmed_at = datetime.now(UTC)

    def count(self, counts: Counts, before: Counts | None = None) -> None:
        """Account for what a reader handed out, since it had counted *before*."""
        self.counts = self.counts.plus(counts, before)


def oldest_positions(slots: Iterable[Slot]) -> dict[str, dict[str, int]]:
    """Return the oldest position of a slot, by source and by database that has slots; 0: they are
    all lost.
    """
    found: dict[str, dict[str, int]] = {}
    for slot in slots:
        of_source = found.setdefault(slot.row.source, {})
        before, lost = of_source.get(slot.row.database, 0), slot.invalidation_reason is not None
        here = 0 if lost else slot.confirmed_flush_lsn
        of_source[slot.row.database] = min(filter(None, (before, here)), default=0)
    return found
