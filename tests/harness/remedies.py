"""Remedies that errors print, followed to their end.

A test that does what an error's hint says, and sees that the trouble is gone then, is marked with
the error's code: ``@pytest.mark.follows_hint("wal_gap")``. It takes the hint by :func:`remedy`, and
what it does out of the hint: the SQL by :func:`statements`, the command by :func:`command`, so that
another hint is another test. A marked test that took no such hint fails (``conftest.py``), and so
does the suite when a code has no test (``unit/test_hints.py``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from spillway.errors import SpillwayError
from spillway.wording import for_commands

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pytest

#: The mark's name.
MARK: Final = "follows_hint"

_STATEMENT = re.compile(r"\bCHECKPOINT\b|\b(?:ALTER|GRANT|SELECT|CREATE|DROP) [^;]*;")
_ERROR_ON_A_TERMINAL = re.compile(
    r"^hint: (?P<hint>.*?)\ncode: (?P<code>\w+)$", re.MULTILINE | re.DOTALL
)

#: Codes of the hints that the present test took.
taken: set[str] = set()


def remedy(found: SpillwayError | Mapping[str, Any] | str, code: str) -> str:
    """Return the hint of an error that must have *code*.

    Args:
        found: the error; a problem document, a source or a session of REST; or what a command
            printed on stderr.
        code: the code that it must have.
    """
    if isinstance(found, SpillwayError):
        told, hint = found.code, found.hint
    elif isinstance(found, str):
        printed = _ERROR_ON_A_TERMINAL.search(found)
        assert printed is not None, found
        told, hint = printed["code"], printed["hint"]
    else:
        told, hint = str(found.get("error_code") or found.get("code")), str(found["hint"] or "")
    assert told == code, found
    assert hint, f"{code} has no hint: {found}"
    taken.add(code)
    return hint


def check_kept(marks: Iterable[pytest.Mark]) -> None:
    """Fail when a test did not take a hint that its marks promise."""
    promised = {code for mark in marks for code in mark.args}
    assert promised <= taken, f"marked as following hints that it did not take: {promised - taken}"


def statements(hint: str) -> list[str]:
    """Return the SQL that a hint says, in its order."""
    found = _STATEMENT.findall(hint)
    assert found, f"no SQL in: {hint}"
    return [str(one).rstrip(";") for one in found]


def command(hint: str, begin: str, **named: str) -> list[str]:
    """Return the words of the command that begins with *begin* in a hint, for the program's
    ``main``.

    A REST call in the hint is the command that does the same. *named* has what stands for words in
    capitals; what it has may stand there itself.
    """
    worded = for_commands(hint)
    values = "|".join(map(re.escape, named.values()))
    argument = rf"--?[a-z-]+|[A-Z]+\b|\S*[0-9_/]\S*{'|' if values else ''}(?:{values})(?![\w-])"
    found = re.findall(rf"`spillway ({re.escape(begin)}[^`]*)`", worded)
    found += re.findall(rf"spillway ({re.escape(begin)}(?: (?:{argument}))*)", worded)
    assert found, f"no `spillway {begin}` in: {worded}"
    words = max(found, key=len).rstrip("`.,;:)").split()
    return [named.get(word, word) for word in words]


def variables(hint: str) -> set[str]:
    """Return the settings that a hint names."""
    return set(re.findall(r"SPILLWAY_[A-Z_]+", hint))
