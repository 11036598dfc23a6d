"""Lake tables in Apache Iceberg."""
