"""What stands before the routes: the bearer token, the browser's origin and the size of bodies.

An ASGI layer and not FastAPI dependencies, so that nothing is outside of it by omission: unknown
paths, documentation and error pages are guarded as well. ``/healthz`` and ``/readyz`` are open;
whoever probes them has no token.

Without a token the service listens on the loopback address only, where every local process may talk
to it, but a web page in a local browser must not: a page can send requests anywhere, and can make
its own name resolve to 127.0.0.1 (DNS rebinding). So the Host must then be a loopback name, and a
request that a browser marks as coming from another origin is refused.
"""

import contextlib
from typing import Final, Protocol
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spillway.errors import SpillwayError
from spillway.loopback import is_loopback
from spillway.slot_manager.problems import http_problem, problem_response
from spillway.token_gate import TokenGate

#: The largest body: a source's DSN or a slot's options take a few hundred bytes.
BODY_BYTES_MAX: Final = 1024 * 1024
_HINT: Final = "Send the service's SPILLWAY_TOKEN in the header Authorization: Bearer …."

_OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})


class Pages(Protocol):
    """The admin UI: pages with a lock of their own, for browsers can't send a bearer token."""

    @property
    def app(self) -> ASGIApp: ...

    def has(self, path: str) -> bool:
        """Say whether *path* is one of its pages."""
        ...

    def admits(self, scope: Scope) -> bool:
        """Say whether a request without a token may pass: to a page, which then asks who it is, or
        by a session.
        """
        ...

    def in_shell(self, request: Request, title: str, body: str) -> Response:
        """Show *body*, which is HTML, as a page among the others."""
        ...


class Beside:
    """Puts the admin UI beside the routes."""

    def __init__(self, app: ASGIApp, pages: Pages) -> None:
        self._app = app
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ours = scope["type"] == "http" and self._pages.has(scope["path"])
        await (self._pages.app if ours else self._app)(scope, receive, send)


class Guard:
    """The outermost ASGI layer.

    Args:
        app: what is guarded.
        gate: what compares the token that callers must present.
        pages: the admin UI, if there is one.
    """

    def __init__(self, app: ASGIApp, gate: TokenGate, pages: Pages | None = None) -> None:
        self._app = app
        self._pages = pages
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        headers = Headers(scope=scope)
        if path not in _OPEN_PATHS:
            if self._gate.asks_token:
                if not self._is_admitted(scope) and (refusal := self._refusal(scope, headers)):
                    await problem_response(refusal, path)(scope, receive, send)
                    return
            elif reason := _foreign(headers):
                await http_problem(403, path, reason)(scope, receive, send)
                return
        if b"%00" in scope["query_string"]:
            # No name and no option has one, and PostgreSQL can't be asked for it.
            await http_problem(400, path, "the query has a NUL")(scope, receive, send)
            return
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
            await http_problem(413, path, _too_large())(scope, receive, send)
            return
        # One that goes away while it is sending: nobody is left to answer, and nothing was begun.
        with contextlib.suppress(ClientDisconnect):
            await self._app(scope, _Bounded(receive), send)

    def _refusal(self, scope: Scope, headers: Headers) -> SpillwayError | None:
        client = scope.get("client")
        try:
            self._gate.check(_bearer(headers), None if client is None else client[0])
        except SpillwayError as error:
            error.hint = error.hint or _HINT
            return error
        return None

    def _is_admitted(self, scope: Scope) -> bool:
        return self._pages is not None and self._pages.admits(scope)


class _Bounded:
    """Counts a body that came without a length, and ends it when it is too long."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._count = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._count += len(message.get("body", b""))
            if self._count > BODY_BYTES_MAX:
                raise HTTPException(413, _too_large())
        return message


def _too_large() -> str:
    return f"the body is larger than {BODY_BYTES_MAX} bytes"


def _bearer(headers: Headers) -> bytes | None:
    """Give the token of the header; the scheme's name may be written in any case (RFC 9110)."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    # As the bytes that came: another scheme's credentials are no token.
    return token.strip().encode("latin-1") if scheme.lower() == "bearer" else None


def _foreign(headers: Headers) -> str:
    """Say why a request without a token can't come from a local program; empty if it can."""
    host = headers.get("host", "")
    if not is_loopback(_hostname(f"//{host}")):
        return f"the Host {host!r} is not a loopback name, and the service has no token"
    origin = headers.get("origin")
    if origin is not None and not is_own_origin(origin, host):
        return "the request comes from a web page of another origin"
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return "the request comes from a web page of another site"
    return ""


def is_own_origin(origin: str, host: str) -> bool:
    """Say whether a page of *origin* is one of *host*'s own; what can't be read is not."""
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False


def _hostname(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
