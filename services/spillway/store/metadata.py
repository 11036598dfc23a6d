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

from typing import TYPE_CHECKING, NoReturn

from spillway.errors import Conflict, DuplicateName, LeaseLost, UnknownSlot, UnknownSource
from spillway.store import tables
from spillway.store.database import ConstraintViolation, Database
from spillway.store.rows import Fence, SlotRow, SourceRow, from_columns, to_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spillway.pg.lsn import Lsn
    from spillway.store.database import Connection


class MetadataStore:
    """Sources, slots and leases in one database.

    Call :meth:`migrate` first, once per process; :meth:`close` last. Every method may raise
    :class:`~spillway.errors.MetadataError`.

    Args:
        url: ``sqlite:///path`` or ``postgresql://…``.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(url)

    async def migrate(self) -> None:
        """Bring the database to this release's schema; safe while other processes do the same."""
        await self._database.prepare()
        revisions = await self._database.read(tables.revisions)
        if not revisions:
            revisions = await self._database.write(tables.create)
        if revisions != [tables.REVISION]:
            # Alembic and SQLAlchemy take longer to import than a start should, and most starts have nothing to migrate.
            from spillway.store.migrate import upgrade  # noqa: PLC0415

            await upgrade(self._database)

    async def close(self) -> None:
        """Close every connection."""
        await self._database.close()

    async def ping(self) -> None:
        """Return if the database answers."""
        await self._database.read(lambda connection: connection.rows("SELECT 1"))

    # Sources

    async def add_source(self, row: SourceRow) -> SourceRow:
        """Remember a source.

        Raises:
            DuplicateName: the name is taken.
        """
        try:
            await self._insert("sources", row)
        except ConstraintViolation as error:
            raise DuplicateName(
                f'source "{row.name}" already exists',
                hint="Choose another name, or drop the source first.",
                source=row.name,
            ) from error
        return row

    async def list_sources(self) -> list[SourceRow]:
        """Give every source, by name."""
        found = await self._database.read(
            lambda connection: connection.rows("SELECT * FROM sources ORDER BY name")
        )
        return [from_columns(SourceRow, columns) for columns in found]

    async def get_source(self, name: str) -> SourceRow:
        """Give one source.

        Raises:
            UnknownSource: there is none of that name.
        """
        found = await self._database.read(
            lambda connection: connection.row("SELECT * FROM sources WHERE name = :name", name=name)
        )
        if found is None:
            _raise_unknown_source(name)
        return from_columns(SourceRow, found)

    async def update_source(self, name: str, **changes: object) -> SourceRow:
        """Change columns of a source, named as in :class:`SourceRow`, and give it as it is then.

        Raises:
            UnknownSource: there is none of that name.
        """
        values = to_columns(
            SourceRow, changes, self._database.backend, fixed=("name", "capture", "created_at")
        )
        statement = f"UPDATE sources SET {_assigned(values)} WHERE name = :its_name RETURNING *"
        found = await self._database.write(
            lambda connection: connection.row(statement, its_name=name, **values)
        )
        if found is None:
            _raise_unknown_source(name)
        return from_columns(SourceRow, found)

    async def remove_source(self, name: str) -> None:
        """Forget a source.

        Raises:
            UnknownSource: there is none of that name.
            Conflict: it still has slots.
        """
        try:
            removed = await self._database.write(
                lambda connection: connection.run(
                    "DELETE FROM sources WHERE name = :name", name=name
                )
            )
        except ConstraintViolation as error:
            raise Conflict(
                f'source "{name}" still has slots', hint="Drop its slots first.", source=name
            ) from error
        if not removed:
            _raise_unknown_source(name)

    # Slots

    async def add_slot(self, row: SlotRow) -> SlotRow:
        """Remember a slot.

        Raises:
            DuplicateName: the name is taken.
            UnknownSource: its source does not exist.
        """
        try:
            await self._insert("slots", row)
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
        where = "" if source is None else "WHERE source = :source"
        values = {} if source is None else {"source": source}
        found = await self._database.read(
            lambda connection: connection.rows(
                f"SELECT * FROM slots {where} ORDER BY slot_name", **values
            )
        )
        return [from_columns(SlotRow, columns) for columns in found]

    async def get_slot(self, name: str) -> SlotRow:
        """Give one slot.

        Raises:
            UnknownSlot: there is none of that name.
        """
        found = await self._database.read(
            lambda connection: connection.row(
                "SELECT * FROM slots WHERE slot_name = :name", name=name
            )
        )
        if found is None:
            _raise_unknown_slot(name)
        return from_columns(SlotRow, found)

    async def update_slot(
        self, name: str, *, fence: Fence | None = None, **changes: object
    ) -> SlotRow:
        """Change columns of a slot, named as in :class:`SlotRow`, and give it as it is then.

        This is the way to move ``confirmed_flush_lsn`` backward (a rewind).

        Raises:
            UnknownSlot: there is none of that name.
            LeaseLost: *fence* is out of date.
        """
        values = to_columns(
            SlotRow, changes, self._database.backend, fixed=("slot_name", "source", "created_at")
        )
        statement = f"UPDATE slots SET {_assigned(values)} WHERE slot_name = :its_name RETURNING *"

        def update(connection: Connection) -> dict[str, object] | None:
            _check_fence(connection, fence)
            return connection.row(statement, its_name=name, **values)

        found = await self._database.write(update)
        if found is None:
            _raise_unknown_slot(name)
        return from_columns(SlotRow, found)

    async def confirm_slot(self, name: str, lsn: Lsn, *, fence: Fence | None = None) -> Lsn:
        """Advance confirmed_flush_lsn to *lsn*, never backward; give where it stands then.

        Raises:
            UnknownSlot: there is none of that name.
            LeaseLost: *fence* is out of date.
        """
        values = to_columns(SlotRow, {"confirmed_flush_lsn": lsn}, self._database.backend)

        def confirm(connection: Connection) -> dict[str, object] | None:
            _check_fence(connection, fence)
            connection.run(
                "UPDATE slots SET confirmed_flush_lsn = :confirmed_flush_lsn WHERE slot_name = :name "
                "AND (confirmed_flush_lsn IS NULL OR confirmed_flush_lsn < :confirmed_flush_lsn)",
                name=name,
                **values,
            )
            return connection.row("SELECT * FROM slots WHERE slot_name = :name", name=name)

        found = await self._database.write(confirm)
        if found is None:
            _raise_unknown_slot(name)
        confirmed = from_columns(SlotRow, found).confirmed_flush_lsn
        assert confirmed is not None
        return confirmed

    async def remove_slot(self, name: str) -> None:
        """Forget a slot.

        Raises:
            UnknownSlot: there is none of that name.
        """
        removed = await self._database.write(
            lambda connection: connection.run(
                "DELETE FROM slots WHERE slot_name = :name", name=name
            )
        )
        if not removed:
            _raise_unknown_slot(name)

    # Leases

    async def acquire_lease(self, resource: str, holder: str, ttl_s: float) -> int | None:
        """Take the lease on *resource* for *ttl_s* seconds; None while somebody else has it.

        The fencing token is larger than any given for the resource before. A holder that has it
        already gets it again at once with a new token: after a restart under the same name nobody
        has to wait for the old lease to run out.
        """
        now = self._database.backend.clock
        statement = (
            "INSERT INTO leases (resource, holder, token, expires_at_ms) "
            f"VALUES (:resource, :holder, 1, {now} + :ttl_ms) "
            "ON CONFLICT (resource) DO UPDATE SET holder = excluded.holder, token = leases.token + 1, "
            "expires_at_ms = excluded.expires_at_ms "
            f"WHERE leases.expires_at_ms <= {now} OR leases.holder = excluded.holder RETURNING token"
        )
        taken = await self._database.write(
            lambda connection: connection.row(
                statement, resource=resource, holder=holder, ttl_ms=int(ttl_s * 1000)
            )
        )
        return None if taken is None else int(taken["token"])

    async def renew_lease(self, resource: str, token: int, ttl_s: float) -> bool:
        """Extend a lease to *ttl_s* seconds from now; false when somebody else has taken it since.

        A lease that ran out but that nobody took is extended: nothing happened in between.
        """
        statement = (
            f"UPDATE leases SET expires_at_ms = {self._database.backend.clock} + :ttl_ms "
            "WHERE resource = :resource AND token = :token AND expires_at_ms > 0"
        )
        renewed = await self._database.write(
            lambda connection: connection.run(
                statement, resource=resource, token=token, ttl_ms=int(ttl_s * 1000)
            )
        )
        return renewed == 1

    async def release_lease(self, resource: str, token: int) -> None:
        """Give a lease back; nothing happens when it is no longer held."""
        # 0 and not "now": a released lease can't be renewed. The token stays, and grows.
        statement = (
            "UPDATE leases SET expires_at_ms = 0, holder = '' "
            "WHERE resource = :resource AND token = :token"
        )
        await self._database.write(
            lambda connection: connection.run(statement, resource=resource, token=token)
        )

    async def _insert(self, table: str, row: SourceRow | SlotRow) -> None:
        values = to_columns(type(row), row.columns(), self._database.backend)
        names = ", ".join(_quoted(name) for name in values)
        marks = ", ".join(f":{name}" for name in values)
        statement = f"INSERT INTO {table} ({names}) VALUES ({marks})"
        await self._database.write(lambda connection: connection.run(statement, **values))


def _check_fence(connection: Connection, fence: Fence | None) -> None:
    if fence is None:
        return
    # The lock keeps the lease from changing hands until this transaction is over.
    held = connection.row(
        "SELECT token FROM leases WHERE resource = :resource AND token = :token "
        + connection.backend.lock_found,
        resource=fence.resource,
        token=fence.token,
    )
    if held is None:
        raise LeaseLost(
            f'the lease on "{fence.resource}" was taken over by another process',
            hint="Another process serves it now; this one stops.",
            resource=fence.resource,
            token=fence.token,
        )


def _assigned(values: Mapping[str, object]) -> str:
    return ", ".join(f"{_quoted(name)} = :{name}" for name in values)


def _quoted(column: str) -> str:
    return f'"{column}"'


def _raise_unknown_source(name: str) -> NoReturn:
    raise UnknownSource(
        f'source "{name}" does not exist', hint="GET /v1/sources lists them.", source=name
    )


def _raise_unknown_slot(name: str) -> NoReturn:
    raise UnknownSlot(
        f'replication slot "{name}" does not exist', hint="GET /v1/slots lists them.", slot=name
    )
