"""Tables that the target lacks, made from the source's catalog, or from what pg_dump writes
(:mod:`dump`): ``create_tables``.

Made are schemas, types (enums, domains, composite types, ranges), sequences that columns own,
tables with columns, defaults, identity and generated columns, partitions, constraints, indexes and
replica identities; in this order, foreign keys last, so that each finds what it needs. Not made are
owners, privileges, comments, triggers, rules, policies, statistics objects and tablespaces, nor
inheritance: a child is a table by itself, as it is to a stream.

Each statement is tried by itself, so that what can't be made (a type of an extension that the
target lacks, a function in a default, syntax that an older target does not know) is told all at
once, and the rest is there. What is on the target already is left as it is.

Expressions come from the source as it writes them with an empty search_path: qualified.

Source: getTables, dumpTableSchema, dumpConstraint, dumpSequence (src/bin/pg_dump/pg_dump.c)
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import conninfo, sql

from spillway.apply.sync import dump
from spillway.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from spillway.apply.sync.states import TableName
    from spillway.apply.tables.matching import Rename

    Connection = psycopg.Connection[tuple[Any, ...]]

_log = logging.getLogger(__name__)

_VIRTUAL: Final = 180000

#: The tables, what they are partitions of, and the partitions of those that are partitioned;
#: roots before their partitions.
_RELATIONS: Final = """
WITH RECURSIVE asked AS (
    SELECT c.oid FROM ROWS FROM (pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::text[]))
             t(schema_name, table_name)
      JOIN pg_catalog.pg_namespace n ON n.nspname = t.schema_name
      JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.table_name
     WHERE c.relkind IN ('r', 'p')
), roots AS (
    SELECT a.relid::oid AS oid FROM asked, LATERAL pg_catalog.pg_partition_ancestors(asked.oid) a
     UNION
    SELECT oid FROM asked
), chosen AS (
    SELECT oid FROM roots
     UNION
    SELECT t.relid::oid FROM asked, LATERAL pg_catalog.pg_partition_tree(asked.oid) t
), deep AS (
    SELECT oid, (SELECT pg_catalog.count(*) FROM pg_catalog.pg_partition_ancestors(oid)) AS depth
      FROM chosen
)
SELECT c.oid, n.nspname::text, c.relname::text, c.relkind::text, c.relreplident::text,
       c.relispartition, pg_catalog.pg_get_partkeydef(c.oid),
       pg_catalog.pg_get_expr(c.relpartbound, c.oid), pn.nspname::text, p.relname::text,
       pg_catalog.array_to_string(c.reloptions, ', '),
       (SELECT i.relname::text FROM pg_catalog.pg_index x
          JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
         WHERE x.indrelid = c.oid AND x.indisreplident)
  FROM deep JOIN pg_catalog.pg_class c USING (oid)
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_catalog.pg_inherits h ON c.relispartition AND h.inhrelid = c.oid
  LEFT JOIN pg_catalog.pg_class p ON p.oid = h.inhparent
  LEFT JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace
 ORDER BY deep.depth, 2, 3
"""
_COLUMNS: Final = """
SELECT a.attrelid, a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull,
       a.attidentity::text, a.attgenerated::text, pg_catalog.pg_get_expr(d.adbin, d.adrelid),
       CASE WHEN a.attcollation <> t.typcollation THEN
            pg_catalog.quote_ident(cn.nspname) || '.' || pg_catalog.quote_ident(co.collname) END,
       s.schema_name, s.sequence_name, s.options
  FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
  LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
  LEFT JOIN pg_catalog.pg_collation co ON co.oid = a.attcollation
  LEFT JOIN pg_catalog.pg_namespace cn ON cn.oid = co.collnamespace
  LEFT JOIN LATERAL (
    SELECT qn.nspname::text AS schema_name, q.relname::text AS sequence_name,
           pg_catalog.format('AS %%s INCREMENT BY %%s MINVALUE %%s MAXVALUE %%s'
               ' START WITH %%s CACHE %%s%%s',
               pg_catalog.format_type(o.seqtypid, NULL), o.seqincrement, o.seqmin, o.seqmax,
               o.seqstart, o.seqcache, CASE WHEN o.seqcycle THEN ' CYCLE' ELSE '' END) AS options
      FROM pg_catalog.pg_depend e JOIN pg_catalog.pg_sequence o ON o.seqrelid = e.objid
      JOIN pg_catalog.pg_class q ON q.oid = o.seqrelid
      JOIN pg_catalog.pg_namespace qn ON qn.oid = q.relnamespace
     WHERE e.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND e.deptype IN ('a', 'i')
       AND e.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
       AND e.refobjid = a.attrelid AND e.refobjsubid = a.attnum LIMIT 1) s ON true
 WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attrelid, a.attnum
