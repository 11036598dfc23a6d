"""How a table is defined at one point of WAL, as far as the mirrored catalogs say it: for who
compares a table before and after DDL.

It is the table's descriptor without publications, with what rows need not be read by: its parent,
which columns have a default, collations, where it is stored. What a default, a constraint or a
partition's bounds say is in catalogs as trees of nodes, which only a server prints; whether there
is a default is known.

Source: src/include/catalog/pg_{attribute,class,collation}.h; RemoveAttrDefaultById and
StoreAttrDefault, src/backend/catalog/pg_attrdef.c
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spillway.catalog.descriptor import FIRST_NORMAL_OID, RelationDescriptor
from spillway.catalog.layout import (
    ATTRIBUTE_BY_RELATION,
    CLASS_BY_OID,
    COLLATION_BY_OID,
    INDEX_BY_RELATION,
    NAMESPACE_BY_OID,
    PG_ATTRIBUTE,
    PG_CLASS,
    PG_COLLATION,
    PG_INDEX,
    PG_NAMESPACE,
)
from spillway.catalog.publications import ancestors_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spillway._kernels.catalog.tuples import CatalogTuple
    from spillway.catalog.descriptor import ColumnDescriptor
    from spillway.catalog.layout import PgClass, PgIndex
    from spillway.catalog.visible_rows import VisibleRows

#: pg_collation.oid of "default"
_DEFAULT_COLLATION: Final = 100


class TableRows(NamedTuple):
    """The rows that say how a table is defined, as one transaction sees them.

    Where they are equal nothing was changed of the table, and nobody need describe it: that is so
    with most of what invalidates a table (ANALYZE, GRANT, SET (…), triggers). Columns are compared
    as versions of their rows, so that one is known again without being looked at.
    """

    table: PgClass
    #: name of the table's schema
    schema: str
    #: oid, schema and name of the table that it is a partition of
    parent: tuple[int, str, str] | None
    #: versions of pg_attribute's rows with attnum > 0, in order, dropped columns too
    columns: list[CatalogTuple]
    #: attnum, schema and name of collations that are not the default
    collations: tuple[tuple[int, str, str], ...]
    #: in the order of their oids
    indexes: list[PgIndex]

    @property
    def live(self) -> list[CatalogTuple]:
        """The columns that were not dropped."""
        return [tup for tup in self.columns if not tup.row.attisdropped]


class _Version(NamedTuple):
    """A version of a row of pg_attribute: where it is, and its bytes, None when SQL showed it."""

    tid: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class TableState:
    """A table's definition."""

    #: without publications, ancestors, and columns that were dropped
    descriptor: RelationDescriptor
    #: oid, schema and name of the table that it is a partition of, or inherits from
    parent: tuple[int, str, str] | None
    #: attnums of the columns with a default, generated ones left out; None: not known
    defaults: tuple[int, ...] | None
    #: attnum, schema and name of collations that are not the default
    collations: tuple[tuple[int, str, str], ...]
    #: pg_class.relfilenode: another one means that the table was rewritten, or truncated
    storage: int
    #: of the columns with a default
    versions: Mapping[int, _Version]

    def defines_as(self, other: TableState) -> bool:
        """Say whether both define the table alike, wherever it is stored."""
        return (
            self._definition() == other._definition()
            and _have_same_shape(self.descriptor.columns, other.descriptor.columns)
            and not self.replaced_defaults(other)
        )

    def replaced_defaults(self, before: TableState) -> tuple[int, ...]:
        """Return the attnums of columns that had a default, have one, and were given another.

        SET DEFAULT takes the old one away and leaves the column's row as it was, but anew; other
        commands change something in it. Of a row that SQL showed when the mirror was made the bytes
        are not known, and it counts.
        """
        if self.defaults is None or before.defaults is None:
            return ()
        both = set(self.defaults) & set(before.defaults)
        if not both:
            return ()
        now, then = (
            {column.attnum: column for column in state.descriptor.columns}
            for state in (self, before)
        )
        return tuple(
            attnum
            for attnum in sorted(both)
            if _is_same_anew(before.versions[attnum], self.versions[attnum])
            and _shape(now[attnum]) == _shape(then[attnum])
        )

    def _definition(self) -> tuple[Any, ...]:
        table = self.descriptor
        return (
            table.schema, table.name, table.kind, table.replica_identity, table.primary_key,
            table.identity_columns, self.parent, self.defaults, self.collations,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "table": self.descriptor.to_json(),
            "parent": self.parent,
            "defaults": self.defaults,
            "collations": self.collations,
        }


