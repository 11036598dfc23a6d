"""Spillway's REST interface: problems as errors with code and hint, and retries that can't do a
thing twice.

What is tried again:

- no connection could be made: nothing was asked yet, so any call;
- 429, 503, and 502 or 504 of something that stands before the service: any call; the service itself
  answers 502 for what is wrong on PostgreSQL's side, a wrong password for one, and only those of
  its codes that time mends are tried again;
- a connection that ended in the middle: only calls that may be done twice (GET, PUT, PATCH,
  DELETE). Whether a POST was done is then not known, and said.

Pauses double from a quarter of a second to 5 s, with jitter, or are what Retry-After says;
``retry_for_s`` bounds them all together. Terraform's interrupt ends a pause.
"""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import httpx

if TYPE_CHECKING:
    import ssl
    import threading

log = logging.getLogger(__name__)

_PAUSE_FIRST_S: Final = 0.25
_PAUSE_MAX_S: Final = 5.0
#: The service's own codes that time mends, whatever their status.
_PASSING_CODES: Final = frozenset({"not_ready", "metadata_unavailable", "checkpoint_not_stored"})
_PASSING_STATUSES: Final = frozenset({429, 502, 503, 504})
_REPEATABLE: Final = frozenset({"GET", "PUT", "PATCH", "DELETE"})


class ServiceError(Exception):
    """What the service answered, or that it didn't.

    Args:
        message: what happened.
        code: the service's stable code; ``unreachable`` and ``unexpected_answer`` are the
            provider's own.
        hint: what to do about it.
        status: the HTTP status; 0 without an answer.
        details: places by name, as the service gave them.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        hint: str = "",
        status: int = 0,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint
        self.status = status
        self.details = details or {}


class ServiceClient:
    """A connection to one service; used by as many threads as Terraform has operations at once."""

    def __init__(
        self,
        endpoint: str,
        token: str | None,
        *,
        timeout_s: float,
        retry_for_s: float,
        stopping: threading.Event,
        version: str,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.stopping = stopping
        self._retry_for_s = retry_for_s
        headers = {"User-Agent": f"terraform-provider-spillway/{version}"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._extensions = {"sni_hostname": server_name} if server_name else {}
        self._http = httpx.Client(
            base_url=self.endpoint,
            headers=headers,
            timeout=timeout_s,
            verify=True if tls is None else tls,
        )

    def get(self, *path: str, **params: str) -> Any:
        """Ask for what is at ``/v1/path…``; names in *path* may hold anything."""
        return self._call("GET", path, params=params)

    def post(self, *path: str, json: Any = None) -> Any:
        return self._call("POST", path, json=json)

    def put(self, *path: str, json: Any) -> Any:
        return self._call("PUT", path, json=json)

    def patch(self, *path: str, json: Any) -> Any:
        return self._call("PATCH", path, json=json)

    def delete(self, *path: str, **params: str) -> Any:
        return self._call("DELETE", path, params=params)

    def pause(self, seconds: float) -> None:
        """Wait, but not past an interrupt.

        Raises:
            ServiceError: Terraform was interrupted.
        """
        if self.stopping.wait(seconds):
            raise ServiceError(
                "interrupted while waiting for the service",
                code="interrupted",
                hint="Apply again to go on.",
            )

    def _call(
        self, method: str, path: tuple[str, ...], *, json: Any = None, params: Any = None
    ) -> Any:
        url = "/v1/" + "/".join(quote(part, safe="") for part in path)
        deadline = time.monotonic() + self._retry_for_s
        pause_s = _PAUSE_FIRST_S
        while True:
            wait_s = None
            try:
                response = self._http.request(
                    method, url, json=json, params=params or None, extensions=self._extensions
                )
                if response.is_success:
                    return _body(response) if response.content else None
                error = _problem(response, self.endpoint)
                again = _passes(error, response)
                wait_s = _retry_after_s(response)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as failure:
                # A certificate that isn't trusted is not trusted the next time either.
                error, again = self._unreachable(failure), "SSL" not in str(failure)
            except httpx.TransportError as failure:
                # Of TLS 1.3 a client hears only with the first answer that its certificate was
                # missed; nothing was asked then.
                refused = "SSL" in str(failure)
                error, again = self._unreachable(failure), method in _REPEATABLE and not refused
                if not again and not refused:
                    error.hint = (
                        "Whether the service did it is not known. Look (GET /v1/…, spillway slot "
                        "list); what is there already can be imported."
                    )
            except (httpx.InvalidURL, httpx.UnsupportedProtocol) as failure:
                raise ServiceError(
                    f"{self.endpoint!r} is not the URL of a service: {failure}",
                    code="invalid_endpoint",
                    hint="http://127.0.0.1:8080 for one.",
                ) from None
            wait_s = random.uniform(pause_s / 2, pause_s) if wait_s is None else wait_s  # noqa: S311
            if not again or time.monotonic() + wait_s > deadline:
                raise error
            log.warning("%s %s: %s; again in %.1f s", method, url, error.message, wait_s)
            self.pause(wait_s)
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)

    def _unreachable(self, failure: httpx.TransportError) -> ServiceError:
        what = str(failure) or type(failure).__name__
        if "SSL" in what:
            return ServiceError(
                f"the service at {self.endpoint} is not trusted, or does not trust this client: "
                f"{what}",
                code="tls_failed",
                hint=_tls_hint(what),
            )
        return ServiceError(
            f"the service at {self.endpoint} does not answer: {what}",
            code="unreachable",
            hint="Check that spillway serve runs there, and the provider's endpoint (or "
            "SPILLWAY_URL).",
        )


def _tls_hint(what: str) -> str:
    said = what.lower().replace("_", " ")
    if "expired" in said:
        return "The service's certificate must be renewed."
    if "certificate required" in said:
        return (
            "The service asks for a certificate: set client_certificate_file and client_key_file."
        )
    if "hostname" in said or "ip address mismatch" in said:
        return "Set server_name to a name that the service's certificate is for."
    if "wrong version number" in said:
        return "The service speaks no TLS: write http:// in endpoint, or give it a certificate."
    return "Set ca_file (or SPILLWAY_TLS_CA) to the CA that signed the service's certificate."


def _body(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        raise ServiceError(
            f"the answer of {response.request.url} is not JSON",
            code="unexpected_answer",
            hint="Check the provider's endpoint: something else may listen there.",
            status=response.status_code,
        ) from None


def _problem(response: httpx.Response, endpoint: str) -> ServiceError:
    """Read a problem document (RFC 9457); anything else comes from something that is not the
    service.
    """
    document: Any = None
    if response.headers.get("content-type", "").startswith("application/problem+json"):
        try:
            document = response.json()
        except ValueError:
            document = None
    if not isinstance(document, dict) or "code" not in document:
        return ServiceError(
            f"{response.request.method} {response.request.url} was answered with "
            f"{response.status_code} {response.reason_phrase}",
            code="unexpected_answer",
            hint=f"What listens at {endpoint} doesn't speak Spillway's REST; check the provider's "
            "endpoint.",
            status=response.status_code,
        )
    details = document.get("details")
    return ServiceError(
        str(document.get("detail") or document.get("title")),
        code=str(document["code"]),
        hint=str(document.get("hint") or ""),
        status=response.status_code,
        details=details if isinstance(details, dict) else {},
    )


def _passes(error: ServiceError, response: httpx.Response) -> bool:
    if error.code == "unexpected_answer":
        return response.status_code in _PASSING_STATUSES
    return error.code in _PASSING_CODES or response.status_code == 429


def _retry_after_s(response: httpx.Response) -> float | None:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else None
