"""Slots on the wire: the columns of PostgreSQL 18's views under their own names.

A slot's are declared in :mod:`spillway.declarations.slot_columns`, and its view is made from them.
"""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from spillway.declarations.slot_columns import SLOT_COLUMNS, PgType, SlotColumn
from spillway.errors import InvalidOption, InvalidRequest
from spillway.slot_manager.json_fields import LsnText, Options, RequestModel, ResponseModel

_OPTION_PREFIX: Final = "options."

#: PostgreSQL's int4 argument: none and 0 mean no limit. Negative ones, which PostgreSQL takes for
#: 1, are refused.
ChangeCount = Annotated[
    int,
    Field(
        ge=0,
        le=2**31 - 1,
        description="Stop at the end of the transaction in which this many changes are reached; 0: "
        "no limit.",
    ),
]


class CreateSlot(RequestModel):
    """pg_create_logical_replication_slot's arguments, and where the WAL comes from."""

    slot_name: str = Field(examples=["orders_to_lake"])
    source: str = Field(examples=["shop"])
    database: str = Field(examples=["shop"])
    plugin: str = "test_decoding"
    temporary: bool = False
    two_phase: bool = False
    failover: bool = False
    options: Options = Field(default_factory=dict, description="The plugin's options, as text.")
    start_lsn: LsnText | None = Field(
        default=None, description="Begin at this retained position instead of at the present."
    )
    snapshot: Literal["nothing", "export"] = Field(
        default="nothing",
        description="export: begin at the LSN of an exact snapshot of the database, which is held "
        "on the source and can be imported there; not together with start_lsn.",
    )


class AlterSlot(RequestModel):
    """What of a slot can change in place."""

    options: Options = Field(description="The plugin's options, all of them, as text.")


class GetChanges(RequestModel):
    """pg_logical_slot_get_changes's arguments."""

    upto_lsn: LsnText | None = None
    upto_nchanges: ChangeCount | None = None
    options: Options = Field(default_factory=dict)


class PeekQuery(BaseModel):
    """pg_logical_slot_peek_changes's arguments; each plugin option is a parameter
    ``options.NAME=VALUE``.
    """

    # Options have no fixed names, so extras are let in and then looked at.
    model_config = ConfigDict(extra="allow")

    upto_lsn: LsnText | None = None
    upto_nchanges: ChangeCount | None = None

    @model_validator(mode="after")
    def _check_extra(self) -> Self:
        for name, value in (self.__pydantic_extra__ or {}).items():
            if not name.startswith(_OPTION_PREFIX) or name == _OPTION_PREFIX:
                raise InvalidRequest(
                    f'unknown query parameter "{name}"',
                    hint="peek takes upto_lsn, upto_nchanges and options.NAME=VALUE.",
                )
            if not isinstance(value, str):
                raise InvalidOption(
                    f'option "{name.removeprefix(_OPTION_PREFIX)}" is given more than once',
                    hint="Give each option once.",
                )
        return self

    def options(self) -> Options:
        """Give the plugin's options."""
        extra: dict[str, Any] = self.__pydantic_extra__ or {}
        return {name.removeprefix(_OPTION_PREFIX): value for name, value in extra.items()}


class AdvanceSlot(RequestModel):
    """pg_replication_slot_advance's argument."""

    upto_lsn: LsnText


class RewindSlot(RequestModel):
    """Where to go back to."""

    lsn: LsnText


class CopySlot(RequestModel):
    """pg_copy_logical_replication_slot's destination."""

    slot_name: str = Field(examples=["orders_to_lake_2"])


class ConsumerView(ResponseModel):
    """Who has a slot."""

    kind: str = Field(
        description="stream, or the call under way: get, peek, advance, rewind, alter, drop"
    )
    address: str | None = Field(description="host:port that it came from.")
    client: str | None = Field(
        description="How its program names itself: User-Agent, or application_name."
    )
    subscription: str | None = Field(description="Whose program it is, if a subscription's.")
    since: datetime
    last_feedback_at: datetime | None = Field(
        description="When a stream's client last sent feedback; null: never, or, as another "
        "service stored it, not known."
    )
    sent_lsn: LsnText | None = Field(description="How far a stream was handed out.")
    protocol: str | None = Field(
        description="What it speaks: REST, gRPC, PostgreSQL or own socket; null: not known, as a "
        "service of a release before this was kept serves it."
    )
    user: str | None = Field(description="Who it has shown to be, over PostgreSQL's protocol.")


