"""The fields of a lake target that are options of ``spillway lake run``: what each may be, and the words of the command line.

A field is checked when a subscription is created or altered, without the lake's libraries, by the rules that the job itself has
(a test holds one against the other): what the job would refuse whatever is in the source and in the lake is refused before a JVM starts.
Whether a table has a column to be partitioned by, or lies otherwise already, only the job can see.

What is of a table is a map from ``schema.table`` to its columns, and an option that is repeated: ``--cluster-by=shop.orders=a,b``. The
option's text parts columns by commas and the table from them by ``=``, so no name may have these; and an empty list is "none".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from spillway.errors import InvalidRequest, UnsupportedFeature

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_POLICIES: Final = ("evolve", "pause", "quarantine")
_DURATION: Final = re.compile(r"[0-9]{1,9}[smhdw]")
_MEMORY: Final = re.compile(r"[1-9][0-9]{0,6}[kmgKMG]")
_TABLE: Final = re.compile(r"[^\s=][^=]*\.[^=]*[^\s=]")
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


def _pattern(pattern: re.Pattern[str], example: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        return "" if isinstance(value, str) and pattern.fullmatch(value) else example

    return check


def _number(least: float) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        good = isinstance(value, int | float) and not isinstance(value, bool) and value >= least
        return "" if good else f"a number, {least:g} or more"

    return check


def _by_table(is_one: Callable[[list[str]], bool], what: str) -> Callable[[Any], str]:
    """Return a check for a map from tables to lists of texts, for which *is_one* holds."""

    def check(value: Any) -> str:
        good = isinstance(value, dict) and all(
            not text(table)
            and _TABLE.fullmatch(table)
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


#: The field, its option of ``spillway lake run``, and what says what it may be; "" for a good value.
JOB_OPTIONS: Final[Mapping[str, tuple[str, Callable[[Any], str]]]] = {
    "partition_history": ("--partition-history", choice("day", "month", "year", "none")),
    "partition_by": (
        "--partition-by",
        _by_table(
            _are_partitions,
            "columns, or day(column), month(column), year(column), each column once,",
        ),
    ),
    "cluster_by": ("--cluster-by", _by_table(_are_columns, "columns")),
    "iceberg_catalog": ("--iceberg-catalog", text),
    "iceberg_prefix": ("--iceberg-prefix", text),
    "on_schema_change": ("--on-schema-change", choice(*_POLICIES)),
    "interval_s": ("--interval", _number(0.1)),
    "max_bytes_per_batch": ("--max-bytes-per-batch", _number(1)),
    "maintenance_interval": ("--maintenance-interval", _pattern(_DURATION, "a time such as 1h")),
    "retention": ("--retention", _pattern(_DURATION, "a time such as 7d")),
    "history_retention": ("--history-retention", _pattern(_DURATION, "a time such as 90d")),
    "driver_memory": ("--driver-memory", _pattern(_MEMORY, "a size such as 2g")),
    "master": ("--master", text),
    "metrics_port": ("--metrics-port", _number(0)),
}
#: Fields that only one format has.
_OF_FORMAT: Final = {
    "partition_history": "delta",
    "partition_by": "delta",
    "cluster_by": "delta",
    "iceberg_catalog": "iceberg",
    "iceberg_prefix": "iceberg",
}
#: Fields that say how the first tables are made, with what stands for their absence.
FIXED: Final[Mapping[str, str | None]] = {
    "partition_history": "none",
    "iceberg_catalog": None,
    "iceberg_prefix": None,
}


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
    for name, (_, check) in JOB_OPTIONS.items():
        if name not in given:
            continue
        insist(name, given[name], check)
        format_ = _OF_FORMAT.get(name)
        if format_ is not None and given["format"] != format_:
            raise UnsupportedFeature(
                f"{name} is of lakes in {format_}, and this one is of {given['format']}",
                hint=f'Leave {name} out, or give format "{format_}".',
                field=f"target.{name}",
            )


def arguments(target: Mapping[str, Any]) -> list[str]:
    """Return the words of the command line that a target's options are."""
    words = []
    for name, (option, _) in JOB_OPTIONS.items():
        value = target.get(name)
        if isinstance(value, dict):
            words += [f"{option}={table}={','.join(texts)}" for table, texts in value.items()]
        elif value is not None:
            words.append(f"{option}={value}")
    return words
