"""Events on the wire."""

from datetime import datetime
from typing import Any

from pydantic import Field

from spillway.slot_manager.json_fields import ResponseModel


class EventCaller(ResponseModel):
    """The client that did it."""

    address: str | None = None
    client: str | None = None
    protocol: str | None = None
    user: str | None = None


class EventView(ResponseModel):
    """Something that happened."""

    id: int
    at: datetime
    kind: str = Field(
        description="problem, resolved, action (somebody did something), taken (a source is served "
        "by a process), started, stopped or message (a channel was not told)."
    )
    severity: str = Field(description="bad, warn, ok or info.")
    source: str | None
    slot: str | None
    subscription: str | None
    title: str
    detail: str
    caller: EventCaller | None = Field(description="Who did it; null: nobody from outside.")
    document: dict[str, Any] | None = Field(description="What the kind has beside that.")


class EventList(ResponseModel):
    """A page of events, the newest first."""

    events: list[EventView]
    next_before: int | None = Field(description="`before` of the next page; null: there is none.")
