"""Metadata: SQLAlchemy models, slot store, leases."""
