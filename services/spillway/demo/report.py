"""What the demo prints: steps as they happen, then one table of what was proved."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class Step:
    """A step under way; what it has to say stands beside its name when it is done."""

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self._last_progress = time.monotonic()
        self.outcome = ""

    def progress(self, text: str) -> None:
        """Say how far the step is. On a terminal the line is replaced; elsewhere one line each 5
        s.
        """
        if self._console.is_terminal:
            self._console.print(f"  [dim]…[/] {self._name} [dim]{escape(text)}[/]", end="\033[K\r")
        elif text and time.monotonic() - self._last_progress > 5.0:
            self._last_progress = time.monotonic()
            self._console.print(f"    {self._name}: {escape(text)}")


class Report:
    """The demo's output and its verdict."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        if not self.console.is_terminal:
            # A log has no width; 80 columns would break lines in two.
            self.console.width = max(self.console.width, 110)
        self.failures: list[str] = []
        self._started = time.monotonic()

    def title(self, text: str) -> None:
        """Print the headline."""
        self.console.rule(f"[bold]{text}", align="left")

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Show *name* while it happens, and with its outcome and seconds afterwards."""
        step = Step(self.console, name)
        started = time.monotonic()
        failures = len(self.failures)
        step.progress("")
        try:
            yield step
        except BaseException:
            self._finished("[red]✗[/]", name, step.outcome, started)
            raise
        good = len(self.failures) == failures
        self._finished("[green]✓[/]" if good else "[red]✗[/]", name, step.outcome, started)

    def check(self, *, true: bool, otherwise: str) -> bool:
        """Hold a claim: unless it is *true* the demo fails, and says *otherwise*."""
        if not true:
            self.failures.append(otherwise)
        return true

    def note(self, text: str) -> None:
        """Print a line of explanation."""
        self.console.print(f"    [dim]{escape(text)}[/]")

    def lines(self, lines: Sequence[str]) -> None:
        """Print lines of output as they came, cut to the terminal."""
        width = max(40, self.console.width - 6)
        for line in lines:
            shown = line if len(line) <= width else f"{line[: width - 1]}…"
            self.console.print(f"      [cyan]{escape(shown)}[/]", no_wrap=True)

    def lake(self, tables: Mapping[str, Mapping[str, int]]) -> None:
        """Print both kinds of lake tables: rows that are there now, and changes in the history by
        kind.
        """
        shown = Table(title="The lake", title_justify="left")
        shown.add_column("table")
        for heading in ("current rows", "history: inserts", "updates", "deletes"):
            shown.add_column(heading, justify="right")
        for name, counts in tables.items():
            shown.add_row(name, *(f"{counts[kind]:,}" for kind in ("current", "I", "U", "D")))
        self.console.print()
        self.console.print(shown)

    def up(self, places: Mapping[str, str]) -> None:
        """Say what stays up, and how to end it."""
        self.console.print()
        self.console.print("It stays up, to be looked at:")
        width = max(map(len, places))
        for name, place in places.items():
            # Not wrapped: it is to be copied.
            self.console.print(
                f"  {name:<{width}}  [bold]{escape(place)}[/]", soft_wrap=True, highlight=False
            )
        self.console.print("Ctrl-C stops everything and deletes it.")

    def verdict(self) -> int:
        """Print how it ended and return the exit code."""
        seconds = time.monotonic() - self._started
        self.console.print()
        for failure in self.failures:
            self.console.print(f"[red]✗[/] {escape(failure)}")
        if self.failures:
            self.console.print(f"[bold red]The demo failed[/] after {seconds:.0f} s.")
            return 1
        self.console.print(f"[bold green]Everything agrees.[/] {seconds:.0f} s in all.")
        return 0

    def _finished(self, mark: str, name: str, outcome: str, started: float) -> None:
        seconds = time.monotonic() - started
        tail = "\033[K" if self.console.is_terminal else ""
        said = f" [dim]·[/] {escape(outcome)}" if outcome else ""
        self.console.print(f"  {mark} {name}{said} [dim]({seconds:.1f} s)[/]{tail}")
