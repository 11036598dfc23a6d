"""Alerts in the metadata store: channels, rules, what they have found, and messages to be sent.

What becomes of an alert and the messages that tell of it are one transaction
(:meth:`AlertTable.step`), so nobody is told of what is not stored, and a process that takes over
goes on where the one before was. Rules are locked while they are stepped: two processes never make
two messages of one alert.

A message is *claimed* by putting off when it is due (:meth:`AlertTable.claim`), by the database's
clock: whoever claims it sends it, and if that one dies it is due again. So a message is sent at
least once, and has an id by which a receiver knows it again.

Bounded: :data:`RESOLVED_MAX` alerts that are over and :data:`FINISHED_MAX` messages that are done,
none older than :data:`KEPT_FOR`; :data:`OPEN_MAX` open alerts a rule; :data:`WAITING_MAX` messages
that wait for one channel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import delete, func, insert, or_, select, update

from spillway.errors import UnknownAlertChannel, UnknownAlertRule
from spillway.store.rows import AlertChannelRow, AlertMessageRow, AlertRow, AlertRuleRow
from spillway.store.schema import ALERT_CHANNELS, ALERT_MESSAGES, ALERT_RULES, ALERTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Executable, Table
    from sqlalchemy.engine import Connection, RowMapping

    from spillway.store.database import Database
    from spillway.store.events import EventTable
    from spillway.store.rows import EventRow

RESOLVED_MAX: Final = 5_000
FINISHED_MAX: Final = 5_000
KEPT_FOR: Final = timedelta(days=30)
OPEN_MAX: Final = 1_000
WAITING_MAX: Final = 1_000
#: how long a message is whoever's that claimed it: longer than sending may take
CLAIM_S: Final = 120.0
#: A message is tried again after this at the latest. One that is due later than that was put off by
#: a clock that has been set back since, and is due.
PUT_OFF_MAX_S: Final = 900.0
_PUT_OFF_MAX_MS: Final = int(PUT_OFF_MAX_S * 1000)
#: steps between two trims
_TRIM_STEPS: Final = 200


@dataclass(slots=True)
class Changes:
    """What a step makes of a rule's alerts."""

    #: new alerts, and the messages that tell of them, which get their ids
    opened: list[tuple[AlertRow, list[AlertMessageRow]]] = field(default_factory=list)
    #: columns of alerts, by id
    changed: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: alerts that never came to anything
    dropped: list[int] = field(default_factory=list)
    messages: list[AlertMessageRow] = field(default_factory=list)
    events: list[EventRow] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.opened or self.changed or self.dropped or self.messages)


