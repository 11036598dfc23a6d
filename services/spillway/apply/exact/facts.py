"""What the target's catalog says of a table and only a conflict makes needed: all of its columns,
its unique indexes with their expressions and conditions, and whether a constraint of them may wait.

Of a partitioned table these are the root's indexes, of which every partition has its own, and those
that only some partitions have, with the condition under which a row lies there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spillway.apply.exact.raw import raw

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

#: PostgreSQL compares NULLs as equal in some unique indexes since then.
_MAJOR_OF_NULLS_NOT_DISTINCT: Final = 15

_COLUMNS: Final = b"""
SELECT attname::text, pg_catalog.quote_ident(attname), attnum::int4,
       pg_catalog.format_type(atttypid, -1), attgenerated <> '', attidentity = 'a',
       CASE WHEN attcollation <> t.typcollation THEN ' COLLATE ' || pg_catalog.quote_ident(nspname)
                 || '.' || pg_catalog.quote_ident(collname) ELSE '' END,
       (SELECT pg_catalog.pg_get_expr(adbin, adrelid) FROM pg_catalog.pg_attrdef
         WHERE adrelid = attrelid AND adnum = attnum),
       attidentity <> '',
       ARRAY(SELECT DISTINCT refobjsubid::int4
               FROM pg_catalog.pg_attrdef f JOIN pg_catalog.pg_depend d ON d.objid = f.oid
              WHERE d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass
                AND f.adrelid = attrelid AND f.adnum = attnum AND d.refobjid = attrelid
                AND d.refobjsubid NOT IN (0, attnum)),
       COALESCE(e.typtype, t.typtype) IN ('e', 'r', 'm')
           OR EXISTS(SELECT FROM pg_catalog.pg_opclass o
                       JOIN pg_catalog.pg_am m ON m.oid = o.opcmethod
                      WHERE m.amname IN ('btree', 'hash') AND o.opcdefault
                        AND o.opcintype IN (COALESCE(e.oid, t.oid), t.typbasetype))
           OR 'pg_catalog.varchar'::pg_catalog.regtype IN (COALESCE(e.oid, t.oid), t.typbasetype)
  FROM pg_catalog.pg_attribute JOIN pg_catalog.pg_type t ON t.oid = atttypid
  LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
  LEFT JOIN pg_catalog.pg_collation l ON l.oid = attcollation
  LEFT JOIN pg_catalog.pg_namespace n ON n.oid = l.collnamespace
 WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_INDEXES: Final = """
SELECT x.indexrelid, c.relname::text, x.indimmediate,
       ARRAY(SELECT pg_catalog.pg_get_indexdef(x.indexrelid, i, true)
               FROM pg_catalog.generate_series(1, x.indnkeyatts) i ORDER BY i),
       ARRAY(SELECT x.indkey[i - 1]::int4
               FROM pg_catalog.generate_series(1, x.indnkeyatts) i ORDER BY i),
       ARRAY(SELECT pg_catalog.format_type(a.atttypid, -1)
               FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = x.indexrelid AND a.attnum <= x.indnkeyatts ORDER BY a.attnum),
       ARRAY(SELECT 'OPERATOR(' || pg_catalog.quote_ident(n.nspname) || '.' || p.oprname || ')'
               FROM pg_catalog.generate_series(0, x.indnkeyatts - 1) i
               JOIN pg_catalog.pg_opclass o ON o.oid = x.indclass[i]
               LEFT JOIN pg_catalog.pg_amop m
                 ON m.amopfamily = o.opcfamily AND m.amoplefttype = o.opcintype
                AND m.amoprighttype = o.opcintype AND m.amopstrategy = 3
               LEFT JOIN pg_catalog.pg_operator p
                 ON p.oid = coalesce(k.conexclop[i + 1], m.amopopr)
               LEFT JOIN pg_catalog.pg_namespace n ON n.oid = p.oprnamespace
              ORDER BY i),
       ARRAY(SELECT ' COLLATE ' || pg_catalog.quote_ident(n.nspname) || '.'
                    || pg_catalog.quote_ident(l.collname)
               FROM pg_catalog.generate_series(0, x.indnkeyatts - 1) i
               LEFT JOIN pg_catalog.pg_collation l ON l.oid = x.indcollation[i]
               LEFT JOIN pg_catalog.pg_namespace n ON n.oid = l.collnamespace
              ORDER BY i),
       pg_catalog.pg_get_expr(x.indpred, x.indrelid), {nulls}, k.conexclop IS NOT NULL,
       CASE WHEN x.indrelid = $1 THEN '' ELSE
            (SELECT 'ONLY ' || pg_catalog.quote_ident(nspname) || '.'
                    || pg_catalog.quote_ident(relname)
               FROM pg_catalog.pg_class l JOIN pg_catalog.pg_namespace n ON n.oid = l.relnamespace
              WHERE l.oid = x.indrelid) END,
       CASE WHEN x.indrelid = $1 THEN NULL
            ELSE pg_catalog.pg_get_partition_constraintdef(x.indrelid) END,
       ARRAY(SELECT attname::text FROM pg_catalog.pg_attribute
              WHERE attrelid = x.indrelid AND (
                    attnum = ANY ((x.indkey::int2[])[0:x.indnkeyatts - 1]) OR attnum IN (
                    SELECT refobjsubid FROM pg_catalog.pg_depend
                     WHERE classid = 'pg_catalog.pg_class'::pg_catalog.regclass
                       AND objid = x.indexrelid AND refobjid = x.indrelid)) AND attnum > 0)
  FROM (SELECT $1::oid AS oid UNION ALL
        SELECT relid FROM pg_catalog.pg_partition_tree($1::oid::regclass)
         WHERE isleaf AND relid <> $1::oid) m
  JOIN pg_catalog.pg_index x ON x.indrelid = m.oid
  JOIN pg_catalog.pg_class c ON c.oid = x.indexrelid
  LEFT JOIN pg_catalog.pg_constraint k ON k.conrelid = x.indrelid AND k.conindid = x.indexrelid
                                      AND k.contype IN ('p', 'u')
 WHERE x.indisunique AND x.indisready
   AND (x.indrelid = $1 OR NOT EXISTS (
        SELECT FROM pg_catalog.pg_index r
         WHERE r.indexrelid = pg_catalog.pg_partition_root(x.indexrelid) AND r.indrelid = $1))
 ORDER BY x.indrelid <> $1, x.indexrelid
"""

