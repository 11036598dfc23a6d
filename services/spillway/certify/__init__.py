"""Proof on a real server: the same WAL decoded by PostgreSQL and by us, compared line by line.

``workload`` makes statements by a seed, ``oracle`` and ``follower`` are the two sides,
``comparison`` holds them together, ``run`` is ``spillway certify``.
"""
