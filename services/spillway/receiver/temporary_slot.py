"""A snapshot of the source together with its LSN, by a temporary logical slot: the server pairs the
two.

``CREATE_REPLICATION_SLOT … TEMPORARY … EXPORT_SNAPSHOT`` waits for all transactions that run,
prepared ones among them. It costs a WAL sender and a logical slot until the snapshot is imported.
(The form of the command without parentheses is the only one that 14 knows, and all later ones do.)

Source: CreateReplicationSlot (src/backend/replication/walsender.c), SnapBuildInitialSnapshot
(logical/snapbuild.c)
"""

from __future__ import annotations

import contextlib
import select
import time
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import pq

from spillway.errors import SourceError
from spillway.pg.connecting import CANCEL_S, connect
from spillway.pg.conninfo import sql_conninfo
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spillway.errors import SpillwayError

_POLL_S: Final = 0.1
#: A server that takes longer to make a slot waits for transactions.
_TELL_AFTER_S: Final = 3.0


@contextlib.contextmanager
def exported_by_slot(
    dsn: str, slot_name: str, slow: Callable[[], None], over: Callable[[], SpillwayError | None]
) -> Iterator[tuple[Lsn, str]]:
    """Make a temporary slot; yield its LSN, and the name by which the snapshot can be imported
    meanwhile. Blocking.

    Args:
        dsn: of a role with REPLICATION.
        slot_name: the slot's.
        slow: called once when the server waits for transactions.
        over: asked ten times a second; what it returns is raised.

    Raises:
        SourceError: the server refuses.
        Whatever *over* returns.
    """
    connection = connect(sql_conninfo(dsn), dsn, replication="database", client_encoding="UTF8")
    try:
        row = _command(
            connection,
            f'CREATE_REPLICATION_SLOT "{slot_name}" TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT',
            slow,
            over,
        )
        yield Lsn.parse(row[1]), row[2]
    finally:
        connection.close()


def _command(
    connection: psycopg.Connection[tuple[Any, ...]],
    command: str,
    slow: Callable[[], None],
    over: Callable[[], SpillwayError | None],
) -> list[str]:
    """Run a replication command that answers with one row, interruptibly."""
    pgconn = connection.pgconn
    pgconn.send_query(command.encode())
    began, told = time.monotonic(), False
    while pgconn.is_busy():
        select.select([pgconn.socket], [], [], _POLL_S)
        pgconn.consume_input()
        error = over() if pgconn.is_busy() else None
        if error is not None:
            # A server that stands still does not hear it.
            with contextlib.suppress(psycopg.Error):
                connection.cancel_safe(timeout=CANCEL_S)
            raise error
        if not told and time.monotonic() - began > _TELL_AFTER_S:
            told = True
            slow()
    result = pgconn.get_result()
    if result is None or result.status != pq.ExecStatus.TUPLES_OK:
        message = "" if result is None else result.get_error_message("utf-8")
        raise SourceError(
            f"the source gives no snapshot: {' '.join(message.split())}",
            hint="It needs wal_level = logical, a role with REPLICATION, and a free replication "
            "slot and WAL sender for a moment: max_replication_slots, max_wal_senders.",
        )
    row = [(result.get_value(0, column) or b"").decode() for column in range(result.nfields)]
    while pgconn.get_result() is not None:
        pass
    return row
