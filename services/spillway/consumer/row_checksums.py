r"""Checksums of rows that PostgreSQL reckons, so that whoever else has the rows can reckon them.

A row's text is the texts of its columns in a row, each with its length before it and null as ``-``,
so that no two rows share one; its hash the SHA-256 of that. The text of the key alone gives a row's
bucket. Per bucket, count and sum of hashes are compared; only where they differ are rows looked at.
The caller says what a column's text is. Only rows that are looked at pass through Python one by
one.

A database in SQL_ASCII has bytes and no characters (:class:`TextForm`). Two of them are compared
byte by byte, and a byte above 127 is a surrogate here, as of ``surrogateescape``. Beside a database
of another encoding, all text has to be UTF-8. A lake has a byte that is none as ``\xff``, and so
does PostgreSQL's side then.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from psycopg import sql
from psycopg.adapt import Loader

from spillway.pg.byte_session import is_without_encoding

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
    #: SQL_ASCII, beside a side that has ``\xff`` for bytes that are no characters; the session is
    #: one that takes bytes (:mod:`spillway.pg.byte_session`)
    ESCAPED = "escaped"


#: In regular expressions over bytes: those that are not ASCII.
_HIGH: Final = r"[\x80-\xff]"
#: Characters of UTF-8, of one byte or more, likewise.
_CHARACTERS: Final = (
    r"[\x01-\x7f]"
    r"|[\xc2-\xdf][\x80-\xbf]"
    r"|\xe0[\xa0-\xbf][\x80-\xbf]"
    r"|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    r"|\xed[\x80-\x9f][\x80-\xbf]"
    r"|\xf0[\x90-\xbf][\x80-\xbf]{2}"
    r"|[\xf1-\xf3][\x80-\xbf]{3}"
    r"|\xf4[\x80-\x8f][\x80-\xbf]{2}"
)


def form_beside_characters(connection: psycopg.Connection[Any]) -> TextForm:
    """Return what a side's texts are whose other side has characters; its client_encoding is
    UTF8.
    """
    return TextForm.UTF8 if is_without_encoding(connection) else TextForm.CHARACTERS


def form_beside_escaped(connection: psycopg.Connection[Any]) -> TextForm:
    """Return what a side's texts are whose other side has them as ``not_utf8=escape`` makes them;
    the session takes bytes.
    """
    return TextForm.ESCAPED if is_without_encoding(connection) else TextForm.CHARACTERS


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
        if form is TextForm.ESCAPED:
            texts = {name: _characters(text) for name, text in texts.items()}
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
    counts_bytes = form in (TextForm.UTF8, TextForm.ESCAPED)
    length = "length(convert_to({0}, 'UTF8'), 'UTF8')" if counts_bytes else "length({0})"
    parts = (sql.SQL(f"coalesce({length} || ':' || {{0}}, '-')").format(t) for t in texts)
    return sql.SQL("({})").format(sql.SQL(" || ").join([sql.Literal(""), *parts]))


def _hash(text: sql.Composable, form: TextForm) -> sql.Composable:
    encoding = sql.Literal("SQL_ASCII" if form is TextForm.BYTES else "UTF8")
    return sql.SQL("encode(sha256(convert_to({}, {})), 'hex')").format(text, encoding)


def _characters(text: sql.Composable) -> sql.Composable:
    r"""Return the SQL of a text of bytes in which each that is no character is ``\xff``."""
    # Each match is a run of characters or one byte that begins none: the longest one counts.
    return sql.SQL(
        "CASE WHEN {text} ~ {high} THEN (SELECT string_agg(coalesce(m[1],"
        " {mark} || encode(convert_to(m[2], 'SQL_ASCII'), 'hex')), '' ORDER BY n)"
        " FROM regexp_matches({text}, {each}, 'g') WITH ORDINALITY AS found (m, n))"
        " ELSE {text} END"
    ).format(
        text=text,
        high=sql.Literal(_HIGH),
        mark=sql.Literal("\\x"),
        each=sql.Literal(f"((?:{_CHARACTERS})+)|({_HIGH})"),
    )
