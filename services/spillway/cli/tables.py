"""Tables for a person, by rich: imported by ``output`` when there is one to print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Wider than any line.
_UNFOLDED: Final = 100_000


def print_table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Print a column per name in *columns*."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in columns))
    _console().print(table)


def print_record(record: Mapping[str, Any]) -> None:
    """Print a name and a value per line, as psql's expanded display."""
    grid = Table.grid(padding=(0, 2))
    for name, value in record.items():
        grid.add_row(Text(name, style="bold"), _cell(value))
    _console().print(grid)


def _console() -> Console:
    console = Console()
    # A pipe or a file has no width: nothing is folded there.
    return console if console.is_terminal else Console(width=_UNFOLDED)


def _cell(value: Any) -> Text:
    # Text, because what stands in brackets would be markup otherwise.
    if value is None:
        return Text("")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, dict):
        known = ((name, item) for name, item in value.items() if item is not None)
        return Text(", ".join(f"{name}={item}" for name, item in known))
    if isinstance(value, list):
        return Text("; ".join(str(_cell(item)) for item in value))
    return Text(str(value))
