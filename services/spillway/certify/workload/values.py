"""Values of every type, as SQL expressions.

An expression may contain ``{g}``: a number that differs from row to row. Values are few per type
and chosen for what is hard in them: limits, infinities, empty ones, characters that need quotes,
values long enough to be compressed or stored out of line. An expression's own type is the column's,
or casts to it on assignment.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

    from spillway.certify.workload.view import Column

#: Text that compresses badly: so many digests of 32 characters each.
_NOISE: Final = "(SELECT string_agg(md5(({g} * 31 + n)::text), '') FROM generate_series(1, %d) n)"
#: Values from about 2 kB on leave the row, if they don't compress to less.
_LARGE_TEXT: Final = [
    _NOISE % 70,
    _NOISE % 300,
    "repeat('abcdefgh' || {g}, 3000)",
    "repeat('x', 40000) || {g}",
    _NOISE % 30 + " || repeat('z', 6000)",
]
_TEXT: Final = [
    "''", "'a'", "'v' || {g}", "'it''s'", "'say \"hi\"'", r"'back\slash'", "E'tab\\there\\nline'",
    "'línea ☃ 🎉'",
    "' spaces '", "'NULL'", "repeat('y', {g} % 300)", "'{a,b}'",
]  # fmt: skip
_DATES: Final = ["'2000-01-01'", "'1999-12-31'", "'0001-12-31 BC'", "'4713-01-01 BC'",
                 "'5874897-12-31'", "'infinity'",
                 "'-infinity'", "'2024-02-29'"]  # fmt: skip
_TIMESTAMPS: Final = ["'2000-01-01 00:00'", "'1999-12-31 23:59:59.999999'", "'0044-03-15 12:00 BC'",
                      "'294276-12-31 23:59:59'",
                      "'infinity'", "'-infinity'", "'1883-11-18 12:03:57'",
                      "'2024-06-15 12:34:56.5'"]  # fmt: skip
_JSONB: Final = [
    """'{"a": 1, "b": [true, null, "x"]}'""", "'[]'", "'null'", "'1.50'", """'"str"'""",
    "jsonb_build_object('k', {g}, 'n', jsonb_build_array({g}, 'two'))",
    "to_jsonb(repeat('j', 5000) || {g})",
]  # fmt: skip

#: By the name that format_type shows, modifiers left out.
VALUES: Final[dict[str, list[str]]] = {
    "boolean": ["true", "false", "{g} % 2 = 0"],
    "smallint": ["0", "-1", "32767", "-32768", "({g} % 30000)::smallint"],
    "integer": ["0", "-1", "2147483647", "-2147483648", "{g}"],
    "bigint": ["0", "-1", "9223372036854775807", "-9223372036854775808", "{g} * 10000000000"],
    "oid": ["0", "1", "4294967295"],
    "text": [*_TEXT, *_LARGE_TEXT],
    "character varying": [*_TEXT[:8], "repeat('y', {g} % 20)"],
    "character": ["'a'", "''", "'ab cd'"],
    '"char"': ["'a'", "''", r"'\'"],
    "name": ["'a'", "'with space'", "repeat('x', 63)"],
    "bytea": [r"'\x'", r"'\x00ff5c27'", r"decode(repeat('ab', 3000), 'hex')",
              f"decode({_NOISE % 200}, 'hex')"],
    "numeric": ["0", "-0.00", "1.5", "'NaN'", "'Infinity'", "'-Infinity'",
                "12345678901234567890.123456789", "1e-20", "1e100",
                "{g} / 3.0", "0.0001", "10000"],
    "real": ["0", "'-0'", "1.5", "'NaN'", "'Infinity'", "1e6", "0.00009", "{g} / 7.0",
             "3.4028235e38"],
    "double precision": ["0", "'-0'", "1.5", "'NaN'", "'-Infinity'", "1e15", "0.00001", "{g} / 7.0",
                         "5e-324", "1e23"],
    "money": ["'0'", "'-0.05'", "'92233720368547758.07'", "'1234567.89'"],
    "uuid": ["'00000000-0000-0000-0000-000000000000'", "md5({g}::text)::uuid"],
    "date": [*_DATES, "'2020-01-01'::date + {g}"],
    "time without time zone": ["'00:00'", "'24:00:00'", "'12:34:56.000001'"],
    "time with time zone": ["'00:00+00'", "'23:59:59.999999-15:59:59'", "'12:00+05:30'"],
    "timestamp without time zone": [*_TIMESTAMPS,
                                    "'2020-01-01'::timestamp + {g} * interval '1 hour'"],
    "timestamp with time zone": ["'2000-01-01 00:00Z'", "'infinity'", "'0044-03-15 12:00Z BC'",
                                 "'2020-01-01 00:00Z'::timestamptz + {g} * interval '1 s'"],
    "interval": ["'0'", "'1 year 2 mons -3 days'", "'-1 mon 00:00:00.000001'", "'-178000000 years'",
                 "{g} * interval '1 min'"],
    "bit": ["B'10110'", "B'00000'"],
    "bit varying": ["''", "B'1'", "B'10101010101'"],
    "json": ["""'{"a" :  [1,2]}'""", "'\"x\"'", "to_json({g})"],
    "jsonb": _JSONB,
    "jsonpath": ["'$.a[*] ? (@ > 1)'", "'strict $.b'", "'$[1, 3 to last]'"],
    "xml": ["'<a/>'", "'x<b/>'", """'<a x="1">t</a>'"""],
    "inet": ["'192.168.1.5'", "'::1'", "'10.0.0.0/8'", "'::ffff:1.2.3.4'"],
    "cidr": ["'10.0.0.0/8'", "'2001:4f8:3:ba::/64'"],
    "macaddr": ["'08:00:2b:01:02:03'"],
    "macaddr8": ["'08:00:2b:01:02:03:04:05'"],
    "pg_lsn": ["'0/0'", "'16/B374D848'", "'FFFFFFFF/FFFFFFFF'"],
    "tid": ["'(0,1)'", "'(4294967295,65535)'"],
    "xid": ["'0'", "'4294967295'"],
    "xid8": ["'0'", "'18446744073709551615'"],
    "tsvector": ["'a fat cat'", "to_tsvector('simple', 'row ' || {g})", "'''it''''s'':1A,2B'"],
    "tsquery": ["'a & b | !c'", "'a <-> (b <-> c)'", "'a:*B'"],
    "point": ["'(1,2)'", "'(-0,1e300)'", "point({g}, 0.5)"],
    "lseg": ["'[(0,1),(2,3.5)]'"],
    "box": ["'(1,2),(3,4)'"],
    "line": ["'{1,-2,3}'"],
    "path": ["'((0,0),(1,1),(2,0))'", "'[(0,0),(1,1)]'"],
    "polygon": ["'((0,0),(1,1),(2,0))'"],
    "circle": ["'<(1,2),3>'"],
    "int4range": ["'empty'", "'[1,5)'", "'(,)'", "int4range({g}, {g} + 5)"],
    "int8range": ["'[,5)'", "'empty'"],
    "numrange": ["'[1.5,2.5]'", "'(,3)'"],
    "daterange": ["'[2020-01-01,2021-01-01)'", "'(,infinity)'"],
    "tsrange": ["'[2020-01-01 00:00,2021-01-01 12:30:00.5)'"],
    "tstzrange": ["'[2020-01-01 00:00+00,)'"],
    "int4multirange": ["'{}'", "'{[1,3),[5,7)}'"],
    "nummultirange": ["'{[1.1,2.2),(3,4]}'"],
    "datemultirange": ["'{[2020-01-01,2020-01-02)}'"],
    "pg_snapshot": ["'10:20:10,14,15'"],
    "txid_snapshot": ["'10:20:10,14,15'"],
    "int2vector": ["''", "'1 -2 3'"],
    "oidvector": ["'1 2 3'"],
    "integer[]": ["'{}'", "'{1,NULL,3}'", "'[0:1]={1,2}'", "'{{1,2},{3,4}}'", "ARRAY[{g}, -{g}]",
                  "array_fill({g}, ARRAY[2000])"],
    "text[]": ["'{}'", """'{a,"b c",NULL,"null",""}'""", "ARRAY['x' || {g}, repeat('long', 900)]"],
    "numeric[]": ["'{1.5,NULL,-2}'"],
    "jsonb[]": ["""ARRAY['{"a": 1}'::jsonb, NULL]"""],
    "uuid[]": ["ARRAY[md5({g}::text)::uuid]"],
    "timestamp with time zone[]": ["'{2024-01-01 00:00:00+00,infinity}'"],
    "point[]": ["""'{"(1,2)",NULL}'"""],
    "box[]": ["'{(1,2),(3,4);(5,6),(7,8)}'"],
    "int4range[]": ["""'{"[1,2)",empty}'"""],
}  # fmt: skip

#: What new columns are made of, as DDL writes them: ordinary ones first and more often.
ORDINARY_TYPES: Final = [
    "integer",
    "bigint",
    "text",
    "text",
    "numeric",
    "boolean",
    "timestamptz",
    "varchar(30)",
    "jsonb",
    "date",
]
OTHER_TYPES: Final = [
    "smallint", "oid", "char(5)", '"char"', "name", "bytea", "numeric(12,4)", "real",
    "double precision", "money", "uuid",
    "time", "timetz", "timestamp", "interval", "bit(5)", "bit varying", "json", "jsonpath", "xml",
    "inet", "cidr", "macaddr", "macaddr8", "pg_lsn", "tid", "xid", "xid8", "tsvector", "tsquery",
    "point", "lseg", "box", "line", "path", "polygon", "circle",
    "int4range", "int8range", "numrange", "daterange", "tsrange", "tstzrange", "int4multirange",
    "nummultirange",
    "datemultirange", "pg_snapshot", "txid_snapshot", "int2vector", "oidvector", "integer[]",
    "text[]", "numeric[]", "jsonb[]",
    "uuid[]", "timestamptz[]", "point[]", "box[]", "int4range[]",
]  # fmt: skip
#: Types with a cheap constant that ALTER TABLE … ADD COLUMN … DEFAULT stores as a missing value.
DEFAULTS: Final[dict[str, str]] = {
    "integer": "7", "bigint": "-1", "smallint": "2", "text": "'some ''text'''",
    "numeric": "12.3400", "boolean": "true",
    "timestamptz": "'2026-01-01 12:00+02'", "varchar(30)": "'vc'", "jsonb": """'{"a": [1, 2]}'""",
    "date": "'2020-02-29'",
    "uuid": "'11111111-2222-3333-4444-555555555555'", "double precision": "1.5",
    "integer[]": "'{1,NULL,3}'", "bytea": r"'\xdead'",
    "interval": "'1 day 02:00'", "text[]": "'{a,\"b c\"}'", "char(5)": "'c'", "real": "0.1",
    "name": "'nm'",
}  # fmt: skip
#: Column type → types that ALTER TYPE may change it to, with USING. All rewrite the table or need
#: not.
CONVERSIONS: Final[dict[str, list[str]]] = {
    "smallint": ["integer", "bigint", "text"],
    "integer": ["bigint", "numeric", "text", "double precision"],
    "bigint": ["numeric", "text"],
    "numeric": ["text", "numeric(40,4)"],
    "text": ["varchar(90000)", "text[]", "bytea", "name"],
    "character varying": ["text", "varchar(200)"],
    "boolean": ["text", "integer"],
    "date": ["timestamp", "text"],
    "timestamp with time zone": ["timestamp", "text"],
    "jsonb": ["text", "json"],
    "json": ["text"],
    "uuid": ["text"],
    "inet": ["text"],
}
#: How a column is converted where a plain cast does not do.
CONVERSION_USING: Final[dict[tuple[str, str], str]] = {
    ("text", "text[]"): "ARRAY[{column}]",
    ("text", "bytea"): "convert_to({column}, 'UTF8')",
    ("text", "name"): "left({column}, 60)::name",
    ("text", "varchar(90000)"): "left({column}, 90000)",
    ("integer", "double precision"): "{column} / 3.0",
}

_MODIFIER: Final = re.compile(r"\(\d+(,-?\d+)?\)")


def plain_type(type_name: str) -> str:
    """Return what format_type shows, without modifiers."""
    return _MODIFIER.sub("", type_name)


def value(rng: random.Random, column: Column, g: str, *, large: bool = True) -> str:
    """Return an expression for a value of *column*; *g* is a number's expression.

    *large*: may be large enough to leave its row.
    """
    if not column.not_null and rng.random() < 0.08:
        return "NULL"
    if column.labels:
        label = rng.choice(column.labels).replace("'", "''")
        return f"'{label}'"
    plain = plain_type(column.type)
    if column.type_kind == "c":
        return (
            f"jsonb_populate_record(NULL::{column.type}, jsonb_build_object('a', {g}, 'b', 'x,\"' "
            f"|| {g}, 'c', '2020-01-01'))"
        )
    if column.type_kind == "d":
        return f"({g} % 1000 + 1)::{column.type}" if column.base == "integer" else f"'dom' || {g}"
    if column.type_kind == "r":
        return rng.choice(["'[a,b)'", "'empty'", """'["a b","c""d")'"""])
    choices = VALUES.get(plain)
    if choices is None:
        if column.type.endswith("[]") and column.element_labels:
            label = rng.choice(column.element_labels).replace("'", "''")
            return f"ARRAY['{label}', NULL]::{column.type}"
        return "NULL"
    if not large:
        choices = [
            choice for choice in choices if "repeat(" not in choice and "string_agg" not in choice
        ]
    expression = rng.choice(choices).replace("{g}", g)
    if match := _MODIFIER.search(column.type):
        return _fitted(expression, plain, column.type, match[0])
    return expression


def _fitted(expression: str, plain: str, type_name: str, modifier: str) -> str:
    """Make a value fit a length or a precision."""
    if plain in ("character varying", "character"):
        return f"left({expression}, {modifier.strip('()')})"
    if plain == "numeric":
        return (
            "round((1.5)::numeric, 2)" if "e" in expression or len(expression) > 8 else expression
        )
    return f"({expression})::{type_name}"
