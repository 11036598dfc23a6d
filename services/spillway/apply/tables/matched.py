"""A table of the target as the writers need it: which column takes which value, how a row is found,
and what else would happen if the table were written to.

::

    source's Relation   a  b  c          positions 0 1 2
                        │  │  │
    target's table   c  b  a  d          columns[0] is a, columns[1] is b, columns[2] is c
                              └─ unsent: keeps its default, and is NULL for who compares whole rows

A row is found as PostgreSQL's worker finds it:

``key``    by the columns of the target's replica identity index, or of its primary key. The source
           may send more identity columns than these, never fewer. Only they are compared.
``index``  the source sends whole rows (REPLICA IDENTITY FULL) and the target has no such key, but
           an index that begins with a column that is sent. The whole row is compared, also with
           NULL, and of rows that are equal any one is taken.
``full``   as ``index``, without an index: the table is read from its beginning.
``""``     not at all: only inserts and truncates can be written
           (:meth:`MatchedTable.updatable_or_raise`).

Whole rows are compared by ``pg_catalog.record_eq(ROW(…), ROW(…))``: as PostgreSQL's tuples_equal it
takes each type's own equality, wherever that operator lies, and NULL for equal to NULL.

Source: logicalrep_rel_open, logicalrep_rel_mark_updatable, FindLogicalRepLocalIndex
(src/backend/replication/logical/relation.c), tuples_equal (src/backend/executor/execReplication.c)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from spillway.errors import TargetTableUnusable
from spillway.pg.connect_errors import quote_identifier

if TYPE_CHECKING:
    from spillway.apply.changes import SourceRelation

#: How a row is found; "" where it can't be.
Find = Literal["key", "index", "full", ""]


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of a target's table.

    Attributes:
        name: as the catalog has it.
        quoted: as SQL has it.
        attnum: its number in the table (of a partitioned table: in the root).
        type_oid: its type.
        type_name: its type without modifiers, qualified wherever it does not lie in pg_catalog:
            ``integer``, ``bpchar``, ``public.citext``, ``integer[]``.
        is_array: that an array of its type can't be unnested into values of it: it is an array
            itself (unnest would flatten it), it is composite (unnest would make a column of each
            attribute), or its type has no array type. Such values go as ``text[]`` and are cast one
            by one.
        identity: ``a`` generated always as identity (an UPDATE can't set it, an INSERT has to say
            OVERRIDING SYSTEM VALUE), ``d`` by default, ``""`` otherwise.
        not_null: that NULL is refused.
    """

    name: str
    quoted: str
    attnum: int
    type_oid: int
    type_name: str
    is_array: bool
    identity: str
    not_null: bool


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column by which a row is found.

    Attributes:
        position: of its value among the source's columns.
        column: the target's.
        equals: the equality of the index's operator class, to stand between two operands:
            ``OPERATOR(pg_catalog.=)``, ``OPERATOR(public.=)`` for citext; with COLLATE in front
            where the index has another collation than the column. WITHOUT OVERLAPS, too, a row is
            found by equality: no other row has an equal key, as it would overlap.
    """

    position: int
    column: TargetColumn
    equals: str


@dataclass(frozen=True, slots=True)
class MatchedTable:
    """A table of the target, matched with a Relation message.

    Attributes:
        relation: what the source said.
        oid: of the target's table.
        schema, name: of the target's table.
        quoted: as SQL has it, qualified: behind INSERT INTO, COPY, TRUNCATE.
        only: the same behind FROM, UPDATE and DELETE FROM: with ONLY unless it is partitioned, so
            that what inherits from it is left alone.
        kind: ``r`` ordinary, ``p`` partitioned.
        columns: the target's column of each of the source's, in the source's order.
        unsent: the target's other columns, without generated ones.
        find: how a row is found.
        key: by what; of ``index`` the columns that the index begins with and that are sent, empty
            with ``full``.
        index_oid: the index of ``key`` or ``index``; 0 without, and for a partitioned table, whose
            partitions have one each. Where these don't agree on a key, whole rows are compared
            (``full``), if there are such.
        other_unique: how many unique indexes and exclusion constraints it has beside the key's.
        groupable: that rows may be written by few statements and in another order than they came.
        not_groupable: why not; "" if they may.
        groupable_inserts: that inserts may, whatever of updates and deletes.
        fires: names of triggers and rules that fire when it is written to in such a session.
        references: that foreign keys of it, or to it, are enforced in such a session.
        row_security: that policies apply to the role: PostgreSQL refuses to replicate into it.
        lacks: privileges that the role does not have, of INSERT, UPDATE, DELETE, SELECT, TRUNCATE.
        keys_by_bytes: that values which are equal to its unique indexes and exclusion constraints
            come in the same bytes, so that changes with other bytes are about other rows.
        merges: that an update sets no column but those that the source changed, which its old rows
            tell; rows are written one by one then.
    """

    relation: SourceRelation
    oid: int
    schema: str
    name: str
    quoted: str
    only: str
    kind: str
    columns: tuple[TargetColumn, ...]
    unsent: tuple[TargetColumn, ...]
    find: Find
    key: tuple[KeyColumn, ...]
    index_oid: int
    other_unique: int
    groupable: bool
    not_groupable: str
    groupable_inserts: bool
    fires: tuple[str, ...]
    references: bool
    row_security: bool
    lacks: tuple[str, ...]
    #: Positions of the source's columns that are in a unique index or an exclusion constraint other
    #: than the key's; of all, where such an index has an expression or a predicate.
    watched: tuple[int, ...] = ()
    #: Names of the target's own key, when the source does not send all of it.
    key_not_sent: tuple[str, ...] = ()
    #: Names of the key's columns whose operator class has no equality: a row found by the others
    #: alone may be another one.
    key_without_equality: tuple[str, ...] = ()
    keys_by_bytes: bool = True
    merges: bool = False

    @property
    def key_positions(self) -> tuple[int, ...]:
        """Positions of the key's values among the source's columns."""
        return tuple(column.position for column in self.key)

    def updatable_or_raise(self) -> None:
        """Check that an update or a delete can find its row.

        Raises:
            TargetTableUnusable: as PostgreSQL's worker says it.

        Source: check_relation_updatable (src/backend/replication/logical/worker.c)
        """
        if self.find:
            return
        where = f'"{self.relation.schema}.{self.relation.name}"'
        if self.key_without_equality:
            named = ", ".join(self.key_without_equality)
            message = (
                f"the key of the logical replication target relation {where} has an operator class "
                f"without equality, of {named}"
            )
            hint = (
                "On the target: ALTER OPERATOR FAMILY … ADD OPERATOR, the equality of the "
                f"operator class; or ALTER TABLE {self.quoted} REPLICA IDENTITY USING INDEX one "
                "with another operator class."
            )
        elif self.key_not_sent:
            message = (
                "publisher did not send replica identity column expected by the logical "
                f"replication target relation {where}"
            )
            hint = (
                f"The target finds rows by {', '.join(self.key_not_sent)}, which the source's "
                f"replica identity has not. Give it the source's key, on the target: "
                f"{self._source_key_sql()} With ALTER TABLE {_plainly(self.relation)} REPLICA "
                "IDENTITY FULL on the source, what is written after it finds its rows, too, but "
                "not this."
            )
        else:
            message = (
                f"logical replication target relation {where} has neither REPLICA IDENTITY index "
                "nor PRIMARY KEY and published relation does not have REPLICA IDENTITY FULL"
            )
            key = ", ".join(
                self.columns[i].quoted for i, c in enumerate(self.relation.columns) if c.is_key
            )
            hint = f"On the target: ALTER TABLE {self.quoted} ADD PRIMARY KEY ({key});"
        raise TargetTableUnusable(message, hint=hint, relation=f"{self.schema}.{self.name}")

    def _source_key_sql(self) -> str:
        """Return the SQL that has rows found by the source's replica identity."""
        key = [self.columns[i].quoted for i, c in enumerate(self.relation.columns) if c.is_key]
        if self.kind == "p":
            return (
                f"a unique index of ({', '.join(key)}) on each partition of {self.quoted}, and "
                "ALTER TABLE … REPLICA IDENTITY USING INDEX with it."
            )
        index = quote_identifier(f"{self.name}_source_key")
        not_null = ", ".join(f"ALTER {column} SET NOT NULL" for column in key)
        return (
            f"CREATE UNIQUE INDEX {index} ON {self.quoted} ({', '.join(key)}); "
            f"ALTER TABLE {self.quoted} {not_null}; "
            f"ALTER TABLE {self.quoted} REPLICA IDENTITY USING INDEX {index};"
        )


def _plainly(relation: SourceRelation) -> str:
    return f"{quote_identifier(relation.schema)}.{quote_identifier(relation.name)}"
