"""How much memory the answers of peeks and gets take together, whoever asks, and how many at a
time.

An answer is gathered whole before its first byte is sent, for what goes wrong in it must still
become an error; it may be large, and is there until its client has read it, which may be never. So
all answers share one budget. An answer begins when there is room for a first step of it, and waits
for that; as it grows it takes more, and is refused when there is none. It gives all back when it is
freed, which is when the last of it was handed to the client's connection or the client is gone:
interfaces hold nothing else.

Streams are not answers: each has a few batches (``stream.py``).
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Final

from spillway.errors import AnswersFull

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spillway.delivery.model import Change

#: Memory of all answers at a time. One alone may have 256 MiB of payload, which as hexadecimal text
#: is twice that.
ANSWERS_BYTES_MAX: Final = 512 << 20
#: What an answer takes to begin with: a step of it.
_FIRST_BYTES: Final = 2 << 20
#: Of a change beside its payload.
_CHANGE_BYTES: Final = 250
_WAIT_MAX_S: Final = 10.0
_POLL_S: Final = 0.02


class Answer(list["Change"]):
    """Changes, and their share of the budget, which is given back with them."""

    def __init__(self, answers: Answers) -> None:
        """Begin an answer whose first bytes are taken already."""
        super().__init__()
        self._answers = answers
        self._taken = _FIRST_BYTES
        self._needed = 0

    def add(self, changes: Iterable[Change], count: int, payload_bytes: int) -> None:
        """Add *count* changes that have *payload_bytes* in memory.

        Raises:
            AnswersFull: there is no room for them.
        """
        self._needed += payload_bytes + _CHANGE_BYTES * count
        if self._needed > self._taken:
            if not self._answers.take(self._needed - self._taken):
                raise _full()
            self._taken = self._needed
        self += changes

    def __del__(self) -> None:
        self._answers.give_back(self._taken)


class Answers:
    """The budget. For any thread, but for :meth:`begin`."""

    def __init__(self) -> None:
        """Begin with none of it taken."""
        self._bytes_max = ANSWERS_BYTES_MAX
        self._lock = threading.Lock()
        self.bytes = 0

    async def begin(self) -> Answer:
        """Begin an answer; waits a while for room.

        Raises:
            AnswersFull: there was none.
        """
        deadline = asyncio.get_running_loop().time() + _WAIT_MAX_S
        while not self.take(_FIRST_BYTES):
            if asyncio.get_running_loop().time() >= deadline:
                raise _full()
            await asyncio.sleep(_POLL_S)
        return Answer(self)

    def take(self, size: int) -> bool:
        """Take *size* bytes of the budget; False when so much is not left."""
        with self._lock:
            if self.bytes + size > self._bytes_max:
                return False
            self.bytes += size
            return True

    def give_back(self, size: int) -> None:
        """Give back what was taken."""
        with self._lock:
            self.bytes -= size


def _full() -> AnswersFull:
    return AnswersFull(
        "answers that other clients have not read yet take what all may have together, "
        f"{ANSWERS_BYTES_MAX >> 20} MB",
        hint="Ask again; for fewer transactions (upto_nchanges, upto_lsn); or stream them over "
        "gRPC (spillway recv).",
    )
