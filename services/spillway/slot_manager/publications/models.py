"""Publications and tables on the wire, as of where decoding is."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from spillway.service.inventory import TABLES_MAX
from spillway.service.model import PublicationInfo
from spillway.slot_manager.json_fields import ResponseModel


class PublicationsQuery(BaseModel):
    """Whose publications."""

    model_config = ConfigDict(extra="forbid")

    source: str
    database: str


class TablesQuery(BaseModel):
    """Of which database, and which part of them."""

    model_config = ConfigDict(extra="forbid")

    database: str
    limit: int = Field(
        default=TABLES_MAX, ge=1, le=TABLES_MAX, description="At most so many tables."
    )
    after: int = Field(
        default=0, ge=0, le=0xFFFFFFFF, description="`next` of the page before; 0: the first page."
    )


class Publish(ResponseModel):
    """Which operations are published."""

    insert: bool
    update: bool
    delete: bool
    truncate: bool


class PublishedTableView(ResponseModel):
    """A table as pg_publication_tables has it."""

    model_config = ConfigDict(from_attributes=True, populate_by_name=True)

    # "schema" is a method of pydantic's models.
    schema_name: str = Field(serialization_alias="schema", validation_alias="schema")
    name: str
    columns: list[str] | None = Field(description="null: all")
    row_filter: str | None = Field(
        description="The filter's expression; null without one, or when it can't be shown as text."
    )
    has_row_filter: bool


class PublicationView(ResponseModel):
    """A publication (pg_publication)."""

    name: str
    all_tables: bool
    publish: Publish
    via_root: bool = Field(description="publish_via_partition_root")
    tables: list[PublishedTableView] = Field(
        description="Those of schemas, or of the whole database, included."
    )
    schemas: list[str] = Field(description="Those that are published whole.")

    @classmethod
    def of(cls, publication: PublicationInfo) -> Self:
        """Make it of the engine's."""
        return cls(
            name=publication.name,
            all_tables=publication.all_tables,
            publish=Publish.model_validate(publication),
            via_root=publication.via_root,
            tables=[PublishedTableView.model_validate(table) for table in publication.tables],
            schemas=list(publication.schemas),
        )


class PublicationList(ResponseModel):
    """All publications of a database."""

    publications: list[PublicationView]


class ColumnView(ResponseModel):
    """A column."""

    name: str
    type: str = Field(description="As format_type shows it.")
    not_null: bool
    generated: bool
    as_text: bool = Field(
        description="Whether a lake has it as text, as PostgreSQL prints it, for want of a type."
    )


class TableView(ResponseModel):
    """A table that slots have changes of."""

    model_config = ConfigDict(from_attributes=True, populate_by_name=True)

    schema_name: str = Field(serialization_alias="schema", validation_alias="schema")
    name: str
    kind: str = Field(description="table or partitioned table")
    partition_of: list[str] = Field(description="Its parent first, the root last.")
    replica_identity: str = Field(description="default, index, full or nothing")
    primary_key: list[str]
    identity_columns: list[str] = Field(description="Of the replica identity.")
    columns: list[ColumnView]
    publications: list[str] = Field(description="Those that publish it.")
    captured: bool = Field(description="Whether the source's capture filter lets it through.")
    warnings: list[str] = Field(description="What stands in a consumer's way, and what mends it.")


class TableList(ResponseModel):
    """Tables of a database: a page, by schema and name. Pages come in the order in which tables
    were made (oid).
    """

    tables: list[TableView]
    next: int | None = Field(description="`after` of the next page; null: there is none.")
