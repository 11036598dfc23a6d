"""How a service is reached, and what its errors mean: shared by both kinds of slot."""

from __future__ import annotations

import math
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.message import DecodeError

from spillway_client._v1 import change_stream_pb2, rpc_status_pb2, slots_pb2
from spillway_client.errors import (
    InvalidUse,
    ServiceError,
    TlsFailed,
    Unauthenticated,
    Unavailable,
    service_error,
)
from spillway_client.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_TLS_PREFIX: Final = "https://"
_PLAIN_PREFIX: Final = "http://"
_STREAM: Final = "/spillway.v1.ChangeStream/Stream"
_GET_SLOT: Final = "/spillway.v1.SlotService/GetSlot"
_CODE_KEY: Final = "spillway-code"
_DETAILS_KEY: Final = "grpc-status-details-bin"
_HINT_KEY: Final = "hint"
_ERROR_INFO: Final = "/google.rpc.ErrorInfo"
#: How long a call, and the first word of a stream, may take.
CALL_TIMEOUT_S: Final = 30.0

_OPTIONS: Final = (
    # A message of a plugin is never cut, so a batch can be as large as a row.
    ("grpc.max_receive_message_length", -1),
    # A batch comes in one frame or two, not in pieces of 16 KiB.
    ("grpc.http2.max_frame_size", 1 << 20),
    # A service that vanished without a word is found out within 40 seconds.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A slot has a connection of its own, and each attempt to connect is one: the slot does the
    # waiting in between.
    ("grpc.use_local_subchannel_pool", 1),
)
#: What gRPC's messages say of a handshake that failed.
_TLS_WORDS: Final = (
    "handshake failed",
    "handshake read failed",
    "certificate_verify_failed",
    "certificate verify failed",
    "certificate_required",
    "wrong_version_number",
    "peer name",
    "hostname verification",
)
_TRANSIENT: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED})
#: What gRPC itself ends calls with when a connection breaks, by the instant at which it does.
_BROKEN: Final = frozenset(
    {
        *_TRANSIENT,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    }
)
#: Unless this was asked for, what a process has of gRPC is no use to those that are forked from it.
_KNOWS_FORKS: Final = os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "").lower() in (
    "1", "true", "yes",
)  # fmt: skip
#: How long after the last channel was closed gRPC's threads may go on; some seconds were seen.
_LINGERS_S: Final = 10.0


class _Channels:
    """The channels that this process has open, and whether gRPC was at work in the one that it was
    forked from.
    """

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._closed_at_s = -math.inf
        self._are_inherited = False
        # Windows knows no forks.
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        is_over = time.monotonic() - self._closed_at_s >= _LINGERS_S
        self._are_inherited |= bool(self._open) or not is_over
        self._open.clear()

    def check(self) -> None:
        """See whether gRPC works in this process.

        Raises:
            InvalidUse: its threads are those of another, and a call would wait for them for ever.
        """
        if self._are_inherited and not _KNOWS_FORKS:
            raise InvalidUse(
                "this process was forked from one that was connected to a service",
                hint="Have multiprocessing start it by spawn, or fork before a slot is opened.",
            )

    def opened(self, channel: Any) -> Any:
        self._open.add(id(channel))
        return channel

    def closed(self, channel: Any) -> None:
        self._open.discard(id(channel))
        self._closed_at_s = time.monotonic()


_channels: Final = _Channels()


@dataclass(frozen=True, slots=True)
class Tls:
    """What to verify a service with, and what to show it; PEM files."""

    #: the CAs that are trusted; None: the system's
    ca: str | os.PathLike[str] | None = None
    #: where the service asks its clients for a certificate
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    #: the name that the service's certificate must be for, where it is not the one that was
    #: connected to
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """Where a service is, and how to speak to it."""

    #: host:port, https://host:port of one with a certificate
    text: str
    token: str | None = None
    tls: Tls | None = None

    def open(self, plain: Callable[..., Any], secure: Callable[..., Any]) -> Any:
        """Make a channel by gRPC's functions for it, those for threads or those of ``grpc.aio``.

        Raises:
            InvalidUse: a file of TLS can't be read, or gRPC doesn't work in this process.
        """
        _channels.check()
        agent = f"spillway-client/{VERSION} (pid {os.getpid()} on {socket.gethostname()})"
        options: tuple[tuple[str, Any], ...] = (*_OPTIONS, ("grpc.primary_user_agent", agent))
        if not self.text.startswith(_TLS_PREFIX) and self.tls is None:
            return _channels.opened(plain(self.text.removeprefix(_PLAIN_PREFIX), options=options))
        if self.text.startswith(_PLAIN_PREFIX):
            raise InvalidUse(
                f"{self.text} is an address without TLS, and tls was given",
                hint="Name the service https://host:port, or leave tls out.",
            )
        tls = self.tls or Tls()
        credentials = grpc.ssl_channel_credentials(
            _pem("ca", tls.ca), _pem("key", tls.key), _pem("certificate", tls.certificate)
        )
        if tls.server_name is not None:
            options = (*options, ("grpc.ssl_target_name_override", tls.server_name))
        target = self.text.removeprefix(_TLS_PREFIX).rstrip("/")
        return _channels.opened(secure(target, credentials, options=options))

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What each call says of who calls."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)


