"""What routes are given: the engine, subscriptions, users, and the promise that no unknown query
parameter came along.
"""

from typing import Annotated, cast

from fastapi import Depends, Request

from spillway.alerts.registry import Alerts
from spillway.errors import InvalidRequest
from spillway.service.interface import EngineInterface
from spillway.subscriber.interface import SubscriptionInterface
from spillway.users.registry import Users
from spillway.watch.past import Past
from spillway.watch.sampler import Sampler
from spillway.watch.timeline import Timeline


def _engine(request: Request) -> EngineInterface:
    return cast("EngineInterface", request.app.state.engine)


def _subscriptions(request: Request) -> SubscriptionInterface:
    return cast("SubscriptionInterface", request.app.state.subscriptions)


def _users(request: Request) -> Users:
    return cast("Users", request.app.state.users)


def _alerts(request: Request) -> Alerts:
    return cast("Alerts", request.app.state.alerts)


def _sampler(request: Request) -> Sampler:
    return cast("Sampler", request.app.state.sampler)


def _past(request: Request) -> Past:
    return cast("Past", request.app.state.past)


def _timeline(request: Request) -> Timeline:
    return cast("Timeline", request.app.state.timeline)


Engine = Annotated[EngineInterface, Depends(_engine)]
Subscriptions = Annotated[SubscriptionInterface, Depends(_subscriptions)]
UserRegistry = Annotated[Users, Depends(_users)]
AlertRegistry = Annotated[Alerts, Depends(_alerts)]
Watch = Annotated[Sampler, Depends(_sampler)]
PastOf = Annotated[Past, Depends(_past)]
SchemaTimeline = Annotated[Timeline, Depends(_timeline)]


def _refuse_query(request: Request) -> None:
    for name in request.query_params:
        raise InvalidRequest(
            f'unknown query parameter "{name}"', hint="This call takes no query parameters."
        )


#: For every route without query parameters: a misspelt one must not be ignored silently.
NoQuery = Depends(_refuse_query)
