"""Checksums of rows that PostgreSQL reckons, so that whoever else has the rows can reckon the same.

A row's text is the texts of its columns in a row, each with its length before it and null as ``-``,
so that no two rows share one; its hash the SHA-256 of that. The text of the key alone gives a row's
bucket. Per bucket, count and sum of hashes are compared; only where they differ are rows looked at.
The caller says what a column's text is. Only rows that are looked at pass through Python one by
one.

A database in SQL_ASCII has bytes and no characters (:class:`TextForm`). Two of them are compared
byte by byte, and a byte above 127 is a surrogate here, as of ``surrogateescape``. Beside a database
of another encoding, all text has to be UTF-8.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from psycopg import sql
from psycopg.adapt import Loader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import psycopg
    from psycopg.abc import Buffer

#: Hex digits of the key's hash that say a row's bucket: 4096 buckets.
BUCKET_DIGITS: Final = 3
#: Of a row's hash, 60 bits are added up: 2^66 rows until a sum leaves 38 digits.
SUMMED_DIGITS: Final = 15

#: key, hash, texts
Row = tuple[str, str, list[str | None]]


class TextForm(Enum):
    """What a side's text is."""

    #: its server knows which characters it has
    CHARACTERS = "characters"
    #: SQL_ASCII, beside a side that has characters; the session's client_encoding is UTF8
    UTF8 = "utf8"
    #: SQL_ASCII on both sides; the session's client_encoding is SQL_ASCII
    BYTES = "bytes"


def is_without_encoding(connection: psycopg.Connection[Any]) -> bool:
    """Say whether the session's database is in SQL_ASCII."""
    return connection.info.parameter_status("server_encoding") == "SQL_ASCII"


def form_beside_characters(connection: psycopg.Connection[Any]) -> TextForm:
    """Return what a side's texts are whose other side has characters; its client_encoding is
    UTF8.
    """
    return TextForm.UTF8 if is_without_encoding(connection) else TextForm.CHARACTERS


class _ByteLoader(Loader):
    """Reads text of which each byte counts by itself."""

    def load(self, data: Buffer) -> str:
        return bytes(data).decode("ascii", "surrogateescape")


def execute(
    connection: psycopg.Connection[Any], statement: sql.Composed, form: TextForm
) -> psycopg.Cursor[Any]:
    """Run a statement and read the texts of its answer, which are of *form*.

    Raises:
        psycopg.Error: the server refuses it.
    """
    if form is not TextForm.BYTES:
        return connection.execute(statement)
    cursor = connection.cursor()
    cursor.adapters.register_loader("text", _ByteLoader)
    return cursor.execute(statement.as_bytes())


def text_array(values: Sequence[str | None], form: TextForm) -> sql.Composable:
    """Return the SQL of a text[] of *form*."""
    if form is not TextForm.BYTES:
        return sql.Literal(list(values))
    texts = ("NULL" if value is None else _escaped(value) for value in values)
    return sql.SQL(f"ARRAY[{', '.join(texts)}]")


def _escaped(text: str) -> str:
    data = text.encode("ascii", "surrogateescape")
    plain = (chr(b) if 31 < b < 127 and b not in b"\\'" else f"\\x{b:02x}" for b in data)
    return f"E'{''.join(plain)}'"


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
        form: what its texts are.
    """

    def __init__(
        self,
        relation: sql.Composable,
        texts: Mapping[str, sql.Composable],
        key: Sequence[str],
        form: TextForm = TextForm.CHARACTERS,
    ) -> None:
        self._form = form
        row = _hash(_row(list(texts.values()), form), form)
        key_text = _row([texts[c] for c in key], form) if key else row
        #: the SQL of a row's key
        self.key = key_text
        self._rows = sql.SQL(
            "SELECT {bucket} AS bucket, key, row, texts FROM"
            " (SELECT {key} AS key, {row} AS row, {texts} AS texts FROM {relation}) AS source"
        ).format(
            bucket=sql.SQL("substr({}, 1, {})").format(
                _hash(sql.Identifier("key"), form), sql.Literal(BUCKET_DIGITS)
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
        return {b: Bucket(n, int(total)) for b, n, total in self._ask(connection, statement)}

    def all_rows(self, connection: psycopg.Connection[Any]) -> list[Row]:
        """Return key, hash and texts of all rows."""
        statement = sql.SQL("SELECT key, row, texts FROM ({}) AS rows").format(self._rows)
        return self._ask(connection, statement).fetchall()

    def rows(self, connection: psycopg.Connection[Any], buckets: Sequence[str]) -> Iterator[Row]:
        """Yield key, hash and texts of the rows of *buckets*."""
        statement = sql.SQL(
            "SELECT key, row, texts FROM ({}) AS rows WHERE bucket = ANY({})"
        ).format(self._rows, sql.Literal(list(buckets)))
        if self._form is TextForm.BYTES:
            # A cursor of the server's takes no such statement.
            yield from self._ask(connection, statement)
            return
        with connection.cursor("spillway_verify") as cursor:
            cursor.itersize = 10_000
            cursor.execute(statement)
            yield from cursor

    def _ask(
        self, connection: psycopg.Connection[Any], statement: sql.Composed
    ) -> psycopg.Cursor[Any]:
        return execute(connection, statement, self._form)


def _row(texts: Sequence[sql.Composable], form: TextForm) -> sql.Composable:
    # In SQL_ASCII length counts bytes, where the other side counts characters.
    length = "length(convert_to({0}, 'UTF8'), 'UTF8')" if form is TextForm.UTF8 else "length({0})"
    parts = (sql.SQL(f"coalesce({length} || ':' || {{0}}, '-')").format(t) for t in texts)
    return sql.SQL("({})").format(sql.SQL(" || ").join([sql.Literal(""), *parts]))


def _hash(text: sql.Composable, form: TextForm) -> sql.Composable:
    encoding = sql.Literal("SQL_ASCII" if form is TextForm.BYTES else "UTF8")
    return sql.SQL("encode(sha256(convert_to({}, {})), 'hex')").format(text, encoding)
