"""Each error that the product raises has a test that follows its hint to the end."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness import remedies
from spillway import errors
from spillway.errors import SpillwayError, UnknownSlot, error_class

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parents[1]
SOURCE = Path(errors.__file__).parent


def _tree(kind: type[SpillwayError] = SpillwayError) -> Iterator[type[SpillwayError]]:
    yield kind
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from _tree(below)


def _raised() -> list[type[SpillwayError]]:
    """The classes that a module makes something of, or may: parents that only group others need no
    remedy.
    """
    text = "\n".join(
        path.read_text()
        for pattern in ("*.py", "*.pyx")
        for path in SOURCE.rglob(pattern)
        if path != SOURCE / "errors.py"
    )
    called = set(re.findall(r"\b([A-Z]\w+)\(", text))
    return [k for k in _tree() if k.__name__ in called or not k.__subclasses__()]


def _marks() -> dict[str, list[str]]:
    """The tests that are marked, by code."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text()
        if path == Path(__file__) or remedies.MARK not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) == f"pytest.mark.{remedies.MARK}"
            ):
                for argument in node.args:
                    where = f"{path.relative_to(TESTS)}:{node.lineno}"
                    found.setdefault(ast.literal_eval(argument), []).append(where)
    return found


def test_each_error_has_a_test_that_follows_its_hint() -> None:
    marks = _marks()
    missing = sorted(kind.code for kind in _raised() if kind.code not in marks)
    assert not missing, f"no test is marked with pytest.mark.{remedies.MARK} for: {missing}"


def test_marks_name_codes() -> None:
    for code, where in _marks().items():
        assert error_class(code).code == code, (code, where)


def test_a_promise_that_is_not_kept_is_seen() -> None:
    marks = [pytest.mark.follows_hint("unknown_slot").mark]
    with pytest.raises(AssertionError, match=r"did not take: .*unknown_slot"):
        remedies.check_kept(marks)
    remedies.remedy(UnknownSlot("no", hint="Look."), "unknown_slot")
    remedies.check_kept(marks)


def test_what_hints_say_is_parsed() -> None:
    hint = (
        "ALTER SYSTEM SET wal_level = 'logical'; then SELECT pg_reload_conf(); and CHECKPOINT on it"
    )
    assert remedies.statements(hint) == [
        "ALTER SYSTEM SET wal_level = 'logical'", "SELECT pg_reload_conf()", "CHECKPOINT",
    ]  # fmt: skip
    hint = "Begin anew: spillway source restart SOURCE DATABASE, for any one database."
    assert remedies.command(hint, "source restart", SOURCE="main", DATABASE="shop") == [
        "source", "restart", "main", "shop",
    ]  # fmt: skip
    hint = "End it: POST /v1/slots/s_1/end-session. Or not."
    assert remedies.command(hint, "slot end-session") == ["slot", "end-session", "s_1"]
    printed = "spillway: error: it broke\nhint: Mend it,\nand more.\ncode: lake_error\n"
    assert remedies.remedy(printed, "lake_error") == "Mend it,\nand more."
    with pytest.raises(AssertionError):
        remedies.remedy(printed, "conflict")


def test_what_the_manual_says_to_do_is_of_errors_that_are_followed() -> None:
    """The list of docs/how-to/operate.md begins each item with the codes that it is about."""
    manual = (TESTS.parent / "docs/how-to/operate.md").read_text()
    items = re.findall(r"^- ((?:`\w+`(?:, |,? and )?)+)", manual, re.MULTILINE)
    codes = {code for item in items for code in re.findall(r"`(\w+)`", item)}
    assert len(codes) > 10
    assert codes <= _marks().keys()