class AlertTable:
    """All of it. Every method may raise :class:`~spillway.errors.MetadataError`."""

    def __init__(self, database: Database, events: EventTable) -> None:
        self._database = database
        self._events = events
        self._until_trim = 0

    # Channels

    async def channels(self) -> list[AlertChannelRow]:
        """Give every channel, by name."""
        found = await self._rows(select(ALERT_CHANNELS).order_by(ALERT_CHANNELS.c.name))
        return [AlertChannelRow(**columns) for columns in found]

    async def channel(self, name: str) -> AlertChannelRow:
        """Give one channel.

        Raises:
            UnknownAlertChannel: there is none of that name.
        """
        found = await self._rows(select(ALERT_CHANNELS).where(ALERT_CHANNELS.c.name == name))
        if not found:
            raise UnknownAlertChannel(name)
        return AlertChannelRow(**found[0])

    async def put_channel(self, row: AlertChannelRow) -> AlertChannelRow:
        """Make a channel, or have it be so; since when it is there stays."""
        return AlertChannelRow(**await self._put(ALERT_CHANNELS, row))

    async def remove_channel(self, name: str) -> None:
        """Forget a channel, and what waits for it.

        Raises:
            UnknownAlertChannel: there is none of that name.
        """

        def remove(connection: Connection) -> int:
            connection.execute(
                delete(ALERT_MESSAGES).where(
                    ALERT_MESSAGES.c.channel == name, ALERT_MESSAGES.c.state == "waiting"
                )
            )
            of_name = ALERT_CHANNELS.c.name == name
            return connection.execute(delete(ALERT_CHANNELS).where(of_name)).rowcount

        if not await self._database.write(remove):
            raise UnknownAlertChannel(name)

    # Rules

    async def rules(self) -> list[AlertRuleRow]:
        """Give every rule, by name."""
        found = await self._rows(select(ALERT_RULES).order_by(ALERT_RULES.c.name))
        return [AlertRuleRow(**columns) for columns in found]

    async def rule(self, name: str) -> AlertRuleRow:
        """Give one rule.

        Raises:
            UnknownAlertRule: there is none of that name.
        """
        found = await self._rows(select(ALERT_RULES).where(ALERT_RULES.c.name == name))
        if not found:
            raise UnknownAlertRule(name)
        return AlertRuleRow(**found[0])

    async def put_rule(self, row: AlertRuleRow) -> AlertRuleRow:
        """Make a rule, or have it be so; what it has found stays, unless it is disabled."""
        found = AlertRuleRow(**await self._put(ALERT_RULES, row))
        if not row.enabled:
            await self._database.write(lambda connection: _end_alerts(connection, row.name))
        return found

    async def remove_rule(self, name: str) -> None:
        """Forget a rule; what it has found is over, and nobody is told.

        Raises:
            UnknownAlertRule: there is none of that name.
        """

        def remove(connection: Connection) -> int:
            _end_alerts(connection, name)
            of_name = ALERT_RULES.c.name == name
            return connection.execute(delete(ALERT_RULES).where(of_name)).rowcount

        if not await self._database.write(remove):
            raise UnknownAlertRule(name)

    # Alerts

    async def state(
        self,
    ) -> tuple[list[AlertRuleRow], dict[str, list[AlertRow]], frozenset[str]]:
        """Give the rules, what is open or owes that it is over by rule, and the names of the
        channels that are enabled.
        """

        def read(
            connection: Connection,
        ) -> tuple[list[AlertRuleRow], dict[str, list[AlertRow]], frozenset[str]]:
            found = connection.execute(select(ALERT_RULES).order_by(ALERT_RULES.c.name))
            rules = [AlertRuleRow(**columns) for columns in found.mappings()]
            unsettled: dict[str, list[AlertRow]] = {}
            for columns in connection.execute(_unsettled()).mappings():
                row = AlertRow(**columns)
                unsettled.setdefault(row.rule, []).append(row)
            return rules, unsettled, frozenset(connection.scalars(_enabled()))

        return await self._database.read(read)

    async def step(
        self, rule: str, decide: Callable[[Sequence[AlertRow], frozenset[str]], Changes]
    ) -> Changes:
        """Have *decide* make something of what is unsettled of *rule*, and of the names of the
        channels that are enabled; what it gives is done in the same transaction.
        """

        def work(connection: Connection) -> Changes:
            if rule:
                # Another process that steps the same rule waits; a rule that is gone says nothing.
                locked = select(ALERT_RULES.c.name).where(ALERT_RULES.c.name == rule)
                if connection.execute(locked.with_for_update()).first() is None:
                    return Changes()
            rows = [
                AlertRow(**columns)
                for columns in connection.execute(
                    _unsettled().where(ALERTS.c.rule == rule)
                ).mappings()
            ]
            changes = decide(rows, frozenset(connection.scalars(_enabled())))
            self._store(connection, changes, OPEN_MAX - len(rows))
            return changes

        return await self._database.write(work)

    def _store(self, connection: Connection, changes: Changes, room: int) -> None:
        messages = list(changes.messages)
        for row, told in changes.opened[: max(0, room)]:
            values = _values(ALERTS, row)
            number = connection.scalar(insert(ALERTS).values(values).returning(ALERTS.c.id))
            messages += [_of_alert(message, number) for message in told]
        for number, columns in changes.changed.items():
            connection.execute(update(ALERTS).where(ALERTS.c.id == number).values(columns))
        if changes.dropped:
            connection.execute(delete(ALERTS).where(ALERTS.c.id.in_(changes.dropped)))
        for message in messages:
            _queue(connection, message)
        if changes.events:
            self._events.insert(connection, changes.events)
        self._until_trim -= 1
        if self._until_trim <= 0:
            self._until_trim = _TRIM_STEPS
            _trim(connection)

    async def alerts(self, limit: int, *, state: str | None = None) -> list[AlertRow]:
        """Return what rules have found, the newest first: all, or what is ``pending``, ``firing``
        or ``resolved``.
        """
        statement = select(ALERTS).where(ALERTS.c.rule != "")
        if state == "resolved":
            statement = statement.where(ALERTS.c.resolved_at.is_not(None))
        elif state is not None:
            statement = statement.where(ALERTS.c.resolved_at.is_(None))
            fired = ALERTS.c.fired_at
            statement = statement.where(
                fired.is_(None) if state == "pending" else fired.is_not(None)
            )
        found = await self._rows(statement.order_by(ALERTS.c.id.desc()).limit(limit))
        return [AlertRow(**columns) for columns in found]

    # Messages

    async def add_message(self, message: AlertMessageRow) -> None:
        """Have *message* be sent."""
        await self._database.write(lambda connection: _queue(connection, message))

    async def messages(self, limit: int, *, state: str | None = None) -> list[AlertMessageRow]:
        """Return messages, the newest first: all, or those that are ``waiting``, ``sent`` or
        ``failed``.
        """
        statement = select(ALERT_MESSAGES).order_by(ALERT_MESSAGES.c.id.desc()).limit(limit)
        if state is not None:
            statement = statement.where(ALERT_MESSAGES.c.state == state)
        return [AlertMessageRow(**columns) for columns in await self._rows(statement)]

    async def counts(self) -> dict[tuple[str, str], int]:
        """Count the messages that are kept, by channel and state."""
        columns = ALERT_MESSAGES.c
        statement = select(columns.channel, columns.state, func.count()).group_by(
            columns.channel, columns.state
        )
        found = await self._database.read(lambda connection: connection.execute(statement).all())
        return {(channel, state): count for channel, state, count in found}

    async def due(self) -> list[tuple[int, str]]:
        """Give the ids and channels of messages that are due, oldest first; one whose alert has an
        older one that waits for the same channel is not yet.
        """
        columns = ALERT_MESSAGES.c
        statement = (
            select(columns.id, columns.channel, columns.alert_id, columns.next_at_ms)
            .where(columns.state == "waiting")
            .order_by(columns.id)
        )

        def read(connection: Connection) -> list[tuple[int, str]]:
            now_ms = connection.scalar(select(self._database.clock)) or 0
            found, before = [], set()
            for number, channel, alert_id, next_at_ms in connection.execute(statement):
                is_due = not now_ms < next_at_ms <= now_ms + _PUT_OFF_MAX_MS
                if is_due and (channel, alert_id) not in before:
                    found.append((number, channel))
                if alert_id is not None:
                    before.add((channel, alert_id))
            return found

        return await self._database.read(read)

    async def claim(self, number: int) -> AlertMessageRow | None:
        """Claim a message that is due, to send it; None: another process did, or it is gone."""
        columns = ALERT_MESSAGES.c
        now = self._database.clock
        statement = (
            update(ALERT_MESSAGES)
            .where(columns.id == number, columns.state == "waiting")
            .where(or_(columns.next_at_ms <= now, columns.next_at_ms > now + _PUT_OFF_MAX_MS))
            .values(attempts=columns.attempts + 1, next_at_ms=now + int(CLAIM_S * 1000))
            .returning(*columns)
        )

        def claim(connection: Connection) -> RowMapping | None:
            return connection.execute(statement).mappings().one_or_none()

        found = await self._database.write(claim)
        return None if found is None else AlertMessageRow(**found)

    async def finish(self, number: int, state: str, error: str | None = None) -> None:
        """Know that a message was ``sent``, or has ``failed`` for good."""
        values = {"state": state, "error": error, "finished_at": datetime.now(UTC)}
        await self._change_message(number, values)

    async def put_off(self, number: int, seconds: float, error: str) -> None:
        """Try a message again in *seconds*, :data:`PUT_OFF_MAX_S` at most."""
        next_at_ms = self._database.clock + int(min(seconds, PUT_OFF_MAX_S) * 1000)
        await self._change_message(number, {"next_at_ms": next_at_ms, "error": error})

    async def _change_message(self, number: int, values: Mapping[str, Any]) -> None:
        statement = update(ALERT_MESSAGES).where(ALERT_MESSAGES.c.id == number).values(values)
        await self._database.write(lambda connection: connection.execute(statement))

    # -----

    async def _rows(self, statement: Executable) -> list[RowMapping]:
        return await self._database.read(
            lambda connection: list(connection.execute(statement).mappings())
        )

    async def _put(self, table: Table, row: AlertChannelRow | AlertRuleRow) -> RowMapping:
        values = {column.name: getattr(row, column.name) for column in table.c}
        changes = {k: v for k, v in values.items() if k not in ("name", "created_at")}

        def put(connection: Connection) -> RowMapping:
            of_name = table.c.name == row.name
            statement = update(table).where(of_name).values(changes).returning(*table.c)
            found = connection.execute(statement).mappings().one_or_none()
            if found is None:
                # Another process may make it at the same moment: that one's caller is first then,
                # and this one's gets a conflict of the database's.
                made = insert(table).values(values).returning(*table.c)
                found = connection.execute(made).mappings().one()
            return found

        return await self._database.write(put)


