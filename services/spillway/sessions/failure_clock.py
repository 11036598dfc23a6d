"""For how long a database has failed to be decoded without getting further, over restarts of the
service.

What a failed database needs is kept for a while and then given up for the sake of the others
(``wal_horizon.py``). A clock of the process's own would begin anew with each start, and a service
that is restarted every few minutes would never give anything up. So the moment of the first failure
is a stored fact, in database.json, with how far WAL had been taken in. ::

    failed(lsn) ── first of all ──▶ runs ──▶ further failures: it goes on
                                      │ a checkpoint beyond lsn, or all that is stored is decoded
                                      └──▶ stopped, and forgotten

An attempt that begins at the last snapshot again, and writes another one on its way to the same
place, has got no further. Time while no service ran counts: nobody decoded then either.

Within the process the clock is monotonic; the moment that is stored is the machine's time, which
may be set. Where it can't be stored, on a full disk for one, the process's own is all there is
until a later failure can be: taking note of a failure never fails itself, for what failed would not
be tried again then.

For the decoding thread; ``for_s`` is for any.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from spillway.errors import StorageError

if TYPE_CHECKING:
    from spillway.sessions.layout import DatabaseLayout


class FailureClock:
    """One database's."""

    def __init__(self, layout: DatabaseLayout) -> None:
        """Go on with what is stored."""
        self._layout = layout
        self._at = 0.0
        self._lsn = 0
        #: of time.monotonic(); None: it does not run
        self._since: float | None = None
        self._is_stored = True
        if (found := layout.failed()) is not None:
            self._at, self._lsn = found
            self._since = time.monotonic() - max(0.0, time.time() - self._at)

    @property
    def for_s(self) -> float:
        """Seconds since the first failure that nothing has come of yet; 0 when there is none."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def runs(self) -> bool:
        """Whether there is one."""
        return self._since is not None

    def failed(self, lsn: int) -> None:
        """Take note of a failure, after WAL up to *lsn* was taken in."""
        if self._since is not None and lsn <= self._lsn and self._is_stored:
            return
        if self._since is None:
            self._at, self._since = time.time(), time.monotonic()
        self._lsn = max(lsn, self._lsn)
        self._store([self._at, self._lsn])

    def got_to(self, lsn: int) -> None:
        """Take note that a restart would go on at *lsn*."""
        if lsn > self._lsn:
            self.stop()

    def stop(self) -> None:
        """Take note that nothing stands in the way any more."""
        if self._since is None and self._is_stored:
            return
        self._since, self._lsn = None, 0
        self._store(None)

    def _store(self, failed: list[float] | None) -> None:
        self._is_stored = False
        with contextlib.suppress(StorageError):
            self._layout.describe(failed=failed)
            self._is_stored = True
