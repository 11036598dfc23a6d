"""What routes are given: the engine, and the promise that no unknown query parameter came along."""

from typing import Annotated, cast

from fastapi import Depends, Request

from spillway.engine.interface import EngineInterface
from spillway.errors import InvalidRequest


def _engine(request: Request) -> EngineInterface:
    return cast("EngineInterface", request.app.state.engine)


Engine = Annotated[EngineInterface, Depends(_engine)]


def _refuse_query(request: Request) -> None:
    for name in request.query_params:
        raise InvalidRequest(
            f'unknown query parameter "{name}"', hint="This call takes no query parameters."
        )


#: For every route without query parameters: a misspelt one must not be ignored silently.
NoQuery = Depends(_refuse_query)
