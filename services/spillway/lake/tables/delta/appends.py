"""Rows that the driver has, appended to a Delta table without a Spark job: by delta-rs; and what
this process knows of the tables that it commits to.

::

    rows ──write_deltalake──▶ one commit ──read back──▶ Tip: version, LSN, files ──synced──▶ durable

A Spark job that appends one row takes half a second: for a plan, a Python worker, a snapshot of the
log, a commit with its hooks, and a hundredth of it for the row. With a few hundred tables in a
batch that is minutes. delta-rs takes some milliseconds, most of them to open the table; so tables
that were committed to stay open (:class:`OpenTables`).

*What is remembered is checked before it is used.* Another one may commit to a table (maintenance, a
load in a process of its own), or it may be moved away and made anew while it is open. So an open
table counts only while the file of its last commit is the very file that it was, and the LSN of its
last commit only while no commit follows it. Both are looked up by name: no log is listed.

Bound: :data:`_TABLES_MAX` tables are open, and those that have :data:`_FILES_MAX` files together,
of which some hundred bytes each are kept; the one that was not used for the longest time goes.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import DeltaError

from spillway.lake.tables.delta.merge import (
    check_table,
    fields_of,
    open_table,
    writer_properties,
)
from spillway.storage.durable_files import sync_directory, sync_file
from spillway.storage.place import ObjectPath, storage_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from deltalake import CommitProperties

    from spillway.storage.place import LakePath

_TABLES_MAX: Final = 4096
_FILES_MAX: Final = 200_000


@dataclass(frozen=True, slots=True)
class Tip:
    """A commit of ours, as it was read back from the log."""

    version: int
    #: what tells its file from another one of its name
    identity: object
    #: up to where the table has everything; None: the commit says nothing of that
    lsn: int | None
    #: files that it added, relative to the table
    added: tuple[str, ...]


@dataclass(slots=True)
class _Open:
    table: DeltaTable
    identity: object
    files: int


class OpenTables:
    """The tables of one lake that delta-rs has open, and their tips. For any thread; a table is one
    thread's at a time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[LakePath, _Open] = OrderedDict()
        self._files = 0
        self._tips: dict[LakePath, Tip] = {}

    def table(self, path: LakePath, *, to_write: bool = True) -> DeltaTable:
        """Return the newest version of the table at *path*, opened or still open.

        Raises:
            NotDirect: the path or the table is not for delta-rs.
        """
        with self._lock:
            held = self._open.get(path)
        if held is not None and self._is_newest(path, held):
            check_table(held.table, to_write=to_write)
            return held.table
        self.forget(path)
        table = open_table(path, to_write=to_write)
        self.keep(path, table)
        return table

    def _is_newest(self, path: LakePath, held: _Open) -> bool:
        """Bring an open table to its newest version; say whether that could be done."""
        before = held.table.version()
        if _identity(path, before) != held.identity:
            return False
        try:
            held.table.update_incremental()
        except DeltaError:
            # What came since is not in the log any more.
            return False
        if held.table.version() != before:
            self.keep(path, held.table)
        else:
            with self._lock:
                if path in self._open:
                    self._open.move_to_end(path)
        return True

    def keep(self, path: LakePath, table: DeltaTable, files: int | None = None) -> None:
        """Remember a table as it is; it has *files*, or that is counted."""
        files = len(table.file_uris()) if files is None else files
        kept = _Open(table, _identity(path, table.version()), files)
        with self._lock:
            before = self._open.pop(path, None)
            self._open[path] = kept
            self._files += kept.files - (0 if before is None else before.files)
            while len(self._open) > 1 and (
                len(self._open) > _TABLES_MAX or self._files > _FILES_MAX
            ):
                gone, each = self._open.popitem(last=False)
                self._files -= each.files
                self._tips.pop(gone, None)

    def forget(self, path: LakePath) -> None:
        """Close a table: what is known of it is not so, or may not be."""
        with self._lock:
            held = self._open.pop(path, None)
            self._files -= 0 if held is None else held.files
            self._tips.pop(path, None)

    def committed(self, path: LakePath, table: DeltaTable, application: str) -> Tip:
        """Read the last commit of *table* back, of which *application* is the writer."""
        tip = _read_tip(path, table.version(), application)
        with self._lock:
            held = self._open.get(path)
        self.keep(path, table, None if held is None else held.files + len(tip.added))
        with self._lock:
            self._tips[path] = tip
        return tip

    def lsn(self, path: LakePath) -> int | None:
        """Return the LSN of the table's last commit, if that is one of ours that is known."""
        with self._lock:
            tip = self._tips.get(path)
        if tip is None or tip.lsn is None:
            return None
        if _identity(path, tip.version) != tip.identity or _is_there(path, tip.version + 1):
            self.forget(path)
            return None
        return tip.lsn


