"""Metrics: how sources, slots and subscriptions were, of thirty days."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009_metrics"
down_revision = "0008_signs"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables; what was before is not known."""
    op.create_table(
        "metric_series",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        _of("source", "sources.name"),
        _of("slot", "slots.slot_name"),
        _of("subscription", "subscriptions.name"),
    )
    op.create_table(
        "metrics",
        sa.Column(
            "series",
            sa.BigInteger,
            sa.ForeignKey(
                "metric_series.id", name="fk_metrics_series_metric_series", ondelete="CASCADE"
            ),
            primary_key=True,
        ),
        sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("lag_bytes", sa.Double),
        sa.Column("lag_seconds", sa.Double),
        sa.Column("retained_bytes", sa.Double),
        sa.Column("rate", sa.Double),
    )


def _of(name: str, target: str) -> sa.Column[str]:
    table = target.partition(".")[0]
    key = sa.ForeignKey(target, name=f"fk_metric_series_{name}_{table}", ondelete="CASCADE")
    return sa.Column(name, sa.String(63), key, unique=True)


def downgrade() -> None:
    """Forget them."""
    for table in ("metrics", "metric_series"):
        op.drop_table(table)
