"""A Delta table's log, as a merge by position needs it: the files of its newest version as the log
has them, deletion vectors too, and commits of actions that we made.

::

    _last_checkpoint ─▶ NNN.checkpoint.parquet ─▶ NNN+1.json … ─▶ Snapshot     (load, once a table)
    Snapshot ─▶ the commits behind it ─▶ Snapshot                              (refresh, each batch)
    actions ─▶ NNN+1.json, where nothing is ─▶ Snapshot                        (commit)

delta-rs reads logs, too, and its own writes leave deletion vectors as they are. But it makes none,
and takes no action of its caller's but files that are added; so a commit that replaces a file's
vector is written here. It is a file that must not be there yet, which a directory and object
storage each can say in one step: of two writers one fails (:class:`Lost`), and begins anew with the
other's commit. What the commit names is durable before, and the commit is durable when
:func:`commit` returns.

Checkpoints stay delta-rs' (``checkpoint`` in :mod:`spillway.lake.tables.delta.positions`).

Memory: an action for each of the table's files, as it has in any reader of the log.

Source: the Delta protocol, "Delta Log Entries", "Checkpoints", "Action Reconciliation".
"""

from __future__ import annotations

import json
import time
import zlib
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc
import pyarrow.parquet as pq

from spillway.lake.tables.plain_changes import NotDirect
from spillway.lake.tables.positions import Lost
from spillway.storage.durable_files import put_new
from spillway.storage.place import ObjectPath, StorageChanged

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spillway.storage.place import LakePath

Action = dict[str, Any]

_LAST_CHECKPOINT: Final = "_last_checkpoint"
#: Writer versions up to it know no features but appendOnly and invariants.
_LEGACY_WRITER: Final = 2
#: What a checkpoint says of a file, and a commit would say of it.
_ADD_FIELDS: Final = (
    "path",
    "partitionValues",
    "size",
    "modificationTime",
    "dataChange",
    "stats",
    "tags",
    "deletionVector",
)


@dataclass(slots=True)
class Snapshot:
    """A version of a table."""

    version: int = -1
    #: ``add`` actions by their paths as the log writes them; a file has one, whatever its vector
    files: dict[str, Action] = field(default_factory=dict)
    metadata: Action = field(default_factory=dict)
    protocol: Action = field(default_factory=dict)
    #: versions of applications' last transactions
    transactions: dict[str, int] = field(default_factory=dict)
    #: there was a checkpoint at this version
    checkpoint: int = -1
    #: checksum of the newest commit's bytes; None: it was not read
    tip: int | None = None

    @property
    def configuration(self) -> Mapping[str, str]:
        return self.metadata.get("configuration") or {}

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The schema's fields."""
        found: list[dict[str, Any]] = json.loads(self.metadata["schemaString"])["fields"]
        return found

    @property
    def features(self) -> frozenset[str]:
        """The features that readers or writers must know."""
        protocol = self.protocol
        return frozenset(
            [*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())]
        )

    def add(self, actions: Iterable[Action]) -> None:
        """Take up the actions of one commit."""
        added: list[Action] = []
        for action in actions:
            if "add" in action:
                added.append(action["add"])
            elif "remove" in action:
                self.files.pop(action["remove"]["path"], None)
            elif "metaData" in action:
                self.metadata = action["metaData"]
            elif "protocol" in action:
                self.protocol = action["protocol"]
            elif "txn" in action:
                self.transactions[action["txn"]["appId"]] = int(action["txn"]["version"])
        # A file whose vector changes is removed and added in one commit, in any order.
        for file in added:
            self.files[file["path"]] = file


def load(table: LakePath, snapshot: Snapshot | None = None) -> Snapshot:
    """Return the newest version of *table*, in *snapshot* if that is given, which is new.

    Raises:
        NotDirect: there is no table, or its log is of a kind that is not read here.
    """
    log = table / "_delta_log"
    snapshot = snapshot or Snapshot()
    hint = _last_checkpoint(log)
    if hint is not None:
        _read_checkpoint(log, hint, snapshot)
    _follow(log, snapshot)
    if not snapshot.metadata or not snapshot.protocol:
        raise NotDirect("the log does not begin where it should")
    return snapshot


def refresh(table: LakePath, snapshot: Snapshot) -> Snapshot:
    """Bring *snapshot* up to the table's newest version; return it, or another one that is.

    Its newest commit must be there still, and the same: a table that was removed and made again has
    a log of its own, in which the commit behind ours would be a gap.

    Raises:
        NotDirect: as :func:`load`.
    """
    log = table / "_delta_log"
    try:
        tip = zlib.crc32(_path(log, snapshot.version).read_bytes())
    except FileNotFoundError:
        tip = None
    if tip is None or tip != snapshot.tip:
        return load(table, type(snapshot)())
    _follow(log, snapshot)
    # Behind a checkpoint old commits may be gone, and the next one is no sign of the end then.
    hint = _last_checkpoint(log)
    if hint is None:
        return snapshot
    if int(hint["version"]) > snapshot.version:
        return load(table, type(snapshot)())
    snapshot.checkpoint = int(hint["version"])
    return snapshot


