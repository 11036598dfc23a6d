"""Tables of answers: aligned for a person at a terminal, a line a row with tabs between for a
program behind a pipe.

At a terminal a table fits its width. What doesn't fit is left out by rank, the least important
column first, and a last line says which; nothing is folded within a word. What is a sentence (an
error) stands below the table. Behind a pipe every column is there, whole, without colours, with
numbers as numbers. What is unknown or doesn't exist is ``-``, so that a row always has all of its
fields.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.cells import cell_len

from spillway.declarations.slot_columns import SLOT_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

UNKNOWN: Final = "-"
_GAP: Final = "  "
#: A terminal that is narrower than that gets lines of that width.
_LEAST_WIDTH: Final = 20
_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB")
#: Columns that are right-aligned, and at a terminal shown with a unit: a slot's, and a
#: subscription's tables'.
_BYTES: Final = frozenset({"bytes_copied", "bytes_total"}).union(
    column.name for column in SLOT_COLUMNS if column.unit == "bytes"
)
_SECONDS: Final = frozenset(column.name for column in SLOT_COLUMNS if column.unit == "seconds")
_NUMBERS: Final = _BYTES | _SECONDS | {"rows", "restarts", "changes", "columns"}


@dataclass(frozen=True, slots=True)
class Columns:
    """What of a row is shown, and what of that is more important."""

    #: names of all columns, as they stand side by side
    names: Sequence[str]
    #: the same names, the most important first; what is not here goes first, from the right
    ranked: Sequence[str]
    #: sentences: columns behind a pipe, lines below the table at a terminal
    sentences: Sequence[str] = ()


def print_table(rows: Iterable[Mapping[str, Any]], columns: Columns) -> None:
    """Print a table for whoever reads standard output."""
    found = list(rows)
    if sys.stdout.isatty():
        for line in for_terminal(found, columns, _width()):
            typer.echo(line)
        return
    names = (*columns.names, *columns.sentences)
    typer.echo("\t".join(names))
    for row in found:
        typer.echo("\t".join(_plain(row[name]) for name in names))


def print_record(record: Mapping[str, Any]) -> None:
    """Print a name and a value per line, as psql's expanded display."""
    if not sys.stdout.isatty():
        for name, value in record.items():
            typer.echo(f"{name}\t{_plain(value)}")
        return
    width = _width()
    indent = max(map(len, record), default=0) + len(_GAP)
    for name, value in record.items():
        lines = _wrapped(_shown(name, value), max(_LEAST_WIDTH, width - indent))
        typer.echo(_bold(name.ljust(indent)) + lines[0])
        for line in lines[1:]:
            typer.echo(" " * indent + line)


def for_terminal(rows: Sequence[Mapping[str, Any]], columns: Columns, width: int) -> list[str]:
    """Return the lines of a table that is no wider than *width*, unless its most important column
    is.
    """
    cells = {name: [_shown(name, row[name]) for row in rows] for name in columns.names}
    widths = {
        name: max(len(name), *(cell_len(cell) for cell in cells[name]), 0) for name in columns.names
    }
    kept = list(columns.names)
    rank = {name: at for at, name in enumerate(columns.ranked)}
    last = len(columns.names)

    def importance(name: str) -> tuple[int, int]:
        return rank.get(name, last), columns.names.index(name)

    while len(kept) > 1 and sum(widths[n] for n in kept) + len(_GAP) * (len(kept) - 1) > width:
        kept.remove(max(kept, key=importance))
    lines = [_bold(_line([(name, widths[name], name in _NUMBERS) for name in kept], kept))]
    for at in range(len(rows)):
        fields = [cells[name][at] for name in kept]
        lines.append(_line([(name, widths[name], name in _NUMBERS) for name in kept], fields))
    first = columns.names[0]
    for row in rows:
        for name in columns.sentences:
            if row[name] is not None:
                lines += _wrapped(f"{row[first]}: {_plain(row[name])}", width)
    left_out = [name for name in columns.names if name not in kept]
    if left_out and rows:
        lines += _wrapped(f"({', '.join(left_out)}: in a wider terminal, or with --json)", width)
    return lines


def _line(columns: Sequence[tuple[str, int, bool]], row: Sequence[str]) -> str:
    padded = []
    for (_, width, right), cell in zip(columns, row, strict=True):
        blank = " " * (width - cell_len(cell))
        padded.append(blank + cell if right else cell + blank)
    return _GAP.join(padded).rstrip()


def _shown(name: str, value: Any) -> str:
    """Return a value for a person."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if name in _BYTES:
            return _size(int(value))
        if name in _SECONDS:
            return f"{value:.1f} s"
    return _plain(value)


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


def _width() -> int:
    return shutil.get_terminal_size().columns
