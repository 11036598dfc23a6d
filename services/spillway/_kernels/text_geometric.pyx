# cython: language_level=3
"""Placeholder for the text_geometric kernel."""
