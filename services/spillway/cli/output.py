"""What commands print: tables for a person, JSON for a program."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the service's JSON.")]


def print_json(value: Any) -> None:
    """Print an answer of the service as it is, indented."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(
    rows: Iterable[Mapping[str, Any]],
    names: Sequence[str],
    *,
    ranked: Sequence[str],
    sentences: Sequence[str] = (),
) -> None:
    """Print a column per name; where not all fit, those in front of *ranked* stay longest."""
    # rich is slow to import, and most command lines print no table.
    from spillway.cli import tables  # noqa: PLC0415

    tables.print_table(rows, tables.Columns(names, ranked, sentences))


def print_record(record: Mapping[str, Any]) -> None:
    """Print a name and a value per line, as psql's expanded display."""
    from spillway.cli import tables  # noqa: PLC0415 - as above

    tables.print_record(record)


def print_changes(changes: Iterable[Mapping[str, Any]]) -> None:
    """Print lsn, xid and data, a line a change, tabs between: for eyes and for cut(1).

    What is not UTF-8 is printed byte for byte, as ``spillway recv`` does.
    """
    for change in changes:
        start = f"{change['lsn']}\t{change['xid']}\t"
        if "data_hex" in change:
            data = bytes.fromhex(change["data_hex"].removeprefix("\\x"))
            typer.echo(start.encode() + data)
        else:
            typer.echo(start + change["data"])
