"""The tables as Alembic knows them, for writing migrations; the service itself knows ``tables``.

A change here needs a migration (``migrations/versions``) and the change in ``tables``; tests compare the three.
"""

from __future__ import annotations

from datetime import datetime

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

from spillway.pg.lsn import Lsn


class LsnType(TypeDecorator[Lsn]):
    """An LSN as a number."""

    impl = BigInteger
    cache_ok = True


class UtcDateTime(TypeDecorator[datetime]):
    """A moment, with its zone where the database has zones."""

    impl = DateTime(timezone=True)
    cache_ok = True


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
    """Who may do something that only one process may do."""

    __tablename__ = "leases"

    resource: Mapped[str] = mapped_column(String(200), primary_key=True)
    holder: Mapped[str] = mapped_column(String(200))
    token: Mapped[int] = mapped_column(BigInteger)
    expires_at_ms: Mapped[int] = mapped_column(BigInteger)
