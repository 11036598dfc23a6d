"""Source against lake, row by row and value by value: a full outer comparison on the primary key.

What comes out is not a count that happens to match but, for each table, how many rows are only in the
source, only in the lake, twice in the lake, or differ in a value, with the first few of them named.

Values are compared by meaning: a numeric equals a decimal of another scale, a timestamptz the same
instant. Types that a lake keeps as text (numeric without a scale, jsonb, enums, intervals) are compared
with PostgreSQL's own text of the value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg
    import pyarrow as pa

_EXAMPLES_MAX = 5


@dataclass
class TableComparison:
    """The outcome for one table."""

    table: str
    source_rows: int = 0
    lake_rows: int = 0
    values: int = 0
    only_source: int = 0
    only_lake: int = 0
    duplicates: int = 0
    different: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Say whether the lake's table is the source's."""
        return not (self.only_source or self.only_lake or self.duplicates or self.different)

    def note(self, example: str) -> None:
        """Keep *example* if there are few yet."""
        if len(self.examples) < _EXAMPLES_MAX:
            self.examples.append(example)


def compare_table(
    source: psycopg.Connection,
    schema: str,
    table: str,
    key: Sequence[str],
    lake: pa.Table,
) -> TableComparison:
    """Compare *lake* with the rows that *source* sees now.

    Columns of the lake that begin with an underscore are its bookkeeping and are passed over; any other
    that the source lacks, or that it has and the lake lacks, makes the tables differ.
    """
    outcome = TableComparison(table)
    columns = _columns(source, schema, table)
    in_lake = {name for name in lake.column_names if not name.startswith("_")}
    if in_lake != set(columns):
        outcome.different += 1
        outcome.note(f"columns: source has {sorted(columns)}, lake has {sorted(in_lake)}")
        return outcome

    key_at = [columns.index(name) for name in key]
    rows: dict[tuple[str, ...], tuple[Any, ...]] = {}
    for row in zip(*(lake.column(name).to_pylist() for name in columns), strict=True):
        outcome.lake_rows += 1
        identity = tuple(str(row[at]) for at in key_at)
        if identity in rows:
            outcome.duplicates += 1
            outcome.note(f"{identity} is in the lake twice")
        rows[identity] = row

    with source.cursor() as cursor:
        cursor.execute("SET LOCAL TimeZone = 'UTC'")
        cursor.execute("SET LOCAL DateStyle = 'ISO, YMD'")
        cursor.execute(
            sql.SQL("SELECT {} FROM {}").format(
                sql.SQL(", ").join(
                    sql.SQL("{0}, {0}::text").format(sql.Identifier(name)) for name in columns
                ),
                sql.Identifier(schema, table),
            )
        )
        for both in cursor:
            outcome.source_rows += 1
            native, text = both[0::2], both[1::2]
            identity = tuple(str(native[at]) for at in key_at)
            copied = rows.pop(identity, None)
            if copied is None:
                outcome.only_source += 1
                outcome.note(f"{identity} is in the source only")
                continue
            outcome.values += len(columns)
            wrong = [
                name
                for name, value, shown, copy in zip(columns, native, text, copied, strict=True)
                if not same_value(value, shown, copy)
            ]
            if wrong:
                outcome.different += 1
                at = columns.index(wrong[0])
                outcome.note(
                    f"{identity}.{wrong[0]}: source {_short(native[at])}, lake {_short(copied[at])}"
                )
    outcome.only_lake += len(rows)
    for identity in list(rows)[:_EXAMPLES_MAX]:
        outcome.note(f"{identity} is in the lake only")
    return outcome


def same_value(native: object, text: str | None, lake: object) -> bool:
    """Compare a value of the source, as psycopg reads it and as PostgreSQL prints it, with the lake's."""
    if native is None or lake is None:
        return native is None and lake is None
    if isinstance(lake, str):
        return lake == (native if isinstance(native, str) else text)
    if isinstance(lake, datetime) and isinstance(native, datetime):
        return _instant(lake) == _instant(native)
    return bool(lake == native)


def _instant(moment: datetime) -> datetime:
    """Give *moment* a time zone: a lake's timestamps without one are UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _columns(source: psycopg.Connection, schema: str, table: str) -> list[str]:
    rows = source.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = format('%%I.%%I', %s::text, %s::text)::regclass"
        " AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        [schema, table],
    )
    return [name for (name,) in rows]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
