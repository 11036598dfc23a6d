"""Bytes from the source's COPY into the target's: one range, or several in one transaction.

Nothing is done per row in Python: :class:`~spillway._kernels.apply.copy_relay.CopyRelay` moves what
libpq has from one connection to the other, some MiB at a time, without the interpreter's lock; in
between it looks whether it is to stop. Both servers' command tags say how many rows went, and must
agree, unless the target has triggers that may leave rows out.

A copy that is stopped, or whose source fails, ends the target's COPY with an error, so that its
transaction can't commit half of it. A target may answer late, and take nothing meanwhile: another
session's lock, or a trigger, is in the way of its COPY's beginning, of a row, or of its end. It is
waited for as long as nobody wants to stop; then its session ends in the middle of the COPY, which
has its transaction rolled back.
"""

from __future__ import annotations

import ctypes
import importlib
import select
import sys
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

import psycopg
from psycopg import pq

from spillway._kernels.apply.copy_relay import (
    GOES_ON,
    SOURCE_ENDED,
    SOURCE_FAILED,
    CopyRelay,
)
from spillway.apply.target.connection import encoded
from spillway.errors import NotReady, SourceError
from spillway.pg.conninfo import redact

if TYPE_CHECKING:
    from collections.abc import Callable

    from spillway.apply.sync.plan import CopyPlan
    from spillway.apply.sync.states import CopyRange

Connection = psycopg.Connection[tuple[Any, ...]]

_PIECE_BYTES: Final = 4 << 20
_WAIT_MS: Final = 200
_FUNCTIONS: Final = (
    "PQgetCopyData",
    "PQputCopyData",
    "PQflush",
    "PQconsumeInput",
    "PQsocket",
    "PQfreemem",
)


@dataclass(frozen=True, slots=True)
class Copied:
    """What went through one COPY."""

    rows: int
    bytes: int


def copy_range(
    source: Connection,
    target: Connection,
    plan: CopyPlan,
    part: CopyRange,
    told: Callable[[int], None],
    is_over: Callable[[], bool],
) -> Copied:
    """Copy a range. Both connections are in a transaction; the source's has the snapshot.

    Args:
        source: reads.
        target: writes; it has client_min_messages = error, so that nothing else comes from it.
        plan: the table's.
        part: one of the plan's ranges.
        told: is told the bytes that went on, now and then.
        is_over: asked now and then.

    Raises:
        SourceError: the source refuses or the connection broke.
        psycopg.Error: the target refuses or the connection broke.
        NotReady: *is_over* said so; nothing of it is on the target.
    """
    reading, writing = source.pgconn, target.pgconn
    result = reading.exec_(encoded(plan.from_source(part), source))
    if result.status != pq.ExecStatus.COPY_OUT:
        raise _source_error(psycopg.errors.error_from_result(result), plan, source)
    writing.nonblocking = 1
    begun = _begin(writing, encoded(plan.into_target, target), is_over)
    if begun is None:
        _give_up(reading)
        writing.finish()
        raise _stopped(plan)
    if isinstance(begun, psycopg.Error):
        _give_up(reading)
        raise begun
    relay = CopyRelay(_address(reading), _address(writing), _functions())
    try:
        read = _relay(relay, source, target, plan, told, is_over)
    except BaseException as error:
        if _end(writing, type(error).__name__.encode(), is_over) is None:
            writing.finish()
        _give_up(reading)
        raise
    # Without the source's end the target has failed, and says how.
    written = _end(writing, None if read is not None else b"the copy was given up", is_over)
    if written is None:
        # Its session is in the middle of the COPY, whatever it waits for.
        writing.finish()
        raise _stopped(plan)
    if isinstance(written, psycopg.Error):
        _give_up(reading)
        raise written
    if written != read and not (plan.target.fires and written < (read or 0)):
        raise SourceError(
            f"{_what(plan)}: the source sent {read} rows and the target took {written}",
            hint="Nothing of it is on the target. It is copied again.",
        )
    return Copied(written, relay.size)


def _relay(
    relay: CopyRelay,
    source: Connection,
    target: Connection,
    plan: CopyPlan,
    told: Callable[[int], None],
    is_over: Callable[[], bool],
) -> int | None:
    """Pass all data on; return the rows that the source sent, None when the target has failed."""
    ended, before = GOES_ON, 0
    while ended == GOES_ON:
        ended = relay.run(_PIECE_BYTES, _WAIT_MS)
        told(relay.size - before)
        before = relay.size
        if is_over():
            raise _stopped(plan)
        if _has_failed(target.pgconn):
            return None
    if ended == SOURCE_FAILED:
        text = redact(source.pgconn.get_error_message(), source.info.dsn)
        raise SourceError(
            f"{_what(plan)}: the source's connection broke: {' '.join(text.split())}",
            hint="The copy goes on where it is.",
        )
    if ended != SOURCE_ENDED:
        return None
    read = _ended(source.pgconn)
    if isinstance(read, psycopg.Error):
        raise _source_error(read, plan, source)
    return read


