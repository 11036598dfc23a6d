"""``spillway lake verify`` and ``spillway lake points``."""

from __future__ import annotations

from itertools import islice
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated, Final

import typer

from spillway.consumer.connect import DEFAULT_ADDRESS
from spillway.lake.commands.options import (
    DRIVER_MEMORY,
    MASTER,
    Conf,
    DriverMemory,
    Grpc,
    Jars,
    LakePath,
    Master,
    SourceDsn,
    source_dsn,
)
from spillway.lake.commands.options import conf as spark_conf
from spillway.lake.state import commit_points
from spillway.storage.place import lake_path

#: tables that are named, of which the lake has nothing
_SHOWN: Final = 10


def verify(
    context: typer.Context,
    path: LakePath,
    source: SourceDsn = "",
    table: Annotated[
        list[str] | None,
        typer.Option(
            help="schema.table to compare; may be repeated; all of the lake unless named."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="Differing keys to name, per table.")] = 20,
    timeout: Annotated[
        float,
        typer.Option(help="Seconds that a job at work may take until it reaches the snapshot."),
    ] = 600.0,
    outcome: Annotated[
        Path | None,
        typer.Option(help="Leave what was found in this file, too, as JSON: counts, and no keys."),
    ] = None,
    grpc: Grpc = DEFAULT_ADDRESS,
    master: Master = MASTER,
    driver_memory: DriverMemory = DRIVER_MEMORY,
    conf: Conf = None,
    jars: Jars = None,
) -> None:
    """Compare current tables with the source by keyed checksums, as of one LSN; exit code 1 if any
    differs, or the source refuses one.
    """
    from spillway.lake.verify.outcome import store  # noqa: PLC0415 - only where it is wanted
    from spillway.lake.verify.run import VerifySettings  # noqa: PLC0415 - imports PySpark
    from spillway.lake.verify.run import verify as run  # noqa: PLC0415 - as above

    found = run(
        VerifySettings(
            path=lake_path(path),
            source_dsn=source_dsn(context, source),
            tables=tuple(table or ()),
            limit=limit,
            timeout_s=timeout,
            grpc=grpc,
            master=master,
            driver_memory=driver_memory,
            conf=spark_conf(conf),
            jars=jars,
        ),
        tell=lambda news: typer.echo(news, err=True),
        on_table=lambda compared: typer.echo(str(compared)),
    )
    if outcome is not None and found.refused is None:
        store(outcome, found)
    rows = sum(compared.lake_rows for compared in found.tables)
    wrong = sum(not compared.equal for compared in found.tables)
    skipped = sum(bool(compared.skipped) for compared in found.tables)
    said = f"{wrong} of them differ" if wrong else "no difference"
    if skipped:
        said += f", {skipped} not compared"
    typer.echo(f"{len(found.tables)} tables, {rows} rows, as of {found.lsn}: {said}")
    if found.absent:
        shown = ", ".join(found.absent[:_SHOWN])
        more = f" and {len(found.absent) - _SHOWN} more" if len(found.absent) > _SHOWN else ""
        typer.echo(
            "the lake has nothing of these tables, which have rows at the source: "
            f"{shown}{more} (spillway lake load; or leave them out by --table of the job)"
        )
    if found.refused is not None:
        # The others are told of by now; whoever had this run hears of what is to be mended.
        raise found.refused
    if wrong:
        raise typer.Exit(1)


def points(
    path: LakePath,
    limit: Annotated[int, typer.Option(help="How many, the newest first.")] = 20,
) -> None:
    """List the LSNs at which all tables of a lake agree: what readers can pin on."""
    for point in islice(commit_points.points(lake_path(path)), limit):
        typer.echo(
            f"{point.lsn}\t{point.published_at}\tbatch {point.batch_id}\t{point.changes} changes"
        )
