"""Values that have no form in Arrow, as a message of the plugin ``arrow`` tells of them.

With ``not_representable=mark`` such a value is null in its row, and the message's schema has one
more entry of metadata, ``spillway.refused``, with which no consumer takes it for a null:

::

    {"count": 3, "values": [{"column": "at", "row": 17, "lsn": "0/16B3748",
     "commit_lsn": "0/16B3790", "value": "infinity", "reason": "…", "hint": "…"}, …]}

``row`` counts the message's rows from 0. ``values`` are the first 32 in the order of the rows;
``value`` is as PostgreSQL prints it, null when it is longer than a kilobyte. All other values of
the message are what they are without the option.

Who asks for it must look: the plugin's clients get an error otherwise.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spillway._kernels.values.text.output import datum_text
from spillway.errors import DecodingError
from spillway.pg.encoding import readable
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from spillway._kernels.encoders.arrow.encoder import Table
    from spillway.pg.text_settings import TextSettings

METADATA_KEY: Final = b"spillway.refused"
#: The plugin's option, and the value with which it tells of such values instead of failing.
OPTION: Final = "not_representable"
MARK: Final = "mark"

#: What is longer is not printed: the kernel kept no more of it.
_PRINTED_BYTES_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class RefusedValue:
    """One value that is null in a message, and is none at the source."""

    #: as the source names it
    column: str
    row: int
    #: of the change, and of its transaction's commit record
    lsn: Lsn
    commit_lsn: Lsn
    #: as PostgreSQL prints it; None: it is too long
    value: str | None
    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class RefusedValues:
    """What a message tells of them."""

    #: how many there are
    count: int
    #: the first of them
    values: tuple[RefusedValue, ...]

    def from_lsn(self, lsn: int) -> RefusedValue | None:
        """Return the first whose transaction commits at *lsn* or later; the last that is told of
        when there may be one that isn't.
        """
        found = next((each for each in self.values if each.commit_lsn >= lsn), None)
        if found is None and self.count > len(self.values):
            return self.values[-1]
        return found


def marked_schema(table: Table, settings: TextSettings) -> pa.Schema:
    """Return the schema of a message of *table*, which has refused values."""
    plan = table.plan
    columns = {column.column.name: column for column in (*plan.columns, *plan.key_columns)}

    def value(each: Mapping[str, Any]) -> str | None:
        datum: bytes = each["datum"]
        planned = columns[each["column"]]
        if len(datum) >= _PRINTED_BYTES_MAX or planned.name in plan.hashed:
            return None
        column = planned.column
        try:
            text = datum_text(column, plan.descriptor.types, settings, datum)
        except DecodingError:
            return None
        return readable(text.decode(settings.encoding, "surrogateescape"))

    told = {
        "count": table.refused_count,
        "values": [
            {
                "column": readable(each["column"]),
                "row": each["row"],
                "lsn": str(Lsn(each["lsn"])),
                "commit_lsn": str(Lsn(each["commit_lsn"])),
                "value": value(each),
                "reason": each["reason"],
                "hint": each["hint"],
            }
            for each in table.refused
        ],
    }
    metadata = {**(plan.schema.metadata or {}), METADATA_KEY: json.dumps(told).encode()}
    return plan.schema.with_metadata(metadata)


def refused_of(schema: pa.Schema) -> RefusedValues | None:
    """Return what a message with that schema tells of them; None: it has none.

    Raises:
        ValueError, KeyError: what it tells is not what the plugin writes.
    """
    text = (schema.metadata or {}).get(METADATA_KEY)
    if text is None:
        return None
    told = json.loads(text)
    values = tuple(
        RefusedValue(
            each["column"],
            each["row"],
            Lsn.parse(each["lsn"]),
            Lsn.parse(each["commit_lsn"]),
            each["value"],
            each["reason"],
            each["hint"],
        )
        for each in told["values"]
    )
    return RefusedValues(told["count"], values)
