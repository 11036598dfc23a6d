"""Signs of life of a decoding session: how it stands and since when, for who looks from outside.

A sign must not begin with the process that shows it. What failed stays failed until it is past: an
attempt that decodes again from the last snapshot goes over WAL that was no trouble before it comes
to where the last one ended. So decoding counts as stopped until it went beyond that place, and
wrote a checkpoint. And who stopped before the service was started did not stop when it was:
``stored_at`` is when the files say that it last went on.

The decoding thread writes, any thread reads.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from spillway.pg.lsn import Lsn
from spillway.sessions.model import Decoding

if TYPE_CHECKING:
    from pathlib import Path

    from spillway.errors import SpillwayError

#: A loop of the decoding thread that takes longer says nothing of the present any more.
_STALE_S: Final = 30.0
#: Under load decoding is always a little behind what is received.
_BEHIND_BYTES: Final = 64 << 20


class DecodingSigns:
    """Of one session, over all its attempts."""

    def __init__(self, log_directory: Path) -> None:
        """Begin with what the files of the transaction log say."""
        self._stored_at = newest_file_time(log_directory)
        #: there is something decoded of before
        self.continues = self._stored_at is not None
        self.error: SpillwayError | None = None
        self._since = datetime.now(UTC)
        self._failed_lsn = 0
        self._went_on = False
        self._looked_s = time.monotonic()
        #: how far WAL was taken in by the present attempt
        self.lsn = 0
        #: what was stored when the session began was decoded, once
        self.settled = False

    def failed(self, error: SpillwayError) -> None:
        """Take note that an attempt ended."""
        if self.error is None:
            stored = None if self._went_on else self._stored_at
            self._since = stored or datetime.now(UTC)
        self.error = error
        self._failed_lsn = max(self._failed_lsn, self.lsn)

    def is_past_failure(self, *, caught_up: bool) -> bool:
        """Say whether the present attempt came further than those that failed, and look whether it
        is alive.
        """
        self._looked_s = time.monotonic()
        return caught_up or self.lsn > self._failed_lsn

    def went_on(self) -> None:
        """Take note that nothing stands in the way any more."""
        if self.error is not None or not self._went_on:
            self._since = datetime.now(UTC)
        self.error, self._failed_lsn, self._went_on = None, 0, True

    @property
    def state(self) -> str:
        """Running, starting or stopped; see :class:`spillway.sessions.model.Decoding`."""
        if self.error is not None:
            return "stopped"
        return "running" if self.settled else "starting"

    @property
    def since(self) -> datetime:
        """Since when it is in that state."""
        return self._since

    def is_current(self, behind_bytes: int) -> bool:
        """Say whether what is received is decoded but for what is under way: what is not seen is
        not there.

        The thread has come round lately, and no more than *behind_bytes* are received and not
        decoded.
        """
        fresh = self.settled and time.monotonic() - self._looked_s < _STALE_S
        return self.error is None and fresh and behind_bytes <= _BEHIND_BYTES

    def decoding(self, decoded_lsn: int) -> Decoding:
        """Describe it for who reads a slot."""
        error = self.error
        return Decoding(
            state=self.state,
            decoded_lsn=Lsn(decoded_lsn) if decoded_lsn else None,
            since=self._since,
            error=error.message if error else None,
            error_code=error.code if error else None,
            hint=error.hint if error else None,
        )


def newest_file_time(directory: Path) -> datetime | None:
    """Return when a file in *directory* was last written; None without one."""
    try:
        times = [entry.stat().st_mtime for entry in directory.iterdir() if entry.is_file()]
    except OSError:
        return None
    return datetime.fromtimestamp(max(times), UTC) if times else None
