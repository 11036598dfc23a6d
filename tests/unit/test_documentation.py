"""The documentation says what the code does: links lead somewhere, and tables name what is
there.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from harness.commands import parse_command
from spillway.installation import DISTRIBUTION, how_to_install

PROJECT = Path(__file__).resolve().parents[2]
DOCS = PROJECT / "docs"
PAGES = sorted([*PROJECT.glob("*.md"), *DOCS.rglob("*.md")])
SOURCE = PROJECT / "services" / "spillway"

#: Read by others or by the tests: not settings of the service.
#: SPILLWAY_COMPLETE is the end of what a shell sets when it asks for completions.
FOREIGN_VARIABLES = {"SPILLWAY_CACHE", "SPILLWAY_TEST_POSTGRES_", "SPILLWAY_COMPLETE"}


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ +(.+)$", page.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip().replace(" ", "-")
        for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_links_resolve(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.relative_to(PROJECT)} links to {target}"
        if anchor:
            assert anchor in _anchors(file), f"{page.relative_to(PROJECT)} links to {target}"


#: The how-tos on what has a page, and the page's picture.
PICTURES = {
    "apply-into-postgresql": "applied",
    "be-told-when-something-is-wrong": "alerts",
    "find-what-happened-to-a-row": "changes",
    "handle-conflicts": "conflict",
    "operate": "problem",
    "prepare-a-source": "add-source",
    "subscriptions": "subscription",
    "use-the-admin-ui": "overview-dark",
}


def test_pictures_are_shown() -> None:
    for how_to, picture in PICTURES.items():
        text = (DOCS / "how-to" / f"{how_to}.md").read_text()
        assert f"](../images/{picture}.png)" in text, how_to
    shown = {
        target.rpartition("/")[2]
        for page in PAGES
        for target in re.findall(r"!\[[^\]]*\]\(([^)\s]+\.png)\)", page.read_text())
    }
    assert {picture.name for picture in (DOCS / "images").glob("*.png")} <= shown


@pytest.mark.parametrize(
    "page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS))
)
def test_every_page_is_in_the_index(page: Path) -> None:
    index = DOCS / "README.md"
    if page != index:
        assert f"]({page.relative_to(DOCS)})" in index.read_text()


def _reference() -> dict[Path, str]:
    """What the pages that are written from code should hold."""
    path = PROJECT / "scripts" / "write_reference.py"
    spec = importlib.util.spec_from_file_location("write_reference", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    pages: dict[Path, str] = script.pages()
    return pages


@pytest.mark.parametrize("name", ["errors.md", "cli.md", "settings.md", "rest.md"])
def test_reference_is_current(name: str) -> None:
    page = DOCS / "reference" / name
    assert page.read_text() == _reference()[page], "run python scripts/write_reference.py"


def test_every_variable_is_documented() -> None:
    used = set()
    for path in SOURCE.rglob("*.py"):
        used |= set(re.findall(r"SPILLWAY_[A-Z_]+\b", path.read_text()))
    documented = set(
        re.findall(r"SPILLWAY_[A-Z_]+\b", (DOCS / "reference" / "settings.md").read_text())
    )
    assert used - FOREIGN_VARIABLES == documented - FOREIGN_VARIABLES


def test_rest_page_names_every_call() -> None:
    contract = json.loads((PROJECT / "openapi" / "spillway-v1.json").read_text())
    page = (DOCS / "reference" / "rest.md").read_text()
    calls = {
        f"{method.upper()} {path}"
        for path, operations in contract["paths"].items()
        for method in operations
    }
    assert calls == set(re.findall(r"^\| `([A-Z]+ /v1/[^`]*)`", page, re.MULTILINE))


def test_grpc_page_names_every_method() -> None:
    page = (DOCS / "reference" / "grpc.md").read_text()
    for contract in (PROJECT / "proto" / "spillway" / "v1").glob("*.proto"):
        for method in re.findall(r"rpc (\w+)\(", contract.read_text()):
            assert f"`{method}`" in page


def _command_lines() -> list[tuple[str, str]]:
    """(page, command line) of each spillway command in a shell block."""
    return [
        (str(page.relative_to(PROJECT)), match[1])
        for page in PAGES
        for block in re.findall(
            r"^ *```sh\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE
        )
        for line in block.replace("\\\n", " ").splitlines()
        if (match := re.match(r" *(?:\.venv/bin/)?spillway (.+)", line))
    ]


@pytest.mark.parametrize(("page", "line"), _command_lines())
def test_documented_commands_parse(page: str, line: str) -> None:
    # Up to a pipe, or to what the command reads: what comes behind is the shell's.
    command = re.split(r" \| | <<", line, maxsplit=1)[0]
    assert parse_command(shlex.split(command, comments=True))


def test_every_option_of_a_plugin_is_documented() -> None:
    page = (DOCS / "reference" / "output-plugins.md").read_text()
    source = (SOURCE / "plugins" / "test_decoding.py").read_text()
    options = re.findall(r'"((?:include|skip|only|force|stream)-[a-z-]+)"', source)
    assert options
    for option in options:
        assert f"| `{option}` |" in page


def test_what_is_supported_names_tests_that_exist() -> None:
    page = (DOCS / "reference" / "supported.md").read_text()
    tests = PROJECT / "tests"
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+)(?:\[(.+?)\])?)?`", page)
    assert len(named) > 50
    cases = "\n".join(path.read_text() for path in (tests / "oracle").glob("*.py"))
    for file, test, case in named:
        assert (tests / file).exists(), file
        if test:
            assert re.search(rf"^def {test}\(", (tests / file).read_text(), re.MULTILINE), test
        if case:
            assert f'"{case}"' in cases, case


def _tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=PROJECT, check=True, capture_output=True, text=True
    ).stdout
    return [PROJECT / name for name in listed.split("\0") if name and (PROJECT / name).is_file()]


#: Written with gaps, so that this file passes its own test.
FORBIDDEN = {
    "a conflict marker": r"^(<{7} |>{7} )",
    "work left undone": r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b",
    "a path of one machine": r"(?<![\w.])/(ro" r"ot|wo" r"rk|home/\w+)/[\w.]",
    # Rewrap it, draw it anew or split it: nothing yet could not be.
    "leave for a line to be wider than 100 columns": r"\bE5" r"01\b|no-cython" r"-lint",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_nothing_forbidden_is_tracked(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what], re.MULTILINE)
    found = []
    for path in _tracked():
        if path.suffix in {".lock", ".bin", ".gz", ".wal"} or path.stat().st_size > 1_000_000:
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(PROJECT)}: {match[0]}" for match in pattern.finditer(text)]
    assert not found, f"{what}: {found}"


def test_nothing_large_is_tracked() -> None:
    large = [path.name for path in _tracked() if path.stat().st_size > 2_000_000]
    assert not large


def _shipped() -> list[Path]:
    """What tells somebody how to install something: pages, code and build files, but not tests."""
    return [
        path
        for path in _tracked()
        if path.suffix in {".md", ".py", ".toml", ".yml", ".yaml", ".sh", ""}
        and PROJECT / "tests" not in path.parents
    ]


def test_nobody_is_told_to_install_a_strangers_package() -> None:
    """``spillway`` on PyPI is another project's; nothing of ours is on an index to be fetched by
    name.
    """
    found = []
    for path in _shipped():
        text = path.read_text()
        found += [
            f"{path.relative_to(PROJECT)}: {match[0]}"
            for match in re.finditer(r"pip install[^\n`]*", text)
            if re.search(r"(?<![\w./-])spillway(?:[-_]slots)?(?![\w-])(?!-[\d{])", match[0])
        ]
        if "spillway[" in text:
            found.append(f"{path.relative_to(PROJECT)}: spillway[…]")
    assert not found, found


def test_the_distribution_is_not_the_one_on_pypi() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION != "spillway"
    assert project["scripts"] == {"spillway": "spillway.cli:main"}
    locked = tomllib.loads((PROJECT / "uv.lock").read_text())["package"]
    assert [p["name"] for p in locked if p["source"] == {"editable": "."}] == [DISTRIBUTION]


def test_hints_name_extras_that_exist() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    named = set()
    for path in SOURCE.rglob("*.py"):
        for match in re.finditer(r"how_to_install\(([^)]*)\)", path.read_text()):
            named |= set(re.findall(r"[\"'](\w+)[\"']", match[1]))
    assert named
    assert named <= extras["optional-dependencies"].keys()
    said = how_to_install("spark")
    assert "pip install '.[spark]'" in said
    assert f"spillway_slots-{extras['version']}-….whl[spark]" in said
