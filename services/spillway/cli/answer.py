"""What a command has found, whatever form it is printed in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Format(StrEnum):
    """How an answer is printed."""

    #: at a terminal as wide as that, behind a pipe a line a row with tabs
    TABLE = "table"
    #: all columns, however wide
    WIDE = "wide"
    #: what the service answered
    JSON = "json"
    #: a name a line
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Columns:
    """What of a row is shown, and what of that is more important."""

    #: names of all columns, as they stand side by side
    names: Sequence[str]
    #: the same names, the most important first; what is not here goes first, from the right
    ranked: Sequence[str]
    #: sentences: columns behind a pipe, lines below the table at a terminal
    sentences: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Rows:
    """A table."""

    rows: Sequence[Mapping[str, Any]]
    columns: Columns
    #: what stands above it
    heading: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """A name and a value per line, as psql's expanded display."""

    values: Mapping[str, Any]
    #: what stands above it
    heading: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """Lines as they are; at a terminal they break between words."""

    lines: Sequence[str]
    heading: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command found."""

    #: the service's JSON
    raw: Any
    #: of the things that are shown
    names: Sequence[str]
    #: from the top
    parts: Sequence[Rows | Record | Text]
    exit_code: int = 0
