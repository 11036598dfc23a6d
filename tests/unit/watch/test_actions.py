"""Who did what: what is noted of a slot that a program confirms by advancing it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from spillway.caller import GRPC, REST, calling
from spillway.watch.actions import SOURCE_ACTIONS, noted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spillway.store.events import EventTable
    from spillway.store.rows import EventRow

JOB = "spillway-subscription/copy spillway/0.1.0 (pid 12 on a)"


class Slots:
    """The calls of the engine that are noted, without what they do."""

    async def advance(self, slot_name: str, upto_lsn: str) -> None:
        pass

    async def rewind(self, slot_name: str, lsn: str) -> None:
        pass


class Events:
    """Keeps titles."""

    def __init__(self) -> None:
        self.titles: list[str] = []

    async def add(self, rows: Sequence[EventRow]) -> None:
        self.titles += [row.title for row in rows]


class Noting:
    """Slots whose calls are noted, and what was."""

    def __init__(self) -> None:
        self._events = Events()
        actions = {name: SOURCE_ACTIONS[name] for name in ("advance", "rewind")}
        self._slots = noted(Slots(), actions, cast("EventTable", self._events))

    def advance(self, slot: str, lsn: str, client: str = JOB, protocol: str = GRPC) -> None:
        # Each batch has a connection of its own.
        with calling(f"127.0.0.1:{4000 + len(lsn)}", client, protocol=protocol):
            asyncio.run(self._slots.advance(slot, lsn))

    def rewind(self, slot: str, lsn: str) -> None:
        with calling("127.0.0.1:9", "curl", protocol=REST):
            asyncio.run(self._slots.rewind(slot, lsn))

    def taken(self) -> list[str]:
        titles, self._events.titles = self._events.titles, []
        return titles


def test_what_a_program_confirms_is_noted_once() -> None:
    noting = Noting()
    for lsn in ("0/1", "0/20", "0/300"):
        noting.advance("copy", lsn)
    assert noting.taken() == ["Slot copy was advanced to 0/1"]
    noting.advance("other", "0/4")
    noting.advance("copy", "0/50")
    assert noting.taken() == ["Slot other was advanced to 0/4"], "another slot is another matter"


def test_what_somebody_else_does_with_the_slot_is_noted_and_so_is_what_comes_then() -> None:
    noting = Noting()
    noting.advance("copy", "0/1")
    noting.advance("copy", "0/2", "spillway/0.1.0 (pid 13 on a)")
    noting.advance("copy", "0/3")
    noting.rewind("copy", "0/1")
    noting.advance("copy", "0/4")
    noting.advance("copy", "0/5")
    assert noting.taken() == [
        "Slot copy was advanced to 0/1",
        "Slot copy was advanced to 0/2",
        "Slot copy was advanced to 0/3",
        "Slot copy was rewound to 0/1",
        "Slot copy was advanced to 0/4",
    ]


def test_people_who_advance_a_slot_are_noted_each_time() -> None:
    noting = Noting()
    for lsn in ("0/1", "0/2"):
        noting.advance("copy", lsn, "python-httpx/0.28.1", REST)
        noting.advance("copy", lsn, "", GRPC)
    assert len(noting.taken()) == 4
