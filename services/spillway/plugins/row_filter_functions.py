"""The built-in functions that row filters may use here: their oids, which no release changes, and
what they do.

Values are Arrow arrays: integers, floats and booleans as such; date, time and timestamps as
PostgreSQL's integers, whose order is theirs, infinity included; text and bytea as bytes; char(n)
without its padding; numeric and interval as bytes that sort as they do. A float compares as in
PostgreSQL: NaN equals NaN and is above all others.

Functions are strict: null for a null argument. What may raise says so, because it must not be
evaluated for rows that PostgreSQL does not evaluate it for.

Source: src/include/catalog/pg_proc.dat, pg_operator.dat
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BOOL, BYTEA, NAME, INT8, INT2, INT4, TEXT, OID = 16, 17, 19, 20, 21, 23, 25, 26
FLOAT4, FLOAT8, BPCHAR, VARCHAR, DATE, TIME = 700, 701, 1042, 1043, 1082, 1083
TIMESTAMP, TIMESTAMPTZ, INTERVAL, NUMERIC, UUID = 1114, 1184, 1186, 1700, 2950

#: type → how the kernel gathers it, bytes of a value (0: they vary), its Arrow array
COLUMN_TYPES: Final[Mapping[int, tuple[str, int, pa.DataType]]] = {
    BOOL: ("bool", 0, pa.bool_()),
    INT2: ("fixed", 2, pa.int16()),
    INT4: ("fixed", 4, pa.int32()),
    INT8: ("fixed", 8, pa.int64()),
    OID: ("fixed", 4, pa.uint32()),
    FLOAT4: ("fixed", 4, pa.float32()),
    FLOAT8: ("fixed", 8, pa.float64()),
    DATE: ("fixed", 4, pa.int32()),
    TIME: ("fixed", 8, pa.int64()),
    TIMESTAMP: ("fixed", 8, pa.int64()),
    TIMESTAMPTZ: ("fixed", 8, pa.int64()),
    TEXT: ("binary", 0, pa.binary()),
    VARCHAR: ("binary", 0, pa.binary()),
    BYTEA: ("binary", 0, pa.binary()),
    UUID: ("binary", 0, pa.binary()),
    NAME: ("name", 0, pa.binary()),
    BPCHAR: ("padded", 0, pa.binary()),
    NUMERIC: ("numeric", 0, pa.binary()),
    INTERVAL: ("interval", 0, pa.binary()),
}
#: what an expression of a type evaluates to
ARROW_TYPES: Final[Mapping[int, pa.DataType]] = {
    oid: pa.float64() if oid == FLOAT4 else arrow for oid, (_, _, arrow) in COLUMN_TYPES.items()
}

#: Types whose order a collation decides.
COLLATED: Final = frozenset({TEXT, VARCHAR, BPCHAR, NAME})
#: Collations that order by bytes: C, POSIX, ucs_basic.
BYTEWISE_COLLATIONS: Final = frozenset({950, 951, 962})

_OPERATORS: Final = ("=", "<>", "<", "<=", ">", ">=")
#: Comparison functions in the order of ``_OPERATORS``.
_COMPARISONS: Final = (
    (60, 84, 56, 1691, 57, 1692),  # boolean
    (1948, 1953, 1949, 1950, 1951, 1952),  # bytea
    (62, 659, 655, 656, 657, 658),  # name
    (240, 245, 241, 242, 244, 243),  # name, text
    (247, 252, 248, 249, 251, 250),  # text, name
    (467, 468, 469, 471, 470, 472),  # bigint
    (1856, 1857, 1858, 1860, 1859, 1861),  # bigint, smallint
    (474, 475, 476, 478, 477, 479),  # bigint, integer
    (1850, 1851, 1852, 1854, 1853, 1855),  # smallint, bigint
    (63, 145, 64, 148, 146, 151),  # smallint
    (158, 164, 160, 166, 162, 168),  # smallint, integer
    (852, 853, 854, 856, 855, 857),  # integer, bigint
    (159, 165, 161, 167, 163, 169),  # integer, smallint
    (65, 144, 66, 149, 147, 150),  # integer
    (67, 157, 740, 741, 742, 743),  # text
    (184, 185, 716, 717, 1638, 1639),  # oid
    (287, 288, 289, 290, 291, 292),  # real
    (299, 300, 301, 302, 303, 304),  # real, double precision
    (305, 306, 307, 308, 309, 310),  # double precision, real
    (293, 294, 295, 296, 297, 298),  # double precision
    (1048, 1053, 1049, 1050, 1051, 1052),  # char(n)
    (1086, 1091, 1087, 1088, 1089, 1090),  # date
    (2340, 2343, 2338, 2339, 2341, 2342),  # date, timestamp
    (2366, 2369, 2364, 2365, 2367, 2368),  # timestamp, date
    (1145, 1106, 1102, 1103, 1104, 1105),  # time
    (2052, 2053, 2054, 2055, 2057, 2056),  # timestamp
    (1152, 1153, 1154, 1155, 1157, 1156),  # timestamptz
    (1162, 1163, 1164, 1165, 1167, 1166),  # interval
    (1718, 1719, 1722, 1723, 1720, 1721),  # numeric
    (2956, 2959, 2954, 2955, 2958, 2957),  # uuid
)
#: function → its operator
COMPARISONS: Final[Mapping[int, str]] = {
    oid: operator for row in _COMPARISONS for oid, operator in zip(row, _OPERATORS, strict=True)
}


_INT32_MAX: Final = (1 << 31) - 1
_INT64_MAX: Final = (1 << 63) - 1
_DAY_US: Final = 86_400_000_000
#: days that are a number of microseconds
_DAYS_MAX: Final = _INT64_MAX // _DAY_US


class Function(NamedTuple):
    """A function over Arrow arrays or scalars."""

    call: Callable[..., Any]
    #: it may fail for some arguments
    raises: bool = False
    #: it takes text apart by characters: the database's encoding must be UTF-8
    by_character: bool = False
    #: it compares letters, so the collation must order by bytes
    by_collation: bool = False


def compare(operator: str, a: Any, b: Any) -> Any:
    """Compare two operands of the same kind of type."""
    if pa.types.is_floating(a.type):
        return _compare_floats(operator, a, b)
    if pa.types.is_boolean(a.type):
        a, b = pc.cast(a, pa.uint8()), pc.cast(b, pa.uint8())
    return _COMPARE[operator](a, b)


_COMPARE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def _compare_floats(operator: str, a: Any, b: Any) -> Any:
    a_nan, b_nan = pc.is_nan(a), pc.is_nan(b)
    if operator in ("=", "<>"):
        same = pc.or_kleene(pc.equal(a, b), pc.and_kleene(a_nan, b_nan))
        return same if operator == "=" else pc.invert(same)
    if operator in (">", ">="):
        flipped = {">": "<", ">=": "<="}[operator]
        return _compare_floats(flipped, b, a)
    less = pc.or_kleene(pc.less(a, b), pc.and_kleene(pc.invert(a_nan), b_nan))
    return less if operator == "<" else pc.or_kleene(less, _compare_floats("=", a, b))


def timestamps_of_dates(value: Any) -> Any:
    """Dates as timestamps to compare with: infinity stays, what is later than the last is above all
    but infinity.
    """
    days = pc.cast(value, pa.int64())
    microseconds = pc.multiply(pc.min_element_wise(days, pa.scalar(_DAYS_MAX)), pa.scalar(_DAY_US))
    microseconds = pc.if_else(
        pc.greater(days, pa.scalar(_DAYS_MAX)), pa.scalar(_INT64_MAX - 1), microseconds
    )
    infinite = pc.equal(value, pa.scalar(_INT32_MAX, pa.int32()))
    minus_infinite = pc.equal(value, pa.scalar(-_INT32_MAX - 1, pa.int32()))
    microseconds = pc.if_else(infinite, pa.scalar(_INT64_MAX), microseconds)
    return pc.if_else(minus_infinite, pa.scalar(-_INT64_MAX - 1), microseconds)


def _arithmetic(operation: Callable[[Any, Any], Any], result: pa.DataType) -> Callable[..., Any]:
    return lambda a, b: operation(pc.cast(a, result), pc.cast(b, result))


def _modulo(result: pa.DataType) -> Callable[..., Any]:
    def modulo(a: Any, b: Any) -> Any:
        a, b = pc.cast(a, result), pc.cast(b, result)
        # Of the lowest integer and -1 the quotient would not fit; the remainder is 0 for any
        # dividend.
        negated = pc.equal(b, pa.scalar(-1, result))
        divisor = pc.if_else(negated, pa.scalar(1, result), b)
        quotient = pc.divide_checked(a, divisor)
        return pc.subtract(a, pc.multiply(quotient, divisor))

    return modulo


def _cast(target: pa.DataType) -> Callable[..., Any]:
    return lambda a: pc.cast(a, target)


def _same(a: Any) -> Any:
    return a


def _to_float(a: Any) -> Any:
    return pc.cast(a, pa.float64(), safe=False)


def _characters(a: Any) -> Any:
    return pc.utf8_length(pc.cast(a, pa.utf8()))


def _lower(a: Any) -> Any:
    return pc.cast(pc.ascii_lower(pc.cast(a, pa.utf8())), pa.binary())


def _upper(a: Any) -> Any:
    return pc.cast(pc.ascii_upper(pc.cast(a, pa.utf8())), pa.binary())


_INT_SIZES: Final = {INT2: pa.int16(), INT4: pa.int32(), INT8: pa.int64()}
#: result type → functions of + - * /
_INTEGER_ARITHMETIC: Final = (
    (INT2, (176, 180, 152, 153)),
    (INT4, (177, 181, 141, 154)),
    (INT8, (463, 464, 465, 466)),
    (INT8, (837, 838, 839, 840)),
    (INT8, (1274, 1275, 1276, 1277)),
    (INT8, (841, 942, 943, 948)),
    (INT4, (178, 182, 170, 172)),
    (INT8, (1278, 1279, 1280, 1281)),
    (INT4, (179, 183, 171, 173)),
)
_CHECKED: Final = (pc.add_checked, pc.subtract_checked, pc.multiply_checked, pc.divide_checked)

FUNCTIONS: Final[Mapping[int, Function]] = {
    **{
        oid: Function(_arithmetic(operation, _INT_SIZES[result]), raises=True)
        for result, row in _INTEGER_ARITHMETIC
        for oid, operation in zip(row, _CHECKED, strict=True)
    },
    **{
        oid: Function(_modulo(_INT_SIZES[result]), raises=True)
        for result, oids in ((INT2, (155, 940)), (INT4, (156, 941)), (INT8, (945, 947)))
        for oid in oids
    },
    **dict.fromkeys((213, 212, 462), Function(pc.negate_checked, raises=True)),
    **dict.fromkeys((1253, 1251, 1230, 1398, 1397, 1396), Function(pc.abs_checked, raises=True)),
    **dict.fromkeys((1910, 1911, 1912), Function(_same)),
    # Integers to integers: narrower ones may not fit.
    313: Function(_cast(pa.int32())),
    754: Function(_cast(pa.int64())),
    481: Function(_cast(pa.int64())),
    714: Function(_cast(pa.int16()), raises=True),
    480: Function(_cast(pa.int32()), raises=True),
    314: Function(_cast(pa.int16()), raises=True),
    1288: Function(_cast(pa.int64())),
    # to double precision
    **dict.fromkeys((235, 316, 482, 311), Function(_to_float)),
    2557: Function(lambda a: pc.not_equal(a, pa.scalar(0, pa.int32()))),
    2558: Function(_cast(pa.int32())),
    401: Function(_same),  # char(n) to text: the padding goes
    406: Function(_same),  # name to text
    # length, char_length, character_length
    **dict.fromkeys((1317, 1369, 1381, 1318, 1367, 1372), Function(_characters, by_character=True)),
    **dict.fromkeys((1374, 720, 2010), Function(pc.binary_length)),
    870: Function(_lower, by_character=True, by_collation=True),
    871: Function(_upper, by_character=True, by_collation=True),
}

#: LIKE and NOT LIKE of text and name
LIKE: Final = frozenset({850, 858})
NOT_LIKE: Final = frozenset({851, 859})
#: integers to numeric
INTEGER_TO_NUMERIC: Final = frozenset({1740, 1781, 1782})
#: numeric to double precision and real, of constants
NUMERIC_TO_FLOAT8: Final = 1746
NUMERIC_TO_FLOAT4: Final = 1745
#: to a numeric's precision and scale, of constants
NUMERIC_LENGTH: Final = 1703
