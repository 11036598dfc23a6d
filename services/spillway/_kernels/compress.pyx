# cython: language_level=3
"""Placeholder for the compress kernel."""
