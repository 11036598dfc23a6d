"""The demo: a private PostgreSQL, the service, a workload, a lake, and proof that all rows agree."""
