"""Whether a call on slots is to be run, and for which of them: what its statement's WHERE says.

A call is run here, before its statement goes to the source, so what decides about it must be known
here: comparisons of columns of ``pg_replication_slots`` with constants and parameters, ``EXISTS``
over that relation, and ``AND``, ``OR``, ``NOT`` of them. Everything else is not read, and a call
that depends on it is refused; it is never run at a venture.

Truth has three values, as in SQL: None is NULL.

Source: a_expr (src/backend/parser/gram.y), MatchText (src/backend/utils/adt/like_match.c)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.pg.boolean import parse_bool

if TYPE_CHECKING:
    from spillway.walsender.sql.tokens import Token

#: Columns that conditions are about, with their types.
_COLUMNS: Final = {
    "slot_name": "pg_catalog.name",
    "plugin": "pg_catalog.name",
    "slot_type": "pg_catalog.text",
    "database": "pg_catalog.name",
    "temporary": "pg_catalog.bool",
    "active": "pg_catalog.bool",
    "active_pid": "pg_catalog.int4",
    "two_phase": "pg_catalog.bool",
    "wal_status": "pg_catalog.text",
}
_BOOL: Final = "pg_catalog.bool"
_RELATION: Final = "pg_replication_slots"


class Value(NamedTuple):
    """A constant as it is written, the number of the parameter that has it, or a column."""

    #: None: NULL
    text: str | None
    parameter: int = 0
    #: of pg_replication_slots; empty: none
    column: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """What conditions are asked of."""

    #: rows of pg_replication_slots
    rows: Sequence[Mapping[str, object]]
    #: the database that is connected to
    database: str
    #: gives the text of a constant or a parameter by its type
    text_of: Callable[[Value, str], str | None]
    #: the row that is asked about; empty: none
    row: Mapping[str, object] = field(default_factory=dict)

    def at(self, row: Mapping[str, object]) -> Known:
        """Ask about *row*."""
        return Known(self.rows, self.database, self.text_of, row)


Condition = Callable[[Known], bool | None]
_Operand = tuple[str, Callable[[Known, str], str | None]]


def always(_: Known) -> bool:
    """Be true."""
    return True


def condition_of(
    tokens: Sequence[Token],
    constant: Callable[[Sequence[Token]], Value | None],
    *,
    has_row: bool,
) -> Condition | None:
    """Read a condition; None: it is of another kind.

    Args:
        tokens: behind WHERE.
        constant: reads a constant.
        has_row: whether columns are those of a row of pg_replication_slots.
    """
    reading = _Reading(tokens, constant, has_row=has_row)
    try:
        condition = reading.any_of()
    except _Other:
        return None
    return condition if reading.is_over else None


class _Other(Exception):
    """It is a condition of another kind."""


class _Reading:
    """One condition."""

    def __init__(
        self,
        tokens: Sequence[Token],
        constant: Callable[[Sequence[Token]], Value | None],
        *,
        has_row: bool,
    ) -> None:
        self._tokens = tokens
        self._constant = constant
        self._has_row = has_row
        self._number = 0

    @property
    def is_over(self) -> bool:
        return self._number == len(self._tokens)

    def any_of(self) -> Condition:
        found = [self._all_of()]
        while self._takes_word("or"):
            found.append(self._all_of())
        return found[0] if len(found) == 1 else lambda known: _any(one(known) for one in found)

    def _all_of(self) -> Condition:
        found = [self._negated()]
        while self._takes_word("and"):
            found.append(self._negated())
        if len(found) == 1:
            return found[0]
        return lambda known: _not(_any(_not(one(known)) for one in found))

    def _negated(self) -> Condition:
        if self._takes_word("not"):
            negated = self._negated()
            return lambda known: _not(negated(known))
        if self._takes_word("exists"):
            return self._exists()
        if self._is_sign("("):
            self._number += 1
            condition = self.any_of()
            self._take_sign(")")
            return condition
        return self._comparison()

    def _exists(self) -> Condition:
        self._take_sign("(")
        depth, begin = 0, self._number
        while self._number < len(self._tokens):
            token = self._tokens[self._number]
            if token.is_sign(")") and not depth:
                break
            depth += token.is_sign("(") - token.is_sign(")")
            self._number += 1
        inner = self._tokens[begin : self._number]
        self._take_sign(")")
        words = [token.word for token in inner]
        if not inner or words[0] != "select" or "from" not in words:
            raise _Other
        relation = inner[words.index("from") + 1 :]
        where = read_slots_relation(relation)
        if where is None:
            raise _Other
        condition = condition_of(where, self._constant, has_row=True) if where else always
        if condition is None:
            raise _Other
        return lambda known: any(condition(known.at(row)) for row in known.rows)

    def _comparison(self) -> Condition:
        (kind, left) = self._operand()
        if self._takes_word("is"):
            is_not = self._takes_word("not")
            asked = self._word()
            if asked not in ("null", "true", "false", "unknown"):
                raise _Other
            wanted = {"true": True, "false": False}.get(asked)

            def judged(known: Known) -> bool:
                text = left(known, kind)
                found = None if text is None else text if wanted is None else parse_bool(text)
                return (found == wanted) is not is_not

            return judged
        is_not = self._takes_word("not")
        if self._takes_word("in"):
            return self._in(kind, left, is_not=is_not)
        if self._takes_word("like"):
            _, right = self._operand()
            return lambda known: _like(left(known, kind), right(known, kind), is_not=is_not)
        if is_not:
            raise _Other
        for sign in ("=", "<>", "!="):
            if self._takes_signs(sign):
                other, right = self._operand()
                both = kind or other
                if not both:
                    raise _Other
                return lambda known: _equal(
                    left(known, both), right(known, both), both, is_not=sign != "="
                )
        if kind != _BOOL:
            raise _Other
        return lambda known: _truth(left(known, kind))

    def _in(
        self, kind: str, left: Callable[[Known, str], str | None], *, is_not: bool
    ) -> Condition:
        self._take_sign("(")
        rights = [self._operand()[1]]
        while self._is_sign(","):
            self._number += 1
            rights.append(self._operand()[1])
        self._take_sign(")")
        if not kind:
            raise _Other

        def found(known: Known) -> bool | None:
            text = left(known, kind)
            is_in = _any(_equal(text, right(known, kind), kind, is_not=False) for right in rights)
            return _not(is_in) if is_not else is_in

        return found

    def _operand(self) -> _Operand:
        begin = self._number
        token = self._next()
        name = token.identifier
        if self._has_row and self._is_sign("."):
            self._number += 1
            name = self._next().identifier
        if self._has_row and name in _COLUMNS:
            self._skip_casts()
            return _COLUMNS[name], lambda known, _: _shown(known.row[name])
        if name == "current_database" and self._takes_signs("()"):
            self._skip_casts()
            return "", lambda known, _: known.database
        if name and token.word not in ("true", "false", "null"):
            raise _Other
        self._skip_casts()
        value = self._constant(self._tokens[begin : self._number])
        if value is None:
            raise _Other
        kind = _BOOL if token.word in ("true", "false") else ""
        return kind, lambda known, wanted: known.text_of(value, wanted)

    def _skip_casts(self) -> None:
        while self._is_sign("::"):
            self._number += 1
            if self._next().identifier not in ("text", "name", "varchar", "bool", "boolean"):
                raise _Other

    # -- words ------------------------------------------------------------------------------------

    def _next(self) -> Token:
        if self.is_over:
            raise _Other
        self._number += 1
        return self._tokens[self._number - 1]

    def _word(self) -> str:
        return self._next().word

    def _takes_word(self, word: str) -> bool:
        found = not self.is_over and self._tokens[self._number].word == word
        self._number += found
        return found

    def _is_sign(self, sign: str) -> bool:
        return not self.is_over and self._tokens[self._number].is_sign(sign)

    def _take_sign(self, sign: str) -> None:
        if not self._is_sign(sign):
            raise _Other
        self._number += 1

    def _takes_signs(self, signs: str) -> bool:
        """Take signs that stand side by side, if they are there."""
        there = self._tokens[self._number : self._number + len(signs)]
        found = len(there) == len(signs) and all(
            token.is_sign(sign) for token, sign in zip(there, signs, strict=True)
        )
        self._number += len(signs) * found
        return found


def read_slots_relation(tokens: Sequence[Token]) -> Sequence[Token] | None:
    """Read ``pg_replication_slots [AS alias] [WHERE …]``, behind FROM; return what is behind WHERE,
    empty if there is none. None: it is something else.
    """
    at = 0
    if len(tokens) > 2 and tokens[0].identifier == "pg_catalog" and tokens[1].is_sign("."):
        at = 2
    if len(tokens) <= at or tokens[at].identifier != _RELATION:
        return None
    at += 1
    if at < len(tokens) and tokens[at].word == "as":
        at += 1
    if at < len(tokens) and tokens[at].identifier and tokens[at].word != "where":
        at += 1
    if at == len(tokens):
        return ()
    return tokens[at + 1 :] if tokens[at].word == "where" and tokens[at + 1 :] else None


def _shown(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return ("t" if value else "f") if isinstance(value, bool) else str(value)


def _truth(text: str | None) -> bool | None:
    return None if text is None else parse_bool(text)


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _any(values: Iterable[bool | None]) -> bool | None:
    found = list(values)
    return True if True in found else None if None in found else False


def _equal(left: str | None, right: str | None, kind: str, *, is_not: bool) -> bool | None:
    if left is None or right is None:
        return None
    if kind == _BOOL:
        return (parse_bool(left) == parse_bool(right)) is not is_not
    return (left == right) is not is_not


def _like(text: str | None, pattern: str | None, *, is_not: bool) -> bool | None:
    if text is None or pattern is None:
        return None
    pieces = re.findall(r"\\.|%|_|.", pattern, re.DOTALL)
    parts = ({"%": ".*", "_": "."}.get(piece) or re.escape(piece[-1]) for piece in pieces)
    return (re.fullmatch("".join(parts), text, re.DOTALL) is not None) is not is_not
