"""Who has a slot, and whose a temporary one is: what one process knew of its own slots, known to
all.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005_slot_owners"
down_revision = "0004_confirmed_at"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns: nobody has a slot that was had under the former release, whose process has
    ended.
    """
    op.add_column("slots", sa.Column("owner_token", sa.BigInteger))
    op.add_column("slots", sa.Column("active_token", sa.BigInteger))
    op.add_column("slots", sa.Column("active_pid", sa.BigInteger))
    op.add_column("slots", sa.Column("consumer", sa.JSON))


def downgrade() -> None:
    """Drop the columns."""
    for name in ("consumer", "active_pid", "active_token", "owner_token"):
        op.drop_column("slots", name)
