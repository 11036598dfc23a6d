"""WAL that a server has and is to send again, up to a known end: received until it is there, or the
server is silent.

For what is compared or fetched once (:mod:`~spillway.receiver.continuity`,
:mod:`~spillway.receiver.refetch`). The stream that never ends, with its confirmations, is
:mod:`spillway.receiver.walreceiver`'s.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from spillway.errors import ReplicationFailed
from spillway.pg.lsn import Lsn
from spillway.receiver.replication_connection import EndOfStream
from spillway.receiver.streaming_protocol import (
    KEEPALIVE,
    XLOG_DATA,
    parse_xlog_data,
    unknown_message,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.receiver.replication_connection import ReplicationConnection


_AGAIN: Final = "It is tried again by itself."


def awaited_wal(
    connection: ReplicationConnection, start: int, end: int, silence_max_s: float
) -> Iterator[tuple[int, memoryview]]:
    """Yield (LSN, bytes) of each message of the stream that was opened at *start*, until *end* is
    there.

    The last one may go beyond *end*. Bytes are valid until the next one is asked for. Only WAL
    breaks the silence: a server that is known to have these bytes sends nothing else before them.

    Raises:
        CommandFailed: the server ended the stream with an error, such as that it has removed that
            WAL.
        ReplicationFailed: it ended the stream otherwise, sent something else, or no WAL for
            *silence_max_s*.
    """
    lsn, heard_at = start, time.monotonic()
    while lsn < end:
        try:
            message = connection.receive()
        except EndOfStream:
            connection.finish_copy()
            raise ReplicationFailed(
                f"the server ended the stream at {Lsn(lsn)}, before {Lsn(end)}", hint=_AGAIN
            ) from None
        if message is not None and message[0] == XLOG_DATA:
            sent_lsn, _, data = parse_xlog_data(message)
            if sent_lsn != lsn:
                raise ReplicationFailed(
                    f"the server sent WAL at {Lsn(sent_lsn)} where {Lsn(lsn)} was to come",
                    hint=_AGAIN,
                )
            lsn, heard_at = lsn + len(data), time.monotonic()
            yield sent_lsn, data
            continue
        if message is not None and message[0] != KEEPALIVE:
            raise unknown_message(message)
        silence_s = time.monotonic() - heard_at
        if silence_s >= silence_max_s:
            raise ReplicationFailed(
                f"the server was silent for {silence_s:.0f} s, and sent no WAL from {Lsn(lsn)} on",
                hint=_AGAIN,
            )
        if message is None:
            connection.wait(silence_max_s - silence_s)
