"""What ``--help`` looks like: an option and what it means side by side, in eighty columns, with
whole sentences; the same at a terminal and behind a pipe.

Typer's boxes give half of a terminal to the types of options, and its lists cut what a command does
in the middle. So commands are shown without boxes, an option's value is called after the option
(``--source SOURCE``), and what a command does is said whole.
"""

from __future__ import annotations

import inspect
from enum import Enum
from typing import Any, get_args


def made_plain(command: Any) -> Any:
    """Have *command*, of Typer's, and all below it be shown so; return it."""
    command.rich_markup_mode = None
    if command.help and not command.short_help:
        first = inspect.cleandoc(command.help).split("\n\n")[0]
        # A short help is not cut.
        command.short_help = " ".join(first.split())
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            # Its name says what it is.
            parameter.display_type_rich = lambda ctx: None  # noqa: ARG005 - Typer gives it
        if parameter.param_type_name != "option" or parameter.metavar:
            continue
        if not parameter.is_flag:
            parameter.metavar = _called(parameter)
    for below in getattr(command, "commands", {}).values():
        made_plain(below)
    return command


def _called(option: Any) -> str:
    """Return what an option's value is called: what it may be, or else the option's own name."""
    annotation = option.type_descriptor.annotation
    of_list = get_args(annotation)
    kind = of_list[0] if of_list else annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(one.value) for one in kind)
    return str(max(option.opts, key=len)).lstrip("-").replace("-", "_").upper()
