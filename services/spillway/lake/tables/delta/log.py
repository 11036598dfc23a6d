"""A Delta table's log, as batches need it that are committed without Spark: its newest version as
the log has it, and commits of actions that we made.

::

    _last_checkpoint ─▶ NNN.checkpoint.parquet ─▶ NNN+1.json … ─▶ Snapshot     (load, once a table)
    Snapshot ─▶ the commits behind it ─▶ Snapshot                              (refresh)
    actions ─▶ NNN+1.json, where nothing is ─▶ Snapshot                        (commit)

A merge by position needs all of the table's files, with their deletion vectors (:class:`Snapshot`);
who appends needs none, and who writes a small table anew a few (:class:`Head`).

delta-rs reads and writes logs, too. But it makes no deletion vectors, takes no action of its
caller's but files that are added, doesn't sync, and takes some milliseconds where a commit of a
small batch is a line of JSON. So such commits are written here. A commit is a file that must not be
there yet, which a directory and object storage each can say in one step: of two writers one fails
(:class:`Lost`), and begins anew with the other's commit. What the commit names is durable before,
and the commit is durable when :func:`commit` returns.

Checkpoints are written by delta-rs (:func:`checkpoint`).

Memory: an action for each file that is kept, as it has in any reader of the log.

Source: the Delta protocol, "Delta Log Entries", "Checkpoints", "Action Reconciliation".
"""

from __future__ import annotations

import json
import time
import uuid
import zlib
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from spillway.failpoints import failpoint
from spillway.lake.tables.plain_changes import NotDirect
from spillway.lake.tables.positions import Lost
from spillway.storage.durable_files import sync_directory
from spillway.storage.place import ObjectPath, put_new_text, storage_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spillway.storage.place import LakePath

Action = dict[str, Any]

_LAST_CHECKPOINT: Final = "_last_checkpoint"
#: Writer versions up to it know no features but appendOnly and invariants.
_LEGACY_WRITER: Final = 2
#: A :class:`Head` knows no more files.
_FEW_FILES: Final = 32
_INTERVAL_PROPERTY: Final = "delta.checkpointInterval"
#: A type that readers and writers must know, as the schema has it, and what it is called then.
_NTZ: Final = ("timestamp_ntz", "timestampNtz")
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
        return _fields_of(self.metadata["schemaString"])

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

    def takes_files(self, _count: int) -> bool:
        """Say whether so many files of a checkpoint are to be added."""
        return True


@dataclass(slots=True)
class Head(Snapshot):
    """A version of which the files are known only as long as they are few."""

    #: there are more files, so that none is known here
    many: bool = False

    def add(self, actions: Iterable[Action]) -> None:
        # Not super(): a dataclass with slots is another class than the one that this is said in.
        Snapshot.add(self, actions)
        self.takes_files(0)

    def takes_files(self, count: int) -> bool:
        self.many = self.many or len(self.files) + count > _FEW_FILES
        if self.many:
            self.files.clear()
        return not self.many


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
        put_new_text(path, text)
    except FileExistsError as error:
        raise Lost(str(path)) from error
    snapshot.add(actions)
    snapshot.version += 1
    snapshot.tip = zlib.crc32(text.encode())


def checkpoint(table: LakePath, snapshot: Snapshot, interval: int, *, is_due: bool = False) -> bool:
    """Write a checkpoint if there were *interval* commits since the last one, or as many as the
    table says, or there was one and a checkpoint *is_due*; and let old log entries go. Return
    whether it was done; it is not synced.

    Raises:
        DeltaError, OSError: it could not be written.
    """
    interval = int(snapshot.configuration.get(_INTERVAL_PROPERTY, interval))
    if snapshot.version - snapshot.checkpoint < (1 if is_due else interval):
        return False
    failpoint("lake.before_checkpoint")
    where = table.absolute()
    opened = DeltaTable(str(where), storage_options=storage_options(where))
    opened.create_checkpoint()
    opened.cleanup_metadata()
    snapshot.checkpoint = opened.version()
    return True


def table_made(
    schema: str, partition_by: Sequence[str], configuration: Mapping[str, str]
) -> list[Action]:
    """Return the first commit of a table of *schema*, as Delta's JSON has it."""
    type_, feature = _NTZ
    protocol: Action = {"minReaderVersion": 1, "minWriterVersion": 2}
    if f'"{type_}"' in schema:
        features = [feature]
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
        protocol |= {"readerFeatures": features, "writerFeatures": features}
    return [
        {"protocol": protocol},
        {
            "metaData": {
                "id": str(uuid.uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": schema,
                "partitionColumns": list(partition_by),
                "configuration": dict(configuration),
                "createdTime": int(time.time() * 1000),
            }
        },
        commit_info("CREATE TABLE", None),
    ]


def first_commit(table: LakePath) -> list[Action]:
    """Return the first commit of a table without rows, which is all of it; an empty file that it
    may have is left out.
    """
    lines = _path(table / "_delta_log", 0).read_text(encoding="utf-8").split("\n")
    return [action for action in map(json.loads, filter(None, lines)) if "add" not in action]


def begin(table: LakePath, actions: Sequence[Action], snapshot: Snapshot | None = None) -> None:
    """Make a table by its first commit, durably; what else is in its place stays. *snapshot*, which
    is new, is the table's then.

    Raises:
        Lost: there is a table.
        OSError, LakeError: as of :func:`commit`.
    """
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    commit(table, snapshot or Snapshot(), actions)
    if not isinstance(table, ObjectPath):
        for made in (table, table.parent, table.parent.parent):
            sync_directory(made)


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


def commit_info(
    operation: str, user_metadata: str | None, *, is_blind_append: bool = False
) -> Action:
    """Return what a commit says of itself to people, and that it has read nothing of the table,
    which lets others' commits, that were begun before it, be.
    """
    about: Action = {
        "timestamp": int(time.time() * 1000),
        "operation": operation,
        "operationParameters": {},
        "engineInfo": "spillway",
        "isBlindAppend": is_blind_append,
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


def described(fields: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Any, Any]]:
    """Return what of two schemas' fields must agree: types, attribute numbers and partitions by
    name.
    """
    return {f["name"]: (f["type"], f.get("metadata") or {}) for f in fields}


def commit_path(table: LakePath, version: int) -> LakePath:
    """Return where a version's commit is."""
    return _path(table / "_delta_log", version)


@lru_cache(maxsize=64)
def _fields_of(schema: str) -> list[dict[str, Any]]:
    """Return a schema's fields, nobody's to change: a batch asks some times, a table at a time."""
    found: list[dict[str, Any]] = json.loads(schema)["fields"]
    return found


def _path(log: LakePath, version: int) -> LakePath:
    return log / f"{version:020d}.json"


def _follow(log: LakePath, snapshot: Snapshot) -> None:
    while True:
        try:
            data = _path(log, snapshot.version + 1).read_bytes()
        except FileNotFoundError:
            return
        try:
            actions = [json.loads(line) for line in data.split(b"\n") if line]
        except ValueError as error:
            raise NotDirect(f"version {snapshot.version + 1} can't be read") from error
        snapshot.add(actions)
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
                if name == "add" and not snapshot.takes_files(len(column) - column.null_count):
                    continue
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
