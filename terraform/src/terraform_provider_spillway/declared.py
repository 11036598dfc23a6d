"""What the service declares of slots, and the attributes that are made of it.

The declarations are the service's (``spillway/declarations``), which this package can't import: it
has an environment of its own. ``declared.json`` is what ``scripts/write_reference.py`` writes of
them; a test of the service holds it equal.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from tf.types import Bool, List, Map, Number, String

from terraform_provider_spillway.schema import Field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tf.types import TfType

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
