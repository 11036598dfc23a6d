"""Facts of PostgreSQL: LSNs, xids, identifiers, rmgrs, per-version differences."""
