"""Slots as the metadata store owns them: who made one, who has it, and how far it is confirmed.

What can happen to a slot is one statement each. Its WHERE says what it relies on, and the number of
rows says whether that held; only then is it asked why not. Nothing that a process remembers
decides, so that a process that remembers wrongly (it was paused while another one took its place,
or lives beside it) changes nothing.

Every statement relies on the lease on the slot's source (:mod:`spillway.store.fencing`), and names
the tenure by the lease's token, its *epoch*, which never repeats. Besides::

    create      the name is free                    a temporary slot is its tenure's: owner_token
    acquire     nobody else has it                  active_token, active_pid, consumer
    confirm     nobody else has it; forward only
    advance     nobody else has it; forward only, from no earlier position than was read from
    rewind      nobody else has it
    alter, drop nobody else has it
    release     this process has it                 what was confirmed last is stored with it
    invalidate  the lease alone: its history is gone, whoever has it

*Nobody else* has a slot that is nobody's, that this process (its epoch and its pid) has itself, or
that was had in another epoch: a process that dies leaves its name behind, and the next tenure makes
it void without a write. Which of its own clients has the slot is each process's to know
(:class:`spillway.delivery.slots.Slot`).

The statements that each consumer's coming, going and confirming runs are built once, at import, and
told by parameters what they are about (:func:`_about`). Building one costs several times what it
costs to run it.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn

from sqlalchemy import and_, bindparam, delete, func, insert, literal, or_, select, update

from spillway.errors import Conflict, DuplicateName, SlotActive, UnknownSlot, UnknownSource
from spillway.pg.lsn import Lsn
from spillway.store.database import ConstraintViolation
from spillway.store.fencing import IS_HELD, check_fence, lease_lost, proof
from spillway.store.rows import SOURCE_LEASE, SlotRow
from spillway.store.schema import LEASES, SLOTS, LsnType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Select
    from sqlalchemy.engine import Connection, RowMapping
    from sqlalchemy.sql.dml import ReturningUpdate

    from spillway.store.database import Database
    from spillway.store.rows import Owner, Presence

#: what :meth:`SlotTable.alter` does not change: the name, and what has a statement of its own
_FIXED: Final = frozenset(
    {
        "slot_name", "source", "created_at", "confirmed_flush_lsn", "confirmed_at", "restart_lsn",
        "inactive_since", "invalidation_reason", "owner_token", "active_token", "active_pid",
        "consumer",
    }
)  # fmt: skip
_NOBODY: Final = {"active_token": None, "active_pid": None, "consumer": None}


class SlotTable:
    """The slots of a metadata store. Each method is one transaction, durable when it returns; it
    may raise MetadataError.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    # -- looking --------------------------------------------------------------------------------

    async def rows(self, source: str | None = None) -> list[SlotRow]:
        """Give every slot, by name; those of one source if *source* is given."""
        statement = _slots().order_by(SLOTS.c.slot_name)
        if source is not None:
            statement = statement.where(SLOTS.c.source == source)
        found = await self._database.read(lambda c: c.execute(statement).mappings().all())
        return [_row(columns) for columns in found]

    async def get(self, name: str) -> SlotRow:
        """Give one slot.

        Raises:
            UnknownSlot: there is none of that name.
        """
        return await self._database.read(lambda connection: _get(connection, name))

    # -- what comes and goes --------------------------------------------------------------------

    async def create(self, row: SlotRow, owner: Owner) -> SlotRow:
        """Remember a slot, and give it as it is stored. A temporary one lasts as long as *owner*'s
        tenure.

        Raises:
            DuplicateName: the name is taken.
            UnknownSource: its source does not exist.
            LeaseLost: the source is another's.
        """
        values = {field.name: getattr(row, field.name) for field in fields(SlotRow)}
        values |= {**_NOBODY, "owner_token": owner.token if row.temporary else None}
        columns = [SLOTS.c[name] for name in values]
        given = [literal(value, SLOTS.c[name].type) for name, value in values.items()]
        statement = (
            insert(SLOTS).from_select(columns, select(*given).where(IS_HELD)).returning(*SLOTS.c)
        )
        try:
            made = await self._database.write(
                lambda c: c.execute(statement, proof(owner.fence)).mappings().first()
            )
        except ConstraintViolation as error:
            if error.foreign_key:
                _raise_unknown_source(row.source)
            raise DuplicateName(
                f'replication slot "{row.slot_name}" already exists',
                hint="Choose another name, or drop the slot first.",
                slot=row.slot_name,
            ) from error
        if made is None:
            raise lease_lost(owner.fence)
        return SlotRow(**made)

    async def drop(self, name: str, owner: Owner) -> None:
        """Forget a slot.

        Raises:
            UnknownSlot: there is none of that name.
            SlotActive: another process has it.
            LeaseLost: the source is another's.
        """

        def drop(connection: Connection) -> None:
            if not connection.execute(_DROP, _about(name, owner)).rowcount:
                _explain(connection, name, owner)

        await self._database.write(drop)

    async def begin_tenure(self, owner: Owner) -> None:
        """Forget what former tenures left: their temporary slots, whose sessions are gone, and the
        names of their consumers.

        Raises:
            LeaseLost: the source is another's.
        """

        def begin(connection: Connection) -> None:
            check_fence(connection, owner.fence)
            of_source = SLOTS.c.source == owner.source
            theirs = or_(SLOTS.c.owner_token.is_(None), SLOTS.c.owner_token != owner.token)
            connection.execute(delete(SLOTS).where(of_source, SLOTS.c.temporary, theirs))
            had = SLOTS.c.active_token != owner.token
            connection.execute(update(SLOTS).where(of_source, had).values(_NOBODY))

        await self._database.write(begin)

    # -- who has it -----------------------------------------------------------------------------

    async def acquire(self, name: str, consumer: Mapping[str, str | None], owner: Owner) -> SlotRow:
        """Have the slot for *consumer*, of the process *owner*, and give it as it is then.

        Raises:
            UnknownSlot: there is none of that name.
            SlotActive: another process has it.
            LeaseLost: the source is another's.
        """
        told = {"consumer_now": dict(consumer), "moment": datetime.now(UTC)}
        return await self._change(name, owner, _ACQUIRE, told)

    async def release(self, name: str, lsn: Lsn, owner: Owner) -> Lsn:
        """Have the slot no more, and store that it is confirmed up to *lsn*; give where it stands
        then.

        A slot that this process does not have stays as it is.

        Raises:
            UnknownSlot: there is none of that name.
            LeaseLost: the source is another's.
        """
        now = datetime.now(UTC)

        def release(connection: Connection) -> Lsn:
            _confirm(connection, name, lsn, owner, now)
            stands = connection.execute(_RELEASE, _about(name, owner) | {"moment": now}).first()
            if stands is None:
                check_fence(connection, owner.fence)
                return _get(connection, name).confirmed_flush_lsn or Lsn(0)
            return stands[0] or Lsn(0)

        return await self._database.write(release)

    async def note_presence(self, signs: Mapping[str, Presence], owner: Owner) -> None:
        """Store when the consumers of slots, by their names, were there last, and how those stand
        that are there.

        Slots that are gone are passed over, and so is how a consumer stands whose slot this process
        does not have.

        Raises:
            LeaseLost: the source is another's.
        """

        def note(connection: Connection) -> None:
            check_fence(connection, owner.fence)
            for name, (moment, consumer) in sorted(signs.items()):
                here = update(SLOTS).where(
                    SLOTS.c.source == owner.source, SLOTS.c.slot_name == name
                )
                connection.execute(here.values(inactive_since=moment))
                if consumer is not None:
                    mine = and_(
                        SLOTS.c.active_token == owner.token, SLOTS.c.active_pid == owner.pid
                    )
                    connection.execute(here.where(mine).values(consumer=dict(consumer)))

        await self._database.write(note)

    # -- where it stands ------------------------------------------------------------------------

    async def confirm(self, positions: Mapping[str, Lsn], owner: Owner) -> dict[str, Lsn]:
        """Store how far slots of one source are confirmed; give where each stands then, none
        further back than it stood.

        What moves is its consumer's sign of life: confirmed_at is now. A slot that is gone, or that
        another process has, is left out of the answer, and nothing of it was changed.

        Raises:
            LeaseLost: the source is another's; nothing was stored.
        """
        now = datetime.now(UTC)

        def confirm(connection: Connection) -> dict[str, Lsn]:
            stand: dict[str, Lsn] = {}
            # By name: two processes that store the same slots must not wait for each other.
            for name, lsn in sorted(positions.items()):
                if (stands := _confirm(connection, name, lsn, owner, now)) is not None:
                    stand[name] = stands
            return stand

        return await self._database.write(confirm)

    async def advance(self, name: str, lsn: Lsn, owner: Owner, *, read_from: Lsn) -> Lsn:
        """Confirm what was read from *read_from* up to *lsn*, or passed over; give where the slot
        stands then.

        Raises:
            UnknownSlot: there is none of that name.
            SlotActive: another process has it.
            Conflict: it was rewound since; nothing was changed.
            LeaseLost: the source is another's.
        """
        now = datetime.now(UTC)

        def advance(connection: Connection) -> Lsn:
            stands = _confirm(connection, name, lsn, owner, now, read_from=read_from)
            if stands is None:
                _explain(connection, name, owner)
            if stands < read_from:
                raise Conflict(
                    f'replication slot "{name}" was rewound to {stands} while it was read from '
                    f"{read_from}",
                    hint="Nothing was changed. Repeat the call: it begins where the slot stands "
                    "now.",
                    slot=name,
                    confirmed_flush_lsn=str(stands),
                )
            return stands

        return await self._database.write(advance)

    async def rewind(self, name: str, lsn: Lsn, owner: Owner) -> SlotRow:
        """Have the slot stand at *lsn*, which may be behind it, and give it as it is then.

        Raises:
            UnknownSlot: there is none of that name.
            SlotActive: another process has it.
            LeaseLost: the source is another's.
        """
        return await self._change(name, owner, _REWIND, {"to_lsn": lsn})

    # -- what it is -----------------------------------------------------------------------------

    async def alter(self, name: str, owner: Owner, **changes: object) -> SlotRow:
        """Change columns of a slot, named as in :class:`SlotRow`, and give it as it is then.

        Raises:
            UnknownSlot: there is none of that name.
            SlotActive: another process has it.
            LeaseLost: the source is another's.
        """
        allowed = {field.name for field in fields(SlotRow)} - _FIXED
        if not changes or not allowed.issuperset(changes):
            msg = f"SlotRow has no columns {sorted(set(changes) - allowed)} that may change"
            raise TypeError(msg)
        return await self._change(name, owner, _UPDATE.values(changes).returning(*SLOTS.c), {})

    async def invalidate(self, name: str, reason: str, owner: Owner) -> SlotRow:
        """Store why the slot can't be read any more, whoever has it, and give it as it is then.

        Raises:
            UnknownSlot: there is none of that name.
            LeaseLost: the source is another's.
        """
        return await self._change(name, owner, _INVALIDATE, {"reason": reason})

    async def _change(
        self, name: str, owner: Owner, statement: ReturningUpdate[Any], told: Mapping[str, Any]
    ) -> SlotRow:
        parameters = {**_about(name, owner), **told}

        def change(connection: Connection) -> SlotRow:
            found = connection.execute(statement, parameters).mappings().first()
            if found is None:
                _explain(connection, name, owner)
            return SlotRow(**found)

        return await self._database.write(change)


