"""Names of types as PostgreSQL shows them to people: ``integer``, ``text[]``, ``"Odd schema".mood``.

Source: format_type_be (src/backend/utils/adt/format_type.c)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spillway.pg.identifier import quote_identifier, quote_qualified_identifier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spillway.catalog.descriptor import TypeDescriptor

#: Types that have a name in the SQL standard, by oid.
_SQL_NAMES: Final = {
    16: "boolean",
    20: "bigint",
    21: "smallint",
    23: "integer",
    114: "json",
    700: "real",
    701: "double precision",
    1042: "character",
    1043: "character varying",
    1082: "date",
    1083: "time without time zone",
    1114: "timestamp without time zone",
    1184: "timestamp with time zone",
    1186: "interval",
    1266: "time with time zone",
    1560: "bit",
    1562: "bit varying",
    1700: "numeric",
}

#: int2vector and oidvector, the arrays of plain storage.
_VECTORS: Final = frozenset({22, 30})

#: What search_path has by default besides "$user": names there are written without their schema.
_VISIBLE_SCHEMAS: Final = frozenset({"pg_catalog", "public"})


def format_type(oid: int, types: Mapping[int, TypeDescriptor], server_version_num: int) -> str:
    """Return a type's name as format_type_be does, without a type modifier.

    PostgreSQL leaves the schema out for what its session's search_path finds first; here that is
    pg_catalog and public. A type that is not known is ``???``, as there.
    """
    name = _SQL_NAMES.get(oid)
    if name is not None:
        return name
    descriptor = types.get(oid)
    if descriptor is None:
        return "???"
    # A true array is called after its element: not a fixed-length one (point), not one of plain storage.
    if descriptor.is_array and descriptor.element_oid and oid not in _VECTORS:
        return format_type(descriptor.element_oid, types, server_version_num) + "[]"
    if descriptor.schema in _VISIBLE_SCHEMAS:
        return quote_identifier(descriptor.name, server_version_num)
    return quote_qualified_identifier(descriptor.schema, descriptor.name, server_version_num)
