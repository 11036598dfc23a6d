"""What decides which partition of a lake table a row is in: ``region``, ``day(created_at)``.

Which tables have which partitions is :mod:`spillway.lake.tables.layout`'s; the derived columns that
they are kept in are :mod:`spillway.lake.tables.partitions`'.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from spillway.errors import InvalidRequest, LakeSchemaConflict

UNITS: Final = ("day", "month", "year")
#: What history's partitions are made of.
COMMIT_TIME: Final = "_commit_time"
_PARTITION: Final = re.compile(r"(?:(?P<unit>[a-z]+)\((?P<of>[^()]+)\)|(?P<column>[^()]+))")


@dataclass(frozen=True, slots=True)
class Partition:
    """What of a row says in which partition it is: a column, or the day, month or year of one."""

    column: str
    #: "": the value itself
    unit: str = ""

    @property
    def name(self) -> str:
        """The derived column's."""
        return f"_by_{self.column.removeprefix('_')}"

    def is_of(self, type_: pa.DataType | None) -> bool:
        """Say whether columns of a type, as the lake has them, can be so; None: there is no
        column.
        """
        is_ = pa.types
        if type_ is None:
            return False
        if self.unit:
            return bool(is_.is_timestamp(type_) or is_.is_date32(type_))
        return bool(
            is_.is_integer(type_)
            or is_.is_string(type_)
            or is_.is_boolean(type_)
            or is_.is_date32(type_)
        )

    def check(self, columns: pa.Schema) -> None:
        """Check that the rows of *columns* can be partitioned so.

        Raises:
            LakeSchemaConflict: there is no such column, or it is of another type.
        """
        check_column(self.column, columns, "--partition-by")
        if self.name in columns.names:
            raise LakeSchemaConflict(
                f"the table has a column {self.name!r}, which is where its partitions would be "
                "kept",
                hint="Partition it by another column, or by none.",
                column=self.name,
            )
        type_ = columns.field(self.column).type
        if not self.is_of(type_):
            raise LakeSchemaConflict(
                f"column {self.column!r} is {type_} in the lake, which {self} can't partition",
                hint="Partitions are of integers, texts, booleans and dates, and of day(), month() "
                "or year() of dates and timestamps. What is of other types can be clustered "
                "(--cluster-by).",
                column=self.column,
            )

    def __str__(self) -> str:
        return f"{self.unit}({self.column})" if self.unit else self.column

    @classmethod
    def parse(cls, text: str) -> Partition:
        """Parse ``column`` or ``day(column)``.

        Raises:
            InvalidRequest: it is neither.
        """
        found = _PARTITION.fullmatch(text.strip())
        if found is None or (found["unit"] is not None and found["unit"] not in UNITS):
            raise InvalidRequest(
                f"{text!r} says no partition",
                hint=f"A column, or {', '.join(f'{unit}(column)' for unit in UNITS)} of a date or "
                "a timestamp.",
            )
        return cls((found["of"] or found["column"]).strip(), found["unit"] or "")


def check_column(column: str, columns: pa.Schema, option: str) -> None:
    """Check that a table has the column that *option* names.

    Raises:
        LakeSchemaConflict: it has none of that name.
    """
    if column not in columns.names:
        raise LakeSchemaConflict(
            f"{option} names column {column!r}, and the table has {', '.join(columns.names)}",
            hint=f"Give {option} anew for that table.",
            column=column,
        )
