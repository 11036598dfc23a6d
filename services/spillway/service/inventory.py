"""What a database has, from the mirrored catalog: its tables and publications, without a word of
the source.

The mirror belongs to the decoding thread (``session.py``), so the questions are asked there,
between two batches of records, :data:`TABLES_PER_QUESTION` at a time, so that decoding waits for a
few milliseconds and not for a catalog of thousands of tables. Tables come in the order of their
oids, which the mirror has sorted, and a page begins behind an oid: it costs what it gives, wherever
it is. What changes between two questions is seen or not; a table that is dropped meanwhile is left
out. The answer is as of where decoding is, which may be behind the source.

Publications are shown as pg_publication_tables has them: a table under its own name, or under the
partitioned one's that it is published as. Row filters are node trees in the catalog; they are shown
as text where that can be had (``row_filter_text``), and it is said that there is one. What a name
has that is no character is shown byte by byte (``pg.encoding.readable``).

Memory: what is shown, of at most :data:`TABLES_MAX` tables; descriptors of one question's. They are
not made with the mirror's cache, which would keep those of all tables after the first look.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.catalog import layout as cat
from spillway.catalog.descriptor import FIRST_NORMAL_OID
from spillway.catalog.resolution import Resolver
from spillway.catalog.resolution_cache import ResolutionCache
from spillway.errors import NotReady
from spillway.pg.encoding import readable
from spillway.plugins.type_names import format_type_with_typmod
from spillway.service.model import (
    ColumnInfo,
    PublicationInfo,
    PublishedTable,
    TableInfo,
    TablePage,
)
from spillway.service.row_filter_text import row_filter_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from spillway.catalog.descriptor import PublicationDescriptor, RelationDescriptor
    from spillway.catalog.layout import PgClass, PgPublication
    from spillway.catalog.mirror import CatalogMirror
    from spillway.decoding.capture import CaptureFilter
    from spillway.service.sources import Sources
    from spillway.sessions.session import Session

TABLES_PER_QUESTION: Final = 100
#: Tables of one page; more than a form can offer.
TABLES_MAX: Final = 10_000


async def list_tables(
    sources: Sources, source: str, database: str, after: int, limit: int
) -> TablePage:
    """List *limit* tables that could be subscribed to, at most :data:`TABLES_MAX`: those whose oids
    are larger than *after*.

    Raises:
        UnknownSource: there is none of that name.
        NotReady: nothing of the database is decoded yet, or decoding has stopped.
    """
    known = sources.get(source)
    session = decoded(sources, source, database)
    found: list[TableInfo] = []
    limit = min(limit, TABLES_MAX)
    following: int | None = after
    while following is not None and len(found) < limit:
        count = min(TABLES_PER_QUESTION, limit - len(found))
        described, following = await session.ask(partial(describe, after=following, count=count))
        found += table_infos(described, known.capture, known.row.server_version_num)
    found.sort(key=lambda table: (table.schema, table.name))
    return TablePage(found, following)


async def list_publications(sources: Sources, source: str, database: str) -> list[PublicationInfo]:
    """List the publications with their tables, all of them; raises as :func:`list_tables`."""
    session = decoded(sources, source, database)
    shown = PublicationsShown(*await session.ask(publications))
    following: int | None = 0
    while following is not None:
        described, following = await session.ask(
            partial(describe, after=following, count=TABLES_PER_QUESTION)
        )
        shown.add(described)
    return shown.infos()


async def publication_names(sources: Sources, source: str, database: str) -> frozenset[str]:
    """Give the names of the publications; raises as :func:`list_tables`."""
    session = decoded(sources, source, database)
    found = await session.ask(lambda mirror: mirror.visible_rows().whole(cat.PG_PUBLICATION))
    return frozenset(readable(row.pubname) for row in found)


def decoded(sources: Sources, source: str, database: str) -> Session:
    """Return the session of *database*, which is not begun for this."""
    sources.get(source)
    session = sources.find_session(source, database)
    if session is None:
        raise NotReady(
            f'database "{database}" of source "{source}" is not decoded yet, so its catalog is not '
            "known here",
            hint="Create a slot or a subscription on it first; that begins to decode it.",
            source=source,
            database=database,
        )
    return session


# Asked on the decoding thread.


def table_oids(mirror: CatalogMirror, after: int) -> Iterator[int]:
    """Yield the oids of the tables that could be published, in order, from behind *after* on."""
    storage = mirror.heaps.locations.current[cat.PG_CLASS.oid]
    rows = mirror.visible_rows()
    for oid in storage.keys_after(cat.CLASS_BY_OID, max(after, FIRST_NORMAL_OID - 1)):
        for tup in rows.tuples(cat.PG_CLASS, cat.CLASS_BY_OID, oid):
            row: PgClass = tup.row
            if row.relkind in "rp" and row.relpersistence == "p" and not row.relrewrite:
                yield oid


class Described(NamedTuple):
    """A table, and the texts of the row filters that it is published with, by publication."""

    table: RelationDescriptor
    row_filters: Mapping[str, str]


def describe(mirror: CatalogMirror, after: int, count: int) -> tuple[list[Described], int | None]:
    """Describe *count* tables whose oids are larger than *after*; return the last one's, None when
    no more follow.
    """
    # For the types that tables share.
    resolver = Resolver(mirror.heaps, mirror.registry, ResolutionCache())
    found: list[Described] = []
    last = after
    for oid in table_oids(mirror, after):
        if len(found) == count:
            return found, last
        last = oid
        table = resolver.resolve(("oid", oid)).descriptor
        if table is not None:
            found.append(Described(table, _row_filters(mirror, table)))
    return found, None


def _row_filters(mirror: CatalogMirror, table: RelationDescriptor) -> dict[str, str]:
    by_oid = {relation.oid: relation for relation in (table, *table.ancestors)}
    texts = {
        p.name: row_filter_text(mirror, p.row_filter, by_oid[p.publish_as])
        for p in table.publications
        if p.row_filter is not None
    }
    return {name: readable(text) for name, text in texts.items() if text is not None}


def publications(mirror: CatalogMirror) -> tuple[list[PgPublication], dict[int, list[str]]]:
    """Return every publication, and of each, by oid, the schemas that it publishes whole."""
    schemas: dict[int, list[str]] = {}
    rows = mirror.visible_rows()
    if cat.PG_PUBLICATION_NAMESPACE.oid in mirror.heaps.layouts:
        names = {row.oid: row.nspname for row in rows.whole(cat.PG_NAMESPACE)}
        for row in rows.whole(cat.PG_PUBLICATION_NAMESPACE):
            schemas.setdefault(row.pnpubid, []).append(names.get(row.pnnspid, str(row.pnnspid)))
    return rows.whole(cat.PG_PUBLICATION), schemas


# Made of what was answered, on any thread.


def table_infos(
    descriptors: Sequence[Described], capture: CaptureFilter, server_version_num: int
) -> list[TableInfo]:
    """Show tables, in their order."""
    return [_table_info(d.table, capture, server_version_num) for d in descriptors]


def _table_info(
    table: RelationDescriptor, capture: CaptureFilter, server_version_num: int
) -> TableInfo:
    # It brings pyarrow, for those who look at tables.
    from spillway.plugins.arrow_schema import is_text_in_a_lake  # noqa: PLC0415

    names = _column_names(table)
    captured = capture.captures(table)
    return TableInfo(
        schema=readable(table.schema),
        name=readable(table.name),
        kind={"r": "table", "p": "partitioned table"}[table.kind],
        partition_of=tuple(readable(f"{a.schema}.{a.name}") for a in table.ancestors),
        replica_identity={"d": "default", "i": "index", "f": "full", "n": "nothing"}[
            table.replica_identity
        ],
        primary_key=tuple(names[attnum] for attnum in table.primary_key),
        identity_columns=tuple(names[attnum] for attnum in table.identity_columns),
        columns=tuple(
            ColumnInfo(
                names[column.attnum],
                readable(
                    format_type_with_typmod(
                        column.type_oid, column.typmod, table.types, server_version_num
                    )
                ),
                not_null=column.not_null,
                generated=bool(column.generated),
                as_text=is_text_in_a_lake(column, table.types, server_version_num),
            )
            for column in table.columns
            if not column.dropped
        ),
        publications=tuple(readable(p.name) for p in table.publications),
        captured=captured,
        warnings=tuple(_warnings(table, captured=captured)),
    )


def _warnings(table: RelationDescriptor, *, captured: bool) -> list[str]:
    warnings = []
    # A partitioned table has no rows of its own; its partitions are warned of.
    if table.kind == "r":
        name = readable(f"{table.schema}.{table.name}")
        if table.replica_identity == "n":
            warnings.append(
                "replica identity nothing: UPDATE and DELETE say nothing of the old row. "
                f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT; or FULL without a key."
            )
        elif not table.identity_columns:
            warnings.append(
                "no key: UPDATE and DELETE can't say which row they changed. Add a primary key, or "
                f"ALTER TABLE {name} REPLICA IDENTITY FULL;"
            )
        elif table.replica_identity == "f" and not table.primary_key:
            warnings.append(
                "replica identity full and no key: rows that are equal can't be told apart."
            )
    if not captured:
        warnings.append("not captured: the source's capture filter leaves it out for every slot.")
    return warnings


class PublicationsShown:
    """Publications to which tables are added as they are described; what a table needs is kept of
    it, no descriptor.
    """

    def __init__(self, rows: Sequence[PgPublication], schemas: Mapping[int, Sequence[str]]) -> None:
        self._rows: Final = rows
        self._schemas: Final = schemas
        self._published: Final[dict[str, dict[int, PublishedTable]]] = {r.pubname: {} for r in rows}
        self._leaves: Final[dict[str, dict[int, list[str]]]] = {r.pubname: {} for r in rows}

    def add(self, described: Iterable[Described]) -> None:
        """Add tables to the publications that publish them."""
        for table, row_filters in described:
            by_oid = {relation.oid: relation for relation in (table, *table.ancestors)}
            for publication in table.publications:
                tables = self._published.get(publication.name)
                shown_as = by_oid.get(publication.publish_as)
                if tables is None or shown_as is None:
                    # Made since the publications were asked for.
                    continue
                if shown_as.oid not in tables:
                    text = row_filters.get(publication.name)
                    tables[shown_as.oid] = _published(shown_as, publication, text)
                if table.kind == "r":
                    self._leaves[publication.name].setdefault(shown_as.oid, []).append(
                        readable(f"{table.schema}.{table.name}")
                    )

    def infos(self) -> list[PublicationInfo]:
        """Show them, by name, each with the tables that it publishes."""
        return [
            PublicationInfo(
                name=readable(row.pubname),
                all_tables=row.puballtables,
                insert=row.pubinsert,
                update=row.pubupdate,
                delete=row.pubdelete,
                truncate=row.pubtruncate,
                via_root=row.pubviaroot,
                schemas=tuple(sorted(map(readable, self._schemas.get(row.oid, ())))),
                tables=tuple(
                    _with_leaves(table, self._leaves[row.pubname].get(oid, []))
                    for oid, table in sorted(
                        self._published[row.pubname].items(),
                        key=lambda item: (item[1].schema, item[1].name),
                    )
                ),
            )
            for row in sorted(self._rows, key=_name)
        ]


def _published(
    table: RelationDescriptor, publication: PublicationDescriptor, row_filter: str | None
) -> PublishedTable:
    names = _column_names(table)
    listed = publication.columns
    return PublishedTable(
        schema=readable(table.schema),
        name=readable(table.name),
        columns=None if listed is None else tuple(names[attnum] for attnum in sorted(listed)),
        has_row_filter=publication.row_filter is not None,
        row_filter=row_filter,
    )


def _column_names(table: RelationDescriptor) -> dict[int, str]:
    return {column.attnum: readable(column.name) for column in table.columns}


def _with_leaves(table: PublishedTable, leaves: Sequence[str]) -> PublishedTable:
    return PublishedTable(
        table.schema,
        table.name,
        table.columns,
        table.has_row_filter,
        table.row_filter,
        tuple(sorted(leaves)),
    )


def _name(row: PgPublication) -> str:
    return row.pubname
