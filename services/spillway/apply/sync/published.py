"""What the source publishes: tables, their columns and which of their rows, as a table sync of
PostgreSQL asks for it.

Asked as of a snapshot, which a session of the source has imported, so that it belongs to the rows
that are copied. Without publications every table is published that FOR ALL TABLES would, leaves in
place of a partitioned table.

What differs between majors: column lists and row filters came with 15; that a leaf is left out when
its root is published with ``publish_via_partition_root`` by another publication with 16 (14 and 15
copy its rows twice; here 16's rule holds for all); generated columns with 18.

Source: fetch_table_list (src/backend/commands/subscriptioncmds.c), fetch_remote_table_info,
copy_table (src/backend/replication/logical/tablesync.c), pg_get_publication_tables
(src/backend/catalog/pg_publication.c)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spillway.apply.changes import SourceColumn, SourceRelation
from spillway.apply.sync.states import CopyRange, TableName
from spillway.errors import SourceError, SpillwayError, UnknownPublication

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

#: Row filters and column lists.
_FILTERS: Final = 150000
#: A generated column is in a publication's columns if it is published.
_GENERATED: Final = 180000

_ALL: Final = """
SELECT c.oid, n.nspname, c.relname, false
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND c.oid >= 16384
   AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
"""
#: Of a table that several publications have, whether one of them publishes by the root.
_PUBLISHED: Final = """
SELECT c.oid, n.nspname, c.relname, pg_catalog.bool_or(p.pubviaroot)
  FROM pg_catalog.pg_publication p, LATERAL pg_catalog.pg_get_publication_tables(p.pubname) g
  JOIN pg_catalog.pg_class c ON c.oid = g.relid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE p.pubname = ANY (%s) GROUP BY 1, 2, 3
"""
_ANCESTORS: Final = """
SELECT c.oid, a.relid::oid
  FROM pg_catalog.unnest(%s::oid[]) c(oid), LATERAL pg_catalog.pg_partition_ancestors(c.oid) a
 WHERE a.relid <> c.oid
"""
_RELATIONS: Final = """
SELECT c.oid, c.relkind::text, c.relreplident::text
  FROM pg_catalog.pg_class c WHERE c.oid = ANY (%s::oid[])
"""
_COLUMNS: Final = """
SELECT a.attrelid, a.attnum::int, a.attname::text, a.atttypid, a.atttypmod, a.attgenerated <> '',
       coalesce(a.attnum = ANY (i.indkey), false)
  FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_index i
       ON i.indexrelid = pg_catalog.pg_get_replica_identity_index(a.attrelid)
 WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attrelid, a.attnum
"""
_LISTS: Final = """
SELECT DISTINCT g.relid,
       CASE WHEN pg_catalog.array_length(g.attrs, 1) = c.relnatts THEN NULL
            ELSE g.attrs::int2[]::int[] END,
       pg_catalog.pg_get_expr(g.qual, g.relid)
  FROM pg_catalog.pg_publication p, LATERAL pg_catalog.pg_get_publication_tables(p.pubname) g
  JOIN pg_catalog.pg_class c ON c.oid = g.relid
 WHERE p.pubname = ANY (%s) AND g.relid = ANY (%s::oid[])
"""
#: What a table's rows lie in: itself, or a partitioned one's leaves.
_HEAPS: Final = """
SELECT c.oid, l.oid, l.relkind::text, ln.nspname, l.relname,
       pg_catalog.has_table_privilege(l.oid, 'SELECT'),
       CASE WHEN l.relkind = 'r' THEN pg_catalog.pg_relation_size(l.oid) ELSE 0 END
  FROM pg_catalog.pg_class c,
       LATERAL (SELECT c.oid AS relid WHERE c.relkind <> 'p' UNION ALL
                SELECT t.relid FROM pg_catalog.pg_partition_tree(c.oid) t
                 WHERE c.relkind = 'p' AND t.isleaf) t
  JOIN pg_catalog.pg_class l ON l.oid = t.relid
  JOIN pg_catalog.pg_namespace ln ON ln.oid = l.relnamespace
 WHERE c.oid = ANY (%s::oid[]) AND l.relkind <> 'p' ORDER BY 1, 4, 5
"""
#: A heap that was written anew is another file, and empty to an older snapshot; a column that was
#: dropped and added again is another one.
_SHAPE: Final = """
SELECT c.relfilenode::int8 || ' ' || pg_catalog.string_agg(
           a.attnum || ' ' || a.atttypid || ' ' || a.attname, ', ' ORDER BY a.attnum)
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
 WHERE c.oid = %s AND a.attnum > 0 AND a.attname = ANY (%s) AND NOT a.attisdropped
 GROUP BY c.relfilenode
