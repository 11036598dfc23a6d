"""A normal connection: what either side says is passed on, both ways at once, until one of them has
ended.

Of the client only messages with a statement are looked at, and of these only the ones that speak of
slots are changed (:mod:`~spillway.walsender.sql.statements`)::

    Query   its text, with our rows in it
    Parse   its text, with one parameter more for our rows
    Bind    our rows as they are now, as that parameter's value

and of the source ParameterDescription, which loses that parameter, an error's place in a statement
that was changed (:mod:`~spillway.walsender.sql.places`), and the error that stands for one of ours:
where a call on slots has failed, the source gets a statement that fails there, at that place in
what the client has sent, so that what follows is skipped and a transaction fails as it must; what
it says of that is replaced by what went wrong.

Whichever side ends ends the other. A client that is gone closes its backend's connection at once,
as if it had been connected there itself; what the source has said before it ended, its FATAL above
all, still goes to the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections import deque
from typing import TYPE_CHECKING, Final

from spillway._kernels.walsender.frame_heads import FrameHeads
from spillway.walsender import messages
from spillway.walsender.client_encoding import ClientEncoding
from spillway.walsender.failures import WireError, protocol_violation
from spillway.walsender.sql.bind import Bind, Parse, json_parameter, without_json_parameter
from spillway.walsender.sql.statements import may_speak_of_slots
from spillway.walsender.sql.upstream import PIECE_BYTES

if TYPE_CHECKING:
    from spillway.walsender.handshake import Connection
    from spillway.walsender.sql.places import Places
    from spillway.walsender.sql.slots import Slots
    from spillway.walsender.sql.statements import Statement
    from spillway.walsender.sql.upstream import Upstream

#: A statement that is longer is passed on as it is, in pieces.
STATEMENT_BYTES_MAX: Final = 1 << 20
#: Prepared statements on slots that one connection may have at a time.
_PREPARED_MAX: Final = 1_000
_FAILED: Final = b"E"
#: Close of a portal that nobody has, and Flush.
_MARK: Final = messages.message(b"C", b"Pspillway: mark\0") + messages.message(b"H", b"")
_HEAD_BYTES: Final = 5


class _Awaited(enum.Enum):
    CLOSE = "CloseComplete"
    READY = "ReadyForQuery"


class Relay:
    """One client's connection with its upstream."""

    def __init__(self, connection: Connection, upstream: Upstream, slots: Slots) -> None:
        self._connection = connection
        self._upstream = upstream
        self._slots = slots
        self._questions = FrameHeads(b"QPBCSF", STATEMENT_BYTES_MAX)
        self._answers = FrameHeads(b"ZtES31", STATEMENT_BYTES_MAX)
        #: what the source has yet to answer, in its order: Closes of the client's, Closes of ours
        #: with who waits for them, and what ends in a ReadyForQuery
        self._awaited: deque[_Awaited | asyncio.Future[bool]] = deque()
        #: where what is in each statement of a batch, for each answer that ends in a
        #: ReadyForQuery; None: it was not changed
        self._places: deque[list[Places | None]] = deque()
        #: the same of the batch that the client has not ended yet
        self._batch_places: list[Places | None] = []
        #: how many statements of the batch that the source is at it has parsed
        self._parsed = 0
        #: an error has come, and the client has not sent Sync since
        self._is_skipped = False
        #: statements on slots by their names
        self._prepared: dict[bytes, Statement] = {}
        #: of the transaction, by the last ReadyForQuery
        self._status = b"I"
        #: ErrorResponses of ours by what the source's own have in them
        self._failures: dict[bytes, bytes] = {}
        self._failure_count = 0

    @property
    def is_between_messages(self) -> bool:
        """Whether something may be said to the client without tearing what the source says."""
        return self._answers.is_between

    async def run(self) -> None:
        """Pass everything on until one side has ended.

        Raises:
            WireError: one of them does not speak PostgreSQL's protocol.
        """
        client, upstream = self._connection, self._upstream
        client.writer.transport.set_write_buffer_limits(high=PIECE_BYTES)
        # Also while what it has sent waits for the source.
        client.reader.when_ended(upstream.abort)
        pumps = [asyncio.create_task(self._ask()), asyncio.create_task(self._answer())]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            if pumps[0].done() and pumps[0].exception() is None and not client.reader.has_ended:
                # The source is gone; it may have said why.
                await pumps[1]
        finally:
            client.reader.when_ended(None)
            for pump in pumps:
                pump.cancel()
            ended = await asyncio.gather(*pumps, return_exceptions=True)
        for error in ended:
            if isinstance(error, ValueError):
                raise protocol_violation(str(error)) from None
            if isinstance(error, Exception) and not isinstance(error, OSError):
                raise error

    async def cancel(self) -> None:
        """End what the upstream does."""
        await self._upstream.cancel()

    async def close(self) -> None:
        """End the upstream."""
        await self._upstream.close()

    # -- from the client --------------------------------------------------------------------------

    async def _ask(self) -> None:
        heads, kept = self._questions, b""
        with contextlib.suppress(OSError):
            while piece := await self._connection.reader.read(2 * PIECE_BYTES):
                data = kept + piece if kept else piece
                at = sent = 0
                while True:
                    at, size = heads.walk(data, at)
                    if not size or len(data) - at < size:
                        break
                    kind, body = data[at : at + 1], data[at + 5 : at + size]
                    if at > sent and kind in b"QB" and self._may_call(kind, body):
                        # What is before a call may decide whether it is run.
                        await self._upstream.write(data[sent:at])
                        sent = at
                    changed = await self._changed(kind, body)
                    self._note(kind)
                    if changed is not None:
                        await self._upstream.write(data[sent:at] + changed)
                        sent = at + size
                    at += size
                if at > sent:
                    await self._upstream.write(data[sent:at])
                kept = data[at:]

    async def _changed(self, kind: bytes, body: bytes) -> bytes | None:
        """Return what goes to the source in place of a message; None: itself."""
        try:
            match kind:
                case b"Q":
                    return await self._query(body)
                case b"P":
                    return await self._parse(body)
                case b"B" if self._prepared:
                    return await self._bind(body)
                case b"C" if body[:1] == b"S":
                    self._prepared.pop(body[1:-1], None)
        except WireError as error:
            if error.fatal:
                raise
            failing = self._failing(error)
            if kind == b"Q":
                return messages.message(b"Q", failing + b"\0")
            return messages.message(b"P", b"\0".join((b"", failing, b"\0\0")))
        return None

    def _may_call(self, kind: bytes, body: bytes) -> bool:
        return bool(self._prepared) if kind == b"B" else may_speak_of_slots(body)

    def _note(self, kind: bytes) -> None:
        """Note what the source will answer to a message."""
        if kind == b"C":
            self._awaited.append(_Awaited.CLOSE)
        elif kind in b"QSF":
            self._awaited.append(_Awaited.READY)
            self._places.append(self._batch_places)
            self._batch_places = []

    def _failed_places(self) -> Places | None:
        """Return where what is in the statement that an error is of. One with a place in it is of
        parsing: it comes in place of that statement's ParseComplete.
        """
        batch = self._places[0] if self._places else self._batch_places
        if len(batch) == 1:
            return batch[0]
        return batch[self._parsed] if self._parsed < len(batch) else None

    async def _is_reached(self) -> bool:
        """Wait until the source has done what the client has sent so far; False: some of it has
        failed, and what follows is skipped, or fails.

        A Close of a portal that there is not is answered in its turn, and changes nothing.
        """
        if self._is_skipped:
            return False
        reached = asyncio.get_running_loop().create_future()
        self._awaited.append(reached)
        await self._upstream.write(_MARK)
        return await reached and self._status != _FAILED

    def _settle(self, kind: bytes) -> bool:
        """Take note of an answer; return whether it is to a question of ours."""
        awaited = self._awaited
        if kind == b"3":
            done = awaited.popleft() if awaited and awaited[0] is not _Awaited.READY else None
            if isinstance(done, asyncio.Future):
                done.set_result(True)
                return True
        elif kind == b"Z":
            self._is_skipped = False
            # A statement that was too long to be looked at is not among them.
            self._parsed = 0
            while _Awaited.READY in awaited:
                done = awaited.popleft()
                if done is _Awaited.READY:
                    self._places.popleft()
                    break
                if isinstance(done, asyncio.Future) and not done.done():
                    done.set_result(False)
        elif _Awaited.READY not in awaited:
            # The batch that the client has not ended yet.
            self._is_skipped = True
            for one in awaited:
                if isinstance(one, asyncio.Future) and not one.done():
                    one.set_result(False)
        return False

    async def _query(self, body: bytes) -> bytes | None:
        if not may_speak_of_slots(body) or self._status == _FAILED:
            return None
        text = body[:-1]
        changed, places = await self._slots.simple(text, self._is_reached)
        self._batch_places.append(places)
        return None if changed is text else messages.message(b"Q", changed + b"\0")

    async def _parse(self, body: bytes) -> bytes | None:
        parse = Parse.read(body)
        statement = self._slots.rewrite(parse.query)
        if statement is None or await self._slots.is_of_source(statement):
            self._prepared.pop(parse.name, None)
            self._batch_places.append(None)
            return None
        if len(self._prepared) >= _PREPARED_MAX and parse.name not in self._prepared:
            raise WireError(
                "53400",
                "too many prepared statements on replication slots",
                hint="Close those that are not used any more.",
            )
        statement.wanted = max(statement.parameters, parse.type_count)
        self._prepared[parse.name] = statement
        expression = json_parameter(statement.wanted + 1)
        self._batch_places.append(statement.places(expression, self._slots.codec))
        return parse.with_query(statement.with_json(expression).encode("latin-1"))

    async def _bind(self, body: bytes) -> bytes | None:
        bind = Bind(body)
        statement = self._prepared.get(bind.name)
        if statement is None:
            return None
        if self._status == _FAILED:
            # The source refuses it.
            return None
        if bind.count != statement.wanted:
            # The source would count the one that is ours.
            name = bind.name.decode(errors="replace")
            raise WireError(
                "08P01",
                f"bind message supplies {bind.count} parameters, but prepared statement "
                f'"{name}" requires {statement.wanted}',
            )
        if statement.call is not None and not await self._is_reached():
            # The source skips it.
            return None
        value = await self._slots.value(statement, bind.text_of)
        if value is None:
            raise WireError(
                "42704",
                "the replication slot is not one of this server",
                hint="It may be one of the source: prepare the statement again, with the slot's "
                "name in it.",
            )
        return bind.with_json(value) if statement.needs_json else None

    def _failing(self, error: WireError) -> bytes:
        """Return a statement that fails, and have what the source says of it replaced."""
        self._failure_count += 1
        mark = f"spillway: failure {self._failure_count}".encode()
        reported = self._upstream.parameters
        codec = ClientEncoding.codec_of(
            reported.get("client_encoding"), reported.get("server_encoding", "UTF8")
        )
        self._failures[mark] = messages.error_response(error, codec)
        return b'"%b"' % mark

    # -- from the source --------------------------------------------------------------------------

    async def _answer(self) -> None:
        heads = self._answers
        while data := await self._upstream.read():
            at = sent = 0
            parts: list[bytes] = []
            while True:
                at, size = heads.walk(data, at)
                if not size or len(data) - at < size:
                    break
                frame = data[at : at + size]
                if frame[:1] == b"E":
                    await self._slots.end_temporary()
                is_ours = frame[:1] in b"3ZE" and self._settle(frame[:1])
                told = b"" if is_ours else self._told(frame)
                if told is not frame:
                    parts += [data[sent:at], told]
                    sent = at + size
                at += size
            parts.append(data[sent:at])
            if at:
                await self._connection.send(*parts)
            self._upstream.unread(data[at:])

    def _told(self, frame: bytes) -> bytes:
        """Return what the client is told in place of a message of the source's."""
        match frame[:1]:
            case b"Z":
                self._status = frame[_HEAD_BYTES:]
                # What was skipped in the meantime is not answered any more.
                self._failures.clear()
            case b"1":
                self._parsed += 1
            case b"S":
                self._upstream.note_parameter(frame[_HEAD_BYTES:])
            case b"t" if self._prepared:
                return without_json_parameter(frame)
            case b"E" if self._failures:
                for mark, told in self._failures.items():
                    if mark in frame:
                        return told
        if frame[:1] == b"E":
            places = self._failed_places()
            if places is not None:
                return places.in_error(frame)
        return frame
