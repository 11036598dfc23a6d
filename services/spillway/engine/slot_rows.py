"""The slots of the running service, and their rows in the metadata store.

Every write of a row proves the lease on the slot's source in its own transaction (:mod:`spillway.engine.leases`): a process that
was paused past its lease's end can't create, advance, rewind, alter, invalidate or drop what its successor serves.

What is in memory is the truth only while the lease is held. Whoever takes it reads the rows anew, and removes the
temporary slots that are there: their sessions ended with the tenure in which they were made. Whoever loses it ends its
consumers with ``lease_lost``, and forgets what they confirmed and was not stored: they are given it again, by the other
process. Without the lease the rows are shown as they are stored.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from spillway.engine.slots import Slot, oldest_positions
from spillway.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spillway.engine.leases import Leases
    from spillway.pg.lsn import Lsn
    from spillway.store.metadata import MetadataStore
    from spillway.store.rows import Fence, SlotRow


class SlotRows:
    """Slots by name, and the writes of their rows. Used on the event loop."""

    def __init__(self, metadata: MetadataStore, leases: Leases) -> None:
        self._metadata = metadata
        self._leases = leases
        self.slots: dict[str, Slot] = {}
        leases.on_lost(self._lose)

    def of(self, source: str) -> list[Slot]:
        """Return the slots of *source*."""
        return [slot for slot in self.slots.values() if slot.row.source == source]

    async def take(self, source: str, fence: Fence) -> Mapping[str, int]:
        """Read the slots of *source* anew: its lease was taken. Return the oldest position of each of their databases.

        Raises:
            LeaseLost: *fence* is out of date.
        """
        await self._metadata.remove_temporary_slots(source, fence=fence)
        rows = await self._metadata.list_slots(source)
        self._lose(source)
        self._replace(source, (Slot(row) for row in rows))
        return oldest_positions(self.of(source)).get(source, {})

    async def look(self, source: str) -> None:
        """Show the slots of *source* as another process, which serves it, has stored them."""
        rows = await self._metadata.list_slots(source)
        self._replace(source, (self._as_stored(row) for row in rows))

    def forget(self, source: str) -> None:
        """Forget the slots of a *source* that is no more."""
        self._lose(source)
        self._replace(source, ())

    async def add(self, row: SlotRow) -> Slot:
        """Make a slot.

        Raises:
            DuplicateName: the name is taken.
            LeaseLost: another process serves the source.
        """
        with self._leases.fenced(row.source) as fence:
            slot = Slot(await self._metadata.add_slot(row, fence=fence))
        self.slots[slot.name] = slot
        return slot

    async def remove(self, slot: Slot) -> None:
        """Drop a slot.

        Raises:
            LeaseLost: another process serves the source.
        """
        with self._leases.fenced(slot.row.source) as fence:
            await self._metadata.remove_slot(slot.name, fence=fence)
        if self.slots.get(slot.name) is slot:
            del self.slots[slot.name]

    async def update(self, slot: Slot, **changes: object) -> None:
        """Change columns of a slot's row.

        Raises:
            LeaseLost: another process serves the source.
        """
        with self._leases.fenced(slot.row.source) as fence:
            slot.row = await self._metadata.update_slot(slot.name, fence=fence, **changes)

    async def confirm(self, slot: Slot, lsn: Lsn) -> None:
        """Store that *slot* is confirmed up to *lsn*; call with ``slot.storing`` held.

        Raises:
            LeaseLost: another process serves the source.
        """
        with self._leases.fenced(slot.row.source) as fence:
            slot.stored_lsn = await self._metadata.confirm_slot(slot.name, lsn, fence=fence)

    async def note_presence(self) -> None:
        """Store when consumers were there last, of those that are there too: a restart must not make the sign fresh."""
        now = datetime.now(UTC)
        for source in {slot.row.source for slot in self.slots.values() if not slot.is_lost}:
            moments = {
                slot.name: moment
                for slot in self.of(source)
                if (moment := now if slot.holder is not None else slot.inactive_since) is not None
                and moment != slot.stored_inactive_since
            }
            if not moments:
                continue
            # The other sources' slots go on.
            with contextlib.suppress(LeaseLost), self._leases.fenced(source) as fence:
                await self._metadata.note_inactive_since(moments, fence=fence)
            for name, moment in moments.items():
                if (found := self.slots.get(name)) is not None:
                    found.stored_inactive_since = moment

    def _lose(self, source: str) -> None:
        for slot in self.of(source):
            slot.lose()

    def _as_stored(self, row: SlotRow) -> Slot:
        known = self.slots.get(row.slot_name)
        if known is not None and known.row == row and known.is_lost:
            return known
        slot = Slot(row)
        slot.lose()
        return slot

    def _replace(self, source: str, slots: Iterable[Slot]) -> None:
        found = {slot.name: slot for slot in slots}
        for slot in self.of(source):
            if slot.name not in found:
                del self.slots[slot.name]
        self.slots.update(found)
