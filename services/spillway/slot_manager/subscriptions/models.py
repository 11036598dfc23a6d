"""Subscriptions on the wire: CREATE SUBSCRIPTION's words where it has them.

A lake's options are declared in :mod:`spillway.declarations.lake_options`, and its target is made
from them.
"""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, create_model

from spillway.declarations.lake_options import LAKE_OPTIONS, Kind, LakeOption
from spillway.declarations.postgres_options import POSTGRES_OPTIONS, PostgresOption
from spillway.declarations.postgres_options import Kind as PostgresKind
from spillway.slot_manager.json_fields import LsnText, Options, RequestModel, ResponseModel
from spillway.subscriber.model import SubscriptionState, VerificationState


class _LakeTarget(RequestModel):
    """What a lake has beside its options."""

    kind: Literal["lake"]
    format: Literal["delta", "iceberg", "parquet"] = Field(
        default="delta", description="What the tables are made of."
    )
    path: str = Field(
        description="An absolute directory of the service's machine, s3://bucket/prefix or "
        "az://container/prefix.",
        examples=["/srv/lake/shop"],
    )


#: What a value of each kind is in JSON; a choice is one of its texts.
_TYPES: Final[dict[Kind, Any]] = {
    "text": str, "time": str, "size": str, "number": float, "whole number": int,
    "columns": dict[str, list[str]], "partitions": dict[str, list[str]],
    "masks": dict[str, list[str]], "tables": list[str], "times": dict[str, str],
    "settings": dict[str, str],
}  # fmt: skip


def _field(option: LakeOption) -> tuple[Any, Any]:
    """Give an option's type, and what is said of it."""
    is_choice = option.kind == "choice"
    type_ = Literal[option.choices] if is_choice else _TYPES[option.kind]
    examples = None if option.example is None or is_choice else [option.example]
    return (type_ | None, Field(None, description=option.description, examples=examples))


if TYPE_CHECKING:

    class LakeTarget(_LakeTarget):
        """Its further attributes are the options."""

else:
    LakeTarget = create_model(
        "LakeTarget",
        __base__=_LakeTarget,
        __module__=__name__,
        __doc__="Lake tables, filled by `spillway lake run`. What is left out is as that command "
        "has it.",
        **{option.name: _field(option) for option in LAKE_OPTIONS},
    )


class _PostgresTarget(RequestModel):
    """What a PostgreSQL has beside its options."""

    kind: Literal["postgres"]
    dsn: str | None = Field(
        default=None,
        description="A libpq connection string of the database that is filled. Its password is "
        "shown as ****; one that comes back so, or not at all, when the subscription is altered "
        "stays as it was.",
        examples=["postgresql://filler:secret@db2.example/shop"],
    )


#: What a value of each kind is in JSON; a choice is one of its texts.
_POSTGRES_TYPES: Final[dict[PostgresKind, Any]] = {
    "flag": bool, "whole number": int, "texts": dict[str, str], "object": dict[str, Any],
}  # fmt: skip


def _postgres_field(option: PostgresOption) -> tuple[Any, Any]:
    """Give an option's type, and what is said of it."""
    is_choice = option.kind == "choice"
    type_ = Literal[option.choices] if is_choice else _POSTGRES_TYPES[option.kind]
    examples = None if option.example is None or is_choice else [option.example]
    return (type_ | None, Field(None, description=option.description, examples=examples))


if TYPE_CHECKING:

    class PostgresTarget(_PostgresTarget):
        """Its further attributes are the options."""

else:
    PostgresTarget = create_model(
        "PostgresTarget",
        __base__=_PostgresTarget,
        __module__=__name__,
        __doc__="Tables of another PostgreSQL, filled by `spillway apply run`.",
        **{option.name: _postgres_field(option) for option in POSTGRES_OPTIONS},
    )


class OtherTarget(BaseModel):
    """A target of a kind that an installed package registers; the fields are that kind's."""

    model_config = ConfigDict(extra="allow", strict=True)

    kind: str


