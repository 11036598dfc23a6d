"""The demo from start to end, as ``make demo`` runs it, with a smaller large transaction."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from rich.console import Console

from harness.remedies import remedy
from harness.terminal import Terminal
from spillway.demo.private_postgres import make_directory
from spillway.demo.report import Report
from spillway.demo.run import embedded_programs, run_demo
from spillway.errors import PrivatePostgresError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that the server's user can reach, which pytest's own as root is not."""
    import shutil

    place = make_directory("spillway-demo-test-")
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_everything_agrees(directory: Path) -> None:
    output = io.StringIO()
    report = Report(Console(file=output, width=120))

    code = run_demo(directory, bulk_rows=5_000, table_format="delta", report=report)

    assert code == 0, output.getvalue()
    assert report.failures == []
    assert "Everything agrees" in output.getvalue()
    for table in ("customers", "products", "orders", "items"):
        assert table in output.getvalue()
    assert "stays up" not in output.getvalue()
    assert _gone(str(directory))


@pytest.mark.follows_hint("private_postgres_error")
def test_without_its_server_the_demo_says_what_to_install(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    output = io.StringIO()

    code = run_demo(
        directory, table_format="parquet", report=Report(Console(file=output, width=120))
    )

    assert code == 1
    assert "pip install '.[demo,spark]'" in output.getvalue()
    with pytest.raises(PrivatePostgresError) as caught:
        embedded_programs()
    extras = re.search(r"'\.\[([\w,]+)\]'", remedy(caught.value, "private_postgres_error"))
    assert extras is not None
    # The package that was looked for is what those extras bring, and with it there are programs.
    monkeypatch.undo()
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    brought = [
        re.split(r"[=<>\[]", one)[0].replace("-", "_")
        for extra in extras[1].split(",")
        for one in project["optional-dependencies"][extra]
    ]
    programs = embedded_programs()
    assert (programs / "initdb").exists()
    assert programs.parents[1].name in brought


#: The demo without what takes long: volume, and Spark. The whole is the first test's.
WITHOUT_A_LAKE = """
import sys
from pathlib import Path
from spillway.demo.run import Demo, run_demo
for part in ("_work", "_receive", "_verify", "_both_kinds"):
    setattr(Demo, part, lambda *_: None)
Demo._fill_lake = lambda demo: {lake}
sys.exit(run_demo({directory}, bulk_rows=1000, table_format="parquet"))
"""
#: A command that started another one, as `lake run` starts a JVM, and ends for nobody's sake.
STUBBORN = (
    "import signal, subprocess, sys, time; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "print('working'); subprocess.run(['sleep', '1234567'])"
)


def _program(directory: Path | None, lake: str = "None") -> str:
    place = "None" if directory is None else f"Path({str(directory)!r})"
    return WITHOUT_A_LAKE.format(lake=lake, directory=place)


def _mentioning(text: str) -> list[str]:
    """Command lines of living processes that have *text* in them."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (OSError, UnicodeDecodeError):
                continue
            if text in line:
                found.append(line)
    return found


def _gone(text: str) -> bool:
    deadline = time.monotonic() + 20
    while _mentioning(text):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.timeout(300)
def test_at_a_terminal_it_stays_up_until_interrupted(directory: Path) -> None:
    terminal = Terminal("-c", _program(directory), columns=100)
    said = terminal.read_until("Ctrl-C stops everything")
    assert "Everything agrees" in said
    found = re.search(r"admin UI +.*?(http://127\.0\.0\.1:\d+/)", said)
    assert found, said
    page = httpx.get(found[1], follow_redirects=True, timeout=60)
    assert "audit" in page.text
    assert _mentioning(str(directory))
    terminal.interrupt()
    assert terminal.close() == 0, terminal.output
    assert "SIGTERM to the service" in terminal.output
    assert _gone(str(directory)), _mentioning(str(directory))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_interrupt_in_between_leaves_nothing(directory: Path) -> None:
    """While a command of its own is at work that started another: as Spark's driver and its JVM."""
    lake = f"demo._run([sys.executable, '-c', {STUBBORN!r}, {str(directory)!r}])"
    program = f"import os\nprint('PID', os.getpid())\n{_program(directory, lake)}"
    terminal = Terminal("-c", program, columns=100)
    terminal.read_until("Nothing logical on the primary")
    deadline = time.monotonic() + 60
    while not _mentioning("1234567") and time.monotonic() < deadline:
        time.sleep(0.1)
    terminal.interrupt()
    assert terminal.close() == 130, terminal.output
    assert _gone(str(directory)), _mentioning(str(directory))
    assert _gone("sleep 1234567")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_without_a_terminal_it_stays_up_when_told(directory: Path) -> None:
    program = _program(directory).replace("bulk_rows", "keep=True, bulk_rows")
    kept = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    assert kept.stdout is not None
    for line in kept.stdout:
        if "Ctrl-C" in line:
            break
    kept.send_signal(signal.SIGTERM)
    assert kept.wait(60) == 0
    kept.stdout.close()
    assert _gone(str(directory))
