"""A Delta table's log, read and appended to without a Spark job.

The log is a folder of JSON files, one a commit, named by version; a checkpoint stands for all commits up to its version
(the Delta protocol: PROTOCOL.md of delta-io/delta, "Delta Log Entries", "Checkpoints"). Who wants the table's files replays the
actions; who wants to change them creates the file of the next version, and whoever creates it first has it.

Delta's own library replays the log as a Spark job at each version, 0.1 to 0.3 s for a handful of files, and plans, filters and
commits by further ones. The writer of a table that changes every second keeps what it has read and reads on: :class:`DeltaLog`
costs a directory entry a commit and memory for each file of the table, not for its rows.

Only what :func:`unsupported` lets pass is written here: no feature of the protocol that asks more of a writer than
``add``, ``remove`` and ``txn``. Everything else is left to Delta itself, which reads what is written here like any other commit.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote
from uuid import uuid4

import pyarrow.parquet as pq

from spillway.lake.files import sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

#: Table features that ask nothing of who adds and removes whole files.
_HARMLESS_FEATURES: Final = frozenset({"appendOnly", "invariants", "timestampNtz"})
#: Writer versions up to it know no other features.
_LEGACY_WRITER: Final = 2
#: Properties with the prefix ``delta.`` that are the business of checkpoints and of VACUUM.
_HARMLESS_PROPERTIES: Final = frozenset(
    {
        "delta.checkpointInterval",
        "delta.checkpoint.writeStatsAsJson",
        "delta.deletedFileRetentionDuration",
        "delta.logRetentionDuration",
        "delta.enableExpiredLogCleanup",
        "delta.targetFileSize",
    }
)
_LOG: Final = "_delta_log"
_LAST_CHECKPOINT: Final = "_last_checkpoint"


class UnreadableLog(Exception):
    """The log has something that is not read here."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that a table consists of."""

    path: Path
    #: as the log has it: relative to the table, percent-encoded
    name: str
    size: int
    rows: int | None
    smallest: dict[str, Any]
    largest: dict[str, Any]
    has_deletion_vector: bool


