"""Sources on the wire."""

from datetime import datetime
from typing import Literal

from pydantic import ConfigDict, Field

from spillway.slot_manager.json_fields import LsnText, RequestModel, ResponseModel


class Capture(RequestModel):
    """What of a source is decoded at all, for every slot there will ever be; everything by
    default.
    """

    model_config = ConfigDict(extra="forbid", strict=True, from_attributes=True)

    origin: Literal["any", "none"] = Field(
        default="any",
        description="none: not what came in through a replication origin.",
    )
    tables: list[str] = Field(
        default_factory=list,
        description="Only these: schema.table or schema.*; a partition by its ancestors' names, "
        "too.",
        examples=[["public.orders", "shop.*"]],
    )
    publications: list[str] = Field(
        default_factory=list,
        description="Only tables that one of these publishes, as of each change. Not together with "
        "tables.",
        examples=[["p"]],
    )


class CreateSource(RequestModel):
    """A cluster to follow."""

    name: str = Field(
        description="Lower-case letters, digits and underscores.", examples=["shop"], max_length=63
    )
    dsn: str = Field(
        description="A libpq connection string or URI of a role with REPLICATION.",
        examples=["host=db.example user=spillway dbname=shop"],
        max_length=8192,
    )
    capture: Capture = Field(
        default_factory=Capture, description="What to decode at all; it can't be changed later."
    )


class AlterSource(RequestModel):
    """What of a source can change: the way to its cluster."""

    dsn: str = Field(
        description="A libpq connection string or URI that leads to the same cluster.",
        examples=["host=standby.example user=spillway dbname=shop"],
        max_length=8192,
    )


class SessionView(ResponseModel):
    """A decoding session: one database of the source."""

    database: str
    datoid: int
    snapshot_state: str = Field(
        description="start, building_snapshot, full_snapshot, consistent, or failed"
    )
    decoded_lsn: LsnText | None
    restart_lsn: LsnText | None
    state: str = Field(
        description="running; starting: not yet where it was before the service started; stopped"
    )
    since: datetime | None = Field(description="Since when it is in that state.")
    error: str | None
    error_code: str | None
    hint: str | None
    log_damaged: bool = Field(
        description="Its transaction log has a hole, which is being decoded again from WAL."
    )


class SourceView(ResponseModel):
    """A source, without its password."""

    name: str
    dsn: str
    system_id: str
    server_version_num: int
    timeline: int
    wal_segment_size: int = Field(description="bytes")
    slot_name: str = Field(description="The physical slot on the primary.")
    capture: Capture = Field(description="What is decoded at all.")
    state: str = Field(description="connecting, streaming, waiting, failed or stopped")
    since: datetime | None = Field(description="Since when it streams, or does not.")
    heard_at: datetime | None = Field(
        description="When the server was last heard; null: not since the service started."
    )
    received_lsn: LsnText | None
    flushed_lsn: LsnText | None
    sessions: list[SessionView]
    created_at: datetime
    error: str | None
    error_code: str | None
    hint: str | None


class SourceList(ResponseModel):
    """All sources."""

    sources: list[SourceView]