def forget(channel: Any) -> None:
    """Take it that a channel is closed."""
    _channels.closed(channel)


def addresses_of(
    address: str | Sequence[str], token: str | None, tls: Tls | None
) -> tuple[Address, ...]:
    """Return where a service may be, in the order to try.

    Raises:
        InvalidUse: there is nothing to try.
    """
    texts = (address,) if isinstance(address, str) else tuple(address)
    if not texts or not all(texts):
        raise InvalidUse("a slot needs an address", hint="Give host:port of the service's gRPC.")
    return tuple(Address(text, token, tls) for text in texts)


def stream_method(channel: Any) -> Any:
    """Return the change stream of *channel*."""
    return channel.stream_stream(
        _STREAM,
        request_serializer=change_stream_pb2.StreamRequest.SerializeToString,
        response_deserializer=change_stream_pb2.StreamResponse.FromString,
    )


def get_slot_method(channel: Any) -> Any:
    """Return the call that tells where a slot stands."""
    return channel.unary_unary(
        _GET_SLOT,
        request_serializer=slots_pb2.GetSlotRequest.SerializeToString,
        response_deserializer=slots_pb2.Slot.FromString,
    )


def error_of(error: Any, address: str) -> ServiceError:
    """Make the error that the service, or gRPC on the way to it, means by *error*, a
    ``grpc.RpcError``.
    """
    status: grpc.StatusCode = error.code()
    message = error.details() or ""
    trailing = dict(tuple(pair) for pair in error.trailing_metadata() or ())
    code = trailing.get(_CODE_KEY)
    if code is None:
        return _transport_error(status, message, address)
    details = _details(trailing.get(_DETAILS_KEY, b""))
    hint = details.pop(_HINT_KEY, "")
    made = service_error(str(code), message, hint, is_transient=status in _TRANSIENT)
    made.details = details
    return made


def _details(serialized: Any) -> dict[str, str]:
    """Read the metadata of the google.rpc.ErrorInfo in a status."""
    found: dict[str, str] = {}
    try:
        for packed in rpc_status_pb2.Status.FromString(serialized).details:
            if packed.type_url.endswith(_ERROR_INFO):
                found.update(rpc_status_pb2.ErrorInfo.FromString(packed.value).metadata)
    except (DecodeError, TypeError):
        # The code and the message, which stand beside them, say enough.
        return found
    return found


def _transport_error(status: grpc.StatusCode, message: str, address: str) -> ServiceError:
    if status is grpc.StatusCode.UNAUTHENTICATED:
        return Unauthenticated(message, hint="Give the service's token as `token`.")
    if any(word in message.lower() for word in _TLS_WORDS):
        return TlsFailed(
            f"no TLS connection to the service at {address}: {message}",
            hint="Name the CA that signed its certificate by Tls(ca=...), and Tls(server_name=...) "
            "where the certificate is for another name. Give https://host:port for a service with "
            "a certificate only.",
        )
    error: ServiceError
    if status in _BROKEN:
        error = Unavailable(
            f"the service at {address} can't be reached: {message or status.name}",
            hint="Check the address, and that `spillway serve` runs there: https://host:port of a "
            "service with a certificate, host:port of one without.",
        )
        error.is_transient = True
    else:
        error = ServiceError(f"the service at {address} answered {status.name}: {message}")
    return error


def ended_early(address: str) -> ServiceError:
    """Make the error of a stream that ended without a word."""
    error = Unavailable(f"the service at {address} ended the stream", hint="It may be stopping.")
    error.is_transient = True
    return error


def too_late(address: str) -> ServiceError:
    """Make the error of a service that doesn't answer."""
    error = Unavailable(
        f"the service at {address} did not answer within {CALL_TIMEOUT_S:g} s",
        hint="Check that `spillway serve` runs there, and its log.",
    )
    error.is_transient = True
    return error


def _pem(name: str, path: str | os.PathLike[str] | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidUse(
            f"Tls({name}={os.fspath(path)!r}) can't be read: {error.strerror}",
            hint="Name a PEM file that this process may read.",
        ) from error