#: An exclusion constraint has no place among the unique indexes, and is no less in the way.
_HAS_DEFERRABLE: Final = b"""
SELECT EXISTS(SELECT FROM pg_catalog.pg_index x
               WHERE (x.indisunique OR x.indisexclusion) AND x.indisready AND NOT x.indimmediate
                 AND (x.indrelid = $1 OR x.indrelid IN (
                      SELECT relid FROM pg_catalog.pg_partition_tree($1::oid::regclass))))
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, as SQL has it, its type's, what can't be set, COLLATE where its
    collation is not its type's, and the expression of its default, or of what it is generated by.
    """

    name: str
    quoted: str
    attnum: int
    type_name: str
    is_generated: bool
    is_identity_always: bool
    collate: str
    expression: str | None
    is_identity: bool
    #: numbers of the columns that it is generated of
    needs: tuple[int, ...]
    #: that its type surely has an equality that PostgreSQL finds by itself; false of some that have
    has_equality: bool

    @property
    def is_counted(self) -> bool:
        """That its default is another value each time it is asked for."""
        return self.is_identity or "nextval(" in (self.expression or "")


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """A unique index.

    Attributes:
        name: of the index, without its schema.
        is_immediate: that it is checked with each row; PostgreSQL tells no conflicts of others.
        definitions: what it indexes, as SQL has it: a column or an expression.
        attnums: the columns' numbers; 0 for an expression.
        types, equals, collations: of each; of a key WITHOUT OVERLAPS ``&&`` is the last one's
            ``equals``, by which it refuses rows.
        predicate: of a partial index; None without.
        nulls_are_equal: NULLS NOT DISTINCT.
        is_of_periods: that it is WITHOUT OVERLAPS: several rows may have what one row asks for.
        only: the partition that alone has it, behind FROM; "" if it is the table's.
        rows_of: what is true of the rows that lie in that partition.
        needs: names of the columns that say whether a row is in it, and with which key.
    """

    oid: int
    name: str
    is_immediate: bool
    definitions: tuple[str, ...]
    attnums: tuple[int, ...]
    types: tuple[str, ...]
    equals: tuple[str | None, ...]
    collations: tuple[str | None, ...]
    predicate: str | None
    nulls_are_equal: bool
    is_of_periods: bool
    only: str = ""
    rows_of: str | None = None
    needs: tuple[str, ...] = ()

    @property
    def is_of_columns(self) -> bool:
        """That it has plain columns only, of every row."""
        return self.predicate is None and 0 not in self.attnums and not self.only

    @property
    def condition(self) -> str:
        """What is true of the rows that are in it."""
        parts = [f"({one})" for one in (self.predicate, self.rows_of) if one is not None]
        return " AND ".join(parts) or "true"


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Of one table."""

    columns: tuple[Column, ...]
    indexes: tuple[UniqueIndex, ...]
    #: a key or an exclusion constraint is DEFERRABLE: PostgreSQL refuses ON CONFLICT without saying
    #: which constraint
    has_deferrable: bool


def ask(connection: Connection, oid: int, major: int) -> TableFacts:
    """Ask for a table's columns and unique indexes, in one round trip.

    Raises:
        psycopg.Error: the target did not answer.
    """
    nulls = "x.indnullsnotdistinct" if major >= _MAJOR_OF_NULLS_NOT_DISTINCT else "false"
    with connection.pipeline():
        columns = raw(connection, _COLUMNS, [str(oid).encode()])
        indexes = raw(connection, _INDEXES.format(nulls=nulls).encode(), [str(oid).encode()])
        deferrable = raw(connection, _HAS_DEFERRABLE, [str(oid).encode()])
        found_columns, found_indexes = columns.fetchall(), indexes.fetchall()
        ((has_deferrable,),) = deferrable.fetchall()
    return TableFacts(
        tuple(Column(*[*row[:-2], tuple(row[-2]), row[-1]]) for row in found_columns),
        tuple(
            UniqueIndex(*[*row[:3], *(tuple(one) for one in row[3:8]), *row[8:-1], tuple(row[-1])])
            for row in found_indexes
        ),
        bool(has_deferrable),
    )
