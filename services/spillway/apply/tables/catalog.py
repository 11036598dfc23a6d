"""What a target's catalog says of tables, asked for all of them at once.

Four queries in one round trip, however many tables are asked for. Each is keyed on the tables'
names, so that none waits for another's answer. Of a partitioned table its partitions are asked,
too: their indexes decide how rows are found, and their triggers fire.

Every name is qualified, and nothing is read that came after PostgreSQL 13.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Connection = psycopg.Connection[tuple[Any, ...]]
#: schema, table
Name = tuple[str, str]

#: Of a trigger: ENABLE, ENABLE REPLICA, ENABLE ALWAYS; and where each fires.
_FIRE_AS_ORIGIN: Final = "OA"
_FIRE_AS_REPLICA: Final = "RA"

_ASKED: Final = """
WITH asked AS MATERIALIZED (
    SELECT c.oid AS root, c.relkind, n.nspname, c.relname, n.oid AS schema_oid
      FROM ROWS FROM (pg_catalog.unnest(%(schemas)s::text[]), pg_catalog.unnest(%(names)s::text[]))
             a(schema_name, table_name)
      JOIN pg_catalog.pg_namespace n ON n.nspname = a.schema_name
      JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = a.table_name
)"""
#: root: a table that was asked for; member: itself, or one of its partitions.
_MEMBERS: Final = (
    _ASKED  # noqa: S608 - constants only
    + """, members AS MATERIALIZED (
    SELECT root, root AS member, relkind = 'r' AS is_leaf FROM asked WHERE relkind <> 'p'
    UNION ALL
    SELECT a.root, t.relid, t.isleaf AND t.relid <> a.root
      FROM asked a, pg_catalog.pg_partition_tree(a.root) t WHERE a.relkind = 'p'
)"""
)

_TABLES: Final = (
    _ASKED  # noqa: S608 - constants only
    + """
SELECT root, nspname::text, relname::text, relkind::text,
       pg_catalog.quote_ident(nspname) || '.' || pg_catalog.quote_ident(relname),
       CASE WHEN relkind IN ('r', 'p') THEN pg_catalog.row_security_active(root) ELSE false END,
       CASE WHEN pg_catalog.has_schema_privilege(schema_oid, 'USAGE') THEN ARRAY[]::text[]
            ELSE ARRAY['USAGE'] END
       || ARRAY (SELECT p FROM pg_catalog.unnest(
                   '{INSERT,UPDATE,DELETE,SELECT,TRUNCATE}'::text[]) p
                 WHERE NOT pg_catalog.has_table_privilege(root, p)),
       pg_catalog.current_setting('session_replication_role') = 'replica',
       current_user::text
  FROM asked
"""
)

#: A type is an array when it is what another's typarray names. Domains have their base's category:
#: C is composite, of which unnest would make a column of each attribute.
_COLUMNS: Final = (
    _ASKED  # noqa: S608 - constants only
    + """
SELECT root, attname::text, pg_catalog.quote_ident(attname), attnum::int4, atttypid,
       pg_catalog.format_type(atttypid, -1),
       EXISTS (SELECT FROM pg_catalog.pg_type e WHERE e.typarray = atttypid) OR t.typarray = 0
           OR t.typcategory = 'C',
       attgenerated::text, attidentity::text, attnotnull
  FROM asked
  JOIN pg_catalog.pg_attribute ON attrelid = root AND attnum > 0 AND NOT attisdropped
  JOIN pg_catalog.pg_type t ON t.oid = atttypid
 ORDER BY root, attnum
"""
)

#: Types of which values that are equal are written alike. Others are equal in several forms, or
#: nobody knows: 1.0 and 1.00, 0 and -0, a day and 24 hours.
_ALIKE: Final = [
    *(16, 17, 18, 19, 20, 21, 23, 25, 26, 1043),  # bool, bytea, "char", name, integers, texts, oid
    *(1082, 1083, 1114, 1184, 1266),  # date, time, timestamps, timetz, which also compares zones
    *(650, 774, 829, 869),  # addresses of networks
    *(790, 1560, 1562, 2950, 3220, 5069),  # money, bit strings, uuid, pg_lsn, xid8
]
#: Of each column of an index its name, NULL for an expression, and the operator class's equality:
#: strategy 3 of btree and 1 of hash. ``unique`` ones are those that can be a key. An index may have
#: another collation than its column (but no primary key does), by which others are equal; and a
#: column another one than its type, where that is a domain with one: SQL would not know which.
#:
#: In GiST each operator class has numbers of its own, which 18 asks a support function for. A key
#: WITHOUT OVERLAPS names its operators in its constraint: equalities, and for the last column, a
#: range or multirange, ``&&``. The classes of these have their equality as strategy 18. Before 18
#: only exclusion constraints have conexclop, which are no keys.
#:
#: The last column says that what the index takes for equal is written alike, so that bytes tell it
#: (and that NULLs are not equal, which 15 and later may have).
_INDEXES: Final = (
    _MEMBERS  # noqa: S608 - constants only
    + """
