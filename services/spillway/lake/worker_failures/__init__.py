"""What goes wrong in Spark's Python processes, and how it is told."""
