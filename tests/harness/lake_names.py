"""Every name that the lake's code gives a column, as names of a user's columns: none may be one.

The names are read out of the code, so that one that is new there is one that is tested here.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeGuard

import spillway.lake
from spillway.plugins.arrow_schema import escape_name

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What gives a column a name, of Spark's and of Arrow's.
_GIVERS: Final = frozenset({"alias", "append_column", "aggregate", "withColumn"})
#: A column that a test's tables have besides: what a prefix is put before.
KEY: Final = "id"


@cache
def internal_names() -> tuple[str, ...]:
    """Return the names, as the plugin writes those of columns that are called like a change's."""
    found = set()
    for file in sorted(Path(spillway.lake.__file__).parent.rglob("*.py")):
        found |= set(_names(ast.parse(file.read_text())))
    found |= {name + KEY for name in found if name.endswith("_") and name.strip("_")}
    # What tells a table's columns from others, doubled.
    found |= {f": {KEY}", f":  {KEY}", f"s {KEY}", f"t {KEY}", f"s : {KEY}", "s _set", "0", "1"}
    apart = {escape_name(name).lower(): escape_name(name) for name in found - {KEY}}
    return tuple(sorted(apart.values()))


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and _is_name(node.value, r"_[a-z]\w*"):
            yield node.value
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in _GIVERS:
            for each in ast.walk(node):
                if isinstance(each, ast.Constant) and _is_name(each.value, r"[a-z]\w*"):
                    yield each.value


def _is_name(value: object, pattern: str) -> TypeGuard[str]:
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None
