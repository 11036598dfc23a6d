"""What counts as a wider type loses nothing: each value that a server takes of the one type reads
the same as the other.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from spillway.apply.schema.widening import is_widening

if TYPE_CHECKING:
    from harness.cluster import Database

_VALUES: Final = (
    "0", "-1", "7", "32767", "-32768", "2147483647", "-9223372036854775808", "1.5", "-99.95",
    "12345.678", "0.1", "1e20", "NaN", "", "a", "ab ", "abcde", "abcdefghijk", "1", "101",
    "0101010101", "2026-11-23 12:34:56.123456", "2026-11-23 12:34:56.123456+02",
    "12:34:56.654321", "12:34:56.654321+02", "infinity",
)  # fmt: skip
_TYPES: Final = (
    "smallint", "integer", "bigint", "numeric", "numeric(6,2)", "numeric(8,2)", "numeric(8,3)",
    "numeric(21,2)", "numeric(6,0)", "real", "double precision", "text", "character varying",
    "character varying(3)", "character varying(10)", "character(3)", "character(5)", "bit(3)",
    "bit varying", "bit varying(4)", "bit varying(12)", "timestamp without time zone",
    "timestamp(3) without time zone", "timestamp with time zone", "timestamp(0) with time zone",
    "time without time zone", "time(3) without time zone", "time with time zone", "date",
    "boolean", "jsonb", "uuid",
)  # fmt: skip
#: … which the list should have: it is of no use empty.
_EXPECTED: Final = (
    ("smallint", "bigint"), ("integer", "numeric"), ("numeric(6,2)", "numeric(8,2)"),
    ("real", "double precision"), ("character varying(3)", "text"),
    ("character varying(3)", "character varying(10)"),
    ("timestamp(3) without time zone", "timestamp without time zone"),
    ("bit varying(4)", "bit varying"),
)  # fmt: skip


def test_what_is_wider_holds_every_value(pg18: Database) -> None:
    compared = 0
    with pg18.connect() as connection:
        for before in _TYPES:
            taken = [value for value in _VALUES if _takes(connection, before, value)]
            for after in _TYPES:
                if before == after or not is_widening(before, after):
                    continue
                for value in taken:
                    (one, other) = connection.execute(
                        f"SELECT v::text, v::{after}::text FROM (SELECT %s::{before} AS v) AS t",
                        [value],
                    ).fetchone() or (None, "")
                    if before == "real":
                        # The digits of a real are as many as tell it from others.
                        assert float(str(one)) == pytest.approx(float(str(other)), nan_ok=True)
                    elif after.startswith("numeric"):
                        # An integer has no digits behind the point, and is the same with zeros.
                        assert one == other or Decimal(one) == Decimal(other), (before, after)
                    else:
                        assert one == other, (before, after, value)
                    compared += 1
    assert compared > 100


def _takes(connection: psycopg.Connection[Any], of: str, value: str) -> bool:
    """Whether it is a value of that type as it stands: nothing is cut off or rounded unseen."""
    try:
        connection.execute(f"SELECT %s::{of}", [value])
    except psycopg.Error:
        return False
    return True


@pytest.mark.parametrize(("before", "after"), _EXPECTED)
def test_what_is_wider_is_known(before: str, after: str) -> None:
    assert is_widening(before, after)
    assert not is_widening(after, before)
