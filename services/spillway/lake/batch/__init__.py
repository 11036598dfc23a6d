"""A micro-batch becomes table commits."""
