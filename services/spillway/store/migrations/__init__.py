"""Alembic's scripts; ``spillway.store.migrate`` runs them, ``migrations/alembic.ini`` is for
writing new ones.
"""
