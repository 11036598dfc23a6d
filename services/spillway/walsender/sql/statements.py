"""Where a statement speaks of slots, and how it is told to the source instead.

A source knows nothing of our slots, so two kinds of things are replaced in the text, and everything
else stays as it was written:

relations
    ``pg_replication_slots``, ``pg_stat_replication`` and ``pg_get_replication_slots()``, where they
    stand as a relation does (behind FROM, JOIN, a comma between them, TABLE), by a sub-select of
    the same columns and types: our rows, and those of the source that are not our own. A name that
    a WITH query has is that query's.
functions
    those that make, drop, move or read slots, by what they have returned: they were run before the
    source was asked. Their arguments must be constants or parameters, or the statement must be
    ``SELECT f(slot_name) FROM pg_replication_slots WHERE slot_name = …``: what every client that
    we know of says.

Rows come as one JSON value: a literal in a simple Query, one parameter more than the statement has
in the extended protocol, bound at each Bind, so that a prepared statement is as fresh as any.

Statements that don't have one of the names in them are not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.walsender.failures import WireError, not_supported
from spillway.walsender.sql.slot_columns import (
    FUNCTIONS,
    PLACE,
    RELATION_FUNCTIONS,
    RELATIONS,
    SET_FUNCTIONS,
    relation_text,
    result_text,
)
from spillway.walsender.sql.tokens import Token, tokens_of

if TYPE_CHECKING:
    from collections.abc import Sequence

#: One of these is in every name that is looked for.
_MARKS: Final = (b"replication_slot", b"pg_stat_replication", b"pg_logical_slot_", b"pg_terminate_")
_OPENING: Final = frozenset({"from", "join", "only", "lateral"})
#: What ends the list of relations at its level of parentheses.
_CLOSING: Final = frozenset(
    {
        "select", "where", "group", "having", "order", "limit", "offset", "fetch", "window",
        "union", "intersect", "except", "returning", "set", "for", "values",
    }
)  # fmt: skip
#: What can follow a relation that has no alias: keywords that can't be one.
_NO_ALIAS: Final = _CLOSING | {
    "join", "left", "right", "full", "inner", "cross", "natural", "on", "using", "tablesample",
    "into", "with", "as",
}  # fmt: skip
_SET_OPERATIONS: Final = frozenset({"all", "distinct", "union", "intersect", "except", "as"})
_BEHIND_COLUMN: Final = frozenset({",", ";", ")"})
#: Statements that keep the text: there rows of one moment would be kept, too.
_DEFINING: Final = frozenset(
    {"view", "rule", "function", "procedure", "policy", "trigger", "materialized"}
)
_HINT: Final = (
    "Call it as SELECT function(constants), SELECT … FROM function(constants), or SELECT "
    "function(slot_name) FROM pg_replication_slots WHERE slot_name = constant."
)


#: As an LSN: how far the service has the source's WAL.
CURRENT: Final = frozenset(
    {"pg_current_wal_lsn", "pg_current_wal_flush_lsn", "pg_current_wal_insert_lsn"}
)


class Value(NamedTuple):
    """An argument: what is written, or the number of the parameter that has it."""

    #: None: NULL
    text: str | None
    parameter: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """A function's call, which is to be run."""

    function: str
    arguments: Sequence[Value]
    #: by name, where they were given so
    named: dict[str, Value]
    #: the argument is a column of pg_replication_slots, whose rows are those with that slot_name
    of_slot: Value | None = None


@dataclass(slots=True)
class Statement:
    """A text in which something was replaced."""

    #: with :data:`~spillway.walsender.sql.slot_columns.PLACE`
    text: str
    parameters: int
    call: Call | None = None

    @property
    def needs_json(self) -> bool:
        """Whether the text has a place for the JSON value; a void function's call has none."""
        return PLACE in self.text

    def with_json(self, expression: str) -> str:
        """Return the text with where the JSON value is."""
        return self.text.replace(PLACE, expression)


def may_speak_of_slots(text: bytes) -> bool:
    """Whether it is worth looking: one of the names may be in it."""
    lowered = text.lower()
    return any(mark in lowered for mark in _MARKS)


