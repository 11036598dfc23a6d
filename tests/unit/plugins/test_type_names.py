"""Names of types with their modifiers; the comparison with a server's format_type is in the
wal2json tests.
"""

from __future__ import annotations

import pytest

from spillway.catalog.descriptor import TypeDescriptor
from spillway.plugins.type_names import format_type_with_typmod, numeric_typmod


def numeric(precision: int, scale: int) -> int:
    return ((precision << 16) | (scale & 0x7FF)) + 4


def interval(precision: int, *fields: int) -> int:
    return (sum(1 << field for field in fields) << 16) | precision


TYPES = {
    18: TypeDescriptor(18, "pg_catalog", "char", "b", "Z", 1, True, "c"),
    1042: TypeDescriptor(1042, "pg_catalog", "bpchar", "b", "S", -1, False, "i"),
    1014: TypeDescriptor(1014, "pg_catalog", "_bpchar", "b", "A", -1, False, "i", 1042,
                         is_array=True),
    1560: TypeDescriptor(1560, "pg_catalog", "bit", "b", "V", -1, False, "i"),
    1231: TypeDescriptor(1231, "pg_catalog", "_numeric", "b", "A", -1, False, "i", 1700,
                         is_array=True),
    5000: TypeDescriptor(5000, "public", "vector", "b", "U", -1, False, "i"),
    5001: TypeDescriptor(5001, "Odd schema", "V", "b", "U", -1, False, "i"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("oid", "typmod", "name"),
    [
        (23, -1, "integer"), (1700, -1, "numeric"), (1700, numeric(10, 2), "numeric(10,2)"),
        (1700, numeric(3, -2), "numeric(3,-2)"),
        (1231, numeric(10, 2), "numeric(10,2)[]"), (1700, 0, "numeric"),
        (1043, 24, "character varying(20)"), (1043, -1, "character varying"),
        (1043, 4, "character varying"),
        (1042, 9, "character(5)"), (1042, -1, "bpchar"), (1014, 9, "character(5)[]"),
        (1014, -1, "bpchar[]"),
        (1560, 3, "bit(3)"), (1560, -1, '"bit"'), (1562, 7, "bit varying(7)"), (18, -1, '"char"'),
        (1184, 3, "timestamp(3) with time zone"), (1083, 0, "time(0) without time zone"),
        (1114, -1, "timestamp without time zone"),
        (1186, -1, "interval"), (1186, 0x7FFFFFFF, "interval"), (1186, 0x7FFF0003, "interval(3)"),
        (1186, interval(0xFFFF, 1, 2), "interval year to month"),
        (1186, interval(3, 3, 10, 11, 12), "interval day to second(3)"),
        (5000, 3, "vector(3)"), (5001, 3, '"Odd schema"."V"(3)'), (99999, -1, "???"),
    ],
)  # fmt: skip
def test_with_modifier(oid: int, typmod: int, name: str) -> None:
    assert format_type_with_typmod(oid, typmod, TYPES, 180000) == name


def test_numeric_modifier() -> None:
    assert numeric_typmod(numeric(1000, -1000)) == (1000, -1000)
    assert numeric_typmod(numeric(5, 7)) == (5, 7)
