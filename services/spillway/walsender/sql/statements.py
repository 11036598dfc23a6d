"""Where a statement speaks of slots, and how it is told to the source instead.

A source knows nothing of our slots, so two kinds of things are replaced in the text, and everything
else stays as it was written:

relations
    ``pg_replication_slots``, ``pg_stat_replication``, ``pg_stat_replication_slots`` and
    ``pg_get_replication_slots()``, where they stand as a relation does (behind FROM, USING, JOIN, a
    comma between them, TABLE), by a sub-select of the same columns and types: our rows, and those
    of the source that are not our own. A name that a WITH query has is that query's.
functions
    those that make, drop, move or read slots, by what they have returned: they were run before the
    source was asked. Their arguments must be constants or parameters, or the name of slots that are
    chosen, ``SELECT f(slot_name) FROM pg_replication_slots WHERE …``; and a condition that they
    stand under must be one that is understood here (:mod:`spillway.walsender.sql.conditions`).

Rows come as one JSON value: a literal in a simple Query, one parameter more than the statement has
in the extended protocol, bound at each Bind, so that a prepared statement is as fresh as any.

Statements that don't have one of the names in them are not looked at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spillway.walsender.failures import WireError, not_supported
from spillway.walsender.sql.conditions import (
    Value,
    always,
    condition_of,
    read_slots_relation,
)
from spillway.walsender.sql.places import Edit, Places
from spillway.walsender.sql.slot_columns import (
    FUNCTIONS,
    PLACE,
    RELATION_FUNCTIONS,
    RELATIONS,
    SET_FUNCTIONS,
    STATS_MARK,
    relation_text,
    result_text,
)
from spillway.walsender.sql.tokens import Token, tokens_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spillway.walsender.sql.conditions import Condition, Known

#: One of these is in every name that is looked for.
_MARKS: Final = (b"replication_slot", b"pg_stat_replication", b"pg_logical_slot_", b"pg_terminate_")
_OPENING: Final = frozenset({"from", "using", "join", "only", "lateral"})
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
    "function(slot_name) FROM pg_replication_slots WHERE slot_name = constant, and under no other "
    "conditions than such comparisons and EXISTS (SELECT FROM pg_replication_slots WHERE …)."
)
#: Clauses of a SELECT, and what stands between two of them.
_CLAUSES: Final = frozenset(
    {
        "from", "where", "group", "having", "order", "limit", "offset", "fetch", "window", "for",
        "union", "intersect", "except", "returning",
    }
)  # fmt: skip
_SETS: Final = frozenset({"union", "intersect", "except"})
#: What says how many rows there are of all SELECTs that are united.
_LIMITS: Final = frozenset({"limit", "fetch", "offset"})
#: With one of these rows are fewer than those that a call would be run for.
_LESS: Final = frozenset({"group", "having", "limit", "offset", "fetch"})
_NOT_A_COLUMN: Final = frozenset(
    {"and", "or", "not", "is", "in", "like", "null", "true", "false", "exists", "between"}
)
#: What a call may take from the rows that it is run for.
_COLUMN_OF: Final = {
    "pg_drop_replication_slot": "slot_name",
    "pg_terminate_backend": "active_pid",
}


#: As an LSN: how far the service has the source's WAL.
CURRENT: Final = frozenset(
    {"pg_current_wal_lsn", "pg_current_wal_flush_lsn", "pg_current_wal_insert_lsn"}
)


@dataclass(frozen=True, slots=True)
class Call:
    """A function's call, which is to be run."""

    function: str
    arguments: Sequence[Value]
    #: by name, where they were given so
    named: dict[str, Value]
    #: whether it is run; with *of_rows*, for each row of pg_replication_slots of which that is true
    condition: Condition = always
    of_rows: bool = False

    @property
    def is_of_column(self) -> bool:
        """Whether its argument is a column of these rows."""
        return any(value.column for value in self.arguments)


