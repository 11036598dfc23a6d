"""SQLAlchemy's engines for the two databases that the metadata store may live in.

On SQLite a writer begins with BEGIN IMMEDIATE: the lock is waited for before anything is read, so
that a transaction never fails half-way because somebody else wrote. The file is in WAL mode
(readers do not block the writer) with synchronous=FULL: a confirmed position that was acknowledged
must survive a power cut.

In PostgreSQL nothing is prepared and nothing is set for a session, so that a pooler may stand in
between.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import time
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.conninfo import make_conninfo
from sqlalchemy import create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, OperationalError

from spillway.errors import InvalidRequest, MetadataError
from spillway.store.patience import TIMEOUT_S, bounded_connections

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy.engine import Connection, Engine

    from spillway.store.patience import Patience

#: How often SQLite's lock is asked for.
_LOCK_AGAIN_S: Final = 0.2
#: PostgreSQL ends a transaction whose client has said nothing for so long: a process that stands
#: still in one would keep the rows locked, its leases among them, for as long as its connection.
IDLE_S: Final = 5
_ACCEPTED: Final = "sqlite:///path/to/file, postgresql://user@host/database"


def parse_url(text: str) -> URL:
    """Turn the URL of a metadata store into one that names its driver.

    Raises:
        InvalidRequest: it is not a URL, or of a database that metadata can't live in.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise InvalidRequest(
            "the metadata URL can't be parsed", hint=f"Accepted: {_ACCEPTED}."
        ) from error
    # The driver that a URL names is ours to choose.
    name = url.drivername.partition("+")[0]
    if name == "sqlite":
        if url.host or not url.database or url.database == ":memory:":
            raise InvalidRequest(
                "the metadata URL names no SQLite file",
                hint="Metadata must outlive the process: use sqlite:///path/to/file.",
            )
        return URL.create("sqlite", database=url.database)
    if name in ("postgresql", "postgres"):
        # asyncpg's name for it, which URLs of earlier releases may have.
        if "ssl" in url.query:
            mode = url.query["ssl"]
            url = url.difference_update_query(["ssl"]).update_query_dict({"sslmode": mode})
        try:
            make_conninfo(**dict.fromkeys(url.query, ""))
        except psycopg.ProgrammingError as error:
            raise InvalidRequest(
                f"the metadata URL has unknown parameters: {error}",
                hint="postgresql://user:password@host:port/database?parameter=value, with libpq's "
                "parameters.",
            ) from error
        return url.set(drivername="postgresql+psycopg")
    raise InvalidRequest(
        f"metadata can't live in {url.drivername!r}", hint=f"Accepted: {_ACCEPTED}."
    )


def prepare_file(path: Path) -> None:
    """Make a new SQLite file readable by its owner alone, and put it in WAL mode; may be repeated.

    Raises:
        MetadataError: it can't be opened, or not in that mode.
    """
    try:
        # The file holds DSNs with passwords.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise MetadataError(
            f"can't open the metadata file {path}: {error.strerror}",
            hint="Its directory must exist and be writable.",
        ) from error
    # Not through the engine: the mode can't change inside a transaction.
    _enter_wal_mode(path)


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


def is_locked(error: BaseException) -> bool:
    """Say whether SQLite failed because another program has the file locked."""
    return str(getattr(error, "sqlite_errorname", "")).startswith("SQLITE_BUSY")


def _json(value: object) -> str:
    return json.dumps(value, default=dict)  # JSON takes a dict, not any mapping


def sqlite_engine(url: URL, connections: int, patience: Patience) -> Engine:
    """Make the engine of a file.

    Args:
        url: of :func:`parse_url`.
        connections: as many are kept.
        patience: how long its lock is waited for.
    """
    engine = create_engine(
        url,
        json_serializer=_json,
        pool_size=connections,
        # The driver must not begin transactions of its own accord: ``_begin`` does.
        connect_args={"timeout": TIMEOUT_S, "isolation_level": None},
    )

    @event.listens_for(engine, "connect")
    def _connect(dbapi_connection: Any, record: object) -> None:  # noqa: ARG001
        dbapi_connection.execute("PRAGMA foreign_keys=ON")
        dbapi_connection.execute("PRAGMA synchronous=FULL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if not connection.get_execution_options().get("spillway_writes", True):
            connection.exec_driver_sql("BEGIN")
            return
        # SQLite waits as long as it was told when it began to: a stop would wait for that.
        began = time.monotonic()
        connection.exec_driver_sql(f"PRAGMA busy_timeout={round(_LOCK_AGAIN_S * 1000)}")
        while True:
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            except OperationalError as error:
                if not (is_locked(error.orig or error) and patience.left_s(began) > 0):
                    raise
            else:
                break
        connection.exec_driver_sql(f"PRAGMA busy_timeout={TIMEOUT_S * 1000}")

    return engine


def postgresql_engine(url: URL, connections: int, patience: Patience) -> Engine:
    """Make the engine of a PostgreSQL.

    Args:
        url: of :func:`parse_url`.
        connections: as many are kept.
        patience: how long its answers are waited for.
    """
    engine = create_engine(
        url,
        json_serializer=_json,
        pool_size=connections,
        # The server may have gone since, and be back.
        pool_pre_ping=True,
        connect_args={
            "application_name": "spillway metadata",
            "client_encoding": "utf8",
            "tcp_user_timeout": TIMEOUT_S * 1000,
            "prepare_threshold": None,
        },
    )

    bounded = bounded_connections(patience)

    @event.listens_for(engine, "do_connect")
    def _do_connect(
        dialect: object, record: object, arguments: Any, parameters: dict[str, Any]
    ) -> Any:
        del dialect, record
        if patience.is_over:
            raise psycopg.OperationalError("it does not answer, and the service stops")
        parameters["connect_timeout"] = math.ceil(patience.connect_s)
        return bounded.connect(*arguments, **parameters)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # For the transaction alone: a pooler may give the session to others.
        options = connection.get_execution_options()
        timeout_ms = round(options.get("spillway_timeout_s", TIMEOUT_S) * 1000)
        lock_timeout_s = options.get("spillway_lock_timeout_s", 0)
        connection.exec_driver_sql(
            f"SELECT set_config('statement_timeout', '{timeout_ms}ms', true),"
            f" set_config('lock_timeout', '{lock_timeout_s}s', true),"
            f" set_config('idle_in_transaction_session_timeout', '{IDLE_S}s', true)"
        )

    return engine
