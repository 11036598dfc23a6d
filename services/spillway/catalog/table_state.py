"""How a table is defined at one point of WAL, as far as the mirrored catalogs say it: for who
compares a table before and after DDL.

It is the table's descriptor without publications, with what rows need not be read by: its parent,
which columns have a default, collations, where it is stored. What a default, a constraint or a
partition's bounds say is in catalogs as trees of nodes, which only a server prints; whether there is
a default is known.

Source: src/include/catalog/pg_{attribute,class,collation}.h; RemoveAttrDefaultById and
StoreAttrDefault, src/backend/catalog/pg_attrdef.c
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spillway.catalog.descriptor import FIRST_NORMAL_OID, RelationDescriptor
from spillway.catalog.layout import (
    ATTRIBUTE_BY_RELATION,
    COLLATION_BY_OID,
    NAMESPACE_BY_OID,
    PG_ATTRIBUTE,
    PG_COLLATION,
    PG_NAMESPACE,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spillway.catalog.descriptor import ColumnDescriptor
    from spillway.catalog.layout import PgClass
    from spillway.catalog.visible_rows import VisibleRows

#: pg_collation.oid of "default"
_DEFAULT_COLLATION: Final = 100


class _Version(NamedTuple):
    """A version of a row of pg_attribute: where it is, and its bytes, None when SQL showed it."""

    tid: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class TableState:
    """A table's definition."""

    #: without publications and ancestors
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
        return self._definition() == other._definition() and not self.replaced_defaults(other)

    def replaced_defaults(self, before: TableState) -> tuple[int, ...]:
        """Return the attnums of columns that had a default, have one, and were given another.

        SET DEFAULT takes the old one away and leaves the column's row as it was, but anew; other
        commands change something in it. Of a row that SQL showed when the mirror was made the bytes
        are not known, and it counts.
        """
        if self.defaults is None or before.defaults is None:
            return ()
        both = set(self.defaults) & set(before.defaults)
        return tuple(
            attnum
            for attnum in sorted(both)
            if _is_same_anew(before.versions[attnum], self.versions[attnum])
            and _shape(self.descriptor.columns[attnum - 1])
            == _shape(before.descriptor.columns[attnum - 1])
        )

    def _definition(self) -> tuple[Any, ...]:
        table = self.descriptor
        return (
            table.schema, table.name, table.kind, table.replica_identity,
            tuple(map(_shape, table.columns)), table.primary_key, table.identity_columns,
            self.parent, self.defaults, self.collations,
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


def table_state(rows: VisibleRows, row: PgClass, descriptor: RelationDescriptor) -> TableState:
    """Return how the table of *row*, which *descriptor* describes, is defined in *rows*."""
    tuples = [
        tup
        for tup in rows.tuples(PG_ATTRIBUTE, ATTRIBUTE_BY_RELATION, row.oid)
        if tup.row.attnum > 0 and not tup.row.attisdropped
    ]
    tuples.sort(key=lambda tup: tup.row.attnum)
    with_default = [tup for tup in tuples if tup.row.atthasdef and not tup.row.attgenerated]
    is_known = all(tup.row.atthasdef is not None for tup in tuples)
    parent = descriptor.ancestors[0] if descriptor.ancestors else None
    return TableState(
        replace(
            descriptor, publications=(), database_publications=(), memberships=(), ancestors=()
        ),
        None if parent is None else (parent.oid, parent.schema, parent.name),
        tuple(tup.row.attnum for tup in with_default) if is_known else None,
        tuple(
            (tup.row.attnum, *found)
            for tup in tuples
            if tup.row.attcollation and (found := _collation(rows, tup.row.attcollation))
        ),
        row.relfilenode,
        {tup.row.attnum: _Version(tup.tid, tup.data) for tup in with_default},
    )


def _collation(rows: VisibleRows, oid: int) -> tuple[str, str] | None:
    """Return schema and name of a collation; None for the default one."""
    if oid == _DEFAULT_COLLATION:
        return None
    row = rows.row(PG_COLLATION, COLLATION_BY_OID, oid)
    if row is None:
        return None
    schema = rows.row(PG_NAMESPACE, NAMESPACE_BY_OID, row.collnamespace)
    return (schema.nspname if schema is not None else "", row.collname)


def _is_same_anew(before: _Version, after: _Version) -> bool:
    return before.tid != after.tid and (before.data is None or before.data == after.data)


def _shape(column: ColumnDescriptor) -> tuple[Any, ...]:
    """What of a column is its definition: not the value that older rows have."""
    return (
        column.attnum, column.name, column.type_oid, column.typmod, column.dropped,
        column.not_null, column.generated, column.identity,
    )  # fmt: skip
