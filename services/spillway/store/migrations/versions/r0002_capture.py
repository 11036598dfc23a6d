"""What a source captures."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; sources that are there capture everything."""
    op.add_column(
        "sources", sa.Column("capture", sa.JSON, nullable=False, server_default=sa.text("'{}'"))
    )


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("sources", "capture")
