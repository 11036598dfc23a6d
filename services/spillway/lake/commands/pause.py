"""``spillway lake pause``."""

from __future__ import annotations

from typing import Annotated

import typer

from spillway.lake.commands.options import (
    LakePath,  # noqa: TC001 - typer reads the annotations
)
from spillway.lake.state import position, quarantine
from spillway.storage.place import lake_path


def pause_tables(
    path: LakePath,
    table: Annotated[
        list[str], typer.Option(metavar="SCHEMA.TABLE", help="The table; may be repeated.")
    ],
) -> None:
    """Set tables aside from the job's next batch on, others go on: what comes for them is kept in
    the lake as it came, and the slot is confirmed. "lake resume" takes it in.
    """
    lake = lake_path(path)
    position.existing(lake)
    with position.file_errors(lake):
        states = quarantine.pause(lake, table)
    for state in states:
        typer.echo(str(state))
