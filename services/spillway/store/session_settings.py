"""What sessions of sources' databases begin with, in the metadata store: the last answer of each.

Streams print by it while the source can't be asked, also after a restart of the service. A row goes
with its source. Nobody's lease is asked for: whoever writes here has asked the same server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete, insert, select

from spillway.store.database import ConstraintViolation
from spillway.store.schema import SESSION_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.engine import Connection

    from spillway.store.database import Database

_COLUMNS = SESSION_SETTINGS.c


class SessionSettingsTable:
    """The settings. Every method may raise :class:`~spillway.errors.MetadataError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, source: str, database: str) -> dict[str, str] | None:
        """Return a database's settings by their names; None: nobody has asked for them yet."""
        return await self._database.read(lambda connection: _found(connection, source, database))

    async def keep(self, source: str, database: str, settings: Mapping[str, str]) -> None:
        """Remember the *settings* of a database in place of those before. Of a source that is gone
        nothing is kept.
        """

        def write(connection: Connection) -> None:
            if _found(connection, source, database) == settings:
                return
            key = {"source": source, "database": database}
            connection.execute(
                delete(SESSION_SETTINGS).where(
                    _COLUMNS.source == source, _COLUMNS.database == database
                )
            )
            connection.execute(insert(SESSION_SETTINGS).values(settings=dict(settings), **key))

        try:
            await self._database.write(write)
        except ConstraintViolation:
            # Its source went meanwhile, or another process has written the same.
            return


def _found(connection: Connection, source: str, database: str) -> dict[str, str] | None:
    statement = select(_COLUMNS.settings).where(
        _COLUMNS.source == source, _COLUMNS.database == database
    )
    found: dict[str, str] | None = connection.scalar(statement)
    return found
