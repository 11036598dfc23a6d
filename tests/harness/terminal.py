"""A Python program at a terminal of its own: a pseudo-terminal of so many columns."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from typing import Final

#: A session's leader that opens a terminal has it as its own: Ctrl-C goes to whoever is in the
#: foreground there. Arguments: the terminal, and the program with its own.
_TAKE_TERMINAL: Final = 'exec "$@" <>"$0"'


class Terminal:
    """Runs a program with standard input, output and errors on a new terminal; Ctrl-C reaches it as
    from a keyboard.
    """

    def __init__(self, *command: str, columns: int = 80, env: dict[str, str] | None = None) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        environment = {k: v for k, v in (env or os.environ).items() if k not in {"COLUMNS", "CI"}}
        self.process = subprocess.Popen(
            ["sh", "-c", _TAKE_TERMINAL, os.ttyname(theirs), sys.executable, *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**environment, "TERM": "xterm"},
            start_new_session=True,
        )
        os.close(theirs)
        self.output = ""

    def read_until(self, text: str | None = None) -> str:
        """Read until *text* was printed, or to the end; return everything so far."""
        while text is None or text not in self.output:
            try:
                some = os.read(self._ours, 65536)
            except OSError:
                # That is how a terminal's end is told.
                some = b""
            if not some:
                assert text is None, self.output
                break
            self.output += some.decode(errors="replace").replace("\r\n", "\n")
        return self.output

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        os.write(self._ours, b"\x03")

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._ours, keys)

    def close(self) -> int:
        """Wait for the program's end and return its exit code."""
        self.read_until()
        code = self.process.wait(60)
        os.close(self._ours)
        return code


def at_a_terminal(*command: str, columns: int) -> str:
    """Run a program to its end and return what it printed."""
    terminal = Terminal(*command, columns=columns)
    text = terminal.read_until()
    assert terminal.close() == 0, text
    return text
