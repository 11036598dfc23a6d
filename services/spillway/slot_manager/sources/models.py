"""Sources on the wire."""

from datetime import datetime

from pydantic import Field

from spillway.slot_manager.wire import LsnText, RequestModel, ResponseModel


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


class SessionView(ResponseModel):
    """A decoding session: one database of the source."""

    database: str
    datoid: int
    snapshot_state: str = Field(
        description="start, building_snapshot, full_snapshot, consistent, or failed"
    )
    decoded_lsn: LsnText | None
    restart_lsn: LsnText | None
    error: str | None
    error_code: str | None


class SourceView(ResponseModel):
    """A source, without its password."""

    name: str
    dsn: str
    system_id: str
    server_version_num: int
    timeline: int
    wal_segment_size: int = Field(description="bytes")
    slot_name: str = Field(description="The physical slot on the primary.")
    state: str = Field(description="connecting, streaming or failed")
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
