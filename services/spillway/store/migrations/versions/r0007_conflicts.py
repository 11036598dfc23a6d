"""Conflicts of subscriptions: the last ones, their counts, and up to where programs' files were
taken in.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007_conflicts"
down_revision = "0006_users"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables; what is in programs' files already is taken in when they are read."""
    op.create_table(
        "conflicts",
        _subscription(),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("conflict_id", sa.String(200), nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.UniqueConstraint("subscription", "conflict_id"),
    )
    op.create_table(
        "conflict_counts",
        _subscription(),
        sa.Column("table_name", sa.String(200), primary_key=True),
        sa.Column("kind", sa.String(64), primary_key=True),
        sa.Column("count", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "conflict_logs",
        _subscription(),
        sa.Column("log", sa.String(64), primary_key=True),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("missed", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Drop the tables."""
    for name in ("conflict_logs", "conflict_counts", "conflicts"):
        op.drop_table(name)


def _subscription() -> sa.Column[str]:
    target = sa.ForeignKey("subscriptions.name", ondelete="CASCADE")
    return sa.Column("subscription", sa.String(63), target, primary_key=True)
