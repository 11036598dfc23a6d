"""Who did what: calls that change something become events, with the client that made them.

The interfaces are given the engine, the subscriptions and the users through :func:`noted`. It hands
every call on; those of a table here are noted when they have succeeded. What can't be noted is
logged, and done all the same.

A program that confirms what it has read by advancing its slot over gRPC, as a lake's job does after
each batch, does so every second or two: its first is noted, and no other until something else is
done with the slot. Events are bounded by their number, and a day of these would push thirty days
out.
"""

from __future__ import annotations

import functools
import inspect
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from spillway.caller import GRPC, caller
from spillway.errors import SpillwayError
from spillway.store.rows import EventRow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spillway.caller import Caller
    from spillway.store.events import EventTable

log = logging.getLogger(__name__)

T = TypeVar("T")

#: slots whose programs are remembered
_CONFIRMING_MAX: Final = 10_000


class Action(NamedTuple):
    """A call that is noted: its words, and of which kind its first argument is."""

    #: with the names of its arguments
    title: str
    #: source, slot, subscription or none
    of: str = ""


SOURCE_ACTIONS: Final[Mapping[str, Action]] = {
    "create_source": Action("Source {name} was added", "source"),
    "alter_source": Action("Source {name} was altered", "source"),
    "drop_source": Action("Source {name} was dropped", "source"),
    "restart_database": Action("Decoding of {source}/{database} was begun again", "source"),
    "create_slot": Action("Slot {spec.slot_name} was created", "slot"),
    "drop_slot": Action("Slot {slot_name} was dropped", "slot"),
    "advance": Action("Slot {slot_name} was advanced to {upto_lsn}", "slot"),
    "rewind": Action("Slot {slot_name} was rewound to {lsn}", "slot"),
    "copy_slot": Action("Slot {slot_name} was copied to {new_name}", "slot"),
    "alter_slot": Action("Slot {slot_name} was altered", "slot"),
    "end_session": Action("The session of slot {slot_name} was ended", "slot"),
}
SUBSCRIPTION_ACTIONS: Final[Mapping[str, Action]] = {
    "create": Action("Subscription {spec.name} was created", "subscription"),
    "alter": Action("Subscription {name} was altered", "subscription"),
    "enable": Action("Subscription {name} was enabled", "subscription"),
    "disable": Action("Subscription {name} was disabled", "subscription"),
    "refresh": Action("Subscription {name} looked for its tables again", "subscription"),
    "skip": Action("Subscription {name} skipped what commits before {lsn}", "subscription"),
    "pause_table": Action("{table} of subscription {name} was paused", "subscription"),
    "resume_table": Action("{table} of subscription {name} was resumed", "subscription"),
    "resync_table": Action(
        "{table} of subscription {name} was asked to be loaded anew", "subscription"
    ),
    "cancel_resync": Action(
        "{table} of subscription {name} is not to be loaded anew any more", "subscription"
    ),
    "verify": Action(
        "The target of subscription {name} was asked to be compared with its source",
        "subscription",
    ),
    "drop": Action("Subscription {name} was dropped", "subscription"),
}
USER_ACTIONS: Final[Mapping[str, Action]] = {
    "create": Action("User {name} was made"),
    "alter": Action("User {name} was changed"),
    "drop": Action("User {name} was dropped"),
}


def noted(wrapped: T, actions: Mapping[str, Action], events: EventTable) -> T:
    """Return what does as *wrapped* does, and notes the *actions* among its calls."""
    return cast("T", _Noted(wrapped, actions, events))


def caller_document(who: Caller) -> dict[str, str | None] | None:
    """Return who calls, as events have it; None: nobody from outside."""
    if who.address is None and who.client is None:
        return None
    return {
        "address": who.address,
        "client": who.client,
        "protocol": who.protocol,
        "user": who.user,
    }


class History:
    """What a process does by itself, as events."""

    def __init__(self, events: EventTable, process: str) -> None:
        self._events = events
        self._process = process

    async def started(self, version: str) -> None:
        """The service answers."""
        await self._add(EventRow(kind="started", title=f"The service has started ({version})"))

    async def stopped(self) -> None:
        """The service ends, as it was told to."""
        await self._add(EventRow(kind="stopped", title="The service stops"))

    async def taken(self, source: str) -> None:
        """The process begins to serve *source*."""
        title = f"Source {source} is served by a process that has just taken it"
        await self._add(EventRow(kind="taken", source=source, title=title))

    async def _add(self, event: EventRow) -> None:
        try:
            await self._events.add([replace(event, document={"process": self._process})])
        except SpillwayError as error:
            log.warning("an event is not stored (%s): %s", event.title, error)


class _Noted:
    def __init__(self, wrapped: Any, actions: Mapping[str, Action], events: EventTable) -> None:
        self._wrapped = wrapped
        self._actions = actions
        self._events = events
        #: by slot: which program advances it, as the last that was done with it
        self._confirming: dict[str, tuple[str, str | None, str | None]] = {}
        # Found at the first look-up and set here, so that calls of the hot path cost nothing more
        # than on the wrapped one itself.
        for name in actions:
            setattr(self, name, self._noting(name, getattr(wrapped, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def _noting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        signature, action = inspect.signature(call), self._actions[name]

        @functools.wraps(call)
        async def noting(*args: Any, **kwargs: Any) -> Any:
            answer = await call(*args, **kwargs)
            given = signature.bind(*args, **kwargs).arguments
            await self._note(action, given)
            return answer

        return noting

    async def _note(self, action: Action, given: Mapping[str, Any]) -> None:
        spec = given.get("spec")
        if getattr(spec, "temporary", False):
            # A client makes one for each connection.
            return
        first = next(iter(given.values()))
        name = getattr(first, "slot_name", None) or getattr(first, "name", None) or first
        if action.of == "slot" and self._is_known_confirmation(action, str(name)):
            return
        event = EventRow(
            kind="action",
            title=action.title.format(**given),
            caller=caller_document(caller()),
            source=str(name) if action.of == "source" else None,
            slot=str(name) if action.of == "slot" else None,
            subscription=str(name) if action.of == "subscription" else None,
        )
        try:
            await self._events.add([event])
        except SpillwayError as error:
            log.warning("an event is not stored (%s): %s", event.title, error)

    def _is_known_confirmation(self, action: Action, slot: str) -> bool:
        """Whether the caller advances *slot* as it has done before, with nothing in between."""
        who = caller()
        before = self._confirming.pop(slot, None)
        if action is not SOURCE_ACTIONS["advance"] or who.protocol != GRPC or not who.client:
            return False
        # A new connection has another port, and is the same program.
        host = (who.address or "").rpartition(":")[0]
        if len(self._confirming) >= _CONFIRMING_MAX:
            # The one that was heard of least lately; it is noted once more.
            del self._confirming[next(iter(self._confirming))]
        self._confirming[slot] = now = (who.client, host, who.user)
        return now == before