def is_logged_table(row: PgClass) -> bool:
    """Say whether a row of pg_class is a user's table with rows in WAL, or partitioned."""
    return (
        row.relkind in "rp"
        and row.relpersistence == "p"
        and not row.relrewrite
        and row.oid >= FIRST_NORMAL_OID
    )


def table_rows(rows: VisibleRows, oid: int) -> TableRows | None:
    """Return what says in *rows* how a user's table is defined; None if there is no such table, or
    a temporary or unlogged one.

    Raises:
        DecodingError: a row is there twice.
    """
    row: PgClass | None = rows.row(PG_CLASS, CLASS_BY_OID, oid)
    if row is None or not is_logged_table(row):
        return None
    columns = [
        tup for tup in rows.tuples(PG_ATTRIBUTE, ATTRIBUTE_BY_RELATION, oid) if tup.row.attnum > 0
    ]
    columns.sort(key=_attnum)
    parents = ancestors_of(rows, row)
    return TableRows(
        row,
        _schema(rows, row.relnamespace),
        (parents[0].oid, _schema(rows, parents[0].relnamespace), parents[0].relname)
        if parents
        else None,
        columns,
        tuple(
            (tup.row.attnum, *found)
            for tup in columns
            if not tup.row.attisdropped
            and tup.row.attcollation
            and (found := _collation(rows, tup.row.attcollation))
        ),
        sorted(rows.rows(PG_INDEX, INDEX_BY_RELATION, oid)),
    )


def table_state(rows: TableRows, descriptor: RelationDescriptor) -> TableState:
    """Return how a table is defined that has *rows*, and *descriptor* describes."""
    live = rows.live
    with_default = [tup for tup in live if tup.row.atthasdef and not tup.row.attgenerated]
    is_known = all(tup.row.atthasdef is not None for tup in live)
    return TableState(
        descriptor,
        rows.parent,
        tuple(tup.row.attnum for tup in with_default) if is_known else None,
        rows.collations,
        rows.table.relfilenode,
        {tup.row.attnum: _Version(tup.tid, tup.data) for tup in with_default},
    )


def _attnum(tup: CatalogTuple) -> int:
    attnum: int = tup.row.attnum
    return attnum


def _schema(rows: VisibleRows, oid: int) -> str:
    row = rows.row(PG_NAMESPACE, NAMESPACE_BY_OID, oid)
    return row.nspname if row is not None else ""


def _collation(rows: VisibleRows, oid: int) -> tuple[str, str] | None:
    """Return schema and name of a collation; None for the default one."""
    if oid == _DEFAULT_COLLATION:
        return None
    row = rows.row(PG_COLLATION, COLLATION_BY_OID, oid)
    if row is None:
        return None
    return (_schema(rows, row.collnamespace), row.collname)


def _is_same_anew(before: _Version, after: _Version) -> bool:
    return before.tid != after.tid and (before.data is None or before.data == after.data)


def _have_same_shape(
    columns: Sequence[ColumnDescriptor], others: Sequence[ColumnDescriptor]
) -> bool:
    return len(columns) == len(others) and all(
        one is other or _shape(one) == _shape(other)
        for one, other in zip(columns, others, strict=True)
    )


def _shape(column: ColumnDescriptor) -> tuple[Any, ...]:
    """What of a column is its definition: not the value that older rows have."""
    return (
        column.attnum, column.name, column.type_oid, column.typmod, column.dropped,
        column.not_null, column.generated, column.identity,
    )  # fmt: skip
