"""What stands before gRPC's methods: the token, and messages that are none.

An interceptor and not something in each method, so that nothing is outside of it: health and
reflection too. gRPC's own answer to bytes that are no message is UNKNOWN and a traceback; here it
is INVALID_ARGUMENT with the code of it, in a stream as in a single call.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health

from spillway.errors import InvalidRequest, SpillwayError
from spillway.stream import status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from spillway.token_gate import TokenGate

_SCHEME: Final = b"bearer "
_MALFORMED: Final = object()
_HINT: Final = "Send the service's SPILLWAY_TOKEN in the metadata authorization: Bearer …."


class AccessCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses calls without the token, except the health service's: whoever probes has none."""

    def __init__(self, gate: TokenGate) -> None:
        self._gate = gate

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        handler = await continuation(handler_call_details)
        probes = handler_call_details.method.startswith(f"/{health.SERVICE_NAME}/")
        given: bytes | None = None
        if self._gate.asks_token and not probes:
            for key, value in handler_call_details.invocation_metadata:
                if key == "authorization":
                    raw = value if isinstance(value, bytes) else value.encode()
                    if raw[: len(_SCHEME)].lower() == _SCHEME:
                        given = raw[len(_SCHEME) :]
            if handler is None or given is None or not self._gate.is_token(given):
                return self._refusal(given)
        if handler is None:
            return None
        return _Checked(handler, None if probes else self._admission(given)).handler()

    def _admission(self, given: bytes | None) -> Callable[[Any], None]:
        def admit(context: Any) -> None:
            _check(self._gate, given, context)

        return admit

    def _refusal(self, given: bytes | None) -> Any:
        async def refuse(requests: Any, context: Any) -> None:  # noqa: ARG001 - a handler's form
            try:
                _check(self._gate, given, context)
            except SpillwayError as error:
                await status.abort(context, error)
            # The token is right: there is no such method.
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

        # It begins before a message came, which may be never.
        return grpc.stream_stream_rpc_method_handler(refuse)


def _check(gate: TokenGate, given: bytes | None, context: Any) -> None:
    try:
        gate.check(given, _address(context.peer()))
    except SpillwayError as error:
        error.hint = error.hint or _HINT
        raise


def _address(peer: str) -> str | None:
    """Read the address of a peer as gRPC writes it: ``ipv4:127.0.0.1:1234``,
    ``ipv6:%5B::1%5D:1234``, ``unix:``.
    """
    family, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") if family in ("ipv4", "ipv6") else None


class _Checked:
    """A method's handler, with what is looked at before it."""

    def __init__(self, handler: Any, admit: Callable[[Any], None] | None) -> None:
        self._inner = handler
        self._admit = admit

    def handler(self) -> Any:
        inner = self._inner
        deserialize = inner.request_deserializer
        given: dict[str, Any] = {
            "request_deserializer": None if deserialize is None else _tolerant(deserialize)
        }
        for kind in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
            method = getattr(inner, kind)
            if method is not None:
                given[kind] = self._wrap(method, is_stream=kind.startswith("stream"))
        return inner._replace(**given)

    def _wrap(self, method: Any, *, is_stream: bool) -> Any:
        async def enter(request: Any, context: Any) -> Any:
            try:
                if self._admit is not None:
                    self._admit(context)
                if request is _MALFORMED:
                    raise _malformed()
            except SpillwayError as error:
                await status.abort(context, error)
            return _messages(request) if is_stream else request

        if inspect.isasyncgenfunction(method):

            async def generate(request: Any, context: Any) -> AsyncIterator[Any]:
                checked = await enter(request, context)
                try:
                    async for response in method(checked, context):
                        yield response
                except InvalidRequest as error:
                    await status.abort(context, error)

            return generate

        async def call(request: Any, context: Any) -> Any:
            return await method(await enter(request, context), context)

        return call


async def _messages(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        if request is _MALFORMED:
            raise _malformed()
        yield request


def _tolerant(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return _MALFORMED

    return read


def _malformed() -> InvalidRequest:
    return InvalidRequest(
        "the bytes that came are no message of this method",
        hint="Make them with stubs that protoc generates from Spillway's .proto files.",
    )
