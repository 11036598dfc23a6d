"""Does what alerts need as time goes on: holds what is found against the rules, and sends.

At every look of the sampler's, but not more often than each :data:`STEP_S`, rules are stepped
(:mod:`spillway.alerts.states`). What is stored is read first, and only where something changes is
anything written. A process steps what it sees itself: what concerns a source is the business of the
process that holds its lease, what concerns the service each process's own.

Messages that are due are sent channel by channel, one after the other within a channel, so that a
receiver that hangs holds up nobody but itself. One that is not taken is tried again, later and
later, :data:`ATTEMPTS_MAX` times in about two hours; then it has failed, which is an event.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from spillway.alerts.quiet import is_quiet
from spillway.alerts.registry import deliver
from spillway.alerts.rules import concerns, limits_of
from spillway.alerts.states import Look, decide
from spillway.errors import AlertNotDelivered, SpillwayError, UnknownAlertChannel
from spillway.store.alerts import PUT_OFF_MAX_S
from spillway.store.database import ConstraintViolation
from spillway.store.rows import AlertRuleRow, EventRow
from spillway.watch.findings import CODES, Limits, told

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spillway.service.interface import EngineInterface
    from spillway.store.alerts import Changes
    from spillway.store.metadata import MetadataStore
    from spillway.store.rows import AlertMessageRow, AlertRow
    from spillway.watch.findings import Finding
    from spillway.watch.sampler import Sampler, View

log = logging.getLogger(__name__)

STEP_S: Final = 5.0
#: how often messages are looked for that nobody here has made
_LOOK_S: Final = 5.0
ATTEMPTS_MAX: Final = 12
_FIRST_RETRY_S: Final = 10.0
#: What every start brings for a moment: no event is made of it.
_PASSING: Final = frozenset({"catching_up", "source_unheard", "not_consistent"})
#: The service's own rule: what is wrong and what is over becomes an event.
_EVENTS: Final = AlertRuleRow(
    name="", codes=[code for code in CODES if code not in _PASSING], hold_s=5, clear_s=10
)


class Watchman:
    """Used on the event loop."""

    def __init__(
        self, metadata: MetadataStore, engine: EngineInterface, sampler: Sampler, process: str
    ) -> None:
        self._table = metadata.alerts
        self._events = metadata.events
        self._engine = engine
        self._sampler = sampler
        #: names this process, also after it was started again
        self._process = process
        self._tasks: list[asyncio.Task[None]] = []
        #: what sends to a channel, by its name
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._queued = asyncio.Event()
        #: what fails and was logged: an outage is one line, not one each five seconds
        self._failures: set[str] = set()

    def start(self) -> None:
        """Begin."""
        self._tasks = [
            asyncio.create_task(self._watch(), name="spillway-alerts"),
            asyncio.create_task(self._send(), name="spillway-alert-messages"),
        ]

    async def stop(self) -> None:
        """End it; what was being sent is due again later. Safe to call twice."""
        tasks = [*self._tasks, *self._sending.values()]
        self._tasks = []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- looking ------------------------------------------------------------------------------

    async def _watch(self) -> None:
        stepped_at = -STEP_S
        while True:
            view = await self._sampler.next_look()
            if time.monotonic() - stepped_at < STEP_S:
                continue
            stepped_at = time.monotonic()
            try:
                await self.step(view, datetime.now(UTC))
            except SpillwayError as error:
                self._log_once("alerts can't be kept", error)
            except Exception:
                log.exception("alerts can't be kept; it is tried again")
            else:
                self._failures.discard("alerts can't be kept")

    def _log_once(self, what: str, error: SpillwayError) -> None:
        """Log the first failure until it works again, whatever others say."""
        if what not in self._failures:
            log.warning("%s: %s", what, error)
        self._failures.add(what)

    async def step(self, view: View, now: datetime) -> None:
        """Hold what *view* shows against every rule, as of *now*."""
        if view.error is not None:
            # What is shown is what was: nothing is known.
            return
        rules, unsettled, channels = await self._table.state()
        found: dict[Limits, list[Finding]] = {}
        unknown = view.unknown()
        sources = {source.info.name for source in view.sources}

        def is_mine(row: AlertRow) -> bool:
            if row.process:
                return row.process == self._process
            return self._serves(row.source) or row.source not in sources

        for rule in (_EVENTS, *rules):
            if not rule.enabled:
                continue
            if rule.codes is not None and rule is not _EVENTS and "primary_keeps_wal" in rule.codes:
                # Primaries are asked only while somebody wants to know.
                self._sampler.watch()
            limits = limits_of(rule)
            if limits not in found:
                found[limits] = self._own(view.everything(limits))
            # What a rule does not ask for takes the place of nothing that it does: a slot that
            # lags still does when its consumer is gone, too.
            heard = told(found[limits], partial(concerns, rule))
            look = Look(
                now=now,
                findings=heard.findings,
                superseded=heard.superseded,
                unknown=unknown,
                is_mine=is_mine,
                quiet=is_quiet(rule.quiet, now),
                process=self._process,
                makes_events=rule is _EVENTS,
            )
            if decide(rule, look, unsettled.get(rule.name, ()), channels):
                await self._step_rule(rule, look)

    async def _step_rule(self, rule: AlertRuleRow, look: Look) -> None:
        def again(rows: Sequence[AlertRow], channels: frozenset[str]) -> Changes:
            return decide(rule, look, rows, channels)

        # Another process may have found the same at the same moment: then it is there.
        with contextlib.suppress(ConstraintViolation):
            changes = await self._table.step(rule.name, again)
            if changes.messages or changes.opened:
                self._queued.set()

    def _own(self, findings: Sequence[Finding]) -> list[Finding]:
        return [one for one in findings if not one.source or self._serves(one.source)]

    def _serves(self, source: str) -> bool:
        return self._engine.fence(source) is not None

    # -- sending ------------------------------------------------------------------------------

    async def _send(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._queued.wait()
            self._queued.clear()
            try:
                await self._send_due()
            except SpillwayError as error:
                self._log_once("messages of alerts can't be looked for", error)
            except Exception:
                log.exception("messages of alerts can't be sent; it is tried again")
            else:
                self._failures.discard("messages of alerts can't be looked for")

    async def _send_due(self) -> None:
        due: dict[str, list[int]] = {}
        for number, channel in await self._table.due():
            due.setdefault(channel, []).append(number)
        self._sending = {k: task for k, task in self._sending.items() if not task.done()}
        for channel, numbers in due.items():
            if channel not in self._sending:
                self._sending[channel] = asyncio.create_task(
                    self._send_to(channel, numbers), name=f"spillway-alert-channel-{channel}"
                )

    async def _send_to(self, name: str, numbers: Sequence[int]) -> None:
        try:
            for number in numbers:
                message = await self._table.claim(number)
                if message is not None:
                    await self._try(name, message)
            # Behind these others of the same alerts may have waited.
            self._queued.set()
        except SpillwayError as error:
            self._log_once("what became of messages can't be stored", error)
        else:
            self._failures.discard("what became of messages can't be stored")

    async def _try(self, name: str, message: AlertMessageRow) -> None:
        try:
            channel = await self._table.channel(name)
        except UnknownAlertChannel as error:
            await self._table.finish(message.id, "failed", error.message)
            return
        if not channel.enabled:
            await self._table.finish(message.id, "failed", "the channel is disabled")
            return
        try:
            await deliver(channel, message)
        except AlertNotDelivered as error:
            await self._not_taken(message, error)
        else:
            await self._table.finish(message.id, "sent")

    async def _not_taken(self, message: AlertMessageRow, error: AlertNotDelivered) -> None:
        title = message.document["alert"]["title"]
        log.warning(
            "channel %s did not take “%s” (attempt %d): %s",
            message.channel, title, message.attempts, error,
        )  # fmt: skip
        if message.attempts < ATTEMPTS_MAX:
            wait_s = min(PUT_OFF_MAX_S, _FIRST_RETRY_S * 2 ** (message.attempts - 1))
            await self._table.put_off(message.id, wait_s, error.message)
            return
        await self._table.finish(message.id, "failed", error.message)
        event = EventRow(
            kind="message",
            severity="bad",
            title=f"Channel {message.channel} was not told: {title}",
            detail=f"It was tried {message.attempts} times. {error.message}. {error.hint}",
        )
        await self._events.add([event])
