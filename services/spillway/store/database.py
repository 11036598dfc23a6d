"""Connections, transactions and errors of the two databases that metadata may live in.

``Database.read()`` and ``Database.write()`` give a connection in a transaction. On SQLite a writer
begins with BEGIN IMMEDIATE: the lock is waited for before anything is read, so that a transaction never
fails half-way because somebody else wrote. The file is in WAL mode (readers do not block the writer)
with synchronous=FULL: a confirmed position that was acknowledged must survive a power cut.

Whatever goes wrong in a driver leaves here as :class:`~spillway.errors.MetadataError`, except broken
constraints, which the caller knows the meaning of (:class:`ConstraintViolation`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError, StatementError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import ColumnElement
from sqlalchemy.types import BigInteger

from spillway.errors import InvalidRequest, MetadataError, SpillwayError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sqlalchemy.engine import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
    from sqlalchemy.sql.compiler import SQLCompiler

#: How long to wait for SQLite's write lock, or for any PostgreSQL answer, in seconds.
TIMEOUT_S: Final = 30.0
#: Connections kept to PostgreSQL. Metadata statements take milliseconds: a handful serves a process.
POOL_SIZE: Final = 5

_ACCEPTED: Final = "sqlite:///path/to/file, postgresql://user@host/database"


class ConstraintViolation(Exception):
    """A statement broke a constraint: *foreign_key* says which sort, a unique one otherwise."""

    def __init__(self, *, foreign_key: bool) -> None:
        super().__init__("foreign key" if foreign_key else "unique")
        self.foreign_key = foreign_key


class database_clock(ColumnElement[int]):  # noqa: N801 - reads as a SQL function
    """The database's clock, in milliseconds since 1970."""

    inherit_cache = True
    type = BigInteger()


