"""What a database has, from the mirrored catalog: publications, tables."""
