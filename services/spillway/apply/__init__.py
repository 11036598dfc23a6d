"""Subscriptions into PostgreSQL: a slot's changes, applied to another server.

docs/explanation/apply.md says how, and why what is written is what the source has.
"""
