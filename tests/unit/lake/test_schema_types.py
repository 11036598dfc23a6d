"""What holds both types of a column, and whether a cast gives what PostgreSQL made of its
values.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from spillway.lake.shape.type_changes import (
    SourceType,
    cast_is_exact,
    tells_the_same,
    type_token,
    widest,
)

I16, I32, I64 = pa.int16(), pa.int32(), pa.int64()
F32, F64, TEXT = pa.float32(), pa.float64(), pa.string()
NTZ, TZ = pa.timestamp("us"), pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (I16, I64, I64),
        (I32, I32, I32),
        (F32, F64, F64),
        (I32, F64, F64),
        (I64, F64, None),
        (I32, F32, None),
        (I32, pa.decimal128(12, 2), pa.decimal128(12, 2)),
        (I32, pa.decimal128(11, 2), None),
        (I64, pa.decimal128(22, 2), pa.decimal128(22, 2)),
        (pa.decimal128(8, 2), pa.decimal128(12, 2), pa.decimal128(12, 2)),
        (pa.decimal128(10, 4), pa.decimal128(12, 2), pa.decimal128(14, 4)),
        (pa.decimal128(38, 0), pa.decimal128(38, 20), None),
        (TEXT, I32, None),
        (pa.date32(), NTZ, None),
        (NTZ, TZ, None),
    ],
)
def test_widest(one: pa.DataType, other: pa.DataType, both: pa.DataType | None) -> None:
    assert widest(one, other) == both
    assert widest(other, one) == both


def test_tokens_are_names() -> None:
    tokens = [type_token(t) for t in (I32, TEXT, pa.decimal128(10, 2), NTZ, TZ, pa.list_(I32))]
    assert tokens == ["int", "string", "decimal_10_2", "timestamp_ntz", "timestamp", "other"]


def _numeric(precision: int, scale: int) -> SourceType:
    return SourceType(f"numeric({precision},{scale})", 1700, ((precision << 16) | scale) + 4)


INT = SourceType("integer", 23)
VARCHAR10 = SourceType("character varying(10)", 1043, 14)
VARCHAR20 = SourceType("character varying(20)", 1043, 24)
AS_TEXT = SourceType("text", 25)
NUMERIC = SourceType("numeric", 1700)
MOOD = SourceType("mood", 16500, is_enum=True)
DATE = SourceType("date", 1082)


@pytest.mark.parametrize(
    ("before", "was", "after", "becomes", "exact"),
    [
        (I32, INT, I64, SourceType("bigint", 20), True),
        (I64, SourceType("bigint", 20), I32, INT, True),
        (F32, SourceType("real", 700), F64, SourceType("double precision", 701), True),
        (F64, SourceType("double precision", 701), F32, SourceType("real", 700), False),
        (I64, SourceType("bigint", 20), F64, SourceType("double precision", 701), False),
        (I32, INT, F64, SourceType("double precision", 701), True),
        (I32, INT, pa.decimal128(8, 2), _numeric(8, 2), True),
        (I32, INT, TEXT, NUMERIC, True),
        (I32, INT, TEXT, AS_TEXT, True),
        (I32, INT, TEXT, _numeric(50, 2), False),
        (pa.decimal128(8, 2), _numeric(8, 2), TEXT, NUMERIC, True),
        (pa.decimal128(18, 9), _numeric(18, 9), TEXT, NUMERIC, False),
        (pa.decimal128(8, 2), _numeric(8, 2), pa.decimal128(12, 4), _numeric(12, 4), True),
        (pa.decimal128(8, 2), _numeric(8, 2), pa.decimal128(8, 1), _numeric(8, 1), False),
        (pa.decimal128(8, 0), _numeric(8, 0), I64, SourceType("bigint", 20), True),
        (pa.decimal128(8, 2), _numeric(8, 2), I64, SourceType("bigint", 20), False),
        (TEXT, AS_TEXT, I32, INT, False),
        (TEXT, VARCHAR10, TEXT, VARCHAR20, True),
        (TEXT, VARCHAR20, TEXT, VARCHAR10, True),
        (TEXT, VARCHAR10, TEXT, AS_TEXT, True),
        (TEXT, AS_TEXT, TEXT, SourceType("character(5)", 1042, 9), False),
        (TEXT, SourceType("character(5)", 1042, 9), TEXT, AS_TEXT, False),
        (TEXT, NUMERIC, TEXT, AS_TEXT, True),
        (TEXT, _numeric(40, 2), TEXT, _numeric(50, 2), True),
        (TEXT, _numeric(40, 2), TEXT, _numeric(50, 4), False),
        (TEXT, SourceType("jsonb", 3802), TEXT, SourceType("json", 114), True),
        (TEXT, SourceType("json", 114), TEXT, SourceType("jsonb", 3802), False),
        (TEXT, MOOD, TEXT, AS_TEXT, True),
        (TEXT, AS_TEXT, TEXT, MOOD, False),
        (TEXT, SourceType("inet", 869), TEXT, AS_TEXT, False),
        (TEXT, SourceType("integer[]", 1007), TEXT, SourceType("bigint[]", 1016), True),
        (TEXT, SourceType("integer[]", 1007), TEXT, SourceType("text[]", 1009), False),
        (pa.date32(), DATE, NTZ, SourceType("timestamp", 1114), True),
        (pa.date32(), DATE, TZ, SourceType("timestamptz", 1184), False),
        (NTZ, SourceType("timestamp(3)", 1114, 3), NTZ, SourceType("timestamp", 1114), True),
        (NTZ, SourceType("timestamp", 1114), NTZ, SourceType("timestamp(3)", 1114, 3), False),
        (pa.bool_(), SourceType("boolean", 16), TEXT, AS_TEXT, True),
        # What releases before kept, and other producers' messages, say nothing of the source.
        (TEXT, SourceType(), TEXT, SourceType(), True),
    ],
)
def test_cast_is_exact(
    before: pa.DataType, was: SourceType, after: pa.DataType, becomes: SourceType, exact: bool
) -> None:
    assert cast_is_exact(before, was, after, becomes) is exact


def test_what_is_printed_otherwise_tells_other_rows() -> None:
    """Within one type: whether a cast is exact is the same."""
    known = SourceType("mood", 16400, is_enum=True, labels={"1": "sad", "2": "glad"})
    more = SourceType("mood", 16400, is_enum=True, labels={"1": "sad", "2": "glad", "3": "calm"})
    swapped = SourceType("mood", 16400, is_enum=True, labels={"1": "glad", "2": "sad"})
    assert tells_the_same(known, more)
    assert tells_the_same(SourceType("mood", 16400, is_enum=True), known)
    assert tells_the_same(VARCHAR10, VARCHAR20)
    assert tells_the_same(VARCHAR20, SourceType("text", 25))
    assert not tells_the_same(known, swapped)
    assert known.renamed_labels(swapped) == {"sad": "glad", "glad": "sad"}
    # Blanks that are too many are cut off.
    assert not tells_the_same(VARCHAR20, VARCHAR10)
    assert not tells_the_same(SourceType("text", 25), VARCHAR10)
    assert cast_is_exact(pa.string(), known, pa.string(), swapped)
