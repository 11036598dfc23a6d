"""``spillway lake pin``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from spillway.lake.commands.options import (
    LakePath,  # noqa: TC001 - typer reads the annotations
)


def pin_tables(
    path: LakePath,
    lsn: Annotated[
        str | None,
        typer.Option(
            metavar="LSN",
            help="The newest consistent LSN that is not after this one; the newest of all unless "
            "given.",
        ),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SCHEMA.TABLE",
            help="A table that must be up to date at the LSN; may be repeated.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As a JSON object.")] = False,
) -> None:
    """Print where each table is and which version of it to read, so that any engine sees all of
    them as of one commit LSN: Delta's version, or Iceberg's metadata file and snapshot.
    """
    from spillway.lake.pinned_tables import pinned  # noqa: PLC0415 - imports PySpark

    found = pinned(path, lsn, tables=table or ())
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
        return
    typer.echo(f"as of {found.lsn}")
    for each in found.tables:
        version = (
            f"version {each.version}"
            if each.version is not None
            else f"snapshot {each.snapshot_id} of {each.metadata}"
        )
        typer.echo(f"{each.kind}/{each.name}\t{version}\t{each.location}")
    for name in found.left_out:
        typer.echo(f"current/{name}\tnot as of this LSN")
