"""Pages and tuples of catalogs."""
