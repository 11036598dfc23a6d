"""Changes as rows to read: what a preview gives as JSON, taken apart, filtered, and cut to what
fits a page.

A preview's JSON is wal2json's format 2 (``action``, ``schema``, ``table``, ``columns``,
``identity``). What it says is somebody's data: it is only ever put into templates, which escape it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spillway.admin.formats import count
from spillway.pg.encoding import readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from spillway.pg.lsn import Lsn
    from spillway.service.model import Change

_VALUE_CHARACTERS: Final = 160
_COLUMNS_MAX: Final = 40

OPERATIONS: Final[Mapping[str, str]] = {
    "I": "insert",
    "U": "update",
    "D": "delete",
    "T": "truncate",
    "M": "message",
}


@dataclass(frozen=True, slots=True)
class Value:
    """A column of a row; *old* is what it was before, where the table's replica identity says
    so.
    """

    name: str
    text: str
    old: str | None = None
    is_null: bool = False
    is_key: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A change to read."""

    operation: str
    table: str
    lsn: Lsn
    xid: int
    committed_at: str
    values: tuple[Value, ...]
    #: columns that are not shown
    more: int


@dataclass(frozen=True, slots=True)
class Filter:
    """What is to be shown: tables whose name has *table* in it, and one operation."""

    table: str = ""
    operation: str = ""

    def takes(self, row: Row) -> bool:
        return self.table.lower() in row.table.lower() and self.operation in ("", row.operation)


def rows_of(changes: Iterable[Change], wanted: Filter) -> tuple[list[Row], int]:
    """Take *changes* apart; give the rows that are *wanted*, and how many there were of all."""
    rows, seen = [], 0
    for change in changes:
        row = _row(change)
        if row is None:
            continue
        seen += 1
        if wanted.takes(row):
            rows.append(row)
    return rows, seen


def _row(change: Change) -> Row | None:
    try:
        data = change.data
        if change.data_bytes is not None:
            # A database in SQL_ASCII: bytes that are no characters are shown one by one.
            data = change.data_bytes.decode(errors="surrogateescape")
        # Numbers stay the text that they are: 19.90 is not 19.9.
        parsed: dict[str, Any] = json.loads(data, parse_float=str, parse_int=str)
    except ValueError:
        # Text that JSON can't hold in an SQL_ASCII database.
        return Row("unreadable", "", change.lsn, change.xid, "", (_text("", change.data),), 0)
    operation = OPERATIONS.get(str(parsed.get("action")))
    if operation is None:
        return None
    table = readable(f"{parsed['schema']}.{parsed['table']}") if "table" in parsed else ""
    values = tuple(_values(parsed))
    return Row(
        operation,
        table,
        change.lsn,
        change.xid,
        str(parsed.get("timestamp", ""))[:19],
        values[:_COLUMNS_MAX],
        max(0, len(values) - _COLUMNS_MAX),
    )


def _values(parsed: Mapping[str, Any]) -> Iterator[Value]:
    if "content" in parsed:
        yield _text(str(parsed.get("prefix", "")), parsed["content"])
        return
    keys = {column["name"] for column in parsed.get("pk", ())}
    before = {column["name"]: column["value"] for column in parsed.get("identity", ())}
    columns = parsed.get("columns")
    if columns is None:
        for name, value in before.items():
            yield _text(name, value, is_key=name in keys)
        return
    for column in columns:
        name, value = column["name"], column["value"]
        old = None
        if name in before and before[name] != value:
            old = _cut(before[name])
        yield _text(name, value, old=old, is_key=name in keys)


def _text(name: str, value: object, *, old: str | None = None, is_key: bool = False) -> Value:
    return Value(readable(name), _cut(value), old, value is None, is_key)


def _cut(value: object) -> str:
    if value is None:
        return "null"
    text = readable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    if len(text) <= _VALUE_CHARACTERS:
        return text
    return f"{text[:_VALUE_CHARACTERS]}… ({count(len(text))} characters)"
