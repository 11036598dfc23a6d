"""Bytes of WAL → checked records, and whom they concern."""
