"""The metadata store: which sources and slots exist, and who holds which lease.

SQLite (one machine, a file under the data directory) or PostgreSQL (many processes). Everything here is
small and must survive any crash; WAL and transactions are big and live elsewhere. Layers below the engine
only: this package knows ``pg`` and ``errors``.

``metadata`` holds :class:`~spillway.store.metadata.MetadataStore`, the one class that others call;
``rows`` what it gives; ``database`` transactions, on threads; ``sqlite`` and ``postgresql`` the two
databases; ``tables`` the tables of a new one. A dozen statements in plain SQL are what all of this is: they go to the drivers directly, because
SQLAlchemy took two thirds of a second of a start and 35 MB of memory (docs/explanation/performance.md).

It is there for what happens once a release: ``migrations`` are Alembic scripts, inside the package, so that an installed
wheel can bring a database of an older release to its schema; ``schema`` the tables as they know them. Only ``migrate`` imports them.
"""
