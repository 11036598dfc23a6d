"""``/v1/sources``."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from spillway.slot_manager.dependencies import Engine, NoQuery, Subscriptions
from spillway.slot_manager.sources.models import (
    AlterSource,
    CreateSource,
    SourceList,
    SourceView,
)

router = APIRouter(prefix="/sources", tags=["sources"])


class DropQuery(BaseModel):
    """How a source is dropped."""

    model_config = ConfigDict(extra="forbid")

    keep_slot: bool = Field(
        default=False,
        description="Leave its physical slot, and don't ask the server: for one that is gone for "
        "good.",
    )


@router.post("", status_code=201, operation_id="create_source", dependencies=[NoQuery])
async def create_source(body: CreateSource, engine: Engine, response: Response) -> SourceView:
    """Check a PostgreSQL cluster and begin to receive its WAL.

    What the cluster lacks (wal_level, privileges, version) is said with the SQL that mends it.
    """
    source = await engine.create_source(body.name, body.dsn, body.capture.model_dump())
    response.headers["Location"] = f"/v1/sources/{source.name}"
    return SourceView.model_validate(source)


@router.get("", operation_id="list_sources", dependencies=[NoQuery])
async def list_sources(engine: Engine) -> SourceList:
    """List the sources."""
    sources = await engine.list_sources()
    return SourceList(sources=[SourceView.model_validate(source) for source in sources])


@router.get("/{name}", operation_id="get_source", dependencies=[NoQuery])
async def get_source(name: str, engine: Engine) -> SourceView:
    """Show a source."""
    return SourceView.model_validate(await engine.get_source(name))


@router.patch("/{name}", operation_id="alter_source", dependencies=[NoQuery])
async def alter_source(name: str, body: AlterSource, engine: Engine) -> SourceView:
    """Reach a source's cluster by another DSN: a new password, another host after a failover.

    The cluster is checked as a new source's is, and must be the same one. Slots and their consumers
    go on.
    """
    return SourceView.model_validate(await engine.alter_source(name, body.dsn))


@router.post(
    "/{name}/databases/{database}/restart",
    operation_id="restart_database",
    dependencies=[NoQuery],
)
async def restart_database(name: str, database: str, engine: Engine) -> SourceView:
    """Give the decoding of one database a way on from what has stopped it.

    It is tried again at once. Where that can't help (WAL that is damaged or gone, a record that
    can't be decoded, a database that was dropped and made again), decoding begins anew behind that
    place. Slots that missed something are invalidated then, with their `invalidation_reason`; slots
    that missed nothing go on. A disk that is full, or a server that can't be reached, costs
    nothing. A database whose decoding goes on is left alone: 409.
    """
    return SourceView.model_validate(await engine.restart_database(name, database))


@router.delete("/{name}", status_code=204, operation_id="drop_source")
async def drop_source(
    name: str,
    query: Annotated[DropQuery, Query()],
    engine: Engine,
    subscriptions: Subscriptions,
) -> None:
    """Stop receiving from a source and forget it; its subscriptions and slots must be gone.

    Its physical slot is dropped first, since while it exists the server keeps WAL for it.
    """
    await subscriptions.check_unused(name)
    await engine.drop_source(name, keep_slot=query.keep_slot)
