"""What is wrong with a request, in words: pydantic's errors say what a parser missed, and not what
to write.

A place is told by the names that the caller wrote: without the part of the request, and without the
tag by which a union chose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Parts of a request, and what chooses a target's model: nobody wrote them.
_PARTS: Final = frozenset({"body", "query", "path", "header"})
_TAGS: Final = frozenset({"lake", "postgres", "other"})

#: By the kind of pydantic's error, from its context: what goes behind the place.
_WORDS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "missing": lambda _: "is missing",
    "extra_forbidden": lambda _: "is not known here",
    "string_type": lambda _: "must be a text",
    "int_type": lambda _: "must be a whole number",
    "int_parsing": lambda _: "must be a whole number",
    "int_from_float": lambda _: "must be a whole number",
    "int_parsing_size": lambda _: "is too large a number",
    "float_type": lambda _: "must be a number",
    "float_parsing": lambda _: "must be a number",
    "finite_number": lambda _: "must be a finite number",
    "bool_type": lambda _: "must be true or false",
    "bool_parsing": lambda _: "must be true or false",
    "datetime_parsing": lambda _: "must be a time such as 2026-11-23T08:00:00Z",
    "datetime_from_date_parsing": lambda _: "must be a time such as 2026-11-23T08:00:00Z",
    "list_type": lambda _: "must be a list",
    "dict_type": lambda _: "must be an object",
    "model_type": lambda _: "must be an object",
    "model_attributes_type": lambda _: "must be an object",
    "literal_error": lambda context: f"must be {str(context['expected']).replace(chr(39), '')}",
    "string_too_long": lambda context: f"may have {context['max_length']} characters at most",
    "string_too_short": lambda context: f"needs {context['min_length']} characters at least",
    "greater_than_equal": lambda context: f"must be {context['ge']} or more",
    "greater_than": lambda context: f"must be more than {context['gt']}",
    "less_than_equal": lambda context: f"must be {context['le']} or less",
    "less_than": lambda context: f"must be less than {context['lt']}",
    "json_invalid": lambda context: f"is not JSON: {context['error']}",
    "union_tag_not_found": lambda _: "must say which kind it is",
}


def place(problem: Mapping[str, Any]) -> str:
    """Return the path to what is wrong, with dots between."""
    parts = [str(part) for part in problem["loc"]]
    if problem["type"] == "json_invalid":
        # What follows is the character's number, which the reason has.
        return "the body"
    if parts and parts[0] in _PARTS:
        parts = parts[1:]
    shown = [
        part
        for at, part in enumerate(parts)
        if not (part in _TAGS and at and parts[at - 1] == "target")
    ]
    return ".".join(shown) or "the body"


def in_words(problem: Mapping[str, Any]) -> str:
    """Return what to say behind the place. It has nothing of the value, which may be a password."""
    word = _WORDS.get(problem["type"])
    if word is None:
        return f"is refused: {problem['msg']}"
    return word(problem.get("ctx", {}))
