"""``spillway lake verify``: a lake compared with its source."""
