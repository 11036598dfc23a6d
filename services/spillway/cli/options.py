"""Arguments that several commands take."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

PluginOptions: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="NAME=VALUE", help="A plugin option; may be repeated."),
]
