"""Errors as RFC 9457 problem documents: the one place where they become responses.

Every error response of the service has this form, those of the web framework too. ``code`` is the
stable name that clients compare; ``type`` is a URI at which the service itself explains the code;
``details`` are the machine-readable places (slot, source, lsn, …) of the error.
"""

import http
import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from spillway.errors import InvalidRequest, NotFound, SpillwayError, TooManyAttempts
from spillway.slot_manager import validation

log = logging.getLogger(__name__)

MEDIA_TYPE: Final = "application/problem+json"

#: Codes of what goes wrong in HTTP itself, before a request reaches a route.
_HTTP_CODES: Final[Mapping[int, tuple[str, str]]] = {
    400: ("invalid_request", "The request can't be read; /docs describes what the call takes."),
    403: (
        "forbidden",
        (
            "Others' web pages may not call the service. Open the service's own page; programs "
            "send no Origin."
        ),
    ),
    404: ("not_found", "There is nothing at this path; /docs lists what there is."),
    405: ("method_not_allowed", "The path exists, but not with this method; see the Allow header."),
    413: ("request_too_large", "The body is larger than the service accepts."),
}


class Problem(BaseModel):
    """What every error looks like (RFC 9457)."""

    type: str = Field(description="A URI that explains the code.")
    title: str = Field(description="What the code means, in general.")
    status: int
    detail: str = Field(description="What happened this time, and where.")
    code: str = Field(description="Stable; compare this.")
    hint: str = Field(description="What to do about it; may be empty.")
    instance: str = Field(description="The path of the request.")
    details: dict[str, Any] = Field(description="Places by name: slot, source, lsn, …")


class ProblemResponse(JSONResponse):
    """A problem document. Escaped to ASCII: it may quote text that UTF-8 can't hold."""

    media_type = MEDIA_TYPE

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=True, default=str).encode("ascii")


def problem_response(error: SpillwayError, path: str) -> ProblemResponse:
    """Turn an error of ours into a response."""
    headers = {}
    if error.http_status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="spillway"'
    if isinstance(error, TooManyAttempts):
        headers["Retry-After"] = str(error.details["retry_after_s"])
    return ProblemResponse(
        Problem(
            type=f"/problems/{error.code}",
            title=_title(type(error)),
            status=error.http_status,
            detail=error.message,
            code=error.code,
            hint=error.hint,
            instance=path,
            details=error.details,
        ).model_dump(),
        status_code=error.http_status,
        headers=headers,
    )


def http_problem(
    status: int, path: str, detail: str = "", headers: Mapping[str, str] | None = None
) -> ProblemResponse:
    """Turn a bare HTTP status into a response."""
    phrase = http.HTTPStatus(status).phrase
    code, hint = _HTTP_CODES.get(status, (phrase.lower().replace(" ", "_"), ""))
    return ProblemResponse(
        Problem(
            type=f"/problems/{code}",
            title=phrase,
            status=status,
            detail=detail or phrase,
            code=code,
            hint=hint,
            instance=path,
            details={},
        ).model_dump(),
        status_code=status,
        headers=headers,
    )


def install(app: FastAPI) -> None:
    """Make every error of *app* a problem document."""
    app.add_exception_handler(SpillwayError, _spillway_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(Exception, _unexpected)
    app.include_router(router)


async def _spillway_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, SpillwayError)
    if error.is_for_the_log:
        log.error("%s %s: %s: %s", request.method, request.scope["path"], error.code, error)
    return problem_response(error, request.scope["path"])


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # Not what was sent: it may be a DSN with its password.
    found = error.errors()
    problems = [
        {
            "place": ".".join(str(part) for part in problem["loc"]),
            "problem": validation.in_words(problem),
        }
        for problem in found
    ]
    invalid = InvalidRequest(
        f"invalid request: {validation.place(found[0])} {problems[0]['problem']}",
        hint="/docs describes what the call takes.",
        errors=problems,
    )
    return problem_response(invalid, request.scope["path"])


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = "" if error.detail == http.HTTPStatus(error.status_code).phrase else error.detail
    if error.status_code == 404:
        detail = f"there is nothing at {request.scope['path']}"
    if error.status_code == 405:
        detail = f"{request.method} is not allowed at {request.scope['path']}"
    return http_problem(error.status_code, request.scope["path"], detail, error.headers)


async def _unexpected(request: Request, error: Exception) -> Response:  # noqa: ARG001 - a handler's form
    # The server logs the traceback. The caller learns that it was not his mistake, and no
    # internals.
    return problem_response(
        SpillwayError(
            "an internal error occurred", hint="The service's log says which; please report it."
        ),
        request.scope["path"],
    )


router = APIRouter(include_in_schema=False)


@router.get("/problems/{code}")
async def explain(code: str) -> dict[str, object]:
    """Explain an error code: where a problem document's ``type`` leads."""
    for kind in _kinds(SpillwayError):
        if kind.code == code:
            return {"code": code, "status": kind.http_status, "meaning": _title(kind)}
    for status, (http_code, meaning) in _HTTP_CODES.items():
        if http_code == code:
            return {"code": code, "status": status, "meaning": meaning}
    raise NotFound(f'no error has the code "{code}"')


def _kinds(base: type[SpillwayError]) -> Iterator[type[SpillwayError]]:
    yield base
    for kind in base.__subclasses__():
        yield from _kinds(kind)


def _title(kind: type[SpillwayError]) -> str:
    if kind is SpillwayError:
        return "Something went wrong inside the service"
    # A summary may take two lines.
    summary = (kind.__doc__ or kind.code).strip().partition("\n\n")[0]
    return " ".join(summary.split()).rstrip(".")
