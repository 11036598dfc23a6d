"""Options of wal2json, read as the original reads them: the same values, the same refusals in the
same words.

Lists are separated by commas, blanks around their items do not count, and a backslash keeps the
character behind it from separating. In names of tables the backslash is then taken away; in message
prefixes and actions it stays a part of the item, as in the original.

Source: the plugin's startup callback (wal2json 2.5, eulerto/wal2json); parse_int
(src/backend/utils/misc/guc.c)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from spillway.errors import InvalidOption
from spillway.pg.boolean import parse_bool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Version = Literal["2.5", "2.6"]

_FORMATS: Final = (1, 2)
_ACTIONS: Final = frozenset({"insert", "update", "delete", "truncate"})
_VERSIONS: Final[tuple[Version, ...]] = ("2.5", "2.6")
#: What C's isspace takes for a blank.
_BLANKS: Final = " \t\n\v\f\r"
_INT_MAX: Final = (1 << 31) - 1


class TableName(NamedTuple):
    """An item of filter-tables or add-tables; None stands for ``*``."""

    schema: str | None
    table: str | None

    def matches(self, schema: str, table: str) -> bool:
        return self.schema in {None, schema} and self.table in {None, table}


@dataclass(frozen=True, slots=True)
class Wal2JsonOptions:
    """What a slot's or a call's options say; defaults are the original's."""

    format_version: int = 1
    #: of which release of the original the output is
    version: Version = "2.5"
    include_transaction: bool = True
    include_xids: bool = False
    include_timestamp: bool = False
    include_origin: bool = False
    include_lsn: bool = False
    include_schemas: bool = True
    include_types: bool = True
    include_typmod: bool = True
    include_type_oids: bool = False
    include_domain_data_type: bool = False
    include_column_positions: bool = False
    include_not_null: bool = False
    include_pk: bool = False
    pretty_print: bool = False
    write_in_chunks: bool = False
    numeric_data_types_as_string: bool = False
    actions: frozenset[str] = _ACTIONS
    filter_origins: frozenset[int] = frozenset()
    filter_tables: tuple[TableName, ...] = ()
    add_tables: tuple[TableName, ...] = (TableName(None, None),)
    filter_msg_prefixes: frozenset[str] = frozenset()
    #: empty: all
    add_msg_prefixes: frozenset[str] = field(default=frozenset())

    def selects(self, schema: str, table: str) -> bool:
        """Say whether changes of a table are shown."""
        return not any(name.matches(schema, table) for name in self.filter_tables) and any(
            name.matches(schema, table) for name in self.add_tables
        )

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Wal2JsonOptions:
        """Parse plugin options.

        Raises:
            InvalidOption: an option or its value is not known, or can't be had outside of the
                server.
        """
        values: dict[str, object] = {}
        for option, value in options.items():
            if option == "include-unchanged-toast":
                raise InvalidOption(
                    f'parameter "{option}" was deprecated',
                    hint="Leave it out: unchanged TOAST values are never shown.",
                    option=option,
                )
            if option == "include-default":
                _refuse_defaults(value)
                continue
            parse = _PARSERS.get(option)
            if parse is None:
                raise InvalidOption(
                    f'option "{option}" = "{value}" is unknown',
                    hint=f"wal2json knows {', '.join(sorted((*_PARSERS, 'include-default')))}.",
                    option=option,
                )
            name = "version" if option == "wal2json-version" else option.replace("-", "_")
            values[name] = parse(option, value)
        return cls(**values)  # type: ignore[arg-type]


def split_list(text: str) -> list[str] | None:
    """Split a list at its commas; backslashes stay. None: an item is empty or has a blank
    inside.
    """
    text = text.lstrip(_BLANKS)
    if not text:
        return []
    items = []
    while True:
        end = _item_end(text)
        if end == 0:
            return None
        items.append(text[:end])
        text = text[end:].lstrip(_BLANKS)
        if not text:
            return items
        if text[0] != ",":
            return None
        text = text[1:].lstrip(_BLANKS)


def split_tables(text: str) -> tuple[TableName, ...] | None:
    """Parse ``schema.table`` names, ``*`` for any. None: not a list, or a name without its
    schema.
    """
    items = split_list(text)
    if items is None:
        return None
    names = []
    for item in items:
        schema, rest = _unescape(item, ".")
        if rest is None:
            return None
        table, _ = _unescape(rest, "")
        names.append(
            TableName(None if item.startswith("*.") else schema, None if rest == "*" else table)
        )
    return tuple(names)


def split_numbers(text: str) -> frozenset[int] | None:
    """Parse origins' numbers as atoi does: what is no number is 0, which is no origin."""
    text = text.lstrip(_BLANKS)
    numbers = set()
    while text:
        end = _item_end(text)
        digits = re.match(r"[+-]?\d+", text[:end], re.ASCII)
        numbers.add(int(digits[0]) if digits else 0)
        text = text[end:].lstrip(_BLANKS)
        if text and text[0] != ",":
            return None
        text = text[1:].lstrip(_BLANKS)
    return frozenset(numbers)


