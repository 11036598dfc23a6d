"""The tables, and the column types that SQL lacks.

A change here needs a migration beside it (``migrations/versions``); a test compares the two. Migrations
must leave the database usable by the previous release: add columns with defaults, drop nothing in use.

An LSN is unsigned in PostgreSQL and ``bigint`` is not. It is stored as a number all the same, so that
SQL can compare and order it; positions of 2**63 (8 EiB of WAL) and above are refused, not wrapped.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    DateTime,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Text,
    TypeDecorator,
    false,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from spillway.errors import InvalidLsn
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect

#: The newest of ``migrations/versions``: a database that is there needs no migration.
REVISION: Final = "0002"

#: One past the largest LSN that can be stored.
LSN_END: Final = 1 << 63


class LsnType(TypeDecorator[Lsn]):
    """An LSN as a number, 0 ≤ lsn < 2**63."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: Lsn | None, dialect: Dialect) -> int | None:  # noqa: ARG002
        """Refuse what a signed 64-bit column can't hold."""
        if value is None:
            return None
        if not 0 <= value < LSN_END:
            raise InvalidLsn(f"{value:X}" if value < 0 else str(Lsn(value)))
        return int(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Lsn | None:  # noqa: ARG002
        """Give the number its type back."""
        return None if value is None else Lsn(value)


class UtcDateTime(TypeDecorator[datetime]):
    """A moment, always with its zone: SQLite has no zones and keeps UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC; without a zone where the database has none."""
        if value is None:
            return None
        if value.tzinfo is None:
            msg = "a moment needs its time zone"
            raise ValueError(msg)
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Say that it is UTC."""
        if value is None:
            return None
        moment: datetime = value
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


class Base(DeclarativeBase):
    """All tables; constraints have predictable names, so that migrations can refer to them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Source(Base):
    """A PostgreSQL cluster."""

    __tablename__ = "sources"

    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    dsn: Mapped[str] = mapped_column(Text)
    system_id: Mapped[str] = mapped_column(String(20))
    server_version_num: Mapped[int] = mapped_column(Integer)
    timeline: Mapped[int] = mapped_column(BigInteger)
    wal_segment_size: Mapped[int] = mapped_column(Integer)
    slot_name: Mapped[str] = mapped_column(String(63))
    capture: Mapped[dict[str, object]] = mapped_column(JSON, server_default=text("'{}'"))
    state: Mapped[str] = mapped_column(String(32))
    error: Mapped[str | None] = mapped_column(Text)
    error_code: Mapped[str | None] = mapped_column(String(64))
    hint: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Slot(Base):
    """A logical slot. A source can't go while it has slots."""

    __tablename__ = "slots"

    slot_name: Mapped[str] = mapped_column(String(63), primary_key=True)
    source: Mapped[str] = mapped_column(
        String(63), ForeignKey("sources.name", ondelete="RESTRICT"), index=True
    )
    # A name in PostgreSQL is 63 bytes, which is at most 63 characters.
    database: Mapped[str] = mapped_column(String(63))
    datoid: Mapped[int] = mapped_column(BigInteger)
    plugin: Mapped[str] = mapped_column(String(63))
    slot_type: Mapped[str] = mapped_column(String(16))
    temporary: Mapped[bool] = mapped_column(Boolean, server_default=false())
    catalog_xmin: Mapped[int | None] = mapped_column(BigInteger)
    restart_lsn: Mapped[Lsn | None] = mapped_column(LsnType)
    confirmed_flush_lsn: Mapped[Lsn | None] = mapped_column(LsnType)
    two_phase: Mapped[bool] = mapped_column(Boolean, server_default=false())
    two_phase_at: Mapped[Lsn | None] = mapped_column(LsnType)
    inactive_since: Mapped[datetime | None] = mapped_column(UtcDateTime)
    conflicting: Mapped[bool] = mapped_column(Boolean, server_default=false())
    invalidation_reason: Mapped[str | None] = mapped_column(String(64))
    failover: Mapped[bool] = mapped_column(Boolean, server_default=false())
    synced: Mapped[bool] = mapped_column(Boolean, server_default=false())
    options: Mapped[dict[str, str]] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Lease(Base):
    """Who may do something that only one process may do.

    A row stays when its lease is released, so that ``token`` never repeats. Times are those of the
    database's clock, in milliseconds since 1970: clocks of different machines are never compared.
    """

    __tablename__ = "leases"

    resource: Mapped[str] = mapped_column(String(200), primary_key=True)
    holder: Mapped[str] = mapped_column(String(200))
    token: Mapped[int] = mapped_column(BigInteger)
    expires_at_ms: Mapped[int] = mapped_column(BigInteger)
