"""What stands before the routes: the bearer token, the browser's origin and the size of bodies.

An ASGI layer and not FastAPI dependencies, so that nothing is outside of it by omission: unknown
paths, documentation and error pages are guarded as well. ``/healthz`` and ``/readyz`` are open; whoever
probes them has no token.

Without a token the service listens on the loopback address only, where every local process may talk to
it, but a web page in a local browser must not: a page can send requests anywhere, and can make its own
name resolve to 127.0.0.1 (DNS rebinding). So the Host must then be a loopback name, and a request that
a browser marks as coming from another origin is refused.
"""

import hmac
from typing import Final, Protocol
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spillway.errors import Unauthenticated
from spillway.loopback import is_loopback
from spillway.slot_manager.problems import http_problem, problem_response

#: The largest body: a source's DSN or a slot's options take a few hundred bytes.
BODY_BYTES_MAX: Final = 1024 * 1024

_OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})


class Pages(Protocol):
    """The admin UI: pages with a lock of their own, for browsers can't send a bearer token."""

    @property
    def app(self) -> ASGIApp: ...

    def has(self, path: str) -> bool:
        """Say whether *path* is one of its pages."""
        ...

    def admits(self, scope: Scope) -> bool:
        """Say whether a request without a token may pass: to a page, which then asks who it is, or by a session."""
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
        token: what callers must present; None where the service listens on loopback without one.
        pages: the admin UI, if there is one.
    """

    def __init__(self, app: ASGIApp, token: str | None, pages: Pages | None = None) -> None:
        self._app = app
        self._pages = pages
        self._credentials = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        headers = Headers(scope=scope)
        if path not in _OPEN_PATHS:
            if self._credentials is not None and not self._is_admitted(scope):
                given = headers.get("authorization", "").encode("latin-1")
                if not hmac.compare_digest(
                    _scheme_lowered(given), _scheme_lowered(self._credentials)
                ):
                    await problem_response(_unauthenticated(given), path)(scope, receive, send)
                    return
            elif self._credentials is None and (reason := _foreign(headers)):
                await http_problem(403, path, reason)(scope, receive, send)
                return
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
            await http_problem(413, path, _too_large())(scope, receive, send)
            return
        await self._app(scope, _Bounded(receive), send)

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


def _unauthenticated(given: bytes) -> Unauthenticated:
    return Unauthenticated(
        "the bearer token is wrong" if given else "a bearer token is needed",
        hint="Send the service's SPILLWAY_TOKEN in the header Authorization: Bearer ….",
    )


def _scheme_lowered(credentials: bytes) -> bytes:
    """The scheme's name may be written in any case (RFC 9110); the token may not."""
    scheme, space, token = credentials.partition(b" ")
    return scheme.lower() + space + token.strip()


def _foreign(headers: Headers) -> str:
    """Say why a request without a token can't come from a local program; empty if it can."""
    host = headers.get("host", "")
    if not is_loopback(_hostname(f"//{host}")):
        return f"the Host {host!r} is not a loopback name, and the service has no token"
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        return "the request comes from a web page of another origin"
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return "the request comes from a web page of another site"
    return ""


def _hostname(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
