"""What interfaces call: channels, rules, what they have found, messages, events.

Used on the event loop. What is declared is the metadata store's, so every process that has the same
one shows and keeps the same.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from spillway.alerts.channels import CHANNELS_MAX, CONFIG, SENDERS, checked_channel
from spillway.alerts.rules import RULES_MAX, checked_rule
from spillway.caller import caller
from spillway.errors import (
    AlertNotDelivered,
    Conflict,
    InvalidRequest,
    SpillwayError,
)
from spillway.store.rows import AlertMessageRow, EventRow
from spillway.watch.actions import caller_document
from spillway.watch.newest_first import page_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from spillway.store.metadata import MetadataStore
    from spillway.store.rows import AlertChannelRow, AlertRow, AlertRuleRow
    from spillway.watch.newest_first import Page

log = logging.getLogger(__name__)

LIMIT_MAX: Final = 1000
#: characters of a text that events are searched for
SEARCH_MAX: Final = 200
_STATES: Final = ("pending", "firing", "resolved")
_MESSAGE_STATES: Final = ("waiting", "sent", "failed")


class Alerts:
    """Channels and rules, and what came of them."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._table = metadata.alerts
        self._events = metadata.events
        # Of this process: two that make one at once must not go beyond the bound.
        self._declaring = asyncio.Lock()

    # Channels

    async def channels(self) -> list[AlertChannelRow]:
        """Give every channel, by name."""
        return await self._table.channels()

    async def channel(self, name: str) -> AlertChannelRow:
        """Give one channel.

        Raises:
            UnknownAlertChannel: there is none of that name.
        """
        return await self._table.channel(name)

    async def put_channel(self, name: str, given: Mapping[str, Any]) -> AlertChannelRow:
        """Make a channel, or have it be so; secrets that are left out stay.

        Raises:
            InvalidRequest: something of it can't be.
            Conflict: there are as many as there may be.
        """
        async with self._declaring:
            there = {row.name: row for row in await self._table.channels()}
            row = checked_channel(name, given, there.get(name))
            _check_room(name, there, CHANNELS_MAX, "channels")
            row = await self._table.put_channel(row)
        what = "was changed" if name in there else "was made"
        await self._note(f"Alert channel {name} {what}")
        return row

    async def drop_channel(self, name: str) -> None:
        """Forget a channel, and what waits for it.

        Raises:
            UnknownAlertChannel: there is none of that name.
            Conflict: a rule tells it.
        """
        async with self._declaring:
            using = [rule.name for rule in await self._table.rules() if name in rule.channels]
            if using:
                raise Conflict(
                    f'alert rule "{using[0]}" tells channel "{name}"',
                    hint=f"DELETE /v1/alerts/rules/{using[0]} drops the rule; or change it.",
                    rules=using,
                )
            await self._table.remove_channel(name)
        await self._note(f"Alert channel {name} was dropped")

    async def test_channel(self, name: str) -> None:
        """Send a message that says that it is a test, now; return when it was taken.

        Raises:
            UnknownAlertChannel: there is none of that name.
            AlertNotDelivered: it was not taken.
        """
        channel = await self._table.channel(name)
        now = datetime.now(UTC).isoformat()
        alert = {
            "id": None,
            "code": "test",
            "subject": name,
            "source": None,
            "severity": "ok",
            "title": f"Spillway can reach channel {name}",
            "detail": "Somebody had it be tested. Nothing is wrong.",
            "remedy": "",
            "link": "/",
            "fired_at": now,
            "resolved_at": None,
        }
        message = AlertMessageRow(
            message_id=str(uuid.uuid4()),
            alert_id=None,
            rule="",
            channel=name,
            reason="test",
            document={"reason": "test", "rule": "", "alert": alert},
        )
        await deliver(channel, message)
        await self._note(f"Alert channel {name} was tested")

    # Rules

    async def rules(self) -> list[AlertRuleRow]:
        """Give every rule, by name."""
        return await self._table.rules()

    async def rule(self, name: str) -> AlertRuleRow:
        """Give one rule.

        Raises:
            UnknownAlertRule: there is none of that name.
        """
        return await self._table.rule(name)

    async def put_rule(self, name: str, given: Mapping[str, Any]) -> AlertRuleRow:
        """Make a rule, or have it be so; what is left out is as by default.

        Raises:
            InvalidRequest: something of it can't be.
            Conflict: there are as many as there may be.
        """
        async with self._declaring:
            there = {row.name for row in await self._table.rules()}
            channels = [row.name for row in await self._table.channels()]
            row = checked_rule(name, given, channels)
            _check_room(name, there, RULES_MAX, "rules")
            row = await self._table.put_rule(row)
        await self._note(f"Alert rule {name} {'was changed' if name in there else 'was made'}")
        return row

    async def drop_rule(self, name: str) -> None:
        """Forget a rule; what it has found is over, and nobody is told.

        Raises:
            UnknownAlertRule: there is none of that name.
        """
        await self._table.remove_rule(name)
        await self._note(f"Alert rule {name} was dropped")

    # What came of them

    async def alerts(self, limit: int, *, state: str | None = None) -> list[AlertRow]:
        """Return what rules have found, the newest first; all states unless one is named.

        Raises:
            InvalidRequest: there is no such state.
        """
        return await self._table.alerts(limit, state=_one_of("state", state, _STATES))

    async def messages(self, limit: int, *, state: str | None = None) -> list[AlertMessageRow]:
        """Return messages to channels, the newest first; all states unless one is named.

        Raises:
            InvalidRequest: there is no such state.
        """
        return await self._table.messages(limit, state=_one_of("state", state, _MESSAGE_STATES))

    async def firing_counts(self) -> dict[tuple[str, str, str], int]:
        """Count what is firing, by rule, code and severity."""
        firing = await self._table.alerts(LIMIT_MAX, state="firing")
        return dict(Counter((row.rule, row.code, row.severity) for row in firing))

    async def message_counts(self) -> dict[tuple[str, str], int]:
        """Count the messages that are kept, by channel and state."""
        return await self._table.counts()

    async def events(
        self,
        limit: int,
        *,
        before: int | None = None,
        since: datetime | None = None,
        search: str | None = None,
        **where: str | None,
    ) -> list[EventRow]:
        """Return what happened, the newest first; see
        :meth:`spillway.store.events.EventTable.last`.
        """
        return await self._events.last(limit, before=before, since=since, search=search, **where)

    async def page_of_events(self, limit: int, **question: Any) -> Page[EventRow]:
        """Return a page of what happened; the question is that of :meth:`events`."""
        return page_of(await self.events(limit + 1, **question), limit)

    async def _note(self, title: str) -> None:
        event = EventRow(kind="action", title=title, caller=caller_document(caller()))
        try:
            await self._events.add([event])
        except SpillwayError as error:
            # What was done is done.
            log.warning("an event is not stored (%s): %s", title, error)


