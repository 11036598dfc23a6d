"""Row filters as PostgreSQL stores them: pg_node_tree text → a tree of nodes.

The text is what nodeToString() writes: ``{NAME :field value :field value …}``, lists in
parentheses, datums as a length and bytes in brackets, ``<>`` for nothing. Field names and their
order differ between majors, so nodes keep their fields by name, and whoever reads a node takes
those it knows.

Source: src/backend/nodes/{outfuncs,readfuncs,read}.c
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from spillway.errors import DecodingError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A word of the text: a bracket of a node or list, or text in which a backslash takes the next
#: character as it is.
_WORD: Final = re.compile(r"[(){}]|(?:\\.|[^\s(){}\\])+", re.DOTALL)
#: As deep as a filter may be nested: PostgreSQL's own limit is its stack.
_DEPTH_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Node:
    """One node, or the bytes of a Const's value in its field ``constvalue``."""

    name: str
    fields: Mapping[str, Value]

    def node(self, field: str) -> Node:
        """Return a field that is a node."""
        value = self.fields.get(field)
        if not isinstance(value, Node):
            raise _malformed(f"{self.name} has no node in {field}")
        return value

    def nodes(self, field: str) -> tuple[Node, ...]:
        """Return a field that is a list of nodes."""
        value = self.fields.get(field)
        if value is None:
            return ()
        if not isinstance(value, tuple) or not all(isinstance(v, Node) for v in value):
            raise _malformed(f"{self.name} has no list in {field}")
        return tuple(v for v in value if isinstance(v, Node))

    def number(self, field: str) -> int:
        """Return a field that is an integer."""
        value = self.fields.get(field)
        try:
            return int(value) if isinstance(value, str) else _fail()
        except ValueError:
            raise _malformed(f"{self.name} has no number in {field}") from None

    def text(self, field: str) -> str:
        """Return a field that is a word."""
        value = self.fields.get(field)
        if not isinstance(value, str):
            raise _malformed(f"{self.name} has no {field}")
        return value


Value: TypeAlias = "str | bytes | Node | tuple[Value, ...] | None"


def _fail() -> int:
    raise ValueError


def parse_node_tree(text: str) -> Node:
    """Parse a pg_node_tree that is one node.

    Raises:
        DecodingError: it is none.
    """
    parser = _Parser(_WORD.findall(text))
    value = parser.value(0)
    if not isinstance(value, Node) or parser.at != len(parser.words):
        raise _malformed("it is not one node")
    return value


class _Parser:
    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.at = 0

    def next(self) -> str:
        if self.at >= len(self.words):
            raise _malformed("it ends too early")
        self.at += 1
        return self.words[self.at - 1]

    def value(self, depth: int) -> Value:
        if depth > _DEPTH_MAX:
            raise _malformed("it is nested too deeply")
        word = self.next()
        if word == "{":
            return self.fields(depth)
        if word == "(":
            items: list[Value] = []
            while self.peek() != ")":
                items.append(self.value(depth + 1))
            self.next()
            return tuple(items)
        if word in ")}":
            raise _malformed(f"an unexpected {word}")
        return None if word == "<>" else re.sub(r"\\(.)", r"\1", word, flags=re.DOTALL)

    def fields(self, depth: int) -> Node:
        name = self.next()
        fields: dict[str, Value] = {}
        while (word := self.next()) != "}":
            if not word.startswith(":"):
                raise _malformed(f"a field of {name} begins with {word!r}")
            # A datum: its length, then its bytes in brackets.
            value = self.value(depth + 1)
            if self.peek() == "[":
                value = self.datum()
            fields[word[1:]] = value
        return Node(name, fields)

    def datum(self) -> bytes:
        self.next()
        numbers = []
        while (word := self.next()) != "]":
            numbers.append(word)
        try:
            return bytes(int(n) & 0xFF for n in numbers)
        except ValueError:
            raise _malformed("a datum that is no bytes") from None

    def peek(self) -> str:
        if self.at >= len(self.words):
            raise _malformed("it ends too early")
        return self.words[self.at]


def _malformed(why: str) -> DecodingError:
    return DecodingError(
        f"a row filter can't be understood: {why}",
        hint="The catalog mirror went wrong: bootstrap this database again, and report it as a "
        "bug.",
    )
