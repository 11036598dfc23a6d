"""Signs: events, and alerts with their rules, channels and messages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from spillway.store.schema import UtcDateTime

revision = "0008_signs"
down_revision = "0007_conflicts"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables; nobody is told of anything until somebody makes a rule."""
    op.create_table(
        "events",
        _number(),
        sa.Column("at", UtcDateTime, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("severity", sa.String(8), nullable=False),
        sa.Column("source", sa.String(63)),
        sa.Column("slot", sa.String(63)),
        sa.Column("subscription", sa.String(63)),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("caller", sa.JSON(none_as_null=True)),
        sa.Column("document", sa.JSON(none_as_null=True)),
    )
    op.create_table(
        "alert_channels",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("enabled", sa.Boolean, nullable=False),
        sa.Column("config", sa.JSON, nullable=False),
        sa.Column("secrets", sa.JSON, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )
    op.create_table(
        "alert_rules",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("enabled", sa.Boolean, nullable=False),
        sa.Column("codes", sa.JSON(none_as_null=True)),
        sa.Column("sources", sa.JSON(none_as_null=True)),
        sa.Column("subjects", sa.JSON(none_as_null=True)),
        sa.Column("severity", sa.String(8), nullable=False),
        sa.Column("limits", sa.JSON, nullable=False),
        sa.Column("hold_s", sa.Integer, nullable=False),
        sa.Column("clear_s", sa.Integer, nullable=False),
        sa.Column("repeat_s", sa.Integer, nullable=False),
        sa.Column("quiet", sa.JSON(none_as_null=True)),
        sa.Column("channels", sa.JSON, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )
    op.create_table(
        "alerts",
        _number(),
        sa.Column("open_key", sa.Text, unique=True),
        sa.Column("rule", sa.String(63), nullable=False),
        sa.Column("code", sa.String(32), nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("source", sa.String(63), nullable=False),
        sa.Column("process", sa.String(200), nullable=False),
        sa.Column("severity", sa.String(8), nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("remedy", sa.Text, nullable=False),
        sa.Column("link", sa.Text, nullable=False),
        sa.Column("seen_at", UtcDateTime, nullable=False),
        sa.Column("fired_at", UtcDateTime),
        sa.Column("absent_at", UtcDateTime),
        sa.Column("resolved_at", UtcDateTime),
        sa.Column("told_at", UtcDateTime),
        sa.Column("owes_resolved", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("told", sa.Integer, nullable=False, server_default=sa.text("0")),
    )
    op.create_table(
        "alert_messages",
        _number(),
        sa.Column("message_id", sa.String(64), nullable=False, unique=True),
        sa.Column("alert_id", sa.BigInteger),
        sa.Column("rule", sa.String(63), nullable=False),
        sa.Column("channel", sa.String(63), nullable=False),
        sa.Column("reason", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("next_at_ms", sa.BigInteger, nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("finished_at", UtcDateTime),
    )
    op.create_index("ix_events_at", "events", ["at"])
    op.create_index("ix_alerts_rule", "alerts", ["rule"])
    op.create_index("ix_alert_messages_state", "alert_messages", ["state"])


def downgrade() -> None:
    """Drop the tables."""
    for name in (
        "alert_messages",
        "alerts",
        "alert_rules",
        "alert_channels",
        "events",
    ):
        op.drop_table(name)


def _number() -> sa.Column[int]:
    kind = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    return sa.Column("id", kind, primary_key=True, autoincrement=True)
