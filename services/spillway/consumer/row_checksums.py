"""Checksums of rows that PostgreSQL reckons, so that whoever else has the rows can reckon the same.

A row's text is the texts of its columns in a row, each with its length before it and null as ``-``,
so that no two rows share one; its hash the SHA-256 of that. The text of the key alone gives a row's
bucket. Per bucket, count and sum of hashes are compared; only where they differ are rows looked at.
The caller says what a column's text is. Only rows that are looked at pass through Python one by
one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import psycopg

#: Hex digits of the key's hash that say a row's bucket: 4096 buckets.
BUCKET_DIGITS: Final = 3
#: Of a row's hash, 60 bits are added up: 2^66 rows until a sum leaves 38 digits.
SUMMED_DIGITS: Final = 15

#: key, hash, texts
Row = tuple[str, str, list[str | None]]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Rows whose keys hash alike: how many, and the sum of their hashes."""

    rows: int
    total: int


def values_of(row_text: str) -> list[str | None]:
    """Return the texts that a row's text (a key's) was made of."""
    values: list[str | None] = []
    at = 0
    while at < len(row_text):
        if row_text[at] == "-":
            values.append(None)
            at += 1
            continue
        colon = row_text.index(":", at)
        end = colon + 1 + int(row_text[at:colon])
        values.append(row_text[colon + 1 : end])
        at = end
    return values


def printed(value: sql.Composable) -> sql.Composable:
    """Return the SQL of a value's text as its type's output function writes it.

    Not a cast to text, which leaves out the blanks of character(n).
    """
    return sql.SQL("CASE WHEN {0} IS DISTINCT FROM NULL THEN concat({0}) END").format(value)


class RowTexts:
    """A relation's rows in PostgreSQL.

    Args:
        relation: what stands behind FROM, maybe with conditions behind it.
        texts: the SQL of each column's text, by name.
        key: the columns whose texts tell rows apart; empty: the hash of the whole row does.
    """

    def __init__(
        self,
        relation: sql.Composable,
        texts: Mapping[str, sql.Composable],
        key: Sequence[str],
    ) -> None:
        row = _hash(_row(list(texts.values())))
        key_text = _row([texts[c] for c in key]) if key else row
        #: the SQL of a row's key
        self.key = key_text
        self._rows = sql.SQL(
            "SELECT {bucket} AS bucket, key, row, texts FROM"
            " (SELECT {key} AS key, {row} AS row, {texts} AS texts FROM {relation}) AS source"
        ).format(
            bucket=sql.SQL("substr({}, 1, {})").format(
                _hash(sql.Identifier("key")), sql.Literal(BUCKET_DIGITS)
            ),
            key=key_text,
            row=row,
            texts=sql.SQL("ARRAY[{}]::text[]").format(sql.SQL(", ").join(texts.values())),
            relation=relation,
        )

    def buckets(self, connection: psycopg.Connection[Any]) -> dict[str, Bucket]:
        """Return the buckets of all rows."""
        statement = sql.SQL(
            "SELECT bucket, count(*), sum(('x' || substr(row, 1, "
            "{digits}))::bit({bits})::int8::numeric) FROM ({rows}) AS rows GROUP BY bucket"
        ).format(
            digits=sql.Literal(SUMMED_DIGITS),
            bits=sql.Literal(4 * SUMMED_DIGITS),
            rows=self._rows,
        )
        return {b: Bucket(n, int(total)) for b, n, total in connection.execute(statement)}

    def all_rows(self, connection: psycopg.Connection[Any]) -> list[Row]:
        """Return key, hash and texts of all rows."""
        statement = sql.SQL("SELECT key, row, texts FROM ({}) AS rows").format(self._rows)
        return connection.execute(statement).fetchall()

    def rows(self, connection: psycopg.Connection[Any], buckets: Sequence[str]) -> Iterator[Row]:
        """Yield key, hash and texts of the rows of *buckets*."""
        statement = sql.SQL(
            "SELECT key, row, texts FROM ({}) AS rows WHERE bucket = ANY({})"
        ).format(self._rows, sql.Literal(list(buckets)))
        with connection.cursor("spillway_verify") as cursor:
            cursor.itersize = 10_000
            cursor.execute(statement)
            yield from cursor


def _row(texts: Sequence[sql.Composable]) -> sql.Composable:
    parts = (sql.SQL("coalesce(length({0}) || ':' || {0}, '-')").format(t) for t in texts)
    return sql.SQL("({})").format(sql.SQL(" || ").join([sql.Literal(""), *parts]))


def _hash(text: sql.Composable) -> sql.Composable:
    return sql.SQL("encode(sha256(convert_to({}, 'UTF8')), 'hex')").format(text)
