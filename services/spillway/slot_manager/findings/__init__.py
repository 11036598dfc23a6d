"""Findings: what is wrong just now."""
