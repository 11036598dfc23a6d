"""What the metadata store gives: frozen rows, detached from any connection; and how their values are stored.

Columns have the names of the rows' fields. What is stored otherwise than Python has it: LSNs are numbers of 63 bits; JSON is text, which
psycopg reads by itself; SQLite has no type for moments, which are text in UTC there, nor for truth, which is 0 and 1.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from spillway.errors import InvalidLsn
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spillway.store.database import Backend

#: One past the largest LSN that can be stored.
LSN_END: Final = 1 << 63

LSN_COLUMNS: Final = frozenset({"restart_lsn", "confirmed_flush_lsn", "two_phase_at"})
JSON_COLUMNS: Final = frozenset({"capture", "options"})
MOMENT_COLUMNS: Final = frozenset({"created_at", "inactive_since"})
TRUTH_COLUMNS: Final = frozenset({"temporary", "two_phase", "conflicting", "failover", "synced"})


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """A PostgreSQL cluster that WAL comes from."""

    name: str
    #: with its password, if it has one: never show it
    dsn: str
    #: pg_control's system identifier, decimal
    system_id: str
    #: PG_VERSION_NUM, 180004 for one
    server_version_num: int
    timeline: int
    #: bytes
    wal_segment_size: int
    #: the physical slot's name on the primary
    slot_name: str
    #: what is decoded at all: origin, tables, publications; {} for everything
    capture: Mapping[str, object] = field(default_factory=dict)
    state: str = "connecting"
    error: str | None = None
    error_code: str | None = None
    hint: str | None = None
    created_at: datetime = field(default_factory=_now)

    def columns(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRow:
    """What must be remembered of a slot; the rest of its columns is computed when it is shown."""

    slot_name: str
    source: str
    database: str
    datoid: int
    plugin: str
    slot_type: str = "logical"
    temporary: bool = False
    catalog_xmin: int | None = None
    restart_lsn: Lsn | None = None
    confirmed_flush_lsn: Lsn | None = None
    two_phase: bool = False
    two_phase_at: Lsn | None = None
    inactive_since: datetime | None = None
    conflicting: bool = False
    invalidation_reason: str | None = None
    failover: bool = False
    synced: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    created_at: datetime = field(default_factory=_now)

    def columns(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


class Fence(NamedTuple):
    """Proof of a lease: a write that carries it fails once somebody else has taken the lease."""

    resource: str
    token: int


Row = TypeVar("Row", SourceRow, SlotRow)


def to_columns(
    row_type: type[SourceRow | SlotRow],
    values: Mapping[str, Any],
    backend: Backend,
    *,
    fixed: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return *values* as they are stored.

    Raises:
        InvalidLsn: one of them can't be stored.
        TypeError: the type has no such column, or it is *fixed*.
    """
    allowed = {each.name for each in fields(row_type)} - set(fixed)
    if not values or not allowed.issuperset(values):
        msg = f"{row_type.__name__} has no columns {sorted(set(values) - allowed)} that may change"
        raise TypeError(msg)
    return {name: _to_column(name, value, backend) for name, value in values.items()}


def _to_column(name: str, value: Any, backend: Backend) -> Any:
    if value is None:
        return None
    if name in LSN_COLUMNS:
        if not 0 <= value < LSN_END:
            raise InvalidLsn(f"{value:X}" if value < 0 else str(Lsn(value)))
        return int(value)
    if name in JSON_COLUMNS:
        return json.dumps(dict(value))  # it may be any mapping
    if name in MOMENT_COLUMNS:
        if value.tzinfo is None:
            msg = "a moment needs its time zone"
            raise ValueError(msg)
        return backend.moment(value)
    return value


def from_columns(row_type: type[Row], stored: Mapping[str, Any]) -> Row:
    """Return a row of what is stored."""
    # Columns that a newer release added are none of this one's business.
    return row_type(
        **{each.name: _from_column(each.name, stored[each.name]) for each in fields(row_type)}
    )


def _from_column(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in LSN_COLUMNS:
        return Lsn(value)
    if name in JSON_COLUMNS:
        return json.loads(value) if isinstance(value, str) else value
    if name in MOMENT_COLUMNS:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    if name in TRUTH_COLUMNS:
        return bool(value)
    return value
