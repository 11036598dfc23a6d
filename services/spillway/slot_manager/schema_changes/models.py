"""Changes of the schema on the wire."""

from datetime import datetime
from typing import Any

from pydantic import Field

from spillway.slot_manager.json_fields import LsnText, ResponseModel
from spillway.watch.timeline import OUTCOMES


class OutcomeView(ResponseModel):
    """What a subscription made of it."""

    subscription: str
    outcome: str = Field(
        description="; ".join(f"{name}: {what}" for name, what in OUTCOMES.items()) + "."
    )
    detail: str = Field(description="Why, where there is something to say.")
    at: datetime = Field(description="When that was seen.")
    was_paused: bool = Field(description="The subscription had waited there before.")


class SchemaChangeView(ResponseModel):
    """What DDL did to one table, in a transaction that committed."""

    id: int
    source: str
    database: str
    table: str = Field(description="schema.table, as it is called after it.")
    was: str | None = Field(description="As it was called before; null: it was not there.")
    kind: str = Field(description="create_table, alter_table or drop_table.")
    committed_at: datetime
    commit_lsn: LsnText
    xid: int
    words: list[str] = Field(description="What it did, a sentence each.")
    changes: list[dict[str, Any]] = Field(description="The same as DDL events have it.")
    more: int = Field(
        description="How many more tables the transaction changed, of which nothing is kept."
    )
    outcomes: list[OutcomeView]


class SchemaChangeList(ResponseModel):
    """A page of changes of the schema, the newest first."""

    schema_changes: list[SchemaChangeView]
    next_before: int | None = Field(description="`before` of the next page; null: there is none.")
