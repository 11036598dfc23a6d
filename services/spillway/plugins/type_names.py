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

#: Types of pg_catalog that people may name something of theirs after, a table called ``line`` for one: what
#: is called so in public is hidden behind it. (Names with pg_ and _ are left out.) The same in 14 to 18.
_CATALOG_TYPE_NAMES: Final = """
aclitem any anyarray anycompatible anycompatiblearray anycompatiblemultirange
anycompatiblenonarray anycompatiblerange anyelement anyenum anymultirange anynonarray anyrange
bit bool box bpchar bytea char cid cidr circle cstring date datemultirange daterange
event_trigger fdw_handler float4 float8 gtsvector index_am_handler inet int2 int2vector int4
int4multirange int4range int8 int8multirange int8range internal interval json jsonb jsonpath
language_handler line lseg macaddr macaddr8 money name numeric nummultirange numrange oid
oidvector path point polygon record refcursor regclass regcollation regconfig regdictionary
regnamespace regoper regoperator regproc regprocedure regrole regtype table_am_handler text tid
time timestamp timestamptz timetz trigger tsm_handler tsmultirange tsquery tsrange
tstzmultirange tstzrange tsvector txid_snapshot unknown uuid varbit varchar void xid xid8 xml
"""
_CATALOG_TYPES: Final = frozenset(_CATALOG_TYPE_NAMES.split())

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
    hidden = descriptor.schema == "public" and descriptor.name in _CATALOG_TYPES
    if descriptor.schema in _VISIBLE_SCHEMAS and not hidden:
        return quote_identifier(descriptor.name, server_version_num)
    return quote_qualified_identifier(descriptor.schema, descriptor.name, server_version_num)