def parse_int(text: str) -> int | None:
    """Read a number as PostgreSQL reads a setting: decimal, octal, hexadecimal, or rounded from a
    fraction.
    """
    stripped = text.strip(_BLANKS)
    match = re.fullmatch(r"([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", stripped)
    if match:
        digits = match[2]
        base = 16 if digits[:2] in {"0x", "0X"} else 8 if digits[0] == "0" else 10
        value = int(digits, base) * (-1 if match[1] == "-" else 1)
    elif re.fullmatch(r"[+-]?(\d+(?=[.eE])\.?\d*|\.\d+)([eE][+-]?\d+)?", stripped, re.ASCII):
        number = float(stripped)
        # Any number out of range will do; infinity can't be rounded.
        value = round(number) if abs(number) <= _INT_MAX else _INT_MAX + 1
    else:
        return None
    return value if -_INT_MAX - 1 <= value <= _INT_MAX else None


def _item_end(text: str) -> int:
    """Where the item at the start of *text* ends: at a comma or a blank that no backslash
    protects.
    """
    position = 0
    while position < len(text) and text[position] != "," and text[position] not in _BLANKS:
        position += 2 if text[position] == "\\" else 1
    return min(position, len(text))


def _unescape(text: str, stop: str) -> tuple[str, str | None]:
    """Take backslashes out of *text* up to the character *stop*; return that and what is behind
    *stop*.
    """
    result, position = "", 0
    while position < len(text):
        if text[position] == "\\":
            position += 1
        elif text[position] == stop:
            return result, text[position + 1 :]
        result += text[position : position + 1]
        position += 1
    return result, None


def _unparsable(option: str, value: str, hint: str) -> InvalidOption:
    return InvalidOption(
        f'could not parse value "{value}" for parameter "{option}"', hint=hint, option=option
    )


def _bool(option: str, value: str) -> bool:
    parsed = parse_bool(value)
    if parsed is None:
        raise _unparsable(option, value, "Give a boolean: on or off.")
    return parsed


def _format_version(option: str, value: str) -> int:
    number = parse_int(value)
    if number is None:
        raise _unparsable(option, value, "Give 1 or 2.")
    if number not in _FORMATS:
        bound = f"{_FORMATS[-1]} or lower" if number > _FORMATS[-1] else f"{_FORMATS[0]} or higher"
        raise InvalidOption(
            f"client sent format_version={number} but we only support format {bound}",
            hint="Give 1 or 2.",
            option=option,
        )
    return number


def _actions(option: str, value: str) -> frozenset[str]:
    for action in (actions := _list(option, value)):
        if action not in _ACTIONS:
            raise _unparsable(option, action, "Actions are insert, update, delete and truncate.")
    return actions


def _list(option: str, value: str) -> frozenset[str]:
    items = split_list(value)
    if items is None:
        raise _unparsable(option, value, "Separate the items by commas.")
    return frozenset(items)


def _origins(option: str, value: str) -> frozenset[int]:
    numbers = split_numbers(value)
    if numbers is None:
        raise _unparsable(
            option, value, "Separate origins' numbers (pg_replication_origin.roident) by commas."
        )
    return numbers


def _tables(option: str, value: str) -> tuple[TableName, ...]:
    names = split_tables(value)
    if names is None:
        raise _unparsable(
            option, value, "Name tables as schema.table, * for any of either, separated by commas."
        )
    return names


def _version(option: str, value: str) -> Version:
    for version in _VERSIONS:
        if value == version:
            return version
    raise _unparsable(option, value, f"Give {' or '.join(_VERSIONS)}.")


def _refuse_defaults(value: str) -> None:
    if _bool("include-default", value):
        raise InvalidOption(
            'parameter "include-default" is not supported',
            hint="Only the server can print the expressions of defaults (pg_get_expr): ask it for"
            " information_schema.columns.column_default.",
            option="include-default",
        )


_PARSERS: Final[Mapping[str, Callable[[str, str], object]]] = {
    **dict.fromkeys(
        (
            "include-transaction",
            "include-xids",
            "include-timestamp",
            "include-origin",
            "include-lsn",
            "include-schemas",
            "include-types",
            "include-typmod",
            "include-type-oids",
            "include-domain-data-type",
            "include-column-positions",
            "include-not-null",
            "include-pk",
            "pretty-print",
            "write-in-chunks",
            "numeric-data-types-as-string",
        ),
        _bool,
    ),
    "format-version": _format_version,
    "wal2json-version": _version,
    "actions": _actions,
    "filter-origins": _origins,
    "filter-tables": _tables,
    "add-tables": _tables,
    "filter-msg-prefixes": _list,
    "add-msg-prefixes": _list,
}
