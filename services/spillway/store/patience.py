"""How long an answer of the metadata store is waited for, by all who wait.

Usually for :data:`TIMEOUT_S`. A service that stops must not wait for that: :meth:`Patience.hurry`
has what waits cancelled after :data:`STOP_S`, cut off a second later, and once something has waited
that long in vain, all else waits for :data:`IN_VAIN_S` only.

An answer that takes too long is an error: PostgreSQL ends the statement. A server that stands still
(its processes are stopped, its disk hangs) ends nothing, and its kernel goes on to acknowledge what
is sent. So each answer is waited for here, too, a moment longer than the server was given
(:func:`bounded_connections`); before anything is asked of a connection that was kept, it has
:data:`ALIVE_S` to show that somebody is there. Its transaction is rolled back once the server sees
that the connection is closed, unless COMMIT was on its way: that may still be done, by whoever had
the rows locked all the time, with what it proved (:mod:`~spillway.store.fencing`).

Once nobody has answered for that long, be it a server that stands still or whoever has SQLite's
file locked, all others wait for :data:`SILENT_S` only, for a thread, too, until somebody answers.
Within :data:`AGAIN_S` after an attempt nobody but a lease makes another: who asks one after the
other must not wait the sum.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import psycopg

from spillway.pg.connecting import BoundedConnection, NotAnswered, cut

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How long to wait for SQLite's write lock, or for any PostgreSQL answer, in seconds.
TIMEOUT_S: Final = 30
#: … beyond that, for PostgreSQL to say that it took too long
_SAYS_S: Final = 2.0
#: How long a kept connection may take to show that the server is there, and a new one to be made.
ALIVE_S: Final = 5.0
_CONNECT_S: Final = 10.0
#: How long to wait, for each of these, once nobody has answered in time.
SILENT_S: Final = 3.0
AGAIN_S: Final = 1.0
#: … of a service that stops, and when the store was seen not to answer meanwhile.
STOP_S: Final = 3.0
IN_VAIN_S: Final = 0.2
#: Failures with no longer pause in between are one outage, which is logged once, for all requests.
_OUTAGE_S: Final = 60.0
#: between a request to cancel, which a server that stands still does not hear, and cutting it off
_CUT_S: Final = 1.0


class Patience:
    """How long an answer is waited for, by all lanes, and who waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[psycopg.Connection[Any]] = set()
        self._ending: threading.Timer | None = None
        self._ending_since = 0.0
        self._is_in_vain = False
        self._is_silent = False
        self._silent_at = 0.0
        self._failed_at = -math.inf

    @property
    def seconds(self) -> float:
        """For a statement, or a lock."""
        if self._ending is None:
            return SILENT_S if self._is_silent else TIMEOUT_S
        return IN_VAIN_S if self._is_in_vain or self._is_silent else STOP_S

    def left_s(self, began: float) -> float:
        """For what has waited since *began*, also if it began before a stop."""
        return max(began, self._ending_since) + self.seconds - time.monotonic()

    @property
    def alive_s(self) -> float:
        """For a sign of life."""
        return min(ALIVE_S, self.seconds)

    @property
    def connect_s(self) -> float:
        """For a new connection."""
        return min(_CONNECT_S, self.seconds)

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be begun any more: the service stops, and nobody answers."""
        return self._ending is not None and self._is_silent

    @property
    def is_just_tried(self) -> bool:
        """Whether nobody answered a moment ago."""
        return self._is_silent and time.monotonic() - self._silent_at < AGAIN_S

    def note_failure(self) -> bool:
        """Take note that a transaction failed; say whether that is news."""
        now = time.monotonic()
        is_news = now - self._failed_at > _OUTAGE_S
        self._failed_at = now
        return is_news

    def note_in_vain(self) -> None:
        """Take note that somebody has waited for too long, for a lock or the like."""
        self._is_in_vain = self._ending is not None

    def note_silence(self) -> None:
        """Take note that nobody answers."""
        self._is_silent = True
        self._silent_at = time.monotonic()

    def note_answer(self) -> None:
        """Take note that somebody does."""
        self._is_silent = False

    @contextlib.contextmanager
    def of(self, connection: Any) -> Iterator[None]:
        """Have the statements of *connection* cancelled when they wait too long for a stop."""
        if not isinstance(connection, psycopg.Connection):
            yield
            return
        with self._lock:
            self._waiting.add(connection)
        try:
            yield
        finally:
            # Not while it is cancelled: that would be another transaction's statement.
            with self._lock:
                self._waiting.discard(connection)

    def hurry(self) -> None:
        """Wait no longer than a stop may."""
        if self._ending is None:
            self._ending_since = time.monotonic()
            self._ending = threading.Timer(STOP_S, self._cancel, (self._waiting.copy(),))
            self._ending.daemon = True
            self._ending.start()

    def end(self) -> None:
        """Nobody waits any more."""
        if self._ending is not None:
            self._ending.cancel()

    def _cancel(self, former: set[psycopg.Connection[Any]]) -> None:
        with self._lock:
            for connection in self._waiting & former:
                try:
                    connection.cancel_safe(timeout=_CUT_S)
                except psycopg.errors.CancellationTimeout:
                    break  # nor would it hear the others
                except psycopg.Error:
                    continue
        time.sleep(_CUT_S)
        with self._lock:
            for connection in self._waiting & former:
                self.note_silence()
                cut(connection)


def bounded_connections(patience: Patience) -> type[psycopg.Connection[Any]]:
    """Make the class of connections that wait for each answer as *patience* has it."""

    class Bounded(BoundedConnection):
        def longest_s(self) -> float:
            # Nothing but a look whether the server is there runs without a transaction.
            return patience.alive_s if self.autocommit else patience.seconds + _SAYS_S

        def wait(self, *args: Any, **kw: Any) -> Any:
            try:
                answer = super().wait(*args, **kw)
            except NotAnswered:
                patience.note_silence()
                raise
            patience.note_answer()
            return answer

    return Bounded
