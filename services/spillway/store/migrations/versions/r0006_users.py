"""Users: who may come in over PostgreSQL's own protocol."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from spillway.store.schema import UtcDateTime

revision = "0006_users"
down_revision = "0005_slot_owners"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table: nobody may, until somebody is made."""
    op.create_table(
        "users",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("verifier", sa.Text, nullable=False),
        sa.Column("databases", sa.JSON, nullable=False),
        sa.Column("slots", sa.JSON(none_as_null=True)),
        sa.Column("manage_slots", sa.Boolean, nullable=False),
        sa.Column("run_sql", sa.Boolean, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("users")
