"""``--watch``: an answer again and again, until Ctrl-C.

At a terminal it has a screen of its own, which is drawn in place and gone at the end, so that the
terminal is as it was; what is taller than the screen is cut, and a line says by how much. Behind a
pipe each look is printed below the last: of tables with an empty line between, as JSON in a line of
its own.

A service that is away for a while doesn't end it. What was seen last stays, marked with its age;
behind a pipe standard error says why nothing comes. The first look must succeed: an error then is
the command's.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import threading
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer

from spillway.cli.answer import Format
from spillway.cli.lines import lines_of
from spillway.errors import SpillwayError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spillway.cli.answer import Answer

_TERMINATED: Final = 128 + signal.SIGTERM


def watch_answers(look: Callable[[], Answer], form: Format, interval_s: float) -> None:
    """Show what *look* finds every *interval_s* seconds, until Ctrl-C or SIGTERM.

    Raises:
        SpillwayError: the first look failed.
    """
    first = look()
    with _ending_by_signal():
        if sys.stdout.isatty() and form is not Format.JSON:
            _on_screen(first, look, form, interval_s)
        else:
            _in_lines(first, look, form, interval_s)


def _in_lines(answer: Answer, look: Callable[[], Answer], form: Format, interval_s: float) -> None:
    is_first = True
    while True:
        if not is_first and form is not Format.JSON:
            typer.echo()
        is_first = False
        for line in lines_of(answer, form):
            typer.echo(line)
        sys.stdout.flush()
        said = ""
        while True:
            time.sleep(interval_s)
            try:
                answer = look()
            except SpillwayError as error:
                # Once as long as it is the same.
                if error.message != said:
                    typer.echo(f"spillway: {error.message}; looking again", err=True)
                said = error.message
            else:
                break


def _on_screen(answer: Answer, look: Callable[[], Answer], form: Format, interval_s: float) -> None:
    # Slow to import, and few commands watch.
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    seen_at, trouble = datetime.now().astimezone(), ""
    with Live(console=Console(highlight=False), screen=True, auto_refresh=False) as live:
        while True:
            lines = _screen(lines_of(answer, form), seen_at, trouble, interval_s)
            live.update(
                Text("\n", no_wrap=True, overflow="crop").join(map(Text.from_ansi, lines)),
                refresh=True,
            )
            time.sleep(interval_s)
            try:
                answer = look()
                seen_at, trouble = datetime.now().astimezone(), ""
            except SpillwayError as error:
                trouble = error.message


def _screen(lines: list[str], seen_at: datetime, trouble: str, interval_s: float) -> list[str]:
    """Return what fits the screen: a line on top, and what was found."""
    columns, height = shutil.get_terminal_size()
    age_s = (datetime.now().astimezone() - seen_at).total_seconds()
    if trouble:
        top = f"STALE, seen {age_s:.0f} s ago ({seen_at:%H:%M:%S}): {trouble}"
    else:
        top = f"{seen_at:%H:%M:%S}, every {interval_s:g} s; Ctrl-C ends it"
    room = max(1, height - 3)
    if len(lines) > room:
        more = len(lines) - room + 1
        lines = [*lines[: room - 1], f"({more} more lines: in a taller terminal)"]
    return [top[:columns], "", *lines]


@contextlib.contextmanager
def _ending_by_signal() -> Iterator[None]:
    """Let SIGTERM end the block as an exception does, so that the terminal is left as it was."""

    def end(*_: Any) -> NoReturn:
        raise SystemExit(_TERMINATED)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
