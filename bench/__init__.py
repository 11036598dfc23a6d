"""The benchmark: PostgreSQL's logical decoding and Spillway's on the same WAL, in turn, in one run.

``python -m bench`` (``make bench``) starts a private server, writes each WAL range of
:mod:`bench.ranges`, and lets every contestant decode it, one after the other and round after round:

============================== =====================================================================
:mod:`bench.postgresql`        PostgreSQL: peek inside the server; a walsender and pg_recvlogical
:mod:`bench.in_process`        ours without a service: WAL files to a plugin's messages, in a
                               process of its own
:mod:`bench.service`           ours over gRPC: ``spillway serve`` and clients, each a process
:mod:`bench.scenarios`         what is no throughput: latency, the primary's CPU, WAL pinned,
                               start-up, cost of a peek
============================== =====================================================================

:mod:`bench.throughput` makes the rounds. What comes out is in :mod:`bench.results`, is held against
the goals by :mod:`bench.goals`, and is written by :mod:`bench.report` and :mod:`bench.plots`.

Rules. Both sides print the same messages and bytes, or the run fails. A figure is the median of its
runs, and beside wall seconds stand the CPU seconds of everybody involved. A contestant that does
not end in time is said to take longer than that, never left out. While one runs the others sleep:
the service is stopped (SIGSTOP) except for its own turns.
"""
