"""What changed in the schema."""
