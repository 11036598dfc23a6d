"""Where the service keeps its files.

::

    DATA_DIR/
      spillway.lock                     held with flock by the one process that serves this directory
      instance                          a UUID that names this directory as a lease holder
      spillway.db                       metadata, when it is SQLite
      spillway.reserve                  disk space for it, given up when the disk is full (disk_reserve.py)
      sources/NAME/wal/                 WAL segment files as PostgreSQL names them (receiver)
      sources/NAME/databases/OID/
        txlog/                          the transaction log
        snapshots/<lsn>.snap            serialised catalog mirror and snapshot builder
        spill/                          transactions in progress that outgrew memory; emptied at start
        database.json                   its name and encoding, so that a start needs no word of the source, and from where
                                        on its transactions are streamed
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spillway.disk_reserve import DiskReserve
from spillway.errors import Conflict, StorageError
from spillway.receiver.primary import SourceDatabase


@dataclass(frozen=True, slots=True)
class DatabaseLayout:
    """The directories of one decoding session."""

    root: Path
    reserve: DiskReserve

    @property
    def txlog(self) -> Path:
        return self.root / "txlog"

    @property
    def snapshots(self) -> Path:
        return self.root / "snapshots"

    @property
    def spill(self) -> Path:
        return self.root / "spill"

    def describe(self, **values: object) -> None:
        """Write down *values* in database.json, beside what it says of others; durable on return."""
        self.root.mkdir(parents=True, exist_ok=True)
        temporary = self.root / "database.tmp"
        with temporary.open("w") as file:
            json.dump({**self._description(), **values}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.root / "database.json")
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def streaming(self) -> tuple[int, int] | None:
        """Return what streaming was switched on with, (first LSN, bytes of a part); None when it never was."""
        found = self._description().get("streaming")
        return None if found is None else (found[0], found[1])

    def database(self) -> SourceDatabase:
        """Return which database this is; it was described before."""
        found = self._description()
        return SourceDatabase(*(found[name] for name in SourceDatabase._fields))

    def _description(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.root / "database.json").read_text())
        except FileNotFoundError:
            return {}
        return found


@dataclass(frozen=True, slots=True)
class SourceLayout:
    """The directories of one source."""

    root: Path
    reserve: DiskReserve

    @property
    def wal(self) -> Path:
        return self.root / "wal"

    def database(self, database_oid: int) -> DatabaseLayout:
        return DatabaseLayout(self.root / "databases" / str(database_oid), self.reserve)

    def remember_database(self, database: SourceDatabase) -> None:
        """Write down which database the directory of its oid is."""
        self.database(database.oid).describe(**database._asdict())

    def forget_database(self, database_oid: int) -> None:
        """Remove what was decoded of a database."""
        shutil.rmtree(self.database(database_oid).root, ignore_errors=True)

    def databases(self) -> dict[str, SourceDatabase]:
        """Return the databases that were decoded here before, by name."""
        files = sorted((self.root / "databases").glob("*/database.json"))
        found = (DatabaseLayout(path.parent, self.reserve).database() for path in files)
        return {database.name: database for database in found}


class DataDirectory:
    """The service's directory, locked against a second process for as long as this one lives."""

    def __init__(self, root: Path) -> None:
        """Make the directory if needed and lock it.

        Raises:
            Conflict: another process serves it.
            StorageError: it can't be made or written.
        """
        self.root = Path(root).absolute()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._lock_fd = os.open(
                self.root / "spillway.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise StorageError(
                f"can't use {self.root} as data directory: {error.strerror}",
                hint="Name a directory that this user may write with --data-dir.",
            ) from error
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock_fd)
            raise Conflict(
                f"another process serves the data directory {self.root}",
                hint="Stop it first, or give this one a directory of its own with --data-dir.",
            ) from error
        self.reserve = DiskReserve(self.root / "spillway.reserve")
        #: names this directory as a holder of leases: the same again after a restart
        self.instance = self._read_instance()

    def _read_instance(self) -> str:
        path = self.root / "instance"
        try:
            return str(uuid.UUID(path.read_text().strip()))
        except (OSError, ValueError):
            instance = str(uuid.uuid4())
            temporary = path.with_suffix(".tmp")
            temporary.write_text(instance + "\n")
            temporary.replace(path)
            return instance

    def source(self, name: str) -> SourceLayout:
        """Return the directories of the source *name* (a checked name: no separators in it)."""
        return SourceLayout(self.root / "sources" / name, self.reserve)

    def close(self) -> None:
        """Give the lock up."""
        os.close(self._lock_fd)
