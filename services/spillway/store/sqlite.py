"""Metadata in an SQLite file.

A writer begins with BEGIN IMMEDIATE: the lock is waited for before anything is read, so that a transaction never
fails half-way because somebody else wrote. The file is in WAL mode (readers do not block the writer)
with synchronous=FULL: a confirmed position that was acknowledged must survive a power cut.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from spillway.errors import InvalidRequest, MetadataError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

#: How long to wait for the write lock, in seconds.
TIMEOUT_S: Final = 30.0


class SqliteBackend:
    """Implements :class:`spillway.store.database.Backend`.

    Args:
        rest: the URL behind ``sqlite://``: a slash and the path, or two for an absolute one.

    Raises:
        InvalidRequest: it names no file.
    """

    hint = "Check the file, its directory and the space left on its disk."
    #: There is one writer at a time anyway.
    threads = 1
    errors: tuple[type[Exception], ...] = (sqlite3.Error, OSError)
    clock = "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"
    #: A writer has the whole file.
    lock_found = ""
    #: It has no such type, and no zones: UTC is kept, as text.
    moment_type = "DATETIME"
    has_table = "SELECT count(*) AS n FROM sqlite_master WHERE type = 'table' AND name = :name"
    sqlalchemy_url = "sqlite://"

    def __init__(self, rest: str) -> None:
        host, slash, path = rest.partition("/")
        path = unquote(path.partition("?")[0])
        if host or not slash or path in ("", ":memory:"):
            raise InvalidRequest(
                "the metadata URL names no SQLite file",
                hint="Metadata must outlive the process: use sqlite:///path/to/file.",
            )
        self.path = Path(path)
        self.where = f"sqlite:///{path}"

    def prepare(self) -> None:
        """Make a new file readable by its owner alone and put it in WAL mode."""
        try:
            # The file holds DSNs with passwords.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise MetadataError(
                f"can't open the metadata file {self.path}: {error.strerror}",
                hint="Its directory must exist and be writable.",
            ) from error
        _enter_wal_mode(self.path)

    def connect(self, *, as_dicts: bool = True) -> sqlite3.Connection:
        # Transactions are begun by us, not by the driver. One thread after another has the connection.
        connection = sqlite3.connect(
            self.path, timeout=TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        if as_dicts:
            connection.row_factory = _as_dict
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA synchronous=FULL")
        return connection

    def is_usable(self, connection: sqlite3.Connection) -> bool:  # noqa: ARG002
        return True

    def begin(self, connection: sqlite3.Connection, *, writes: bool) -> None:
        connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")

    def execute(
        self, connection: sqlite3.Connection, statement: str, values: Mapping[str, Any]
    ) -> sqlite3.Cursor:
        return connection.execute(statement, values)

    def lock_schema(self, connection: sqlite3.Connection) -> None:
        """A writer has the whole file."""

    def violated(self, error: Exception) -> bool | None:
        if not isinstance(error, sqlite3.IntegrityError):
            return None
        return error.sqlite_errorname == "SQLITE_CONSTRAINT_FOREIGNKEY"

    def moment(self, value: datetime) -> str:
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def _as_dict(cursor: sqlite3.Cursor, values: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, values, strict=True)}


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
