"""What this process knows of the logs of a lake's Delta tables.

A batch asks each of its tables how far it is, what columns it has, whose it is, and commits to it.
All of that is in the log's newest version, which is kept from batch to batch (:class:`KnownLogs`).

*What is remembered is checked before it is used.* Another one may commit to a table (maintenance, a
load in a process of its own), or it may be moved away and made anew. So a version counts only while
the file of its commit is the very file that it was, and as the newest one only while none follows.
Both are looked up by name: no log is listed, and none is read that stayed as it was.

Bound: :data:`_TABLES_MAX` logs of some kilobytes each
(:class:`~spillway.lake.tables.delta.log.Head`); the one that was not asked for the longest time
goes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spillway.lake.tables.delta import log
from spillway.lake.tables.delta.log import Head, commit_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spillway.lake.tables.delta.log import Action
    from spillway.storage.place import LakePath

_TABLES_MAX: Final = 8192


@dataclass(slots=True)
class _Known:
    head: Head
    identity: object


class KnownLogs:
    """The logs of one lake's tables. For any thread; a table is one thread's at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[LakePath, _Known] = OrderedDict()

    def newest(self, table: LakePath) -> Head:
        """Return the newest version of *table*.

        Raises:
            NotDirect: there is no table, or its log is of a kind that is not read here.
            OSError, LakeError: it can't be read.
        """
        with self._lock:
            known = self._known.pop(table, None)
        if known is None:
            head = Head()
            log.load(table, head)
        elif (
            known.identity is not None
            and identity_of(table, known.head.version) == known.identity
            and not commit_path(table, known.head.version + 1).is_file()
        ):
            with self._lock:
                self._known[table] = known
            return known.head
        else:
            found = log.refresh(table, known.head)
            assert isinstance(found, Head)
            head = found
        self._keep(table, head)
        return head

    def commit(self, table: LakePath, head: Head, actions: Sequence[Action]) -> None:
        """Make *actions* the version after *head*, durably; raises as
        :func:`spillway.lake.tables.delta.log.commit`.
        """
        try:
            log.commit(table, head, actions)
        except BaseException:
            self.forget(table)
            raise
        self._keep(table, head)

    def begin(self, table: LakePath, actions: Sequence[Action]) -> Head:
        """Make *table* by its first commit, durably; raises as
        :func:`spillway.lake.tables.delta.log.begin`.
        """
        head = Head()
        log.begin(table, actions, head)
        self._keep(table, head)
        return head

    def _keep(self, table: LakePath, head: Head) -> None:
        known = _Known(head, identity_of(table, head.version))
        with self._lock:
            self._known[table] = known
            self._known.move_to_end(table)
            while len(self._known) > _TABLES_MAX:
                self._known.popitem(last=False)

    def forget(self, table: LakePath) -> None:
        """Read the log from its beginning the next time."""
        with self._lock:
            self._known.pop(table, None)


def identity_of(table: LakePath, version: int) -> object:
    """Return what tells a commit's file from another one of its name; None: there is none."""
    commit = commit_path(table, version)
    if isinstance(commit, Path):
        try:
            found = commit.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
    return commit.tag()
