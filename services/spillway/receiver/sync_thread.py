"""Syncs a WAL store beside its receiver, so that receiving, and with it decoding, does not wait for
the disk.

One sync at a time. What it raises waits here for the receiver, the only one who may go on: after a
failed sync the store stands where it was durable last, and WAL must be asked for again from there.

::

    receiver   append  append  append  append ▸ status
                 └ begin          wake_up ┘
    sync thread    sync ───────────┘
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from spillway.errors import SpillwayError

if TYPE_CHECKING:
    from collections.abc import Callable

    from spillway.receiver.wal_writer import WalWriter

log = logging.getLogger(__name__)


class SyncThread:
    """Runs ``store.sync()`` when asked. All methods but the thread's own are the receiver's.

    Args:
        store: what is synced.
        name: of the thread.
        done: called on the thread after each sync.
    """

    def __init__(self, store: WalWriter, name: str, done: Callable[[], None]) -> None:
        self._store = store
        self._done = done
        self._asked = threading.Semaphore(0)
        self._idle = threading.Event()
        self._idle.set()
        self._stopping = False
        self._error: SpillwayError | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the sync that is under way; its error is dropped."""
        self._stopping = True
        self._asked.release()
        self._thread.join()

    def begin(self) -> bool:
        """Begin a sync; False if one is under way, or failed and :meth:`check` was not called
        since.
        """
        if not self._idle.is_set() or self._error is not None:
            return False
        self._idle.clear()
        self._asked.release()
        return True

    def check(self) -> None:
        """Raise what the last sync raised, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def finish(self) -> None:
        """Wait for the sync that is under way, then :meth:`check`."""
        self._idle.wait()
        self.check()

    def _run(self) -> None:
        while True:
            self._asked.acquire()
            if self._stopping:
                return
            try:
                self._store.sync()
            except SpillwayError as error:
                self._error = error
            except Exception as error:
                log.exception("a sync of %s failed", self._store.directory)
                self._error = SpillwayError(f"a sync failed unexpectedly: {error!r}")
            self._idle.set()
            self._done()
