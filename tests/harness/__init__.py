"""The tests' harness: real PostgreSQL servers of every major, and PostgreSQL's own decoding as the
oracle.
"""
