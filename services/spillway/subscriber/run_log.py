"""What a subscription's programs print: ``log``, and ``log.1`` with what was before it.

The program appends to the file itself (O_APPEND), so that nothing has to be pumped and nothing
breaks when the service dies. When the file is larger than :data:`BYTES_MAX` its contents are copied
to ``log.1`` and it is cut to nothing, under the program's hands: what it prints in that instant may
be lost. Two such files are what a subscription's log takes at most, and what is printed between two
looks.

Methods block.
"""

from __future__ import annotations

import os
import re
import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from spillway.errors import remote_error

if TYPE_CHECKING:
    from pathlib import Path

    from spillway.errors import SpillwayError

BYTES_MAX: Final = 4 << 20
#: of the end of the log that is looked at for its last lines
_TAIL_BYTES: Final = 1 << 20


class RunLog:
    """The log of one subscription."""

    def __init__(self, directory: Path, bytes_max: int = BYTES_MAX) -> None:
        """Take the subscription's directory."""
        self._file = directory / "log"
        self._before = directory / "log.1"
        self._bytes_max = bytes_max

    def open(self) -> int:
        """Return a descriptor that appends; the caller closes it."""
        self.bound()
        return os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def note(self, line: str) -> None:
        """Append a line of the subscriber's own."""
        descriptor = self.open()
        try:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            os.write(descriptor, f"{now} subscription: {line}\n".encode(errors="replace"))
        finally:
            os.close(descriptor)

    def bound(self) -> None:
        """See to it that the file is not larger than it may be."""
        try:
            if self._file.stat().st_size <= self._bytes_max:
                return
        except FileNotFoundError:
            return
        shutil.copyfile(self._file, self._before)
        self._before.chmod(0o600)
        os.truncate(self._file, 0)

    def tail(self, lines: int) -> list[str]:
        """Return the last *lines*, the oldest first; lines before the last MiB of each file are not
        looked for.
        """
        found: list[str] = []
        for path in (self._file, self._before):
            if len(found) < lines:
                found = _tail(path) + found
        return found[-lines:] if lines else []

    def size(self) -> int:
        """Return where the file ends."""
        try:
            return self._file.stat().st_size
        except FileNotFoundError:
            return 0


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return []
    lines = text.splitlines()
    return lines[1:] if size > _TAIL_BYTES else lines


def error_in(lines: list[str]) -> SpillwayError | None:
    """Find the error that a command of ours printed at its end."""
    text = "\n".join(lines)
    found = re.search(
        r"^spillway: error: (?P<message>.*?)(?:\nhint: (?P<hint>.*?))?\ncode: "
        r"(?P<code>[a-z_]+)\s*\Z",
        text,
        re.MULTILINE | re.DOTALL,
    )
    if found is None:
        return None
    # The last one, should there be several.
    message = found["message"].rpartition("\nspillway: error: ")[2]
    return remote_error(found["code"], message, hint=found["hint"] or "")