@dataclass(slots=True)
class Statement:
    """A text in which something was replaced."""

    #: with :data:`~spillway.walsender.sql.slot_columns.PLACE`
    text: str
    parameters: int
    call: Call | None = None
    #: as it was written, and what was replaced in it
    written: str = ""
    edits: Sequence[Edit] = ()
    #: how many parameters a Bind must have, where it is prepared
    wanted: int = 0

    @property
    def needs_json(self) -> bool:
        """Whether the text has a place for the JSON value; a void function's call has none."""
        return PLACE in self.text

    @property
    def needs_stats(self) -> bool:
        """Whether the JSON value has to have slots' statistics."""
        return STATS_MARK in self.text

    def with_json(self, expression: str) -> str:
        """Return the text with where the JSON value is."""
        return self.text.replace(PLACE, expression)

    def places(self, expression: str, codec: str) -> Places:
        """Tell what is where in the text of :meth:`with_json`; *codec* is the client's."""
        edits = [edit._replace(new=edit.new.replace(PLACE, expression)) for edit in self.edits]
        return Places(self.written, edits, codec)


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
        self._edits: list[Edit] = []
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
            elif token.word in ("from", "using"):
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
        edits = sorted(self._edits)
        return Statement(self._edited(edits), self._parameters(), self._call, self._text, edits)

    def _edited(self, edits: Sequence[Edit]) -> str:
        parts, at = [], 0
        for start, end, new in edits:
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
                self._edits.append(Edit(start, token.start, ""))
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
            self._edits.append(Edit(before.start, token.end, new))
        elif lists and (before.word in _OPENING or before.is_sign(",") or before.is_sign("(")):
            if before.word == "only":
                start = before.start
            self._edits.append(Edit(start, token.end, relation + alias))

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
            self._check_alone(name, first, number + 2)
            alias = "" if self._has_alias(number + 3) else f" AS {name}"
            relation = relation_text(name, self._major)
            self._edits.append(Edit(self._tokens[first].start, closing.end, relation + alias))

    # -- functions that do something ------------------------------------------------------------

    def _function(self, number: int, *, lists: bool) -> None:
        first = self._qualified_from(number)
        opening = self._at(number + 1)
        if first is None or opening is None or not opening.is_sign("("):
            return
        name = self._tokens[number].identifier
        end, arguments = self._arguments(number + 2)
        if name == "pg_terminate_backend":
            self._terminate(first, end, arguments)
            return
        function = FUNCTIONS[name]
        is_open = name in SET_FUNCTIONS
        too_many = len(arguments) > len(function.names) and not is_open
        if too_many or len(arguments) < function.least:
            # There is no such function, and the source says so.
            return
        if lists:
            self._check_alone(name, first, end)
        if self._call is not None:
            raise not_supported(f"more than one call of {name} or its like is not supported", _HINT)
        if any(token.is_sign(";") for token in self._tokens[:-1]):
            raise not_supported(f"{name} among other statements is not supported", _HINT)
        before, after = self._at(first - 1), self._at(end + 1)
        around = before, after, self._at(end + 2)
        if [token.text for token in around if token and token.kind == "sign"] == ["(", ")", "."]:
            # It would be run, and then there were no such column.
            raise not_supported(f"a column of what {name} returns is not supported", _HINT)
        self._call = self._call_of(name, arguments, first, lists=lists)
        casts = ", ".join(self._casts(name, arguments))
        new = result_text(name, casts, is_relation=lists, is_of_column=self._call.is_of_column)
        is_column = (
            name in SET_FUNCTIONS
            and before is not None
            and before.word == "select"
            and (after is None or after.word == "from" or after.text in _BEHIND_COLUMN)
        )
        if is_column or (lists and not self._has_alias(end + 1)):
            new += f" AS {name}"
        self._edits.append(Edit(self._tokens[first].start, self._tokens[end].end, new))

    def _check_alone(self, name: str, first: int, end: int) -> None:
        """Insist on what a sub-select can stand for."""
        after = [token.word for token in self._tokens[end + 1 : end + 3]]
        before = [token.text for token in self._tokens[max(0, first - 3) : first]]
        if after == ["with", "ordinality"] or before == ["rows", "from", "("]:
            raise not_supported(
                f"{name} with ordinality or in ROWS FROM is not supported by this server",
                f"Write FROM {name}(…).",
            )

    def _terminate(self, first: int, end: int, arguments: list[list[Token]]) -> None:
        """Replace a call that may be about one of our streams; any other one is the source's."""
        name = "pg_terminate_backend"
        if len(arguments) != 1 or self._call is not None:
            return
        try:
            self._call = self._call_of(name, arguments, first, lists=False)
        except WireError:
            identifiers = {token.identifier for token in self._tokens}
            column = arguments[0][-1].identifier
            if column == "active_pid" or (
                column == "pid"
                and "pg_stat_replication" in identifiers
                and "pg_stat_activity" not in identifiers
            ):
                # The source would say that there is no such process.
                raise
            return
        casts = ", ".join(self._casts(name, arguments))
        new = result_text(name, casts, is_relation=False)
        self._edits.append(Edit(self._tokens[first].start, self._tokens[end].end, new))

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
            depth += token.is_sign("(") + token.is_sign("[")
            depth -= token.is_sign(")") + token.is_sign("]")
            arguments[-1].append(token)
        raise not_supported("a call without an end is not supported")

    def _call_of(self, name: str, arguments: list[list[Token]], first: int, *, lists: bool) -> Call:
        condition, of_rows = self._condition(name, first, lists=lists)
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
                elements = _elements(given[1:])
                if elements is None:
                    raise not_supported(
                        f"this array of options of {name} is not supported by this server",
                        "Write the options one by one, or as VARIADIC ARRAY['name', 'value'].",
                    )
                values += elements
                continue
            value = _constant(given)
            if value is None and of_rows and len(arguments) == 1:
                value = _column(given, _COLUMN_OF.get(name))
            if value is None:
                raise not_supported(
                    f"this form of a call of {name} is not supported by this server", _HINT
                )
            values.append(value)
        return Call(name, values, named, condition, of_rows)

    def _condition(self, name: str, first: int, *, lists: bool) -> tuple[Condition, bool]:
        """Return what a call depends on, and whether it is run for rows of slots.

        Raises:
            WireError: for others, or on something else.
        """
        unknown = not_supported(
            f"this condition of a call of {name} is not supported by this server", _HINT
        )
        selects = self._selects_of(first)
        if selects is None:
            raise unknown
        if not selects:
            return always, False
        inner, *outer = (self._clauses(select) for select in selects)
        try:
            conditions = [
                _limit_of(inner),
                *(self._outer_condition(clauses, first, lists=lists) for clauses in outer),
            ]
        except _NotRead:
            raise unknown from None

        def limited(condition: Condition) -> Condition:
            conditions.append(condition)
            return lambda known: all(one(known) for one in conditions)

        where = inner.get("where", [])
        if lists:
            if "having" in inner:
                raise unknown
            # What the rows are compared with is looked at behind the call, and what has no column
            # before it.
            if not where or self._is_of_columns(where):
                return limited(always), False
            condition = condition_of(where, _constant, has_row=False)
            if condition is None:
                raise unknown
            return limited(condition), False
        relation = inner.get("from")
        of_rows = relation is not None
        if relation is not None and read_slots_relation(relation) != ():
            raise unknown
        limits = inner.keys() & _LESS
        if limits and (of_rows or limits != {"limit"}):
            raise unknown
        condition = condition_of(where, _constant, has_row=of_rows) if where else always
        if condition is None:
            raise unknown
        return limited(condition), of_rows

    def _outer_condition(
        self, clauses: dict[str, list[Token]], call: int, *, lists: bool
    ) -> Condition:
        """Return what a SELECT says that has the call's own in it.

        Raises:
            _NotRead: something else.
        """
        relations = clauses.get("from")
        if relations is not None and not any(one is self._tokens[call] for one in relations):
            # For each row of theirs, or none.
            raise _NotRead
        if clauses.keys() & (_LESS - {"limit"} if not lists else {"having"}):
            raise _NotRead
        limit = _limit_of(clauses)
        where = clauses.get("where", [])
        if not where or (lists and self._is_of_columns(where)):
            return limit
        condition = condition_of(where, _constant, has_row=False)
        if condition is None:
            raise _NotRead
        return lambda known: limit(known) and condition(known)

    def _is_of_columns(self, where: Sequence[Token]) -> bool:
        """Whether a condition is one of the call's rows, which PostgreSQL asks about behind it."""
        return self._has_column(where) and not any(
            token.word in ("exists", "select") for token in where
        )

    def _selects_of(self, number: int) -> list[int] | None:
        """Return where the SELECTs begin that a call belongs to, the innermost first; None: it is a
        branch of an expression.
        """
        depth = cases = 0
        selects: list[int] = []
        is_found = False
        for at in range(number - 1, -1, -1):
            token = self._tokens[at]
            if token.is_sign(")"):
                depth += 1
            elif token.is_sign("("):
                before = self._at(at - 1)
                if not depth and before is not None and before.word == "coalesce":
                    return None
                if not depth:
                    is_found = False
                depth = max(0, depth - 1)
            elif depth:
                continue
            elif token.word == "end":
                cases += 1
            elif token.word == "case":
                if not cases:
                    return None
                cases -= 1
            elif token.word == "select" and not is_found:
                # Another one at the same level is one that it is united with.
                selects.append(at)
                is_found = True
        return selects

    def _clauses(self, select: int) -> dict[str, list[Token]]:
        """Return what stands behind each word of a clause of a SELECT."""
        found: dict[str, list[Token]] = {}
        depth, clause, is_united = 0, "select", False
        for at in range(select + 1, len(self._tokens)):
            token, before = self._tokens[at], self._tokens[at - 1]
            depth += token.is_sign("(") - token.is_sign(")")
            if depth < 0 or (not depth and token.is_sign(";")):
                break
            is_clause = not depth and token.word in _CLAUSES and before.word != "distinct"
            if is_clause and token.word in _SETS:
                # Behind it, only what says how many rows there are in all is of this one.
                is_united, clause = True, ""
                continue
            if is_clause:
                if is_united and token.word not in _LIMITS:
                    clause = ""
                    continue
                clause = token.word
                found[clause] = []
            elif clause in found:
                found[clause].append(token)
        return found

    def _has_column(self, tokens: Sequence[Token]) -> bool:
        """Whether a condition has a name that is no function's."""
        return any(
            token.identifier
            and token.word not in _NOT_A_COLUMN
            and (after is None or not after.is_sign("("))
            for token, after in zip(tokens, [*tokens[1:], None], strict=True)
        )

    def _casts(self, name: str, arguments: list[list[Token]]) -> list[str]:
        """Write arguments once more, with their types: parameters must keep theirs."""
        names, types = FUNCTIONS[name].names, FUNCTIONS[name].types
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


