"""Tells the engine who calls, so that it can name the consumer of a slot."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from spillway.caller import REST, calling


class Callers:
    """An ASGI layer around everything that reaches the engine."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        host, port = client or ("", 0)
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        agent = Headers(scope=scope).get("user-agent")
        with calling(shown if client else None, agent, protocol=REST):
            await self._app(scope, receive, send)
