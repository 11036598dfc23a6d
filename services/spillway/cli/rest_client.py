"""REST as the commands use it: calls in, JSON out, and the service's errors raised as what they
are.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

from spillway import __version__
from spillway.errors import InvalidRequest, NotFound, NotReady, SpillwayError, remote_error
from spillway.tls import tls_failed

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

    from spillway.settings import Settings

#: Creating a slot waits for a consistent point, and a peek may read much; connecting does not take
#: long.
_TIMEOUT_S: Final = 300.0
_CONNECT_TIMEOUT_S: Final = 10.0
_ERRNO: Final = re.compile(r"\[Errno -?\d+\] ")


class RestClient:
    """A connection to the service at ``SPILLWAY_URL``.

    Args:
        settings: where the service is, and its token.
        transport: how to reach it, other than over the network.
        timeout_s: how long to wait for an answer, and for a connection if that is less.
    """

    def __init__(
        self,
        settings: Settings,
        transport: httpx.BaseTransport | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        # Slow to import, and every command line imports this module: --help and serve too.
        import httpx  # noqa: PLC0415

        #: where it is
        self.url = settings.url
        tls = settings.client_tls
        #: what the certificate is verified against, where it isn't the host
        self._extensions = {} if tls.server_name is None else {"sni_hostname": tls.server_name}
        verify = tls.context() if settings.url.startswith("https:") else True
        token = settings.token
        # Events say who did what.
        headers = [(b"User-Agent", f"spillway-cli/{__version__}".encode())]
        if token is not None:
            headers.append((b"Authorization", b"Bearer " + token.encode()))
        try:
            self._http = httpx.Client(
                base_url=settings.url,
                headers=headers,
                timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_TIMEOUT_S)),
                transport=transport,
                verify=verify,
            )
        except httpx.InvalidURL as error:
            raise InvalidRequest(
                f"SPILLWAY_URL is not a URL: {error}", hint="http://127.0.0.1:8080 for one."
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._http.close()

    def call(
        self,
        method: str,
        *path: str,
        query: Mapping[str, str | int | list[str]] | None = None,
        body: Mapping[str, object] | None = None,
    ) -> Any:
        """Call ``/v1/PATH…`` and give the answer's JSON; None if it has no body.

        Raises:
            SpillwayError: the error that the service reported, of its own class, NotReady when the
                service can't be reached, or TlsFailed when one side does not trust the other.
            NotFound: a part of *path* can't be a name: it would lead to another path.
            InvalidRequest: something given is no text in UTF-8.
        """
        for part in path:
            if part in {"", ".", ".."} or "/" in part:
                raise NotFound(
                    f'nothing can have the name "{part}"',
                    hint="Names have lower case letters, numbers and the underscore.",
                )
        try:
            where = "/v1/" + "/".join(quote(part, safe="") for part in path)
        except UnicodeEncodeError:
            raise _not_utf8() from None
        response = self._request(method, where, query, body)
        if response.is_success:
            return response.json() if response.content else None
        raise self._error(response)

    def _request(
        self,
        method: str,
        where: str,
        query: Mapping[str, str | int | list[str]] | None,
        body: Mapping[str, object] | None,
    ) -> httpx.Response:
        import httpx  # noqa: PLC0415 - as above

        try:
            return self._http.request(
                method, where, params=query, json=body, extensions=self._extensions
            )
        except UnicodeEncodeError:
            raise _not_utf8() from None
        except httpx.ReadTimeout:
            raise NotReady(
                f"the service at {self.url} took the request, and has not answered",
                hint="It may be at work on it still: look at what is there before you try again.",
            ) from None
        except (httpx.TransportError, httpx.InvalidURL) as error:
            if "SSL" in str(error):
                raise tls_failed(self.url, str(error)) from None
            raise NotReady(
                f"the service at {self.url} can't be reached: "
                f"{_ERRNO.sub('', str(error)) or type(error).__name__}",
                hint="Check that spillway serve runs there, and SPILLWAY_URL: https://… of a "
                "service with a certificate (and SPILLWAY_TLS_CLIENT_CERT, if it asks for one), "
                "http://… of one without.",
            ) from None

    def _error(self, response: httpx.Response) -> SpillwayError:
        try:
            problem = response.json()
            return remote_error(
                problem["code"], problem["detail"], hint=problem["hint"], **problem["details"]
            )
        except (ValueError, KeyError, TypeError):
            return SpillwayError(
                f"{self.url} answered {response.status_code} {response.reason_phrase}, and not as "
                "Spillway does",
                hint="Check SPILLWAY_URL: something else may listen there.",
            )


def _not_utf8() -> InvalidRequest:
    # Not which one: it may stand in a DSN, beside its password.
    return InvalidRequest(
        "something of what was given is not text in UTF-8",
        hint="Give names and values in UTF-8; `locale` says what the terminal sends.",
    )
