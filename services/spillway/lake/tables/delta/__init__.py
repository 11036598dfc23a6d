"""Lake tables in Delta Lake."""