def rewrite(text: str, major: int, *, is_conforming: bool = True) -> Statement | None:
    """Replace what speaks of slots; None: nothing does.

    Args:
        text: one character a byte.
        major: the source's.
        is_conforming: standard_conforming_strings.

    Raises:
        WireError: it does in a form that is not served.
    """
    tokens = tokens_of(text, is_conforming=is_conforming)
    if not tokens:
        return None
    return _Rewriting(text, tokens, major).run()


class _Rewriting:
    """One text."""

    def __init__(self, text: str, tokens: list[Token], major: int) -> None:
        self._text = text
        self._tokens = tokens
        self._major = major
        self._edits: list[tuple[int, int, str]] = []
        self._call: Call | None = None

    def run(self) -> Statement | None:
        tokens = self._tokens
        words = [token.word for token in tokens]
        if words[0] in ("create", "alter") and not _DEFINING.isdisjoint(words[:5]):
            return None
        shadowed = self._with_names()
        #: at each level of parentheses: whether relations are listed there
        listing = [False]
        for number, token in enumerate(tokens):
            before = tokens[number - 1] if number else None
            if token.is_sign("("):
                opens = before is not None and (
                    before.word in _OPENING
                    or (listing[-1] and (before.is_sign(",") or before.is_sign("(")))
                )
                listing.append(opens)
            elif token.is_sign(")"):
                if len(listing) > 1:
                    listing.pop()
            elif token.is_sign(";"):
                listing = [False]
            elif token.word == "from":
                listing[-1] = before is None or before.word != "distinct"
            elif token.word in _CLOSING:
                listing[-1] = False
            elif token.identifier in RELATIONS:
                self._relation(number, shadowed, lists=listing[-1])
            elif token.identifier in RELATION_FUNCTIONS and listing[-1]:
                self._relation_function(number)
            elif token.identifier in FUNCTIONS and not (
                listing[-1] and token.identifier == "pg_terminate_backend"
            ):
                self._function(number, lists=listing[-1])
        if not self._edits:
            return None
        if words[0] == "prepare":
            raise not_supported(
                "PREPARE of a statement that speaks of replication slots is not supported by this "
                "server",
                "Prepare it by the protocol, as drivers do.",
            )
        return Statement(self._edited(), self._parameters(), self._call)

    def _edited(self) -> str:
        parts, at = [], 0
        for start, end, new in sorted(self._edits):
            parts += [self._text[at:start], new]
            at = end
        return "".join([*parts, self._text[at:]])

    def _parameters(self) -> int:
        numbers = [int(token.text[1:]) for token in self._tokens if token.kind == "parameter"]
        return max(numbers, default=0)

    def _with_names(self) -> set[str]:
        """Return which of the names WITH queries have."""
        found = set()
        for number, token in enumerate(self._tokens):
            before, after, second = (self._at(number + step) for step in (-1, 1, 2))
            if token.identifier in RELATIONS and before and after and second:
                begins = before.word in ("with", "recursive")
                is_query = after.word == "as" and (
                    second.is_sign("(") or second.word in ("not", "materialized")
                )
                if (is_query and (begins or before.is_sign(","))) or (
                    begins and after.is_sign("(")
                ):
                    found.add(token.identifier)
        return found

    def _at(self, number: int) -> Token | None:
        return self._tokens[number] if 0 <= number < len(self._tokens) else None

    def _qualified_from(self, number: int) -> int | None:
        """Return where a name with its schema begins; None: it is of another schema."""
        dot = self._at(number - 1)
        if dot is None or not dot.is_sign("."):
            return number
        schema = self._at(number - 2)
        is_theirs = schema is not None and schema.identifier == "pg_catalog"
        return number - 2 if is_theirs and number >= 2 else None

    def _relation(self, number: int, shadowed: set[str], *, lists: bool) -> None:
        token = self._tokens[number]
        first = self._qualified_from(number)
        if first is None:
            return
        after = self._at(number + 1)
        start = self._tokens[first].start
        if after is not None and after.is_sign("."):
            if first != number:
                # A column by its relation's name with the schema: the alias has none.
                self._edits.append((start, token.start, ""))
            return
        if first == number and token.identifier in shadowed:
            return
        before = self._at(first - 1)
        if before is None:
            return
        relation = relation_text(token.identifier, self._major)
        alias = "" if self._has_alias(number + 1) else f" AS {token.identifier}"
        if before.word == "table" and self._is_table_command(first - 2):
            new = f"SELECT * FROM {relation} AS {token.identifier}"  # noqa: S608 - names of ours
            self._edits.append((before.start, token.end, new))
        elif lists and (before.word in _OPENING or before.is_sign(",") or before.is_sign("(")):
            if before.word == "only":
                start = before.start
            self._edits.append((start, token.end, relation + alias))

    def _is_table_command(self, number: int) -> bool:
        before = self._at(number)
        return (
            before is None
            or before.is_sign("(")
            or before.is_sign(";")
            or before.word in _SET_OPERATIONS
        )

    def _has_alias(self, number: int) -> bool:
        after = self._at(number)
        if after is None:
            return False
        return after.word == "as" or (
            bool(after.identifier) and (after.kind == "quoted" or after.text not in _NO_ALIAS)
        )

    def _relation_function(self, number: int) -> None:
        opening, closing = self._at(number + 1), self._at(number + 2)
        first = self._qualified_from(number)
        if first is None or opening is None or closing is None:
            return
        if opening.is_sign("(") and closing.is_sign(")"):
            name = self._tokens[number].identifier
            alias = "" if self._has_alias(number + 3) else f" AS {name}"
            relation = relation_text(name, self._major)
            self._edits.append((self._tokens[first].start, closing.end, relation + alias))

    # -- functions that do something ------------------------------------------------------------

    def _function(self, number: int, *, lists: bool) -> None:
        first = self._qualified_from(number)
        opening = self._at(number + 1)
        if first is None or opening is None or not opening.is_sign("("):
            return
        name = self._tokens[number].identifier
        end, arguments = self._arguments(number + 2)
        if name == "pg_terminate_backend":
            self._terminate(number, first, end, arguments)
            return
        if self._call is not None:
            raise not_supported(f"more than one call of {name} or its like is not supported", _HINT)
        if any(token.is_sign(";") for token in self._tokens[:-1]):
            raise not_supported(f"{name} among other statements is not supported", _HINT)
        before, after = self._at(first - 1), self._at(end + 1)
        around = before, after, self._at(end + 2)
        if [token.text for token in around if token and token.kind == "sign"] == ["(", ")", "."]:
            # It would be run, and then there were no such column.
            raise not_supported(f"a column of what {name} returns is not supported", _HINT)
        self._call = self._call_of(name, arguments, number)
        casts = ", ".join(self._casts(name, arguments))
        new = result_text(name, casts, is_relation=lists)
        is_column = (
            name in SET_FUNCTIONS
            and before is not None
            and before.word == "select"
            and (after is None or after.word == "from" or after.text in _BEHIND_COLUMN)
        )
        if is_column or (lists and not self._has_alias(end + 1)):
            new += f" AS {name}"
        self._edits.append((self._tokens[first].start, self._tokens[end].end, new))

    def _terminate(self, number: int, first: int, end: int, arguments: list[list[Token]]) -> None:
        """Replace a call that may be about one of our streams; any other one is the source's."""
        name = "pg_terminate_backend"
        if len(arguments) != 1 or self._call is not None:
            return
        try:
            self._call = self._call_of(name, arguments, number)
        except WireError:
            return
        casts = ", ".join(self._casts(name, arguments))
        new = result_text(name, casts, is_relation=False)
        self._edits.append((self._tokens[first].start, self._tokens[end].end, new))

    def _arguments(self, number: int) -> tuple[int, list[list[Token]]]:
        """Return where the call ends, and its arguments."""
        depth, arguments = 0, [list[Token]()]
        for at in range(number, len(self._tokens)):
            token = self._tokens[at]
            if token.is_sign(")") and not depth:
                return at, [argument for argument in arguments if argument]
            if token.is_sign(",") and not depth:
                arguments.append([])
                continue
            depth += token.is_sign("(") - token.is_sign(")")
            arguments[-1].append(token)
        raise not_supported("a call without an end is not supported")

    def _call_of(self, name: str, arguments: list[list[Token]], number: int) -> Call:
        values: list[Value] = []
        named: dict[str, Value] = {}
        for argument in arguments:
            given = argument
            if len(given) > 2 and (given[1].is_sign("=>") or given[1].is_sign(":=")):
                if given[0].identifier not in FUNCTIONS[name].names:
                    raise not_supported(f"{name} has no argument {given[0].identifier}", _HINT)
                value = _constant(given[2:])
                if value is not None:
                    named[given[0].identifier] = value
                    continue
            if given and given[0].word == "variadic":
                given = given[1:]
            value = _constant(given)
            if value is None:
                return self._call_of_rows(name, arguments, number)
            values.append(value)
        return Call(name, values, named)

    def _call_of_rows(self, name: str, arguments: list[list[Token]], number: int) -> Call:
        """Read ``SELECT f(slot_name) FROM pg_replication_slots WHERE slot_name = …``."""
        columns = [argument[-1].identifier for argument in arguments]
        rest = [token for token in self._tokens[number:] if not token.is_sign(";")]
        wheres = [at for at, token in enumerate(rest) if token.word == "where"]
        wanted = "active_pid" if name == "pg_terminate_backend" else "slot_name"
        if columns[:1] == [wanted] and len(columns) == 1 and len(wheres) == 1:
            condition = rest[wheres[0] + 1 :]
            if len(condition) > 2 and condition[1].is_sign("."):
                condition = condition[2:]
            if (
                any(token.identifier == "pg_replication_slots" for token in rest[: wheres[0]])
                and len(condition) > 2
                and condition[0].identifier == "slot_name"
                and condition[1].is_sign("=")
                and (slot := _constant(condition[2:])) is not None
            ):
                return Call(name, (), {}, of_slot=slot)
        raise not_supported(f"this form of a call of {name} is not supported by this server", _HINT)

    def _casts(self, name: str, arguments: list[list[Token]]) -> list[str]:
        """Write arguments once more, with their types: parameters must keep theirs."""
        names, types, _ = FUNCTIONS[name]
        found = []
        for number, argument in enumerate(arguments):
            at, words = number, argument
            if len(words) > 2 and (words[1].is_sign("=>") or words[1].is_sign(":=")):
                at, words = names.index(words[0].identifier), words[2:]
            kind = types[min(at, len(types) - 1)]
            if words[0].word == "variadic":
                words, kind = words[1:], "text[]"
            written = self._text[words[0].start : words[-1].end]
            found.append(f"CAST(({written}) AS {kind})")
        return found


