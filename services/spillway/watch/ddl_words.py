"""What DDL did, in words: a sentence for each change of a table's definition.

It tells what a table is otherwise than before, not how that was written: several commands may be
one change, and of a default only that there is one is known (docs/reference/ddl-events.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: columns of a new table that are named; the rest are counted
_COLUMNS_NAMED: Final = 8
_TEXT_MAX: Final = 80


def words_of(kind: str, table: str, document: Mapping[str, Any]) -> list[str]:
    """Return what a change of the schema did, a sentence each."""
    if kind == "create_table":
        return [_created(table, document)]
    if kind == "drop_table":
        return [f"{table} was dropped, with its rows."]
    said = [_WORDS.get(one["change"], _unknown)(one) for one in document["changes"]]
    if document.get("rewritten"):
        said.append("Its rows were written anew: values that this computed are in no WAL.")
    return said or ["Nothing that rows show."]


def _created(table: str, document: Mapping[str, Any]) -> str:
    columns = document.get("columns", [])
    named = ", ".join(f"{one['name']} {one['type']}" for one in columns[:_COLUMNS_NAMED])
    count = document.get("column_count", len(columns))
    more = f" and {count - _COLUMNS_NAMED} more" if count > _COLUMNS_NAMED else ""
    key = document.get("primary_key") or []
    keyed = f"its key is {_names(key)}" if key else "it has no primary key"
    of = document.get("parent")
    part = f" as a partition of {of['schema']}.{of['table']}" if of else ""
    return f"{table} was created{part}, with {named or 'no columns'}{more}; {keyed}."


def _added(change: Mapping[str, Any]) -> str:
    column = change["definition"]
    more = [" NOT NULL"] if column["not_null"] else []
    if column["identity"]:
        more.append(f", an identity generated {column['identity']}")
    if column["generated"]:
        more.append(f", generated and {column['generated']}")
    if column["missing"] is not None:
        text = column["missing"]
        shown = text if len(text) <= _TEXT_MAX else text[:_TEXT_MAX] + "…"
        older = f" Rows from before have {shown!r} in it."
    elif column["has_default"]:
        older = " It has a default; what rows from before have in it is not in WAL, or null."
    else:
        older = " Rows from before have null in it."
    return f"Column {column['name']} {column['type']}{''.join(more)} was added.{older}"


def _names(names: list[str] | str | None) -> str:
    if names is None:
        return "none"
    return names if isinstance(names, str) else ", ".join(names) or "none"


def _collation(value: Mapping[str, str] | None) -> str:
    return "its type's own" if value is None else f"{value['schema']}.{value['name']}"


def _unknown(change: Mapping[str, Any]) -> str:
    return f"{change['change']}."


_WORDS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "rename_table": lambda c: f"It was renamed from {c['from']} to {c['to']}.",
    "set_schema": lambda c: f"It was moved from schema {c['from']} to {c['to']}.",
    "add_column": _added,
    "drop_column": lambda c: f"Column {c['column']} was dropped, with its values.",
    "rename_column": lambda c: f"Column {c['from']} was renamed to {c['to']}.",
    "alter_type": lambda c: f"Column {c['column']} became {c['to']}; it was {c['from']}.",
    "collation": lambda c: (
        f"Column {c['column']} got another collation, {_collation(c['to'])}; "
        f"it was {_collation(c['from'])}."
    ),
    "set_not_null": lambda c: f"Column {c['column']} takes no nulls any more.",
    "drop_not_null": lambda c: f"Column {c['column']} may be null from now on.",
    "set_default": lambda c: f"Column {c['column']} got a default, or another one.",
    "drop_default": lambda c: f"Column {c['column']} has no default any more.",
    "identity": lambda c: f"Column {c['column']} is generated as identity: {c['to'] or 'no more'}.",
    "generated": lambda c: f"Column {c['column']} is generated: {c['to'] or 'no more'}.",
    "primary_key": lambda c: f"Its primary key is {_names(c['to'])}; it was {_names(c['from'])}.",
    "replica_identity": lambda c: (
        f"Its replica identity is {_names(c['to'])}; it was {_names(c['from'])}."
    ),
    "attach_partition": lambda c: (
        f"It became a partition of {c['parent']['schema']}.{c['parent']['table']}."
    ),
    "detach_partition": lambda c: (
        f"It is no partition of {c['parent']['schema']}.{c['parent']['table']} any more."
    ),
}
#: Every change that has words.
CHANGES: Final = frozenset(_WORDS)
