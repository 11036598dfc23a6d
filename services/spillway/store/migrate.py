"""Bring a database of an older release to this one's schema, by the Alembic scripts inside the package.

Everything happens in one transaction under one lock (SQLite's write lock, a PostgreSQL advisory lock),
so that any number of processes may start at once: the first migrates, the others find nothing to do.
Alembic works through SQLAlchemy, which gets a connection of our making.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.util.exc import CommandError

from spillway.errors import MetadataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.store.database import Database


def migration_config() -> Config:
    """Give Alembic's configuration: the same for the service and for ``migrations/alembic.ini``."""
    config = Config()
    config.set_main_option("script_location", "spillway.store:migrations")
    config.set_main_option("path_separator", "os")
    return config


async def upgrade(database: Database) -> None:
    """Migrate to the newest schema that this release knows.

    Raises:
        MetadataError: the database can't be reached, or was written by a newer release.
    """
    await asyncio.to_thread(_upgrade, database)


@contextmanager
def migrating(database: Database) -> Iterator[sqlalchemy.Connection]:
    """Give SQLAlchemy's connection in a transaction that writes under the lock; it commits at the end."""
    backend = database.backend
    engine = sqlalchemy.create_engine(
        backend.sqlalchemy_url,
        creator=lambda: backend.connect(as_dicts=False),
        poolclass=sqlalchemy.NullPool,
    )
    # Our connections begin no transaction of their own accord.
    sqlalchemy.event.listen(
        engine, "begin", lambda connection: backend.begin(_driver(connection), writes=True)
    )
    try:
        with engine.begin() as connection:
            backend.lock_schema(_driver(connection))
            yield connection
    except backend.errors as error:
        raise database.failed(error) from error
    except sqlalchemy.exc.SQLAlchemyError as error:
        raise database.failed(error) from error
    finally:
        engine.dispose()


def _driver(connection: sqlalchemy.Connection) -> Any:
    return connection.connection.driver_connection


def _upgrade(database: Database) -> None:
    config = migration_config()
    with migrating(database) as connection:
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise MetadataError(
                f"the metadata schema can't be migrated: {error}",
                hint="If a newer Spillway used this database, run that release or a newer one.",
            ) from error
