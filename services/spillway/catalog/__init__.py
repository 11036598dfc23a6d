"""Bootstrap, the mirror of the physical catalog, relation descriptors."""
