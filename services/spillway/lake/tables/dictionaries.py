"""Which columns of a Parquet file are written with a dictionary.

Arrow tries one for each column until it is too large, and a column of values of which nearly all
differ costs a hash and a copy of each for nothing: of a table of ten columns three fourths of what
writing it takes. So the first rows are looked at: a column gets a dictionary if values come again
there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Rows that are looked at.
_LOOKED_AT: Final = 4096
#: Values that differ, of so many, where a dictionary is worth it.
_SHARE: Final = 0.5


def with_dictionary(rows: pa.Table) -> list[str]:
    """Return the columns of a file that begins with *rows*, by their paths in Parquet's schema."""
    found: list[str] = []
    first = rows.slice(0, _LOOKED_AT)
    for field in rows.schema:
        if pa.types.is_nested(field.type):
            found += _leaves(field.name, field.type)
        # One value never comes again: most batches of a small table are a row.
        elif len(first) != 1 and pc.count_distinct(
            first.column(field.name), mode="all"
        ).as_py() <= _SHARE * len(first):
            found.append(field.name)
    return found


def _leaves(path: str, type_: pa.DataType) -> Iterator[str]:
    if pa.types.is_struct(type_):
        for field in type_:
            yield from _leaves(f"{path}.{field.name}", field.type)
    elif pa.types.is_list(type_):
        yield from _leaves(f"{path}.list.element", type_.value_type)
    else:
        yield path
