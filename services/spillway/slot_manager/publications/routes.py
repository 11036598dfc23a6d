"""``/v1/publications`` and ``/v1/sources/{name}/tables``: what a form can offer, without a word of
the source.
"""

from typing import Annotated

from fastapi import APIRouter, Query

from spillway.slot_manager.dependencies import Engine
from spillway.slot_manager.publications.models import (
    PublicationList,
    PublicationsQuery,
    PublicationView,
    TableList,
    TablesQuery,
    TableView,
)

router = APIRouter()


@router.get("/publications", operation_id="list_publications", tags=["publications"])
async def list_publications(
    query: Annotated[PublicationsQuery, Query()], engine: Engine
) -> PublicationList:
    """List a database's publications, from the mirrored catalog: as of where decoding is."""
    found = await engine.list_publications(query.source, query.database)
    return PublicationList(publications=[PublicationView.of(p) for p in found])


@router.get("/sources/{name}/tables", operation_id="list_tables", tags=["sources"])
async def list_tables(
    name: str, query: Annotated[TablesQuery, Query()], engine: Engine
) -> TableList:
    """List a database's tables, with what stands in a consumer's way: as of where decoding is.

    With more than `limit` of them `next` says where to go on.
    """
    page = await engine.list_tables(name, query.database, query.after, query.limit)
    return TableList(
        tables=[TableView.model_validate(table) for table in page.tables], next=page.following
    )