"""
#: Types of the columns that are not built in, with those that they are made of before them.
_TYPES: Final = """
WITH RECURSIVE used(oid, depth) AS (
    SELECT a.atttypid, 0 FROM pg_catalog.pg_attribute a
     WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
     UNION
    SELECT x.oid, used.depth + 1
      FROM used JOIN pg_catalog.pg_type t USING (oid) LEFT JOIN pg_catalog.pg_range r
           ON r.rngtypid = t.oid,
           LATERAL (VALUES (t.typelem), (t.typbasetype), (r.rngsubtype) UNION ALL
                    SELECT a.atttypid FROM pg_catalog.pg_attribute a
                     WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0
                       AND NOT a.attisdropped) x(oid)
     WHERE x.oid <> 0
), deepest AS (SELECT oid, pg_catalog.max(depth) AS depth FROM used GROUP BY 1)
SELECT t.oid, n.nspname::text, t.typname::text, t.typtype::text,
       pg_catalog.format_type(t.typbasetype, t.typtypmod), t.typnotnull, t.typdefault,
       ARRAY (SELECT e.enumlabel::text FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid
               ORDER BY e.enumsortorder),
       ARRAY (SELECT pg_catalog.quote_ident(a.attname) || ' '
                     || pg_catalog.format_type(a.atttypid, a.atttypmod)
                FROM pg_catalog.pg_attribute a
               WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0
                 AND NOT a.attisdropped ORDER BY a.attnum),
       ARRAY (SELECT 'CONSTRAINT ' || pg_catalog.quote_ident(k.conname) || ' '
                     || pg_catalog.pg_get_constraintdef(k.oid)
                FROM pg_catalog.pg_constraint k WHERE k.contypid = t.oid AND k.contype = 'c'
               ORDER BY k.conname),
       (SELECT pg_catalog.format_type(r.rngsubtype, NULL) FROM pg_catalog.pg_range r
         WHERE r.rngtypid = t.oid),
       (SELECT x.extname::text FROM pg_catalog.pg_depend d
          JOIN pg_catalog.pg_extension x ON x.oid = d.refobjid
         WHERE d.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND d.objid = t.oid
           AND d.deptype = 'e' LIMIT 1),
       c.relkind IS NOT NULL AND c.relkind <> 'c'
  FROM deepest JOIN pg_catalog.pg_type t USING (oid)
  JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
  LEFT JOIN pg_catalog.pg_class c ON c.oid = t.typrelid
 WHERE n.nspname NOT IN ('pg_catalog', 'information_schema')
   AND NOT (t.typelem <> 0 AND t.typtype = 'b')
 ORDER BY deepest.depth DESC, 2, 3
"""
#: Not null ones are the columns'; those of partitions come with their parent's.
_CONSTRAINTS: Final = """
SELECT k.conrelid, k.conname::text, k.contype::text, pg_catalog.pg_get_constraintdef(k.oid),
       fn.nspname::text, f.relname::text, k.confrelid::pg_catalog.regclass::text
  FROM pg_catalog.pg_constraint k
  LEFT JOIN pg_catalog.pg_class f ON f.oid = k.confrelid
  LEFT JOIN pg_catalog.pg_namespace fn ON fn.oid = f.relnamespace
  JOIN pg_catalog.pg_class c ON c.oid = k.conrelid
 WHERE k.conrelid = ANY (%s::oid[]) AND k.contype IN ('p', 'u', 'x', 'c', 'f')
   AND k.conparentid = 0 AND (k.coninhcount = 0 OR NOT c.relispartition)
 ORDER BY k.contype = 'f', k.conrelid, k.contype <> 'p', k.conname
