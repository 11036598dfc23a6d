"""Sources, slots and leases: the first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from spillway.store.schema import LsnType, UtcDateTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "sources",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("dsn", sa.Text, nullable=False),
        sa.Column("system_id", sa.String(20), nullable=False),
        sa.Column("server_version_num", sa.Integer, nullable=False),
        sa.Column("timeline", sa.BigInteger, nullable=False),
        sa.Column("wal_segment_size", sa.Integer, nullable=False),
        sa.Column("slot_name", sa.String(63), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("error_code", sa.String(64)),
        sa.Column("hint", sa.Text),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )
    op.create_table(
        "slots",
        sa.Column("slot_name", sa.String(63), primary_key=True),
        sa.Column(
            "source",
            sa.String(63),
            sa.ForeignKey("sources.name", ondelete="RESTRICT"),
            nullable=False,
        ),
        sa.Column("database", sa.String(63), nullable=False),
        sa.Column("datoid", sa.BigInteger, nullable=False),
        sa.Column("plugin", sa.String(63), nullable=False),
        sa.Column("slot_type", sa.String(16), nullable=False),
        sa.Column("temporary", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("catalog_xmin", sa.BigInteger),
        sa.Column("restart_lsn", LsnType),
        sa.Column("confirmed_flush_lsn", LsnType),
        sa.Column("two_phase", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("two_phase_at", LsnType),
        sa.Column("inactive_since", UtcDateTime),
        sa.Column("conflicting", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("invalidation_reason", sa.String(64)),
        sa.Column("failover", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("synced", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("options", sa.JSON, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )
    op.create_index("ix_slots_source", "slots", ["source"])
    op.create_table(
        "leases",
        sa.Column("resource", sa.String(200), primary_key=True),
        sa.Column("holder", sa.String(200), nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Drop the tables."""
    op.drop_table("leases")
    op.drop_table("slots")
    op.drop_table("sources")
