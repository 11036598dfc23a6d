# cython: language_level=3
"""Placeholder for the crc32c kernel."""
