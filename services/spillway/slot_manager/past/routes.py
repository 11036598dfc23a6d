"""``/v1/sources/{name}/metrics``, and the same of slots and subscriptions."""

import re
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request

from spillway.errors import InvalidRequest
from spillway.slot_manager.dependencies import Engine, PastOf, Subscriptions
from spillway.slot_manager.past.models import PastView, past_view

router = APIRouter()

_PARAMETERS: Final = frozenset({"range", "step"})
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_TIME: Final = re.compile(r"([0-9]{1,7})([smhd])")

Range = Annotated[
    str,
    Query(
        alias="range",
        description="How far back: a number with a unit, s, m, h or d; 30d at most.",
    ),
]
Step = Annotated[
    str | None,
    Query(
        description="How long a step is to be, as the range. Kept are two minutes for a day, ten "
        "minutes for a week, hours for a month: a step is a multiple of what is kept as far back. "
        "Unless it is given, that."
    ),
]


@router.get("/sources/{name}/metrics", operation_id="get_source_metrics", tags=["sources"])
async def source_metrics(
    name: str,
    request: Request,
    engine: Engine,
    past: PastOf,
    reach: Range = "24h",
    step: Step = None,
) -> PastView:
    """Tell how a source was: lag and rates of up to thirty days."""
    await engine.get_source(name)
    return await _answer(request, past, "source", name, reach, step)


@router.get("/slots/{slot_name}/metrics", operation_id="get_slot_metrics", tags=["slots"])
async def slot_metrics(
    slot_name: str,
    request: Request,
    engine: Engine,
    past: PastOf,
    reach: Range = "24h",
    step: Step = None,
) -> PastView:
    """Tell how a slot was: lag, rates and what was kept for it, of up to thirty days."""
    await engine.get_slot(slot_name)
    return await _answer(request, past, "slot", slot_name, reach, step)


@router.get(
    "/subscriptions/{name}/metrics",
    operation_id="get_subscription_metrics",
    tags=["subscriptions"],
)
async def subscription_metrics(
    name: str,
    request: Request,
    subscriptions: Subscriptions,
    past: PastOf,
    reach: Range = "24h",
    step: Step = None,
) -> PastView:
    """Tell how a subscription was: lag and changes written, of up to thirty days."""
    await subscriptions.get(name)
    return await _answer(request, past, "subscription", name, reach, step)


async def _answer(
    request: Request, past: PastOf, kind: str, name: str, reach: str, step: str | None
) -> PastView:
    for parameter in request.query_params.keys() - _PARAMETERS:
        raise InvalidRequest(
            f'unknown query parameter "{parameter}"', hint="There are range and step."
        )
    found = await past.series(
        kind,
        name,
        range_s=_seconds("range", reach),
        step_s=None if step is None else _seconds("step", step),
    )
    return past_view(found)


def _seconds(name: str, text: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise InvalidRequest(
            f"{name} is {text!r}", hint="Write a number with a unit, s, m, h or d: 12h."
        )
    return int(found[1]) * _SECONDS[found[2]]
