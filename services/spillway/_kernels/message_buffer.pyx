# cython: language_level=3
"""Placeholder for the message_buffer kernel."""
