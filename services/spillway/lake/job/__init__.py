"""``spillway lake run``: a lake, or several, kept in step with slots."""
