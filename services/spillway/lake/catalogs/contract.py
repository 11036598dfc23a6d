"""What a catalog is asked for, and where tables of a lake are found in it.

A catalog knows a table by a *database* and a name, both in small letters, digits and underscores,
as Hive's and Glue's have no others::

    <lake>/current/shop.orders    shop.orders
    <lake>/history/shop.orders    shop_history.orders
    with --register-prefix lake_  lake_shop.orders, lake_shop_history.orders

It is told where the table lies and what columns it has. The rows, and what is true of the columns,
are in the table's own log, so a catalog that lags behind leads nobody astray.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from spillway.errors import LakeTableConflict
from spillway.lake.shape.kinds import HISTORY
from spillway.lake.shape.payload import table_of

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The parameter of a table's that says that a lake's job made the entry.
MADE_BY: Final = "spillway.lake"

#: What Spark says of a Delta table that it makes in such a catalog, and looks for.
PARAMETERS: Final = {
    "EXTERNAL": "TRUE",
    "spark.sql.sources.provider": "delta",
    "spark.sql.partitionProvider": "catalog",
}
INPUT_FORMAT: Final = "org.apache.hadoop.mapred.SequenceFileInputFormat"
OUTPUT_FORMAT: Final = "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat"
SERDE: Final = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"

_HIVE_TYPES: Final = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "timestamp_ntz": "timestamp",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A table, as a catalog is to have it."""

    database: str
    name: str
    #: the table's directory, as the catalog's readers address it
    location: str
    #: names and Hive's types
    columns: Sequence[tuple[str, str]] = ()
    #: the lake that it is of
    lake: str = ""

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"


def serde_parameters(entry: Entry) -> dict[str, str]:
    """Return where Spark looks for a table's location."""
    return {"path": entry.location, "serialization.format": "1"}


class Catalog(Protocol):
    """A catalog that answers; its methods may be repeated, and raise what their client raises."""

    def put(self, entry: Entry) -> None:
        """Make the entry, or make the one that is there so.

        Raises:
            LakeTableConflict: another table has its name.
        """

    def remove(self, entry: Entry) -> None:
        """Remove the entry if it is there and leads to the location, and leave the table."""


def place_of(kind: str, directory: str, prefix: str) -> tuple[str, str]:
    """Return the database and the name of a lake's table."""
    schema, table = table_of(directory)
    return _plain(f"{prefix}{schema}{'_history' if kind == HISTORY else ''}"), _plain(table)


def same_place(one: str, other: str) -> bool:
    """Say whether two addresses, of this module's or of Spark's making, are of one directory."""
    return _address(one) == _address(other)


def conflict(entry: Entry, found: str) -> LakeTableConflict:
    """Return what is wrong when another table has the entry's name."""
    return LakeTableConflict(
        f"the catalog has another table {entry}, at {found or 'no location'}",
        hint="Drop that one, or register this lake's with a --register-prefix of its own.",
    )


def hive_type(delta: Any) -> str:
    """Return Hive's type of a type in a Delta table's schema."""
    if isinstance(delta, str):
        return _HIVE_TYPES.get(delta, delta)
    if delta["type"] == "array":
        return f"array<{hive_type(delta['elementType'])}>"
    if delta["type"] == "map":
        return f"map<{hive_type(delta['keyType'])},{hive_type(delta['valueType'])}>"
    fields = (f"{field['name']}:{hive_type(field['type'])}" for field in delta["fields"])
    return f"struct<{','.join(fields)}>"


def _address(location: str) -> str:
    plain = re.sub("^file:/+", "/", location.rstrip("/"))
    return re.sub("^s3a://", "s3://", plain)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9_]", "_", name.lower())
