"""Subscriptions: what fills a target from a slot, and how its runs went."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from spillway.store.schema import LsnType, UtcDateTime

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "subscriptions",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("source", sa.String(63), nullable=False),
        sa.Column("database", sa.String(63), nullable=False),
        sa.Column("slot", sa.String(63), nullable=False, unique=True),
        sa.Column("tables", sa.JSON(none_as_null=True)),
        sa.Column("publications", sa.JSON(none_as_null=True)),
        sa.Column("resolved_tables", sa.JSON(none_as_null=True)),
        sa.Column("target", sa.JSON, nullable=False),
        sa.Column("enabled", sa.Boolean, nullable=False),
        sa.Column("copy_data", sa.Boolean, nullable=False),
        sa.Column("origin", sa.String(16), nullable=False),
        sa.Column("streaming", sa.String(16), nullable=False),
        sa.Column("two_phase", sa.Boolean, nullable=False),
        sa.Column("options", sa.JSON, nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("skip_lsn", LsnType),
        sa.Column("restarts", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("error", sa.Text),
        sa.Column("error_code", sa.String(64)),
        sa.Column("hint", sa.Text),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )
    op.create_index("ix_subscriptions_source", "subscriptions", ["source"])


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("subscriptions")