def _what(plan: CopyPlan) -> str:
    return f"copying {'.'.join(plan.published.key)}"


def _stopped(plan: CopyPlan) -> NotReady:
    return NotReady(
        f"{_what(plan)} was stopped", hint="It goes on when the subscription runs again."
    )


def _address(connection: pq.abc.PGconn) -> int:
    """Return where libpq has the connection: in each of psycopg's implementations."""
    found = cast("Any", connection).pgconn_ptr
    assert found is not None
    return int(found)


def _has_failed(target: pq.abc.PGconn) -> bool:
    """Say whether the target said anything: while it takes COPY data, that is an error."""
    readable, _, _ = select.select([target.socket], [], [], 0)
    return bool(readable)


def _ended(connection: pq.abc.PGconn) -> int | psycopg.Error:
    """Take the results of a COPY that ended; return its rows, or what it failed with."""
    found: int | psycopg.Error | None = None
    while (result := connection.get_result()) is not None:
        if result.status in (pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT):
            break
        if found is None:
            found = (
                result.command_tuples or 0
                if result.status == pq.ExecStatus.COMMAND_OK
                else psycopg.errors.error_from_result(result)
            )
    if found is None:
        return psycopg.OperationalError(connection.get_error_message() or "the connection broke")
    return found


def _begin(
    target: pq.abc.PGconn, query: bytes, is_over: Callable[[], bool]
) -> bool | psycopg.Error | None:
    """Begin the target's COPY; return None if it was over before the target answered."""
    try:
        target.send_query(query)
        if not _await_answer(target, is_over):
            return None
        result = target.get_result()
    except psycopg.Error as broken:
        return broken
    if result is not None and result.status == pq.ExecStatus.COPY_IN:
        return True
    if result is None or result.status == pq.ExecStatus.COMMAND_OK:
        return psycopg.OperationalError(target.get_error_message() or "the connection broke")
    # As of any query, what is behind its error is taken, too.
    while target.get_result() is not None:
        pass
    return psycopg.errors.error_from_result(result)


def _end(
    target: pq.abc.PGconn, error: bytes | None, is_over: Callable[[], bool]
) -> int | psycopg.Error | None:
    """End the target's COPY, with an error if one is given; return None if it was over before the
    target answered.
    """
    try:
        target.put_copy_end(error)
        if not _await_answer(target, is_over):
            return None
    except psycopg.Error as broken:
        return broken
    return _ended(target)


def _await_answer(target: pq.abc.PGconn, is_over: Callable[[], bool]) -> bool:
    """Send what is left and wait for what the target says to it; return False if it was over
    before. libpq alone would wait for ever, with the interpreter's lock.

    Raises:
        psycopg.Error: the connection broke.
    """
    was_over = False
    while (unsent := target.flush()) or target.is_busy():
        if was_over:
            return False
        select.select([target.socket], [target.socket] if unsent else [], [], _WAIT_MS / 1e3)
        target.consume_input()
        was_over = is_over()
    return True


def _give_up(source: pq.abc.PGconn) -> None:
    """Leave a COPY of the source, which may have much to send yet: the session ends with it."""
    source.finish()


def _source_error(error: psycopg.Error, plan: CopyPlan, source: Connection) -> SourceError:
    dsn = "" if source.closed else source.info.dsn
    return SourceError(
        f"{_what(plan)}: the source refused: {' '.join(redact(str(error), dsn).split())}",
        hint="Check the source's log. The table is copied again.",
        sqlstate=error.sqlstate,
        relation=".".join(plan.published.key),
    )


@cache
def _functions() -> tuple[int, int, int, int, int, int]:
    """Return the addresses of libpq's functions, of the libpq that psycopg uses."""
    if pq.__impl__ == "python":
        library = importlib.import_module("psycopg.pq._pq_ctypes").pq
    else:
        # Looking a name up in a module also looks into what it was linked with.
        file = sys.modules[pq.PGconn.__module__].__file__
        library = ctypes.CDLL(file)
    get, put, flush, consume, socket, free = (
        ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in _FUNCTIONS
    )
    return get, put, flush, consume, socket, free
