"""``spillway lake resync``, ``spillway lake cancel-resync``."""

from __future__ import annotations

from typing import Annotated

import typer

from spillway.lake.commands.options import (
    LakePath,  # noqa: TC001 - typer reads the annotations
)
from spillway.lake.state import position, resyncs
from spillway.storage.place import lake_path


def resync_tables(
    path: LakePath,
    table: Annotated[
        list[str], typer.Option(metavar="SCHEMA.TABLE", help="The table; may be repeated.")
    ],
) -> None:
    """Have the lake's job load tables anew, beside its batches: whatever is in their current tables
    gives way to the source's rows, at once, when all of them are there. Their histories stay.

    The wish is kept until it is fulfilled, also over restarts of the job. A job that isn't
    subscribed to needs SPILLWAY_LAKE_SOURCE_DSN. Without a job, "lake load --resync" does it.
    """
    lake = lake_path(path)
    position.existing(lake)
    with position.file_errors(lake):
        wishes = resyncs.ask(lake, table)
    for wish in wishes:
        typer.echo(str(wish))


def cancel_resync(
    path: LakePath,
    table: Annotated[
        list[str], typer.Option(metavar="SCHEMA.TABLE", help="The table; may be repeated.")
    ],
) -> None:
    """Take back that tables are to be loaded anew, while their load has not begun: they go on as
    they are.
    """
    lake = lake_path(path)
    position.existing(lake)
    with position.file_errors(lake):
        wishes = resyncs.cancel(lake, table)
    for wish in wishes:
        typer.echo(f"{wish.table} is not loaded anew")
