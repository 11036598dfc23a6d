# cython: language_level=3
"""Placeholder for the text_jsonb kernel."""
