"""How a table is published: what get_rel_sync_entry reads, for every publication of the database.

In comes one table's pg_class row with its partition ancestors, out the publications that name any
of them or their schemas, and every publication's options.
:func:`~spillway.catalog.descriptor.published` puts them together. A slot asks for some publications
only, and what several of them make together depends on which: that is the output plugin's to
combine.

pgoutput reads the publication catalogs with the historic snapshot of the change that it is about to
send. So does this: with the mirror as of the change's record, in the view of the transaction that
wrote it. ALTER PUBLICATION takes no lock that keeps rows from being written, and need not: it
counts from its commit on, for transactions in progress too. What pgoutput has read it keeps for a
while, also for a transaction with an older snapshot; that is the plugin's, too.

Source: get_rel_sync_entry, pgoutput_row_filter_init, pgoutput_column_list_init,
src/backend/replication/pgoutput/pgoutput.c; GetTopMostAncestorInPublication, is_publishable_class,
src/backend/catalog/pg_publication.c; get_partition_ancestors, src/backend/catalog/partition.c
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spillway.catalog import layout as cat
from spillway.catalog.descriptor import (
    FIRST_NORMAL_OID,
    Memberships,
    PublicationOptions,
    TableMembership,
)
from spillway.catalog.toast_value import ToastPointer, text_of_chunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spillway.catalog.layout import PgClass, PgPublication, PgPublicationRel
    from spillway.catalog.visible_rows import VisibleRows


def ancestors_of(rows: VisibleRows, row: PgClass) -> list[PgClass]:
    """List the partitioned tables above a partition, its parent first, the root last."""
    ancestors: list[PgClass] = []
    relation = row
    while relation.relispartition:
        links = rows.rows(cat.PG_INHERITS, cat.INHERITS_BY_CHILD, relation.oid)
        # A partition that is being detached concurrently is none any more.
        if len(links) != 1 or links[0].inhdetachpending:
            break
        parents = rows.rows(cat.PG_CLASS, cat.CLASS_BY_OID, links[0].inhparent)
        if not parents:
            break
        relation = parents[0]
        ancestors.append(relation)
    return ancestors


def all_publications(rows: VisibleRows) -> tuple[PublicationOptions, ...]:
    """List every publication of the database, by name."""
    found: list[PgPublication] = []
    for all_tables in (True, False):
        found += rows.rows(cat.PG_PUBLICATION, cat.PUBLICATION_BY_ALL_TABLES, all_tables)
    return tuple(
        PublicationOptions(
            p.oid, p.pubname, p.puballtables, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate,
            p.pubviaroot,
            p.pubgencols,
        )
        for p in sorted(found, key=_name)
    )  # fmt: skip


def memberships_of(
    rows: VisibleRows, row: PgClass, ancestors: Sequence[PgClass]
) -> tuple[Memberships, ...]:
    """Say which publications name a table and its ancestors; () for a table that none may publish.

    Raises:
        DecodingError: a row filter is stored out of line and not known.
    """
    if row.relkind not in "rp" or row.relpersistence != "p" or row.oid < FIRST_NORMAL_OID:
        return ()
    return tuple(_memberships(rows, relation) for relation in (row, *ancestors))


def _memberships(rows: VisibleRows, relation: PgClass) -> Memberships:
    members = rows.rows(cat.PG_PUBLICATION_REL, cat.PUBLICATION_REL_BY_RELATION, relation.oid)
    schemas = []
    if cat.PG_PUBLICATION_NAMESPACE.oid in rows.heaps.layouts:
        schemas = rows.rows(
            cat.PG_PUBLICATION_NAMESPACE,
            cat.PUBLICATION_NAMESPACE_BY_SCHEMA,
            relation.relnamespace,
        )
    return Memberships(
        relation.oid,
        relation.relnamespace,
        tuple(
            TableMembership(row.prpubid, row.prattrs, _row_filter(rows, row))
            for row in sorted(members, key=_publication_oid)
        ),
        frozenset(row.pnpubid for row in schemas),
    )


def _row_filter(rows: VisibleRows, member: PgPublicationRel) -> str | None:
    if not isinstance(member.prqual, ToastPointer):
        return member.prqual
    pointer = member.prqual
    chunks = rows.rows(cat.PG_PUBLICATION_REL_TOAST, cat.TOAST_BY_VALUE, pointer.value_id)
    facts = rows.heaps.facts
    text = text_of_chunks(pointer, chunks, facts.encoding, facts.encoding_errors)
    if text is None:
        text = rows.heaps.known_values.get(pointer.value_id)
    if text is None:
        raise rows.error(
            f"the row filter of relation {member.prrelid} in publication {member.prpubid} is "
            f"stored out of line as value {pointer.value_id}, of which not all chunks are known",
            "Bootstrap this database's catalog again.",
            relation="pg_publication_rel",
        )
    return text


def _name(publication: PgPublication) -> str:
    return publication.pubname


def _publication_oid(row: PgPublicationRel) -> int:
    return row.prpubid
