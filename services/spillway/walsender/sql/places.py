"""Where an error of the source is in what the client has written.

A statement that speaks of slots goes to the source with other text in it
(:mod:`~spillway.walsender.sql.statements`), a relation's name being a sub-select of some thousand
characters. What the source says of a place in that text (POSITION of an error: psql's caret, what
drivers print) is told to the client as a place in its own. A place in text that is not the client's
is where that text stands for something.

Source: errposition, parser_errposition (src/backend/parser/parse_node.c)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.walsender import messages

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEAD_BYTES: Final = 5
_POSITION: Final = b"P"


class Edit(NamedTuple):
    """What stands for a part of a text, from *start* to *end*; it is ASCII."""

    start: int
    end: int
    new: str


class Places:
    """The places of one statement.

    Args:
        text: as it was written, one character a byte.
        edits: what was replaced in it, from front to back.
        codec: Python's, of the client's encoding: an error counts characters.
    """

    def __init__(self, text: str, edits: Sequence[Edit], codec: str) -> None:
        self._text = text
        self._edits = edits
        self._codec = codec

    def written(self, told: int) -> int:
        """Return where the character is that the source has told, both from 1 on."""
        #: how many characters there are in front, of what was written and of what the source has
        ours = theirs = at = 0
        for start, end, new in self._edits:
            kept = self._count(at, start)
            if told <= theirs + kept:
                break
            ours += kept
            theirs += kept
            if told <= theirs + len(new):
                return ours + 1
            ours += self._count(start, end)
            theirs += len(new)
            at = end
        return told - theirs + ours

    def _count(self, start: int, end: int) -> int:
        return len(self._text[start:end].encode("latin-1").decode(self._codec, errors="replace"))

    def in_error(self, frame: bytes) -> bytes:
        """Return an ErrorResponse with the place that the client knows."""
        fields = frame[_HEAD_BYTES:].split(b"\0")
        told = [
            b"P%d" % self.written(int(field[1:]))
            if field[:1] == _POSITION and field[1:].isdigit()
            else field
            for field in fields
        ]
        return frame if told == fields else messages.message(frame[:1], b"\0".join(told))
