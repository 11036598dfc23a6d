"""The metadata store: which sources and slots exist, and who holds which lease.

SQLAlchemy's Core, on threads of the store, over SQLite (one machine, a file under the data
directory) or PostgreSQL (many processes). Everything here is small and must survive any crash; WAL
and transactions are big and live elsewhere. Layers below the engine only: this package knows ``pg``
and ``errors``.

``metadata`` holds :class:`~spillway.store.metadata.MetadataStore`, the one class that others call;
``rows`` what it gives; ``schema`` the tables; ``database`` connections, transactions and the
translation of drivers' errors; ``migrations`` the Alembic scripts, which ship inside the package so
that an installed wheel can bring a database to its schema. Only ``migrate`` imports Alembic.
"""