def _slots() -> Select[Any]:
    """Read slots, and whether who has one has it still: in this tenure of the lease, which was not
    given back.
    """
    same = LEASES.c.resource == literal(SOURCE_LEASE) + SLOTS.c.source
    is_active = and_(SLOTS.c.active_token == LEASES.c.token, LEASES.c.holder != "")
    return select(*SLOTS.c, func.coalesce(is_active, False).label("is_active")).select_from(
        SLOTS.outerjoin(LEASES, same)
    )


def _row(columns: RowMapping) -> SlotRow:
    values = dict(columns)
    if not values.pop("is_active"):
        values |= _NOBODY
    return SlotRow(**values)


def _get(connection: Connection, name: str) -> SlotRow:
    found = connection.execute(_GET, {"of_name": name}).mappings().first()
    if found is None:
        raise UnknownSlot(
            f'replication slot "{name}" does not exist', hint="GET /v1/slots lists them.", slot=name
        )
    return _row(found)


def _about(name: str, owner: Owner) -> dict[str, Any]:
    """Give the parameters that the statements below have in common: the slot, and who acts on
    it.
    """
    of_slot = {"of_name": name, "of_source": owner.source}
    return {**of_slot, "by_token": owner.token, "by_pid": owner.pid, **proof(owner.fence)}


