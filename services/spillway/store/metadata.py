"""The metadata store: the one place that remembers sources, slots and leases.

The engine calls it on the event loop; each method is one short transaction, durable when it returns.
Nothing is cached here: several processes may share a database.

Two rules are kept in SQL rather than by whoever calls:

- ``confirm_slot`` never moves a slot backward, whatever order feedback arrives in;
- a lease's fencing token grows with every change of holder, and a write that carries an old one
  (:class:`~spillway.store.rows.Fence`) fails, so that a process that was paused past its lease's end
  can't undo what its successor did.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast

from sqlalchemy import delete, insert, inspect, or_, select, text, update

from spillway.errors import Conflict, DuplicateName, LeaseLost, UnknownSlot, UnknownSource
from spillway.pg.lsn import Lsn
from spillway.store.database import ConstraintViolation, Database, database_clock
from spillway.store.rows import Fence, SlotRow, SourceRow
from spillway.store.schema import REVISION, Lease, Slot, Source

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.engine import Connection, RowMapping
    from sqlalchemy.ext.asyncio import AsyncConnection

_SOURCES: Final = cast("Table", Source.__table__)
_SLOTS: Final = cast("Table", Slot.__table__)
_LEASES: Final = cast("Table", Lease.__table__)

_Row = TypeVar("_Row", SourceRow, SlotRow)


class MetadataStore:
    """Sources, slots and leases in one database.

    Call :meth:`migrate` first, once per process; :meth:`close` last. Every method may raise
    :class:`~spillway.errors.MetadataError`.

    Args:
        url: ``sqlite:///path``, ``postgresql://…`` or ``postgresql+asyncpg://…``.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(url)

    async def migrate(self) -> None:
        """Bring the database to this release's schema; safe while other processes do the same."""
        await self._database.prepare()
        async with self._database.read() as connection:
            revisions = await connection.run_sync(_revisions)
        if revisions != [REVISION]:
            # Alembic takes longer to import than a start should, and most starts have nothing to migrate.
            from spillway.store.migrate import upgrade  # noqa: PLC0415

            await upgrade(self._database)

    async def close(self) -> None:
        """Close every connection."""
        await self._database.close()

    async def ping(self) -> None:
        """Return if the database answers."""
        async with self._database.read() as connection:
            await connection.execute(select(1))

    # Sources

    async def add_source(self, row: SourceRow) -> SourceRow:
        """Remember a source.

        Raises:
            DuplicateName: the name is taken.
        """
        try:
            async with self._database.write() as connection:
                await connection.execute(insert(_SOURCES).values(_columns(row)))
        except ConstraintViolation as error:
            raise DuplicateName(
                f'source "{row.name}" already exists',
                hint="Choose another name, or drop the source first.",
                source=row.name,
            ) from error
        return row

    async def list_sources(self) -> list[SourceRow]:
        """Give every source, by name."""
        async with self._database.read() as connection:
            found = await connection.execute(select(_SOURCES).order_by(_SOURCES.c.name))
            return [_row(SourceRow, mapping) for mapping in found.mappings()]

    async def get_source(self, name: str) -> SourceRow:
        """Give one source.

        Raises:
            UnknownSource: there is none of that name.
        """
        async with self._database.read() as connection:
            found = await connection.execute(select(_SOURCES).where(_SOURCES.c.name == name))
            mapping = found.mappings().one_or_none()
        if mapping is None:
            _raise_unknown_source(name)
        return _row(SourceRow, mapping)

    async def update_source(self, name: str, **changes: object) -> SourceRow:
        """Change columns of a source, named as in :class:`SourceRow`, and give it as it is then.

        Raises:
            UnknownSource: there is none of that name.
        """
        _check_columns(SourceRow, changes, fixed=("name", "capture", "created_at"))
        statement = (
            update(_SOURCES).where(_SOURCES.c.name == name).values(changes).returning(*_SOURCES.c)
        )
        async with self._database.write() as connection:
            mapping = (await connection.execute(statement)).mappings().one_or_none()
        if mapping is None:
            _raise_unknown_source(name)
        return _row(SourceRow, mapping)

    async def remove_source(self, name: str) -> None:
        """Forget a source.

        Raises:
            UnknownSource: there is none of that name.
            Conflict: it still has slots.
        """
        try:
            async with self._database.write() as connection:
                done = await connection.execute(delete(_SOURCES).where(_SOURCES.c.name == name))
        except ConstraintViolation as error:
            raise Conflict(
                f'source "{name}" still has slots', hint="Drop its slots first.", source=name
            ) from error
        if done.rowcount == 0:
            _raise_unknown_source(name)

    # Slots

    async def add_slot(self, row: SlotRow) -> SlotRow:
        """Remember a slot.

        Raises:
            DuplicateName: the name is taken.
            UnknownSource: its source does not exist.
        """
        try:
            async with self._database.write() as connection:
                await connection.execute(insert(_SLOTS).values(_columns(row)))
        except ConstraintViolation as error:
            if error.foreign_key:
                _raise_unknown_source(row.source)
            raise DuplicateName(
                f'replication slot "{row.slot_name}" already exists',
                hint="Choose another name, or drop the slot first.",
                slot=row.slot_name,
            ) from error
        return row

    async def list_slots(self, source: str | None = None) -> list[SlotRow]:
        """Give every slot, by name; those of one source if *source* is given."""
        statement = select(_SLOTS).order_by(_SLOTS.c.slot_name)
        if source is not None:
            statement = statement.where(_SLOTS.c.source == source)
        async with self._database.read() as connection:
            found = await connection.execute(statement)
            return [_row(SlotRow, mapping) for mapping in found.mappings()]

    async def get_slot(self, name: str) -> SlotRow:
        """Give one slot.

        Raises:
            UnknownSlot: there is none of that name.
        """
        async with self._database.read() as connection:
            found = await connection.execute(select(_SLOTS).where(_SLOTS.c.slot_name == name))
            mapping = found.mappings().one_or_none()
        if mapping is None:
            _raise_unknown_slot(name)
        return _row(SlotRow, mapping)

    async def update_slot(
        self, name: str, *, fence: Fence | None = None, **changes: object
    ) -> SlotRow:
        """Change columns of a slot, named as in :class:`SlotRow`, and give it as it is then.

        This is the way to move ``confirmed_flush_lsn`` backward (a rewind).

        Raises:
            UnknownSlot: there is none of that name.
            LeaseLost: *fence* is out of date.
        """
        _check_columns(SlotRow, changes, fixed=("slot_name", "source", "created_at"))
        statement = (
            update(_SLOTS).where(_SLOTS.c.slot_name == name).values(changes).returning(*_SLOTS.c)
        )
        async with self._database.write() as connection:
            await self._check_fence(connection, fence)
            mapping = (await connection.execute(statement)).mappings().one_or_none()
        if mapping is None:
            _raise_unknown_slot(name)
        return _row(SlotRow, mapping)

    async def confirm_slot(self, name: str, lsn: Lsn, *, fence: Fence | None = None) -> Lsn:
        """Advance confirmed_flush_lsn to *lsn*, never backward; give where it stands then.

        Raises:
            UnknownSlot: there is none of that name.
            LeaseLost: *fence* is out of date.
        """
        confirmed = _SLOTS.c.confirmed_flush_lsn
        here = _SLOTS.c.slot_name == name
        async with self._database.write() as connection:
            await self._check_fence(connection, fence)
            await connection.execute(
                update(_SLOTS)
                .where(here, or_(confirmed.is_(None), confirmed < lsn))
                .values(confirmed_flush_lsn=lsn)
            )
            found = (await connection.execute(select(confirmed).where(here))).one_or_none()
        if found is None:
            _raise_unknown_slot(name)
        return Lsn(found[0])

    async def remove_slot(self, name: str) -> None:
        """Forget a slot.

        Raises:
            UnknownSlot: there is none of that name.
        """
        async with self._database.write() as connection:
            done = await connection.execute(delete(_SLOTS).where(_SLOTS.c.slot_name == name))
        if done.rowcount == 0:
            _raise_unknown_slot(name)

    # Leases

    async def acquire_lease(self, resource: str, holder: str, ttl_s: float) -> int | None:
        """Take the lease on *resource* for *ttl_s* seconds; None while somebody else has it.

        The fencing token is larger than any given for the resource before. A holder that has it
        already gets it again at once with a new token: after a restart under the same name nobody
        has to wait for the old lease to run out.
        """
        now = database_clock()
        expires = now + int(ttl_s * 1000)
        values = {"resource": resource, "holder": holder, "token": 1, "expires_at_ms": expires}
        statement = (
            self._insert_lease()
            .values(values)
            .on_conflict_do_update(
                index_elements=[_LEASES.c.resource],
                set_={"holder": holder, "token": _LEASES.c.token + 1, "expires_at_ms": expires},
                where=or_(_LEASES.c.expires_at_ms <= now, _LEASES.c.holder == holder),
            )
            .returning(_LEASES.c.token)
        )
        async with self._database.write() as connection:
            token: int | None = (await connection.execute(statement)).scalar_one_or_none()
        return token

    async def renew_lease(self, resource: str, token: int, ttl_s: float) -> bool:
        """Extend a lease to *ttl_s* seconds from now; false when somebody else has taken it since.

        A lease that ran out but that nobody took is extended: nothing happened in between.
        """
        expires = database_clock() + int(ttl_s * 1000)
        statement = (
            update(_LEASES)
            .where(_LEASES.c.resource == resource, _LEASES.c.token == token)
            .where(_LEASES.c.expires_at_ms > 0)
            .values(expires_at_ms=expires)
        )
        async with self._database.write() as connection:
            return (await connection.execute(statement)).rowcount == 1

    async def release_lease(self, resource: str, token: int) -> None:
        """Give a lease back; nothing happens when it is no longer held."""
        statement = (
            update(_LEASES)
            .where(_LEASES.c.resource == resource, _LEASES.c.token == token)
            # 0 and not "now": a released lease can't be renewed. The token stays, and grows.
            .values(expires_at_ms=0, holder="")
        )
        async with self._database.write() as connection:
            await connection.execute(statement)

    def _insert_lease(self) -> Any:
        # The same clause in both dialects, but SQLAlchemy has an insert() for each.
        # SQLAlchemy has imported the dialect of this database when it made the engine; the other is not needed.
        if self._database.is_sqlite:
            from sqlalchemy.dialects import sqlite  # noqa: PLC0415

            return sqlite.insert(_LEASES)
        from sqlalchemy.dialects import postgresql  # noqa: PLC0415

        return postgresql.insert(_LEASES)

    @staticmethod
    async def _check_fence(connection: AsyncConnection, fence: Fence | None) -> None:
        if fence is None:
            return
        # The lock keeps the lease from changing hands until this transaction is over.
        held = await connection.execute(
            select(_LEASES.c.token)
            .where(_LEASES.c.resource == fence.resource, _LEASES.c.token == fence.token)
            .with_for_update(read=True)
        )
        if held.one_or_none() is None:
            raise LeaseLost(
                f'the lease on "{fence.resource}" was taken over by another process',
                hint="Another process serves it now; this one stops.",
                resource=fence.resource,
                token=fence.token,
            )