"""


@dataclass(frozen=True, slots=True)
class Heap:
    """What has a table's rows: itself, or a leaf of it."""

    oid: int
    schema: str
    table: str
    #: pg_class.relkind
    kind: str
    size_bytes: int
    is_readable: bool


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table as it is published."""

    relation: SourceRelation
    #: pg_class.relkind: ``r``, or ``p`` when it is published by the root
    kind: str
    #: of them a row must satisfy one; none: all rows
    filters: tuple[str, ...]
    heaps: tuple[Heap, ...]

    @property
    def key(self) -> TableName:
        return self.relation.schema, self.relation.name

    @property
    def size_bytes(self) -> int:
        return sum(heap.size_bytes for heap in self.heaps)

    def shape(self, connection: Connection, part: CopyRange) -> tuple[str, ...]:
        """Return what must not differ between the snapshot and the table when a range of it is
        read: which file has its rows, and the published columns; as *connection* sees it.
        """
        names = [column.name for column in self.relation.columns]
        return tuple(
            row[0] if (row := connection.execute(_SHAPE, [heap.oid, names]).fetchone()) else ""
            for heap in self.heaps
            if part.first is None or (heap.schema, heap.table) == (part.schema, part.table)
        )

    def ranges(self, range_bytes: int, block_bytes: int) -> tuple[CopyRange, ...]:
        """Cut it into what one COPY reads each, of about *range_bytes*."""
        if any(heap.kind != "r" or not heap.is_readable for heap in self.heaps):
            # The privilege on the root is enough to read all by it; foreign tables have no blocks.
            return (CopyRange(*self.key, None, None),)
        step = max(1, range_bytes // block_bytes)
        found: list[CopyRange] = []
        for heap in self.heaps:
            blocks = heap.size_bytes // block_bytes
            starts = range(0, max(1, blocks), step)
            found += [
                CopyRange(
                    heap.schema, heap.table, first, first + step if first != starts[-1] else None
                )
                for first in starts
            ]
        return tuple(found)


def list_tables(
    connection: Connection, publications: Sequence[str], selected: Callable[[str, str], bool]
) -> dict[TableName, int]:
    """Return the tables that are published, and their OIDs.

    Args:
        connection: to the source.
        publications: their names; none: every table.
        selected: which of them the subscription takes.

    Raises:
        UnknownPublication: the source has none of a name.
    """
    if not publications:
        rows = connection.execute(_ALL).fetchall()
    else:
        named = list(publications)
        there = {
            name
            for (name,) in connection.execute(
                "SELECT pubname::text FROM pg_catalog.pg_publication WHERE pubname = ANY (%s)",
                [named],
            ).fetchall()
        }
        if missing := sorted(set(named) - there):
            quoted = ", ".join(f'"{name}"' for name in missing)
            raise UnknownPublication(
                f"publication {quoted} does not exist on the source",
                hint="Create it there, or name those that SELECT pubname FROM pg_publication "
                "shows.",
            )
        rows = connection.execute(_PUBLISHED, [named]).fetchall()
    by_root = {oid for oid, _, _, via_root in rows if via_root}
    oids = [row[0] for row in rows]
    under = below(connection, oids, by_root)
    return {
        (schema, name): oid
        for oid, schema, name, _ in sorted(rows, key=lambda row: row[1:3])
        if oid not in under and selected(schema, name)
    }


def below(connection: Connection, oids: Collection[int], roots: Collection[int]) -> set[int]:
    """Return which of the tables *oids* are partitions, at any depth, of one of *roots*, OIDs, too.

    Asks the source, on *connection*, if there can be one.
    """
    if not oids or not roots:
        return set()
    above = set(roots)
    found = connection.execute(_ANCESTORS, [list(oids)]).fetchall()
    return {oid for oid, ancestor in found if ancestor in above}


def describe(
    connection: Connection, publications: Sequence[str], tables: Mapping[TableName, int]
) -> dict[TableName, PublishedTable | SpillwayError]:
    """Describe tables as they are published; one's trouble is its value.

    Args:
        connection: to the source, in a transaction with the snapshot.
        publications: their names; none: every table, whole.
        tables: their names and OIDs.
    """
    version = connection.info.server_version
    oids = list(tables.values())
    relations = {row[0]: row[1:] for row in connection.execute(_RELATIONS, [oids]).fetchall()}
    columns = _by_first(connection.execute(_COLUMNS, [oids]).fetchall())
    heaps = _by_first(connection.execute(_HEAPS, [oids]).fetchall())
    lists: dict[int, list[tuple[Any, ...]]] = {}
    if publications and version >= _FILTERS:
        lists = _by_first(connection.execute(_LISTS, [list(publications), oids]).fetchall())
    found: dict[TableName, PublishedTable | SpillwayError] = {}
    for (schema, table), oid in tables.items():
        name = f"{schema}.{table}"
        if oid not in relations:
            found[schema, table] = SourceError(
                f'table "{name}" not found on the source',
                hint="It was dropped; a refresh forgets it.",
                relation=name,
            )
            continue
        kind, identity = relations[oid]
        attnums = {tuple(sorted(row[0])) if row[0] else None for row in lists.get(oid, ())}
        if len(attnums) > 1:
            found[schema, table] = SourceError(
                f'cannot use different column lists for table "{name}" in different publications',
                hint="Give it the same columns in each (ALTER PUBLICATION … SET TABLE), or "
                "subscribe to one of them.",
                relation=name,
            )
            continue
        (chosen,) = attnums or {None}
        filters = [row[1] for row in lists.get(oid, ())]
        found[schema, table] = PublishedTable(
            SourceRelation(
                oid,
                schema,
                table,
                identity,
                _columns(
                    columns.get(oid, []),
                    chosen,
                    identity,
                    says_generated=version >= _GENERATED and oid in lists,
                ),
            ),
            kind,
            () if None in filters else tuple(dict.fromkeys(filters)),
            tuple(
                Heap(leaf_oid, leaf_schema, leaf, leaf_kind, size, readable)
                for leaf_oid, leaf_kind, leaf_schema, leaf, readable, size in heaps.get(oid, ())
            ),
        )
    return found


def _columns(
    rows: Sequence[tuple[Any, ...]],
    chosen: Collection[int] | None,
    identity: str,
    *,
    says_generated: bool,
) -> tuple[SourceColumn, ...]:
    return tuple(
        SourceColumn(name, type_oid, modifier, is_key or identity == "f")
        for attnum, name, type_oid, modifier, generated, is_key in rows
        if (chosen is None or attnum in chosen) and (not generated or says_generated)
    )


def _by_first(rows: Sequence[tuple[Any, ...]]) -> dict[int, list[tuple[Any, ...]]]:
    found: dict[int, list[tuple[Any, ...]]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(row[1:])
    return found
