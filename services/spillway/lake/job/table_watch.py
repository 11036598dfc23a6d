"""What looks after a lake's tables while a job is at work, on a thread of its own.

A batch, a load and a merge say which tables they have changed; none of them waits for what is made
of that, and what goes wrong with it ends none of them.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Self

from spillway.storage.place import ObjectPath

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spillway.storage.place import LakePath

#: Where a look is requests.
_PAUSE_OF_OBJECTS_S: Final = 30.0


class TableWatch(ABC):
    """A context manager: the thread runs within it, and what changed last is seen to at its end."""

    def __init__(self, path: LakePath, name: str, pause_s: float) -> None:
        """Take the lake, what the thread is called, and how long it waits between two rounds; on
        object storage it is :data:`_PAUSE_OF_OBJECTS_S`.
        """
        self._path = path
        self._pause_s = _PAUSE_OF_OBJECTS_S if isinstance(path, ObjectPath) else pause_s
        self._lock = threading.Lock()
        self._changed: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._end()

    def changed(self, names: Iterable[str]) -> None:
        """Hear that tables, by ``schema.table``, are not as they were."""
        with self._lock:
            self._changed.update(names)

    def _taken(self) -> set[str]:
        """Return what has changed since this was asked last."""
        with self._lock:
            changed, self._changed = self._changed, set()
        return changed

    def _run(self) -> None:
        self._begin()
        while not self._stop.wait(self._pause_s):
            self._round()

    @abstractmethod
    def _begin(self) -> None:
        """See to all tables."""

    @abstractmethod
    def _round(self) -> None:
        """See to those that have changed."""

    @abstractmethod
    def _end(self) -> None:
        """Do so once more; the thread has ended."""
