"""Sources: the PostgreSQL clusters that WAL comes from."""
