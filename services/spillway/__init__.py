"""Spillway: PostgreSQL logical decoding outside the server, replication slots as a service."""

__version__ = "0.1.0"
