"""The slots of the running service: a cache of what the metadata store has of them, and the way to
it.

The store owns a slot (:mod:`spillway.store.slots`): each thing that happens to one is a statement
there, which relies on the lease on the slot's source and on nobody else having it. A process that
was paused past its lease's end can't create, acquire, confirm, advance, rewind, alter, invalidate
or drop what its successor serves.

What is cached counts only while the lease is held. Whoever takes it reads the rows anew, and
forgets the temporary slots of former tenures: their sessions ended with the tenure in which they
were made. Whoever loses it ends its consumers with ``lease_lost``, and forgets what they confirmed
and was not stored: they are given it again, by the other process. Without the lease the rows are
shown as they are stored, with the consumers that the process names which has it.

A stream acquires its slot in the store, and releases it there when it ends; its feedback moves the
cache, and is stored for all slots of a source at once, by the engine's upkeep. A call is one
statement: get, advance, rewind, alter and drop rely in it on what a stream would have made sure of
before. A peek changes nothing, so it has the slot in the cache alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from spillway.delivery.slots import Slot, oldest_positions, stored_form
from spillway.errors import Conflict, LeaseLost, SlotActive, UnknownSlot
from spillway.store.rows import Owner, Presence

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from spillway.delivery.active_consumer import ActiveConsumer
    from spillway.pg.lsn import Lsn
    from spillway.store.leases import Leases
    from spillway.store.metadata import MetadataStore
    from spillway.store.rows import Fence, SlotRow
    from spillway.store.slots import SlotTable

log = logging.getLogger(__name__)


class SlotRows:
    """Slots by name, and what happens to them. Used on the event loop."""

    def __init__(self, metadata: MetadataStore, leases: Leases) -> None:
        self._stored: SlotTable = metadata.slots
        self._leases = leases
        self.slots: dict[str, Slot] = {}
        leases.on_lost(self._lose)

    def of(self, source: str) -> list[Slot]:
        """Return the slots of *source*."""
        return [slot for slot in self.slots.values() if slot.row.source == source]

    # -- the lease comes and goes ---------------------------------------------------------------

    async def take(self, source: str, fence: Fence) -> Mapping[str, int]:
        """Read the slots of *source* anew: its lease was taken. Return the oldest position of each
        of their databases.

        Raises:
            LeaseLost: *fence* is out of date.
        """
        await self._stored.begin_tenure(Owner(source, fence.token, os.getpid()))
        rows = await self._stored.rows(source)
        self._lose(source)
        self._replace(source, (Slot(row) for row in rows))
        return oldest_positions(self.of(source)).get(source, {})

    async def look(self, source: str) -> None:
        """Show the slots of *source* as another process, which serves it, has stored them."""
        rows = await self._stored.rows(source)
        self._replace(source, (self._as_stored(row) for row in rows))

    def forget(self, source: str) -> None:
        """Forget the slots of a *source* that is no more."""
        self._lose(source)
        self._replace(source, ())

    # -- what comes and goes --------------------------------------------------------------------

    async def add(self, row: SlotRow) -> Slot:
        """Make a slot.

        Raises:
            DuplicateName: the name is taken.
            LeaseLost: another process serves the source.
        """
        with self._leases.owned(row.source) as owner:
            slot = Slot(await self._stored.create(row, owner))
        self.slots[slot.name] = slot
        return slot

    async def remove(self, slot: Slot) -> None:
        """Drop a slot.

        Raises:
            SlotActive: another process has it.
            LeaseLost: another process serves the source.
        """
        async with slot.storing, self._owned(slot) as owner:
            await self._stored.drop(slot.name, owner)
            slot.is_claimed = False
        if self.slots.get(slot.name) is slot:
            del self.slots[slot.name]

    # -- who has one ----------------------------------------------------------------------------

    @asynccontextmanager
    async def claimed(self, slot: Slot, active: ActiveConsumer) -> AsyncIterator[None]:
        """Have the slot in the store, too, for the *active* consumer. What it confirmed is stored
        at the end.

        Raises:
            SlotActive: another process has it.
            LeaseLost: another process serves the source.
        """
        async with slot.storing, self._owned(slot) as owner:
            # The lease may have been lost, and taken again, while this waited: then it is a slot of
            # before.
            slot.check_valid()
            # Whatever comes of it: the store may have it from here on.
            slot.is_claimed = True
            slot.note_stored(await self._stored.acquire(slot.name, _told_now(active), owner))
        try:
            yield
        finally:
            await self._release(slot)

    async def _release(self, slot: Slot) -> None:
        async with slot.storing:
            if slot.is_claimed and not slot.is_lost:
                async with self._owned(slot) as owner:
                    confirmed = slot.confirmed_flush_lsn
                    slot.stored_lsn = await self._stored.release(slot.name, confirmed, owner)
                    slot.is_claimed = False

    async def note_presence(self) -> None:
        """Store when consumers were there last, of those that are there too: a restart must not
        make the sign fresh.
        """
        now = datetime.now(UTC)
        for source in {slot.row.source for slot in self.slots.values() if not slot.is_lost}:
            signs: dict[str, Presence] = {}
            for slot in self.of(source):
                moment = now if slot.active_consumer is not None else slot.inactive_since
                if moment is not None and moment != slot.stored_inactive_since:
                    told = (
                        _told_now(slot.active_consumer)
                        if slot.active_consumer and slot.is_claimed
                        else None
                    )
                    signs[slot.name] = Presence(moment, told)
            if not signs:
                continue
            # The other sources' slots go on.
            with contextlib.suppress(LeaseLost), self._leases.owned(source) as owner:
                await self._stored.note_presence(signs, owner)
            for name, (moment, _) in signs.items():
                if (found := self.slots.get(name)) is not None:
                    found.stored_inactive_since = moment

    # -- where one stands, and what it is -------------------------------------------------------

    async def store(self) -> None:
        """Store what consumers have confirmed since, a transaction for each source of which
        something was.

        A slot whose release could not be stored is released.
        """
        for source in {slot.row.source for slot in self.slots.values() if slot.is_unsaved}:
            # The other sources' slots go on.
            with contextlib.suppress(LeaseLost):
                await self._store(source)
        for slot in tuple(self.slots.values()):
            if slot.is_claimed and slot.active_consumer is None:
                with contextlib.suppress(LeaseLost):
                    await self._release(slot)

    async def _store(self, source: str) -> None:
        async with AsyncExitStack() as storing:
            for slot in self.of(source):
                if slot.is_unsaved:
                    await storing.enter_async_context(slot.storing)
            moved = [slot for slot in self.of(source) if slot.is_unsaved]
            positions = {slot.name: slot.confirmed_flush_lsn for slot in moved}
            with self._leases.owned(source) as owner:
                stand = await self._stored.confirm(positions, owner)
            for slot in moved:
                if (stands := stand.get(slot.name)) is not None:
                    slot.stored_lsn = stands
                else:
                    log.error(
                        'slot "%s" is not as this process knew it; it is read again', slot.name
                    )
                    await self._read_again(slot)

    async def advance(self, slot: Slot, lsn: Lsn) -> None:
        """Store a confirmation, then count it: when storing fails, nothing was confirmed.

        Raises:
            SlotActive: another process has it.
            Conflict: it was rewound since it was read.
            LeaseLost: another process serves the source.
        """
        async with slot.storing:
            if lsn > slot.confirmed_flush_lsn:
                async with self._owned(slot) as owner:
                    slot.stored_lsn = await self._stored.advance(
                        slot.name, lsn, owner, read_from=slot.stored_lsn
                    )
                slot.confirm(lsn)

    async def rewind(self, slot: Slot, lsn: Lsn) -> None:
        """Have the slot stand at *lsn*.

        Raises:
            SlotActive: another process has it.
            LeaseLost: another process serves the source.
        """
        async with slot.storing, self._owned(slot) as owner:
            slot.row = await self._stored.rewind(slot.name, lsn, owner)
            slot.confirmed_flush_lsn = slot.stored_lsn = lsn

    async def alter(self, slot: Slot, **changes: object) -> None:
        """Change columns of a slot's row.

        Raises:
            SlotActive: another process has it.
            LeaseLost: another process serves the source.
        """
        async with self._owned(slot) as owner:
            slot.row = await self._stored.alter(slot.name, owner, **changes)

    async def invalidate(self, slot: Slot, reason: str) -> None:
        """Store why a slot can't be read any more.

        Raises:
            LeaseLost: another process serves the source.
        """
        async with self._owned(slot) as owner:
            slot.row = await self._stored.invalidate(slot.name, reason, owner)

    @asynccontextmanager
    async def _owned(self, slot: Slot) -> AsyncIterator[Owner]:
        """Act on a slot; when it proves not to be as it is cached, what is cached goes."""
        with self._leases.owned(slot.row.source) as owner:
            try:
                yield owner
            except LeaseLost:
                # Then all of the source's slots are.
                raise
            except (SlotActive, UnknownSlot, Conflict):
                await self._read_again(slot)
                raise

    async def _read_again(self, slot: Slot) -> None:
        """Forget what is known of a slot that proved to be otherwise, and whoever has it here."""
        slot.is_claimed = False
        slot.lose()
        if self.slots.get(slot.name) is slot:
            del self.slots[slot.name]
            with contextlib.suppress(UnknownSlot):
                self.slots[slot.name] = Slot(await self._stored.get(slot.name))

    def _lose(self, source: str) -> None:
        for slot in self.of(source):
            slot.lose()

    def _as_stored(self, row: SlotRow) -> Slot:
        known = self.slots.get(row.slot_name)
        if known is not None and known.row == row and known.is_shown_as_stored:
            return known
        slot = Slot(row)
        slot.show_as_stored()
        return slot

    def _replace(self, source: str, slots: Iterable[Slot]) -> None:
        found = {slot.name: slot for slot in slots}
        for slot in self.of(source):
            if slot.name not in found:
                del self.slots[slot.name]
        self.slots.update(found)


def _told_now(active: ActiveConsumer) -> dict[str, str | None]:
    """Say of a consumer what other processes are to show of it, and that it was so now."""
    return {**stored_form(active.consumer()), "as_of": datetime.now(UTC).isoformat()}
