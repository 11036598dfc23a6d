"""Moments of which somebody asks how long ago they were.

A wall clock is set: by an administrator, by NTP after a boot, when a virtual machine goes on. What
is reckoned as the difference of two of its times is wrong by as much then, and may be negative: a
server that answers would have been silent for an hour, one that is gone would have been heard in an
hour's time. So a moment that is shown as a time of day and measured from is kept with the monotonic
clock's, which nobody sets.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Instant:
    """A moment of this process's life, or before it."""

    #: as the wall clock showed it, in UTC
    at: datetime
    #: as :func:`time.monotonic` has it; of a moment before the machine's start negative
    monotonic_s: float

    @classmethod
    def now(cls) -> Instant:
        """Take the present moment."""
        return cls(datetime.now(UTC), time.monotonic())

    @classmethod
    def known_as(cls, at: datetime) -> Instant:
        """Take a moment of which only the time of day was kept, a file's; once, for the wall clock
        counts here. One that lies ahead is taken for the present.
        """
        ago_s = max(0.0, (datetime.now(UTC) - at).total_seconds())
        return cls(at, time.monotonic() - ago_s)

    @property
    def ago_s(self) -> float:
        """How long ago it was, in seconds."""
        return time.monotonic() - self.monotonic_s
