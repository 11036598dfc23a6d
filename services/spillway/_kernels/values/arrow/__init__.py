"""Values as Arrow columns."""
