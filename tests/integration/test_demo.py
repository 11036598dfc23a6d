"""The demo from start to end, as ``make demo`` runs it, with a smaller large transaction."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from spillway.demo.private_postgres import make_directory
from spillway.demo.report import Report
from spillway.demo.run import run_demo

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that the server's user can reach, which pytest's own as root is not."""
    import shutil

    place = make_directory("spillway-demo-test-")
    yield place
    shutil.rmtree(place, ignore_errors=True)


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