def _unsettled() -> Any:
    open_or_owing = ALERTS.c.open_key.is_not(None) | ALERTS.c.owes_resolved
    return select(ALERTS).where(open_or_owing).order_by(ALERTS.c.id)


def _end_alerts(connection: Connection, rule: str) -> None:
    """Have what a rule has found be over, without telling anybody."""
    of_rule = ALERTS.c.rule == rule
    # What never fired came to nothing.
    connection.execute(delete(ALERTS).where(of_rule, ALERTS.c.fired_at.is_(None)))
    over = {"open_key": None, "resolved_at": datetime.now(UTC)}
    connection.execute(update(ALERTS).where(of_rule, ALERTS.c.resolved_at.is_(None)).values(over))
    connection.execute(update(ALERTS).where(of_rule).values(owes_resolved=False))


def _enabled() -> Any:
    return select(ALERT_CHANNELS.c.name).where(ALERT_CHANNELS.c.enabled)


def _values(table: Table, row: AlertRow | AlertMessageRow) -> dict[str, Any]:
    values = {column.name: getattr(row, column.name) for column in table.c}
    del values["id"]
    return values


def _of_alert(message: AlertMessageRow, number: int | None) -> AlertMessageRow:
    values = {name: getattr(message, name) for name in AlertMessageRow.__dataclass_fields__}
    document = {**message.document, "alert": {**message.document["alert"], "id": number}}
    return AlertMessageRow(**{**values, "alert_id": number, "document": document})


