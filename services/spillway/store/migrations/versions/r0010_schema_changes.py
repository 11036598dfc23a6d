"""What DDL did to tables, and what subscriptions made of it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from spillway.store.schema import LsnType, UtcDateTime

revision = "0010_schema_changes"
down_revision = "0009_metrics"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table; what was done before is not known."""
    op.create_table(
        "schema_changes",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column(
            "source",
            sa.String(63),
            sa.ForeignKey(
                "sources.name", name="fk_schema_changes_source_sources", ondelete="CASCADE"
            ),
            nullable=False,
        ),
        sa.Column("database", sa.String(63), nullable=False),
        sa.Column("commit_lsn", LsnType, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("xid", sa.BigInteger, nullable=False),
        sa.Column("committed_at", UtcDateTime, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.Column("outcomes", sa.JSON, nullable=False),
        sa.UniqueConstraint("source", "database", "commit_lsn", "number"),
    )


def downgrade() -> None:
    """Forget it."""
    op.drop_table("schema_changes")
