"""The programs of the page, run as they are printed; only address, names of the source and the
warehouse are others.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.reception import wait_until
from spillway.cli.program import main

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import Database
    from harness.service import Service

PROJECT = Path(__file__).resolve().parents[3]
PAGE = (PROJECT / "docs" / "how-to" / "python-client.md").read_text()
TOKEN = "the client's token"


def _block(heading: str, language: str) -> str:
    """The first block of a language under a heading."""
    part = PAGE[PAGE.index(heading) :]
    found = re.search(rf"^```{language}\n(.*?)^```$", part, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.fixture
def audit(
    service: Service, database: Database, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Database]:
    """The publication and the slot, made as the page says."""
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, total numeric(10,2))")
    database.execute("CREATE TABLE copy (id int, total numeric(10,2))")
    database.execute(_block("# Consume", "sql"))
    monkeypatch.setenv("SPILLWAY_URL", f"http://127.0.0.1:{service.http_port}")
    monkeypatch.setenv("SPILLWAY_TOKEN", TOKEN)
    (line,) = re.findall(r"^spillway (slot create .+)$", PAGE, re.MULTILINE)
    words = line.replace("--source shop", "--source main")
    assert main(words.replace("--database shop", f"--database {database.name}").split()) == 0
    yield database
    service.drop_slot("audit")
    database.execute("DROP PUBLICATION audit")
    database.execute("DROP TABLE orders, copy")


class Program:
    """A program of the page, until it is ended; each line that it prints."""

    def __init__(self, text: str, service: Service, database: Database) -> None:
        self._service = service
        text = text.replace("127.0.0.1:50051", service.grpc_address)
        text = text.replace("postgresql://127.0.0.1/warehouse", database.dsn)
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", text],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(PROJECT / "client" / "src"), "PYTHONUTF8": "1"},
        )

    def lines(self, count: int) -> list[str]:
        assert self._process.stdout is not None
        timer = threading.Timer(120, self._process.kill)
        timer.start()
        lines = [self._process.stdout.readline() for _ in range(count)]
        timer.cancel()
        return lines

    def end(self) -> None:
        """Kill it, and wait until the service has noticed."""
        self._process.kill()
        self._process.communicate()
        wait_until(lambda: not self._service.slot("audit")["active"], 60, "the slot stays active")


def test_the_ten_lines(audit: Database, service: Service) -> None:
    text = _block("## Ten lines", "python")
    assert len([line for line in text.splitlines() if line]) <= 10
    program = Program(text, service, audit)
    audit.execute("INSERT INTO orders VALUES (1, 9.50)")
    audit.execute("UPDATE orders SET id = 2")
    first, insert, second, update = program.lines(4)
    program.end()
    assert re.fullmatch(r"transaction \d+ at [0-9A-F]+/[0-9A-F]+, \d\d:\d\d:\d\d\n", first)
    assert insert == "  insert orders None → {'id': 1, 'total': Decimal('9.50')}\n"
    assert second.startswith("transaction ")
    assert update == "  update orders {'id': 1} → {'id': 2, 'total': Decimal('9.50')}\n"


def test_exactly_once_and_asyncio(audit: Database, service: Service) -> None:
    audit.execute("INSERT INTO orders VALUES (1, 9.50), (2, NULL)")
    program = Program(_block("## Exactly once", "python"), service, audit)
    for _ in range(1200):
        if audit.value("SELECT count(*) FROM copy") == 2:
            break
        threading.Event().wait(0.1)
    program.end()
    assert audit.query("SELECT id, total FROM copy ORDER BY 1") == audit.query(
        "SELECT id, total FROM orders ORDER BY 1"
    )
    assert audit.value("SELECT count(*) FROM spillway_position") == 1
    audit.execute("INSERT INTO orders VALUES (3, 1)")
    program = Program(_block("## asyncio", "python"), service, audit)
    (line,) = program.lines(1)
    while "'id': 3" not in line:
        # What the program before was killed before it confirmed.
        assert "'id': 1" in line
        (line,) = program.lines(1)
    program.end()
    audit.execute("DROP TABLE spillway_position")


def test_the_pages_other_blocks_are_python() -> None:
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        compile(block, "page", "exec")
