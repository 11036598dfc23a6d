"""The command ``spillway lake replay``."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from spillway.errors import InvalidOption
from spillway.lake.job import FORMATS
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterable


def replay(
    archive: Annotated[Path, typer.Option(help="Directory of WAL segment files.")],
    path: Annotated[
        Path, typer.Option("--path", "--lake", help="Directory of the lake: history/, current/.")
    ],
    state: Annotated[
        Path | None, typer.Option(help="Begin with a saved decoder state (<lsn>.snap).")
    ] = None,
    data_directory: Annotated[
        Path | None,
        typer.Option(help="Begin with the catalog of a base backup or a stopped server."),
    ] = None,
    from_lsn: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Replay what commits from this LSN on; unless given, from where the lake ends, or decoding can begin.",
        ),
    ] = None,
    to_lsn: Annotated[
        str | None,
        typer.Option("--to", help="Replay what commits before this LSN; unless given, all."),
    ] = None,
    slot: Annotated[
        str, typer.Option(help="A new lake's: the slot that is to go on with it.")
    ] = "",
    source: Annotated[str, typer.Option(help="A new lake's: that slot's source.")] = "",
    database: Annotated[
        str, typer.Option(help="A new lake's, and --data-directory's: the database.")
    ] = "",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", metavar="NAME=VALUE", help="An option of the slot; may be repeated."
        ),
    ] = None,
    table_format: Annotated[
        str, typer.Option("--format", help="delta; or parquet, which needs no jars.")
    ] = "delta",
    table: Annotated[
        list[str] | None,
        typer.Option(help="schema.table to materialise; may be repeated; all unless named."),
    ] = None,
    stretch_bytes: Annotated[
        int, typer.Option(min=1, help="Bytes of WAL that one task decodes.")
    ] = 64 << 20,
    master: Annotated[str, typer.Option(help="Spark's master.")] = "local[*]",
    driver_memory: Annotated[str, typer.Option(help="Heap of Spark's JVM.")] = "2g",
    jars: Annotated[
        Path | None,
        typer.Option(
            envvar="SPILLWAY_JARS", help="Folder of Delta's jars; .cache/jars unless named."
        ),
    ] = None,
) -> None:
    """Decode an archive of WAL with all of Spark's cores into the tables of `lake run`, without a service."""
    from spillway.lake.replay import ReplaySettings, run_replay  # noqa: PLC0415 - heavy

    if table_format not in FORMATS:
        raise typer.BadParameter(f"one of {', '.join(FORMATS)}", param_hint="--format")
    summary = run_replay(
        ReplaySettings(
            archive=archive,
            path=path,
            state=state,
            data_directory=data_directory,
            from_lsn=None if from_lsn is None else Lsn.parse(from_lsn),
            to_lsn=None if to_lsn is None else Lsn.parse(to_lsn),
            slot=slot,
            source=source,
            database=database,
            options=_options(option or ()),
            table_format=table_format,
            tables=tuple(table or ()),
            stretch_bytes=stretch_bytes,
            master=master,
            driver_memory=driver_memory,
            jars=jars,
        ),
        tell=typer.echo,
    )
    typer.echo(
        f"{sum(summary.changes.values())} changes of {len(summary.changes)} tables in {summary.seconds:.1f} s; "
        f"the lake at {path} has everything before {summary.to_lsn}"
    )


def _options(given: Iterable[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for text in given:
        name, _, value = text.partition("=")
        if not name or name in options:
            raise InvalidOption(
                f"option {text!r} has no name or comes twice", hint="Write --option NAME=VALUE."
            )
        options[name] = value
    return options
