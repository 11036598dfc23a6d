"""Catalogs in which other programs find a lake's Delta tables by their names."""
