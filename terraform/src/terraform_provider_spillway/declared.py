"""What the service declares of slots and lakes, and the attributes that are made of it.

The declarations are the service's (``spillway/declarations``), which this package can't import: it
has an environment of its own. ``declared.json`` is what ``scripts/write_reference.py`` writes of
them; a test of the service holds it equal.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from tf.types import Bool, List, Map, Number, String

from terraform_provider_spillway import checks
from terraform_provider_spillway.schema import Field

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tf.types import TfType

    from terraform_provider_spillway.schema import Check

_DECLARED: Final[dict[str, list[dict[str, Any]]]] = json.loads(
    resources.files("terraform_provider_spillway").joinpath("declared.json").read_text()
)
_TYPES: Final[Mapping[str, TfType]] = {
    "string": String(),
    "number": Number(),
    "bool": Bool(),
    "map of string": Map(String()),
    "map of list of string": Map(List(String())),
    "list of string": List(String()),
    # An object of any form has no type here: it is written by jsonencode().
    "json": String(),
}
#: What can be said before anything is asked of the service; the rest is the service's to say.
_CHECKS: Final[Mapping[str, Sequence[Check]]] = {
    "string": (checks.not_empty,),
    "map of list of string": (checks.by_table,),
    "json": (checks.json_object,),
}


def slot_columns() -> dict[str, Field]:
    """Return a slot's columns by name, as what the service tells."""
    return {
        column["name"]: Field(
            column["name"], _TYPES[column["type"]], column["description"], computed=True
        )
        for column in _DECLARED["slot_columns"]
    }


def slot_column(name: str, *, stable: bool) -> Field:
    """Return one of them for a resource; *stable*: an update doesn't change it."""
    column = slot_columns()[name]
    column.stable = stable
    return column


def target_options() -> tuple[Field, ...]:
    """Return the options of a lake and of a PostgreSQL, as attributes of a target that a
    configuration may have. What both have is one attribute, with the values of both.
    """
    kinds = (("a lake", "lake_options"), ("`postgres`", "postgres_options"))
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for kind, table in kinds:
        for option in _DECLARED[table]:
            found.setdefault(option["name"], []).append((kind, option))
    return tuple(_target_option(name, declared) for name, declared in found.items())


def json_options() -> frozenset[str]:
    """Return the names of those that are JSON."""
    options = (*_DECLARED["lake_options"], *_DECLARED["postgres_options"])
    return frozenset(option["name"] for option in options if option["type"] == "json")


def _target_option(name: str, declared: Sequence[tuple[str, dict[str, Any]]]) -> Field:
    types = {option["type"] for _, option in declared}
    if len(types) > 1:
        msg = f"{name} is of several types: {', '.join(sorted(types))}"
        raise TypeError(msg)
    (type_,) = types
    values = list(dict.fromkeys(value for _, option in declared for value in option["values"]))
    return Field(
        name,
        _TYPES[type_],
        " ".join(_described(kind, option, alone=len(declared) == 1) for kind, option in declared),
        optional=True,
        values=values,
        checks=() if values else _CHECKS.get(type_, ()),
    )


def _described(kind: str, option: dict[str, Any], *, alone: bool) -> str:
    text = _with_values(option)
    if option["type"] == "json":
        text += " JSON: `jsonencode({…})`."
    # A lake's say so themselves where it matters.
    return text if alone and kind == "a lake" else f"Of {kind}: {text[:1].lower()}{text[1:]}"


def _with_values(option: dict[str, Any]) -> str:
    """Return what an option is, and its values where they are counted."""
    values = ", ".join(f"`{value}`" for value in option["values"])
    return f"{option['description']} One of {values}." if values else option["description"]
