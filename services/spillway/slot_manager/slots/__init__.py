"""Slots: PostgreSQL's logical replication slots and the functions on them."""