# Parameters, none named as a column is: SQLAlchemy would set the column to it.
_NAME: Final = bindparam("of_name", type_=SLOTS.c.slot_name.type)
_TOKEN: Final = bindparam("by_token", type_=SLOTS.c.active_token.type)
_PID: Final = bindparam("by_pid", type_=SLOTS.c.active_pid.type)
_MOMENT: Final = bindparam("moment", type_=SLOTS.c.inactive_since.type)
_LSN: Final = bindparam("to_lsn", type_=LsnType())
_READ_FROM: Final = bindparam("read_from", type_=LsnType())

_HERE: Final = (
    SLOTS.c.slot_name == _NAME,
    SLOTS.c.source == bindparam("of_source", type_=SLOTS.c.source.type),
)
#: what nearly every statement relies on: the lease, and that no other process of this tenure has
#: the slot
_NOBODY_ELSE_HAS: Final = (
    *_HERE,
    or_(SLOTS.c.active_token.is_(None), SLOTS.c.active_token != _TOKEN, SLOTS.c.active_pid == _PID),
    IS_HELD,
)
_MINE: Final = and_(SLOTS.c.active_token == _TOKEN, SLOTS.c.active_pid == _PID)
_STOOD: Final = func.coalesce(SLOTS.c.confirmed_flush_lsn, 0, type_=LsnType)

