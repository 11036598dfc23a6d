"""How a table is published: what get_rel_sync_entry finds out, for every publication of the database.

In comes one table's pg_class row with its partition ancestors, out one
:class:`~spillway.catalog.descriptor.PublicationDescriptor` for each publication that publishes it. A slot asks for
some of them only, and what several of them make together depends on which: that is the output plugin's to
combine.

pgoutput reads the publication catalogs with the historic snapshot of the change that it is about to send. So does
this: with the mirror as of the change's record, in the view of the transaction that wrote it. ALTER PUBLICATION takes
no lock that keeps rows from being written, and need not: it counts from its commit on, for transactions in progress too.

Source: get_rel_sync_entry, pgoutput_row_filter_init, pgoutput_column_list_init,
src/backend/replication/pgoutput/pgoutput.c; GetTopMostAncestorInPublication, is_publishable_class,
src/backend/catalog/pg_publication.c; get_partition_ancestors, src/backend/catalog/partition.c
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from spillway.catalog import layout as cat
from spillway.catalog.descriptor import FIRST_NORMAL_OID, PublicationDescriptor
from spillway.catalog.toast_value import ToastPointer, text_of_chunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spillway.catalog.layout import PgClass, PgPublication, PgPublicationRel, TrackedCatalog
    from spillway.catalog.mirror import CatalogMirror
    from spillway.errors import DecodingError


class RowReader(Protocol):
    """What is asked for rows: it notes each look-up as a dependency of what is being built."""

    @property
    def mirror(self) -> CatalogMirror: ...

    def rows(self, catalog: TrackedCatalog, index: int, key: Any) -> list[Any]:
        """List the visible rows with *key*."""
        ...

    def error(self, message: str, hint: str, **details: object) -> DecodingError:
        """Make the error for a catalog that can't be understood."""
        ...


def ancestors_of(reader: RowReader, row: PgClass) -> list[PgClass]:
    """List the partitioned tables above a partition, its parent first, the root last."""
    ancestors: list[PgClass] = []
    relation = row
    while relation.relispartition:
        links = reader.rows(cat.PG_INHERITS, cat.INHERITS_BY_CHILD, relation.oid)
        # A partition that is being detached concurrently is none any more.
        if len(links) != 1 or links[0].inhdetachpending:
            break
        parents = reader.rows(cat.PG_CLASS, cat.CLASS_BY_OID, links[0].inhparent)
        if not parents:
            break
        relation = parents[0]
        ancestors.append(relation)
    return ancestors


def all_publications(reader: RowReader) -> list[PgPublication]:
    """List every publication of the database, by name."""
    found: list[PgPublication] = []
    for all_tables in (True, False):
        found += reader.rows(cat.PG_PUBLICATION, cat.PUBLICATION_BY_ALL_TABLES, all_tables)
    return sorted(found, key=_name)


def publications_of(
    reader: RowReader,
    row: PgClass,
    ancestors: Sequence[PgClass],
    publications: Sequence[PgPublication],
) -> tuple[PublicationDescriptor, ...]:
    """Say how each of *publications* publishes a table; those that don't are left out.

    Raises:
        DecodingError: a row filter is stored out of line and not known.
    """
    if row.relkind not in "rp" or row.relpersistence != "p" or row.oid < FIRST_NORMAL_OID:
        return ()
    members = [(relation, _members(reader, relation)) for relation in (row, *ancestors)]
    described = []
    for publication in publications:
        top: PgClass | None = None
        if publication.puballtables:
            top = members[-1][0]
        else:
            for relation, (tables, schemas) in members:
                if publication.oid in tables or publication.oid in schemas:
                    top = relation
        if top is None:
            continue
        # Changes of partitions are sent, or of the root; never of a partitioned table as such.
        if row.relkind == "p" and not publication.pubviaroot:
            continue
        publish_as = top if publication.pubviaroot else row
        tables, schemas = next(m for relation, m in members if relation is publish_as)
        member = tables.get(publication.oid)
        described.append(
            PublicationDescriptor(
                name=publication.pubname,
                insert=publication.pubinsert,
                update=publication.pubupdate,
                delete=publication.pubdelete,
                truncate=publication.pubtruncate,
                via_root=publication.pubviaroot,
                publish_as=publish_as.oid,
                columns=None if member is None else member.prattrs,
                # The whole schema is published, filter or not.
                row_filter=None
                if member is None or publication.oid in schemas
                else _row_filter(reader, member),
                generated_columns=publication.pubgencols,
            )
        )
    return tuple(described)


def _members(
    reader: RowReader, relation: PgClass
) -> tuple[dict[int, PgPublicationRel], frozenset[int]]:
    """The publications that name a table, with the rows that do, and those that name its schema."""
    rows = reader.rows(cat.PG_PUBLICATION_REL, cat.PUBLICATION_REL_BY_RELATION, relation.oid)
    schemas = []
    if cat.PG_PUBLICATION_NAMESPACE.oid in reader.mirror.layouts:
        schemas = reader.rows(
            cat.PG_PUBLICATION_NAMESPACE,
            cat.PUBLICATION_NAMESPACE_BY_SCHEMA,
            relation.relnamespace,
        )
    return {row.prpubid: row for row in rows}, frozenset(row.pnpubid for row in schemas)


def _row_filter(reader: RowReader, member: PgPublicationRel) -> str | None:
    if not isinstance(member.prqual, ToastPointer):
        return member.prqual
    pointer = member.prqual
    chunks = reader.rows(cat.PG_PUBLICATION_REL_TOAST, cat.TOAST_BY_VALUE, pointer.value_id)
    facts = reader.mirror.facts
    text = text_of_chunks(pointer, chunks, facts.encoding, facts.encoding_errors)
    if text is None:
        text = reader.mirror.known_values.get(pointer.value_id)
    if text is None:
        raise reader.error(
            f"the row filter of relation {member.prrelid} in publication {member.prpubid} is stored out of line"
            f" as value {pointer.value_id}, of which not all chunks are known",
            "Bootstrap this database's catalog again.",
            relation="pg_publication_rel",
        )
    return text


def _name(publication: PgPublication) -> str:
    return publication.pubname
