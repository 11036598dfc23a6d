"""Names of types as PostgreSQL shows them to people: ``integer``, ``text[]``,
``"Odd schema".mood``.

Source: format_type_be, format_type_with_typemod (src/backend/utils/adt/format_type.c) and the
typmodout functions
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spillway.pg.identifier import quote_identifier, quote_qualified_identifier
from spillway.pg.standard_types import SQL_NAMES
from spillway.pg.text_settings import DEFAULT_VISIBLE_SCHEMAS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spillway.catalog.descriptor import TypeDescriptor

_BPCHAR: Final = 1042
_VARCHAR: Final = 1043
_INTERVAL: Final = 1186
_BIT: Final = 1560
_NUMERIC: Final = 1700
#: time, timestamp, timestamptz, timetz: the precision stands within the name
_WITH_PRECISION: Final = frozenset({1083, 1114, 1184, 1266})
_VARHDRSZ: Final = 4

#: INTERVAL_RANGE's bits, as intervaltypmodin sets them
_MONTH, _YEAR, _DAY, _HOUR, _MINUTE, _SECOND = (1 << bit for bit in (1, 2, 3, 10, 11, 12))
_INTERVAL_FIELDS: Final = {
    _YEAR: " year",
    _MONTH: " month",
    _DAY: " day",
    _HOUR: " hour",
    _MINUTE: " minute",
    _SECOND: " second",
    _YEAR | _MONTH: " year to month",
    _DAY | _HOUR: " day to hour",
    _DAY | _HOUR | _MINUTE: " day to minute",
    _DAY | _HOUR | _MINUTE | _SECOND: " day to second",
    _HOUR | _MINUTE: " hour to minute",
    _HOUR | _MINUTE | _SECOND: " hour to second",
    _MINUTE | _SECOND: " minute to second",
}
_INTERVAL_FULL_PRECISION: Final = 0xFFFF

#: int2vector and oidvector, the arrays of plain storage.
_VECTORS: Final = frozenset({22, 30})

#: Types of pg_catalog that people may name something of theirs after, a table called ``line`` for
#: one: what is called so in public is hidden behind it. (Names with pg_ and _ are left out.) The
#: same in 14 to 18.
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


def format_type(
    oid: int,
    types: Mapping[int, TypeDescriptor],
    server_version_num: int,
    visible: frozenset[str] = DEFAULT_VISIBLE_SCHEMAS,
) -> str:
    """Return a type's name as format_type_be does, without a type modifier.

    PostgreSQL leaves the schema out for what its session's search_path finds first; here that is
    what *visible* has, pg_catalog first. A type that is not known is ``???``, as there.
    """
    name = SQL_NAMES.get(oid)
    if name is not None:
        return name
    descriptor = types.get(oid)
    if descriptor is None:
        return "???"
    element = _element(descriptor)
    if element:
        return format_type(element, types, server_version_num, visible) + "[]"
    return _plain_name(descriptor, server_version_num, visible)


def format_type_with_typmod(
    oid: int,
    typmod: int,
    types: Mapping[int, TypeDescriptor],
    server_version_num: int,
    visible: frozenset[str] = DEFAULT_VISIBLE_SCHEMAS,
) -> str:
    """Return a type's name with its modifier, ``numeric(10,2)[]``, as format_type_with_typemod
    does.

    -1 is a modifier too: ``character`` would mean ``character(1)``, so bpchar without one is called
    ``bpchar``. A modifier whose typmodout function is an extension's is printed as the number it
    is.
    """
    descriptor = types.get(oid)
    element = _element(descriptor) if descriptor is not None else 0
    if element:
        return format_type_with_typmod(element, typmod, types, server_version_num, visible) + "[]"
    if typmod < 0:
        if oid in {_BIT, _BPCHAR} and descriptor is not None:
            return _plain_name(descriptor, server_version_num, visible)
        return format_type(oid, types, server_version_num, visible)
    name = format_type(oid, types, server_version_num, visible)
    if oid in _WITH_PRECISION:
        # ``timestamp(3) without time zone``
        first, _, rest = name.partition(" ")
        return f"{first}({typmod}) {rest}"
    return name + _modifier(oid, typmod)


def numeric_typmod(typmod: int) -> tuple[int, int]:
    """Split numeric's modifier; the scale has 11 bits with a sign since 15, and was below 1001
    before.
    """
    value = typmod - _VARHDRSZ
    return (value >> 16) & 0xFFFF, ((value & 0x7FF) ^ 0x400) - 0x400


def _modifier(oid: int, typmod: int) -> str:
    if oid in {_BPCHAR, _VARCHAR}:
        return f"({typmod - _VARHDRSZ})" if typmod > _VARHDRSZ else ""
    if oid == _NUMERIC:
        return "({},{})".format(*numeric_typmod(typmod)) if typmod >= _VARHDRSZ else ""
    if oid == _INTERVAL:
        precision = typmod & 0xFFFF
        fields = _INTERVAL_FIELDS.get((typmod >> 16) & 0x7FFF, "")
        return fields if precision == _INTERVAL_FULL_PRECISION else f"{fields}({precision})"
    return f"({typmod})"


def _element(descriptor: TypeDescriptor) -> int:
    """The element of an array that is called after it: not a fixed-length one (point), not one of
    plain storage.
    """
    if descriptor.is_array and descriptor.oid not in _VECTORS:
        return descriptor.element_oid
    return 0


def _plain_name(
    descriptor: TypeDescriptor, server_version_num: int, visible: frozenset[str]
) -> str:
    hidden = descriptor.schema == "public" and descriptor.name in _CATALOG_TYPES
    if descriptor.schema in visible and not hidden:
        return quote_identifier(descriptor.name, server_version_num)
    return quote_qualified_identifier(descriptor.schema, descriptor.name, server_version_num)
