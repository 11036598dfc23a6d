"""A lake's options as the commands take them: ``spillway lake run`` all of them, others some.

:func:`takes` gives a function that has ``**options`` a parameter for each, by its name, as if they
stood in its signature; typer reads that. So a command that takes them all has one more as soon as
it is declared. :func:`typer_option` is for those that name the one or other in their own
signature.
"""

from __future__ import annotations

import inspect
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, ParamSpec, TypeVar

import typer

from spillway.declarations.lake_options import Kind, LakeOption, lake_option
from spillway.declarations.times import UNITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

P = ParamSpec("P")
R = TypeVar("R")

_METAVARS: Final[dict[Kind, str]] = {
    "time": "TIME",
    "columns": "TABLE=COLUMN,…",
    "partitions": "TABLE=COLUMN,…",
    "masks": "TABLE=MASK,…",
    "tables": "TABLE",
    "times": "TABLE=TIME",
    "settings": "NAME=VALUE",
}
_TYPES: Final[dict[Kind, Any]] = {
    "text": str,
    "size": str,
    "number": float,
    "whole number": int,
    "time": timedelta,
    "columns": list[str],
    "partitions": list[str],
    "masks": list[str],
    "tables": list[str],
    "times": list[str],
    "settings": list[str],
}


def duration(text: str | timedelta) -> timedelta:
    """Parse a number with a unit: s, m, h, d or w."""
    if isinstance(text, timedelta):
        return text
    if not text[:-1].isdecimal() or text[-1:] not in UNITS:
        raise typer.BadParameter(f"{text!r} is not a time such as 30m, 12h or 7d")
    return timedelta(seconds=UNITS[text[-1]] * int(text[:-1]))


def typer_option(option: LakeOption | str) -> Any:
    """Return an option, or the one of that name, as typer has it in an annotation."""
    found = lake_option(option) if isinstance(option, str) else option
    more: dict[str, Any] = {}
    if metavar := found.metavar or _METAVARS.get(found.kind):
        more["metavar"] = metavar
    if found.kind == "time":
        more["parser"] = duration
    if found.kind == "whole number":
        more |= {"min": found.least, "max": found.most}
    return typer.Option(found.option, help=found.command_help, **more)


def takes(
    options: Iterable[LakeOption], *, before: str, with_defaults: bool
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give a function with ``**options`` a parameter for each of *options*, before the one named.

    One that is not given is None, or, *with_defaults*, what is declared.
    """
    declared = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=Annotated[_type(option), typer_option(option)],
            default=option.default if with_defaults else None,
        )
        for option in options
    ]

    def give(function: Callable[P, R]) -> Callable[P, R]:
        own = inspect.signature(function, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for parameter in own.parameters.values():
            if parameter.name == before:
                parameters += declared
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
                kind = inspect.Parameter.KEYWORD_ONLY
                parameters.append(parameter.replace(kind=kind))
        function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return give


def _type(option: LakeOption) -> Any:
    if option.kind == "choice":
        # A type checker knows only enums that are written down.
        make: Any = StrEnum
        return make(option.name, {one.upper(): one for one in option.choices}) | None
    return _TYPES[option.kind] | None
