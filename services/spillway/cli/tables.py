"""Tables of answers: aligned for a person at a terminal, a line a row with tabs between for a
program behind a pipe.

At a terminal a table fits its width. What doesn't fit is left out by rank, the least important
column first, and a last line says which; nothing is folded within a word. What is a sentence (an
error) stands below the table. Behind a pipe every column is there, whole, without colours, with
numbers as numbers. What is unknown or doesn't exist is ``-``, so that a row always has all of its
fields. Times are those of the terminal's zone, to the second; behind a pipe they are as the service
writes them.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import typer

from spillway.declarations.slot_columns import SLOT_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spillway.cli.answer import Columns

UNKNOWN: Final = "-"
_GAP: Final = "  "
#: A terminal that is narrower than that gets lines of that width.
_LEAST_WIDTH: Final = 20
_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB")
#: a time as REST writes it
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
#: Columns that are right-aligned, and at a terminal shown with a unit: a slot's, and a
#: subscription's tables'.
_BYTES: Final = frozenset(
    {"bytes", "bytes_copied", "bytes_per_second", "bytes_rewritten", "bytes_total", "behind_bytes"}
).union(column.name for column in SLOT_COLUMNS if column.unit == "bytes")
_SECONDS: Final = frozenset({"seconds_left"}).union(
    column.name for column in SLOT_COLUMNS if column.unit == "seconds"
)
_NUMBERS: Final = (
    _BYTES
    | _SECONDS
    | {"rows", "files", "deleted_share", "restarts", "changes", "changes_per_second"}
    | {"columns", "count", "slots"}
)


def row_lines(
    rows: Sequence[Mapping[str, Any]], columns: Columns, width: int | None, *, is_wide: bool = False
) -> list[str]:
    """Return a table's lines, for a terminal of that width or, without one, for a pipe.

    Args:
        rows: what stands below the heading.
        columns: of them.
        width: the terminal's.
        is_wide: no column is left out, and lines may be longer than the terminal.
    """
    if width is not None:
        return for_terminal(rows, columns, sys.maxsize if is_wide else width, wrap=width)
    # What may be either, in the table or below it, is one column here.
    names = tuple(dict.fromkeys((*columns.names, *columns.sentences)))
    return [
        "\t".join(names),
        *("\t".join(_plain(row[name]) for name in names) for row in rows),
    ]


def record_lines(record: Mapping[str, Any], width: int | None) -> list[str]:
    """Return a name and a value per line, as psql's expanded display; widths as above."""
    if width is None:
        return [f"{name}\t{_plain(value)}" for name, value in record.items()]
    indent = max(map(len, record), default=0) + len(_GAP)
    found = []
    for name, value in record.items():
        lines = _wrapped(_shown(name, value), max(_LEAST_WIDTH, width - indent))
        found.append(_bold(name.ljust(indent)) + lines[0])
        found += [" " * indent + line for line in lines[1:]]
    return found


def text_lines(lines: Sequence[str], width: int | None) -> list[str]:
    """Return sentences, broken between words at a terminal; what is indented stays so."""
    if width is None:
        return list(lines)
    found = []
    for line in lines:
        indent = line[: len(line) - len(line.lstrip())]
        found += [indent + one for one in _wrapped(line.strip(), width - len(indent))]
    return found


def heading(text: str, width: int | None) -> str:
    """Return what stands above a table; behind a pipe with a mark, for who looks for it."""
    return f"# {text}" if width is None else _bold(text)


def for_terminal(
    rows: Sequence[Mapping[str, Any]], columns: Columns, width: int, *, wrap: int | None = None
) -> list[str]:
    """Return the lines of a table that is no wider than *width*, unless its most important column
    is; sentences below it break at *wrap*.
    """
    wrap = width if wrap is None else wrap
    cells = {name: [_shown(name, row[name]) for row in rows] for name in columns.names}
    widths = {
        name: max(len(name), *(_wide(cell) for cell in cells[name]), 0) for name in columns.names
    }
    kept = list(columns.names)
    rank = {name: at for at, name in enumerate(columns.ranked)}
    last = len(columns.names)

    def importance(name: str) -> tuple[int, int]:
        return rank.get(name, last), columns.names.index(name)

    # One that does not fit beside the first goes before those that do: many databases, for one.
    first = min(kept, key=importance)
    kept = [
        name for name in kept if name == first or widths[first] + len(_GAP) + widths[name] <= width
    ]
    while len(kept) > 1 and sum(widths[n] for n in kept) + len(_GAP) * (len(kept) - 1) > width:
        kept.remove(max(kept, key=importance))
    lines = [_bold(_line([(name, widths[name], name in _NUMBERS) for name in kept], kept))]
    for at in range(len(rows)):
        fields = [cells[name][at] for name in kept]
        lines.append(_line([(name, widths[name], name in _NUMBERS) for name in kept], fields))
    for row in rows:
        for name in columns.sentences:
            # What stands in the table already is not said again.
            if row[name] and name not in kept:
                first_name = columns.names[0]
                lines += _wrapped(
                    f"{_shown(first_name, row[first_name])}: {_plain(row[name])}", wrap
                )
    left_out = [
        name for name in columns.names if name not in kept and name not in columns.sentences
    ]
    if left_out and rows:
        lines += _wrapped(f"({', '.join(left_out)}: in a wider terminal, or with -o wide)", wrap)
    return lines


def _line(columns: Sequence[tuple[str, int, bool]], row: Sequence[str]) -> str:
    padded = []
    for (_, width, right), cell in zip(columns, row, strict=True):
        blank = " " * (width - _wide(cell))
        padded.append(blank + cell if right else cell + blank)
    return _GAP.join(padded).rstrip()


def _shown(name: str, value: Any) -> str:
    """Return a value for a person."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if name in _BYTES:
            return _size(int(value))
        if name in _SECONDS:
            return f"{value:.1f} s"
    return local_time(value) if isinstance(value, str) else _plain(value)


def local_time(text: str) -> str:
    """Return a time as REST writes it in the zone of whoever reads it; anything else as it is."""
    if not _MOMENT.fullmatch(text):
        return _plain(text)
    return f"{datetime.fromisoformat(text).astimezone():%Y-%m-%d %H:%M:%S}"


def _size(count: int) -> str:
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count} bytes" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def _plain(value: Any) -> str:
    """Return a value as one line without tabs, and never an empty one."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        text = ", ".join(
            f"{name}={_plain(item)}" for name, item in value.items() if item is not None
        )
    elif isinstance(value, list | tuple):
        text = "; ".join(_plain(item) for item in value)
    else:
        text = str(value)
    return "".join(c if c.isprintable() else " " for c in text).strip() or UNKNOWN


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, max(_LEAST_WIDTH, width), break_long_words=False, break_on_hyphens=False
    ) or [""]


def _bold(text: str) -> str:
    return text if os.environ.get("NO_COLOR") else typer.style(text, bold=True)


def width() -> int:
    """Return the terminal's."""
    return shutil.get_terminal_size().columns


def _wide(text: str) -> int:
    """Return how many columns of a terminal *text* takes."""
    from rich.cells import cell_len  # noqa: PLC0415 - slow to import, and few commands need it

    return cell_len(text)
