"""Errors as gRPC statuses, and back.

A status carries the message; the details of it (google.rpc.Status in ``grpc-status-details-bin``,
which every gRPC library reads) hold a google.rpc.ErrorInfo with the stable code as reason, and hint
and places as metadata. The code alone is also in the trailing metadata ``spillway-code``, for
clients that read no details.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar
from urllib.parse import unquote

import grpc
from google.rpc import error_details_pb2, status_pb2

from spillway.caller import GRPC, calling
from spillway.errors import (
    NotReady,
    SpillwayError,
    Unauthenticated,
    error_class,
    remote_error,
)
from spillway.pg.encoding import readable
from spillway.tls import tls_failed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

_Self = TypeVar("_Self")
_Request = TypeVar("_Request")
_Response = TypeVar("_Response")

_DOMAIN: Final = "spillway"
_CODE_KEY: Final = "spillway-code"
_DETAILS_KEY: Final = "grpc-status-details-bin"
_HINT_KEY: Final = "hint"
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


def errors_as_statuses(
    method: Callable[[_Self, _Request, Any], Awaitable[_Response]],
) -> Callable[[_Self, _Request, Any], Awaitable[_Response]]:
    """Decorate a service's method (grpc.aio) so that every error it raises becomes a status."""

    @functools.wraps(method)
    async def call(self: _Self, request: _Request, context: Any) -> _Response:
        try:
            with calling(_address(context), _user_agent(context), protocol=GRPC):
                return await method(self, request, context)
        except SpillwayError as error:
            reported = error
            if error.is_for_the_log:
                log.error("%s: %s: %s", method.__name__, error.code, error)  # noqa: TRY400
        except (grpc.aio.UsageError, grpc.aio.InternalError):
            # Its client is gone: gRPC says so to whoever writes to it or ends its call. Nobody is
            # left to tell.
            raise asyncio.CancelledError from None
        except Exception:
            # The caller learns that it was not his mistake, and no internals.
            log.exception("%s failed", method.__name__)
            reported = SpillwayError(
                "an internal error occurred", hint="The service's log says which; please report it."
            )
        return await abort(context, reported)

    return call


def _address(context: Any) -> str:
    """Give the peer as host:port; gRPC has it as ipv4:127.0.0.1:4711 or, escaped,
    ipv6:[::1]:4711.
    """
    kind, _, address = unquote(context.peer()).partition(":")
    return address if kind in ("ipv4", "ipv6") else f"{kind}:{address}"


def _user_agent(context: Any) -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == "user-agent":
            return str(value)
    return None


async def abort(context: Any, error: SpillwayError) -> NoReturn:
    """End the call of *context* (grpc.aio) with *error*."""
    if context.done():
        # The client is gone, and gRPC would call this a mistake.
        raise asyncio.CancelledError
    status_code = grpc.StatusCode[error.grpc_status]
    information = error_details_pb2.ErrorInfo(
        reason=error.code,
        domain=_DOMAIN,
        metadata={
            _HINT_KEY: _text(error.hint),
            **{name: _text(value) for name, value in error.details.items()},
        },
    )
    status = status_pb2.Status(code=status_code.value[0], message=_text(error.message))
    status.details.add().Pack(information)
    try:
        await context.abort(
            status_code,
            _text(error.message),
            trailing_metadata=(
                (_CODE_KEY, error.code),
                (_DETAILS_KEY, status.SerializeToString()),
            ),
        )
    except grpc.aio.InternalError:
        # The client read nothing up to here, so that this waited behind what was sent before; its
        # connection has ended meanwhile.
        raise asyncio.CancelledError from None
    raise AssertionError  # abort() raises, but its type does not say so


def error_from_rpc(error: grpc.RpcError, target: str) -> SpillwayError:
    """Make the error that the service raised of what a call raised; a transport's failure is
    NotReady.
    """
    trailing = dict(error.trailing_metadata() or ())
    code = trailing.get(_CODE_KEY)
    message = error.details() or ""
    if code is None:
        return _transport_error(error.code(), message, target)
    hint = ""
    details: dict[str, object] = {}
    status = status_pb2.Status.FromString(trailing.get(_DETAILS_KEY, b""))
    for packed in status.details:
        information = error_details_pb2.ErrorInfo()
        if packed.Unpack(information):
            details.update(information.metadata)
            hint = str(details.pop(_HINT_KEY, ""))
    return remote_error(str(code), message, hint=hint, **details)


def is_transient(error: SpillwayError) -> bool:
    """Say whether trying again later, without a change of anything, may well succeed."""
    return error_class(error.code).grpc_status in ("UNAVAILABLE", "ABORTED")


def _transport_error(status: grpc.StatusCode, message: str, target: str) -> SpillwayError:
    if status is grpc.StatusCode.UNAUTHENTICATED:
        return Unauthenticated(message, hint="Set SPILLWAY_TOKEN.")
    if any(word in message.lower() for word in _TLS_WORDS):
        return tls_failed(target, message)
    if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return NotReady(
            f"the service at {target} can't be reached: {message}",
            hint="Check that spillway serve runs there, and SPILLWAY_GRPC: https://host:port of a "
            "service with a certificate (and SPILLWAY_TLS_CLIENT_CERT, if it asks for one), "
            "host:port of one without.",
        )
    return SpillwayError(f"the service at {target} answered {status.name}: {message}")


def _text(value: object) -> str:
    """Make a text that protobuf accepts: UTF-8, without lone surrogates."""
    return readable(str(value))
