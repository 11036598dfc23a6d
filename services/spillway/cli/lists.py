"""What lists have in common: which rows, in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from spillway.errors import InvalidRequest, SpillwayError
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

Sort: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--sort",
        metavar="COLUMN",
        help="By this column, of any that `show` has; -COLUMN for the largest first.",
    ),
]
_LSN: Final = "lsn"


def only(
    rows: Iterable[dict[str, Any]], **wanted: Collection[str] | str | None
) -> list[dict[str, Any]]:
    """Return the rows whose fields are as wanted; what is None or empty is not asked for."""
    return [
        row
        for row in rows
        if all(
            not values
            or (row[field] == values if isinstance(values, str) else row[field] in values)
            for field, values in wanted.items()
        )
    ]


def in_order(rows: list[dict[str, Any]], column: str | None) -> list[dict[str, Any]]:
    """Sort rows by a column, in reverse by ``-column``; what is unknown comes last.

    Raises:
        InvalidRequest: there is no such column, or it has no order.
    """
    if column is None or not rows:
        return rows
    name = column.removeprefix("-")
    sortable = [key for key, value in rows[0].items() if not isinstance(value, dict | list)]
    if name not in sortable:
        from spillway.cli.similar import did_you_mean  # noqa: PLC0415 - on errors alone

        raise InvalidRequest(
            f"--sort {column!r} names no column to sort by",
            hint=did_you_mean(name, sortable) + f"There are {', '.join(sortable)}.",
        )
    known = [row for row in rows if row[name] is not None]
    unknown = [row for row in rows if row[name] is None]
    known.sort(key=lambda row: _key(name, row), reverse=column.startswith("-"))
    return known + unknown


def _key(name: str, row: Mapping[str, Any]) -> Any:
    value = row[name]
    if not isinstance(value, str) or not name.endswith(_LSN):
        return value
    try:
        return Lsn.parse(value)
    except SpillwayError:
        return 0