def commit(table: LakePath, snapshot: Snapshot, actions: Sequence[Action]) -> None:
    """Make *actions* the version after *snapshot*, which is that one then, durably; what they name
    is durable already.

    Raises:
        Lost: there is such a version.
        OSError, LakeError: it could not be written; on object storage it may have been.
    """
    path = _path(table / "_delta_log", snapshot.version + 1)
    text = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)
    try:
        if isinstance(path, ObjectPath):
            path.replace_if(None, text)
        else:
            put_new(path, text)
    except StorageChanged as error:
        # A request that was repeated finds what it has written itself.
        if not isinstance(path, ObjectPath) or path.read_text() != text:
            raise Lost(str(path)) from error
    except FileExistsError as error:
        raise Lost(str(path)) from error
    snapshot.add(actions)
    snapshot.version += 1
    snapshot.tip = zlib.crc32(text.encode())


def check_known(snapshot: Snapshot, features: Iterable[str]) -> None:
    """Refuse a table that asks more of who commits to it than *features*.

    Raises:
        NotDirect: it does.
    """
    beyond = snapshot.features - frozenset(features)
    if beyond:
        raise NotDirect(f"table features {', '.join(sorted(beyond))}")
    protocol = snapshot.protocol
    if protocol["minWriterVersion"] > _LEGACY_WRITER and protocol.get("writerFeatures") is None:
        raise NotDirect(f"writer version {protocol['minWriterVersion']}")
    if snapshot.configuration.get("delta.columnMapping.mode", "none") != "none":
        raise NotDirect("column mapping")


def transaction(application: str, version: int) -> Action:
    """Return what says how far *application* is."""
    return {
        "txn": {
            "appId": application,
            "version": version,
            "lastUpdated": int(time.time() * 1000),
        }
    }


def commit_info(operation: str, user_metadata: str | None) -> Action:
    """Return what a commit says of itself to people."""
    about: Action = {
        "timestamp": int(time.time() * 1000),
        "operation": operation,
        "operationParameters": {},
        "engineInfo": "spillway",
    }
    if user_metadata is not None:
        about["userMetadata"] = user_metadata
    return {"commitInfo": about}


def removal(file: Action, *, data_change: bool) -> Action:
    """Return what takes a file out of the table, as the log has it."""
    removed = {
        "path": file["path"],
        "deletionTimestamp": int(time.time() * 1000),
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": file.get("partitionValues") or {},
        "size": file["size"],
    }
    if "deletionVector" in file:
        removed["deletionVector"] = file["deletionVector"]
    return {"remove": removed}


def _path(log: LakePath, version: int) -> LakePath:
    return log / f"{version:020d}.json"


def _follow(log: LakePath, snapshot: Snapshot) -> None:
    while True:
        try:
            data = _path(log, snapshot.version + 1).read_bytes()
        except FileNotFoundError:
            return
        snapshot.add(json.loads(line) for line in data.split(b"\n") if line)
        snapshot.version += 1
        snapshot.tip = zlib.crc32(data)


def _last_checkpoint(log: LakePath) -> dict[str, Any] | None:
    try:
        hint: dict[str, Any] = json.loads((log / _LAST_CHECKPOINT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise NotDirect(f"{_LAST_CHECKPOINT} can't be read") from error
    return hint


def _read_checkpoint(log: LakePath, hint: Mapping[str, Any], snapshot: Snapshot) -> None:
    version = int(hint["version"])
    if hint.get("parts") or hint.get("v2Checkpoint"):
        raise NotDirect("the last checkpoint has several files")
    path = log / f"{version:020d}.checkpoint.parquet"
    opened = BytesIO(path.read_bytes()) if isinstance(path, ObjectPath) else path
    with pq.ParquetFile(opened) as parquet:
        there = parquet.schema_arrow.names
        wanted = [name for name in ("add", "metaData", "protocol", "txn") if name in there]
        # Files come in any number: a row group at a time.
        for number in range(parquet.num_row_groups):
            rows = parquet.read_row_group(number, columns=wanted)
            for name in wanted:
                column = rows.column(name)
                for value in column.filter(pc.is_valid(column)).to_pylist():
                    snapshot.add([{name: _plain(name, value)}])
    snapshot.version = snapshot.checkpoint = version
    try:
        snapshot.tip = zlib.crc32(_path(log, version).read_bytes())
    except FileNotFoundError:
        snapshot.tip = None


def _plain(kind: str, value: Action) -> Action:
    """Return an action of a checkpoint as a commit would have it."""
    if kind == "add":
        if value.get("stats") is None and value.get("stats_parsed") is not None:
            raise NotDirect("the checkpoint has no statistics as text")
        found = {name: value.get(name) for name in _ADD_FIELDS}
        found["partitionValues"] = dict(found["partitionValues"] or ())
        if found["tags"] is not None:
            found["tags"] = dict(found["tags"])
        if found["deletionVector"] is not None:
            vector = found["deletionVector"]
            if vector.get("storageType") is None:
                found["deletionVector"] = None
            else:
                found["deletionVector"] = {k: v for k, v in vector.items() if v is not None}
        return {name: v for name, v in found.items() if v is not None}
    if kind == "metaData":
        return {**value, "configuration": dict(value.get("configuration") or ())}
    return value
