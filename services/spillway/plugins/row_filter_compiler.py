"""Row filters: node trees → expressions over Arrow columns, with PostgreSQL's semantics or not at
all.

An expression is evaluated over all rows of a chunk at once by Arrow's compute functions. Null is
unknown, AND and OR are Kleene's, and stop where PostgreSQL's do (``row_filter_expression``).

What can't be done exactly is refused, naming the part: text that is ordered by a language's rules,
arithmetic of numerics and floats, functions that are not in ``row_filter_functions``.

Source: src/backend/executor/{execExpr,execExprInterp}.c; src/include/nodes/primnodes.h
"""

from __future__ import annotations

import re
import struct
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spillway._kernels.encoders.row_filter import interval_key, numeric_key
from spillway.catalog.missing_value import varlena_body
from spillway.catalog.numeric_datum import numeric_body_of_text
from spillway.errors import DecodingError
from spillway.plugins import row_filter_functions as fn
from spillway.plugins.row_filter_expression import Expression, Rows, branches, combine, unsupported
from spillway.plugins.row_filter_nodes import Node, parse_node_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_BOOLEAN_TESTS: Final[Mapping[int, Callable[[Any], Any]]] = {
    0: lambda a: pc.fill_null(a, False),
    1: lambda a: pc.invert(pc.fill_null(a, False)),
    2: lambda a: pc.invert(pc.fill_null(a, True)),
    3: lambda a: pc.fill_null(a, True),
    4: pc.is_null,
    5: pc.is_valid,
}
_INTEGERS: Final[Mapping[int, str]] = {
    fn.INT2: "<h", fn.INT4: "<i", fn.INT8: "<q", fn.OID: "<I", fn.FLOAT4: "<f", fn.FLOAT8: "<d",
    fn.DATE: "<i", fn.TIME: "<q", fn.TIMESTAMP: "<q", fn.TIMESTAMPTZ: "<q",
}  # fmt: skip
#: array type → element type, of arrays that a constant may be
_ARRAYS: Final[Mapping[int, int]] = {
    1000: fn.BOOL, 1001: fn.BYTEA, 1003: fn.NAME, 1005: fn.INT2, 1007: fn.INT4, 1009: fn.TEXT,
    1014: fn.BPCHAR, 1015: fn.VARCHAR, 1016: fn.INT8, 1021: fn.FLOAT4, 1022: fn.FLOAT8,
    1028: fn.OID,
    1115: fn.TIMESTAMP, 1182: fn.DATE, 1183: fn.TIME, 1185: fn.TIMESTAMPTZ, 1187: fn.INTERVAL,
    1231: fn.NUMERIC, 2951: fn.UUID,
}  # fmt: skip
#: type → alignment of its elements in an array
_ALIGNMENTS: Final[Mapping[int, int]] = {
    fn.BOOL: 1, fn.NAME: 1, fn.INT2: 2, fn.UUID: 1, fn.INT8: 8, fn.FLOAT8: 8, fn.TIME: 8,
    fn.TIMESTAMP: 8, fn.TIMESTAMPTZ: 8, fn.INTERVAL: 8,
}  # fmt: skip
_SIZES: Final[Mapping[int, int]] = {fn.BOOL: 1, fn.NAME: 64, fn.UUID: 16, fn.INTERVAL: 16} | {
    oid: struct.calcsize(layout) for oid, layout in _INTEGERS.items()
}
_NUMERIC_SPECIAL: Final = 0xC000


def compile_filter(node_tree: str, encoding: str, attnums: set[int]) -> Expression:
    """Compile a row filter; puts the attnums that it looks at into *attnums*.

    Raises:
        UnsupportedFeature: a part of it can't be evaluated exactly; the message says which.
        DecodingError: it is no node tree.
    """
    try:
        compiled = _Compiler(encoding, attnums).compile(parse_node_tree(node_tree))
    except (ValueError, KeyError, IndexError, pa.ArrowException) as error:
        raise DecodingError(
            f"a row filter can't be understood: {error}",
            hint="The catalog mirror went wrong: bootstrap this database again, and report it as a "
            "bug.",
        ) from error
    if compiled.type_oid != fn.BOOL:
        raise DecodingError(f"a row filter has type {compiled.type_oid}, not boolean")
    return compiled


