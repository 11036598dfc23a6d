"""The other side of :mod:`spillway.stream.own_door`: what a subscription's program reads its stream
with.

As :class:`~spillway.stream.client.ChangeStreamReader`, but who waits for a batch waits for the
socket, for as long as it likes. One thread says every :data:`ALIVE_S` that the program lives,
whatever it is busy with: one that is stopped says nothing, and loses its slot.

It looks then, too, whether the service has said something; if not, it asks. A service from which
nothing has come for so many looks as make up the client timeout is stopped, or stuck, and the
stream breaks: whoever reads it holds its target, which the program of another service waits for
that has taken the source over. What counts is looks, not the clock: a program that was stopped
itself has not looked. What has come and was not read, as the program is busy, is something.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import socket
import threading
import time
from typing import TYPE_CHECKING, Final, Self

from spillway.errors import NotReady, SpillwayError, remote_error
from spillway.pg.lsn import Lsn
from spillway.stream import wire
from spillway.v1 import change_stream_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

_LENGTH_BYTES: Final = 4
#: … and what it is
_HEAD_BYTES: Final = 5
_MESSAGE: Final = ord("m")
_PLAIN: Final = ord("p")
_ERROR: Final = ord("e")
#: Small frames, many of them, are read at one go.
_READ_BYTES: Final = 64 * 1024
#: How long leaving a stream waits for the slot to have taken the last feedback.
_CLOSE_S: Final = 10.0
#: How often a program says that it lives: PostgreSQL's wal_receiver_status_interval.
ALIVE_S: Final = 10.0
#: How long the service may say nothing: PostgreSQL's wal_receiver_timeout.
SILENCE_S: Final = 60.0
#: However short that is, the service is looked for so often before it is up.
_LOOKS_MIN: Final = 3
#: A feedback that confirms nothing, …
_ALIVE: Final = change_stream_pb2.StreamRequest(
    feedback=change_stream_pb2.Feedback()
).SerializeToString()
#: … and one that is answered, whatever the service has to look through for the next batch.
_IS_ANYBODY_THERE: Final = change_stream_pb2.StreamRequest(
    feedback=change_stream_pb2.Feedback(reply_requested=True)
).SerializeToString()


class OwnStreamReader:
    """An open stream. Read by one thread at a time; confirmed, and woken, by any.

    Raises:
        SpillwayError: what the service refused it for; NotReady when it can't be reached.
    """

    def __init__(
        self,
        path: str,
        start: change_stream_pb2.Start,
        token: str | None,
        client: str,
        alive_s: float = ALIVE_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        """Open it.

        Args:
            path: of the service's socket.
            start: what is asked for.
            token: the service's.
            client: who this is.
            alive_s: how often the service is told that the program lives.
            silence_s: how long the service may say nothing; 0: for ever.
        """
        self._path = path
        self._silence_s = silence_s
        #: bytes have come since the last look
        self._has_heard = True
        #: the service has said nothing for too long
        self.is_given_up = False
        self._buffer = bytearray()
        self._sending = threading.Lock()
        self._flush_lsn = self._stored_lsn = Lsn(0)
        self._ended = self._final = False
        #: nothing is sent any more
        self._closed = threading.Event()
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)
        self._room = select.poll()
        self._room.register(self._socket, select.POLLOUT)
        self._first: wire.Batch | None = None
        try:
            self._socket.connect(path)
            said = {"token": token, "client": client, "plain": True, "alive_s": alive_s}
            hello = json.dumps(said).encode()
            # At one go: who is refused for the first finds the answer, not a socket that is closed.
            self._send(hello, change_stream_pb2.StreamRequest(start=start).SerializeToString())
            # The service answers at once, if only with a keepalive, when it has given us the slot.
            self._first = self._receive()
        except StopIteration:
            self._shut()
            raise NotReady("the service ended the stream", hint="Try again.") from None
        except OSError as error:
            self._shut()
            raise self._gone(error) from None
        except SpillwayError:
            self._shut()
            raise
        self._alive_s = alive_s
        self._looks_max = max(_LOOKS_MIN, math.ceil(silence_s / alive_s)) if silence_s else 0
        threading.Thread(target=self._say_alive, name="own-stream-alive", daemon=True).start()

    def __iter__(self) -> Iterator[wire.Batch]:
        return self

    def __next__(self) -> wire.Batch:
        """Wait for the next batch; ends after the final one.

        Raises:
            SpillwayError: the stream broke; NotReady if the service is gone, and trying again makes
                sense.
        """
        first, self._first = self._first, None
        return first if first is not None else self._receive()

    def take(self, timeout_s: float) -> wire.Batch | None:
        """Return the next batch; None when there is none within *timeout_s*, or :meth:`wake` was
        called.

        Raises:
            StopIteration: nothing comes any more.
            SpillwayError: as for the next batch.
        """
        if self._first is not None or self._is_whole():
            return next(self)
        if self._is_readable(timeout_s) if timeout_s > 0 else self._has_more():
            return next(self)
        return None

    def wake(self) -> None:
        """Have who waits in :meth:`take`, or the next who would, come back at once."""
        with self._sending:
            if self._woken >= 0:
                os.eventfd_write(self._woken, 1)

    def confirm(
        self, flush_lsn: Lsn, *, write_lsn: Lsn | None = None, apply_lsn: Lsn | None = None
    ) -> None:
        """Tell the service that everything before *flush_lsn* is durable here."""
        self._flush_lsn = max(self._flush_lsn, flush_lsn)
        self._feed_back(write_lsn, apply_lsn, reply_requested=False)

    def request_reply(self) -> None:
        """Ask for a keepalive at once, which ends the wait of whoever iterates."""
        self._feed_back(None, None, reply_requested=True)

    def close(self) -> None:
        """End the stream, after the slot has taken the last feedback if it can within a few
        seconds. Nobody reads meanwhile.
        """
        try:
            if not self._ended and self._flush_lsn > self._stored_lsn:
                self._await_stored(time.monotonic() + _CLOSE_S)
        except (OSError, SpillwayError, StopIteration):
            # What was not confirmed comes again.
            pass
        finally:
            self._shut()

    def _await_stored(self, deadline: float) -> None:
        if not self._final:
            self.request_reply()
        while self._stored_lsn < self._flush_lsn:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            self.take(left_s)

    def _say_alive(self) -> None:
        looks = 0
        while not self._closed.wait(self._alive_s):
            looks = 0 if self._hears() else looks + 1
            if self._looks_max and looks >= self._looks_max:
                self._give_up()
                return
            # Who is saying something just now says that it lives; it may wait for long.
            if not self._sending.acquire(blocking=False):
                continue
            try:
                # A service that reads nothing is waited for by who has something to say, not here.
                if not self._closed.is_set() and self._room.poll(0):
                    self._socket.sendall(_framed(_IS_ANYBODY_THERE if looks else _ALIVE))
            except OSError:
                # Who reads is told.
                return
            finally:
                self._sending.release()

    def _hears(self) -> bool:
        """Say whether something has come since the last look, read or not; the end is, too."""
        heard, self._has_heard = self._has_heard, False
        if heard:
            return True
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            # Who reads is told.
            return True
        return True

    def _give_up(self) -> None:
        """Break the stream: who reads it, or waits until something is sent, goes on at once."""
        self.is_given_up = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _shut(self) -> None:
        self._ended = True
        self._closed.set()
        with self._sending:
            self._socket.close()
            if self._woken >= 0:
                os.close(self._woken)
                self._woken = -1

    # -- frames -------------------------------------------------------------------------------

    def _receive(self) -> wire.Batch:
        if self._ended:
            raise StopIteration
        if self._final:
            # The slot takes what was confirmed before the service ends the stream.
            self._closed.set()
            self._send(b"")
        try:
            kind, data = self._frame()
            if kind == _ERROR:
                told = json.loads(bytes(data))
                code, message, hint = told["code"], told["message"], told["hint"]
                raise remote_error(code, message, hint=hint, **told["details"])
        except OSError as error:
            self._ended = True
            raise self._gone(error) from None
        except SpillwayError:
            self._ended = True
            raise
        if kind == _PLAIN:
            return wire.decode_plain(data)
        if kind != _MESSAGE:
            self._ended = True
            raise StopIteration
        batch = wire.decode_response(data)
        self._final = batch.final
        self._stored_lsn = max(self._stored_lsn, batch.flush_lsn)
        return batch

    def _is_whole(self) -> bool:
        return len(self._buffer) >= _LENGTH_BYTES + self._length()

    def _length(self) -> int:
        """Give the next frame's length, as far as it is there."""
        return int.from_bytes(self._buffer[:_LENGTH_BYTES], "little")

    def _has_more(self) -> bool:
        """Take what is there, without waiting; say whether it is something, or the end."""
        try:
            data = self._socket.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            # Whoever reads is told.
            return True
        self._buffer += data
        self._has_heard = True
        return not data or self._is_whole()

    def _is_readable(self, timeout_s: float) -> bool:
        found = dict(self._poll.poll(max(0.0, timeout_s) * 1000))
        if self._woken in found:
            os.eventfd_read(self._woken)
        return self._socket.fileno() in found

    def _frame(self) -> tuple[int, bytes]:
        """Wait for a frame; return what it is, and what it has in it."""
        buffer = self._buffer
        while len(buffer) < _HEAD_BYTES:
            self._more()
        end = _LENGTH_BYTES + self._length()
        kind = buffer[_LENGTH_BYTES]
        if end - len(buffer) <= _READ_BYTES:
            while len(buffer) < end:
                self._more()
            data = bytes(memoryview(buffer)[_HEAD_BYTES:end])
            del buffer[:end]
            return kind, data
        # A large one goes where it stays.
        pieces = [bytes(memoryview(buffer)[_HEAD_BYTES:])]
        left = end - len(buffer)
        buffer.clear()
        while left:
            piece = self._socket.recv(left, socket.MSG_WAITALL)
            if not piece:
                raise ConnectionResetError("the service closed the stream")
            self._has_heard = True
            pieces.append(piece)
            left -= len(piece)
        return kind, b"".join(pieces)

    def _more(self) -> None:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("the service closed the stream")
        self._has_heard = True
        self._buffer += data

    def _feed_back(
        self, write_lsn: Lsn | None, apply_lsn: Lsn | None, *, reply_requested: bool
    ) -> None:
        request = change_stream_pb2.StreamRequest(
            feedback=change_stream_pb2.Feedback(
                write_lsn=write_lsn or self._flush_lsn,
                flush_lsn=self._flush_lsn,
                apply_lsn=apply_lsn or 0,
                reply_requested=reply_requested,
            )
        )
        try:
            self._send(request.SerializeToString())
        except OSError:
            # Who reads is told.
            return

    def _send(self, *frames: bytes) -> None:
        with self._sending:
            self._socket.sendall(b"".join(map(_framed, frames)))

    def _gone(self, error: OSError) -> NotReady:
        if self.is_given_up:
            return NotReady(
                f"the service has said nothing for {self._silence_s:g} s by {self._path}: it is "
                "stopped, or stuck",
                hint="It is tried again. SPILLWAY_CLIENT_TIMEOUT says for how long a side may be "
                "silent.",
            )
        return NotReady(
            f"the service can't be reached by {self._path}: {error.strerror or error}",
            hint="It is tried again; does spillway serve run?",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(_LENGTH_BYTES, "little") + data
