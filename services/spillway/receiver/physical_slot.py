"""The physical slot on the primary: what keeps WAL there until Spillway has it, and nothing longer.

One for each source, named ``spillway_<source>``. It holds no catalog_xmin and no xmin, so it never
keeps VACUUM from anything; what it keeps is WAL from its restart_lsn on, which follows what the
receiver confirms. Created with its WAL reserved at once, its restart_lsn is the last checkpoint's
redo LSN, where the catalog's bootstrap begins.

All calls use plain SQL on the source's DSN and need the REPLICATION attribute. Blocking.

Source: src/backend/replication/slotfuncs.c, ReplicationSlotValidateName in slot.c
"""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psycopg

from spillway.errors import (
    PhysicalSlotActive,
    PhysicalSlotUnusable,
    ReplicationSlotsExhausted,
    SourceError,
    WalRemoved,
)
from spillway.pg.lsn import Lsn
from spillway.receiver.source_session import source_session

if TYPE_CHECKING:
    from typing import Any

#: NAMEDATALEN less the terminator
_NAME_MAX: Final = 63
_PREFIX: Final = "spillway_"
_HASH_DIGITS: Final = 8
#: A walsender whose client has gone ends at its next look at the socket: milliseconds on a healthy
#: server.
_RELEASE_TIMEOUT_S: Final = 5.0
_RELEASE_POLL_S: Final = 0.05
_FIND: Final = (
    "SELECT slot_type, temporary, active, active_pid, restart_lsn::text, wal_status"
    " FROM pg_catalog.pg_replication_slots WHERE slot_name = %s"
)


@dataclass(frozen=True, slots=True)
class PhysicalSlot:
    """The slot as pg_replication_slots shows it."""

    slot_name: str
    restart_lsn: Lsn
    active: bool
    active_pid: int | None
    wal_status: str | None


def physical_slot_name(source: str) -> str:
    """Return the slot's name for a source: ``spillway_<source>`` in the characters that a slot's
    name may have.

    A name that had to be changed or cut ends with a hash of the original: two sources never share a
    slot.
    """
    plain = re.sub(r"[^a-z0-9_]", "_", source.lower())
    if plain == source and len(_PREFIX + plain) <= _NAME_MAX:
        return _PREFIX + plain
    digest = hashlib.sha256(source.encode()).hexdigest()[:_HASH_DIGITS]
    kept = _NAME_MAX - len(_PREFIX) - _HASH_DIGITS - 1
    return f"{_PREFIX}{plain[:kept]}_{digest}"


def create_physical_slot(dsn: str, slot_name: str) -> PhysicalSlot:
    """Create the slot with WAL reserved from now on, or take the one that is there. May be
    repeated.

    Raises:
        PhysicalSlotUnusable: the name belongs to a logical or temporary slot.
        ReplicationSlotsExhausted: max_replication_slots is reached.
        WalRemoved: our slot was invalidated (max_slot_wal_keep_size,
            idle_replication_slot_timeout).
        SourceError: no connection, or the server refused.
    """
    with source_session(dsn) as connection:
        row = connection.execute(_FIND, [slot_name]).fetchone()
        if row is None:
            row = _create(connection, slot_name)
        slot_type, temporary, active, _, restart_lsn, wal_status = row
        never_used = restart_lsn is None and not active and wal_status != "lost"
        if slot_type == "physical" and not temporary and never_used:
            # It reserves nothing: somebody created it without immediately_reserve.
            connection.execute("SELECT pg_catalog.pg_drop_replication_slot(%s)", [slot_name])
            row = _create(connection, slot_name)
        return _usable(slot_name, row)


def get_physical_slot(dsn: str, slot_name: str) -> PhysicalSlot | None:
    """Read the slot; None if there is none.

    Raises:
        PhysicalSlotUnusable, WalRemoved, SourceError: as for :func:`create_physical_slot`.
    """
    with source_session(dsn) as connection:
        row = connection.execute(_FIND, [slot_name]).fetchone()
        return None if row is None else _usable(slot_name, row)


def renew_physical_slot(dsn: str, slot_name: str) -> PhysicalSlot:
    """As :func:`create_physical_slot`, but an invalidated slot of ours is dropped and created
    again.

    For a caller that has another way to the WAL which the old slot has lost.

    Raises:
        PhysicalSlotUnusable, ReplicationSlotsExhausted, SourceError: as for
            :func:`create_physical_slot`.
    """
    try:
        return create_physical_slot(dsn, slot_name)
    except WalRemoved:
        drop_physical_slot(dsn, slot_name)
        return create_physical_slot(dsn, slot_name)