@dataclass(slots=True)
class DeltaLog:
    """What a table's log says as of :attr:`version`; :meth:`update` reads on, :meth:`commit` adds to it."""

    table: Path
    version: int = -1
    files: dict[str, DataFile] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)
    #: applications' last transactions: their versions, and which commit has each (None: one before the checkpoint)
    transactions: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    #: which file the newest commit is
    _newest: tuple[int, int] | None = None

    def update(self) -> None:
        """Read the commits that were made since.

        Raises:
            UnreadableLog: they don't lead from the first commit, or from a checkpoint of one file, to the newest.
        """
        # A table that was moved away and made anew has a log of its own; and a log that was cleaned up goes on later.
        if self.version >= 0 and self._newest != _identity(_commit_path(self.table, self.version)):
            self._forget()
        if self.version < 0 and not _commit_path(self.table, 0).exists():
            self._load_checkpoint()
        while True:
            try:
                text = _commit_path(self.table, self.version + 1).read_text(encoding="utf-8")
            except FileNotFoundError:
                break
            self.version += 1
            self._apply([json.loads(line) for line in text.splitlines() if line], self.version)
        self._newest = _identity(_commit_path(self.table, self.version))
        if self._newest is None:
            self._forget()
            raise UnreadableLog(f"{self.table} has no newest commit")

    def commit(self, actions: Iterable[dict[str, Any]]) -> bool:
        """Append a commit with *actions*; return False, with nothing done, if another one was first.

        The files that it adds must be durable before.
        """
        actions = list(actions)
        log = self.table / _LOG
        beside = log / f".{self.version + 1:020d}.{uuid4()}.tmp"
        text = "".join(f"{json.dumps(action, ensure_ascii=False)}\n" for action in actions)
        try:
            with beside.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            # Unlike a rename, a link fails when the name is taken.
            os.link(beside, _commit_path(self.table, self.version + 1))
        except FileExistsError:
            return False
        finally:
            beside.unlink(missing_ok=True)
        sync_directory(log)
        self.version += 1
        self._apply(actions, self.version)
        self._newest = _identity(_commit_path(self.table, self.version))
        return True

    def unsupported(self) -> str | None:
        """Return what the table has that :meth:`commit` would do wrong by, None if nothing."""
        features = {
            *(self.protocol.get("readerFeatures") or ()),
            *(self.protocol.get("writerFeatures") or ()),
        }
        others = features - _HARMLESS_FEATURES
        if others:
            return f"table features {', '.join(sorted(others))}"
        writer = self.protocol.get("minWriterVersion", 0)
        if writer > _LEGACY_WRITER and "writerFeatures" not in self.protocol:
            return f"writer version {writer}"
        for name in self.metadata.get("configuration") or {}:
            if name.startswith("delta.") and name not in _HARMLESS_PROPERTIES:
                return f"property {name}"
        if self.metadata.get("partitionColumns"):
            return "partitions"
        schema = json.loads(self.metadata["schemaString"])
        for column in schema["fields"]:
            if any(name.startswith("delta.") for name in column.get("metadata") or {}):
                return f"column {column['name']}"
        if any(file.has_deletion_vector for file in self.files.values()):
            return "deletion vectors"
        return None

    def _forget(self) -> None:
        self.version = -1
        self.files.clear()
        self.metadata, self.protocol = {}, {}
        self.transactions.clear()
        self._newest = None

    def _load_checkpoint(self) -> None:
        newest = last_checkpoint(self.table)
        if newest is None or newest.get("parts") or newest.get("v2Checkpoint"):
            raise UnreadableLog(f"{self.table} has no checkpoint of one file")
        version = int(newest["version"])
        path = self.table / _LOG / f"{version:020d}.checkpoint.parquet"
        if not path.exists():
            raise UnreadableLog(f"{path} is not there")
        columns = set(pq.read_schema(path).names)
        if "sidecar" in columns:
            raise UnreadableLog(f"{path} has its files elsewhere")
        known = [name for name in ("txn", "add", "metaData", "protocol") if name in columns]
        for row in pq.read_table(path, columns=known).to_pylist(maps_as_pydicts="strict"):
            self._apply([{name: value for name, value in row.items() if value is not None}], None)
        self.version = version

    def _apply(self, actions: Sequence[dict[str, Any]], version: int | None) -> None:
        # A file may be removed and added in one commit: what was added counts.
        for action in actions:
            if "remove" in action:
                self.files.pop(action["remove"]["path"], None)
        for action in actions:
            if "add" in action:
                file = data_file(self.table, action["add"])
                self.files[file.name] = file
            elif "metaData" in action:
                self.metadata = action["metaData"]
            elif "protocol" in action:
                self.protocol = {k: v for k, v in action["protocol"].items() if v is not None}
            elif "txn" in action:
                transaction = action["txn"]
                self.transactions[transaction["appId"]] = int(transaction["version"]), version


def data_file(table: Path, add: dict[str, Any]) -> DataFile:
    """Return the file that an ``add`` action names.

    Raises:
        UnreadableLog: it is not below the table.
    """
    name = add["path"]
    if ":/" in name or name.startswith("/"):
        raise UnreadableLog(f"{name} is not in {table}")
    stats = json.loads(add.get("stats") or "{}")
    return DataFile(
        path=table / unquote(name),
        name=name,
        size=int(add["size"]),
        rows=stats.get("numRecords"),
        smallest=stats.get("minValues") or {},
        largest=stats.get("maxValues") or {},
        has_deletion_vector=bool(add.get("deletionVector")),
    )


def last_checkpoint(table: Path) -> dict[str, Any] | None:
    """Return what the log says of its last checkpoint, None if there is none."""
    try:
        text = (table / _LOG / _LAST_CHECKPOINT).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    described: dict[str, Any] = json.loads(text)
    return described


def added_files(log: DeltaLog, version: int) -> list[DataFile]:
    """Return the files that a commit added."""
    text = _commit_path(log.table, version).read_text(encoding="utf-8")
    actions = (json.loads(line) for line in text.splitlines() if line)
    return [data_file(log.table, action["add"]) for action in actions if "add" in action]


def now_ms() -> int:
    """Return the time as the log has it."""
    return int(time.time() * 1000)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _commit_path(table: Path, version: int) -> Path:
    return table / _LOG / f"{version:020d}.json"
