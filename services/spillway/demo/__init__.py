"""The demo: a private PostgreSQL, the service, a workload, a lake, and proof that all rows agree.

``run`` tells the story and judges it; ``shop`` writes the workload, ``lake_tables`` has Spark read
the lake, ``report`` prints. ``private_postgres`` is the server (the
tests' cluster is built on it), ``service`` is ``spillway serve`` seen from outside.
"""