def _kind(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return kind if kind in ("lake", "postgres") else "other"


Target = Annotated[
    Annotated[LakeTarget, Tag("lake")]
    | Annotated[PostgresTarget, Tag("postgres")]
    | Annotated[OtherTarget, Tag("other")],
    Discriminator(_kind),
]

TableNames = Annotated[
    list[str],
    Field(
        description="schema.table as the catalog has it; a partitioned one stands for its "
        "partitions.",
        examples=[["public.orders"]],
    ),
]
PublicationNames = Annotated[
    list[str],
    Field(description="What these publish, when it is created or refreshed.", examples=[["p"]]),
]


class CreateSubscription(RequestModel):
    """CREATE SUBSCRIPTION, and what it fills. Tables or publications, or neither for all tables."""

    name: str = Field(
        description="Lower-case letters, digits and underscores.",
        examples=["shop_to_lake"],
        max_length=63,
    )
    source: str = Field(examples=["shop"])
    database: str = Field(examples=["shop"])
    slot: str | None = Field(
        default=None, description="Made if it is not there; of the subscription's name by default."
    )
    tables: TableNames | None = None
    publications: PublicationNames | None = None
    target: Target
    enabled: bool = True
    copy_data: bool = Field(
        default=True, description="Copy what is in the tables already, before their changes."
    )
    origin: Literal["any", "none"] = Field(
        default="any", description="none: only changes without a replication origin."
    )
    streaming: Literal["off", "on", "parallel"] = Field(
        default="off",
        description="parallel: a PostgreSQL takes large transactions while they are in progress; "
        "on, off: when they have ended, and until then the service keeps them.",
    )
    two_phase: bool = False
    options: Options = Field(
        default_factory=dict, description="The slot's output plugin's options, as text."
    )


class AlterSubscription(RequestModel):
    """What is to change. Fields that are left out stay; those that can't change in place must be as
    they are.
    """

    source: str | None = None
    database: str | None = None
    slot: str | None = None
    tables: TableNames | None = Field(
        default=None, description="null: all, unless publications are."
    )
    publications: PublicationNames | None = None
    target: Target | None = Field(
        default=None,
        description="How its program runs changes in place; where it writes, only as long as "
        "nothing was written.",
    )
    enabled: bool | None = None
    copy_data: bool | None = None
    origin: Literal["any", "none"] | None = None
    streaming: Literal["off", "on", "parallel"] | None = None
    two_phase: bool | None = None
    options: Options | None = None

    def changes(self) -> dict[str, object]:
        """Give what was named; null means something for tables and publications only."""
        return {
            name: plain(value) if name == "target" else value
            for name in self.model_fields_set
            if (value := getattr(self, name)) is not None or name in ("tables", "publications")
        }


class SkipTo(RequestModel):
    """Where to go on."""

    lsn: LsnText


def plain(target: BaseModel) -> dict[str, Any]:
    """Give a target as the subscriber takes it: without what was left out."""
    return target.model_dump(exclude_none=True)


class FailureView(ResponseModel):
    """Why the last run failed."""

    code: str = Field(description="Stable, of the same list as problems' codes.")
    message: str
    hint: str


class TableResyncView(ResponseModel):
    """The last wish to load a table of a lake anew."""

    state: str = Field(
        description="waiting, loading, done, failed or cancelled; what failed is tried again at "
        "growing distances, unless the reason says otherwise, and at once when it is asked for "
        "again"
    )
    asked_at: datetime
    ended_at: datetime | None = Field(description="When it was done, taken back, or failed last.")
    lsn: LsnText | None = Field(description="As of which the table was loaded.")
    reason: str | None = Field(description="Why it failed, and what mends it.")


class TableStateView(ResponseModel):
    """One table, as the subscription's program tells."""

    table: str = Field(description="schema.table")
    state: str = Field(description="waiting, copying, ready, quarantined or paused")
    changes: int = Field(description="Durable in the target.")
    bytes_copied: int | None = Field(description="Of the table's heap, by the initial copy.")
    bytes_total: int | None
    reason: str | None = Field(description="Why it is in quarantine, or is not copied yet.")
    sync_state: str | None = Field(
        description="Of a PostgreSQL, as in pg_subscription_rel: i (init), d (data is copied), f "
        "(copied), s (synchronized), r (ready)."
    )
    written_alone: str | None = Field(
        description="Of a PostgreSQL: why the table's changes are written one by one; null when "
        "they are not, or nothing is known yet."
    )
    rows: int | None = Field(
        description="Of a lake: rows of the current table, as it was at figures_at; of a table "
        "without a key, different ones; with soft deletes, those that are gone, too. Null, as what "
        "follows: not known, or no lake."
    )
    files: int | None = Field(description="Data files of that table.")
    bytes: int | None = Field(description="Bytes of those files, and of what marks rows in them.")
    deleted_rows: int | None = Field(
        description="Rows in those files that are marked as gone (merge by position); not in rows."
    )
    deleted_share: float | None = Field(
        description="deleted_rows among all rows of the files, 0 to 1."
    )
    bytes_rewritten: int | None = Field(
        description="Bytes of the current table's files that merging and compaction have replaced "
        "since the subscription was created, as far as its programs saw."
    )
    figures_at: datetime | None = Field(description="When the job looked at the table last.")
    newest_change_at: datetime | None = Field(
        description="Of a lake: when the newest change that it has of the table was committed."
    )
    waiting_since: datetime | None = Field(
        description="Of a lake: when the oldest change was committed that the table's history has "
        "and its current table has not; null: there is none, or no lake."
    )
    resync: TableResyncView | None = Field(
        description="Of a lake: the last wish to load the table anew; null: there was none."
    )
    changes_per_second: float | None = Field(
        description="Over the last seconds; null while no program runs, or it has just begun."
    )
    bytes_per_second: float | None = Field(description="Of the initial copy; null as above.")
    seconds_left: float | None = Field(
        description="Of the initial copy, about: at that rate, and by the size of the heap."
    )


class LastBatchView(ResponseModel):
    """The last batch of a lake that brought changes."""

    ended_at: datetime = Field(description="When it was durable.")
    seconds: float = Field(description="How long it took until then.")
    changes: int
    tables: int = Field(description="Of how many tables they are.")
    from_lsn: LsnText = Field(description="Its changes committed from here on …")
    to_lsn: LsnText = Field(description="… and before here.")


class VerifiedTableView(ResponseModel):
    """What a comparison found of one table."""

    table: str = Field(description="schema.table")
    equal: bool
    source_rows: int
    target_rows: int
    differences: int = Field(description="Keys that were found to differ.")
    more: bool = Field(description="There are others, which were not looked for.")
    skipped: str = Field(description="Why it was not compared; empty: it was.")


class VerificationView(ResponseModel):
    """The last comparison of the target with the source, as of one LSN."""

    state: VerificationState = Field(
        description="running; equal; different; failed: it came to no result."
    )
    began_at: datetime
    ended_at: datetime | None
    lsn: LsnText | None = Field(description="Both sides had everything before it.")
    tables: list[VerifiedTableView]
    error: FailureView | None = Field(description="Why it failed.")


class VerifyTables(RequestModel):
    """What is to be compared."""

    tables: TableNames | None = None


class SubscriptionView(ResponseModel):
    """A subscription: as it was declared, then how it is."""

    name: str
    source: str
    database: str
    slot: str
    tables: list[str] | None
    publications: list[str] | None
    target: dict[str, Any] = Field(description="As it was given, with what is as ever filled in.")
    enabled: bool
    copy_data: bool
    origin: str
    streaming: str
    two_phase: bool
    options: Options
    state: SubscriptionState = Field(
        description="initializing; copying: it follows the slot while tables are copied; "
        "streaming; paused: disabled; failed: with the error, and tried again after a while."
    )
    error: FailureView | None
    confirmed_flush_lsn: LsnText | None
    lag_bytes: int | None = Field(description="WAL that is decoded and not confirmed.")
    lag_seconds: float | None = Field(
        description="Age of the oldest transaction that is not confirmed; 0 without one."
    )
    rows: int = Field(
        description="Changes that are durable in the target; rows of the initial copy are not "
        "counted."
    )
    restarts: int = Field(description="How often its program failed and was started again.")
    pid: int | None = Field(description="Of its program, while it runs.")
    table_states: list[TableStateView]
    created_at: datetime
    stats: dict[str, Any] = Field(
        description="What its program has beside that. Of a PostgreSQL, by the names of "
        "pg_stat_subscription and pg_stat_subscription_stats: received_lsn, latest_end_lsn, "
        "last_msg_send_time, last_msg_receipt_time, apply_error_count, sync_error_count, confl_… "
        "for each kind of conflict; and applied_lsn (written to the target) and flushed_lsn "
        "(durable there). What has not happened yet is not there. The same with types: "
        "/v1/subscriptions/{name}/stats."
    )
    last_batch: LastBatchView | None = Field(
        description="Of a lake; null: there was none with changes yet."
    )
    verification: VerificationView | None = Field(
        description="Of a lake: the last comparison with the source; null: there was none."
    )
    told_at: datetime | None = Field(
        description="When its program last told of itself: last_batch, table_states and stats are "
        "of then."
    )
    notes: list[str] = Field(
        description="In the answer to its creation: what is good to know of the target and in "
        "nobody's way, such as triggers that fire there, or replication origins that its role may "
        "not use. Empty in every other answer."
    )


class DroppedSubscription(ResponseModel):
    """A subscription that is gone."""

    name: str
    notes: list[str] = Field(
        description="What could not be removed from its target, which does not answer for one, and "
        "the SQL that removes it there. Empty as a rule."
    )


class TableConflictsView(ResponseModel):
    """How many conflicts of a kind a table had."""

    table: str = Field(
        description="schema.table on the target; '' for those beyond the first 1,000 tables."
    )
    kind: str
    count: int


class StatsView(ResponseModel):
    """pg_stat_subscription and pg_stat_subscription_stats of one subscription, and more."""

    subname: str
    pid: int | None
    received_lsn: str | None = Field(description="Up to where it has received.")
    last_msg_send_time: datetime | None
    last_msg_receipt_time: datetime | None
    latest_end_lsn: str | None = Field(description="Of the service, as it told last.")
    latest_end_time: datetime | None
    applied_lsn: str | None = Field(description="Up to where it is written on the target.")
    flushed_lsn: str | None = Field(description="Up to where that is durable there.")
    lag_bytes: int | None
    lag_seconds: float | None
    apply_error_count: int
    sync_error_count: int
    confl_insert_exists: int
    confl_update_origin_differs: int
    confl_update_exists: int
    confl_update_deleted: int
    confl_update_missing: int
    confl_delete_origin_differs: int
    confl_delete_missing: int
    confl_multiple_unique_conflicts: int
    conflicts_dropped: int = Field(description="Counted, and kept no more: they were the oldest.")
    conflicts_missed: int = Field(
        description="In no count: the program wrote more than its log has room for before the "
        "service could read it."
    )
    table_conflicts: list[TableConflictsView]
    tables: list[TableStateView]
    changes_per_second: float | None = Field(description="Of all tables together.")
    told_at: datetime | None = Field(
        description="When its program last told of itself: all but lag and conflicts is of then; "
        "null: never, or it is of a kind that tells nothing."
    )


class SubscriptionList(ResponseModel):
    """All subscriptions."""

    subscriptions: list[SubscriptionView]


class LogView(ResponseModel):
    """The end of what a subscription's programs printed."""

    name: str
    lines: list[str] = Field(description="The oldest first.")


class ConflictView(ResponseModel):
    """A conflict that was met when a change was applied, and what became of it."""

    id: str = Field(description="Of the conflict, also when its transaction is tried again.")
    kind: str = Field(description="PostgreSQL's name: insert_exists, update_missing, …")
    resolution: str = Field(description="error, apply_remote, keep_local, …: what was done.")
    why: str = Field(description="Why that is another one than was wished; '' if it is not.")
    schema_: str = Field(alias="schema", description="Of the target's table.")
    table: str
    local: list[dict[str, Any]] = Field(description="The rows that were met on the target.")
    remote: dict[str, Any] | None = Field(description="The source's new row.")
    identity: dict[str, Any] | None = Field(description="By what the row was looked for.")
    origin: str = Field(description="Of the change, as the source says; '' if it was made there.")
    committed_at: str = Field(description="On the source.")
    lsn: str = Field(description="Of the commit on the source.")
    xid: int = Field(description="Of the transaction on the source.")
    number: int = Field(description="Of the change in its transaction, from 1.")
    detail: str = Field(description="As PostgreSQL's log would have it.")


class ConflictList(ResponseModel):
    """The last conflicts of a subscription."""

    name: str
    conflicts: list[ConflictView] = Field(description="The newest first.")
    kept: int = Field(description="How many the service keeps of it.")
    dropped: int = Field(description="How many it met and keeps no more: the oldest.")
    missed: int = Field(
        description="How many its program wrote and overwrote before the service could read them."
    )
