"""PostgreSQL's walsender as an oracle: a logical slot followed while transactions are in progress.

The SQL functions look at WAL after the fact, and decoding then looks up which transactions were
rolled back and leaves them out. What a consumer is told of a transaction that aborts after parts of
it were streamed, only one shows that was connected before.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, NamedTuple, Self

from psycopg import pq

from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from harness.oracle import LogicalSlot

_MESSAGE = struct.Struct(">cQQq")
_TIMEOUT_S = 30


class StreamedLine(NamedTuple):
    """A message with its LSN as PostgreSQL prints it; the protocol bears no xid."""

    lsn: str
    data: str


class LogicalStream:
    """START_REPLICATION on a slot, from where it is confirmed; confirms nothing."""

    def __init__(self, slot: LogicalSlot, options: Mapping[str, str]) -> None:
        settings = " ".join(f"-c {name}={value}" for name, value in slot.settings.items())
        dsn = f"{slot.database.dsn} replication=database options='{settings}'"
        self._connection = pq.PGconn.connect(dsn.encode())
        assert self._connection.status == pq.ConnStatus.OK, self._connection.error_message
        chosen = ", ".join(f"\"{name}\" '{value}'" for name, value in options.items())
        start = f"START_REPLICATION SLOT {slot.name} LOGICAL 0/0 ({chosen})"
        result = self._connection.exec_(start.encode())
        assert result.status == pq.ExecStatus.COPY_BOTH, result.error_message
        self.lines: list[StreamedLine] = []
        self._passed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.finish()

    def read_until(self, reached: Callable[[list[StreamedLine]], bool]) -> None:
        """Read until *reached* is true of the lines so far."""
        deadline = time.monotonic() + _TIMEOUT_S
        while not reached(self.lines):
            self._read()
            assert time.monotonic() < deadline, self.lines[-10:]

    def read_to(self, lsn: str) -> None:
        """Read until the server has decoded up to *lsn*."""
        deadline = time.monotonic() + _TIMEOUT_S
        until = int(Lsn.parse(lsn))
        while self._passed < until:
            self._read()
            assert time.monotonic() < deadline, f"{Lsn(self._passed)}, {self.lines[-10:]}"

    def _read(self) -> None:
        size, data = self._connection.get_copy_data(1)
        if size == 0:
            # Ask where it is: a keepalive answers.
            reply = struct.pack(">cQQQqB", b"r", 0, 0, 0, 0, 1)
            self._connection.put_copy_data(reply)
            self._connection.flush()
            time.sleep(0.01)
            self._connection.consume_input()
            return
        assert size > 0, self._connection.error_message
        if bytes(data[:1]) == b"w":
            _, lsn, _, _ = _MESSAGE.unpack_from(data)
            text = bytes(data[_MESSAGE.size :]).decode()
            self.lines.append(StreamedLine(str(Lsn(lsn)), text))
        else:
            assert bytes(data[:1]) == b"k"
            self._passed = int.from_bytes(data[1:9], "big")
