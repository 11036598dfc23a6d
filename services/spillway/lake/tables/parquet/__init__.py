"""Lake tables as plain Parquet files."""