class _Compiler:
    def __init__(self, encoding: str, attnums: set[int]) -> None:
        self._utf8 = re.sub("[-_]", "", encoding).lower() == "utf8"
        self._attnums = attnums
        self._case_value: Expression | None = None

    def compile(self, node: Node) -> Expression:
        method = _NODES.get(node.name)
        if method is None:
            raise unsupported(f"{node.name} expressions")
        return method(self, node)

    # ---- leaves

    def var(self, node: Node) -> Expression:
        attnum, type_oid = node.number("varattno"), node.number("vartype")
        if attnum <= 0:
            raise unsupported("system columns")
        if type_oid not in fn.COLUMN_TYPES:
            raise unsupported(f"a column of type {type_oid}")
        self._attnums.add(attnum)
        return Expression(type_oid, lambda rows: rows.columns[attnum])

    def const(self, node: Node) -> Expression:
        type_oid = node.number("consttype")
        arrow = fn.ARROW_TYPES.get(type_oid)
        if arrow is None:
            raise unsupported(f"a constant of type {type_oid}")
        value = node.fields.get("constvalue")
        if not isinstance(value, bytes):
            scalar = pa.scalar(None, arrow)
            return Expression(type_oid, lambda _: scalar)
        return _constant(type_oid, value)

    def case_test(self, _: Node) -> Expression:
        if self._case_value is None:
            raise unsupported("a CASE value outside of CASE")
        return self._case_value

    # ---- operators and functions

    def function(self, node: Node) -> Expression:
        field = "funcid" if node.name == "FUNCEXPR" else "opfuncid"
        arguments = [self.compile(argument) for argument in node.nodes("args")]
        return self.call(node.number(field), arguments, _collation(node), _result_type(node))

    def call(
        self, oid: int, arguments: Sequence[Expression], collation: int, result: int
    ) -> Expression:
        if oid in fn.COMPARISONS and len(arguments) == 2:
            return self.comparison(fn.COMPARISONS[oid], arguments[0], arguments[1], collation)
        if oid in fn.LIKE or oid in fn.NOT_LIKE:
            return self.like(arguments[0], arguments[1], negated=oid in fn.NOT_LIKE)
        if oid in fn.INTEGER_TO_NUMERIC:
            return _integer_to_numeric(arguments[0])
        if oid in (fn.NUMERIC_TO_FLOAT8, fn.NUMERIC_TO_FLOAT4):
            return _numeric_to_float(arguments[0], result)
        function = fn.FUNCTIONS.get(oid)
        if function is None:
            raise unsupported(f"the function or operator with the oid {oid} in pg_proc")
        if function.by_character and not self._utf8:
            raise unsupported("functions on characters in a database that is not in UTF-8")
        if function.by_collation and collation not in fn.BYTEWISE_COLLATIONS:
            raise unsupported('upper and lower without COLLATE "C"')
        call = function.call
        return Expression(
            result,
            lambda rows: call(*(a.evaluate(rows) for a in arguments)),
            function.raises or any(a.raises for a in arguments),
        )

    def comparison(
        self, operator: str, left: Expression, right: Expression, collation: int
    ) -> Expression:
        _check_order(operator, left.type_oid, collation)
        if {left.type_oid, right.type_oid} == {fn.DATE, fn.TIMESTAMP}:
            left, right = _as_timestamp(left), _as_timestamp(right)
        return Expression(
            fn.BOOL,
            lambda rows: fn.compare(operator, left.evaluate(rows), right.evaluate(rows)),
            left.raises or right.raises,
        )

    def like(self, value: Expression, pattern: Expression, *, negated: bool) -> Expression:
        if not self._utf8:
            raise unsupported("LIKE in a database that is not in UTF-8")
        if pattern.datum is None or pattern.type_oid not in (fn.TEXT, fn.VARCHAR):
            raise unsupported("LIKE with a pattern that is not a constant")
        regex = _like_regex(pattern.datum.decode())

        def evaluate(rows: Rows) -> Any:
            matches = pc.match_substring_regex(pc.cast(value.evaluate(rows), pa.utf8()), regex)
            return pc.invert(matches) if negated else matches

        return Expression(fn.BOOL, evaluate, value.raises)

    def relabel(self, node: Node) -> Expression:
        inner, result = self.compile(node.node("arg")), node.number("resulttype")
        texts = (fn.TEXT, fn.VARCHAR)
        if (inner.type_oid, result) == (fn.INT4, fn.OID):
            return Expression(fn.OID, lambda rows: _oids(inner.evaluate(rows)), inner.raises)
        if inner.type_oid != result and not (inner.type_oid in texts and result in texts):
            raise unsupported(f"a cast from type {inner.type_oid} to type {result}")
        return Expression(result, inner.evaluate, inner.raises, inner.datum)

    def collate(self, node: Node) -> Expression:
        """The collation counts where it is used: ``inputcollid``."""
        return self.compile(node.node("arg"))

    def distinct(self, node: Node) -> Expression:
        left, right = (self.compile(argument) for argument in node.nodes("args"))
        operator = fn.COMPARISONS.get(node.number("opfuncid"))
        if operator != "=":
            raise unsupported("IS DISTINCT FROM of this type")

        def evaluate(rows: Rows) -> Any:
            a, b = left.evaluate(rows), right.evaluate(rows)
            both_null = pc.and_(pc.is_null(a), pc.is_null(b))
            return pc.invert(pc.coalesce(fn.compare("=", a, b), both_null))

        return Expression(fn.BOOL, evaluate, left.raises or right.raises)

    def nullif(self, node: Node) -> Expression:
        left, right = (self.compile(argument) for argument in node.nodes("args"))
        if fn.COMPARISONS.get(node.number("opfuncid")) != "=":
            raise unsupported("NULLIF of this type")
        nothing = pa.scalar(None, fn.ARROW_TYPES[left.type_oid])

        def evaluate(rows: Rows) -> Any:
            a = rows.array(left.evaluate(rows))
            same = pc.fill_null(fn.compare("=", a, right.evaluate(rows)), False)
            return pc.if_else(same, nothing, a)

        return Expression(left.type_oid, evaluate, left.raises or right.raises)

    def greatest(self, node: Node) -> Expression:
        arguments = [self.compile(argument) for argument in node.nodes("args")]
        operator = ">" if node.number("op") == 0 else "<"
        collation = _collation(node)
        _check_order(operator, arguments[0].type_oid, collation)

        def evaluate(rows: Rows) -> Any:
            best = rows.array(arguments[0].evaluate(rows))
            for argument in arguments[1:]:
                other = rows.array(argument.evaluate(rows))
                better = pc.fill_null(fn.compare(operator, other, best), False)
                better = pc.or_(better, pc.and_(pc.is_null(best), pc.is_valid(other)))
                best = pc.if_else(better, other, best)
            return best

        type_oid = node.number("minmaxtype")
        return Expression(type_oid, evaluate, any(a.raises for a in arguments))

    # ---- boolean

    def boolean(self, node: Node) -> Expression:
        operands = [self.compile(argument) for argument in node.nodes("args")]
        operator = node.text("boolop")
        if operator == "not":
            (operand,) = operands
            return Expression(
                fn.BOOL, lambda rows: pc.invert(operand.evaluate(rows)), operand.raises
            )
        return combine(operands, any_of=operator == "or")

    def null_test(self, node: Node) -> Expression:
        operand = self.compile(node.node("arg"))
        if node.text("argisrow") != "false":
            raise unsupported("IS NULL of a row")
        test = pc.is_valid if node.number("nulltesttype") else pc.is_null
        return Expression(fn.BOOL, lambda rows: test(operand.evaluate(rows)), operand.raises)

    def boolean_test(self, node: Node) -> Expression:
        operand = self.compile(node.node("arg"))
        test = _BOOLEAN_TESTS[node.number("booltesttype")]
        return Expression(fn.BOOL, lambda rows: test(operand.evaluate(rows)), operand.raises)

    def any_or_all(self, node: Node) -> Expression:
        """``x = ANY (array)`` and ``x <> ALL (array)``, which is what IN and NOT IN are."""
        value_node, array_node = node.nodes("args")
        value = self.compile(value_node)
        oid, collation = node.number("opfuncid"), _collation(node)
        any_of = node.text("useOr") == "true"
        elements = self.elements(array_node)
        if elements is None:
            nothing = pa.scalar(None, pa.bool_())
            return Expression(fn.BOOL, lambda _: nothing)
        if not elements:
            return Expression(fn.BOOL, lambda rows: pa.repeat(pa.scalar(not any_of), rows.count))
        return combine(
            [self.call(oid, [value, element], collation, fn.BOOL) for element in elements],
            any_of=any_of,
        )

    def elements(self, node: Node) -> list[Expression] | None:
        """The elements of an array that is written out or a constant; None for a null array."""
        if node.name == "ARRAYEXPR" and node.text("multidims") == "false":
            return [self.compile(element) for element in node.nodes("elements")]
        if node.name == "RELABELTYPE":
            return self.elements(node.node("arg"))
        if node.name == "ARRAYCOERCEEXPR":
            elements = self.elements(node.node("arg"))
            outer, converted = self._case_value, []
            for element in elements or ():
                self._case_value = element
                converted.append(self.compile(node.node("elemexpr")))
            self._case_value = outer
            return None if elements is None else converted
        if node.name == "CONST" and (type_oid := _ARRAYS.get(node.number("consttype"))) is not None:
            value = node.fields.get("constvalue")
            return _array_elements(type_oid, value) if isinstance(value, bytes) else None
        raise unsupported("ANY and ALL of an array that is not written out")

    # ---- conditional

    def case(self, node: Node) -> Expression:
        outer = self._case_value
        if node.fields.get("arg") is not None:
            self._case_value = self.compile(node.node("arg"))
        cases = [
            (self.compile(when.node("expr")), self.compile(when.node("result")))
            for when in node.nodes("args")
        ]
        self._case_value = outer
        type_oid = node.number("casetype")
        default = self.compile(node.node("defresult"))
        return branches(type_oid, cases, default)

    def coalesce(self, node: Node) -> Expression:
        arguments = [self.compile(argument) for argument in node.nodes("args")]
        type_oid = node.number("coalescetype")
        if not any(a.raises for a in arguments):
            return Expression(
                type_oid,
                lambda rows: pc.coalesce(*(rows.array(a.evaluate(rows)) for a in arguments)),
            )
        return branches(type_oid, [(_is_valid(argument), argument) for argument in arguments], None)