def _revisions(connection: Connection) -> list[str]:
    """Give what Alembic wrote of the schema; nothing of a new database."""
    if not inspect(connection).has_table("alembic_version"):
        return []
    return list(connection.execute(text("SELECT version_num FROM alembic_version")).scalars())


def _columns(row: SourceRow | SlotRow) -> dict[str, object]:
    columns = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    for name in ("options", "capture"):
        if name in columns:
            columns[name] = dict(columns[name])  # JSON takes a dict, not any mapping
    return columns


def _row(row_type: type[_Row], mapping: RowMapping) -> _Row:
    # Columns that a newer release added are none of this one's business.
    names = [field.name for field in dataclasses.fields(row_type)]
    return row_type(**{name: mapping[name] for name in names})


def _check_columns(
    row_type: type[SourceRow | SlotRow], changes: dict[str, object], *, fixed: tuple[str, ...]
) -> None:
    allowed = {field.name for field in dataclasses.fields(row_type)} - set(fixed)
    if not changes or not allowed.issuperset(changes):
        msg = f"{row_type.__name__} has no columns {sorted(set(changes) - allowed)} that may change"
        raise TypeError(msg)
    if "options" in changes:
        changes["options"] = dict(changes["options"])  # type: ignore[call-overload]


def _raise_unknown_source(name: str) -> NoReturn:
    raise UnknownSource(
        f'source "{name}" does not exist', hint="GET /v1/sources lists them.", source=name
    )


def _raise_unknown_slot(name: str) -> NoReturn:
    raise UnknownSlot(
        f'replication slot "{name}" does not exist', hint="GET /v1/slots lists them.", slot=name
    )
