"""The metadata store: the one place that remembers sources, slots, leases and subscriptions.

The engine calls it on the event loop; each method is one short transaction, durable when it
returns. Nothing is cached here: several processes may share a database.

Two rules are kept in SQL rather than by whoever calls:

- what happens to a slot (:mod:`spillway.store.slots`) happens only if the slot is as whoever does
  it believes, and a confirmation never moves it backward, whatever order feedback arrives in;
- a lease's fencing token grows with every change of holder, and a write of sources, slots or
  subscriptions that carries an old one (:mod:`spillway.store.fencing`) fails, so that a process
  that was paused past its lease's end can't undo what its successor did.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, NoReturn

from sqlalchemy import and_, delete, insert, inspect, literal, or_, select, text, update

from spillway.errors import (
    Conflict,
    DuplicateName,
    UnknownSource,
    UnknownSubscription,
)
from spillway.store.alerts import AlertTable
from spillway.store.conflicts import ConflictTable
from spillway.store.database import LEASES as LEASES_LANE
from spillway.store.database import NOTES, ConstraintViolation, Database
from spillway.store.events import EventTable
from spillway.store.fencing import check_fence
from spillway.store.metrics import MetricTable
from spillway.store.rows import LeaseState, SourceRow, SubscriptionRow
from spillway.store.schema import LEASES, REVISION, SOURCES, SUBSCRIPTIONS
from spillway.store.schema_changes import SchemaChangeTable
from spillway.store.session_settings import SessionSettingsTable
from spillway.store.slots import SlotTable
from spillway.store.users import UserTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Executable, Table
    from sqlalchemy.engine import Connection, RowMapping

    from spillway.store.rows import Fence


class MetadataStore:
    """Sources, slots, leases and subscriptions in one database.

    Call :meth:`migrate` first, once per process; :meth:`close` last. Every method may raise
    :class:`~spillway.errors.MetadataError`.

    Args:
        url: ``sqlite:///path`` or ``postgresql://…``.
        make_room: called when SQLite's disk is full; true when there is space now that was not
            before.
    """

    def __init__(self, url: str, make_room: Callable[[], bool] = lambda: False) -> None:
        self._database = Database(url, make_room)
        self.slots = SlotTable(self._database)
        self.users = UserTable(self._database)
        self._leases = self._database.in_lane(LEASES_LANE)
        notes = self._database.in_lane(NOTES)
        self.conflicts = ConflictTable(notes)
        self.events = EventTable(notes)
        self.alerts = AlertTable(notes, self.events)
        self.metrics = MetricTable(notes)
        self.schema_changes = SchemaChangeTable(notes)
        self.session_settings = SessionSettingsTable(self._database)

    async def migrate(self) -> None:
        """Bring the database to this release's schema; safe while other processes do the same."""
        await self._database.prepare()
        revisions = await self._database.read(_revisions)
        if revisions != [REVISION]:
            # Alembic takes longer to import than a start should, and most starts have nothing to
            # migrate.
            from spillway.store.migrate import upgrade  # noqa: PLC0415

            await upgrade(self._database)

    def hurry(self) -> None:
        """Wait for the database no longer than a service may that stops."""
        self._database.hurry()

    async def close(self) -> None:
        """Close every connection."""
        await self._database.close()

    async def ping(self) -> None:
        """Return if the database answers."""
        await self._database.read(lambda connection: connection.execute(select(1)))

    # Sources

    async def add_source(self, row: SourceRow, *, fence: Fence | None = None) -> SourceRow:
        """Remember a source.

        Raises:
            DuplicateName: the name is taken.
            LeaseLost: *fence* is out of date.
        """
        try:
            await self._run(_insert(SOURCES, row), fence)
        except ConstraintViolation as error:
            raise DuplicateName(
                f'source "{row.name}" already exists',
                hint="Choose another name, or drop the source first.",
                source=row.name,
            ) from error
        return row

    async def list_sources(self) -> list[SourceRow]:
        """Give every source, by name."""
        found = await self._rows(select(SOURCES).order_by(SOURCES.c.name))
        return [SourceRow(**columns) for columns in found]

    async def get_source(self, name: str) -> SourceRow:
        """Give one source.

        Raises:
            UnknownSource: there is none of that name.
        """
        found = await self._rows(select(SOURCES).where(SOURCES.c.name == name))
        if not found:
            _raise_unknown_source(name)
        return SourceRow(**found[0])

    async def update_source(
        self, name: str, *, fence: Fence | None = None, **changes: object
    ) -> SourceRow:
        """Change columns of a source, named as in :class:`SourceRow`, and give it as it is then.

        Raises:
            UnknownSource: there is none of that name.
            LeaseLost: *fence* is out of date.
        """
        _check_columns(SourceRow, changes, fixed=("name", "capture", "created_at"))
        statement = (
            update(SOURCES).where(SOURCES.c.name == name).values(changes).returning(*SOURCES.c)
        )
        found = await self._change(statement, fence)
        if found is None:
            _raise_unknown_source(name)
        return SourceRow(**found)

    async def remove_source(self, name: str, *, fence: Fence | None = None) -> None:
        """Forget a source.

        Raises:
            UnknownSource: there is none of that name.
            Conflict: it still has slots.
            LeaseLost: *fence* is out of date.
        """
        try:
            removed = await self._run(delete(SOURCES).where(SOURCES.c.name == name), fence)
        except ConstraintViolation as error:
            raise Conflict(
                f'source "{name}" still has slots', hint="Drop its slots first.", source=name
            ) from error
        if not removed:
            _raise_unknown_source(name)

    async def probe(self, holder: str) -> None:
        """Write what nobody needs, to know that what is needed could be written.

        One row for each *holder*, the process's own.
        """
        now = self._database.clock
        values = {"resource": f"probe/{holder}", "holder": holder, "token": 0, "expires_at_ms": now}
        statement = self._insert_lease().values(values)
        statement = statement.on_conflict_do_update(
            index_elements=[LEASES.c.resource], set_={"expires_at_ms": now}
        )
        await self._run(statement)

    # Subscriptions

    async def add_subscription(
        self, row: SubscriptionRow, *, fence: Fence | None = None
    ) -> SubscriptionRow:
        """Remember a subscription.

        Raises:
            DuplicateName: the name is taken, or another one has the slot.
            LeaseLost: *fence* is out of date.
        """
        try:
            await self._run(_insert(SUBSCRIPTIONS, row), fence)
        except ConstraintViolation as error:
            raise DuplicateName(
                f'subscription "{row.name}" already exists, or another one has slot "{row.slot}"',
                hint="Choose another name and another slot, or drop that subscription first.",
                subscription=row.name,
                slot=row.slot,
            ) from error
        return row

    async def list_subscriptions(self) -> list[SubscriptionRow]:
        """Give every subscription, by name."""
        found = await self._rows(select(SUBSCRIPTIONS).order_by(SUBSCRIPTIONS.c.name))
        return [SubscriptionRow(**columns) for columns in found]

    async def update_subscription(
        self, name: str, *, fence: Fence | None = None, **changes: object
    ) -> SubscriptionRow:
        """Change columns of a subscription, named as in :class:`SubscriptionRow`, and give it as it
        is then.

        Raises:
            UnknownSubscription: there is none of that name.
            LeaseLost: *fence* is out of date.
        """
        _check_columns(SubscriptionRow, changes, fixed=("name", "source", "slot", "created_at"))
        statement = (
            update(SUBSCRIPTIONS)
            .where(SUBSCRIPTIONS.c.name == name)
            .values(changes)
            .returning(*SUBSCRIPTIONS.c)
        )
        found = await self._change(statement, fence)
        if found is None:
            raise UnknownSubscription(name)
        return SubscriptionRow(**found)

    async def remove_subscription(self, name: str, *, fence: Fence | None = None) -> None:
        """Forget a subscription; nothing happens when there is none of that name.

        Raises:
            LeaseLost: *fence* is out of date.
        """
        await self._run(delete(SUBSCRIPTIONS).where(SUBSCRIPTIONS.c.name == name), fence)

    # Leases

    async def acquire_lease(
        self, resource: str, holder: str, ttl_s: float, *, restarted: bool = True
    ) -> int | None:
        """Take the lease on *resource* for *ttl_s* seconds; None while somebody else has it.

        The fencing token is larger than any given for the resource before. A holder that has it
        already and has *restarted* gets it again at once with a new token: nobody has to wait for
        the old lease to run out. One that has lost it while it ran has not: whoever took it under
        the same name lives.
        """
        now = self._database.clock
        expires = now + int(ttl_s * 1000)
        values = {"resource": resource, "holder": holder, "token": 1, "expires_at_ms": expires}
        statement = (
            self._insert_lease()
            .values(values)
            .on_conflict_do_update(
                index_elements=[LEASES.c.resource],
                set_={"holder": holder, "token": LEASES.c.token + 1, "expires_at_ms": expires},
                where=or_(
                    LEASES.c.expires_at_ms <= now,
                    and_(LEASES.c.holder == holder, literal(restarted)),
                ),
            )
            .returning(LEASES.c.token)
        )
        taken = await self._leases.write(lambda connection: _row(connection, statement))
        return None if taken is None else int(taken["token"])

    async def lease(self, resource: str) -> LeaseState | None:
        """Say how the lease on *resource* stands; None when it was given back, or never taken."""
        statement = select(
            LEASES.c.holder,
            LEASES.c.token,
            LEASES.c.expires_at_ms,
            (LEASES.c.expires_at_ms <= self._database.clock).label("has_run_out"),
        ).where(LEASES.c.resource == resource)
        found = await self._leases.read(lambda c: c.execute(statement).one_or_none())
        return None if found is None or not found.holder else LeaseState(*found)

    async def renew_lease(self, resource: str, token: int, ttl_s: float) -> bool:
        """Extend a lease to *ttl_s* seconds from now; false when somebody else has taken it since.

        A lease that ran out but that nobody took is extended: nothing happened in between.
        """
        expires = self._database.clock + int(ttl_s * 1000)
        statement = (
            update(LEASES)
            .where(LEASES.c.resource == resource, LEASES.c.token == token)
            .where(LEASES.c.expires_at_ms > 0)
            .values(expires_at_ms=expires)
        )
        return await self._leases.write(lambda c: c.execute(statement).rowcount) == 1

    async def release_lease(self, resource: str, token: int) -> None:
        """Give a lease back; nothing happens when it is no longer held."""
        statement = (
            update(LEASES)
            .where(LEASES.c.resource == resource, LEASES.c.token == token)
            # 0 and not "now": a released lease can't be renewed. The token stays, and grows.
            .values(expires_at_ms=0, holder="")
        )
        await self._leases.write(lambda connection: connection.execute(statement))

    async def _rows(self, statement: Executable) -> list[RowMapping]:
        return await self._database.read(
            lambda connection: list(connection.execute(statement).mappings())
        )

    async def _run(self, statement: Executable, fence: Fence | None = None) -> int:
        """Run what gives no rows; return how many it was about."""

        def run(connection: Connection) -> int:
            check_fence(connection, fence)
            return connection.execute(statement).rowcount

        return await self._database.write(run)

    async def _change(self, statement: Executable, fence: Fence | None) -> RowMapping | None:
        """Run what gives one row, or none."""

        def change(connection: Connection) -> RowMapping | None:
            check_fence(connection, fence)
            return _row(connection, statement)

        return await self._database.write(change)

    def _insert_lease(self) -> Any:
        # The same clause in both dialects, but SQLAlchemy has an insert() for each.
        # SQLAlchemy has imported the dialect of this database when it made the engine; the other is
        # not needed.
        if self._database.is_sqlite:
            from sqlalchemy.dialects import sqlite  # noqa: PLC0415

            return sqlite.insert(LEASES)
        from sqlalchemy.dialects import postgresql  # noqa: PLC0415

        return postgresql.insert(LEASES)


def _row(connection: Connection, statement: Executable) -> RowMapping | None:
    return connection.execute(statement).mappings().one_or_none()


def _revisions(connection: Connection) -> list[str]:
    """Give what Alembic wrote of the schema; nothing of a new database."""
    if not inspect(connection).has_table("alembic_version"):
        return []
    return list(connection.execute(text("SELECT version_num FROM alembic_version")).scalars())


def _insert(table: Table, row: SourceRow | SubscriptionRow) -> Executable:
    return insert(table).values({column.name: getattr(row, column.name) for column in table.c})


def _check_columns(
    row_type: type[SourceRow | SubscriptionRow],
    changes: dict[str, object],
    *,
    fixed: tuple[str, ...],
) -> None:
    allowed = {field.name for field in fields(row_type)} - set(fixed)
    if not changes or not allowed.issuperset(changes):
        msg = f"{row_type.__name__} has no columns {sorted(set(changes) - allowed)} that may change"
        raise TypeError(msg)


def _raise_unknown_source(name: str) -> NoReturn:
    raise UnknownSource(
        f'source "{name}" does not exist', hint="GET /v1/sources lists them.", source=name
    )
