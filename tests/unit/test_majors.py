"""The page of what differs between versions has every rule that the code asks for, and names tests
that are there.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from spillway.pg import versions

PROJECT = Path(__file__).resolve().parents[2]
PAGE = (PROJECT / "docs" / "explanation" / "majors.md").read_text()
RULES = [
    *(field.name for field in dataclasses.fields(versions.WalVersion)),
    *versions.Since.__members__,
    *re.findall(
        r"^def (\w+)\(server_version_num: int\) -> bool",
        Path(versions.__file__).read_text(),
        re.MULTILINE,
    ),
]


@pytest.mark.parametrize("rule", [r for r in RULES if not r.startswith("_")])
def test_every_rule_has_a_row(rule):
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and f"`{rule}`" in line]
    assert len(rows) == 1, f"docs/explanation/majors.md has {len(rows)} rows for {rule}"


def test_its_tests_and_modules_are_there():
    named = re.findall(r"`((?:unit|oracle|golden|integration)/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) > 30
    for path, function in named:
        file = PROJECT / "tests" / path
        assert file.exists(), path
        assert f"def {function or 'test_'}" in file.read_text(), f"{path}::{function}"
    package = Path(versions.__file__).parents[1]
    for path in re.findall(r"`([\w/]+\.pyx?)`", PAGE):
        if path.split("/")[0] in {"unit", "oracle", "golden", "integration", "tests"}:
            continue
        assert (package / path).exists(), path


@pytest.mark.parametrize(("name", "since"), versions.Since.__members__.items())
def test_a_majors_row_says_its_major(name, since):
    row = next(line for line in PAGE.splitlines() if f"`{name}`" in line)
    assert str(since // 10000) in row.split("|")[2]
