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
}
#: What can be said before anything is asked of the service; the rest is the service's to say.
_CHECKS: Final[Mapping[str, Sequence[Check]]] = {
    "string": (checks.not_empty,),
    "map of list of string": (checks.by_table,),
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


def lake_options() -> tuple[Field, ...]:
    """Return a lake's options, as attributes of a target that a configuration may have."""
    return tuple(
        Field(
            option["name"],
            _TYPES[option["type"]],
            _with_values(option),
            optional=True,
            values=option["values"],
            checks=() if option["values"] else _CHECKS.get(option["type"], ()),
        )
        for option in _DECLARED["lake_options"]
    )


def _with_values(option: dict[str, Any]) -> str:
    """Return what an option is, and its values where they are counted."""
    values = ", ".join(f"`{value}`" for value in option["values"])
    return f"{option['description']} One of {values}." if values else option["description"]
