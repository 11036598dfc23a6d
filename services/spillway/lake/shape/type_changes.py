"""What becomes of values when ALTER TABLE gives a column another type.

Two questions, as history and current answer them differently:

*History* keeps what it has as it is. Can one lake type hold the values of both, so that the column
stays one? :func:`widest`: integers of any size, ``float`` in ``double``, integers in ``double`` and
``decimal`` that hold them all, decimals among each other. What isn't there gets a column of its own
beside the old one. Delta Lake's type widening and Spark's Parquet reader know all these pairs:
files keep the type that they were written with.

*Current* shows what the source shows, and PostgreSQL rewrote the rows that were there without a
change that logical decoding could see. Is the lake's cast of an old value PostgreSQL's new value?
:func:`cast_is_exact`: where it is, the table is rewritten so; where it isn't (``text`` → ``int``,
``float8`` → ``float4``, what depends on a session's settings), nobody here can know the rows, and
they have to be loaded again.

What ``ALTER TYPE … USING`` computes is in no catalog: the casts are those without USING.

Values by which rows are told are another matter (:func:`tells_the_same`). What only looks old in
other columns until a row is changed, the old label of an enum's value that was renamed, or blanks
that a shorter ``varchar`` cuts off, is never found again in a key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Decimal digits of the integer types, as Delta Lake counts them for its own rule.
_INTEGER_DIGITS: Final = {pa.int16(): 10, pa.int32(): 10, pa.int64(): 20}
#: Digits that every value of them fits in.
_DIGITS_NEEDED: Final = {pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
_MAX_DECIMAL_DIGITS: Final = 38
#: Spark prints a decimal of more fractional digits with an exponent when it is small.
_PRINTED_SCALE_MAX: Final = 6
_TOKENS: Final = {
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
}

_TEXT: Final = 25
_VARCHAR: Final = 1043
_NUMERIC: Final = 1700
_VARHDRSZ: Final = 4
#: how names of masked columns' types begin (``spillway.plugins.arrow_schema``)
_MASKED: Final = "masked ("
#: Printed types whose cast to text is the text that they print, whatever a session has set: xml,
#: json, name, bit, varbit, numeric, uuid, jsonb.
_PRINT_AS_TEXT: Final = frozenset({142, 114, 19, 1560, 1562, _NUMERIC, 2950, 3802})
_JSON: Final = 114
_JSONB: Final = 3802
#: Names of array types whose values print alike.
_ARRAYS_ALIKE: Final = (
    frozenset({"smallint[]", "integer[]", "bigint[]"}),
    frozenset({"text[]", "character varying[]"}),
)


@dataclass(frozen=True, slots=True)
class SourceType:
    """A column's type at the source; a domain's is what it is over. Without an oid nothing is known
    but *name*.
    """

    name: str = ""
    oid: int = 0
    typmod: int = -1
    is_enum: bool = False
    #: of an enum, or arrays of it: its labels by their oids, as far as they are known
    labels: Mapping[str, str] = field(default_factory=dict, compare=False)

    def renamed_labels(self, after: SourceType) -> dict[str, str]:
        """Return the labels that have other names in *after*, the same type later."""
        later = after.labels
        return {
            label: later[oid]
            for oid, label in self.labels.items()
            if later.get(oid, label) != label
        }


def type_token(type_: pa.DataType) -> str:
    """Return a lake type as a part of a column's name."""
    if pa.types.is_decimal(type_):
        return f"decimal_{type_.precision}_{type_.scale}"
    if pa.types.is_timestamp(type_):
        return "timestamp" if type_.tz else "timestamp_ntz"
    return _TOKENS.get(type_, "other")


