# cython: language_level=3
"""Placeholder for the test_decoding kernel."""
