"""Connections made step by step, so that a refusal has its SQLSTATE.

libpq tells a refused connection as text alone, in the language of the server's lc_messages. But
the text has the SQLSTATE, and the name of the server's function that refused, once the connection
that is being made is verbose, and libpq makes it so from outside: ``PQsetErrorVerbosity``, which
psycopg does not hand through. It is looked up in the libpq that psycopg has loaded. Where there is
none to be found, a refusal is told by its words, as
:mod:`~spillway.pg.connect_errors` does then.

Source: pqBuildErrorMessage3 (src/interfaces/libpq/fe-protocol3.c)
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import functools
import os
import random
import select
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from spillway.errors import SourceError, SourceUnreachable
from spillway.pg.connect_errors import connect_error, is_of_another_kind
from spillway.pg.conninfo import connection_attempts, parse_dsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from psycopg.pq.abc import PGconn

    #: Waits until a descriptor is ready for what ``select.poll`` calls events, or for so many
    #: seconds; says whether it is.
    Wait = Callable[[int, int, float], bool]

#: Without a connect_timeout, and with one of 0. That means for ever to libpq; to be told what is
#: wrong is worth more.
_TIMEOUT_S: Final = 10
_HANDSHAKE_MAX_S: Final = 600.0
_DEFAULT, _VERBOSE = 1, 2
#: what is nearly done may be done
CANCEL_S: Final = 3.0
_LOOK_S: Final = 0.5
#: what the error of an answer says that did not come in time
NOT_ANSWERED: Final = "has not answered within"
#: psycopg's, for signals
_INTERVAL_S: Final = 0.1


class NotAnswered(psycopg.OperationalError):
    """A server that took a question has not answered in time; the connection is closed."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection whose answers are waited for so long and no longer: a server that stands still
    ends no statement, and its kernel acknowledges what is sent.
    """

    def longest_s(self) -> float | None:
        """Return how many seconds an answer is waited for; None: as long as it takes."""
        return None

    def wait(self, gen: Any, interval: float = _INTERVAL_S, timeout: float | None = None) -> Any:
        longest_s = self.longest_s()
        if longest_s is None:
            return super().wait(gen, interval, timeout)
        given_s = longest_s if timeout is None else min(timeout, longest_s)
        began = time.monotonic()
        try:
            return super().wait(gen, interval, given_s)
        except psycopg.Error as error:
            if time.monotonic() - began < given_s:
                raise
            # What it was to answer is unknown; nobody may go on with it.
            self.close()
            raise NotAnswered(f"the server {NOT_ANSWERED} {given_s:g} s") from error


class _Answered(BoundedConnection):
    answer_s: float | None = None

    def longest_s(self) -> float | None:
        return self.answer_s


def connect(
    conninfo: str, dsn: str | None = None, *, answer_s: float | None = None, **more: str
) -> psycopg.Connection[Any]:
    """Connect for SQL, in autocommit, to the first address that accepts. Blocking.

    Args:
        conninfo: how.
        dsn: whose secrets are masked in messages; *conninfo* itself without.
        answer_s: how long each answer is waited for; without, as long as it takes. One that does
            not come is psycopg's OperationalError, and the connection is closed.
        more: libpq's parameters, over those of *conninfo*.

    Raises:
        SourceError: no connection; its subclass says why, and the hint what mends it. It is that of
            the last server that refused, if one did, else of one that is not of the kind that is
            asked for, else of the first address.
    """
    conninfo = make_conninfo(conninfo, **more)
    attempts = connection_attempts(conninfo)
    if parse_dsn(conninfo).get("load_balance_hosts") == "random":
        random.shuffle(attempts)
    failure: SourceError | None = None
    for attempt in attempts:
        try:
            pgconn = handshake(attempt, _ready, dsn or conninfo)
        except SourceError as error:
            if failure is None or _tells_more(error, failure):
                failure = error
            continue
        # As psycopg has its connections.
        pgconn.nonblocking = 1
        connection = _Answered(pgconn)
        connection.autocommit = True
        connection.answer_s = answer_s
        return connection
    assert failure is not None
    raise failure


def _tells_more(error: SourceError, than: SourceError) -> bool:
    """Whether what one address said is to be told rather than what another one before it did."""
    if type(error) is not SourceUnreachable:
        return True
    return type(than) is SourceUnreachable and is_of_another_kind(error)


def cut(connection: psycopg.Connection[Any]) -> None:
    """Shut its socket: whoever reads from it or writes to it gets an error at once. On any thread,
    and without a word to the server, which may not hear it.
    """
    with contextlib.suppress(psycopg.Error, OSError):
        number = connection.fileno()
        with socket.socket(fileno=os.dup(number)) as own:
            # What is still open was open when it was copied: it is no other's by now.
            if connection.fileno() == number:
                own.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def ended_by(cancel: threading.Event, connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Cut *connection* off when *cancel* is set and the block has not ended :data:`CANCEL_S` later:
    it waits for an answer that does not come.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_S):
            if cancel.is_set():
                if not over.wait(CANCEL_S):
                    cut(connection)
                return

    watcher = threading.Thread(target=watch, name="connection's end", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def handshake(conninfo: str, wait: Wait, dsn: str | None = None) -> PGconn:
    """Take a connection to one address through its handshake, and return it.

    Args:
        conninfo: how.
        wait: what waits for the socket; what it raises ends the attempt.
        dsn: whose secrets are masked in messages; *conninfo* itself without.

    Raises:
        SourceError: there is none.
        Whatever *wait* raises.
    """
    parameters = parse_dsn(conninfo)
    dsn = dsn or conninfo
    timeout_s = float(parameters.get("connect_timeout", _TIMEOUT_S)) or _HANDSHAKE_MAX_S
    deadline = time.monotonic() + timeout_s
    pgconn = pq.PGconn.connect_start(conninfo.encode())
    try:
        _set_verbosity(pgconn, _VERBOSE)
        failure = _poll(pgconn, deadline, wait)
        if failure is None:
            _set_verbosity(pgconn, _DEFAULT)
            return pgconn
        rejected = bool(pgconn.used_password)
    except BaseException:
        pgconn.finish()
        raise
    pgconn.finish()
    text = failure or f"no answer within {timeout_s:g} s"
    raise connect_error(text, dsn, parameters, password_rejected=bool(failure) and rejected)


def _poll(pgconn: PGconn, deadline: float, wait: Wait) -> str | None:
    """Return what libpq says of the attempt that failed, "" when it took too long; None: it is
    made.
    """
    status = pq.PollingStatus.WRITING
    while status != pq.PollingStatus.OK:
        if pgconn.status == pq.ConnStatus.BAD or status == pq.PollingStatus.FAILED:
            return pgconn.get_error_message("utf-8")
        # libpq may go on to another socket at each step, when it falls back from TLS for one.
        event = select.POLLIN if status == pq.PollingStatus.READING else select.POLLOUT
        if not wait(pgconn.socket, event, max(0.0, deadline - time.monotonic())):
            return ""
        status = pq.PollingStatus(pgconn.connect_poll())
    return None


def _ready(descriptor: int, event: int, seconds: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, event)
    return bool(poller.poll(seconds * 1000))


def _set_verbosity(pgconn: PGconn, verbosity: int) -> None:
    function = _verbosity_function()
    if function is not None:
        function(pgconn.pgconn_ptr, verbosity)  # type: ignore[attr-defined]


@functools.cache
def _verbosity_function() -> Callable[[int | None, int], int] | None:
    # An extension module's own handle finds what the libraries have that came with it; psycopg in
    # Python alone has the system's libpq.
    module = sys.modules[pq.PGconn.__module__].__file__ or ""
    file = module if module.endswith(".so") else ctypes.util.find_library("pq")
    try:
        function = ctypes.CDLL(file).PQsetErrorVerbosity
    except (OSError, AttributeError):
        return None
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_int], ctypes.c_int
    found: Callable[[int | None, int], int] = function
    return found