def _queue(connection: Connection, message: AlertMessageRow) -> None:
    columns = ALERT_MESSAGES.c
    waiting = select(func.count()).where(
        columns.channel == message.channel, columns.state == "waiting"
    )
    values = _values(ALERT_MESSAGES, message)
    if (connection.scalar(waiting) or 0) >= WAITING_MAX:
        error = f"{WAITING_MAX} messages wait for this channel already; it was never tried"
        values |= {"state": "failed", "error": error, "finished_at": datetime.now(UTC)}
    connection.execute(insert(ALERT_MESSAGES).values(values))


def _trim(connection: Connection) -> None:
    """Drop what is over and old, or beyond what is kept."""
    oldest = datetime.now(UTC) - KEPT_FOR
    for table, is_over, at, kept in (
        (ALERTS, ALERTS.c.resolved_at.is_not(None), ALERTS.c.resolved_at, RESOLVED_MAX),
        (
            ALERT_MESSAGES,
            ALERT_MESSAGES.c.state != "waiting",
            ALERT_MESSAGES.c.created_at,
            FINISHED_MAX,
        ),
    ):
        newest = select(table.c.id).where(is_over).order_by(table.c.id.desc())
        last = connection.scalar(newest.offset(kept).limit(1))
        beyond = at < oldest if last is None else (at < oldest) | (table.c.id <= last)
        connection.execute(delete(table).where(is_over, beyond))
