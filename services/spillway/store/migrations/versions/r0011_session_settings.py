"""What sessions of sources' databases begin with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011_session_settings"
down_revision = "0010_schema_changes"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table; sources are asked when a client next comes in."""
    op.create_table(
        "session_settings",
        sa.Column(
            "source",
            sa.String(63),
            sa.ForeignKey(
                "sources.name", name="fk_session_settings_source_sources", ondelete="CASCADE"
            ),
            primary_key=True,
        ),
        sa.Column("database", sa.String(63), primary_key=True),
        sa.Column("settings", sa.JSON, nullable=False),
    )


def downgrade() -> None:
    """Forget it."""
    op.drop_table("session_settings")
