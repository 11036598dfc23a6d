"""When a confirmation last moved a slot: a sign that outlives the process that saw it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from spillway.store.schema import UtcDateTime

revision = "0004_confirmed_at"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("slots", sa.Column("confirmed_at", UtcDateTime))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("slots", "confirmed_at")
