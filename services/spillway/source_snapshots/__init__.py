"""Exact snapshots of a source: what SQL sees, paired with a position of a slot."""
