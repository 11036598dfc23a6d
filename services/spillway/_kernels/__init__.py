"""Compiled hot loops, and nothing else."""