class _NotRead(Exception):
    """What a call stands under is of another kind."""


def _limit_of(clauses: dict[str, list[Token]]) -> Condition:
    """Return whether a LIMIT leaves rows at all: PostgreSQL asks for none otherwise, and calls
    nothing.

    Raises:
        _NotRead: it is no constant.

    Source: ExecLimit, recompute_limits (src/backend/executor/nodeLimit.c)
    """
    tokens = clauses.get("limit", [])
    if (fetch := clauses.get("fetch")) is not None:
        tokens = [
            token
            for token in fetch
            if token.word not in ("first", "next", "row", "rows", "only", "with", "ties")
        ]
    if not tokens or (len(tokens) == 1 and tokens[0].word == "all"):
        return always
    value = _constant(tokens)
    if value is None or not (
        value.parameter or value.text is None or re.fullmatch("[0-9]+", value.text)
    ):
        raise _NotRead

    def leaves_some(known: Known) -> bool:
        text = known.text_of(value, "pg_catalog.int8")
        # What is no number, or less than none, the source refuses.
        return text is None or (text.isdecimal() and int(text) > 0)

    return leaves_some


def _elements(tokens: Sequence[Token]) -> list[Value] | None:
    """Read an array of constants: ARRAY[…], or a literal without quotes and escapes in it."""
    if len(tokens) > 2 and tokens[0].word == "array" and tokens[1].is_sign("["):
        depth, groups = 0, [list[Token]()]
        for at, token in enumerate(tokens[2:], 2):
            if token.is_sign("]") and not depth:
                casts = tokens[at + 1 :]
                if casts and not casts[0].is_sign("::"):
                    return None
                break
            depth += token.text in ("(", "[") and token.kind == "sign"
            depth -= token.text in (")", "]") and token.kind == "sign"
            if token.is_sign(",") and not depth:
                groups.append([])
            else:
                groups[-1].append(token)
        else:
            return None
        found = [_constant(group) for group in groups if group]
        return None if None in found else [value for value in found if value is not None]
    literal = _constant(tokens)
    if literal is None or literal.text is None or not re.fullmatch(r"\{[^{}\"\\]*\}", literal.text):
        return None
    words = [word.strip() for word in literal.text[1:-1].split(",")]
    return [Value(None if word.lower() == "null" else word) for word in words if word]


def _column(tokens: Sequence[Token], column: str | None) -> Value | None:
    """Read a column of rows of slots; None: it is another one, or something else."""
    names = [token.identifier for token in tokens]
    is_one = len(tokens) == 1 or (len(tokens) == 3 and tokens[1].is_sign("."))
    return Value(None, column=column) if column and is_one and names[-1] == column else None


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