class DecodingView(ResponseModel):
    """How the decoding stands that a slot reads from."""

    state: str = Field(
        description="running; starting: not yet where it was before the service started; stopped; "
        "unknown: the source is not up"
    )
    decoded_lsn: LsnText | None
    since: datetime | None = Field(description="Since when it is so; null: not known.")
    error: str | None
    error_code: str | None
    hint: str | None


#: What a column's type is in JSON.
_TYPES: Final[dict[PgType, Any]] = {
    "name": str, "text": str, "bool": bool, "int4": int, "int8": int, "oid": int, "xid": int,
    "pg_lsn": LsnText, "timestamptz": datetime, "float8": float, "jsonb": Options,
}  # fmt: skip
_RECORDS: Final = {"consumer": ConsumerView, "decoding": DecodingView}


def _field(column: SlotColumn) -> tuple[Any, Any]:
    """Give a column's type, and what is said of it."""
    type_ = _RECORDS[column.name] if column.type == "record" else _TYPES[column.type]
    default = None if column.beside else ...
    return (
        type_ if column.null is None else type_ | None,
        Field(default, description=column.description),
    )


if TYPE_CHECKING:

    class SlotView(ResponseModel):
        """Its attributes are the columns."""

else:
    SlotView = create_model(
        "SlotView",
        __base__=ResponseModel,
        __module__=__name__,
        __doc__="A slot: pg_replication_slots of PostgreSQL 18, then Spillway's own.",
        **{column.name: _field(column) for column in SLOT_COLUMNS},
    )


class SnapshotView(ResponseModel):
    """A snapshot of a slot's database that is held on the source: it has what commits before an
    LSN, and nothing else.
    """

    slot_name: str
    snapshot_name: str = Field(
        description="What SET TRANSACTION SNAPSHOT is given, on the source, in a transaction that "
        "is REPEATABLE READ."
    )
    consistent_point: LsnText = Field(
        description="What commits from here on is not in the snapshot; of a new slot, where it "
        "begins."
    )
    contents: str = Field(description="pg_current_snapshot() of it.")
    method: Literal["paired", "temporary_slot"] = Field(
        description="paired: an ordinary snapshot, for which nobody was waited; temporary_slot: by "
        "a logical slot that the primary had for a moment, which waits for transactions that run."
    )
    attempts: int = Field(description="How many were taken until one could be paired.")
    reason: str | None = Field(description="Why none could be paired; null: it was.")
    taken_at: datetime
    held_until: datetime = Field(
        description="It is given up then, or before: when a consumer takes the slot, when the "
        "service stops."
    )


class CreatedSlot(SlotView):
    """A new slot, and the snapshot that was asked for."""

    snapshot: SnapshotView


class SlotList(ResponseModel):
    """All slots."""

    slots: list[SlotView]


class SlotStatsView(ResponseModel):
    """pg_stat_replication_slots of PostgreSQL 18."""

    slot_name: str
    spill_txns: int
    spill_count: int
    spill_bytes: int
    stream_txns: int
    stream_count: int
    stream_bytes: int
    total_txns: int
    total_bytes: int
    stats_reset: datetime | None


class ChangeView(ResponseModel):
    """A row of pg_logical_slot_peek_changes."""

    lsn: LsnText
    xid: int
    data: str = Field(description="What the plugin wrote; `\\x…` hexadecimal for a binary one.")
    data_hex: str | None = Field(
        default=None,
        description="Only where what a plugin of text wrote is not UTF-8, as in a database in "
        "SQL_ASCII: its bytes, `\\x…` hexadecimal. `data` has U+FFFD for those that are no "
        "characters.",
    )


class ChangeList(ResponseModel):
    """Whole transactions in commit order."""

    changes: list[ChangeView]
    decoding: DecodingView = Field(
        description="Whether more is to come: what is not decoded is not among the changes."
    )


class EndedSession(ResponseModel):
    """Whose session was ended."""

    slot_name: str
    consumer: ConsumerView


class Advanced(ResponseModel):
    """Where a slot stands after an advance."""

    slot_name: str
    end_lsn: LsnText
