"""The tables, and the column types that SQL lacks.

Statements, migrations and the tests that compare the two all read this one definition. A change
here needs a migration beside it (``migrations/versions``). Migrations must leave the database
usable by the previous release: add columns with defaults, drop nothing in use.

Tables are Core's, not declared classes: SQLAlchemy's ORM takes a third of a second to import, at
each start.

An LSN is unsigned in PostgreSQL and ``bigint`` is not. It is stored as a number all the same, so
that SQL can compare and order it; positions of 2**63 (8 EiB of WAL) and above are refused, not
wrapped.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    false,
    text,
)

from spillway.errors import InvalidLsn
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect

#: The newest of ``migrations/versions``: a database that is there needs no migration.
REVISION: Final = "0012_forgotten_tables"

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


#: All tables; constraints have predictable names, so that migrations can refer to them.
METADATA: Final = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

#: PostgreSQL clusters; the fields of ``rows.SourceRow``.
SOURCES: Final = Table(
    "sources",
    METADATA,
    Column("name", String(63), primary_key=True),
    Column("dsn", Text, nullable=False),
    Column("system_id", String(20), nullable=False),
    Column("server_version_num", Integer, nullable=False),
    Column("timeline", BigInteger, nullable=False),
    Column("wal_segment_size", Integer, nullable=False),
    Column("slot_name", String(63), nullable=False),
    Column("capture", JSON, nullable=False, server_default=text("'{}'")),
    Column("state", String(32), nullable=False),
    Column("error", Text),
    Column("error_code", String(64)),
    Column("hint", Text),
    Column("created_at", UtcDateTime, nullable=False),
)

#: Logical slots; the fields of ``rows.SlotRow``. A source can't go while it has slots.
SLOTS: Final = Table(
    "slots",
    METADATA,
    Column("slot_name", String(63), primary_key=True),
    Column(
        "source",
        String(63),
        ForeignKey("sources.name", ondelete="RESTRICT"),
        nullable=False,
        index=True,
    ),
    # A name in PostgreSQL is 63 bytes, which is at most 63 characters.
    Column("database", String(63), nullable=False),
    Column("datoid", BigInteger, nullable=False),
    Column("plugin", String(63), nullable=False),
    Column("slot_type", String(16), nullable=False),
    Column("temporary", Boolean, nullable=False, server_default=false()),
    Column("catalog_xmin", BigInteger),
    Column("restart_lsn", LsnType),
    Column("confirmed_flush_lsn", LsnType),
    Column("two_phase", Boolean, nullable=False, server_default=false()),
    Column("two_phase_at", LsnType),
    Column("inactive_since", UtcDateTime),
    Column("confirmed_at", UtcDateTime),
    Column("conflicting", Boolean, nullable=False, server_default=false()),
    Column("invalidation_reason", String(64)),
    Column("failover", Boolean, nullable=False, server_default=false()),
    Column("synced", Boolean, nullable=False, server_default=false()),
    Column("options", JSON, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    # Tokens of the source's lease.
    Column("owner_token", BigInteger),
    Column("active_token", BigInteger),
    Column("active_pid", BigInteger),
    Column("consumer", JSON(none_as_null=True)),
)

#: What sessions of sources' databases begin with; see ``store/session_settings.py``.
SESSION_SETTINGS: Final = Table(
    "session_settings",
    METADATA,
    Column("source", String(63), ForeignKey("sources.name", ondelete="CASCADE"), primary_key=True),
    Column("database", String(63), primary_key=True),
    Column("settings", JSON, nullable=False),
)

#: Who may do something that only one process may do. A row stays when its lease is released, so
#: that ``token`` never repeats. Times are those of the database's clock, in milliseconds since
#: 1970: clocks of different machines are never compared.
LEASES: Final = Table(
    "leases",
    METADATA,
    Column("resource", String(200), primary_key=True),
    Column("holder", String(200), nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("expires_at_ms", BigInteger, nullable=False),
)

#: What fills a target from a slot; the fields of ``rows.SubscriptionRow``. Its source and its slot
#: are found by name: a subscription outlives a slot that was dropped beside it, to say so.
SUBSCRIPTIONS: Final = Table(
    "subscriptions",
    METADATA,
    Column("name", String(63), primary_key=True),
    Column("source", String(63), nullable=False, index=True),
    Column("database", String(63), nullable=False),
    # Two of them would each confirm what the other has not got.
    Column("slot", String(63), nullable=False, unique=True),
    Column("tables", JSON(none_as_null=True)),
    Column("publications", JSON(none_as_null=True)),
    Column("resolved_tables", JSON(none_as_null=True)),
    Column("forgotten_tables", JSON(none_as_null=True)),
    Column("target", JSON, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("copy_data", Boolean, nullable=False),
    Column("origin", String(16), nullable=False),
    Column("streaming", String(16), nullable=False),
    Column("two_phase", Boolean, nullable=False),
    Column("options", JSON, nullable=False),
    Column("phase", String(16), nullable=False),
    Column("skip_lsn", LsnType),
    Column("restarts", BigInteger, nullable=False, server_default=text("0")),
    Column("error", Text),
    Column("error_code", String(64)),
    Column("hint", Text),
    Column("created_at", UtcDateTime, nullable=False),
)

#: Who may come in over PostgreSQL's own protocol; the fields of ``rows.UserRow``.
USERS: Final = Table(
    "users",
    METADATA,
    Column("name", String(63), primary_key=True),
    Column("verifier", Text, nullable=False),
    Column("databases", JSON, nullable=False),
    Column("slots", JSON(none_as_null=True)),
    Column("manage_slots", Boolean, nullable=False),
    Column("run_sql", Boolean, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
)


def _subscription() -> Column[str]:
    # They go with it, also when the previous release removes it.
    target = ForeignKey("subscriptions.name", ondelete="CASCADE")
    return Column("subscription", String(63), target, primary_key=True)


#: The last conflicts of subscriptions, numbered in the order in which they were taken in.
CONFLICTS: Final = Table(
    "conflicts",
    METADATA,
    _subscription(),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    # The same whenever its transaction is tried again.
    Column("conflict_id", String(200), nullable=False),
    Column("kind", String(64), nullable=False),
    Column("table_name", Text, nullable=False),
    # Of the document, in characters.
    Column("size", Integer, nullable=False),
    Column("document", JSON, nullable=False),
    UniqueConstraint("subscription", "conflict_id"),
)

#: How many there were of each kind and table, also of those that are kept no more.
CONFLICT_COUNTS: Final = Table(
    "conflict_counts",
    METADATA,
    _subscription(),
    Column("table_name", String(200), primary_key=True),
    Column("kind", String(64), primary_key=True),
    Column("count", BigInteger, nullable=False),
)

#: Up to where each log of a program was taken in, and how many of its conflicts never were.
CONFLICT_LOGS: Final = Table(
    "conflict_logs",
    METADATA,
    _subscription(),
    Column("log", String(64), primary_key=True),
    Column("position", BigInteger, nullable=False),
    Column("missed", BigInteger, nullable=False),
)


def _number() -> Column[int]:
    # SQLite counts up of its own accord only what is called INTEGER.
    kind = BigInteger().with_variant(Integer, "sqlite")
    return Column("id", kind, primary_key=True, autoincrement=True)


#: What happened, and who did what, the newest of it; see ``store/events.py``.
EVENTS: Final = Table(
    "events",
    METADATA,
    _number(),
    Column("at", UtcDateTime, nullable=False, index=True),
    Column("kind", String(32), nullable=False),
    Column("severity", String(8), nullable=False),
    Column("source", String(63)),
    Column("slot", String(63)),
    Column("subscription", String(63)),
    Column("title", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("caller", JSON(none_as_null=True)),
    Column("document", JSON(none_as_null=True)),
)

#: Where alerts are told; ``secrets`` never leave the service.
ALERT_CHANNELS: Final = Table(
    "alert_channels",
    METADATA,
    Column("name", String(63), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("config", JSON, nullable=False),
    Column("secrets", JSON, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
)

#: What is told, from where on, and to which channels; the fields of ``rows.AlertRuleRow``.
ALERT_RULES: Final = Table(
    "alert_rules",
    METADATA,
    Column("name", String(63), primary_key=True),
    Column("enabled", Boolean, nullable=False),
    Column("codes", JSON(none_as_null=True)),
    Column("sources", JSON(none_as_null=True)),
    Column("subjects", JSON(none_as_null=True)),
    Column("severity", String(8), nullable=False),
    Column("limits", JSON, nullable=False),
    Column("hold_s", Integer, nullable=False),
    Column("clear_s", Integer, nullable=False),
    Column("repeat_s", Integer, nullable=False),
    Column("quiet", JSON(none_as_null=True)),
    Column("channels", JSON, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
)

#: What a rule has found: one row from the first sight of it until it is gone.
ALERTS: Final = Table(
    "alerts",
    METADATA,
    _number(),
    # Of one that is open; null when it is over, so that it may come again.
    Column("open_key", Text, unique=True),
    Column("rule", String(63), nullable=False, index=True),
    Column("code", String(32), nullable=False),
    Column("subject", Text, nullable=False),
    Column("source", String(63), nullable=False),
    # Whose alone it is: of what every process finds for itself.
    Column("process", String(200), nullable=False),
    Column("severity", String(8), nullable=False),
    Column("title", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("remedy", Text, nullable=False),
    Column("link", Text, nullable=False),
    Column("seen_at", UtcDateTime, nullable=False),
    Column("fired_at", UtcDateTime),
    Column("absent_at", UtcDateTime),
    Column("resolved_at", UtcDateTime),
    Column("told_at", UtcDateTime),
    # Somebody is to be told that it is over, and was not yet.
    Column("owes_resolved", Boolean, nullable=False, server_default=false()),
    Column("told", Integer, nullable=False, server_default=text("0")),
)

#: What is to be sent, and what became of it.
ALERT_MESSAGES: Final = Table(
    "alert_messages",
    METADATA,
    _number(),
    # The same whenever it is tried again, so that a receiver knows it.
    Column("message_id", String(64), nullable=False, unique=True),
    Column("alert_id", BigInteger),
    Column("rule", String(63), nullable=False),
    Column("channel", String(63), nullable=False),
    Column("reason", String(16), nullable=False),
    Column("state", String(16), nullable=False, index=True),
    Column("document", JSON, nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("next_at_ms", BigInteger, nullable=False),
    Column("error", Text),
    Column("created_at", UtcDateTime, nullable=False),
    Column("finished_at", UtcDateTime),
)


def _series_of(name: str, target: str) -> Column[str]:
    # It goes with what it is of, also when the previous release removes that.
    return Column(name, String(63), ForeignKey(target, ondelete="CASCADE"), unique=True)


#: What has a past: each row is of one source, slot or subscription.
METRIC_SERIES: Final = Table(
    "metric_series",
    METADATA,
    _number(),
    _series_of("source", "sources.name"),
    _series_of("slot", "slots.slot_name"),
    _series_of("subscription", "subscriptions.name"),
)

#: The largest that was seen in each stretch of time; see ``store/metrics.py``.
METRICS: Final = Table(
    "metrics",
    METADATA,
    Column(
        "series",
        BigInteger,
        ForeignKey("metric_series.id", ondelete="CASCADE"),
        primary_key=True,
    ),
    # Both in seconds; the latter since 1970, a multiple of the former.
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("at", BigInteger, primary_key=True, autoincrement=False),
    Column("lag_bytes", Double),
    Column("lag_seconds", Double),
    Column("retained_bytes", Double),
    Column("rate", Double),
)

#: What DDL did to tables, and what subscriptions made of it; see ``store/schema_changes.py``.
SCHEMA_CHANGES: Final = Table(
    "schema_changes",
    METADATA,
    _number(),
    Column("source", String(63), ForeignKey("sources.name", ondelete="CASCADE"), nullable=False),
    Column("database", String(63), nullable=False),
    Column("commit_lsn", LsnType, nullable=False),
    # Of what one transaction did.
    Column("number", Integer, nullable=False),
    Column("xid", BigInteger, nullable=False),
    Column("committed_at", UtcDateTime, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("table_name", Text, nullable=False),
    Column("document", JSON, nullable=False),
    # By the subscription's name.
    Column("outcomes", JSON, nullable=False),
    UniqueConstraint("source", "database", "commit_lsn", "number"),
)