_NODES: Final[Mapping[str, Callable[[_Compiler, Node], Expression]]] = {
    "VAR": _Compiler.var,
    "CONST": _Compiler.const,
    "CASETESTEXPR": _Compiler.case_test,
    "OPEXPR": _Compiler.function,
    "FUNCEXPR": _Compiler.function,
    "RELABELTYPE": _Compiler.relabel,
    "COLLATEEXPR": _Compiler.collate,
    "COLLATE": _Compiler.collate,
    "DISTINCTEXPR": _Compiler.distinct,
    "NULLIFEXPR": _Compiler.nullif,
    "MINMAXEXPR": _Compiler.greatest,
    "MINMAX": _Compiler.greatest,
    "BOOLEXPR": _Compiler.boolean,
    "NULLTEST": _Compiler.null_test,
    "BOOLEANTEST": _Compiler.boolean_test,
    "SCALARARRAYOPEXPR": _Compiler.any_or_all,
    "CASEEXPR": _Compiler.case,
    "CASE": _Compiler.case,
    "COALESCEEXPR": _Compiler.coalesce,
    "COALESCE": _Compiler.coalesce,
}


def _is_valid(expression: Expression) -> Expression:
    return Expression(
        fn.BOOL, lambda rows: pc.is_valid(expression.evaluate(rows)), expression.raises
    )


