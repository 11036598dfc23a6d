"""The end of a program, or of a part of it, which does not wait for the target.

A statement may wait there as long as somebody keeps a lock, a trigger takes, or a machine stands
still. Whoever waits for it looks at nothing meanwhile. So each session is known to the
:class:`Stop` of whoever it is for, and a thread ends it once that is set::

    set ─▶ a second, in which what is nearly done is done ─▶ its statement is cancelled, each second
        ─▶ after five of these the connection is cut here: the request was lost, or the target does
           not hear it

What was not committed is rolled back by the target, then or when it sees that nobody is there. A
COMMIT that was cut off is committed or is not: its position is in it, and the next program waits
until this one's session is gone before it reads that.

The thread that sets a program's stop has to be another than that which waits: libpq's calls go on
after a signal, and Python's handlers wait for them (:func:`stops_by_signals`).
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import psycopg

from spillway.pg.connecting import cut

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

#: in which what runs may end by itself
_GRACE_S: Final = 1.0
#: between two requests to cancel: what a session does next may wait, too
_AGAIN_S: Final = 1.0
#: for one request, of which the server tells no result
_CANCEL_S: Final = 2.0
#: after the first request; then the connection is cut
_CUT_S: Final = 5.0


class Stopped(Exception):
    """It was told to stop before it was done: nothing of it was written, or nothing is to be."""


class Stop(threading.Event):
    """Is set when a program, or a part of it, is to end; see the module. Safe on any thread, but
    not in a signal's handler.

    Args:
        of: what it is a part of: it is set with that, too.
    """

    def __init__(self, of: Self | None = None) -> None:
        super().__init__()
        self._guard = threading.Lock()
        self._parts: list[Self] = []
        self._sessions: WeakSet[psycopg.Connection[Any]] = WeakSet()
        self._has_ended_sessions = False
        if of is not None:
            of.include(self)

    def set(self) -> None:
        """Have it end, and sessions with it."""
        with self._guard:
            if self.is_set():
                return
            super().set()
            sessions, parts = list(self._sessions), list(self._parts)
        for session in sessions:
            self._begin_to_end(session)
        for part in parts:
            part.set()

    def watch(self, session: psycopg.Connection[Any]) -> None:
        """End *session* when this is set, unless it is closed by then."""
        with self._guard:
            self._sessions.add(session)
            is_late = self.is_set()
        if is_late:
            self._begin_to_end(session)

    @property
    def has_ended_sessions(self) -> bool:
        """Whether what a session failed with may be by this: one was cancelled, or cut off."""
        return self._has_ended_sessions or any(part.has_ended_sessions for part in self._parts)

    def include(self, part: Self) -> None:
        """Set *part* with this, too."""
        with self._guard:
            self._parts.append(part)
            is_late = self.is_set()
        if is_late:
            part.set()

    def _begin_to_end(self, session: psycopg.Connection[Any]) -> None:
        # One each: a request that nobody answers keeps nobody else waiting.
        for what in (self._cancel, self._cut_later):
            threading.Thread(
                target=what, args=(session,), name="session's end", daemon=True
            ).start()

    def _cancel(self, session: psycopg.Connection[Any]) -> None:
        until = time.monotonic() + _GRACE_S + _CUT_S
        time.sleep(_GRACE_S)
        while not session.closed and time.monotonic() < until:
            self._has_ended_sessions = True
            cancel(session)
            time.sleep(_AGAIN_S)

    def _cut_later(self, session: psycopg.Connection[Any]) -> None:
        time.sleep(_GRACE_S + _CUT_S)
        if not session.closed:
            self._has_ended_sessions = True
            cut(session)


def cancel(session: psycopg.Connection[Any]) -> None:
    """Ask the server once to cancel what *session* does, encrypted as the session is."""
    with suppress(psycopg.Error):
        session.cancel_safe(timeout=_CANCEL_S)


def stops_by_signals(numbers: Sequence[signal.Signals]) -> Stop:
    """Return what is set by these signals, while the main thread waits for whatever it likes. On
    the main thread, for the rest of the process.
    """
    stop = Stop()
    heard, told = socket.socketpair()
    told.setblocking(False)
    for number in numbers:
        # The interpreter writes the number to the socket in the signal's own moment, if there is a
        # handler; that would come once the main thread is in Python again.
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)

    def hear() -> None:
        # Both ends live as long as this does.
        with heard, told:
            while True:
                if not set(numbers).isdisjoint(heard.recv(64)):
                    stop.set()

    threading.Thread(target=hear, name="signals", daemon=True).start()
    return stop