async def deliver(channel: AlertChannelRow, message: AlertMessageRow) -> None:
    """Send *message* to *channel* now.

    Raises:
        AlertNotDelivered: it was not taken.
    """
    try:
        await SENDERS[channel.kind](channel, message)
    except AlertNotDelivered as error:
        error.details.setdefault("channel", channel.name)
        raise
    except Exception as error:
        log.exception("channel %s failed", channel.name)
        raise AlertNotDelivered(
            f'alert channel "{channel.name}" failed: {type(error).__name__}',
            hint="The service's log says more; please report it.",
            channel=channel.name,
        ) from error


def channel_document(row: AlertChannelRow) -> dict[str, Any]:
    """Return a channel as it is shown: of its secrets, their names."""
    shown = {name: row.config.get(name) for name in CONFIG[row.kind]}
    return {
        "name": row.name,
        "kind": row.kind,
        "enabled": row.enabled,
        **shown,
        "secrets": sorted(row.secrets),
        "created_at": row.created_at,
    }


def message_document(row: AlertMessageRow) -> dict[str, Any]:
    """Return a message as it is shown: of what it says, the title."""
    shown = asdict(row)
    return {**shown, "title": shown.pop("document")["alert"]["title"]}


def _check_room(name: str, there: Collection[str], most: int, what: str) -> None:
    if name not in there and len(there) >= most:
        raise Conflict(
            f"there are {most} alert {what}, as many as there may be", hint="Drop one first."
        )


def _one_of(name: str, given: str | None, known: tuple[str, ...]) -> str | None:
    if given is not None and given not in known:
        raise InvalidRequest(f"{name} is {given!r}", hint=f"There are {', '.join(known)}.")
    return given
