"""Command lines as documents and compose files write them, held against the commands' own
definitions.
"""

from __future__ import annotations

from typing import Any

from spillway.cli.program import app, built
from spillway.lake.commands.app import app as lake_app


def parse_command(words: list[str]) -> dict[str, Any]:
    """Parse the words after ``spillway`` as the program would, and return the parameters; run
    nothing.
    """
    if words[0] == "--context":
        # The program's own, before the command.
        words = words[2:]
    if words == ["--install-completion"]:
        # typer's, which every program has.
        return {"install_completion": True}
    lake = words[0] == "lake"
    command: Any = built(lake_app if lake else app)
    rest = words[1:] if lake else list(words)
    while hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    with command.make_context(" ".join(words), list(rest)) as context:
        parameters: dict[str, Any] = dict(context.params)
        return parameters