SELECT root, member, is_leaf, indexrelid, indisprimary, indisreplident,
       indisvalid AND indpred IS NULL,
       indisunique AND indimmediate,
       (indisunique OR indisexclusion) AND indisready,
       k.relreplident::text,
       ARRAY (SELECT a.attname::text FROM pg_catalog.generate_series(0, indnkeyatts - 1) i
                LEFT JOIN pg_catalog.pg_attribute a
                  ON a.attrelid = member AND a.attnum = indkey[i] AND a.attnum <> 0
               ORDER BY i),
       ARRAY (SELECT CASE WHEN indcollation[i] <> a.attcollation
                            OR a.attcollation <> y.typcollation
                          THEN 'COLLATE ' || pg_catalog.quote_ident(s.nspname) || '.'
                               || pg_catalog.quote_ident(l.collname) || ' ' ELSE '' END
                     || 'OPERATOR(' || pg_catalog.quote_ident(n.nspname) || '.' || p.oprname || ')'
                FROM pg_catalog.generate_series(0, indnkeyatts - 1) i
                JOIN pg_catalog.pg_opclass o ON o.oid = indclass[i]
                LEFT JOIN pg_catalog.pg_attribute a
                  ON a.attrelid = member AND a.attnum = indkey[i] AND a.attnum <> 0
                LEFT JOIN pg_catalog.pg_type y ON y.oid = a.atttypid
                LEFT JOIN pg_catalog.pg_collation l ON l.oid = indcollation[i]
                LEFT JOIN pg_catalog.pg_namespace s ON s.oid = l.collnamespace
                LEFT JOIN pg_catalog.pg_amop m
                  ON m.amopfamily = o.opcfamily AND m.amoplefttype = o.opcintype
                 AND m.amoprighttype = o.opcintype
                 AND m.amopstrategy = CASE am.amname WHEN 'btree' THEN 3 WHEN 'hash' THEN 1
                                      ELSE CASE WHEN conexclop IS NOT NULL THEN 18 END END
                LEFT JOIN pg_catalog.pg_operator p
                  ON p.oid = CASE WHEN i < indnkeyatts - 1 AND conexclop IS NOT NULL
                                  THEN conexclop[i + 1] ELSE m.amopopr END
                LEFT JOIN pg_catalog.pg_namespace n ON n.oid = p.oprnamespace
               ORDER BY i),
       NOT EXISTS (SELECT FROM pg_catalog.generate_series(0, indnkeyatts - 1) i
                     JOIN pg_catalog.pg_opclass o ON o.oid = indclass[i]
                     LEFT JOIN pg_catalog.pg_attribute a
                       ON a.attrelid = member AND a.attnum = indkey[i] AND a.attnum <> 0
                     LEFT JOIN pg_catalog.pg_type y ON y.oid = a.atttypid
                     LEFT JOIN pg_catalog.pg_collation l ON l.oid = indcollation[i]
                    WHERE am.amname NOT IN ('btree', 'hash') OR a.attnum IS NULL
                       OR o.opcnamespace <> 'pg_catalog'::pg_catalog.regnamespace
                       OR NOT COALESCE(l.collisdeterministic, true)
                       OR NOT (y.typtype = 'e' OR y.oid = ANY (%(alike)s::pg_catalog.oid[])))
           AND pg_catalog.jsonb_extract_path_text(
                   pg_catalog.to_jsonb(pg_index), 'indnullsnotdistinct') IS DISTINCT FROM 'true'
  FROM members
  JOIN pg_catalog.pg_class k ON k.oid = member
  JOIN pg_catalog.pg_index ON indrelid = member
  JOIN pg_catalog.pg_class x ON x.oid = indexrelid
  JOIN pg_catalog.pg_am am ON am.oid = x.relam
  LEFT JOIN pg_catalog.pg_constraint ON conrelid = member AND conindid = indexrelid
                                    AND contype IN ('p', 'u')
 ORDER BY root, member, indexrelid
"""
)

#: kind: t a trigger of rows, s one of statements, f a foreign key, r a rule, p a partition.
_FIRING: Final = (
    _MEMBERS
    + """
SELECT root, CASE WHEN tgtype & 1 = 1 THEN 't' ELSE 's' END, tgname::text, tgenabled::text
  FROM members JOIN pg_catalog.pg_trigger ON tgrelid = member
 WHERE NOT tgisinternal OR tgenabled IN ('R', 'A')
 UNION ALL
SELECT root, 'f', conname::text, 'O'
  FROM members JOIN pg_catalog.pg_constraint ON contype = 'f' AND member IN (conrelid, confrelid)
 UNION ALL