def _integer_to_numeric(argument: Expression) -> Expression:
    """Integers as numeric's sortable bytes: worked out once for each distinct value."""

    def key(value: int | None) -> bytes | None:
        return None if value is None else numeric_key(numeric_body_of_text(str(value)))

    def evaluate(rows: Rows) -> Any:
        value = argument.evaluate(rows)
        if isinstance(value, pa.Scalar):
            return pa.scalar(key(value.as_py()), pa.binary())
        encoded = pc.dictionary_encode(value)
        keys = pa.array([key(v) for v in encoded.dictionary.to_pylist()], pa.binary())
        return pc.take(keys, encoded.indices)

    return Expression(fn.NUMERIC, evaluate, argument.raises)


def _numeric_to_float(argument: Expression, result: int) -> Expression:
    if argument.datum is None:
        raise unsupported("a cast from numeric to float")
    try:
        value = float(_decimal(argument.datum))
        if result == fn.FLOAT4:
            (value,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        raise unsupported("a numeric constant that no float can hold") from None
    if result == fn.FLOAT4:
        raise unsupported("a cast from numeric to real")
    scalar = pa.scalar(value, pa.float64())
    return Expression(result, lambda _: scalar)


def _as_timestamp(argument: Expression) -> Expression:
    if argument.type_oid == fn.TIMESTAMP:
        return argument
    return Expression(
        fn.TIMESTAMP,
        lambda rows: fn.timestamps_of_dates(argument.evaluate(rows)),
        argument.raises,
    )


def _oids(value: Any) -> Any:
    """Integers as the oids that have the same bits."""
    wide = pc.cast(value, pa.int64())
    return pc.cast(pc.bit_wise_and(wide, pa.scalar(0xFFFFFFFF, pa.int64())), pa.uint32())


def _decimal(body: bytes) -> Decimal:
    """A numeric's content as a Decimal."""
    (header,) = struct.unpack_from("<H", body)
    if header & _NUMERIC_SPECIAL == _NUMERIC_SPECIAL:
        return Decimal({0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}[header & 0xF000])
    if header & 0x8000:
        negative, at = bool(header & 0x2000), 2
        weight = (header & 0x3F) - (header & 0x40)
    else:
        negative, at = bool(header & 0x4000), 4
        (weight,) = struct.unpack_from("<h", body, 2)
    digits = struct.unpack_from(f"<{(len(body) - at) // 2}H", body, at)
    number = sum(
        (Decimal(d).scaleb(4 * (weight - i)) for i, d in enumerate(digits)), start=Decimal(0)
    )
    return -number if negative else number


def _constant(type_oid: int, datum: bytes) -> Expression:
    """A constant that is not null, from its datum, varlenas with their header."""
    try:
        if (layout := _INTEGERS.get(type_oid)) is not None:
            value: Any = struct.unpack_from(layout, datum)[0]
        elif type_oid == fn.BOOL:
            value = datum[0] != 0
        elif type_oid == fn.NAME:
            value = datum = datum.split(b"\0", 1)[0]
        elif type_oid == fn.UUID:
            value = datum
        elif type_oid == fn.INTERVAL:
            value = interval_key(datum)
        else:
            datum = varlena_body(datum)
            value = datum
            if type_oid == fn.NUMERIC:
                value = numeric_key(datum)
            elif type_oid == fn.BPCHAR:
                value = datum.rstrip(b" ")
    except (struct.error, ValueError, IndexError) as error:
        raise DecodingError(f"a constant of a row filter can't be understood: {error}") from error
    scalar = pa.scalar(value, fn.ARROW_TYPES[type_oid])
    return Expression(type_oid, lambda _: scalar, datum=datum)


def _array_elements(type_oid: int, datum: bytes) -> list[Expression]:
    """The elements of a constant array of one dimension; nulls are constants too."""
    try:
        body = varlena_body(datum)
        dimensions, offset, _ = struct.unpack_from("<iiI", body)
        if dimensions == 0:
            return []
        if dimensions != 1:
            raise unsupported("arrays of several dimensions")
        (count,) = struct.unpack_from("<i", body, 12)
        # Offsets count from the array's 4-byte header, and so does alignment.
        bitmap = body[20:] if offset else b""
        at = (offset or 24) - 4
        elements = []
        alignment = _ALIGNMENTS.get(type_oid, 4)
        nothing = pa.scalar(None, fn.ARROW_TYPES[type_oid])
        for i in range(count):
            if bitmap and not bitmap[i >> 3] >> (i & 7) & 1:
                elements.append(Expression(type_oid, lambda _: nothing))
                continue
            size = _SIZES.get(type_oid)
            if size is None:
                # A short header is not aligned; padding is zero.
                if body[at] == 0 or not body[at] & 1:
                    at += -(at + 4) % alignment
                header = body[at : at + 4]
                size = header[0] >> 1 if header[0] & 1 else struct.unpack("<I", header)[0] >> 2
            else:
                at += -(at + 4) % alignment
            elements.append(_constant(type_oid, body[at : at + size]))
            at += size
    except (struct.error, ValueError, IndexError) as error:
        raise DecodingError(f"a constant of a row filter can't be understood: {error}") from error
    return elements


def _like_regex(pattern: str) -> str:
    """A LIKE pattern, with its escape character backslash, as a regular expression."""
    parts, at = [], 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            at += 1
            if at == len(pattern):
                raise unsupported("a LIKE pattern that ends with its escape character")
            character = pattern[at]
            parts.append(re.escape(character))
        else:
            parts.append({"%": ".*", "_": "."}.get(character) or re.escape(character))
        at += 1
    return "(?s)^" + "".join(parts) + "$"


def _collation(node: Node) -> int:
    return node.number("inputcollid")


def _result_type(node: Node) -> int:
    return node.number("funcresulttype" if node.name == "FUNCEXPR" else "opresulttype")


def _check_order(operator: str, type_oid: int, collation: int) -> None:
    if (
        operator not in ("=", "<>")
        and type_oid in fn.COLLATED
        and collation not in fn.BYTEWISE_COLLATIONS
    ):
        raise unsupported('ordering text by a language (<, >, BETWEEN) without COLLATE "C"')
