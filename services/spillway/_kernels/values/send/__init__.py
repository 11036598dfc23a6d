"""Types' send format: a module for each family of types."""
