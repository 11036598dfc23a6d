"""The table of PostgreSQL's own scenarios names every one of them, and only tests that are
there.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from oracle import postgresql_scenarios, wal_scenarios

PROJECT = Path(__file__).resolve().parents[2]
PAGE = PROJECT / "docs" / "reference" / "postgresql-scenarios.md"

#: contrib/test_decoding's REGRESS, ISOLATION and TAP tests of 14 to 18, and the specs of 19's
#: development
SQL = [
    "binary",
    "ddl",
    "decoding_in_xact",
    "decoding_into_rel",
    "messages",
    "permissions",
    "prepared",
    "replorigin",
    "rewrite",
    "slot",
    "spill",
    "stats",
    "stream",
    "time",
    "toast",
    "truncate",
    "twophase",
    "twophase_stream",
    "xact",
]
SPECS = [
    "catalog_change_snapshot",
    "concurrent_ddl_dml",
    "concurrent_stream",
    "delayed_startup",
    "invalidation_distribution",
    "mxact",
    "oldest_xmin",
    "ondisk_startup",
    "parallel_session_origin",
    "skip_snapshot_restore",
    "slot_creation_error",
    "snapshot_transfer",
    "subxact_without_top",
    "twophase_snapshot",
]
TESTS = [*(f"sql/{n}" for n in SQL), *(f"specs/{n}" for n in SPECS), "t/001_repl_stats"]

#: What they probe is not there: the row says so, and limits.md.
NOT_THERE: set[str] = set()

SCRIPTS = (
    *postgresql_scenarios.SCENARIOS,
    *wal_scenarios.SCENARIOS,
    *(name for scripts in wal_scenarios.SINCE.values() for name in scripts),
)


def _rows() -> dict[str, list[str]]:
    rows = {}
    for line in PAGE.read_text().splitlines():
        if match := re.fullmatch(r"\| ((?:sql|specs|t)/\S+) \| .+ \| (.+) \|", line):
            rows[match[1]] = re.findall(r"`([^`]+)`", match[2])
            assert match[2].startswith("not there: [limits]") == (match[1] in NOT_THERE), match[1]
    return rows


@cache
def _functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_scenario_of_postgresqls_has_its_row() -> None:
    assert sorted(_rows()) == sorted(TESTS)


@pytest.mark.parametrize("name", TESTS)
def test_what_a_row_names_is_there(name: str) -> None:
    references = _rows()[name]
    assert bool(references) != (name in NOT_THERE)
    for reference in references:
        if "::" in reference:
            path, function = reference.split("::")
            assert function in _functions(PROJECT / path), reference
        else:
            assert reference.endswith("…"), reference
            assert any(script.startswith(reference[:-1]) for script in SCRIPTS), reference


def test_every_script_that_is_named_for_a_test_is_in_its_row() -> None:
    rows = _rows()
    for script in postgresql_scenarios.SCENARIOS:
        name = script.split(":", maxsplit=1)[0]
        kind = "sql" if name in SQL else "specs"
        assert f"{name}: …" in rows[f"{kind}/{name}"], script
