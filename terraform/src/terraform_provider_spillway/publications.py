"""``spillway_publications`` and ``spillway_tables``: what a database has, from the service's
mirrored catalog, as of where decoding is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tf.types import Bool, List, String

from terraform_provider_spillway import checks
from terraform_provider_spillway.resource import ServiceData, State
from terraform_provider_spillway.schema import Field, NestedField

if TYPE_CHECKING:
    from tf.iface import ReadDataContext

_PLACES: Final = {"unknown_source": "source", "unknown_database": "database"}
_WHERE: Final = (
    Field("source", String(), "The source's name.", required=True, checks=[checks.source_name]),
    Field("database", String(), "The database.", required=True, checks=[checks.not_empty]),
)


def _told(name: str, type_: Any, description: str) -> Field:
    return Field(name, type_, description, computed=True)


class PublicationsData(ServiceData):
    """A database's publications."""

    name = "publications"
    description = (
        "A database's publications, with what they publish, from the service's mirrored catalog: "
        "the source is not asked."
    )
    places = _PLACES
    fields = (
        *_WHERE,
        NestedField(
            "publications",
            (
                _told("name", String(), "Its name."),
                _told("all_tables", Bool(), "Whether it is FOR ALL TABLES."),
                NestedField(
                    "publish",
                    tuple(
                        _told(operation, Bool(), f"Whether {operation.upper()} is.")
                        for operation in ("insert", "update", "delete", "truncate")
                    ),
                    "Which operations are published.",
                    computed=True,
                ),
                _told("via_root", Bool(), "publish_via_partition_root"),
                _told("schemas", List(String()), "Those that are published whole."),
                NestedField(
                    "tables",
                    (
                        _told("schema", String(), "Its schema."),
                        _told("name", String(), "Its name."),
                        _told("columns", List(String()), "The columns; null: all."),
                        _told("row_filter", String(), "The filter, where it can be shown as text."),
                        _told("has_row_filter", Bool(), "Whether there is one."),
                    ),
                    "The tables, those of schemas or of the whole database included.",
                    nesting="list",
                    computed=True,
                ),
            ),
            "All of them, by name.",
            nesting="list",
            computed=True,
        ),
    )

    def read(self, ctx: ReadDataContext, config: State) -> State:
        view = self.service.get(
            "publications", source=config["source"], database=config["database"]
        )
        return {**config, "publications": view["publications"]}


class TablesData(ServiceData):
    """A database's tables."""

    name = "tables"
    description = (
        "A database's tables, with what stands in a consumer's way, from the service's mirrored "
        "catalog: the source is not asked."
    )
    places = _PLACES
    fields = (
        *_WHERE,
        NestedField(
            "tables",
            (
                _told("schema", String(), "Its schema."),
                _told("name", String(), "Its name."),
                _told("kind", String(), "`table` or `partitioned table`."),
                _told("replica_identity", String(), "`default`, `index`, `full` or `nothing`."),
                _told("primary_key", List(String()), "Its columns."),
                _told("publications", List(String()), "Those that publish it."),
                _told("captured", Bool(), "Whether the source's capture filter lets it through."),
                _told("warnings", List(String()), "What stands in a consumer's way."),
            ),
            "All of them.",
            nesting="list",
            computed=True,
        ),
    )

    def read(self, ctx: ReadDataContext, config: State) -> State:
        view = self.service.get("sources", config["source"], "tables", database=config["database"])
        names = [field.name for field in self.fields[-1].fields]
        tables = [{name: table[name] for name in names} for table in view["tables"]]
        return {**config, "tables": tables}
