"""The capture filter of a source: what its decoders leave out before they copy anything.

All slots of a database share one decoding session and one transaction log, so that only what no
slot of the source may ever want can be left out early. Which that is, an operator says when the
source is created, and it never changes: slots begin at any position that the log holds, and what
was left out is in none of them.

- ``origin: none`` leaves out records that bear a replication origin, and transactions whose commit
  does. That is what PostgreSQL does for a slot whose plugin's filter_by_origin says so.
- ``tables`` names tables, or all of a schema. A partition counts by its own name and by those of
  its ancestors.
- ``publications`` names publications: a table is read while one of them publishes it, as of each
  change.

Catalogs are always followed. A table is asked for when its storage is met (``decoder.py``), not
once a record.

Source: FilterByOrigin, DecodeTXNNeedSkip, src/backend/replication/logical/decode.c
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from spillway.errors import InvalidCapture
from spillway.pg.identifier import split_identifiers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spillway.catalog.descriptor import RelationDescriptor

_ORIGINS: Final = ("any", "none")
_PART: Final = r'"(?:[^"]|"")+"|[^".,*\s]+'
_TABLE: Final = re.compile(rf"({_PART})\.({_PART}|\*)")


@dataclass(frozen=True, slots=True)
class CaptureFilter:
    """What is decoded; everything by default."""

    only_local: bool = False
    #: (schema, table) as the catalog has them; None for the table stands for every one
    tables: frozenset[tuple[str, str | None]] = frozenset()
    publications: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, capture: Mapping[str, object]) -> Self:
        """Read what :func:`check_capture` returned, or a part of it.

        Raises:
            InvalidCapture: it is not of that form, or contradicts itself.
        """
        if unknown := sorted(set(capture) - {"origin", "tables", "publications"}):
            raise InvalidCapture(
                f"capture does not know {', '.join(unknown)}",
                hint="It knows origin, tables and publications.",
            )
        origin = capture.get("origin", "any")
        if origin not in _ORIGINS:
            raise InvalidCapture(
                f'unrecognized origin value: "{origin}"', hint="Give none or any.", option="origin"
            )
        tables = _names(capture, "tables")
        publications = _names(capture, "publications")
        if tables and publications:
            raise InvalidCapture(
                "capture takes tables or publications, not both",
                hint="Name tables, or a publication that publishes them.",
            )
        return cls(origin == "none", frozenset(map(_table, tables)), frozenset(publications))

    @property
    def selects_tables(self) -> bool:
        """Whether some tables are left out."""
        return bool(self.tables or self.publications)

    def captures(self, relation: RelationDescriptor) -> bool:
        """Say whether changes of *relation* are decoded, as the catalog is now."""
        if self.publications:
            return any(p.name in self.publications for p in relation.publications)
        if self.tables:
            return any(
                (table.schema, table.name) in self.tables or (table.schema, None) in self.tables
                for table in (relation, *relation.ancestors)
            )
        return True


#: The filter of a source that captures everything.
EVERYTHING: Final = CaptureFilter()


def check_capture(capture: Mapping[str, object]) -> dict[str, object]:
    """Return *capture* complete, as it is stored and shown; {} stands for everything.

    Raises:
        InvalidCapture: it is not of that form, or contradicts itself.
    """
    CaptureFilter.parse(capture)
    return {
        "origin": capture.get("origin", "any"),
        "tables": list(_names(capture, "tables")),
        "publications": list(_names(capture, "publications")),
    }


def _names(capture: Mapping[str, object], option: str) -> Sequence[str]:
    names = capture.get(option, ())
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) and n for n in names):
        raise InvalidCapture(
            f"capture's {option} is no list of names", hint="Give a list of texts.", option=option
        )
    return tuple(dict.fromkeys(names))


def _table(text: str) -> tuple[str, str | None]:
    """Read ``schema.table`` or ``schema.*``, with quotes as in SQL."""
    match = _TABLE.fullmatch(text)
    if match is None:
        raise InvalidCapture(
            f"{text!r} names no table",
            hint="Write schema.table or schema.*; a part with upper case or a dot in double "
            'quotes: public."My.Table".',
            option="tables",
        )
    schema, table = match.groups()
    return _identifier(schema), None if table == "*" else _identifier(table)


def _identifier(text: str) -> str:
    names = split_identifiers(text)
    assert names is not None
    return names[0]