def ensure_physical_slot_is_free(
    dsn: str, slot_name: str, *, release_timeout_s: float = _RELEASE_TIMEOUT_S
) -> None:
    """Wait until nobody streams from the slot, for a moment; a slot that does not exist is free.

    Raises:
        PhysicalSlotActive: somebody still does after *release_timeout_s*.
        SourceError: no connection, or the server refused.
    """
    deadline = time.monotonic() + release_timeout_s
    with source_session(dsn) as connection:
        while (row := connection.execute(_FIND, [slot_name]).fetchone()) is not None:
            slot_type, _, active, active_pid, *_ = row
            if slot_type != "physical" or not active:
                return
            if time.monotonic() >= deadline:
                raise PhysicalSlotActive(slot_name, active_pid)
            time.sleep(_RELEASE_POLL_S)


def take_physical_slot(dsn: str, slot_name: str) -> bool:
    """End whoever streams from the slot; False when nobody does. Only for who may do so instead:
    the holder of the lease.

    A process that is paused keeps its connection, and the server learns of it only by
    ``wal_sender_timeout``.

    Raises:
        SourceError: no connection, or the role may not: then the server's time-out ends it.
    """
    with source_session(dsn) as connection:
        ended = connection.execute(
            "SELECT pg_catalog.pg_terminate_backend(active_pid) FROM "
            "pg_catalog.pg_replication_slots WHERE slot_name = %s AND slot_type = 'physical' AND "
            "active_pid IS NOT NULL",
            [slot_name],
        ).fetchone()
    return ended is not None


def drop_physical_slot(
    dsn: str, slot_name: str, *, release_timeout_s: float = _RELEASE_TIMEOUT_S
) -> bool:
    """Drop the slot; False if there was none. Stop the receiver first.

    The server notices that a receiver has gone a moment later; *release_timeout_s* is waited for
    that.

    Raises:
        PhysicalSlotActive: it is in use.
        PhysicalSlotUnusable: it is not a physical slot.
        SourceError: no connection, or the server refused.
    """
    deadline = time.monotonic() + release_timeout_s
    with source_session(dsn) as connection:
        while (row := connection.execute(_FIND, [slot_name]).fetchone()) is not None:
            if row[0] != "physical":
                raise _not_ours(slot_name, row)
            try:
                connection.execute("SELECT pg_catalog.pg_drop_replication_slot(%s)", [slot_name])
            except psycopg.errors.ObjectInUse:
                if time.monotonic() >= deadline:
                    raise PhysicalSlotActive(slot_name, row[3]) from None
                time.sleep(_RELEASE_POLL_S)
            except psycopg.errors.UndefinedObject:
                return False
            else:
                return True
    return False


def _create(connection: psycopg.Connection[tuple[Any, ...]], slot_name: str) -> tuple[Any, ...]:
    try:
        connection.execute(
            "SELECT pg_catalog.pg_create_physical_replication_slot(%s, true)", [slot_name]
        )
    except psycopg.errors.DuplicateObject:
        pass  # created by another session just now
    except psycopg.errors.ConfigurationLimitExceeded as error:
        raise ReplicationSlotsExhausted(
            f"the physical slot {slot_name} can't be created: {error.diag.message_primary}",
            hint="ALTER SYSTEM SET max_replication_slots = 20; -- more than now; then restart the "
            "server",
            slot=slot_name,
        ) from None
    row = connection.execute(_FIND, [slot_name]).fetchone()
    if row is None:
        raise SourceError(
            f"the physical slot {slot_name} vanished as soon as it was created",
            hint="Something on the source drops replication slots; exempt this one.",
            slot=slot_name,
        )
    return row


def _usable(slot_name: str, row: tuple[Any, ...]) -> PhysicalSlot:
    slot_type, temporary, active, active_pid, restart_lsn, wal_status = row
    if slot_type != "physical" or temporary:
        raise _not_ours(slot_name, row)
    if restart_lsn is None or wal_status == "lost":
        raise WalRemoved(
            f"the source has invalidated the physical slot {slot_name}: WAL that was not received "
            "is removed",
            hint="All changes since then are lost to decoding unless a WAL archive has them. "
            f"SELECT pg_drop_replication_slot('{slot_name}'); and create the source again; raise "
            "max_slot_wal_keep_size.",
            slot=slot_name,
        )
    return PhysicalSlot(slot_name, Lsn.parse(restart_lsn), active, active_pid, wal_status)


def _not_ours(slot_name: str, row: tuple[Any, ...]) -> PhysicalSlotUnusable:
    kind = "temporary" if row[1] else row[0]
    return PhysicalSlotUnusable(
        f"the source has a {kind} slot named {slot_name}, which is not Spillway's",
        hint="Drop that slot, or give the source another name.",
        slot=slot_name,
    )
