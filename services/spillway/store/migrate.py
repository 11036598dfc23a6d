"""Bring a database to this release's schema, by the Alembic scripts inside the package.

Everything happens in one transaction under one lock (SQLite's write lock, a PostgreSQL advisory
lock), so that any number of processes may start at once: the first migrates, the others find
nothing to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from alembic import command
from alembic.config import Config
from alembic.util.exc import CommandError

from spillway.errors import MetadataError

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from spillway.store.database import Database

#: Key of the advisory lock, "spillway" read as a big-endian number.
_LOCK_KEY: Final = int.from_bytes(b"spillway", "big")

#: How long a migration may say nothing: it keeps no leases locked, as other transactions may.
_IDLE_S: Final = 60


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
    await database.write(_upgrade)


def _upgrade(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        # Alembic loads scripts between the statements, which a busy machine takes its time for.
        connection.exec_driver_sql(
            f"SELECT set_config('idle_in_transaction_session_timeout', '{_IDLE_S}s', true)"
        )
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK_KEY})")
    config = migration_config()
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise MetadataError(
            f"the metadata schema can't be migrated: {error}",
            hint="If a newer Spillway used this database, run that release or a newer one.",
        ) from error
