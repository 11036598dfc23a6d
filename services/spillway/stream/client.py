"""A synchronous client of the change stream: ``spillway recv`` and Spark's tasks read slots with
it.

::

    with open_stream("127.0.0.1:50051", "s1", token=token) as stream:
        for batch in stream:
            for lsn, xid, data in batch.messages():
                ...
            stream.confirm(batch.confirm_lsn)     # once it is durable on this side

Batches come one at a time: the next is asked for when the loop comes round, and HTTP/2's window
bounds what the service may send meanwhile. Keepalives are batches with a count of 0; they carry the
positions.
"""

from __future__ import annotations

import collections
import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING, Any, Final, Self

import grpc

from spillway import __version__
from spillway.caller import SUBSCRIPTION_VARIABLE
from spillway.errors import NotReady, SpillwayError
from spillway.pg.lsn import Lsn
from spillway.stream import wire
from spillway.stream.own_client import SILENCE_S, OwnStreamReader
from spillway.stream.status import error_from_rpc
from spillway.tls import ClientTls
from spillway.v1 import change_stream_pb2, slots_pb2, slots_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_METHOD: Final = "/spillway.v1.ChangeStream/Stream"
_TLS_PREFIX: Final = "https://"
_PLAIN_PREFIX: Final = "http://"

