"""Hints in the words of each interface: none that speaks REST gets to a command line or onto a
page.
"""

from __future__ import annotations

import ast
import functools
import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.commands import parse_command
from spillway.wording import ACTIONS, for_commands, for_pages

if TYPE_CHECKING:
    from collections.abc import Iterator

PROJECT = Path(__file__).resolve().parents[2]
SOURCE = PROJECT / "services" / "spillway"
CONTRACT = json.loads((PROJECT / "openapi" / "spillway-v1.json").read_text())

#: What only those who call REST or gRPC themselves understand.
REST_SPEECH = re.compile(
    r"\b(?:GET|POST|PUT|PATCH|DELETE) /|/v1\b|/docs\b|\bAuthorization\b|\bauthorization:|query "
    r"parameter|"
    r"\bupto_\w+|\bcopy_data\b|\biceberg_catalog\b|\bstart_lsn\b|\bslot_name\b(?!\w)|\bkeep_slot\b|\"origin\""
)
#: Modules whose hints are read by whoever writes to the wire, never by a person at a command or a
#: page.
WIRE = {"stream/change_stream.py", "walsender/sql/statements.py"}


#: Where remedies are no hints by name.
FINDINGS = "watch/findings.py"


def _text(node: ast.expr) -> str | None:
    """What a hint says, with NAME where it is filled in; None for one that is only passed on."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "NAME" for part in node.values
        )
    return None


def _sentences(node: ast.AST) -> Iterator[ast.expr]:
    """The texts in what is called or yielded, each as a whole."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.Constant | ast.JoinedStr):
            yield inner
        elif not isinstance(inner, ast.Call):
            yield from _sentences(inner)


@functools.cache
def _hints() -> list[tuple[str, str]]:
    """Every hint that is written in the code: as an argument, a default, a variable or an entry."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        module = str(path.relative_to(SOURCE))
        if module in WIRE or "_generated" in module:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            values: list[ast.expr] = []
            if isinstance(node, ast.keyword) and node.arg == "hint":
                values = [node.value]
            elif module == FINDINGS and isinstance(node, ast.Call | ast.Yield):
                # Titles, details and remedies: whoever shows them words them.
                values = [part for part in _sentences(node) if " " in (_text(part) or "")]
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any("hint" in ast.unparse(target).lower() for target in targets):
                    values = [
                        inner for inner in ast.walk(node.value) if isinstance(inner, ast.expr)
                    ]
            for value in values:
                text = _text(value)
                if text:
                    found.append((f"{module}:{value.lineno}", text))
    return found


def test_the_search_finds_hints() -> None:
    found = _hints()
    assert len(found) > 350
    assert any("GET /v1/" in text for _, text in found)
    remedies = [text for where, text in found if where.startswith(FINDINGS)]
    assert any("DELETE /v1/slots/NAME" in text for text in remedies)
    assert any("GET /v1/subscriptions/NAME/log" in text for text in remedies)


@pytest.mark.parametrize("word", [for_commands, for_pages])
def test_no_hint_speaks_rest(word) -> None:
    wrong = [
        (where, worded) for where, text in _hints() if REST_SPEECH.search(worded := word(text))
    ]
    assert not wrong, "\n".join(f"{where}: {text}" for where, text in wrong)


def test_no_problem_of_http_speaks_rest() -> None:
    from spillway.slot_manager.problems import _HTTP_CODES

    for _, hint in _HTTP_CODES.values():
        assert not REST_SPEECH.search(for_commands(hint)), hint


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.call)
def test_actions_are_in_the_contract_and_on_the_command_line(action) -> None:
    method, _, target = action.call.partition(" ")
    path, _, _ = target.partition("?")
    known = {
        (verb.upper(), re.sub(r"\{\w+\}", "{}", at))
        for at, operations in CONTRACT["paths"].items()
        for verb in operations
    }
    assert (method, re.sub(r"\{\w+\}", "{}", path)) in known
    words = shlex.split(re.sub(r"\{(\w+)\}", r"\1", action.command))
    group, name = words[0], words[1]
    import typer

    from spillway.cli.program import app

    command = typer.main.get_group(app).commands[group]
    assert isinstance(command, typer.core.TyperGroup)
    assert name in command.commands


def test_what_a_hint_says_to_look_at_can_be_typed_as_it_stands() -> None:
    for where, text in _hints():
        for call in re.findall(r"GET /v1/[^\s,;:)]+", text):
            worded = for_commands(call.rstrip("."))
            assert worded.startswith("`spillway "), (where, call)
            words = worded.strip("`").split()[1:]
            if "--help" not in words:
                parse_command(words)


def test_a_call_takes_the_names_that_stand_in_it() -> None:
    hint = "GET /v1/sources/shop/tables?database=books lists them. GET /v1/sources shows why."
    assert for_commands(hint) == (
        "`spillway source tables shop --database books` lists them. `spillway source list` shows "
        "why."
    )
    assert for_pages(hint) == (
        "The list of tables on the source's page lists them. The overview shows why."
    )
    assert parse_command(["source", "tables", "shop", "--database", "books"])["name"] == "shop"


def test_what_is_no_action_stays() -> None:
    for hint in ("ALTER ROLE x REPLICATION;", "GET /v1/nonsense says.", "Write 0/16B3748.", ""):
        assert for_commands(hint) == hint
        assert for_pages(hint) == hint
