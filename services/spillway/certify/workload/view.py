"""What one session sees of the workload's objects: read from the catalog, by that session.

Statements are made about what is there. Keeping a model of that beside the server would mean
rolling the model back with every savepoint; the server does that already, so it is asked, in one
query in the session itself, which shows it its own uncommitted changes and nobody else's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    #: as format_type shows it
    type: str
    #: typtype: b, c, d, e, r
    type_kind: str
    not_null: bool
    #: '', a, d
    identity: str
    #: '', s, v
    generated: str
    has_default: bool
    #: of an enum
    labels: tuple[str, ...]
    #: of an array of enums
    element_labels: tuple[str, ...]
    #: of a domain: what it is over
    base: str

    @property
    def insertable(self) -> bool:
        """A value may be given without more ado."""
        return not self.generated and self.identity != "a"


@dataclass(frozen=True, slots=True)
class Index:
    """An index of a table."""

    name: str
    unique: bool
    primary: bool
    #: may be a replica identity
    identity: bool
    #: may order CLUSTER
    clusterable: bool


@dataclass(frozen=True, slots=True)
class Table:
    """A table, partitioned table, partition or materialized view; names are quoted and
    qualified.
    """

    name: str
    schema: str
    #: r, p, m
    kind: str
    #: p, u, t
    persistence: str
    identity: str
    is_partition: bool
    parent: str
    #: l, r, h of a partitioned table
    strategy: str
    has_children: bool
    referenced: bool
    columns: tuple[Column, ...]
    indexes: tuple[Index, ...]

    def column(self, name: str) -> Column | None:
        """Find a column."""
        return next((column for column in self.columns if column.name == name), None)

    @property
    def has_id(self) -> bool:
        """It has the integer column that keys are made of."""
        return any(
            c.name == "id" and c.type in ("integer", "bigint", "numeric") for c in self.columns
        )

    @property
    def has_key(self) -> bool:
        """Has a primary key."""
        return any(index.primary for index in self.indexes)


@dataclass(frozen=True, slots=True)
class View:
    """Everything at once."""

    tables: tuple[Table, ...] = ()
    schemas: tuple[str, ...] = ()
    #: quoted and qualified → typtype
    types: dict[str, str] = field(default_factory=dict)
    publications: tuple[str, ...] = ()
    sequences: tuple[str, ...] = ()

    def table(self, name: str) -> Table | None:
        """Find a table."""
        return next((table for table in self.tables if table.name == name), None)


#: Shows what is in schemas that begin with ``w_`` and in the session's temporary one, as one JSON
#: value.
QUERY: Final = """
WITH s AS MATERIALIZED (
    SELECT oid, nspname FROM pg_catalog.pg_namespace
        WHERE nspname ^@ 'w_' OR oid = pg_catalog.pg_my_temp_schema()
), t AS MATERIALIZED (
    SELECT c.oid, s.nspname, c.relname, c.relkind, c.relpersistence, c.relreplident,
        c.relispartition, c.relhassubclass
    FROM pg_catalog.pg_class c JOIN s ON s.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'm')
)
SELECT pg_catalog.json_build_object(
    'schemas', (SELECT pg_catalog.json_agg(pg_catalog.quote_ident(nspname) ORDER BY nspname) FROM s
        WHERE nspname ^@ 'w_'),
    'types', (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(pg_catalog.format('%I.%I',
        s.nspname, y.typname), y.typtype) ORDER BY s.nspname, y.typname)
              FROM pg_catalog.pg_type y JOIN s ON s.oid = y.typnamespace
              LEFT JOIN pg_catalog.pg_class k ON k.oid = y.typrelid
              WHERE y.typtype IN ('e', 'd', 'r') OR k.relkind = 'c'),
    'publications', (SELECT pg_catalog.json_agg(pg_catalog.quote_ident(pubname) ORDER BY pubname)
        FROM pg_catalog.pg_publication WHERE pubname ^@ 'w_'),
    'sequences', (SELECT pg_catalog.json_agg(pg_catalog.format('%I.%I', s.nspname, c.relname)
        ORDER BY s.nspname, c.relname)
                  FROM pg_catalog.pg_class c JOIN s ON s.oid = c.relnamespace
                      WHERE c.relkind = 'S'),
    'tables', (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(
        pg_catalog.format('%I.%I', t.nspname, t.relname), pg_catalog.quote_ident(t.nspname),
            t.relkind, t.relpersistence, t.relreplident,
        t.relispartition,
        (SELECT pg_catalog.format('%I.%I', n.nspname, p.relname) FROM pg_catalog.pg_inherits i
            JOIN pg_catalog.pg_class p ON p.oid = i.inhparent
             JOIN pg_catalog.pg_namespace n ON n.oid = p.relnamespace WHERE i.inhrelid = t.oid
                 ORDER BY i.inhseqno LIMIT 1),
        (SELECT p.partstrat FROM pg_catalog.pg_partitioned_table p WHERE p.partrelid = t.oid),
        t.relhassubclass,
        EXISTS (SELECT FROM pg_catalog.pg_constraint k WHERE k.confrelid = t.oid
            AND k.contype = 'f'),
        (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(pg_catalog.quote_ident(a.attname),
            pg_catalog.format_type(a.atttypid, a.atttypmod),
                 y.typtype, a.attnotnull, a.attidentity, a.attgenerated, a.atthasdef,
                 CASE WHEN y.typtype = 'e' THEN (SELECT pg_catalog.json_agg(e.enumlabel
                     ORDER BY e.enumsortorder) FROM pg_catalog.pg_enum e
                         WHERE e.enumtypid = y.oid) END,
                 CASE WHEN y.typelem <> 0 AND y.typtype = 'b' THEN (SELECT
                     pg_catalog.json_agg(e.enumlabel ORDER BY e.enumsortorder)
                         FROM pg_catalog.pg_enum e WHERE e.enumtypid = y.typelem) END,
                 CASE WHEN y.typtype = 'd' THEN pg_catalog.format_type(y.typbasetype, NULL) END)
                     ORDER BY a.attnum)
             FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type y ON y.oid = a.atttypid
             WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped),
        (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(pg_catalog.quote_ident(c.relname),
            i.indisunique, i.indisprimary,
                 i.indisunique AND i.indimmediate AND i.indisvalid AND i.indexprs IS NULL
                     AND i.indpred IS NULL
                     AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute k WHERE k.attrelid = t.oid
                         AND k.attnum = ANY (i.indkey) AND NOT k.attnotnull),
                 i.indisvalid AND i.indpred IS NULL AND c.relkind = 'i') ORDER BY c.relname)
             FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
                 WHERE i.indrelid = t.oid)
    ) ORDER BY t.nspname, t.relname) FROM t)
)::text
"""


def parse(text: str) -> View:
    """Make a view of the query's answer."""
    answer = json.loads(text)
    return View(
        tuple(_table(row) for row in answer["tables"] or ()),
        tuple(answer["schemas"] or ()),
        dict(answer["types"] or ()),
        tuple(answer["publications"] or ()),
        tuple(answer["sequences"] or ()),
    )


def _table(row: list[Any]) -> Table:
    *head, columns, indexes = row
    name, schema, kind, persistence, identity, is_partition, parent, strategy, *flags = head
    has_children, referenced = flags
    return Table(
        name,
        schema,
        kind,
        persistence,
        identity,
        is_partition,
        parent or "",
        strategy or "",
        has_children,
        referenced,
        tuple(_column(column) for column in columns or ()),
        tuple(Index(*index) for index in indexes or ()),
    )


def _column(column: list[Any]) -> Column:
    *head, labels, element_labels, base = column
    return Column(*head, tuple(labels or ()), tuple(element_labels or ()), base or "")  # type: ignore[call-arg]
