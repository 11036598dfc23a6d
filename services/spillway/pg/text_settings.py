"""The settings that change what PostgreSQL's type output functions print.

A server-side slot prints with the session's settings; Spillway's slots carry theirs as plugin options
of the same names, and print with PostgreSQL's built-in defaults otherwise (TimeZone: UTC).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from spillway.errors import InvalidOption
from spillway.pg.timezone import transitions

if TYPE_CHECKING:
    from collections.abc import Mapping

_EXTRA_FLOAT_DIGITS_MIN: Final = -15
_EXTRA_FLOAT_DIGITS_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class TextSettings:
    """Session settings, and the server's version, which decides like one."""

    server_version_num: int
    time_zone: str = "UTC"
    #: hex or escape
    bytea_output: str = "hex"
    #: > 0: the shortest digits that read back exactly; else so many fewer than FLT_DIG and DBL_DIG
    extra_float_digits: int = 1
    #: Python's codec of the database's encoding: names are written in it, as the values beside them are
    encoding: str = "utf-8"

    @classmethod
    def from_options(
        cls, options: Mapping[str, str], server_version_num: int, encoding: str = "utf-8"
    ) -> tuple[Self, dict[str, str]]:
        """Take the settings out of plugin options; return them and the options that are none.

        Names match as parameter names do in PostgreSQL, whatever the case. DateStyle and IntervalStyle
        are known, but only with their defaults.

        Raises:
            InvalidOption: a setting has a value that it can't have; the text is PostgreSQL's.
        """
        rest: dict[str, str] = {}
        time_zone, bytea_output, extra_float_digits = "UTC", "hex", 1
        for option, value in options.items():
            match option.lower():
                case "timezone":
                    transitions(value)
                    time_zone = value
                case "bytea_output":
                    bytea_output = value.lower()
                    if bytea_output not in {"hex", "escape"}:
                        raise _invalid("bytea_output", value, "Available values: escape, hex.")
                case "extra_float_digits":
                    extra_float_digits = _float_digits(value)
                case "datestyle":
                    if value.split(",")[0].strip().lower() != "iso":
                        raise _invalid("DateStyle", value, "Spillway prints dates in style ISO.")
                case "intervalstyle":
                    if value.lower() != "postgres":
                        raise _invalid(
                            "IntervalStyle", value, "Spillway prints intervals in style postgres."
                        )
                case _:
                    rest[option] = value
        return cls(server_version_num, time_zone, bytea_output, extra_float_digits, encoding), rest


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
