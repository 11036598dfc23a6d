"""A lake's tables: the contract, how they lie in files, and a room for each format."""
