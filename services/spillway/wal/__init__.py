"""Bytes to records: pages, segments, records."""