_OPTIONS: Final = (
    # A message of a plugin is never cut, so a batch can be as large as a row.
    ("grpc.max_receive_message_length", -1),
    # A batch comes in one frame or two, not in pieces of 16 KiB: a twentieth of the CPU on both
    # sides.
    ("grpc.http2.max_frame_size", 1 << 20),
    # A service that vanished without a word is found out within 40 seconds; the last is what
    # counts.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)

#: How long leaving a stream waits for the slot to have taken the last feedback.
CLOSE_TIMEOUT_S: Final = 10.0
#: How long a call of the slot service may take.
CALL_TIMEOUT_S: Final = 30.0
#: … and one that waits for decoding.
_SNAPSHOT_TIMEOUT_S: Final = 120.0


def open_stream(
    target: str,
    slot_name: str,
    *,
    start_lsn: Lsn | None = None,
    upto_lsn: Lsn | None = None,
    options: Mapping[str, str] | None = None,
    batch_bytes: int = 0,
    peek: bool = False,
    token: str | None = None,
    tls: ClientTls | None = None,
) -> ChangeStreamReader:
    """Start a stream; the slot is this client's when it returns.

    Args:
        target: host:port of the service's gRPC; https://host:port of one that has a certificate.
        slot_name: the slot.
        start_lsn: begin with transactions whose commit record starts here or later.
        upto_lsn: end after the last transaction whose commit record starts before this; otherwise
            never.
        options: plugin options, over the slot's own.
        batch_bytes: payload bytes after which a batch is sent; 0 for the service's default.
        peek: read beside whoever holds the slot, and confirm nothing.
        token: the service's bearer token.
        tls: what to verify it with, and to show it.

    Raises:
        SpillwayError: what the service refused it for (UnknownSlot, SlotActive, …), NotReady when
            it can't be reached, or TlsFailed when one side does not trust the other.
    """
    start = _start(slot_name, start_lsn, upto_lsn, options, batch_bytes, peek=peek)
    return ChangeStreamReader(target, start, token, tls)


def open_own_stream(
    socket_path: str,
    slot_name: str,
    *,
    start_lsn: Lsn | None = None,
    options: Mapping[str, str] | None = None,
    batch_bytes: int = 0,
    token: str | None = None,
    silence_s: float = SILENCE_S,
) -> OwnStreamReader:
    """Start a stream as :func:`open_stream` does, by the socket that the service has for its own
    programs. It breaks when the service says nothing for *silence_s*; 0: never.

    Raises:
        SpillwayError: as for :func:`open_stream`.
    """
    start = _start(slot_name, start_lsn, None, options, batch_bytes, peek=False)
    return OwnStreamReader(socket_path, start, token, _name(), silence_s=silence_s)


def _start(
    slot_name: str,
    start_lsn: Lsn | None,
    upto_lsn: Lsn | None,
    options: Mapping[str, str] | None,
    batch_bytes: int,
    *,
    peek: bool,
) -> change_stream_pb2.Start:
    return change_stream_pb2.Start(
        slot_name=slot_name,
        start_lsn=start_lsn or 0,
        upto_lsn=upto_lsn or 0,
        options=dict(options or {}),
        batch_bytes=batch_bytes,
        peek=peek,
    )


def get_slot(
    target: str, slot_name: str, *, token: str | None = None, tls: ClientTls | None = None
) -> slots_pb2.Slot:
    """Ask where a slot stands.

    Raises:
        SpillwayError: UnknownSlot, or NotReady when the service can't be reached.
    """
    slot: slots_pb2.Slot = _call(
        target, token, tls, "GetSlot", slots_pb2.GetSlotRequest(slot_name=slot_name)
    )
    return slot


def get_source(
    target: str, source: str, *, token: str | None = None, tls: ClientTls | None = None
) -> slots_pb2.Source:
    """Ask what a source is, and how it goes.

    Raises:
        SpillwayError: UnknownSource, or NotReady when the service can't be reached.
    """
    found: slots_pb2.Source = _call(
        target, token, tls, "GetSource", slots_pb2.GetSourceRequest(name=source)
    )
    return found


def advance_slot(
    target: str,
    slot_name: str,
    upto_lsn: int,
    *,
    token: str | None = None,
    tls: ClientTls | None = None,
) -> Lsn:
    """Confirm everything before *upto_lsn* for good; return where the slot stands then.

    Raises:
        SpillwayError: UnknownSlot, SlotActive, …, or NotReady when the service can't be reached.
    """
    request = slots_pb2.AdvanceSlotRequest(slot_name=slot_name, upto_lsn=upto_lsn)
    return Lsn(_call(target, token, tls, "AdvanceSlot", request).end_lsn)


def rewind_slot(
    target: str,
    slot_name: str,
    lsn: int,
    *,
    token: str | None = None,
    tls: ClientTls | None = None,
) -> None:
    """Set a slot that nobody reads to a position that is retained, forward or backward.

    Raises:
        SpillwayError: UnknownSlot, SlotActive, LsnNotRetained, …, or NotReady when the service
            can't be reached.
    """
    _call(
        target, token, tls, "RewindSlot", slots_pb2.RewindSlotRequest(slot_name=slot_name, lsn=lsn)
    )


def take_paired_snapshot(
    target: str, slot_name: str, *, token: str | None = None, tls: ClientTls | None = None
) -> slots_pb2.Snapshot:
    """Have an exact snapshot of a slot's source held there, until :func:`release_snapshot`; never
    by a slot of the primary's.

    Raises:
        SpillwayError: UnknownSlot, SourceError, …, or NotReady when none can be paired, or the
            service can't be reached.
    """
    request = slots_pb2.TakeSnapshotRequest(slot_name=slot_name, paired_only=True)
    snapshot: slots_pb2.Snapshot = _call(
        target, token, tls, "TakeSnapshot", request, _SNAPSHOT_TIMEOUT_S
    )
    return snapshot


def release_snapshot(
    target: str, slot_name: str, *, token: str | None = None, tls: ClientTls | None = None
) -> None:
    """Give up the snapshot that is held for a slot.

    Raises:
        SpillwayError: UnknownSlot, or NotReady when the service can't be reached.
    """
    _call(
        target, token, tls, "ReleaseSnapshot", slots_pb2.ReleaseSnapshotRequest(slot_name=slot_name)
    )


def _options() -> tuple[tuple[str, object], ...]:
    """Give the channel's options, with how this program calls itself."""
    return (*_OPTIONS, ("grpc.primary_user_agent", _name()))


def _name() -> str:
    """How this program calls itself: what the service shows of it."""
    names = [f"spillway/{__version__}", f"(pid {os.getpid()} on {socket.gethostname()})"]
    if subscription := os.environ.get(SUBSCRIPTION_VARIABLE):
        names.insert(0, f"spillway-subscription/{subscription}")
    return " ".join(names)


def open_channel(target: str, tls: ClientTls | None = None) -> Any:
    """Make a gRPC channel to *target*, as :func:`open_stream` takes it.

    Raises:
        InvalidRequest: a file that *tls* names can't be used.
    """
    if not target.startswith(_TLS_PREFIX):
        return grpc.insecure_channel(target.removeprefix(_PLAIN_PREFIX), options=_options())
    tls = tls or ClientTls()
    credentials = grpc.ssl_channel_credentials(*tls.pem())
    name = () if tls.server_name is None else (("grpc.ssl_target_name_override", tls.server_name),)
    address = target.removeprefix(_TLS_PREFIX).rstrip("/")
    return grpc.secure_channel(address, credentials, options=(*_options(), *name))


def _call(
    target: str,
    token: str | None,
    tls: ClientTls | None,
    name: str,
    request: Any,
    timeout_s: float = CALL_TIMEOUT_S,
) -> Any:
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    with open_channel(target, tls) as channel:
        stub: Any = slots_pb2_grpc.SlotServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            return getattr(stub, name)(request, metadata=metadata, timeout=timeout_s)
        except grpc.RpcError as error:
            raise error_from_rpc(error, target) from None


class ChangeStreamReader:
    """An open stream: an iterator of batches. Confirm and close from any thread, iterate from
    one.
    """

    def __init__(
        self,
        target: str,
        start: change_stream_pb2.Start,
        token: str | None,
        tls: ClientTls | None = None,
    ) -> None:
        self._target = target
        self._requests = _Requests(change_stream_pb2.StreamRequest(start=start))
        self._flush_lsn = Lsn(0)
        self._stored_lsn = Lsn(0)
        self._final = False
        self._ended = False
        self._channel = open_channel(target, tls)
        metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        method = self._channel.stream_stream(
            _METHOD,
            request_serializer=change_stream_pb2.StreamRequest.SerializeToString,
            response_deserializer=None,
        )
        self._call: Any = method(self._requests, metadata=metadata)
        # The service answers at once, if only with a keepalive, when it has given us the slot.
        self._first: wire.Batch | None = None
        try:
            self._first = self._receive()
        except StopIteration:
            # It ended without a word: only a stream that is final does, and that says so.
            self._channel.close()
            raise NotReady(f"the service at {target} ended the stream", hint="Try again.") from None
        except SpillwayError:
            self._channel.close()
            raise

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

    def _receive(self) -> wire.Batch:
        if self._final:
            # The slot takes what was confirmed before the service ends the stream.
            self._requests.close()
        try:
            batch = wire.decode_response(next(self._call))
        except StopIteration:
            self._ended = True
            raise
        except grpc.RpcError as error:
            self._ended = True
            raise error_from_rpc(error, self._target) from None
        self._final = batch.final
        self._stored_lsn = max(self._stored_lsn, batch.flush_lsn)
        return batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def confirm(
        self, flush_lsn: Lsn, *, write_lsn: Lsn | None = None, apply_lsn: Lsn | None = None
    ) -> None:
        """Tell the service that everything before *flush_lsn* is durable here. Returns at once.

        It may be called with what was confirmed before; the slot never goes backward.
        """
        self._flush_lsn = max(self._flush_lsn, flush_lsn)
        self._requests.put(self._feedback(write_lsn, apply_lsn, reply_requested=False))

    def request_reply(self) -> None:
        """Ask for a keepalive at once, which ends the wait of whoever iterates. Safe in a signal
        handler.
        """
        self._requests.put(self._feedback(None, None, reply_requested=True))

    def close(self) -> None:
        """End the stream, after the slot has taken the last feedback if it can within a few
        seconds.
        """
        try:
            if not self._ended and self._flush_lsn > self._stored_lsn:
                self._await_stored()
        finally:
            self._requests.close()
            self._call.cancel()
            self._channel.close()

    def _await_stored(self) -> None:
        if not self._final:
            self.request_reply()
        timer = threading.Timer(CLOSE_TIMEOUT_S, self._call.cancel)
        timer.start()
        try:
            # What is still on its way comes first, and is dropped: it was not confirmed, so it
            # comes again. If the service can't say that it took the feedback, all that happens is
            # that more comes again.
            with contextlib.suppress(SpillwayError, StopIteration):
                while self._stored_lsn < self._flush_lsn:
                    self._receive()
        finally:
            timer.cancel()

    def _feedback(
        self, write_lsn: Lsn | None, apply_lsn: Lsn | None, *, reply_requested: bool
    ) -> change_stream_pb2.StreamRequest:
        return change_stream_pb2.StreamRequest(
            feedback=change_stream_pb2.Feedback(
                write_lsn=write_lsn or self._flush_lsn,
                flush_lsn=self._flush_lsn,
                apply_lsn=apply_lsn or 0,
                reply_requested=reply_requested,
            )
        )


class _Requests:
    """The client's side of the stream, as the iterator that gRPC reads in a thread of its own.

    Feedback that was not sent yet is replaced by newer feedback: only the last counts.
    """

    def __init__(self, start: change_stream_pb2.StreamRequest) -> None:
        self._pending: collections.deque[change_stream_pb2.StreamRequest] = collections.deque(
            [start]
        )
        self._closed = False
        self._changed = threading.Condition()

    def put(self, feedback: change_stream_pb2.StreamRequest) -> None:
        with self._changed:
            if self._pending and self._pending[-1].HasField("feedback"):
                unsent = self._pending.pop()
                feedback.feedback.reply_requested |= unsent.feedback.reply_requested
            self._pending.append(feedback)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> change_stream_pb2.StreamRequest:
        with self._changed:
            while not self._pending and not self._closed:
                self._changed.wait()
            if not self._pending:
                raise StopIteration
            return self._pending.popleft()