def widest(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the one of two lake types, or a third, that holds each value of both; None: none does.

    Only what a stored column can be made without touching its files.
    """
    if one == other:
        return one
    for narrow, wide in ((one, other), (other, one)):
        if _holds(wide, narrow):
            return wide
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        scale = max(one.scale, other.scale)
        digits = max(one.precision - one.scale, other.precision - other.scale) + scale
        return pa.decimal128(digits, scale) if digits <= _MAX_DECIMAL_DIGITS else None
    return None


def _holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    types = pa.types
    if types.is_integer(narrow):
        if types.is_integer(wide):
            return bool(wide.bit_width > narrow.bit_width)
        if types.is_float64(wide):
            return bool(narrow != pa.int64())
        if types.is_decimal(wide):
            return bool(wide.precision - wide.scale >= _INTEGER_DIGITS[narrow])
    if types.is_float32(narrow):
        return bool(types.is_float64(wide))
    if types.is_decimal(narrow) and types.is_decimal(wide):
        return bool(
            wide.scale >= narrow.scale
            and wide.precision - wide.scale >= narrow.precision - narrow.scale
        )
    return False


def cast_is_exact(
    before: pa.DataType, was: SourceType, after: pa.DataType, becomes: SourceType
) -> bool:
    """Say whether a cast of lake types gives what PostgreSQL made of each value that was there.

    Args:
        before: the column's lake type.
        was: and its type at the source.
        after: its lake type after ALTER TABLE.
        becomes: and its type at the source then.
    """
    if was != becomes and _is_masked(was, becomes):
        return False
    if before == after:
        return _same_values(after, was, becomes)
    if pa.types.is_string(after):
        return _prints_alike(before, becomes)
    return _is_exact_number(before, after) or (
        pa.types.is_date32(before) and pa.types.is_timestamp(after) and after.tz is None
    )


def tells_the_same(was: SourceType, becomes: SourceType) -> bool:
    """Say whether values of *was* that tell rows are those by which *becomes* tells them, given
    that a cast between them is exact.
    """
    if was.renamed_labels(becomes):
        return False
    if was.oid not in {_TEXT, _VARCHAR} or becomes.oid != _VARCHAR or becomes.typmod < 0:
        return True
    return was.oid == _VARCHAR and 0 <= was.typmod <= becomes.typmod


def _is_masked(*types: SourceType) -> bool:
    """Say whether what the lake has is not the source's value (``spillway.plugins.masks``)."""
    return any(each.name.startswith(_MASKED) for each in types)


def _is_exact_number(before: pa.DataType, after: pa.DataType) -> bool:
    """Of a type that is too small PostgreSQL refuses a value, and so ALTER TABLE: what it let
    through fits.
    """
    types = pa.types
    if types.is_integer(before):
        return bool(
            types.is_integer(after)
            or types.is_decimal(after)
            or (types.is_float64(after) and before != pa.int64())
            or (types.is_float32(after) and before == pa.int16())
        )
    if types.is_decimal(before):
        return bool(
            (types.is_decimal(after) and after.scale >= before.scale)
            or (types.is_integer(after) and before.scale == 0)
        )
    return bool(types.is_float32(before) and types.is_float64(after))


def _prints_alike(before: pa.DataType, becomes: SourceType) -> bool:
    types = pa.types
    is_text = becomes.oid in {_TEXT, _VARCHAR}
    if types.is_boolean(before):
        return is_text
    plain = types.is_integer(before) or (
        types.is_decimal(before) and before.scale <= _PRINTED_SCALE_MAX
    )
    unscaled = becomes.oid == _NUMERIC and becomes.typmod < _VARHDRSZ
    return bool(plain and (is_text or unscaled))


def _same_values(type_: pa.DataType, was: SourceType, becomes: SourceType) -> bool:
    """Of types that the lake holds alike."""
    if not was.oid or not becomes.oid or was == becomes:
        return True
    if pa.types.is_timestamp(type_) or pa.types.is_time(type_):
        # timestamp(3) rounds.
        return becomes.typmod < 0 or becomes.typmod >= was.typmod >= 0
    if not pa.types.is_string(type_):
        return True
    to_text = becomes.oid in {_TEXT, _VARCHAR}
    if was.oid in {_TEXT, _VARCHAR}:
        # A shorter varchar(n) cuts blanks only: of other values that are too long ALTER TABLE
        # complains.
        return to_text
    if was.is_enum or was.oid in _PRINT_AS_TEXT:
        if to_text:
            return True
        if was.oid == _NUMERIC and becomes.oid == _NUMERIC:
            return becomes.typmod < _VARHDRSZ or _scale(was) == _scale(becomes)
        return was.oid == _JSONB and becomes.oid == _JSON
    return any({was.name, becomes.name} <= alike for alike in _ARRAYS_ALIKE)


def _scale(numeric: SourceType) -> int | None:
    """Return the scale of a numeric's modifier (numeric_typmod_scale), None without one."""
    if numeric.typmod < _VARHDRSZ:
        return None
    return (((numeric.typmod - _VARHDRSZ) & 0x7FF) ^ 1024) - 1024