SELECT root, 'r', rulename::text, ev_enabled::text
  FROM members JOIN pg_catalog.pg_rewrite ON ev_class = member AND rulename <> '_RETURN'
 UNION ALL
SELECT root, 'p', relname::text, relkind::text
  FROM members JOIN pg_catalog.pg_class c ON c.oid = member WHERE is_leaf
 ORDER BY 1, 2, 3
"""
)


class Column(NamedTuple):
    """A column of the target as its catalog has it; ``generated``: ``s`` stored, ``v`` virtual."""

    name: str
    quoted: str
    attnum: int
    type_oid: int
    type_name: str
    is_array: bool
    generated: str
    identity: str
    not_null: bool


class Index(NamedTuple):
    """An index of a table or of one of its partitions.

    ``columns`` has None for an expression, ``equals`` None where the access method, or an operator
    class of one's own, has no equality that is known here.
    """

    member: int
    of_leaf: bool
    oid: int
    is_primary: bool
    is_replica_identity: bool
    is_usable: bool
    is_immediate_unique: bool
    constrains: bool
    replica_identity: str
    columns: tuple[str | None, ...]
    equals: tuple[str | None, ...]
    #: values that it takes for equal are written alike
    by_bytes: bool

    @property
    def holds_rows(self) -> bool:
        """Whether it is no partitioned table's, which has nothing but its partitions'."""
        return self.of_leaf


class TableFacts(NamedTuple):
    """What the catalog says of one table."""

    oid: int
    schema: str
    name: str
    kind: str
    quoted: str
    row_security: bool
    lacks: tuple[str, ...]
    columns: tuple[Column, ...]
    indexes: tuple[Index, ...]
    #: oids that ``indexes`` may not name: partitions without any index
    leaves: int
    #: name by (kind, name); those that fire in this session
    row_triggers: tuple[str, ...]
    statement_triggers: tuple[str, ...]
    rules: tuple[str, ...]
    references: bool
    foreign_partitions: tuple[str, ...]
    user: str


def ask(connection: Connection, names: Iterable[Name]) -> dict[Name, TableFacts]:
    """Ask for tables by name. One that does not exist is not in the answer.

    One round trip. What fires is told for the session's own session_replication_role.

    Raises:
        psycopg.Error: the target did not answer.
    """
    wanted = sorted(set(names))
    if not wanted:
        return {}
    named = {
        "schemas": [name[0] for name in wanted],
        "names": [name[1] for name in wanted],
        "alike": _ALIKE,
    }
    queries = (_TABLES, _COLUMNS, _INDEXES, _FIRING)
    with connection.pipeline():
        # Prepared under a name they would stay in the session, which is the writers'.
        cursors = [connection.execute(query, named, prepare=False) for query in queries]
    tables, columns, indexes, firing = (cursor.fetchall() for cursor in cursors)
    columns_of = _by_root(columns)
    indexes_of = _by_root(indexes)
    firing_of = _by_root(firing)
    return {
        (row[1], row[2]): _facts(row, columns_of[row[0]], indexes_of[row[0]], firing_of[row[0]])
        for row in tables
    }


def type_name(connection: Connection, type_oid: int, type_modifier: int) -> str:
    """Write a type as the target does; ``???`` for one that it does not have."""
    (name,) = connection.execute(
        "SELECT pg_catalog.format_type(%s::oid, %s)", [type_oid, type_modifier]
    ).fetchone() or ("???",)
    return str(name)


def _by_root(rows: list[tuple[Any, ...]]) -> defaultdict[int, list[tuple[Any, ...]]]:
    found: defaultdict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        found[row[0]].append(row[1:])
    return found


def _facts(
    row: tuple[Any, ...],
    columns: list[tuple[Any, ...]],
    indexes: list[tuple[Any, ...]],
    firing: list[tuple[Any, ...]],
) -> TableFacts:
    oid, schema, name, kind, quoted, row_security, lacks, is_replica, user = row
    fire = _FIRE_AS_REPLICA if is_replica else _FIRE_AS_ORIGIN

    def named(wanted: str) -> Iterator[str]:
        return (name for kind, name, enabled in firing if kind == wanted and enabled in fire)

    partitions = [(name, relkind) for kind, name, relkind in firing if kind == "p"]
    return TableFacts(
        oid, schema, name, kind, quoted, row_security, tuple(lacks),
        tuple(Column(*column) for column in columns),
        tuple(
            Index._make((*index[:-3], tuple(index[-3]), tuple(index[-2]), index[-1]))
            for index in indexes
        ),
        len(partitions) if kind == "p" else 1,
        tuple(named("t")), tuple(named("s")), tuple(named("r")),
        any(named("f")),
        tuple(name for name, relkind in partitions if relkind == "f"),
        user,
    )  # fmt: skip
