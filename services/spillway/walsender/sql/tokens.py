"""The words of a SQL text, and where each of them is: PostgreSQL's lexical rules, and no more.

What a statement means is the source's business, and its parser's. To replace a relation's name one
must only know where names are, and where what looks like one is part of a string, a comment or a
body between dollar quotes. The text is of any encoding: each of its bytes is one character here
(latin-1), so that positions are the bytes' own, and those above ASCII belong to names.

Source: src/backend/parser/scan.l
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_WORD: Final = r"""(?P<blank> [ \t\n\r\f\v]+ | --[^\n\r]* )
    | (?P<comment> /\* )
    | (?P<string> {escapes}'(?:[^'\\]|\\.|'')*' | {plain}'(?:[^']|'')*' )
    | (?P<quoted> (?:[uU]&)?"(?:[^"]|"")*" )
    | (?P<dollar> \$(?:[A-Za-z_\x80-\xff][A-Za-z0-9_\x80-\xff]*)?\$ )
    | (?P<parameter> \$[0-9]+ )
    | (?P<name> [A-Za-z_\x80-\xff][A-Za-z0-9_$\x80-\xff]* )
    | (?P<number> (?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)? )
    | (?P<sign> ::|:=|=>|[^'"] )"""
_CONFORMING: Final = re.compile(
    _WORD.format(escapes="[eE]", plain="(?:[uU]&|[bBxXnN])?"), re.VERBOSE | re.DOTALL
)
#: with standard_conforming_strings off
_WITH_BACKSLASHES: Final = re.compile(
    _WORD.format(escapes="[eEnN]?", plain="(?:[uU]&|[bBxX])"), re.VERBOSE | re.DOTALL
)
_COMMENT_EDGE: Final = re.compile(r"/\*|\*/")


class Token(NamedTuple):
    """A word. Blanks and comments are none."""

    #: string, quoted, parameter, name, number or sign
    kind: str
    #: of a name, in lower case; of a quoted one, what is quoted; else as it is written
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """The keyword that it may be; empty: none."""
        return self.text if self.kind == "name" else ""

    @property
    def identifier(self) -> str:
        """The name that it may be, quoted or not; empty: none."""
        return self.text if self.kind in ("name", "quoted") else ""

    def is_sign(self, text: str) -> bool:
        """Whether it is that sign."""
        return self.kind == "sign" and self.text == text


def tokens_of(text: str, *, is_conforming: bool = True) -> list[Token] | None:
    """Split *text* into its words; None: a string or a comment in it has no end.

    Where standard_conforming_strings is off, a plain string counts, and is given, as one with E.
    """
    pattern = _CONFORMING if is_conforming else _WITH_BACKSLASHES
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = pattern.match(text, at)
        if match is None:
            return None
        start, at = at, match.end()
        kind = match.lastgroup or ""
        if kind == "comment":
            end = _end_of_comment(text, at)
            if end is None:
                return None
            at = end
        elif kind == "dollar":
            end = text.find(match[0], at)
            if end < 0:
                return None
            at = end + len(match[0])
            found.append(Token("string", text[start:at], start, at))
        elif kind != "blank":
            written = _text(kind, match[0])
            if not is_conforming and kind == "string" and written.startswith("'"):
                written = f"E{written}"
            found.append(Token(kind, written, start, at))
    return found


def _text(kind: str, written: str) -> str:
    if kind == "name":
        # Only ASCII's letters are folded, which is all that the names looked for have.
        return written.translate(_FOLD)
    if kind == "quoted" and written.startswith('"'):
        return written[1:-1].replace('""', '"')
    return written


_FOLD: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def _end_of_comment(text: str, at: int) -> int | None:
    depth = 1
    while depth:
        match = _COMMENT_EDGE.search(text, at)
        if match is None:
            return None
        depth += 1 if match[0] == "/*" else -1
        at = match.end()
    return at
