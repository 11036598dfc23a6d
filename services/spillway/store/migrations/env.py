"""Alembic's entry: run the scripts on the service's connection, or on SPILLWAY_METADATA_URL's.

The service passes its connection, in a transaction and under a lock (``spillway.store.migrate``).
From Alembic's own command line there is none, and one is opened here.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from alembic import context

from spillway.store.database import Database
from spillway.store.schema import METADATA

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=METADATA,
        # Alembic thinks SQLite can't; it can, since the service begins its transactions itself.
        transactional_ddl=True,
        # SQLite alters most things by copying the table.
        render_as_batch=True,
        compare_server_default=False,
    )
    with context.begin_transaction():
        context.run_migrations()


async def _run_from_command_line() -> None:
    database = Database(os.environ["SPILLWAY_METADATA_URL"])
    await database.prepare()
    try:
        await database.write(_run)
    finally:
        await database.close()


_connection = context.config.attributes.get("connection")
if _connection is not None:
    _run(_connection)
else:
    asyncio.run(_run_from_command_line())
