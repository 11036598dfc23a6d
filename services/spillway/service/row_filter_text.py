"""A publication's row filter as text: what pg_get_expr shows of pg_publication_rel.prqual, or
nothing.

The catalog has a tree of nodes; the server's deparser knows all of SQL. Here is what filters are
mostly made of: columns, constants of the plain types, operators and functions of pg_catalog, AND,
OR, NOT, IS NULL, IS TRUE, casts that change nothing, lists. Of anything else there is no text: half
a filter would be another filter. What is shown is the server's text, letter for letter.

Source: get_rule_expr and its callees, src/backend/utils/adt/ruleutils.c, without PRETTYFLAG_PAREN
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from spillway.catalog import layout as cat
from spillway.errors import DecodingError
from spillway.pg.identifier import quote_identifier
from spillway.pg.standard_types import SQL_NAMES
from spillway.plugins.row_filter_nodes import Node, parse_node_tree

if TYPE_CHECKING:
    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.catalog.layout import TrackedCatalog
    from spillway.catalog.mirror import CatalogMirror

_PG_CATALOG: Final = 11
_BOOL, _INT8, _INT2, _INT4, _TEXT, _BPCHAR, _VARCHAR = 16, 20, 21, 23, 25, 1042, 1043
_INTEGERS: Final = {_INT2: "<h", _INT4: "<i", _INT8: "<q"}
_EXPLICIT_CALL: Final = 0
_NULL_TESTS: Final = ("IS NULL", "IS NOT NULL")
_BOOLEAN_TESTS: Final = (
    "IS TRUE", "IS NOT TRUE", "IS FALSE", "IS NOT FALSE", "IS UNKNOWN", "IS NOT UNKNOWN",
)  # fmt: skip


class _NoText(Exception):
    """A part of the filter is not among what is known here."""


def row_filter_text(mirror: CatalogMirror, node_tree: str, table: RelationDescriptor) -> str | None:
    """Return a filter over *table* as the server shows it; None when it has parts that are not
    known here.
    """
    try:
        return _Deparser(mirror, table).show(parse_node_tree(node_tree))
    except (_NoText, DecodingError, struct.error, ValueError, IndexError):
        return None


class _Deparser:
    def __init__(self, mirror: CatalogMirror, table: RelationDescriptor) -> None:
        self._mirror = mirror
        self._table = table
        self._version = mirror.facts.major * 10_000

    def show(self, node: Node, *, implicit: bool = False) -> str:
        """Show a node; *implicit*: casts that nobody wrote, too."""
        match node.name:
            case "VAR":
                return self._column(node)
            case "CONST":
                return self._constant(node)
            case "OPEXPR":
                return self._operation(node)
            case "BOOLEXPR":
                return self._connective(node)
            case "NULLTEST" if node.text("argisrow") == "false":
                test = _NULL_TESTS[node.number("nulltesttype")]
                return f"({self.show(node.node('arg'), implicit=True)} {test})"
            case "BOOLEANTEST":
                test = _BOOLEAN_TESTS[node.number("booltesttype")]
                return f"({self.show(node.node('arg'))} {test})"
            case "RELABELTYPE":
                return self._cast(
                    node, node.node("arg"), "relabelformat", "result", implicit=implicit
                )
            case "FUNCEXPR":
                return self._function(node, implicit=implicit)
            case "SCALARARRAYOPEXPR":
                left, right = (self.show(a, implicit=True) for a in node.nodes("args"))
                kind = "ANY" if node.text("useOr") == "true" else "ALL"
                return f"({left} {self._operator(node)} {kind} ({right}))"
            case "ARRAYEXPR" if node.nodes("elements"):
                shown = (self.show(element, implicit=True) for element in node.nodes("elements"))
                return f"ARRAY[{', '.join(shown)}]"
        raise _NoText

    def _column(self, node: Node) -> str:
        number = node.number("varattno")
        column = self._table.columns[number - 1] if number > 0 else None
        if column is None or column.dropped:
            raise _NoText
        return quote_identifier(column.name, self._version)

    def _constant(self, node: Node) -> str:
        type_oid, typmod = node.number("consttype"), node.number("consttypmod")
        value = node.fields.get("constvalue")
        if typmod != -1 or node.text("constisnull") == "true" or not isinstance(value, bytes):
            raise _NoText
        if type_oid == _BOOL:
            return "true" if value[0] else "false"
        if layout := _INTEGERS.get(type_oid):
            text = str(struct.unpack_from(layout, value)[0])
            if type_oid == _INT4 and not text.startswith("-"):
                return text
        elif type_oid in (_TEXT, _BPCHAR, _VARCHAR):
            # A varlena with a header of four bytes: constants are never packed.
            facts = self._mirror.facts
            text = value[4:].decode(facts.encoding, facts.encoding_errors)
            if "\\" in text:
                raise _NoText
        else:
            raise _NoText
        quoted = text.replace("'", "''")
        return f"'{quoted}'::{self._type(type_oid)}"

    def _operation(self, node: Node) -> str:
        operands = [self.show(a, implicit=True) for a in node.nodes("args")]
        operator = self._operator(node)
        if len(operands) == 1:
            return f"({operator} {operands[0]})"
        left, right = operands
        return f"({left} {operator} {right})"

    def _connective(self, node: Node) -> str:
        shown = [self.show(a) for a in node.nodes("args")]
        kind = node.text("boolop")
        if kind == "not":
            return f"(NOT {shown[0]})"
        return f"({f' {kind.upper()} '.join(shown)})"

    def _function(self, node: Node, *, implicit: bool) -> str:
        arguments = node.nodes("args")
        if node.number("funcformat") != _EXPLICIT_CALL:
            if len(arguments) != 1:
                raise _NoText
            return self._cast(node, arguments[0], "funcformat", "funcresult", implicit=implicit)
        if node.text("funcvariadic") == "true":
            raise _NoText
        name = self._row(cat.PG_PROC, node.number("funcid"))
        if name.pronamespace != _PG_CATALOG or name.proname in _OWN_SYNTAX:
            raise _NoText
        shown = ", ".join(self.show(a, implicit=True) for a in arguments)
        return f"{quote_identifier(name.proname, self._version)}({shown})"

    def _cast(self, node: Node, inner: Node, form: str, result: str, *, implicit: bool) -> str:
        # CoercionForm: 0 a call, 1 an explicit cast, 2 an implicit one
        if node.number(form) == 2 and not implicit:
            return self.show(inner)
        if node.fields.get(f"{result}typmod", "-1") != "-1" or inner.name == "CONST":
            raise _NoText
        return f"({self.show(inner)})::{self._type(node.number(f'{result}type'))}"

    def _operator(self, node: Node) -> str:
        row = self._row(cat.PG_OPERATOR, node.number("opno"))
        if row.oprnamespace != _PG_CATALOG:
            raise _NoText
        name: str = row.oprname
        return name

    def _row(self, catalog: TrackedCatalog, oid: int) -> Any:
        found = self._mirror.visible_rows().tuples(catalog, 0, oid)
        if len(found) != 1:
            raise _NoText
        return found[0].row

    def _type(self, oid: int) -> str:
        if oid == _BPCHAR:
            return "bpchar"
        if name := SQL_NAMES.get(oid):
            return name
        row = self._row(cat.PG_TYPE, oid)
        if row.typnamespace != _PG_CATALOG or row.typname.startswith("_"):
            raise _NoText
        return quote_identifier(row.typname, self._version)


#: Shown otherwise than as a call: EXTRACT, AT TIME ZONE, SUBSTRING … and their like, marked so by
#: funcformat from 14 on; these names are keywords, too.
_OWN_SYNTAX: Final = frozenset(
    {
        "coalesce",
        "greatest",
        "least",
        "nullif",
        "extract",
        "overlay",
        "position",
        "substring",
        "trim",
    }
)
