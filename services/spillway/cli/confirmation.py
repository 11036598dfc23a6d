"""Asking before something is lost.

Whoever sits at a terminal is asked, with what will be gone; the answer is no unless it is yes.
Scripts are not asked, today as ever: who has no terminal can't answer, and said what to do. With
``--yes`` nobody is.
"""

from __future__ import annotations

import sys
from typing import Annotated, TypeAlias

import typer

Yes: TypeAlias = Annotated[
    bool, typer.Option("--yes", "-y", help="Don't ask, at a terminal; elsewhere nobody is asked.")
]


def confirm(question: str, *, yes: bool) -> None:
    """Ask whoever sits at a terminal.

    Raises:
        Exit: the answer was no; nothing was done, and the exit code says so.
    """
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    if not typer.confirm(question, err=True):
        typer.echo("Nothing was done.", err=True)
        raise typer.Exit(1)
