"""Tables that a refresh found to have left a subscription, until a program has heard of it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012_forgotten_tables"
down_revision = "0011_session_settings"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; of refreshes before nothing is known."""
    with op.batch_alter_table("subscriptions") as batch:
        batch.add_column(sa.Column("forgotten_tables", sa.JSON(none_as_null=True)))


def downgrade() -> None:
    """Forget it."""
    with op.batch_alter_table("subscriptions") as batch:
        batch.drop_column("forgotten_tables")
