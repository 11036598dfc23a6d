"""What stands before every page: the session, the token against forged requests, the headers.

With a token set, a browser logs in with it once and then holds a signed cookie (HttpOnly,
SameSite=Strict) that says until when it is valid; it is never the token itself. The key is made of
the service's token, so that a session outlives a restart and a new token ends all of them. Without
a token (the service then listens on loopback only) every browser gets such a cookie unasked:
requests are bound to it all the same.

A request that changes something must bring what a page of another site can't know: a value made of
the session (``csrf``), in its form or its header. That is checked here, before any route, so no
route can forget it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from spillway.errors import ForgedRequest, InvalidRequest, SpillwayError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

SESSION_S: Final = 12 * 3600
_FORM_BYTES_MAX: Final = 256 * 1024
_FIELDS_MAX: Final = 500
_PAGES: Final = ("/ui/", "/ui")
#: pages of the REST service that a browser with a session may look at as well
_ALSO: Final = frozenset({"/docs", "/openapi.json", "/metrics"})

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src "
    "'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def is_page(path: str) -> bool:
    """Say whether *path* is the admin UI's."""
    return path == "/" or path in _PAGES or path.startswith("/ui/")


class Sessions:
    """Signed cookies: ``expires.nonce.signature``."""

    def __init__(self, token: str | None) -> None:
        self.asks_token = token is not None
        self._key = (
            secrets.token_bytes(32)
            if token is None
            else hmac.digest(token.encode(), b"spillway admin session", hashlib.sha256)
        )

    def issue(self) -> str:
        """Make a new cookie's value."""
        text = f"{int(time.time()) + SESSION_S}.{secrets.token_urlsafe(18)}"
        return f"{text}.{self._sign(text)}"

    def is_valid(self, cookie: str) -> bool:
        """Say whether it is ours and not expired."""
        text, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(text).encode()):
            return False
        expires = text.partition(".")[0]
        return expires.isdecimal() and int(expires) > time.time()

    def csrf(self, cookie: str) -> str:
        """Make the value that forms of this session carry."""
        return self._sign(f"csrf {cookie}")

    def _sign(self, text: str) -> str:
        digest = hmac.digest(self._key, text.encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def admits(self, scope: Scope) -> bool:
        """Say whether the REST service's guard lets a request pass that brings no bearer token.

        The admin UI's own pages it may: they are guarded here. Of the rest a session opens what is
        only to be looked at; never the API, for a cookie comes along by itself.
        """
        path: str = scope["path"]
        if is_page(path):
            return True
        if path not in _ALSO or scope["method"] not in ("GET", "HEAD"):
            return False
        return self.is_valid(cookie_of(Request(scope)))


def cookie_name(request: Request) -> str:
    """Name the cookie by the port: cookies are shared by all ports of a host, sessions are not."""
    try:
        port = urlsplit(f"//{request.headers.get('host', '')}").port
    except ValueError:
        port = None
    return f"spillway_session_{port or (443 if request.scope['scheme'] == 'https' else 80)}"


def cookie_of(request: Request) -> str:
    """Give the session that the browser holds; empty for none."""
    return request.cookies.get(cookie_name(request), "")


def set_cookie(response: Response, request: Request, value: str) -> None:
    """Give the browser its session."""
    response.set_cookie(
        cookie_name(request),
        value,
        max_age=SESSION_S if value else 0,
        httponly=True,
        samesite="strict",
        secure=request.scope["scheme"] == "https",
        path="/",
    )


def note_access(request: Request, sessions: Sessions) -> None:
    """Note in a request what pages are told of who asks; a session may be none, as of one who came
    in by a bearer token.
    """
    cookie = cookie_of(request)
    is_valid = sessions.is_valid(cookie)
    request.state.csrf = sessions.csrf(cookie) if is_valid else ""
    request.state.is_inside = is_valid or not sessions.asks_token
    request.state.can_log_out = is_valid and sessions.asks_token


class AccessCheck:
    """The ASGI layer around the pages."""

    def __init__(
        self,
        app: ASGIApp,
        sessions: Sessions,
        problem: Callable[[Request, SpillwayError], Response],
    ) -> None:
        self._app = app
        self._sessions = sessions
        self._problem = problem

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        path = request.scope["path"]
        sessions = self._sessions
        cookie = cookie_of(request)
        new_cookie = ""
        if not sessions.is_valid(cookie):
            cookie = ""
            if not sessions.asks_token:
                cookie = new_cookie = sessions.issue()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
                if new_cookie:
                    response = Response()
                    set_cookie(response, request, new_cookie)
                    headers.append("Set-Cookie", response.headers["set-cookie"])
            await send(message)

        open_to_all = path == "/ui/login" or path.startswith("/ui/static/")
        if not cookie and not open_to_all:
            await self._to_login(request)(scope, receive, send_with_headers)
            return
        state = scope.setdefault("state", {})
        state["csrf"] = sessions.csrf(cookie) if cookie else ""
        state["is_inside"] = bool(cookie)
        state["can_log_out"] = bool(cookie) and sessions.asks_token
        state["form"] = {}
        if request.method not in ("GET", "HEAD"):
            try:
                state["form"] = await self._form(request, state["csrf"])
            except SpillwayError as error:
                await self._problem(request, error)(scope, receive, send_with_headers)
                return
        await self._app(scope, receive, send_with_headers)

    @staticmethod
    def _to_login(request: Request) -> Response:
        target = "/ui/login"
        if request.method == "GET" and not request.scope["path"].startswith("/ui/live"):
            target += f"?next={quote(request.scope['path'])}"
        if request.headers.get("hx-request"):
            return Response(status_code=401, headers={"HX-Redirect": target})
        if request.scope["path"].startswith("/ui/live"):
            return Response(status_code=204)
        return RedirectResponse(target, status_code=303)

    async def _form(self, request: Request, csrf: str) -> dict[str, list[str]]:
        headers: Headers = request.headers
        origin = headers.get("origin")
        if origin is not None and not _is_own(origin, headers.get("host", "")):
            raise ForgedRequest(
                "the request comes from a web page of another origin",
                hint="Open the service's own page, at the address that the browser has for it, and "
                "try again.",
            )
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > _FORM_BYTES_MAX:
                raise InvalidRequest(
                    f"the form is larger than {_FORM_BYTES_MAX} bytes",
                    hint="Give fewer values, or use the command line or REST.",
                )
        form: dict[str, list[str]] = {}
        try:
            fields = parse_qsl(
                body.decode(), keep_blank_values=True, max_num_fields=_FIELDS_MAX, errors="strict"
            )
        except ValueError:
            raise InvalidRequest(
                "the form can't be read", hint="Reload the page and try again."
            ) from None
        for name, value in fields:
            form.setdefault(name, []).append(value)
        if request.scope["path"] != "/ui/login":
            given = headers.get("x-csrf-token") or form.get("csrf", [""])[0]
            if not hmac.compare_digest(given.encode(), csrf.encode()):
                raise ForgedRequest(
                    "the form does not belong to this session",
                    hint="Reload the page and try again; a restart of the service without a token "
                    "ends its sessions.",
                )
        return form


def _is_own(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False
