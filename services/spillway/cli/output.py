"""What commands print: what was found as a table for a person, as JSON for a program, as names for
a shell.

A command that shows something returns an :class:`Answer` and is marked by :func:`shows`, which
gives it the options ``--output``, ``--json`` and, if it is one to look at again, ``--watch``, and
prints. What is found and how it is shown are so apart, and each form of output is the same in every
command.
"""

from __future__ import annotations

import inspect
import json
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from spillway.cli.answer import Answer, Format, Record
from spillway.cli.lines import lines_of
from spillway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the service's JSON.")]

_INTERVAL_S: Final = 2.0
_INTERVAL_LEAST_S: Final = 0.1


def shows(
    *, watch: bool = False, short: bool = True
) -> Callable[[Callable[..., Answer]], Callable[..., None]]:
    """Give a command that returns an answer the options that say how it is printed.

    Args:
        watch: it can be looked at again and again.
        short: ``-o`` is ``--output`` and not an option of the command's own.
    """
    names = ("--output", "-o") if short else ("--output",)
    declared: list[tuple[str, Any, Any]] = [
        (
            "output",
            Annotated[
                Format | None,
                typer.Option(
                    *names,
                    help="table: as wide as the terminal; wide: all columns; json: the service's; "
                    "name: a name a line.",
                    show_default="table",
                ),
            ],
            None,
        ),
        ("as_json", AsJson, False),
    ]
    if watch:
        declared += [
            (
                "watch",
                Annotated[
                    bool,
                    typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C."),
                ],
                False,
            ),
            (
                "interval",
                Annotated[
                    float,
                    typer.Option(
                        min=_INTERVAL_LEAST_S, help="With --watch: seconds between two looks."
                    ),
                ],
                _INTERVAL_S,
            ),
        ]

    def give(function: Callable[..., Answer]) -> Callable[..., None]:
        own = inspect.signature(function, eval_str=True)
        parameters = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in own.parameters.values()
        ]
        parameters += [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
            )
            for name, annotation, default in declared
        ]

        @wraps(function)
        def command(**given: Any) -> None:
            form = _form(given.pop("output"), as_json=given.pop("as_json"))
            again, interval = given.pop("watch", False), given.pop("interval", _INTERVAL_S)
            if again:
                from spillway.cli.watching import watch_answers  # noqa: PLC0415 - few commands do

                watch_answers(lambda: function(**given), form, interval)
                return
            answer = function(**given)
            emit(answer, form)
            if answer.exit_code:
                raise typer.Exit(answer.exit_code)

        command.__signature__ = own.replace(  # type: ignore[attr-defined]
            parameters=parameters, return_annotation=None
        )
        return command

    return give


def _form(output: Format | None, *, as_json: bool) -> Format:
    if not as_json:
        return output or Format.TABLE
    if output not in {None, Format.JSON}:
        raise InvalidRequest(
            f"--json and --output {output} are two forms", hint="Give one of the two."
        )
    return Format.JSON


def emit(answer: Answer, form: Format) -> None:
    """Print an answer."""
    if form is Format.JSON:
        if answer.raw is not None:
            print_json(answer.raw)
        return
    for line in lines_of(answer, form):
        typer.echo(line)


def record(answer: Any, name: str, shown: Mapping[str, Any] | None = None) -> Answer:
    """Make an answer of one thing, shown as it is unless *shown* says otherwise."""
    return Answer(answer, [name], [Record(answer if shown is None else shown)])


def print_json(value: Any) -> None:
    """Print an answer of the service as it is, indented."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_changes(changes: Iterable[Mapping[str, Any]]) -> None:
    """Print lsn, xid and data, a line a change, tabs between: for eyes and for cut(1).

    What is not UTF-8 is printed byte for byte, as ``spillway recv`` does.
    """
    for change in changes:
        start = f"{change['lsn']}\t{change['xid']}\t"
        if "data_hex" in change:
            data = bytes.fromhex(change["data_hex"].removeprefix("\\x"))
            typer.echo(start.encode() + data)
        else:
            typer.echo(start + change["data"])
