"""What a lake remembers of itself, below ``<path>/_spillway/``: positions, points, loads, tables
set aside.
"""