@compiles(database_clock, "postgresql")
def _postgresql_clock(element: database_clock, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ARG001
    # Not now(), which stands still in a transaction that has waited for a lock.
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


@compiles(database_clock, "sqlite")
def _sqlite_clock(element: database_clock, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ARG001
    return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"


def parse_url(text: str) -> URL:
    """Turn the URL of a metadata store into one that names its asynchronous driver.

    Raises:
        InvalidRequest: it is not a URL, or of a database that metadata can't live in.
    """
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise InvalidRequest(
            "the metadata URL can't be parsed", hint=f"Accepted: {_ACCEPTED}."
        ) from error
    if url.drivername in ("sqlite", "sqlite+aiosqlite"):
        if not url.database or url.database == ":memory:":
            raise InvalidRequest(
                "the metadata URL names no SQLite file",
                hint="Metadata must outlive the process: use sqlite:///path/to/file.",
            )
        return url.set(drivername="sqlite+aiosqlite")
    if url.drivername in ("postgresql", "postgres", "postgresql+asyncpg"):
        url = url.set(drivername="postgresql+asyncpg")
        unknown = sorted(set(url.query) - {"sslmode", "ssl", "host", "port"})
        if unknown:
            raise InvalidRequest(
                f"the metadata URL has unknown parameters: {', '.join(unknown)}",
                hint="For PostgreSQL sslmode, host and port are accepted.",
            )
        # libpq's name for it; asyncpg takes the same values under another.
        if "sslmode" in url.query:
            mode = url.query["sslmode"]
            url = url.difference_update_query(["sslmode"]).update_query_dict({"ssl": mode})
        return url
    raise InvalidRequest(
        f"metadata can't live in {url.drivername!r}", hint=f"Accepted: {_ACCEPTED}."
    )


class Database:
    """An asynchronous engine and what this service does around it."""

    def __init__(self, url_text: str) -> None:
        self.url = parse_url(url_text)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._engine = _sqlite_engine(self.url) if self.is_sqlite else _postgresql_engine(self.url)

    async def prepare(self) -> None:
        """Make a new SQLite file readable by its owner alone and put it in WAL mode; may be repeated."""
        if not self.is_sqlite:
            return
        path = Path(self.url.database or "")
        try:
            # The file holds DSNs with passwords.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise MetadataError(
                f"can't open the metadata file {path}: {error.strerror}",
                hint="Its directory must exist and be writable.",
            ) from error
        # Not through the engine: the mode can't change inside a transaction.
        await asyncio.to_thread(_enter_wal_mode, path)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """Give a connection for reading."""
        async with self._transaction(writes=False) as connection:
            yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """Give a connection in a transaction that commits at the end, durably.

        Raises:
            ConstraintViolation: a statement in it broke a constraint.
        """
        async with self._transaction(writes=True) as connection:
            yield connection

    @asynccontextmanager
    async def _transaction(self, *, writes: bool) -> AsyncIterator[AsyncConnection]:
        try:
            async with self._engine.connect() as connected:
                connection = await connected.execution_options(spillway_writes=writes)
                async with connection.begin():
                    yield connection
        except IntegrityError as error:
            raise _constraint(error) from error
        except StatementError as error:
            # SQLAlchemy wraps what a column type raises for a value that it refuses.
            if isinstance(error.orig, SpillwayError):
                raise error.orig from None
            raise self._unavailable(error) from error
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            raise self._unavailable(error) from error

    async def close(self) -> None:
        """Close every connection."""
        await self._engine.dispose()

    def _unavailable(self, error: Exception) -> MetadataError:
        cause = error.orig if isinstance(error, StatementError) and error.orig else error
        text = str(cause) or type(cause).__name__
        if self.is_sqlite:
            hint = "Check the file, its directory and the space left on its disk."
        else:
            hint = "Check that PostgreSQL is up and SPILLWAY_METADATA_URL is right; requests work again once it is."
        where = self.url.render_as_string(hide_password=True)
        return MetadataError(f"the metadata store {where} failed: {text}", hint=hint)


def _constraint(error: IntegrityError) -> ConstraintViolation:
    # 23503 and 23001: foreign_key_violation and restrict_violation.
    sqlstate = getattr(error.orig, "sqlstate", None)
    name = getattr(error.orig, "sqlite_errorname", None)
    return ConstraintViolation(
        foreign_key=sqlstate in ("23503", "23001") or name == "SQLITE_CONSTRAINT_FOREIGNKEY"
    )


def _enter_wal_mode(path: Path) -> None:
    """Put the file in WAL mode, where it stays; no lock is taken if it is already."""
    # Changing the mode takes an exclusive lock that SQLite's own busy handler does not wait for.
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            with contextlib.closing(sqlite3.connect(path, timeout=TIMEOUT_S)) as connection:
                (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
            break
        except sqlite3.Error as error:
            locked = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
            if not locked or time.monotonic() > deadline:
                raise MetadataError(
                    f"the metadata file {path} can't be opened: {error}",
                    hint="It must be an SQLite database that no other program has locked.",
                ) from error
            time.sleep(0.05)
    if mode != "wal":
        raise MetadataError(
            f"the metadata file {path} can't be put in WAL mode",
            hint="It must be on a local file system: network file systems lack the locks.",
        )


def _sqlite_engine(url: URL) -> AsyncEngine:
    engine = create_async_engine(url, connect_args={"timeout": TIMEOUT_S})

    @event.listens_for(engine.sync_engine, "connect")
    def _connect(dbapi_connection: Any, record: object) -> None:  # noqa: ARG001
        # The driver must not begin transactions of its own accord: ``_begin`` does.
        dbapi_connection.isolation_level = None
        cursor = dbapi_connection.cursor()
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def _begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("spillway_writes", True)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgresql_engine(url: URL) -> AsyncEngine:
    return create_async_engine(
        url,
        pool_size=POOL_SIZE,
        max_overflow=POOL_SIZE,
        pool_timeout=TIMEOUT_S,
        pool_pre_ping=True,
        connect_args={
            "timeout": TIMEOUT_S,
            "command_timeout": TIMEOUT_S,
            "server_settings": {"application_name": "spillway metadata"},
        },
    )