def _constant(tokens: Sequence[Token]) -> Value | None:
    """Read a constant or a parameter, with casts; None: it is something else."""
    if not tokens:
        return None
    first, rest = tokens[0], list(tokens[1:])
    if first.word == "cast" and len(rest) > 3 and rest[0].is_sign("(") and rest[-1].is_sign(")"):
        ends = [at for at, token in enumerate(rest) if token.word == "as"]
        return _constant(rest[1 : ends[0]]) if ends else None
    if first.identifier and rest and rest[0].kind == "string" and len(rest) == 1:
        return _constant(rest)  # type 'constant'
    if first.identifier in CURRENT and [token.text for token in rest] == ["(", ")"]:
        return Value(first.identifier)
    while rest and rest[0].is_sign("::"):
        rest = rest[1:]
        while rest and (rest[0].identifier or rest[0].text in (".", "[", "]")):
            rest = rest[1:]
    if rest:
        return None
    if first.kind == "parameter":
        return Value(None, int(first.text[1:]))
    if first.kind == "string":
        return _string(first.text)
    if first.kind == "number" or first.word in ("true", "false"):
        return Value(first.text)
    return Value(None) if first.word == "null" else None


def _string(written: str) -> Value | None:
    try:
        if written.startswith("'"):
            return Value(written[1:-1].replace("''", "'").encode("latin-1").decode())
        if written.startswith("$"):
            return Value(written[written.index("$", 1) + 1 : written.rindex("$", 0, -1)])
        if written[0] in "eE" and "\\" not in written:
            return Value(written[2:-1].replace("''", "'"))
    except UnicodeDecodeError:
        pass
    return None
