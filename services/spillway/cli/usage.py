"""What is wrong with a command line, in words: typer says what its parser missed ("Input should be
a valid integer").
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typer.exceptions import TyperException

#: By the kind of pydantic's error, from its context.
_MUST_BE: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "int_parsing": lambda _: "a whole number",
    "int_parsing_size": lambda _: "a smaller number",
    "int_from_float": lambda _: "a whole number",
    "float_parsing": lambda _: "a number",
    "finite_number": lambda _: "a finite number",
    "greater_than_equal": lambda context: f"{context['ge']} or more",
    "less_than_equal": lambda context: f"{context['le']} or less",
    "enum": lambda context: str(context["expected"]).replace("'", ""),
    "literal_error": lambda context: str(context["expected"]).replace("'", ""),
}

#: What is said of a value that is none of those that there are.
_CHOICES: Final = re.compile(r"'([^']*)' is not one of ('.*)")
_QUOTED: Final = re.compile(r"'([^']*)'")


def in_words(error: TyperException) -> tuple[str, str | None]:
    """Return the message and what to do; None in place of that when the message is the help that
    was asked for.
    """
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        return error.format_message(), None
    hint = f"`{context.command_path} --help` says what it takes." if context else "See --help."
    message = _bad_value(error) or _without_full_stop(error.format_message())
    return message, _similar(message) + hint


def _bad_value(error: TyperException) -> str | None:
    """Return a sentence for a value that is not of its parameter's type; None for anything else."""
    cause: Any = error.__cause__
    parameter = getattr(error, "param", None)
    if cause is None or parameter is None or not hasattr(cause, "errors"):
        return None
    first = cause.errors()[0]
    name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
    if first["type"] == "value_error":
        # 'x' is not one of 'a', 'b'
        return f"{name}: {first['msg'].removeprefix('Value error, ')}"
    word = _MUST_BE.get(first["type"])
    if word is None:
        return None
    return f"{name} is {first['input']!r}, and must be {word(first.get('ctx', {}))}"


def _similar(message: str) -> str:
    """Return a question with the choices that a value may be meant for; '' without one."""
    found = _CHOICES.search(message)
    if found is None:
        return ""
    from spillway.cli.similar import did_you_mean  # noqa: PLC0415 - on errors alone

    return did_you_mean(found[1], _QUOTED.findall(found[2]))


def _without_full_stop(message: str) -> str:
    return message.removesuffix(".")
