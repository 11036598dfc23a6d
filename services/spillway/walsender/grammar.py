"""Replication commands: from a Query's text to a typed command, by the grammar of PostgreSQL 14
to 18.

A walsender looks at the first word alone, in upper case: if it begins a replication command, all of
the text must be one; anything else is SQL. Words are told apart by case, names without quotes are
folded to lower case and cut to 63 bytes, strings double their quotes and know no escapes.

What differs between majors: READ_REPLICATION_SLOT and options in parentheses came with 15,
ALTER_REPLICATION_SLOT and FAILOVER with 17.

Source: src/backend/replication/repl_scanner.l, repl_gram.y; parseCreateReplSlotOptions,
ParseAlterReplSlotOptions (walsender.c)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.pg.lsn import Lsn
from spillway.walsender.failures import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_NAME_BYTES_MAX: Final = 63
_FOLD: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}

#: The words that begin a command, and the major that each came with.
_COMMANDS: Final = {
    "IDENTIFY_SYSTEM": 14,
    "BASE_BACKUP": 14,
    "START_REPLICATION": 14,
    "CREATE_REPLICATION_SLOT": 14,
    "DROP_REPLICATION_SLOT": 14,
    "TIMELINE_HISTORY": 14,
    "SHOW": 14,
    "READ_REPLICATION_SLOT": 15,
    "ALTER_REPLICATION_SLOT": 17,
    "UPLOAD_MANIFEST": 17,
}
_MAJOR_OF_OPTION_LISTS: Final = 15
_MAJOR_OF_FAILOVER: Final = 17
_MAJOR_OF_ALTERED_TWO_PHASE: Final = 18
#: What was an option before there were lists of them.
_LEGACY: Final = (
    "EXPORT_SNAPSHOT",
    "NOEXPORT_SNAPSHOT",
    "USE_SNAPSHOT",
    "RESERVE_WAL",
    "TWO_PHASE",
)
_KEYWORDS: Final = frozenset(
    (*_COMMANDS, *_LEGACY, "TIMELINE", "PHYSICAL", "LOGICAL", "SLOT", "TEMPORARY", "WAIT")
)

_TOKEN: Final = re.compile(
    r"""[ \t\n\r\f\v]+
    | (?P<lsn> [0-9A-Fa-f]+/[0-9A-Fa-f]+ )
    | (?P<number> [0-9]+ )
    | (?P<word> [A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]* )
    | "(?P<quoted> (?:[^"]|"")* )"
    | '(?P<string> (?:[^']|'')* )'
    | (?P<other> . )""",
    re.VERBOSE | re.DOTALL,
)
#: a token: what begins with a quote and has no other
_UNTERMINATED: Final = "unterminated"
_FIRST_WORD: Final = re.compile(r"[ \t\n\r\f\v]*([A-Za-z_]+)(?![A-Za-z0-9_$\u0080-\U0010ffff])")


class Option(NamedTuple):
    """An option of a command as it was written; a value of None: it was named only."""

    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class IdentifySystem:
    """IDENTIFY_SYSTEM."""

    tag = "IDENTIFY_SYSTEM"


@dataclass(frozen=True, slots=True)
class Show:
    """SHOW name."""

    name: str
    tag = "SHOW"


@dataclass(frozen=True, slots=True)
class CreateSlot:
    """CREATE_REPLICATION_SLOT … LOGICAL."""

    slot_name: str
    plugin: str
    temporary: bool = False
    #: export, use or nothing
    snapshot: str = "export"
    two_phase: bool = False
    failover: bool = False
    tag = "CREATE_REPLICATION_SLOT"


@dataclass(frozen=True, slots=True)
class DropSlot:
    """DROP_REPLICATION_SLOT."""

    slot_name: str
    wait: bool
    tag = "DROP_REPLICATION_SLOT"


@dataclass(frozen=True, slots=True)
class AlterSlot:
    """ALTER_REPLICATION_SLOT; what is None stays as it is."""

    slot_name: str
    failover: bool | None
    two_phase: bool | None
    tag = "ALTER_REPLICATION_SLOT"


@dataclass(frozen=True, slots=True)
class ReadSlot:
    """READ_REPLICATION_SLOT."""

    slot_name: str
    tag = "READ_REPLICATION_SLOT"


@dataclass(frozen=True, slots=True)
class StartLogical:
    """START_REPLICATION SLOT … LOGICAL."""

    slot_name: str
    start_lsn: Lsn
    options: Sequence[Option] = field(default_factory=tuple)
    tag = "START_REPLICATION"


@dataclass(frozen=True, slots=True)
class NotServed:
    """A command that is right, and of physical replication."""

    #: as it is named to the client
    what: str
    tag = "START_REPLICATION"


Command = (
    IdentifySystem | Show | CreateSlot | DropSlot | AlterSlot | ReadSlot | StartLogical | NotServed
)


def syntax_error(message: str = "syntax error") -> WireError:
    """Say that a command is none: 42601."""
    return WireError("42601", message)


def is_command(text: bytes, major: int) -> bool:
    """Whether *text* begins as a command of *major*, so that all of it must be one. Only its
    beginning is looked at, and it need not be of any encoding.
    """
    first = _FIRST_WORD.match(text.lstrip(b" \t\n\r\f\v")[:_NAME_BYTES_MAX].decode("latin-1"))
    return first is not None and _COMMANDS.get(first[1], 99) <= major


def parse_command(
    text: str, major: int, on_cut: Callable[[str, str], None] | None = None
) -> Command | None:
    """Parse *text* as a server of *major* does; None: it is SQL. *on_cut* is told of names that are
    too long, and of what is left of them.

    Raises:
        WireError: it begins as a command and is none.
    """
    first = _FIRST_WORD.match(text)
    if first is None or _COMMANDS.get(first[1], 99) > major:
        return None
    parser = _Parser(_tokens(text, on_cut), major)
    command = _RULES[first[1]](parser)
    parser.end()
    return command


class _Token(NamedTuple):
    #: keyword, name, string, number, lsn, unterminated, or the character itself
    kind: str
    text: str


def _tokens(text: str, on_cut: Callable[[str, str], None] | None) -> list[_Token]:
    def cut(name: str) -> str:
        left = _cut(name)
        if left != name and on_cut is not None:
            on_cut(name, left)
        return left

    found = []
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind is None:
            continue
        value = match[kind]
        match kind:
            case "word" if value in _KEYWORDS:
                found.append(_Token("keyword", value))
            case "word":
                found.append(_Token("name", cut(value.translate(_FOLD))))
            case "quoted":
                found.append(_Token("name", cut(value.replace('""', '"'))))
            case "string":
                found.append(_Token("string", value.replace("''", "'")))
            case "other" if value in "\"'":
                # An error only for whoever comes to it: what is wrong before it is told first.
                found.append(_Token(_UNTERMINATED, value))
                break
            case "other":
                found.append(_Token(value, value))
            case _:
                found.append(_Token(kind, value))
    return found


def _cut(name: str) -> str:
    data = name.encode(errors="surrogatepass")
    return name if len(data) <= _NAME_BYTES_MAX else data[:_NAME_BYTES_MAX].decode(errors="ignore")


class _Parser:
    """Tokens from front to back."""

    def __init__(self, tokens: list[_Token], major: int) -> None:
        self._tokens = tokens
        self._at = 1
        self.major = major

    def accept(self, kind: str, text: str | None = None) -> str | None:
        """Take the next token if it is of *kind*, and is *text*; return its text."""
        if self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token.kind == _UNTERMINATED:
                raise syntax_error("unterminated quoted string")
            if token.kind == kind and text in (None, token.text):
                self._at += 1
                return token.text
        return None

    def expect(self, kind: str, text: str | None = None) -> str:
        """Take the next token, which must be of *kind*."""
        found = self.accept(kind, text)
        if found is None:
            raise syntax_error()
        return found

    def keyword(self, text: str) -> bool:
        return self.accept("keyword", text) is not None

    def end(self) -> None:
        """Insist that nothing follows but one semicolon."""
        self.accept(";")
        if self._at != len(self._tokens):
            raise syntax_error()

    def options(self) -> list[Option]:
        """Read what follows the parenthesis of ``( name [value], … )``, of names that may be
        keywords.
        """
        found = []
        while True:
            word = self.accept("keyword")
            name = self.expect("name") if word is None else word.lower()
            value = self.accept("name")
            if value is None and (number := self.accept("number")) is not None:
                # A number, not its text: 00 is 0.
                value = number.lstrip("0") or "0"
            found.append(Option(name, self.accept("string") if value is None else value))
            if self.accept(",") is None:
                break
        self.expect(")")
        return found

    def plugin_options(self) -> list[Option]:
        """Read what follows the parenthesis of ``( name ['value'], … )``."""
        found = []
        while True:
            found.append(Option(self.expect("name"), self.accept("string")))
            if self.accept(",") is None:
                break
        self.expect(")")
        return found


def _identify_system(_: _Parser) -> Command:
    return IdentifySystem()


def _show(parser: _Parser) -> Command:
    names = [parser.expect("name")]
    while parser.accept(".") is not None:
        names.append(parser.expect("name"))
    return Show(".".join(names))


def _create(parser: _Parser) -> Command:
    slot_name = parser.expect("name")
    temporary = parser.keyword("TEMPORARY")
    physical = parser.keyword("PHYSICAL")
    plugin = ""
    if not physical:
        parser.expect("keyword", "LOGICAL")
        plugin = parser.expect("name")
    options = []
    if parser.major >= _MAJOR_OF_OPTION_LISTS and parser.accept("(") is not None:
        options = parser.options()
    else:
        while (word := _legacy(parser)) is not None:
            options.append(word)
    if physical:
        return NotServed("CREATE_REPLICATION_SLOT ... PHYSICAL")
    chosen = _create_options(options, parser.major)
    if temporary and chosen.failover:
        raise WireError("0A000", "cannot enable failover for a temporary replication slot")
    return CreateSlot(
        slot_name, plugin, temporary, chosen.snapshot, chosen.two_phase, chosen.failover
    )


def _legacy(parser: _Parser) -> Option | None:
    """Read an option in the spelling of 14."""
    for word in _LEGACY:
        if word == "TWO_PHASE" and parser.major < _MAJOR_OF_OPTION_LISTS:
            continue
        if parser.keyword(word):
            snapshot = {
                "EXPORT_SNAPSHOT": "export",
                "NOEXPORT_SNAPSHOT": "nothing",
                "USE_SNAPSHOT": "use",
            }.get(word)
            if snapshot is not None:
                return Option("snapshot", snapshot)
            return Option(word.lower(), "true")
    return None


class _Chosen(NamedTuple):
    snapshot: str
    two_phase: bool
    failover: bool


def _create_options(options: Sequence[Option], major: int) -> _Chosen:
    snapshot: str | None = None
    flags: dict[str, bool] = {}
    for name, value in options:
        if name in flags or (name == "snapshot" and snapshot is not None):
            raise _redundant()
        if name == "snapshot":
            if value is None:
                raise syntax_error("snapshot requires a parameter")
            if value not in ("export", "use", "nothing"):
                raise WireError(
                    "22023",
                    f'unrecognized value for {CreateSlot.tag} option "{name}": "{value}"',
                )
            snapshot = value
        elif name == "two_phase" or (name == "failover" and major >= _MAJOR_OF_FAILOVER):
            flags[name] = _boolean(name, value)
        elif name == "reserve_wal":
            # Of physical slots.
            raise _redundant()
        else:
            raise WireError("XX000", f"unrecognized option: {name}")
    return _Chosen(
        snapshot or "export", flags.get("two_phase", False), flags.get("failover", False)
    )


def _redundant() -> WireError:
    return syntax_error("conflicting or redundant options")


def _boolean(name: str, value: str | None) -> bool:
    """Read a boolean as defGetBoolean does: one that is only named is true."""
    known = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
    found = True if value is None else known.get(value.lower())
    if found is None:
        raise syntax_error(f"{name} requires a Boolean value")
    return found


def _drop(parser: _Parser) -> Command:
    return DropSlot(parser.expect("name"), parser.keyword("WAIT"))


def _alter(parser: _Parser) -> Command:
    slot_name = parser.expect("name")
    flags: dict[str, bool] = {}
    parser.expect("(")
    for name, value in parser.options():
        known = name == "failover" or (
            name == "two_phase" and parser.major >= _MAJOR_OF_ALTERED_TWO_PHASE
        )
        if not known:
            raise WireError("XX000", f"unrecognized option: {name}")
        if name in flags:
            raise _redundant()
        flags[name] = _boolean(name, value)
    return AlterSlot(slot_name, flags.get("failover"), flags.get("two_phase"))


def _read(parser: _Parser) -> Command:
    return ReadSlot(parser.expect("name"))


def _start(parser: _Parser) -> Command:
    slot_name = parser.expect("name") if parser.keyword("SLOT") else None
    if slot_name is not None and parser.keyword("LOGICAL"):
        start_lsn = _lsn(parser)
        options = parser.plugin_options() if parser.accept("(") is not None else []
        return StartLogical(slot_name, start_lsn, options)
    parser.keyword("PHYSICAL")
    _lsn(parser)
    if parser.keyword("TIMELINE"):
        parser.expect("number")
    return NotServed("START_REPLICATION ... PHYSICAL")


def _lsn(parser: _Parser) -> Lsn:
    high, low = parser.expect("lsn").split("/")
    # sscanf's %X takes what 32 bits hold.
    return Lsn((int(high, 16) & 0xFFFFFFFF) << 32 | int(low, 16) & 0xFFFFFFFF)


def _timeline_history(parser: _Parser) -> Command:
    parser.expect("number")
    return NotServed("TIMELINE_HISTORY")


def _base_backup(parser: _Parser) -> Command:
    if parser.major >= _MAJOR_OF_OPTION_LISTS and parser.accept("(") is not None:
        parser.options()
        return NotServed("BASE_BACKUP")
    # Words of 14, which has a list of its own for them.
    while parser.accept("name") or parser.accept("string") or parser.accept("number"):
        pass
    return NotServed("BASE_BACKUP")


def _upload_manifest(_: _Parser) -> Command:
    return NotServed("UPLOAD_MANIFEST")


_RULES: Final[dict[str, Callable[[_Parser], Command]]] = {
    "IDENTIFY_SYSTEM": _identify_system,
    "BASE_BACKUP": _base_backup,
    "START_REPLICATION": _start,
    "CREATE_REPLICATION_SLOT": _create,
    "DROP_REPLICATION_SLOT": _drop,
    "TIMELINE_HISTORY": _timeline_history,
    "SHOW": _show,
    "READ_REPLICATION_SLOT": _read,
    "ALTER_REPLICATION_SLOT": _alter,
    "UPLOAD_MANIFEST": _upload_manifest,
}
