"""Where the service keeps its files.

::

    DATA_DIR/                           0700; ``spillway serve`` makes every file in it 0600
      spillway.lock                     held with flock by the one process that serves this
                                        directory
      instance                          a UUID that names this directory as a lease holder
      spillway.db                       metadata, when it is SQLite
      spillway.reserve                  disk space for it, given up when the disk is full
                                        (storage/disk_reserve.py)
      sources/NAME/source.json          when the source was made: another one may have its name one
                                        day
      sources/NAME/wal/                 WAL segment files as PostgreSQL names them (receiver)
      sources/NAME/databases/OID/
        txlog/                          the transaction log
        snapshots/<lsn>.snap            serialised catalog mirror, snapshot builder, transactions
                                        that it carries
        snapshots/<lsn>-<lsn>.base      an older one, for a log that is damaged (mending.py); the
                                        second <lsn> is how far all was logged
        verified.json                   when each segment of the log was found whole
                                        (txlog/verification.py)
        mending/                        a segment that is decoded again, and what that spills
        spill/                          transactions in progress that outgrew memory; what the
                                        snapshot does not name is removed at start
        database.json                   its name and encoding, so that a start needs no word of the
                                        source, from where on its transactions are streamed, and
                                        since when decoding fails
        database.copy.json              the same again: one that is damaged or gone is made again of
                                        the other
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import stat
import uuid
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from spillway.errors import Conflict, StorageError
from spillway.receiver.primary import SourceDatabase
from spillway.storage.disk_reserve import DiskReserve
from spillway.storage.durable_files import replace_file
from spillway.storage.file_errors import file_error, file_errors, listed

log = logging.getLogger(__name__)


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
        """Write down *values* in database.json, beside what it says of others; durable on return.

        Nothing is written when both files say so already: the copy is begun only once the other is
        durable. A start says of each database what it is called, and a sync of two files and their
        names for each would be most of what it waits for.
        """
        text = json.dumps({**self._description(), **values})
        with file_errors(self.root, "write to"):
            self.root.mkdir(parents=True, exist_ok=True)
            if all(_has(self.root / name, text) for name in _DESCRIPTIONS):
                return
            for name in _DESCRIPTIONS:
                replace_file(self.root / name, text)

    def streaming(self) -> tuple[int, int] | None:
        """Return what streaming was switched on with, (first LSN, bytes of a part); None when it
        never was.
        """
        found = self._description().get("streaming")
        return None if found is None else (found[0], found[1])

    def failed(self) -> tuple[float, int] | None:
        """Return when decoding failed, in seconds since 1970, and how far it was; None when nothing
        is in its way.
        """
        match self._description().get("failed"):
            case [int() | float() as at, int() as lsn]:
                return float(at), lsn
        return None

    def began_in_takeover(self) -> bool:
        """Say whether its log began when its source was taken over from another service."""
        return self._description().get("began_in_takeover") is True

    def database(self) -> SourceDatabase | None:
        """Return which database this is; None when it was not described, or that is lost."""
        found = self._description()
        return SourceDatabase(*(found[name] for name in SourceDatabase._fields)) if found else None

    def _description(self) -> dict[str, Any]:
        for name in _DESCRIPTIONS:
            path = self.root / name
            try:
                found = json.loads(path.read_bytes())
            except FileNotFoundError:
                continue
            except OSError as error:
                # The copy may be older than what can't be read, and would be written over it.
                raise file_error(error, path, "read") from error
            except ValueError:
                log.error("%s is damaged", path)  # noqa: TRY400 - who reads it goes on
                continue
            if _is_description(found):
                return {str(key): value for key, value in found.items()}
            log.error("%s is damaged", path)
        return {}


_SOURCE_MARK: Final = "source.json"
#: The first that is sound counts.
_DESCRIPTIONS: Final = ("database.json", "database.copy.json")


def _has(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() == text.encode()
    except FileNotFoundError:
        return False


def _is_description(found: object) -> bool:
    """Say whether *found* is what :meth:`DatabaseLayout.describe` writes of a database that is
    remembered.
    """
    if not isinstance(found, dict):
        return False
    streaming = found.get("streaming")
    return (
        isinstance(found.get("name"), str)
        and isinstance(found.get("oid"), int)
        and isinstance(found.get("encoding"), str)
        and (
            streaming is None
            or (
                isinstance(streaming, list)
                and len(streaming) == 2
                and all(isinstance(value, int) for value in streaming)
            )
        )
    )


@dataclass(frozen=True, slots=True)
class SourceLayout:
    """The directories of one source."""

    root: Path
    reserve: DiskReserve

    @property
    def wal(self) -> Path:
        return self.root / "wal"

    def made_at(self) -> datetime | None:
        """Return when the source was made whose files these are; None when that is not known."""
        try:
            found = json.loads((self.root / _SOURCE_MARK).read_bytes())
            return datetime.fromisoformat(found["created_at"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            log.error("%s is damaged", self.root / _SOURCE_MARK)  # noqa: TRY400 - it is made again
            return None

    def clear(self) -> None:
        """Remove everything but the mark: who dies in between finds that these are another source's
        files still.

        Raises:
            OSError: something can't be removed.
        """
        for path in (self.wal, self.root / "databases"):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(path)

    def mark(self, created_at: datetime) -> None:
        """Write down when the source was made whose files these are; durable on return.

        Raises:
            OSError: it can't be written.
        """
        if self.made_at() == created_at:
            return
        self.root.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"created_at": created_at.isoformat()})
        replace_file(self.root / _SOURCE_MARK, text)

    def database(self, database_oid: int) -> DatabaseLayout:
        return DatabaseLayout(self.root / "databases" / str(database_oid), self.reserve)

    def remember_database(self, database: SourceDatabase) -> None:
        """Write down which database the directory of its oid is."""
        self.database(database.oid).describe(**database._asdict())

    def forget_database(self, database_oid: int) -> None:
        """Remove what was decoded of a database."""
        shutil.rmtree(self.database(database_oid).root, ignore_errors=True)

    def databases(self) -> dict[str, SourceDatabase]:
        """Return the databases that were decoded here before, by name, without those that
        :meth:`unreadable` tells of.

        Raises:
            StorageError: which there are can't be read.
        """
        found: dict[str, SourceDatabase] = {}
        for root in self._database_roots():
            layout = DatabaseLayout(root, self.reserve)
            # Seen before what it is: a directory that is just being made is described first.
            is_decoded = layout.txlog.exists() or layout.snapshots.exists()
            try:
                database = layout.database()
            except StorageError:
                continue
            if database is None and not is_decoded:
                continue
            if database is None or str(database.oid) != root.name:
                # Whoever opens the database asks the source for what it is called, and finds the
                # directory.
                log.error("which database %s was decoded of is not known", root)
                continue
            found[database.name] = database
        return found

    def unreadable(self) -> StorageError | None:
        """Return what is in the way of reading which database one of the directories is of."""
        for root in self._database_roots():
            try:
                DatabaseLayout(root, self.reserve).database()
            except StorageError as error:
                return error
        return None

    def _database_roots(self) -> list[Path]:
        directory = self.root / "databases"
        with file_errors(directory, "read"):
            return listed(directory, "")

    def oldest_snapshot_lsn(self) -> int | None:
        """Return where decoding begins again of the database that needs the oldest WAL; None
        without any.

        Raises:
            StorageError: a directory can't be read.
        """
        lsns: list[int] = []
        for root in self._database_roots():
            snapshots = DatabaseLayout(root, self.reserve).snapshots
            with file_errors(snapshots, "read"):
                lsns += [int(path.stem, 16) for path in listed(snapshots, ".snap")]
        return min(lsns, default=None)


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
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            # One that an earlier release made, or a volume: what is in it is its owner's alone. A
            # directory of somebody else's, that this user may only write, stays as it is; the files
            # in it are made for this user alone.
            with contextlib.suppress(PermissionError):
                self.root.chmod(stat.S_IMODE(self.root.stat().st_mode) & 0o700)
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
        with file_errors(path):
            # One that can't be read is still who this directory is: under another name it would
            # wait for its own leases.
            with contextlib.suppress(FileNotFoundError, ValueError):
                return str(uuid.UUID(path.read_text().strip()))
            instance = str(uuid.uuid4())
            replace_file(path, instance + "\n")
            return instance

    def source(self, name: str) -> SourceLayout:
        """Return the directories of the source *name* (a checked name: no separators in it)."""
        return SourceLayout(self.root / "sources" / name, self.reserve)

    def close(self) -> None:
        """Give the lock up."""
        os.close(self._lock_fd)
