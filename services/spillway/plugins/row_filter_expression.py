"""Expressions of row filters, evaluated over columns: what the compiler puts together.

PostgreSQL stops evaluating AND, OR, CASE and COALESCE where the result is known, so that
``a <> 0 AND 10 / a > 1`` never divides by zero. Here operands that may raise are evaluated only for
the rows that get there; the others for all, which is cheaper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from spillway.errors import UnsupportedFeature
from spillway.plugins import row_filter_functions as fn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Rows:
    """Columns of equal length, by attnum."""

    def __init__(self, columns: Mapping[int, Any], count: int) -> None:
        self.columns = columns
        self.count = count

    def where(self, mask: Any) -> Rows:
        """Return those rows for which *mask* is true."""
        count = pc.sum(mask).as_py() or 0
        return Rows({n: pc.filter(c, mask) for n, c in self.columns.items()}, count)

    def array(self, value: Any) -> Any:
        """Return *value* as an array, one element a row."""
        return pa.repeat(value, self.count) if isinstance(value, pa.Scalar) else value


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression that can be evaluated for many rows; the result is an array or, of a constant,
    a scalar.
    """

    type_oid: int
    evaluate: Callable[[Rows], Any]
    #: evaluating it may fail
    raises: bool = False
    #: of a constant that is not null: its datum
    datum: bytes | None = None


def combine(operands: Sequence[Expression], *, any_of: bool) -> Expression:
    """OR (*any_of*) or AND of boolean expressions, the later ones only where the former leave it
    open.
    """
    operation = pc.or_kleene if any_of else pc.and_kleene

    def evaluate(rows: Rows) -> Any:
        result = operands[0].evaluate(rows)
        for operand in operands[1:]:
            if not operand.raises:
                result = operation(result, operand.evaluate(rows))
                continue
            known = rows.array(result)
            is_open = pc.fill_null(pc.invert(known) if any_of else known, True)
            some = rows.where(is_open)
            found = some.array(operand.evaluate(some))
            nothing = pa.nulls(rows.count, pa.bool_())
            result = operation(known, pc.replace_with_mask(nothing, is_open, found))
        return result

    return Expression(fn.BOOL, evaluate, any(operand.raises for operand in operands))


def branches(
    type_oid: int, cases: Sequence[tuple[Expression, Expression]], default: Expression | None
) -> Expression:
    """The result of the first branch whose condition is true; of each only for the rows that get
    there.
    """
    arrow = fn.ARROW_TYPES.get(type_oid)
    if arrow is None:
        raise unsupported(f"CASE and COALESCE of type {type_oid}")

    def evaluate(rows: Rows) -> Any:
        result = pa.nulls(rows.count, arrow)
        is_open = pa.repeat(pa.scalar(True), rows.count)
        for condition, value in cases:
            some = rows.where(is_open)
            met = pc.fill_null(some.array(condition.evaluate(some)), False)
            here = pc.replace_with_mask(pa.repeat(pa.scalar(False), rows.count), is_open, met)
            chosen = rows.where(here)
            result = pc.replace_with_mask(result, here, chosen.array(value.evaluate(chosen)))
            is_open = pc.and_not(is_open, here)
        if default is not None:
            rest = rows.where(is_open)
            result = pc.replace_with_mask(result, is_open, rest.array(default.evaluate(rest)))
        return result

    raises = any(c.raises or v.raises for c, v in cases)
    return Expression(type_oid, evaluate, raises or (default is not None and default.raises))


def unsupported(what: str) -> UnsupportedFeature:
    """Make the refusal of *what*; the caller adds whose filter it is."""
    return UnsupportedFeature(f"row filters can't have {what}")
