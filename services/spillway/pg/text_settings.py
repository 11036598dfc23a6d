"""The settings that change what PostgreSQL's type output functions print.

A server-side slot prints with the session's settings; Spillway's slots carry theirs as plugin
options of the same names, and print with PostgreSQL's built-in defaults otherwise (TimeZone: UTC).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from spillway.errors import InvalidOption
from spillway.pg.identifier import split_identifiers
from spillway.pg.timezone import transitions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spillway.pg.client_text import TextRules

_EXTRA_FLOAT_DIGITS_MIN: Final = -15
_EXTRA_FLOAT_DIGITS_MAX: Final = 3
_INTERVAL_STYLES: Final = ("postgres", "postgres_verbose", "sql_standard", "iso_8601")
#: A word of DateStyle (*: and what begins so), the style and the order that it means.
_DATE_STYLE_WORDS: Final = (
    ("ISO", "ISO", ""), ("SQL", "SQL", ""), ("POSTGRES*", "Postgres", ""), ("GERMAN", "German", ""),
    ("YMD", "", "YMD"), ("DMY", "", "DMY"), ("EURO*", "", "DMY"), ("MDY", "", "MDY"),
    ("US", "", "MDY"),
    ("NONEURO*", "", "MDY"), ("DEFAULT", "", ""),
)  # fmt: skip


#: What search_path finds by default, "$user" left out: no schema is called as a role that
#: replicates.
DEFAULT_VISIBLE_SCHEMAS: Final = frozenset({"pg_catalog", "public"})
_SEARCH_PATHS: Final = {
    (): frozenset({"pg_catalog"}),
    ("pg_catalog",): frozenset({"pg_catalog"}),
    ("public",): DEFAULT_VISIBLE_SCHEMAS,
    ("$user", "public"): DEFAULT_VISIBLE_SCHEMAS,
}


@dataclass(frozen=True, slots=True)
class TextSettings:
    """Session settings, and the server's version, which decides like one."""

    server_version_num: int
    time_zone: str = "UTC"
    #: hex or escape
    bytea_output: str = "hex"
    #: > 0: the shortest digits that read back exactly; else so many fewer than FLT_DIG and DBL_DIG
    extra_float_digits: int = 1
    #: ISO, SQL, Postgres or German
    date_style: str = "ISO"
    #: MDY, DMY or YMD
    date_order: str = "MDY"
    #: postgres, postgres_verbose, sql_standard or iso_8601
    interval_style: str = "postgres"
    #: the schemas whose names are written alone
    visible_schemas: frozenset[str] = DEFAULT_VISIBLE_SCHEMAS
    #: Python's codec of the database's encoding: names are written in it, as the values beside them
    #: are
    encoding: str = "utf-8"
    #: what becomes of text in values in their send format; None: UTF-8
    sent_text: TextRules | None = None
    #: what xml declares in its send format; None: nothing, as for UTF8
    xml_encoding: str | None = None

    @classmethod
    def from_options(
        cls, options: Mapping[str, str], server_version_num: int, encoding: str = "utf-8"
    ) -> tuple[Self, dict[str, str]]:
        """Take the settings out of plugin options; return them and the options that are none.

        Names match as parameter names do in PostgreSQL, whatever the case.

        Raises:
            InvalidOption: a setting has a value that it can't have; the text is PostgreSQL's.
        """
        rest: dict[str, str] = {}
        found: dict[str, Any] = {}
        for option, value in options.items():
            match option.lower():
                case "timezone":
                    transitions(value)
                    found["time_zone"] = value
                case "bytea_output":
                    found["bytea_output"] = _choice("bytea_output", value, ("escape", "hex"))
                case "extra_float_digits":
                    found["extra_float_digits"] = _float_digits(value)
                case "datestyle":
                    found["date_style"], found["date_order"] = _date_style(value)
                case "intervalstyle":
                    found["interval_style"] = _choice("IntervalStyle", value, _INTERVAL_STYLES)
                case "search_path":
                    found["visible_schemas"] = _visible_schemas(value)
                case _:
                    rest[option] = value
        return cls(server_version_num=server_version_num, encoding=encoding, **found), rest


def _choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value.lower() not in choices:
        raise _invalid(name, value, f"Available values: {', '.join(choices)}.")
    return value.lower()


def _visible_schemas(value: str) -> frozenset[str]:
    """Return the schemas that are searched; which of two of a name comes first is known of
    pg_catalog and public only.
    """
    names = split_identifiers(value)
    # An empty name is in the list that set_config makes of ''.
    found = None if names is None else _SEARCH_PATHS.get(tuple(name for name in names if name))
    if found is None:
        raise _invalid("search_path", value, 'Give public, "$user", public, or nothing.')
    return found


def _date_style(value: str) -> tuple[str, str]:
    """Return style and order of a DateStyle: words in any order; what is not said is ISO, MDY.

    Source: check_datestyle (src/backend/commands/variable.c)
    """
    styles: set[str] = set()
    orders: set[str] = set()
    for item in value.split(","):
        word = item.strip().strip('"').upper()
        for prefix, style, order in _DATE_STYLE_WORDS:
            if word == prefix or (prefix.endswith("*") and word.startswith(prefix[:-1])):
                styles |= {style} - {""}
                orders |= {order} - {""}
                break
        else:
            raise _invalid(
                "DateStyle", value, "Give ISO, SQL, Postgres or German, and MDY, DMY or YMD."
            )
    if len(styles) > 1 or len(orders) > 1:
        raise _invalid("DateStyle", value, "Give one style and one order: they conflict.")
    style = styles.pop() if styles else "ISO"
    return style, orders.pop() if orders else "DMY" if style == "German" else "MDY"


def _float_digits(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = _EXTRA_FLOAT_DIGITS_MAX + 1
    if not _EXTRA_FLOAT_DIGITS_MIN <= value <= _EXTRA_FLOAT_DIGITS_MAX:
        raise _invalid(
            "extra_float_digits",
            text,
            f"Give a number from {_EXTRA_FLOAT_DIGITS_MIN} to {_EXTRA_FLOAT_DIGITS_MAX}.",
        )
    return value


def _invalid(name: str, value: str, hint: str) -> InvalidOption:
    return InvalidOption(f'invalid value for parameter "{name}": "{value}"', hint=hint)