def create(
    path: LakePath, schema: str, partition_by: Sequence[str], properties: Mapping[str, str]
) -> DeltaTable:
    """Make an empty table of *schema*, as Delta's JSON has it.

    Raises:
        DeltaError: among others, there is one already.
    """
    where = path.absolute()
    options = None
    if isinstance(where, ObjectPath):
        options = storage_options()
    else:
        where.parent.mkdir(parents=True, exist_ok=True)
    return DeltaTable.create(
        str(where),
        Schema.from_json(schema),
        mode="error",
        partition_by=list(partition_by) or None,
        configuration=dict(properties),
        storage_options=options,
        raise_if_key_not_exists=False,
    )


def append(table: DeltaTable, rows: pa.Table, commit: CommitProperties) -> None:
    """Commit *rows*, whose columns are the table's; *table* is at the new version then.

    Raises:
        deltalake.exceptions.CommitFailedError: another one committed first; nothing is done.
    """
    write_deltalake(
        table,
        rows,
        mode="append",
        writer_properties=writer_properties(rows.schema),
        commit_properties=commit,
    )


def sync_tip(path: LakePath, tip: Tip, *, is_new: bool = False) -> None:
    """Make a commit and its files durable, and a checkpoint that came with it; objects are when
    they are there.

    *is_new*: the table was made just before, all of its log is new.
    """
    if isinstance(path, ObjectPath):
        return
    log = path / "_delta_log"
    written = [path / name for name in tip.added]
    versions = range(tip.version + 1) if is_new else (tip.version,)
    written += [log / _commit_name(version) for version in versions]
    checkpoint = log / f"{tip.version:020d}.checkpoint.parquet"
    if checkpoint.exists():
        written += [checkpoint, log / "_last_checkpoint"]
    folders = {file.parent for file in written}
    if is_new:
        folders |= {path, path.parent, path.parent.parent}
    for file in written:
        sync_file(file)
    for folder in folders:
        sync_directory(folder)


def described(fields: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Any, Any]]:
    """Return what of two schemas' fields must agree: types, attribute numbers and partitions by
    name.
    """
    return {f["name"]: (f["type"], f.get("metadata") or {}) for f in fields}


def has_fields(table: DeltaTable, fields: Sequence[Mapping[str, Any]]) -> bool:
    """Say whether a table's columns are *fields*, in whatever order."""
    return described(fields_of(table)) == described(fields)


def _read_tip(path: LakePath, version: int, application: str) -> Tip:
    """Read a commit (the Delta protocol's "Delta Log Entries": JSON lines, an action each)."""
    commit = path / "_delta_log" / _commit_name(version)
    lsn, added = None, []
    for line in commit.read_text().split("\n"):
        if line.startswith('{"add":'):
            added.append(unquote(json.loads(line)["add"]["path"]))
        elif line.startswith('{"txn":'):
            transaction = json.loads(line)["txn"]
            if transaction["appId"] == application:
                lsn = int(transaction["version"])
    return Tip(version, _identity(path, version), lsn, tuple(added))


def _commit_name(version: int) -> str:
    return f"{version:020d}.json"


def _identity(path: LakePath, version: int) -> object:
    """Return what tells a commit's file from another one of its name; None: there is none."""
    commit = path / "_delta_log" / _commit_name(version)
    if isinstance(commit, Path):
        try:
            found = commit.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
    return commit.tag()


def _is_there(path: LakePath, version: int) -> bool:
    return (path / "_delta_log" / _commit_name(version)).is_file()
