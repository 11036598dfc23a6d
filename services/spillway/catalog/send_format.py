"""A value in its type's send format → the raw datum that a tuple would hold.

The SQL bootstrap reads attmissingval through COPY's binary format, which has the element in the type's
send format (what libpq calls binary). Encoders want the datum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spillway.catalog.missing_value import MissingValue, UnreadableMissing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spillway.catalog.layout import PgEnum, PgType


class SentValues:
    """Rebuilds datums by the types of one database."""

    def __init__(self, types: Mapping[int, PgType], enums: Mapping[int, list[PgEnum]]) -> None:
        self._types = types
        self._enums = enums

    def missing_value(self, array: bytes, type_oid: int) -> MissingValue:
        """Rebuild the element of an attmissingval that was sent as an array."""
        return UnreadableMissing(self._types[type_oid].typname)