_GET: Final = _slots().where(SLOTS.c.slot_name == _NAME)
_DROP: Final = delete(SLOTS).where(*_NOBODY_ELSE_HAS)
_UPDATE: Final = update(SLOTS).where(*_NOBODY_ELSE_HAS)
_ACQUIRE: Final = _UPDATE.values(
    active_token=_TOKEN,
    active_pid=_PID,
    consumer=bindparam("consumer_now", type_=SLOTS.c.consumer.type),
    inactive_since=_MOMENT,
).returning(*SLOTS.c)
_RELEASE: Final = (
    _UPDATE.where(_MINE)
    .values(**_NOBODY, inactive_since=_MOMENT)
    .returning(SLOTS.c.confirmed_flush_lsn)
)
_REWIND: Final = _UPDATE.values(confirmed_flush_lsn=_LSN, restart_lsn=_LSN).returning(*SLOTS.c)
_INVALIDATE: Final = (
    update(SLOTS)
    .where(*_HERE, IS_HELD)
    .values(invalidation_reason=bindparam("reason", type_=SLOTS.c.invalidation_reason.type))
    .returning(*SLOTS.c)
)
_CONFIRM: Final = _UPDATE.where(_STOOD < _LSN).values(
    confirmed_flush_lsn=_LSN, confirmed_at=_MOMENT
)
_ADVANCE: Final = _CONFIRM.where(_STOOD >= _READ_FROM)
_STANDS: Final = select(_STOOD).where(*_NOBODY_ELSE_HAS)


def _confirm(
    connection: Connection,
    name: str,
    lsn: Lsn,
    owner: Owner,
    now: datetime,
    *,
    read_from: Lsn | None = None,
) -> Lsn | None:
    """Move a slot to *lsn* if that is forward, and give where it stands; None: it is gone, or
    another process has it.
    """
    about = _about(name, owner)
    forward = about | {"to_lsn": lsn, "moment": now}
    if read_from is None:
        moved = connection.execute(_CONFIRM, forward)
    else:
        moved = connection.execute(_ADVANCE, forward | {"read_from": read_from})
    if moved.rowcount:
        return lsn
    check_fence(connection, owner.fence)
    return connection.execute(_STANDS, about).scalar_one_or_none()


def _explain(connection: Connection, name: str, owner: Owner) -> NoReturn:
    """Say why a statement found nothing to change."""
    check_fence(connection, owner.fence)
    row = _get(connection, name)
    raise SlotActive(
        f'replication slot "{name}" is active for PID {row.active_pid}',
        hint="Nothing was changed. Wait until that process has released it, and try again.",
        slot=name,
        active_pid=row.active_pid,
    )


def _raise_unknown_source(name: str) -> NoReturn:
    raise UnknownSource(
        f'source "{name}" does not exist', hint="GET /v1/sources lists them.", source=name
    )
