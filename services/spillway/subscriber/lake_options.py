"""The options of a lake target: what each may be, by its kind, and the words of the job's command
line.

They are declared in :mod:`spillway.declarations.lake_options`. A field is checked when a
subscription is created or altered, without the lake's libraries, by the rules that the job itself
has (a test holds one against the other): what the job would refuse whatever is in the source and in
the lake is refused before a JVM starts. Whether a table has a column to be partitioned by, or lies
otherwise already, only the job can see.

What is of a table is a map from ``schema.table`` to its columns, and an option that is repeated:
``--cluster-by=shop.orders=a,b``. The option's text parts columns by commas and the table from them
by ``=``, so no name may have these; and an empty list is "none".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from spillway.declarations import spark_settings, times
from spillway.declarations.lake_options import LAKE_OPTIONS, Kind, LakeOption
from spillway.declarations.masks import parse_mask
from spillway.declarations.tables import is_table, is_table_or_all
from spillway.errors import InvalidRequest, UnsupportedFeature

#: Says of a value what it must be; "" if it is that.
Check = Callable[[Any, LakeOption], str]

_MEMORY: Final = re.compile(r"[1-9][0-9]{0,6}[kmgKMG]")
_COLUMN: Final = re.compile(r"[^\s,](?:[^,]*[^\s,])?")
_NAME: Final = r"[^\s(),](?:[^(),]*[^\s(),])?"
_PARTITION: Final = re.compile(rf"(?:day|month|year)\((?P<of>{_NAME})\)|(?P<column>{_NAME})")
_TEXT_MAX: Final = 4096


def choice(*known: str) -> Callable[[Any], str]:
    """Return a check for one of some words."""

    def check(value: Any) -> str:
        return "" if value in known else f"one of {', '.join(known)}"

    return check


def text(value: Any) -> str:
    """Check a text that may stand on a command line."""
    good = isinstance(value, str) and 0 < len(value) <= _TEXT_MAX and value.isprintable()
    return "" if good else f"a text of at most {_TEXT_MAX} characters"


def _pattern(pattern: re.Pattern[str], what: str) -> Check:
    def check(value: Any, option: LakeOption) -> str:
        good = isinstance(value, str) and pattern.fullmatch(value)
        return "" if good else f"{what} such as {option.example}"

    return check


def _number(value: Any, option: LakeOption) -> str:
    """Check a number against the option's bounds."""
    most = math.inf if option.most is None else option.most
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and option.least <= value <= most:
        return ""
    if option.most is None:
        return f"a number, {option.least:g} or more"
    return f"a number, {option.least:g} to {option.most:g}"


def _by_table(is_one: Callable[[list[str]], bool], what: str) -> Check:
    """Return a check for a map from tables to lists of texts, for which *is_one* holds."""

    def check(value: Any, option: LakeOption) -> str:  # noqa: ARG001 - as every check
        good = isinstance(value, dict) and all(
            not text(table)
            and is_table(table)
            and isinstance(texts, list)
            and all(isinstance(one, str) for one in texts)
            and not (texts and text(",".join(texts)))
            and is_one(texts)
            for table, texts in value.items()
        )
        return "" if good else f"a list of {what} for each schema.table"

    return check


def _are_columns(texts: list[str]) -> bool:
    return all(_COLUMN.fullmatch(one) for one in texts)


def _are_partitions(texts: list[str]) -> bool:
    found = [_PARTITION.fullmatch(one) for one in texts]
    columns = [one["of"] or one["column"] for one in found if one is not None]
    return len(columns) == len(texts) == len(set(columns))


def _are_masks(texts: list[str]) -> bool:
    masks = [parse_mask(one) for one in texts]
    columns = [mask.column for mask in masks if mask is not None]
    return len(columns) == len(texts) == len(set(columns))


def _tables(value: Any, option: LakeOption) -> str:  # noqa: ARG001 - as every check
    """Check a list of tables, or of the word for all."""
    good = isinstance(value, list) and all(
        not text(name) and is_table_or_all(name) for name in value
    )
    return "" if good else "a list of schema.table, or of all"


def _times(value: Any, option: LakeOption) -> str:
    """Check times by table."""
    good = isinstance(value, dict) and all(
        not text(table) and is_table_or_all(table) and times.seconds(time) is not None
        for table, time in value.items()
    )
    return "" if good else f"a time for each schema.table, or for all, such as {option.example}"


def _settings(value: Any, option: LakeOption) -> str:
    """Check Spark's settings."""
    if not isinstance(value, dict):
        return f"an object of texts such as {option.example}"
    told = next(filter(None, (spark_settings.problem(n, v) for n, v in value.items())), "")
    return told and f"other settings: {told}"


#: What says what a value of each kind may be; "" for a good one.
_CHECKS: Final[Mapping[Kind, Check]] = {
    "text": lambda value, _: text(value),
    "choice": lambda value, option: choice(*option.choices)(value),
    "whole number": _number,
    "number": _number,
    "time": _pattern(times.TIME, "a time"),
    "size": _pattern(_MEMORY, "a size"),
    "columns": _by_table(_are_columns, "columns"),
    "partitions": _by_table(
        _are_partitions, "columns, or day(column), month(column), year(column), each column once,"
    ),
    "masks": _by_table(
        _are_masks,
        "masks, out(column), null(column), hash(column) or constant(column:text), each column "
        "once,",
    ),
    "tables": _tables,
    "times": _times,
    "settings": _settings,
}


def _problem(option: LakeOption, value: Any) -> str:
    return _CHECKS[option.kind](value, option)


def insist(name: str, value: Any, check: Callable[[Any], str]) -> None:
    """Refuse a field's value that the check has something to say about."""
    if wanted := check(value):
        raise InvalidRequest(
            f"the lake's {name} is {value!r}, and must be {wanted}",
            hint="See the how-to on subscriptions.",
            field=f"target.{name}",
        )


def check_options(given: Mapping[str, Any]) -> None:
    """Check the options of a target whose format is known to be one.

    Raises:
        InvalidRequest: a value is none.
        UnsupportedFeature: the format has no such thing.
    """
    for option in LAKE_OPTIONS:
        name = option.name
        if name not in given:
            continue
        insist(name, given[name], partial(_problem, option))
        if not option.is_of(given["format"]):
            raise UnsupportedFeature(
                f"{name} is of lakes in {' and '.join(option.formats)}, and this one is of "
                f"{given['format']}",
                hint=f'Leave {name} out, or give format "{option.formats[0]}".',
                field=f"target.{name}",
            )


def fixed_options(target: Mapping[str, Any]) -> dict[str, object]:
    """Return those options of a target that say how its first tables are made."""
    return {
        option.name: target.get(option.name, option.absent)
        for option in LAKE_OPTIONS
        if option.fixed
    }


def arguments(target: Mapping[str, Any]) -> list[str]:
    """Return the words of the command line that a target's options are."""
    words = []
    for option in LAKE_OPTIONS:
        value = target.get(option.name)
        if isinstance(value, dict):
            words += [
                f"{option.option}={name}={of if isinstance(of, str) else ','.join(of)}"
                for name, of in value.items()
            ]
        elif isinstance(value, list):
            words += [f"{option.option}={name}" for name in value]
        elif value is not None:
            words.append(f"{option.option}={value}")
    return words