"""
_INDEXES: Final = """
SELECT x.indrelid, i.relname::text, pg_catalog.pg_get_indexdef(x.indexrelid),
       x.indrelid::pg_catalog.regclass::text
  FROM pg_catalog.pg_index x JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
 WHERE x.indrelid = ANY (%s::oid[]) AND NOT i.relispartition AND x.indislive
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint k
                    WHERE k.conindid = x.indexrelid AND k.contype IN ('p', 'u', 'x'))
 ORDER BY 1, 2
"""


@dataclass(slots=True)
class Made:
    """What was made, and what could not be, with the reason."""

    tables: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    #: where definitions came from: ``pg_dump 18.1``, ``catalog``, or both
    by: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Relation:
    oid: int
    schema: str
    name: str
    kind: str
    identity: str
    is_partition: bool
    partition_key: str | None
    bound: str | None
    parent_schema: str | None
    parent: str | None
    options: str | None
    identity_index: str | None

    @property
    def key(self) -> TableName:
        return self.schema, self.name


def create_missing(
    source: Connection,
    target: Connection,
    tables: Collection[TableName],
    rename: Rename,
    pg_dump: dump.PgDump | None = None,
) -> Made:
    """Make those of *tables* that the target lacks, and what they need.

    Args:
        source: in autocommit, with an empty search_path.
        target: likewise.
        tables: by their names on the source.
        rename: the name on the target of a (schema, table) of the source; of a sequence or an
            index it is asked, too.
        pg_dump: of the source's major; it is not asked for tables that have other names on the
            target.

    Raises:
        SourceError: the source did not answer.
        psycopg.Error: the target did not. What it refuses is in the result.
    """
    missing = sorted(key for key in tables if not _exists(target, rename(*key)))
    if not missing:
        return Made()
    names = [[key[0] for key in missing], [key[1] for key in missing]]
    relations = [_Relation(*row) for row in _ask(source, _RELATIONS, names)]
    return _Making(source, target, rename, relations).run(pg_dump)


def _dsn_of(connection: Connection) -> str:
    """Return what a connection was made by, with its password, which psycopg leaves out."""
    password = connection.info.password
    return conninfo.make_conninfo(
        connection.info.dsn, **({"password": password} if password else {})
    )


class _Making:
    def __init__(
        self,
        source: Connection,
        target: Connection,
        rename: Rename,
        relations: list[_Relation],
    ) -> None:
        self._source = source
        self._target = target
        self._rename = rename
        self._made = Made()
        self._new = [r for r in relations if not _exists(target, rename(*r.key))]
        self._by_oid = {relation.oid: relation for relation in self._new}
        self._oids = list(self._by_oid)

    def run(self, pg_dump: dump.PgDump | None) -> Made:
        self._schemas()
        self._types()
        if pg_dump is not None and all(self._rename(*r.key) == r.key for r in self._new):
            self._dumped(pg_dump)
        if self._new:
            self._made.by.append("catalog")
            self._from_catalog()
        return self._made

    def _dumped(self, pg_dump: dump.PgDump) -> None:
        """Make what pg_dump's definitions make; what is missing then is the catalog's."""
        try:
            parts = dump.definitions(pg_dump, _dsn_of(self._source), [r.key for r in self._new])
        except SourceError as error:
            _log.warning("%s", error.message)
            return
        self._made.by.append(f"pg_dump {pg_dump.version}")
        self._target.execute("SELECT pg_catalog.set_config('check_function_bodies', 'off', false)")
        for what, statements in parts:
            self._try(what, _raw(statements))
        there = [r for r in self._new if _exists(self._target, r.key)]
        self._made.tables += [".".join(r.key) for r in there]
        self._new = [r for r in self._new if r not in there]
        self._by_oid = {relation.oid: relation for relation in self._new}
        self._oids = list(self._by_oid)
        for relation in self._new:
            # They are tried again.
            self._made.failed.pop(f"table {'.'.join(relation.key)}", None)

    def _from_catalog(self) -> None:
        columns = self._columns()
        for relation in self._new:
            self._table(relation, columns.get(relation.oid, []))
        self._constraints(foreign=False)
        self._indexes()
        self._constraints(foreign=True)
        for relation in self._new:
            self._replica_identity(relation)

    def _schemas(self) -> None:
        for schema in sorted({self._rename(*relation.key)[0] for relation in self._new}):
            self._make_schema(schema)

    def _make_schema(self, schema: str) -> None:
        there = self._target.execute(
            "SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s", [schema]
        ).fetchall()
        if not there:
            self._try(
                f"schema {schema}", sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema))
            )

    def _types(self) -> None:
        for row in _ask(self._source, _TYPES, [self._oids]):
            (
                _, schema, name, kind, base, not_null, default, labels, attributes, checks,
                subtype, extension, is_row,
            ) = row  # fmt: skip
            what = f"type {schema}.{name}"
            there = self._target.execute(
                "SELECT FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n"
                " ON n.oid = t.typnamespace WHERE n.nspname = %s AND t.typname = %s",
                [schema, name],
            ).fetchall()
            if there or is_row:
                continue
            if extension is not None:
                self._made.failed[what] = (
                    f"it is the extension {extension}'s: CREATE EXTENSION {extension}; on the "
                    "target first"
                )
                continue
            self._make_schema(schema)
            identifier = sql.Identifier(schema, name)
            if kind == "e":
                statement = sql.SQL("CREATE TYPE {} AS ENUM ({})").format(
                    identifier, sql.SQL(", ").join(map(sql.Literal, labels))
                )
            elif kind == "c":
                statement = sql.SQL("CREATE TYPE {} AS ({})").format(
                    identifier, _raw(", ".join(attributes))
                )
            elif kind == "d":
                parts = [base]
                parts += [] if default is None else [f"DEFAULT {default}"]
                parts += ["NOT NULL"] if not_null else []
                statement = sql.SQL("CREATE DOMAIN {} AS {}").format(
                    identifier, _raw(" ".join([*parts, *checks]))
                )
            elif kind == "r":
                statement = sql.SQL("CREATE TYPE {} AS RANGE (SUBTYPE = {})").format(
                    identifier, _raw(subtype)
                )
            elif kind == "m":
                continue  # It comes with its range.
            else:
                self._made.failed[what] = "it is written in C: make it on the target first"
                continue
            self._try(what, statement)

    def _columns(self) -> dict[int, list[tuple[Any, ...]]]:
        found: dict[int, list[tuple[Any, ...]]] = {}
        for row in _ask(self._source, _COLUMNS, [self._oids]):
            found.setdefault(row[0], []).append(row[1:])
        return found

    def _table(self, relation: _Relation, columns: list[tuple[Any, ...]]) -> None:
        name = sql.Identifier(*self._rename(*relation.key))
        owned: list[tuple[str, str, str]] = []
        if relation.is_partition:
            assert relation.parent_schema is not None
            assert relation.parent is not None
            of = sql.Identifier(*self._rename(relation.parent_schema, relation.parent))
            statement = sql.SQL("CREATE TABLE {} PARTITION OF {} {}").format(
                name, of, _raw(relation.bound or "")
            )
        else:
            statement = sql.SQL("CREATE TABLE {} ({})").format(
                name, sql.SQL(", ").join(self._column(relation, c, owned) for c in columns)
            )
        if relation.kind == "p":
            statement += sql.SQL(" PARTITION BY ") + _raw(relation.partition_key or "")
        elif relation.options:
            statement += sql.SQL(" WITH (") + _raw(relation.options) + sql.SQL(")")
        made = self._try(f"table {'.'.join(relation.key)}", statement)
        if made:
            self._made.tables.append(".".join(relation.key))
            for schema, sequence, column in owned:
                self._try(
                    f"owner of sequence {schema}.{sequence}",
                    sql.SQL("ALTER SEQUENCE {} OWNED BY {}").format(
                        sql.Identifier(schema, sequence),
                        sql.Identifier(*self._rename(*relation.key), column),
                    ),
                )

    def _column(
        self, relation: _Relation, row: tuple[Any, ...], owned: list[tuple[str, str, str]]
    ) -> sql.Composed:
        (
            name, type_name, not_null, identity, generated, default, collation,
            sequence_schema, sequence, options,
        ) = row  # fmt: skip
        parts = [sql.Identifier(name), _raw(type_name)]
        if collation is not None:
            parts.append(_raw(f"COLLATE {collation}"))
        if identity:
            kind = "ALWAYS" if identity == "a" else "BY DEFAULT"
            of = sql.Identifier(*self._rename(sequence_schema, sequence))
            # The sequence has the column's type.
            settings = options.partition(" INCREMENT")[2]
            parts.append(
                sql.SQL("GENERATED {} AS IDENTITY (SEQUENCE NAME {} INCREMENT{})").format(
                    _raw(kind), of, _raw(settings)
                )
            )
        elif generated:
            may_be_virtual = self._target.info.server_version >= _VIRTUAL
            stored = "VIRTUAL" if generated == "v" and may_be_virtual else "STORED"
            parts.append(_raw(f"GENERATED ALWAYS AS ({default}) {stored}"))
        elif sequence is not None and default is not None and default.startswith("nextval("):
            there = self._rename(sequence_schema, sequence)
            if not _exists(self._target, there):
                self._try(
                    f"sequence {'.'.join(there)}",
                    sql.SQL("CREATE SEQUENCE {} {}").format(sql.Identifier(*there), _raw(options)),
                )
                owned.append((*there, name))
            literal = sql.Identifier(*there).as_string(self._target)
            parts.append(
                sql.SQL("DEFAULT pg_catalog.nextval({}::pg_catalog.regclass)").format(literal)
            )
        elif default is not None:
            parts.append(_raw(f"DEFAULT {default}"))
        if not_null:
            parts.append(_raw("NOT NULL"))
        del relation
        return sql.SQL(" ").join(parts)

    def _constraints(self, *, foreign: bool) -> None:
        for oid, name, kind, definition, schema, table, as_written in _ask(
            self._source, _CONSTRAINTS, [self._oids]
        ):
            if (kind == "f") != foreign:
                continue
            relation = self._by_oid[oid]
            if ".".join(relation.key) not in self._made.tables:
                continue
            written = str(definition)
            if foreign:
                there = sql.Identifier(*self._rename(schema, table)).as_string(self._target)
                written = written.replace(f"REFERENCES {as_written}(", f"REFERENCES {there}(", 1)
            self._try(
                f"constraint {name} of {'.'.join(relation.key)}",
                sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {}").format(
                    sql.Identifier(*self._rename(*relation.key)),
                    sql.Identifier(name),
                    _raw(written),
                ),
            )

    def _indexes(self) -> None:
        for oid, name, definition, as_written in _ask(self._source, _INDEXES, [self._oids]):
            relation = self._by_oid[oid]
            if ".".join(relation.key) not in self._made.tables:
                continue
            there = sql.Identifier(*self._rename(*relation.key)).as_string(self._target)
            # Partitions get theirs by the root's.
            on = f" ON ONLY {as_written} "
            if on not in definition:
                on = f" ON {as_written} "
            self._try(
                f"index {name} of {'.'.join(relation.key)}",
                _raw(definition.replace(on, f" ON {there} ", 1)),
            )

    def _replica_identity(self, relation: _Relation) -> None:
        how = {"f": sql.SQL("FULL"), "n": sql.SQL("NOTHING")}.get(relation.identity)
        setting: sql.Composable | None = how
        if relation.identity == "i" and relation.identity_index:
            setting = sql.SQL("USING INDEX ") + sql.Identifier(relation.identity_index)
        if setting is not None and ".".join(relation.key) in self._made.tables:
            self._try(
                f"replica identity of {'.'.join(relation.key)}",
                sql.SQL("ALTER TABLE {} REPLICA IDENTITY {}").format(
                    sql.Identifier(*self._rename(*relation.key)), setting
                ),
            )

    def _try(self, what: str, statement: sql.SQL | sql.Composed) -> bool:
        """Run a statement; what is refused is written down."""
        try:
            self._target.execute(statement)
        except psycopg.Error as error:
            if self._target.closed:
                raise
            reason = error.diag.message_primary or str(error)
            self._made.failed[what] = " ".join(reason.split())
            return False
        return True


def _ask(source: Connection, query: str, params: list[Any]) -> list[tuple[Any, ...]]:
    try:
        return source.execute(query, params).fetchall()
    except psycopg.Error as error:
        raise SourceError(
            f"the source can't be asked for definitions: {' '.join(str(error).split())}",
            hint="Check the source's log.",
            sqlstate=error.sqlstate,
        ) from None


def _exists(connection: Connection, name: Iterable[str]) -> bool:
    schema, table = name
    return bool(
        connection.execute(
            "SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n"
            " ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
            [schema, table],
        ).fetchall()
    )


def _raw(text: str) -> sql.SQL:
    """Take what the source wrote as SQL."""
    return sql.SQL(text)
