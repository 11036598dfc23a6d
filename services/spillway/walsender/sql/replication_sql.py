"""SQL on a replication connection: between replication commands, one Query at a time.

A walsender is a backend and has a transaction, which replication commands take part in: they fail
in one that has failed, and their own failure fails it. Here the transaction is the upstream's, so
its status is kept from each ReadyForQuery, and a command that failed here makes the upstream's
block fail.

The upstream is opened with the first statement. ``SHOW`` and the statement that all libpq clients
of walsenders begin with are no reason to open one that can't be: a slot is read while the primary
is down.

Source: exec_replication_command (src/backend/replication/walsender.c), CopyGetData
(src/backend/commands/copyfromparse.c)
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from spillway._kernels.walsender.frame_heads import FrameHeads
from spillway.walsender import messages
from spillway.walsender.failures import WireError, protocol_violation
from spillway.walsender.sql.upstream import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from spillway.walsender.handshake import Connection
    from spillway.walsender.sql.places import Places
    from spillway.walsender.sql.upstream import Upstream

#: Fails a block and says so in the server's log; nothing else comes of it.
_FAIL: Final = 'ROLLBACK TO SAVEPOINT "a replication command failed"'
_ANSWER_BYTES_MAX: Final = 1 << 24
_READY: Final = ord("Z")
_ERROR: Final = ord("E")
_STATUS: Final = ord("S")
#: A message that is longer is no ParameterStatus, and of an error so long nothing is known.
_WATCHED_BYTES_MAX: Final = 1 << 20
_HEAD_BYTES: Final = 5
_COPY_IN: Final = ord("G")
_ALL_BUT_COPY_DATA: Final = bytes(letter for letter in range(256) if letter != ord("d"))
#: Flush and Sync have nothing to say in a copy; CopyDone and CopyFail end it.
_IGNORED: Final = frozenset(b"HS")
_OF_COPY: Final = frozenset(b"HScf")


class UpstreamEnded(Exception):
    """The source has ended the connection, and the client has what it said of it."""


class ReplicationSql:
    """What one replication connection has of SQL.

    Args:
        connection: the client's.
        open_upstream: connects to the source, with parameters for the session.
        statuses: what the client was told of parameters.
    """

    def __init__(
        self,
        connection: Connection,
        open_upstream: Callable[[Mapping[str, str]], Awaitable[Upstream]],
        statuses: Mapping[str, str],
    ) -> None:
        self._connection = connection
        self._open_upstream = open_upstream
        self._statuses = statuses
        self._upstream: Upstream | None = None
        self._heads = FrameHeads(bytes((_READY, _COPY_IN, _ERROR, _STATUS)), _WATCHED_BYTES_MAX)
        #: parameters that were set here before there was a session
        self.settings: dict[str, str] = {}
        #: of the transaction: I, none; T, in one; E, in one that has failed
        self.status = b"I"
        #: how many statements of the client's ran since the status was I for the last time
        self.statements_in_block = 0
        self._is_busy = False

    @property
    def is_open(self) -> bool:
        """Whether there is an upstream."""
        return self._upstream is not None

    @property
    def is_busy(self) -> bool:
        """Whether the upstream is at work."""
        return self._is_busy

    def parameter(self, name: str) -> str | None:
        """Return what a parameter is in the client's session of the source; None: there is none."""
        return None if self._upstream is None else self._upstream.parameters.get(name)

    async def open(self) -> None:
        """Connect, if that has not been done, and tell the client of parameters that are other than
        it was told.

        Raises:
            WireError: the source can't be connected to.
        """
        if self._upstream is None:
            upstream = await self._open_upstream(self.settings)
            self._upstream = upstream
            others = (
                status
                for status, (name, value) in zip(
                    upstream.statuses, upstream.parameters.items(), strict=True
                )
                if self._statuses.get(name) != value
            )
            await self._connection.send(*others)

    async def run(self, query: bytes, rest_bytes: int = 0, places: Places | None = None) -> bool:
        """Pass a Query on, and everything that comes of it but ReadyForQuery; return whether it
        succeeded.

        Args:
            query: the message, or its beginning.
            rest_bytes: how much of it is still to be read from the client.
            places: where what is in its text; None: it is the client's own.

        Raises:
            UpstreamEnded: the source has ended the connection.
            WireError: the source can't be connected to, or the client did not do as COPY does.
            OSError, asyncio.IncompleteReadError: the client is gone.
        """
        await self.open()
        upstream = self._upstream
        assert upstream is not None
        reader = self._connection.reader
        self._is_busy = True
        reader.when_ended(upstream.abort)
        try:
            # If it is gone, what it has said last can still be read.
            with contextlib.suppress(OSError):
                await upstream.write(query)
            await self._pass_on(upstream, rest_bytes)
            succeeded = await self._relay(upstream, places)
        finally:
            reader.when_ended(None)
            self._is_busy = False
        self.statements_in_block = 0 if self.status == b"I" else self.statements_in_block + 1
        return succeeded

    async def _pass_on(self, upstream: Upstream, size: int) -> None:
        """Pass on so many bytes of the client's."""
        while size:
            data = await self._connection.reader.read(min(size, 2 * PIECE_BYTES))
            if not data:
                raise asyncio.IncompleteReadError(b"", size)
            size -= len(data)
            with contextlib.suppress(OSError):
                await upstream.write(data)

    async def _relay(self, upstream: Upstream, places: Places | None) -> bool:
        """Pass on what the source answers, up to its ReadyForQuery; return whether none of it was
        an error.
        """
        succeeded = True
        copying: asyncio.Task[None] | None = None
        try:
            while data := await upstream.read():
                at = sent = 0
                while True:
                    at, size = self._heads.walk(data, at)
                    if not size or len(data) - at < size or data[at] == _READY:
                        break
                    if data[at] == _COPY_IN:
                        if copying is not None:
                            await copying
                        copying = asyncio.create_task(self._copy_in(upstream))
                    elif data[at] == _STATUS:
                        upstream.note_parameter(data[at + _HEAD_BYTES : at + size])
                    else:
                        succeeded = False
                        if places is not None:
                            error = places.in_error(data[at : at + size])
                            await self._connection.send(data[sent:at], error)
                            sent = at + size
                    at += size
                if at > sent:
                    await self._connection.send(data[sent:at])
                if size and len(data) - at >= size:
                    self.status = data[at + _HEAD_BYTES : at + size]
                    upstream.unread(data[at + size :])
                    self._is_busy = False
                    if copying is not None:
                        await copying
                    return succeeded
                upstream.unread(data[at:])
        except ValueError as error:
            raise protocol_violation(str(error)) from None
        finally:
            if copying is not None and not copying.done():
                copying.cancel()
        if copying is not None and copying.done():
            copying.result()
        raise UpstreamEnded

    async def _copy_in(self, upstream: Upstream) -> None:
        """Pass on what the client copies in, to its end.

        A COPY that has failed ends at the source before its data does here: then the rest is passed
        on, too, where it is ignored.
        """
        try:
            await self._pass_copy_on(upstream)
        except BaseException:
            # Who reads from it, and waits for the copy's end, shall wait no longer.
            upstream.abort()
            raise

    async def _pass_copy_on(self, upstream: Upstream) -> None:
        reader, heads = self._connection.reader, FrameHeads(_ALL_BUT_COPY_DATA)
        kept = b""
        while piece := await reader.read(2 * PIECE_BYTES):
            data = kept + piece
            at, size = heads.walk(data, 0)
            while size and data[at] in _IGNORED and len(data) - at >= size:
                at, size = heads.walk(data, at + size)
            is_other = bool(size) and data[at] not in _OF_COPY
            is_whole = bool(size) and len(data) - at >= size
            # Whoever reads from the source sees when it is gone.
            with contextlib.suppress(OSError):
                await upstream.write(data[: at + size] if is_whole and not is_other else data[:at])
            if is_other:
                reader.unread(data[at:])
                self._check_copy_is_over(data[at])
                return
            if is_whole:
                reader.unread(data[at + size :])
                return
            kept = data[at:]
        raise asyncio.IncompleteReadError(kept, None)

    def _check_copy_is_over(self, kind: int) -> None:
        if self._is_busy:
            raise protocol_violation(f"unexpected message type 0x{kind:02X} during COPY from stdin")

    async def ask(self, statement: str) -> list[list[str | None]]:
        """Run a statement of our own in the client's session; return its rows.

        Raises:
            UpstreamEnded: the source has ended the connection.
            WireError: the source can't be connected to, or the statement failed; a block that it
                was in has failed with it.
        """
        await self.open()
        upstream = self._upstream
        assert upstream is not None
        self._is_busy = True
        try:
            with contextlib.suppress(OSError):
                await upstream.write(messages.query(statement))
            return await self._rows(upstream)
        finally:
            self._is_busy = False

    async def _rows(self, upstream: Upstream) -> list[list[str | None]]:
        rows: list[list[str | None]] = []
        failure: dict[str, str] | None = None
        taken = 0
        while True:
            try:
                kind, body = await upstream.read_message(_ANSWER_BYTES_MAX)
            except (OSError, asyncio.IncompleteReadError):
                raise UpstreamEnded from None
            taken += len(body)
            if taken > _ANSWER_BYTES_MAX:
                raise protocol_violation("the source answers more than it was asked for")
            match kind:
                case b"D":
                    rows.append(messages.parse_data_row(body))
                case b"E":
                    failure = messages.error_fields(body)
                case b"S" | b"A":
                    # The client's session's, like all that is in it.
                    if kind == b"S":
                        upstream.note_parameter(body)
                    await self._connection.send(messages.message(kind, body))
                case b"Z":
                    self.status = body[:1]
                    break
        if failure is not None:
            raise WireError(
                failure.get("C", "XX000"),
                failure.get("M", ""),
                detail=failure.get("D"),
                hint=failure.get("H"),
            )
        return rows

    async def fail_block(self) -> None:
        """Have the transaction that is open fail, for a command in it has failed here.

        Raises:
            UpstreamEnded: the source has ended the connection.
        """
        if self.status == b"T":
            with contextlib.suppress(WireError):
                await self.ask(_FAIL)

    async def cancel(self) -> None:
        """End what the upstream does."""
        if self._upstream is not None and self._is_busy:
            await self._upstream.cancel()

    async def close(self) -> None:
        """End the upstream, with what is open in it."""
        if self._upstream is not None:
            await self._upstream.close()
